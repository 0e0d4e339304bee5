"""Every fault of clients' files, of each cell and of all files together, and warnings: for the holder of records."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data import BadRecords
from fedsw.data.blocks import is_text
from fedsw.data.cells import MISSING, missing_among
from fedsw.data.columns.column import DeclaredColumn
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.distinct_cells import Distinct, Gaps, by_value, mapped
from fedsw.data.columns.kind import ColumnKind
from fedsw.data.columns.number import may_part_thousands, readings, spellings
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import text_of
from fedsw.data.encoding import CellFault
from fedsw.data.formats import Chunk, format_of
from fedsw.data.persons import Marks, persons_in
from fedsw.data.places import Place, places, require_places
from fedsw.data.sources import declared_columns, load_held_out
from fedsw.data.tables import Checked, checked
from fedsw.data.units import repeats_said, shared_units
from fedsw.desk.own_data.answers import FORMS, fitting
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.compatibility import fixed_by_neighbours

_NAMES = frozenset(
    ("id", "index", "name", "patient", "person", "subject", "customer", "client", "user", "mrn", "ssn", "nhs", "key")
    + ("pid", "uid", "sid", "cid", "rid", "uuid", "guid", "patid", "patientid", "personid", "subjid", "subjectid")
    + ("caseid", "userid", "customerid", "memberid")
)
_ENDS = re.compile(r".*([_ -][iI][dD]|[a-z]I[dD])")
_LEAST_ROWS, _MOST_EACH, _THOUSAND = 20, 10, 1000
"""Rows of a column of text, and rows for each of its values at most, by which it is taken for an identifier."""
_ODD = np.uint64(0x5851F42D4C957F2D)
"""Knuth's multiplier of MMIX: odd, so that a product by it is one to one, and its bits are spread."""


def named_as_identifier(column: str) -> bool:
    """Say whether a column's name is that of an identifier: "id", "pid", "subject#", "patient_id", "customerID"."""
    return column.lower().rstrip("#. ") in _NAMES or _ENDS.fullmatch(column) is not None


