"""Tables to predict from, through the encoding that the run learnt with; columns that are predicted may be absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw.columns import Columns, Feature
from fedsw.data.cells import as_list
from fedsw.data.containers import tabulated
from fedsw.data.encoding import encoded
from fedsw.data.formats import BadRecords, Chunk, format_of, require_file


@dataclass(frozen=True)
class Given:
    """A table as a model takes it.

    Attributes:
        features: (n, p) encoded inputs, float32.
        groups: (n,) numbers of the groups; zeros where they were not asked for.
        rows: (n,) each record's row, as its container counts.
        kept: cells of columns that were to be kept, by name.
        counted: how rows are counted.
    """

    features: Tensor
    groups: Tensor
    rows: NDArray[np.int64]
    kept: dict[str, list[Any]]
    counted: str


def read_given(source: object, columns: Columns, *, grouped: bool = False, keep: Sequence[str] = ()) -> Given:
    """The records of a file or of a container in Python, every cell checked as in training.

    Args:
        source: a path, or whatever `fedsw.as_records` takes.
        columns: what the run declared.
        grouped: whether the column of the groups is read; it is read anyway where it is an input.
        keep: further columns, to stand beside predictions as they are.

    Raises:
        FileNotFoundError: if there is no such file.
        BadRecords: naming the row and column of the first fault, its value and what is declared.
    """
    used = columns.model_copy(
        update={"target": None, "targets": (), "sensitive": columns.sensitive if grouped else None}
    )
    beside = tuple(Feature(name=name) for name in keep if name not in used.names)
    reading = used.model_copy(update={"features": (*used.features, *beside)})
    where, counted, chunks = _opened(source, reading)
    try:
        found = list(chunks)
    except BadRecords as fault:
        raise BadRecords(_of_kept(str(fault), keep)) from None
    except OSError as fault:
        raise BadRecords(f"{where} cannot be read: {fault.strerror or fault}") from None
    if not found:
        raise BadRecords(f"{where} holds no records; there is nothing to predict")
    records = encoded(iter(found), used, where=where, counted=counted)
    rows = [chunk.first_row + np.arange(_length(chunk)) for chunk in found]
    kept = {name: [cell for chunk in found for cell in as_list(chunk.cells[name])] for name in keep}
    return Given(records.features, records.sensitive, np.concatenate(rows), kept, counted)


def _opened(source: object, reading: Columns) -> tuple[str, str, Iterator[Chunk]]:
    """What holds the cells, how its rows are counted, and its chunks."""
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        require_file(path)
        kind = format_of(path)
        return str(path), kind.counted, kind.read(path, reading)
    table = tabulated(source() if callable(source) else source)
    return table.kind, "the first record is row 0", table.chunks(reading)


def _length(chunk: Chunk) -> int:
    return len(next(iter(chunk.cells.values())))


def _of_kept(words: str, keep: Sequence[str]) -> str:
    """A fault of a column that only `keep` names, in words of its own."""
    asked = next((name for name in keep if f"has no column {name!r}," in words), None)
    return words if asked is None else words.replace("which data.columns declares", "which is to be kept")
