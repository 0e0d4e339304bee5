"""What runs and computations came to: one JSON file each, with numbers and small arrays, shared between figures."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw import files
from fedsw.text import json_text

_MOST_BYTES = 1_000_000
"""Of one array, before it is compressed: figures need samples, not data sets."""


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
        raw = json.loads(path.read_text(encoding="utf-8"))
        measures = {
            name: Measured(part["values"], {each: _decode(array) for each, array in part["arrays"].items()})
            for name, part in raw["measures"].items()
        }
        return Stored(raw["about"], measures, raw.get("fault"))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, zlib.error) as fault:
        raise ValueError(f"{path} is damaged ({fault}); delete it, and it is made again") from None


def write(folder: Path, key: str, stored: Stored) -> None:
    """Put a result in place whole.

    Raises:
        ValueError: naming an array that is too large for a file that is committed.
    """
    content: dict[str, Any] = {"about": stored.about}
    if stored.fault is not None:
        content["fault"] = stored.fault
    content["measures"] = {
        name: {"values": part.values, "arrays": {each: _encode(each, array) for each, array in part.arrays.items()}}
        for name, part in stored.measures.items()
    }
    path = _file(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, (json_text(content, indent=1) + "\n").encode())


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _encode(name: str, array: NDArray[Any]) -> dict[str, Any]:
    if array.nbytes > _MOST_BYTES:
        raise ValueError(f"array {name!r} has {array.nbytes} bytes; a stored result holds {_MOST_BYTES} at most")
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _decode(raw: Mapping[str, Any]) -> NDArray[Any]:
    data = zlib.decompress(base64.b64decode(raw["data"]))
    return np.frombuffer(data, dtype=np.dtype(raw["dtype"])).reshape(raw["shape"])
