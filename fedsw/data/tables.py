"""Tables as files: which file of a folder is one, its records, its units only, and every fault of its cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw.data.blocks import TABLES
from fedsw.data.cells import MISSING, shown
from fedsw.data.columns.declaration import Columns
from fedsw.data.encoding import CellFault, Encoder, Gathered, UnitFacts, units_of
from fedsw.data.formats import BadRecords, Chunk, format_of, readable
from fedsw.data.records import Records
from fedsw.data.units import grouped

if TYPE_CHECKING:
    from torch import Tensor

_ENDS = (".csv", ".parquet", ".npz", "-images-idx3-ubyte", "-images-idx3-ubyte.gz", ".tsv", ".txt")
_FILES = tuple(f"train{end}" for end in _ENDS)
_TABLES = ((".csv", ".tsv", ".parquet", ".npz"), (".txt",))
"""Ends of names; a file called .txt may be a note beside another table."""
_MOST_NAMED = 5


def find_table(folder: Path) -> Path:
    """The one file of records in a folder: train.csv, .tsv, .txt, .parquet, .npz or train-images-idx3-ubyte[.gz].

    Else the only .csv, .tsv, .parquet or .npz file, whatever its name; else the only .txt file. FileNotFoundError if
    there is none, BadRecords if there are several.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; a client's records are looked for in it")
    tables = tables_in(folder)
    if not tables:
        raise FileNotFoundError(f"there is no table ({TABLES}) in {folder}{what_is_in(folder)}")
    if len(tables) > 1:
        raise BadRecords(
            f"{folder} has {tables[0].name} and {tables[1].name}; keep the one that this client brings, or call it "
            f"train{tables[0].suffix}"
        )
    return tables[0]


def tables_in(folder: Path) -> list[Path]:
    """The files of records in a folder: those of the names above, else every table, in the order of their names.

    A folder that has folders 0, 1, ... of clients has tables of the names above only: others lie there for other ends.
    """
    if named := [folder / name for name in _FILES if (folder / name).exists()]:
        return named
    if not folder.is_dir() or any(child.name.isdecimal() and child.is_dir() for child in folder.iterdir()):
        return []
    files = sorted(child for child in folder.iterdir() if child.is_file() and not child.name.startswith("."))
    files_by_kind = ([file for file in files if file.suffix.lower() in ends] for ends in _TABLES)
    return next(filter(None, files_by_kind), [])


def what_is_in(folder: Path) -> str:
    """List what a folder holds, as the end of a message that something is missing there; "" for an empty folder."""
    names = []
    for child in (child for child in folder.iterdir() if not child.name.startswith(".")):
        lost = child.is_symlink() and not child.exists()
        where = f", a link to {child.readlink()}, which is not there" if lost else "/" * child.is_dir()
        names.append(f"{child.name}{where}")
    names.sort()
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    ways = {way for name in names for ends, way in _CONVERTED.items() if name.lower().endswith(ends)}
    return f"; it has {', '.join(names[:_MOST_NAMED])}{more}{''.join(sorted(ways))}" if names else ""


_CONVERTED = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), ": save its sheet as CSV UTF-8"),
    ".sav": ": pandas.read_spss(file).to_parquet(table) makes a table of it",
    ".dta": ": pandas.read_stata(file).to_parquet(table) makes a table of it",
    ".sas7bdat": ": pandas.read_sas(file).to_parquet(table) makes a table of it",
}
"""Ways to a table from files that are not read, by the ends of their names."""


def read_units(path: Path, columns: Columns) -> Tensor:
    """The unit ids in a file, each once (units,), ascending, read from the declared unit's column only."""
    kind = format_of(path)
    units = [np.empty(0, dtype=np.int64)]
    with readable(str(path)):
        for chunk in kind.read(path, columns):
            units.append(np.unique(units_of(chunk, columns, where=str(path), counted=kind.counted)))
    return torch.from_numpy(np.unique(np.concatenate(units)))


def read_table(path: Path, columns: Columns, *, first_id: int = 0, step: int = 1) -> Records:
    """Records of a file, every cell checked against what is declared; see `fedsw.data.encoding.encoded`.

    Ids of the records are first_id, first_id + step, ...; different clients' must differ. BadRecords names the file,
    and row and column of the first fault, its value and the limit; FileNotFoundError if there is no file.
    """
    records = read_tables([path], columns)[0]
    return records.renumbered(torch.arange(len(records)) * step + first_id)


def read_tables(paths: Sequence[Path], columns: Columns) -> list[Records]:
    """Records of several files, one after the other in memory, so that `concatenate` copies nothing but ids."""
    gathered = Gathered(columns)
    for path in paths:
        kind = format_of(path)
        with readable(str(path)):
            gathered.read(kind.read(path, columns), where=str(path), counted=kind.counted)
    return gathered.tables()


