"""How many persons two hospitals have in common, from keyed hashes that each makes of its own identifiers."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.data import BadRecords, read_units
from fedsw.data.columns.declaration import read_columns
from fedsw.experiment import ExperimentError

LEAST_KEY_BYTES = 32

_HEADER = "fedsw persons 1, key "
_LINE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Common:
    """Two files of hashes, how many persons are in each, and how many in both."""

    one: Path
    other: Path
    persons: tuple[int, int]
    common: int


def digests(table: Path, schema: Path, key_file: Path) -> bytes:
    """A file of the hashes of everybody who has rows in a table: a line each, in the order of the hashes.

    BLAKE2b under a key that the operators share and the server does not have. Without the key the hashes tell how many
    persons there are, and nothing else; who has it can try identifiers, and find out whether each is there.
    ExperimentError for a schema without a unit, or a key so short that it can be guessed.
    """
    columns = read_columns(schema)
    if columns.unit is None:
        raise ExperimentError(f"{schema} declares no unit: write unit = 'COLUMN', the column that says whose a row is")
    key = _key(key_file)
    units = read_units(table, columns).numpy().astype("<i8").tobytes()
    hashes = sorted(_hash(key, units[start : start + 8], 16) for start in range(0, len(units), 8))
    return "\n".join([_HEADER + _hash(key, b"", 8), *hashes, ""]).encode()


def in_common(files: Sequence[Path]) -> list[Common]:
    """How many persons each two of some files, made under one key, have in common."""
    if len(files) < 2:
        raise ExperimentError("one file has nobody in common with another; name two or more")
    read = [_read(file) for file in files]
    for file, (key, _) in zip(files, read, strict=True):
        if key != read[0][0]:
            raise ExperimentError(
                f"{files[0]} and {file} were made under different keys, and nobody would seem to be in both; make them "
                "again under one"
            )
    return [
        Common(files[one], files[other], (len(read[one][1]), len(read[other][1])), len(read[one][1] & read[other][1]))
        for one, other in itertools.combinations(range(len(files)), 2)
    ]


def _key(path: Path) -> bytes:
    content = path.read_bytes().strip()
    if len(content) < LEAST_KEY_BYTES:
        raise ExperimentError(
            f"the key in {path} has {len(content)} bytes, and at least {LEAST_KEY_BYTES} keep it from being guessed: "
            f"openssl rand -hex {LEAST_KEY_BYTES} makes one"
        )
    return hashlib.blake2b(content, digest_size=32).digest()


def _hash(key: bytes, content: bytes, size: int) -> str:
    return hashlib.blake2b(content, key=key, digest_size=size, person=b"fedsw persons").hexdigest()


def _read(path: Path) -> tuple[str, frozenset[str]]:
    try:
        first, *lines = path.read_text(encoding="ascii").splitlines() or [""]
    except UnicodeDecodeError:
        first, lines = "", []
    if not first.startswith(_HEADER):
        raise BadRecords(f"{path} is no file of `fedsw persons digest`; its first line would begin with {_HEADER!r}")
    for number, line in enumerate(lines, start=2):
        if not _LINE.fullmatch(line):
            raise BadRecords(f"{path}: line {number} is no hash of 32 hex digits; make the file again")
    return first.removeprefix(_HEADER), frozenset(lines)
