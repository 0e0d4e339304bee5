"""What runs and computations came to, with numbers and small arrays, shared between figures.

A new result is one JSON file. `pack` puts those of an experiment together, compressed, for a repository: after the
numbers of all as one line of JSON, the bytes of their arrays.
"""

from __future__ import annotations

import base64
import functools
import json
import lzma
import os
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw._tools.text import json_text

_MOST_BYTES = 1_000_000
"""Of one array, before it is compressed: figures need samples, not data sets."""
_MOST_PACKED = 1_500_000
"""Bytes in one compact file, before they are compressed; a single result may have more."""


@dataclass(frozen=True)
class Measured:
    """Numbers and arrays by name."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A run's or computation's file.

    Attributes:
        about: settings, guarantee, seconds, versions, hardware and date.
        measures: by name; "held-out" are the run's own held-out metrics.
        fault: why there is no result; None if there is one.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Measured] = field(default_factory=dict)
    fault: str | None = None

    def lacks(self, name: str) -> bool:
        """Whether a measure is not there, or waits (its value `waits_for`) for an environment variable that is."""
        known = self.measures.get(name)
        return known is None or str(known.values.get("waits_for", "")) in os.environ

    def together(self, names: tuple[str, ...]) -> Measured:
        """The values and arrays of several measures under one roof; the later name wins."""
        parts = [self.measures[name] for name in names if name in self.measures]
        values = {key: value for part in parts for key, value in part.values.items()}
        return Measured(values, {key: array for part in parts for key, array in part.arrays.items()})


def read(folder: Path, key: str) -> Stored | None:
    """What was stored under a key; None if nothing was.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    path = _file(folder, key)
    try:
        return _stored(json.loads(path.read_text(encoding="utf-8")), _decode)
    except FileNotFoundError:
        return _packed(folder, _experiment(key)).get(key)
    except (KeyError, TypeError, ValueError, zlib.error) as fault:
        raise ValueError(f"{path} is damaged ({fault}); delete it, and it is made again") from None


def write(folder: Path, key: str, stored: Stored) -> None:
    """Put a result in place whole.

    Raises:
        ValueError: naming an array that is too large for a file that is committed.
    """
    path = _file(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, (json_text(_content(stored, _encode), indent=1) + "\n").encode())


def pack(folder: Path, *, without: Collection[tuple[str, str]] = ()) -> list[Path]:
    """Put results that have a file of their own into the compact files of their experiments, bit for bit.

    Args:
        without: arrays that are left out, by the key of their result and their name.

    Returns:
        The compact files that were written.
    """
    own = sorted(path.stem for path in folder.glob("*.json"))
    written: list[Path] = []
    for name in sorted({_experiment(key) for key in (*own, *(key for key, _ in without))}):
        before = _parts(folder, name)
        results = dict(_packed(folder, name))
        results |= {key: stored for key in own if _experiment(key) == name and (stored := read(folder, key))}
        results = {
            key: _lighter(stored, {array for of, array in without if of == key}) for key, stored in results.items()
        }
        parts = {folder / f"{name}.{number}.xz": content for number, content in enumerate(_packs(results))}
        for path, content in parts.items():
            files.replace(path, content)
        for path in set(before) - set(parts):
            path.unlink()
        written += parts
    for key in own:
        _file(folder, key).unlink()
    return written


def packed(folder: Path) -> dict[str, Stored]:
    """All results in the compact files of a folder, by their keys."""
    names = sorted({path.name.rsplit(".", 2)[0] for path in folder.glob("*.xz")})
    return {key: stored for name in names for key, stored in _packed(folder, name).items()}


def _lighter(stored: Stored, without: Collection[str]) -> Stored:
    """A result without some of its arrays."""
    measures = {
        name: replace(part, arrays={each: array for each, array in part.arrays.items() if each not in without})
        for name, part in stored.measures.items()
    }
    return replace(stored, measures=measures)


def _packs(results: Mapping[str, Stored]) -> list[bytes]:
    """Compact files of results, in the order of their keys."""
    groups: list[dict[str, Stored]] = []
    room = 0
    for key in sorted(results):
        size = sum(array.nbytes for part in results[key].measures.values() for array in part.arrays.values())
        if size > room or not groups:
            groups.append({})
            room = _MOST_PACKED
        groups[-1][key] = results[key]
        room -= size
    return [_pack(group) for group in groups]


def _pack(results: Mapping[str, Stored]) -> bytes:
    data = bytearray()

    def appended(name: str, array: NDArray[Any]) -> dict[str, Any]:
        start = len(data)
        data.extend(np.ascontiguousarray(array).tobytes())
        return {"dtype": array.dtype.str, "shape": list(array.shape), "start": start, "end": len(data)}

    content = json_text({key: _content(stored, appended) for key, stored in results.items()}, indent=None)
    return lzma.compress(content.encode() + b"\n" + bytes(data), preset=9)


def _packed(folder: Path, experiment: str) -> Mapping[str, Stored]:
    """The results in the compact files of an experiment, by their keys."""
    parts = _parts(folder, experiment)
    return {key: stored for path in parts for key, stored in _unpacked(path, path.stat().st_mtime_ns).items()}


@functools.lru_cache(maxsize=64)
def _unpacked(path: Path, changed: int) -> Mapping[str, Stored]:
    """The results in one compact file; `changed` is when it was written, for the cache."""
    try:
        content, _, data = lzma.decompress(path.read_bytes()).partition(b"\n")

        def cut(raw: Mapping[str, Any]) -> NDArray[Any]:
            return np.frombuffer(data[raw["start"] : raw["end"]], dtype=np.dtype(raw["dtype"])).reshape(raw["shape"])

        return {key: _stored(raw, cut) for key, raw in json.loads(content).items()}
    except (KeyError, TypeError, ValueError, EOFError, lzma.LZMAError) as fault:
        raise ValueError(f"{path} is damaged ({fault}); delete it, and its results are made again") from None


def _parts(folder: Path, experiment: str) -> list[Path]:
    return sorted(folder.glob(f"{experiment}.*.xz"))


def _experiment(key: str) -> str:
    return key.rpartition("-")[0] or key


def _stored(raw: Mapping[str, Any], decode: Callable[[Mapping[str, Any]], NDArray[Any]]) -> Stored:
    measures = {
        name: Measured(part["values"], {each: decode(array) for each, array in part["arrays"].items()})
        for name, part in raw["measures"].items()
    }
    return Stored(raw["about"], measures, raw.get("fault"))


def _content(stored: Stored, encode: Callable[[str, NDArray[Any]], dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {"about": stored.about}
    if stored.fault is not None:
        content["fault"] = stored.fault
    content["measures"] = {
        name: {"values": part.values, "arrays": {each: encode(each, array) for each, array in part.arrays.items()}}
        for name, part in stored.measures.items()
    }
    return content


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _encode(name: str, array: NDArray[Any]) -> dict[str, Any]:
    if array.nbytes > _MOST_BYTES:
        raise ValueError(f"array {name!r} has {array.nbytes} bytes; a stored result holds {_MOST_BYTES} at most")
    # At its fastest: a result is written after each measure, and `pack` compresses what is committed anew.
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 1)).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _decode(raw: Mapping[str, Any]) -> NDArray[Any]:
    data = zlib.decompress(base64.b64decode(raw["data"]))
    return np.frombuffer(data, dtype=np.dtype(raw["dtype"])).reshape(raw["shape"])