@dataclass
class Checked:
    """Result of checking every cell of a file.

    ``groups`` (groups,) and ``classes`` (classes,) count units and rows with a valid cell there; ``faults`` are in the
    order of rows, at most `MOST_FAULTS` a column, with the number of ``more``; ``absent`` counts, in place of faults,
    cells that seem to be missing, by column and as messages show them; ``missing`` and ``cut`` those that the
    declaration allows; ``unit_numbers`` are those of declared units, the same in every file; ``records`` are there if
    they were to be kept and every cell fits.
    """

    groups: NDArray[np.int64]
    classes: NDArray[np.int64]
    rows: int = 0
    faults: list[CellFault] = field(default_factory=list)
    more: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    units: int = 0
    unit_numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    records: Records | None = None
    absent: dict[str, dict[str, int]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)


_ABSENT = frozenset(map(shown, MISSING))

MOST_FAULTS = 50
"""Faults of one column that are kept; of the others there is the number."""


def checked(chunks: Iterable[Chunk], columns: Columns, *, public_classes: bool = False, keep: bool = False) -> Checked:
    """Every fault of chunks of cells, and how many records there are, for their holder; classes may be public."""
    totals = Checked(np.zeros(len(columns.groups), np.int64), np.zeros(len(columns.classes), np.int64))
    noted: dict[str, int] = {}
    owned, labelled, gathered = UnitFacts(), UnitFacts(), Gathered(columns)
    for chunk in chunks:
        encoder = Encoder(chunk, columns, every=True)
        units = encoder.unit(columns.unit)
        features = encoder.features(columns.features)
        groups, labels = encoder.group(columns.sensitive), encoder.target(columns)
        read = _rows_read(encoder, chunk.first_row, columns)  # rows count even if another column of theirs has a fault
        totals.rows += int(np.count_nonzero(encoder.kept))
        totals.groups += np.bincount(groups[read.group], minlength=len(totals.groups))
        if columns.unit is not None:
            fine = read.unit & read.group
            owned.add(units[fine], groups[fine], encoder.row_numbers[fine])
        if columns.classes:
            totals.classes += np.bincount(labels[read.target], minlength=len(totals.classes))
            if public_classes and columns.unit is not None:
                fine = read.unit & read.target
                labelled.add(units[fine], labels[fine], encoder.row_numbers[fine])
        if keep:
            gathered.add(features[encoder.kept], groups[encoder.kept], labels[encoder.kept])
        for counts, more in ((totals.missing, encoder.missing), (totals.cut, encoder.cut)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        _note(totals, encoder.faults, noted)
    if columns.sensitive is not None:
        totals.faults += owned.changing(columns.unit, columns.sensitive.name, columns.groups, most=MOST_FAULTS)
    if columns.target is not None:
        totals.faults += labelled.changing(columns.unit, columns.target.name, columns.classes, most=MOST_FAULTS)
    totals.units = int(totals.groups.sum())
    if columns.unit is not None:
        totals.unit_numbers, first, _ = grouped(owned.units)
        totals.units, totals.groups = len(first), np.bincount(owned.values[first], minlength=len(totals.groups))
    if keep and not totals.faults and not totals.absent:
        gathered.close(owned.units)
        totals.records = gathered.tables()[0]
    return totals


class _ReadRows(NamedTuple):
    """Which rows (n,) of a chunk have a unit, a group and a class that can be read."""

    unit: NDArray[np.bool_]
    group: NDArray[np.bool_]
    target: NDArray[np.bool_]


def _rows_read(encoder: Encoder, first_row: int, columns: Columns) -> _ReadRows:
    groups = () if columns.sensitive is None else columns.sensitive.columns
    names = ((columns.unit,), groups, () if columns.target is None else (columns.target.name,))
    read = _ReadRows(*(encoder.kept.copy() for _ in names))
    for fault in encoder.faults:
        for rows, name in zip(read, names, strict=True):
            if fault.column in name:
                rows[fault.row - first_row] = False
    return read


def _note(totals: Checked, faults: list[CellFault], noted: dict[str, int]) -> None:
    once = {(fault.row, fault.column): fault for fault in faults}  # a group may be an input, too
    for fault in sorted(once.values(), key=lambda fault: fault.row):
        if fault.value in _ABSENT:
            counts = totals.absent.setdefault(fault.column, {})
            counts[fault.value] = counts.get(fault.value, 0) + 1
            continue
        noted[fault.column] = noted.get(fault.column, 0) + 1
        if noted[fault.column] <= MOST_FAULTS:
            totals.faults.append(fault)
        else:
            totals.more += 1