class Observations:
    """Observations of a file as it is read: counts of declared values, and what its holder is asked or warned of.

    That is rows that equal another one, numbers that can be read in two ways, and columns with values in several rows
    that look like identifiers: by their values (`fedsw.data.persons`), or in a text table also by their name, or since
    they hold text, are not declared, and have ten rows for each value at most. With a declared unit none is looked for.
    """

    def __init__(self, table: Path, columns: Columns) -> None:
        self._table, self._seen = table, dict[str, _Seen]()
        group = columns.sensitive
        self._labels = {
            *(() if group is None else group.columns),
            "" if columns.target is None else columns.target.name,
        }
        self._as_text, self._declared = is_text(table), frozenset(columns.names)
        self._rows = None if columns.unit is not None else _Rows(columns.names)
        leaves_out = columns.rows != "all"
        self._needed = [label.name for label in (columns.target, *columns.targets) if leaves_out and label is not None]
        self._marks: dict[str, Marks] = {}
        numbers = [number for number in (*columns.features, *columns.targets) if number.reader.stored == "numbers"]
        unsaid = {number.name for number in numbers if number.decimal is None and number.thousands is None}
        self._mark, self._unsaid = columns.decimal, set() if columns.thousands else unsaid
        self._parted: dict[str, bool] = {}
        self._listing: dict[str, tuple[ColumnKind, DeclaredColumn]] = {
            feature.name: (feature.reader, feature) for feature in columns.features if feature.reader.listing
        }
        for label in (*((group,) if group is None or not group.of else group.of), columns.target):
            if label is not None and label.values:
                self._listing[label.name] = (KINDS.get(label.kind), label.column)
        self._spelling = columns.spelling
        self.listed: dict[str, NDArray[np.int64]] = {
            name: np.zeros(len(column.listed), dtype=np.int64) for name, (_, column) in self._listing.items()
        }

    def looks_at(self, column: str) -> bool:
        """Say whether a column's cells are wanted, of a text table as text."""
        if self._rows is None or column in self._labels:
            return False
        return column not in self._declared or (self._as_text and named_as_identifier(column))

    def watched(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks as they are, and look at each on its way."""
        for chunk in chunks:
            for column in self._listing.keys() & chunk.cells.keys():
                # the cells of each declared value are counted, each different cell read once
                (kind, declared), cells = self._listing[column], chunk.cells[column]
                values, codes = (cells.values, cells.codes) if isinstance(cells, Distinct) else (cells, slice(None))
                places = kind.read(values, declared, self._spelling)[codes]
                numbers = places[~np.isnan(places)].astype(np.int64)
                self.listed[column] += np.bincount(numbers, minlength=len(declared.listed))
            if self._rows is not None:
                # Numbers are looked at as they are: to sort a million of them for their values takes seconds.
                known = {
                    column: cells if _are_numbers(cells) else by_value(cells) for column, cells in chunk.cells.items()
                }
                absent = [missing_among(chunk.cells[name], ("",)) for name in self._needed]
                self._rows.add(known, ~np.any(absent, axis=0) if absent else slice(None))
                for column, cells in known.items():
                    self._marks.setdefault(column, Marks()).add(cells)
                for column in self._unsaid & chunk.cells.keys():
                    self._look_at_points(column, chunk)
                for column in (column for column in known if column not in self._labels):
                    if column not in self._declared or named_as_identifier(column):
                        self._seen.setdefault(column, _Seen()).add(by_value(known[column]))
            yield chunk

    def _look_at_points(self, column: str, chunk: Chunk) -> None:
        """Look at the form of a column's numbers: three digits behind every point are thousands or decimals."""
        cells = chunk.cells[column]
        read = cells.values[~cells.absent] if isinstance(cells, Gaps) else cells
        if isinstance(read, np.ndarray) and read.dtype.kind in "biu":
            return
        if isinstance(read, np.ndarray) and read.dtype.kind == "f":
            present = read[~np.isnan(read)]
            if not np.any(present != np.floor(present)) and np.all(np.abs(present) < _THOUSAND):
                return
            if not may_part_thousands(present):
                self._unsaid.discard(column)
                return
        written = {text.strip() for text in chunk.as_written(column) if isinstance(text, str)} - {*MISSING}
        if not any(self._mark in text for text in written):
            return
        self._parted[column] = len(readings(written, spellings(written))) > 1
        if not self._parted[column]:
            self._unsaid.discard(column)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of cells of each declared value, by column."""
        return {
            name: dict(zip(self._listing[name][1].listed, counts.tolist(), strict=True))
            for name, counts in self.listed.items()
        }

    def doubts(self) -> Iterator[str]:
        """Yield a sentence for each column of numbers that may be read in two ways, with the lines that decide it."""
        other = "," if self._mark == "." else "."
        for column in sorted(self._unsaid & {name for name, parted in self._parted.items() if parted}):
            yield (
                f"{self._table}: column {column!r} has numbers as 12{self._mark}345, with three digits behind every "
                f"{self._mark!r}, which are decimals or thousands. Write decimal = {json.dumps(self._mark)} for it if "
                f"they are decimals, or decimal = {json.dumps(other)}, thousands = {json.dumps(self._mark)}"
            )

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each column that looks like an identifier; else one if rows equal others."""
        candidates = [column for column in self._marks if column not in self._labels]
        persons = {repeated.column: repeated for repeated in persons_in(self._marks, candidates)}
        seems = {
            column: f"seems to identify persons: {repeated.words}. If rows with one value are"
            for column, repeated in persons.items()
        }
        for column, seen in self._seen.items():
            values = seen.values
            if column in persons or values == seen.given:
                continue
            unnamed = seen.given >= _LEAST_ROWS and values * _MOST_EACH >= seen.given and not seen.forms
            if named_as_identifier(column) or (unnamed and column not in self._declared):
                rows = f"its {values} values are in {seen.given} rows"
                seems[column] = f"looks like an identifier, and {rows}. If rows with one value are"
        for column, words in seems.items():
            yield (
                f"{self._table}: column {column!r} {words} of one person, each of them is protected alone, and the "
                f"person less than epsilon says: set unit = {column!r} in [data]"
            )
        if not seems and self._rows is not None and (repeats := self._rows.repeats) is not None:
            yield f"{self._table}: {repeats}. Name the column that identifies persons: unit in [data]"


def _are_numbers(cells: Any) -> bool:
    return isinstance(cells, Gaps) or (isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf")


class _Rows:
    """Marks of all rows so far, equal for rows that are equal in the declared columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._finest = sorted(names), ""
        self._marks, self._values = list[NDArray[np.uint64]](), list[NDArray[np.uint64]]()

    def add(self, cells: Mapping[str, Any], records: NDArray[np.bool_] | slice) -> None:
        """Take in the rows of a chunk that are records, the cells of all by column."""
        columns = {name: _marked(cells[name]) for name in self._names if name in cells}
        if not columns:
            return
        marks = np.zeros(1, dtype=np.uint64)
        for numbers in columns.values():
            marks = marks * _ODD + numbers
        self._marks.append(marks[records])
        # Of one column alone, the finest of the first rows, all values are kept: of all they fill the memory.
        self._finest = self._finest or max(columns, key=lambda name: len(np.unique(columns[name])))
        self._values.append(np.unique(columns[self._finest]))

    @property
    def repeats(self) -> str | None:
        """A sentence about rows that equal another one; None if few do."""
        if not self._marks:
            return None
        return repeats_said(np.concatenate(self._marks), most_values=len(np.unique(np.concatenate(self._values))))


def _marked(cells: Any) -> NDArray[np.uint64]:
    """Numbers (n,) that are equal for equal cells, and seldom for others."""
    if not _are_numbers(cells):
        return mapped(cells, hash, np.int64).view(np.uint64)
    numbers = np.where(cells.absent, np.nan, cells.values) if isinstance(cells, Gaps) else cells
    bits = (numbers.astype(np.float64) + 0.0).view(np.uint64)  # 0 and -0 are one value
    return (bits ^ bits >> np.uint64(32)) * _ODD  # whole numbers end in zeros, which sums of products would keep


class _Seen:
    """The cells of a column so far, those that are missing left out; `forms` are what they may be but text."""

    def __init__(self) -> None:
        self.given, self.forms = 0, frozenset(FORMS)
        self._hashes: list[NDArray[np.int64]] = []

    def add(self, cells: Distinct | Sequence[str]) -> None:
        """Take in the cells of a chunk."""
        texts = [text_of(value) or "" for value in (cells.values if isinstance(cells, Distinct) else cells)]
        present = np.array([text not in MISSING for text in texts], dtype=bool)
        values = [text for text in texts if text not in MISSING]
        self.given += int(np.count_nonzero(present[cells.codes] if isinstance(cells, Distinct) else present))
        self.forms = fitting(values, self.forms)
        self._hashes.append(np.unique(np.fromiter(map(hash, values), np.int64, len(values))))

    @property
    def values(self) -> int:
        """Number of different values, by their hashes of 64 bits."""
        return len(np.unique(np.concatenate(self._hashes)))


@dataclass(frozen=True)
class Examined:
    """Counts and faults of one file.

    Of those with a valid cell, ``groups`` are units and ``classes`` records; ``broken`` says why the file was not
    read to its end; ``warnings`` are not faults; ``absent`` are cells that seem to be missing, undeclared, as messages
    show them; ``doubts`` say of columns that they may be read in two ways; ``listed`` counts the cells of
    every declared value.
    """

    name: str
    file: Path
    counted: str
    rows: int = 0
    groups: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[CellFault, ...] = ()
    more: int = 0
    broken: str | None = None
    units: int = 0
    warnings: tuple[str, ...] = ()
    absent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    listed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """True if every cell is as declared, and can be read in one way only."""
        return not self.faults and not self.absent and not self.doubts and self.broken is None


@dataclass(frozen=True)
class Examination:
    """Results for all files, faults of them together, and ``warnings``, with which a run goes on."""

    files: tuple[Examined, ...]
    together: tuple[str, ...]
    alone: bool
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """True if a run can start on these files."""
        return not self.together and all(file.fits for file in self.files)


def examine(experiment: Experiment, folder: Path, client: int | None = None) -> Examination:
    """Read every file and collect all faults: of each cell, and of the files together.

    The folder has a folder for each client or one file for all; with `client`, to look at its records only, it
    may be that client's own.
    """
    if experiment.data.own_files is None:
        raise ExperimentError(
            f"the experiment {experiment.name!r} learns from {experiment.data.label!r}, not from clients' own files; "
            "check looks at experiments with data.source = 'files'"
        )
    columns, sources = declared_columns(experiment.data), places(folder)
    alone = client is not None
    if client is not None and sources[0].client is None:
        sources = [Place(client, sources[0].table)]
    elif client is not None:
        if client >= len(sources):
            raise ExperimentError(f"--client is {client}, and {folder} has folders 0 to {len(sources) - 1}")
        sources = [sources[client]]
    keep = experiment.data.held_out is not None and not alone
    read = [_examined(experiment, source, columns, keep=keep) for source in sources]
    files = tuple(file for file, _ in read)
    remarks: list[str] = []
    together = () if alone else tuple(_together(experiment, columns, read, folder, remarks))
    units = [None if counted is None else counted.unit_numbers for _, counted in read]
    if columns.unit is not None and (refusal := shared_units(units, range(len(units)), columns.unit)):
        together += (refusal,)
    if alone:
        return Examination(files, together, alone)
    warned = list[str]()
    if "label" not in fixed_by_neighbours(experiment):  # else it is a fault
        for name in _held_by_no_file(files, "classes", columns.classes):
            warned.append(f"no client holds a record of the class {name!r}: the model can hardly learn it")
    if len(files) > 1 and all(file.broken is None for file in files):
        for column in files[0].listed:  # values of one client only may be another's in another spelling
            if only := at_one_client({file.name: file.listed[column] for file in files}):
                warned.append(
                    f"column {column!r} has {only}. If two of its values are one in two spellings, declare it, as in "
                    'same = {no = ["nein", "0"]}'
                )
    return Examination(files, together, alone, (*warned, *remarks))


def _examined(
    experiment: Experiment, source: Place, columns: Columns, *, keep: bool
) -> tuple[Examined, Checked | None]:
    """Examine a file, which is read once; its cells are None if nothing of it could be read."""
    broken: list[str] = []
    counted, table = "", source.table
    odds = "label" in fixed_by_neighbours(experiment)
    observations = Observations(table, columns)
    try:
        kind = format_of(table)
        counted = kind.counted
        chunks = observations.watched(_until_fault(kind.read(table, columns, beside=observations.looks_at), broken))
        result = checked(chunks, columns, public_classes=odds, keep=keep)
    except (BadRecords, FileNotFoundError) as fault:
        return Examined(source.name, table, counted, broken=str(fault)), None
    if not result.rows and not broken:
        broken.append(f"{table} holds no records; a client takes part with at least one")
    if broken:
        result.records = None
    counts = ", ".join(f"{name!r} {n:,}" for name, n in result.cut.items())
    cut = [f"{table}: numbers outside their bounds, cut there, by column: {counts}"] if counts else []
    examined = Examined(
        source.name,
        table,
        counted,
        result.rows,
        dict(zip(columns.groups, result.groups.tolist(), strict=True)),
        dict(zip(columns.classes, result.classes.tolist(), strict=True)),
        result.missing,
        tuple(sorted(result.faults, key=lambda fault: fault.row)),
        result.more,
        broken[0] if broken else None,
        result.units,
        (*observations.warnings(), *cut),
        result.absent,
        tuple(observations.doubts()),
        observations.counts,
    )
    return examined, result


def _until_fault(chunks: Iterator[Chunk], broken: list[str]) -> Iterator[Chunk]:
    """Chunks up to where a file can no longer be read; why goes to `broken`."""
    try:
        yield from chunks
    except (BadRecords, OSError) as fault:
        broken.append(str(fault))


def _held_by_no_file(files: Sequence[Examined], what: str, names: Sequence[str]) -> list[str]:
    """The declared groups or classes of which no file has a record; none if a file was not read to its end."""
    if not files or any(file.broken is not None for file in files):
        return []
    return [name for name in names if sum(getattr(file, what).get(name, 0) for file in files) == 0]


_CHANCE = 1e-4
"""Probability below which a value that one client alone has is spoken of: one that is rare everywhere is not."""


def at_one_client(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Say which values of a column one client alone has, not by chance, of counts by client and value; else empty."""
    totals = {client: sum(held.values()) for client, held in counts.items()}
    alone: dict[str, list[str]] = {client: [] for client in counts}
    for value in next(iter(counts.values())):
        held = [client for client in counts if counts[client][value]]
        if len(held) != 1:
            continue
        (client,) = held
        others = sum(totals.values()) - totals[client]
        if others and math.exp(-counts[client][value] * others / totals[client]) < _CHANCE:
            alone[client].append(value)
    said = []
    for client, values in ((client, values) for client, values in alone.items() if values):
        more = f" and {len(values) - _MOST_QUOTED} more" if len(values) > _MOST_QUOTED else ""
        said.append(f"{', '.join(map(repr, values[:_MOST_QUOTED]))}{more} at {client} alone")
    return "; ".join(said)


_MOST_QUOTED = 5


def _beyond_batch(experiment: Experiment, files: Sequence[Examined]) -> Iterator[str]:
    """Yield a fault if a batch of fixed size asks for more records than there are: of a group, where groups are drawn.

    What the settings say of records beside that is tried by a run before it spends anything.
    """
    wanted, trained = experiment.training.batch_size, 1 - experiment.data.held_out_fraction
    if wanted is None or any(file.broken is not None for file in files):
        return
    most = experiment.federation.clients if trained < 1 else 0  # what clients round up as they keep records out
    held = {
        name: math.ceil(trained * sum(file.groups.get(name, 0) for file in files)) + most
        for name in declared_columns(experiment.data).groups
    }
    if "group" not in fixed_by_neighbours(experiment):
        held = {"all": sum(held.values())}
    least = min(held, key=lambda name: held[name])
    if wanted > held[least]:
        yield (
            f"training.batch_size is {wanted}, and all clients together train on {held[least]} records of {least!r}: "
            f"set it to {held[least]} or less"
        )


def _together(
    experiment: Experiment,
    columns: Columns,
    read: Sequence[tuple[Examined, Checked | None]],
    folder: Path,
    remarks: list[str],
) -> Iterator[str]:
    """Yield faults of the files together; what is not a fault of a held-out file goes to ``remarks``."""
    files = [file for file, _ in read]
    try:
        require_places(places(folder), folder, experiment.federation.clients)
    except (ExperimentError, BadRecords) as fault:
        misplaced = str(fault)
        yield misplaced
    else:
        misplaced = ""
    for name in _held_by_no_file(files, "groups", columns.groups):
        yield f"no client holds a record of {name!r}, one of the groups that are declared"
    if "label" in fixed_by_neighbours(experiment):  # which compares the groups of every class
        for name in _held_by_no_file(files, "classes", columns.classes):
            yield f"no client holds a record of {name!r}, one of the classes that are declared"
    yield from _beyond_batch(experiment, files)
    if experiment.data.held_out is None or misplaced:  # that fault is in the list already
        return
    private = [result.records for _, result in read if result is not None and result.records is not None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            load_held_out(experiment.record_source, private=private if len(private) == len(read) else None)
        except (ExperimentError, BadRecords, FileNotFoundError) as fault:
            yield str(fault)
    # of all warnings that reading gives the one of `fedsw.data.sources`, that equal rows are taken for chance's
    remarks += [str(one.message) for one in caught if "equal private ones" in str(one.message)]
