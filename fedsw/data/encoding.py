"""From cells of text and numbers to records, as declared columns say; nothing is estimated.

`encoded` goes the whole way. `Gathered` holds tables, `Encoder` encodes a chunk, a `CellFault` is a cell that does not
fit, and `UnitFacts` show units in two groups.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw.data.cells import missing_among, shown
from fedsw.data.columns.column import PLAIN, Spelling
from fedsw.data.columns.date import is_time
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Group, GroupPart, Label, Number
from fedsw.data.columns.distinct_cells import Cells, Distinct, by_value
from fedsw.data.columns.number import LARGEST, is_amount
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import folded, normal
from fedsw.data.formats import BadRecords, Chunk
from fedsw.data.records import Records, unchecked
from fedsw.data.units import grouped, numbers_of

MAX_VALUES = 2**28
"""Most numbers that records may become, 1 GiB of them: records times inputs."""

_EXACT, _COUNTED = 2.0**24, 2.0**53
"""Up to these float32 and float64 hold every whole number."""
_CHANGED = (
    f"whole numbers beyond {2**24:,} are kept exactly only where float32 has them: declare low and high, which map the "
    "column to [0, 1], or leave it out if it names records"
)

_COMMAS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+"),
        '; if commas part thousands, set thousands = "," in [data.columns], and decimal = "," if they part decimals',
    ),
    (re.compile(r"[+-]?\d+,\d+"), '; for decimal commas set decimal = "," in [data.columns]'),
    (
        re.compile(r"[+-]?[1-9]\d{0,2}(,\d{2,3})*,\d{3}\.\d*"),
        '; for commas that part thousands set thousands = "," in [data.columns]',
    ),
    (
        re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+"),
        '; for 1.234,5 set decimal = "," and thousands = "." in [data.columns]',
    ),
    (
        re.compile("[+-]?[1-9]\\d{0,2}([ \u00a0\u202f\u2009]\\d{3})+([.,]\\d*)?"),
        '; for blanks that part thousands set thousands = " " in [data.columns]',
    ),
)
"""Numbers that are written otherwise than declared, and what to declare for them."""
_CUT = 'outside = "cut" in the declaration counts such a value as the nearer bound'
_Missing = NDArray[np.bool_] | np.bool_
"""Which cells of a column are missing (rows,), or that none is."""


def encoded(chunks: Iterable[Chunk], columns: Columns, *, where: str, counted: str) -> Records:
    """Records of chunks of cells, every cell checked against what is declared.

    Numbers with declared bounds are mapped to [0, 1] or [-1, 1], categories become one-hot inputs, in the declared
    order. A cell that does not fit is refused, not clipped; it is filled in only where the declaration says that it may
    be missing, and with what: what replaces it is public, and no statistic of the data.

    Features are (n, columns.inputs) float32, groups and classes (n,) int64, or targets (n, t) float32; ids 0, 1, ...
    BadRecords names ``where`` the cells are, row (``counted`` as "the header is row 1" says) and column of the first
    fault, its value and the limit.
    """
    gathered = Gathered(columns)
    gathered.read(chunks, where=where, counted=counted)
    return gathered.tables()[0]


class Gathered:
    """Tables of the declared columns, one after the other in one array of each kind, so that each is in memory once."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self._ends = columns, [0]
        self._features, self._groups = Growing(np.float32), Growing(np.int64)
        self._targets = Growing(np.float32 if columns.targets else np.int64)
        self._units = Growing(np.int64)

    def read(self, chunks: Iterable[Chunk], *, where: str, counted: str) -> None:
        """Take in a whole table; see `encoded`."""
        columns, owned = self._columns, UnitFacts()
        for chunk in chunks:
            encoder = Encoder(chunk, columns, every=False)
            features, group = encoder.features(columns.features), encoder.group(columns.sensitive)
            rows = slice(None) if encoder.kept.all() else encoder.kept
            if columns.unit is not None:
                owned.add(encoder.unit(columns.unit)[rows], group[rows], encoder.row_numbers[rows])
            self.add(features[rows], group[rows], encoder.target(columns)[rows])
            if encoder.faults:
                first = min(encoder.faults, key=lambda fault: fault.row)
                raise BadRecords(f"{where}: row {first.row} ({counted}), {first.advice}")
            if (len(self._groups) - self._ends[-1]) * columns.inputs > MAX_VALUES:
                raise BadRecords(
                    f"{where} has more than {MAX_VALUES // columns.inputs} records of {columns.inputs} inputs, the "
                    "most that are kept in memory (1 GiB); give this node a part of them"
                )
        if len(self._groups) == self._ends[-1]:
            raise BadRecords(f"{where} holds no records; a client takes part with at least one")
        sensitive = columns.sensitive
        if sensitive is not None and (changing := owned.changing(columns.unit, sensitive.name, columns.groups, most=1)):
            raise BadRecords(f"{where}: row {changing[0].row} ({counted}), {changing[0].words}")
        self.close(owned.units)

    def add(self, features: NDArray[np.float32], groups: NDArray[np.int64], targets: NDArray[Any]) -> None:
        """Take in some rows of a table: inputs (k, inputs), groups (k,), classes (k,) or numbers (k, t)."""
        self._features.append(features)
        self._groups.append(groups)
        self._targets.append(targets)

    def close(self, units: NDArray[np.int64]) -> None:
        """Finish a table; `units` are the privacy-unit ids of its rows (n,), if a unit is declared."""
        self._units.append(units)
        self._ends.append(len(self._groups))

    def tables(self) -> list[Records]:
        """The records of every table, with ids 0, 1, ... over all of them; none is read afterwards."""
        arrays = (self._features, self._groups, self._targets)
        features, groups, targets = (torch.from_numpy(growing.whole()) for growing in arrays)
        unit = None if self._columns.unit is None else torch.from_numpy(self._units.whole())
        whole = unchecked(features, groups, targets, torch.arange(len(groups)), unit)
        return [whole.part(start, end) for start, end in pairwise(self._ends)]


def _flush(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write 0 for subnormal numbers of any shape; see `fedsw._tools.subnormal`."""
    values[np.abs(values) < np.finfo(np.float32).tiny] = 0.0
    return values


def units_of(chunk: Chunk, columns: Columns, *, where: str, counted: str) -> NDArray[np.int64]:
    """The unit ids of a chunk's rows, (rows,); no other column is read."""
    encoder = Encoder(chunk, columns, every=False)
    units = encoder.unit(columns.unit)
    if encoder.faults:
        raise BadRecords(f"{where}: row {encoder.faults[0].row} ({counted}), {encoder.faults[0].words}")
    return units


class Encoder:
    """Numbers from the cells of a chunk; `faults` are those that do not fit, or the first of each column.

    `missing` and `cut` count, by column, missing cells and numbers that were cut at a bound, where that is declared.
    """

    def __init__(self, chunk: Chunk, columns: Columns, *, every: bool) -> None:
        self._chunk, self._cells, self._first = chunk, chunk.cells, chunk.first_row
        self._columns, self._every = columns, every
        self.rows = len(next(iter(chunk.cells.values())))
        self.kept = self._kept()
        self.faults: list[CellFault] = []
        self.missing: dict[str, int] = {}
        self.cut: dict[str, int] = {}

    def _kept(self) -> NDArray[np.bool_]:
        """Which rows (rows,) are records: all, or those with a target."""
        columns = self._columns
        answered = np.ones(self.rows, dtype=bool)
        labels = () if columns.rows == "all" else (columns.target, *columns.targets)
        for label in labels:
            if label is not None:
                answered &= ~missing_among(self._cells[label.name], ("",))
        return answered

    def features(self, features: tuple[Feature, ...]) -> NDArray[np.float32]:
        """All inputs (rows, inputs), column after column in memory."""
        encoded = np.empty((sum(feature.inputs for feature in features), self.rows), dtype=np.float32)
        start = 0
        for feature in features:
            part = encoded[start : start + feature.inputs]
            if feature.reader.listing:
                self._listed(feature, part)
            else:
                absent = self._absent(feature)
                for offset, column in enumerate(feature.columns):
                    part[offset] = self._numeric(column, feature, absent, feature.fill)
                    _flush(part[offset])
                if feature.missing:
                    part[-1] = absent
            start += feature.inputs
        return encoded.T

    def target(self, columns: Columns) -> NDArray[Any]:
        """Numbers to predict (rows, t) float32, or classes (rows,) by their number; 0 if no target is declared."""
        if columns.targets:
            numbers = [self._numeric(number.name, number) for number in columns.targets]
            return _flush(np.stack(numbers, axis=1).astype(np.float32))
        return np.zeros(self.rows, dtype=np.int64) if columns.target is None else self._places(columns.target)

    def group(self, group: Group | None) -> NDArray[np.int64]:
        """Numbers of the groups (rows,); 0 if no column is."""
        if group is None:
            return np.zeros(self.rows, dtype=np.int64)
        if (number := self._columns.group_number) is not None:
            within = self._finite(group.name, number, remedy="")
            return np.searchsorted(np.array(group.edges), within, side="right").astype(np.int64)
        if group.of:
            combined = np.array(group.combined).reshape([len(part.values) for part in group.of])
            numbers = np.asarray(combined[tuple(self._places(part) for part in group.of)], dtype=np.int64)
            if (bad := numbers < 0).any():
                self._note(group.columns[-1], bad, f"beside the {group.columns[0]!r} of its row it is no group")
            return np.maximum(numbers, 0)
        return self._places(group)

    def unit(self, column: str | None) -> NDArray[np.int64]:
        """Numbers of the rows' units, (rows,); see `fedsw.data.units.unit_numbers`. 0 without a column."""
        if column is None:
            return np.zeros(self.rows, dtype=np.int64)
        cells = by_value(self._cells[column])
        values = cells.values if isinstance(cells, Distinct) else cells
        numbers: NDArray[np.int64] = numbers_of(values)[_row_index(cells)]
        bad = numbers < 0
        if bad.any():
            self._note(column, bad, "it identifies the privacy unit: a text or a whole number, in every row")
            numbers[bad] = 0
        return numbers

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Numbers of the rows in their file, (rows,)."""
        return np.arange(self.rows) + self._first

    def _absent(self, feature: Feature) -> _Missing:
        if not feature.missing:
            return np.False_
        absent = missing_among(self._cells[feature.name], feature.missing)
        self.missing[feature.name] = int(absent.sum())
        return absent

    def _listed(self, feature: Feature, part: NDArray[np.float32]) -> None:
        """Write the indicators (inputs, rows) of a column of listed values, those of each different value once."""
        cells, spelling = self._cells[feature.name], self._columns.spelling
        values = cells.values if isinstance(cells, Distinct) else cells
        absent, places = missing_among(values, feature.missing), feature.reader.read(values, feature, spelling)
        known = ~np.isnan(places)
        present, inputs = np.flatnonzero(known & ~absent), np.zeros((feature.inputs, len(places)), dtype=np.float32)
        inputs[places[present].astype(np.int64), present] = 1.0
        if (fill := feature.filled_category) is not None:
            inputs[fill, absent] = 1.0
        if feature.missing:
            inputs[-1] = absent
            self.missing[feature.name] = int(absent[_row_index(cells)].sum())
        if isinstance(cells, Distinct):
            np.take(inputs, cells.codes, axis=1, out=part, mode="clip")  # the other modes copy once more
        else:
            part[:] = inputs
        bad = ~known & ~absent
        if bad.any():
            expected = feature.reader.expect(feature, spelling)
            self._note(feature.name, bad[_row_index(cells)], expected, listed=feature.listed)

    def _numeric(
        self, column: str, number: Number, absent: _Missing = np.False_, fill: object = None
    ) -> NDArray[np.float64]:
        values = self._finite(column, number, absent)
        if number.reader.bounds(number) is None:
            self._require_exact(column, values)
        if isinstance(fill, int | float):
            values[absent] = fill
        inputs: NDArray[np.float64] = number.reader.inputs(values, number)[:, 0]
        return inputs

    def _finite(
        self, column: str, number: Number, absent: _Missing = np.False_, *, remedy: str = _CUT
    ) -> NDArray[np.float64]:
        """A column's numbers as they are, within the bounds, or within float32's; its least one for faults."""
        spelling, limits = self._columns.spelling_of(number), number.reader.bounds(number)
        values = number.reader.read(self._cells[column], number, spelling)
        least, most = (-LARGEST, LARGEST) if limits is None else limits
        values[absent] = least
        if values.min(initial=least) >= least and values.max(initial=most) <= most:  # NaN is neither
            return values
        bad = ~((values >= least) & (values <= most))
        beyond = bad & np.isfinite(values)
        if number.outside == "cut" and beyond.any():
            self.cut[number.name] = self.cut.get(number.name, 0) + int(beyond.sum())
            values = np.where(beyond, np.clip(values, least, most), values)
            bad &= ~beyond
        if bad.any():
            remedies = {} if number.low is None else dict.fromkeys(np.flatnonzero(beyond).tolist(), remedy)
            self._note(column, bad, number.reader.expect(number, spelling), remedies, spelling)
        values[bad] = least
        return values

    def _require_exact(self, column: str, values: NDArray[np.float64]) -> None:
        """Refuse whole numbers that float32 would change: what is read as it is, is kept as it is."""
        large = np.abs(values) > _EXACT
        if not large.any():
            return
        most = np.inf if getattr(self._cells[column], "dtype", np.dtype(object)).kind in "iu" else _COUNTED
        changed = large & (np.abs(values) <= most) & (values == np.floor(values))
        bad = changed & ((values.astype(np.float32) != values) | (np.abs(values) >= _COUNTED))
        if bad.any():
            self._note(column, bad, _CHANGED)

    def _places(self, label: Label | Group | GroupPart) -> NDArray[np.int64]:
        """The places (rows,) of a column's values among those declared; 0 for faults."""
        kind, column, cells = KINDS.get(label.kind), label.column, self._cells[label.name]
        places = kind.read(cells.values if isinstance(cells, Distinct) else cells, column, self._columns.spelling)
        bad = np.isnan(places)
        if bad.any():
            expected = kind.expect(column, self._columns.spelling)
            self._note(label.name, bad[_row_index(cells)], expected, listed=column.listed)
        indices: NDArray[np.int64] = np.where(bad, 0, places).astype(np.int64)[_row_index(cells)]
        return indices

    def _note(
        self,
        column: str,
        bad: NDArray[np.bool_],
        expected: str,
        remedies: Mapping[int, str] | None = None,
        spelling: Spelling | None = None,
        listed: Sequence[str] = (),
    ) -> None:
        """Keep the faults of a column, in the ``bad`` rows (rows,); ``remedies`` are of single rows, by index."""
        cells, bad = self._chunk.as_written(column), bad & self.kept
        alike = {*map(folded, listed)}
        for index in np.flatnonzero(bad)[: None if self._every else 1]:
            cell = cells[index]
            hint = "" if spelling is None else _written_otherwise(cell, spelling)
            if isinstance(cell, str) and folded(cell) in alike:
                hint = '; it differs in case or blanks: letters = "any" in the declaration reads both as one'
            if isinstance(cell, str) and normal(cell) == column:
                hint = "; the names of the columns stand there again, as in files that were joined: delete that row"
            row, remedy = self._first + int(index), (remedies or {}).get(int(index), "")
            self.faults.append(CellFault(row, column, shown(cell), expected + hint, remedy))


def _row_index(cells: Cells) -> Any:
    """Return the index that makes (rows,) of (values,): which of a column's different values each cell is."""
    return cells.codes if isinstance(cells, Distinct) else slice(None)


def _written_otherwise(cell: object, spelling: Spelling) -> str:
    """Remedy for a number that is written in another way, or a time of day; empty for anything else."""
    if isinstance(cell, datetime.time) or (isinstance(cell, str) and is_time(cell)):
        return "; times of day are not read: write hours as numbers, 13.75 for 13:45, or leave the column out"
    if not isinstance(cell, str):
        return ""
    if is_amount(cell):
        return "; write it without a sign of money or percent, and a negative number with a minus before it"
    if spelling != PLAIN:
        return ""
    return next((remedy for pattern, remedy in _COMMAS if pattern.fullmatch(cell.strip())), "")


@dataclass(frozen=True)
class CellFault:
    """A cell that does not fit: its row as its file counts, its column, the cell for a message, and what is declared.

    `value` may quote a record: it is for the holder of the records. `remedy` is what to declare if the cell is right.
    """

    row: int
    column: str
    value: str
    declared: str
    remedy: str = ""

    @property
    def words(self) -> str:
        """Column, value and limit."""
        return f"column {self.column!r} is {self.value}; {self.declared}"

    @property
    def advice(self) -> str:
        """The same, and the remedy."""
        return f"{self.words}; {self.remedy}" if self.remedy else self.words


_STEP = 1.125
"""How much larger the array gets; what it has beyond its rows is given back in the end."""


class Growing:
    """Rows of chunks, one after the other, in one array (n,) or (n, width)."""

    def __init__(self, dtype: Any) -> None:
        self._array: NDArray[Any] | None = None
        self._dtype, self._rows = dtype, 0

    def __len__(self) -> int:
        return self._rows

    def append(self, rows: NDArray[Any]) -> None:
        """Take in some rows (k,) or (k, width), as wide as those before."""
        end = self._rows + len(rows)
        if self._array is None:
            self._array = np.empty((end, *rows.shape[1:]), dtype=self._dtype)
        elif end > len(self._array):
            self._resize(max(end, int(len(self._array) * _STEP)))
        if rows.ndim == 2 and rows.flags.f_contiguous:  # column by column, which takes half as long
            for index in range(rows.shape[1]):
                self._array[self._rows : end, index] = rows[:, index]
        else:
            self._array[self._rows : end] = rows
        self._rows = end

    def whole(self) -> NDArray[Any]:
        """All rows, (n,) or (n, width); nothing is appended afterwards."""
        if self._array is None:
            return np.empty(0, dtype=self._dtype)
        self._resize(self._rows)
        return self._array

    def _resize(self, rows: int) -> None:
        assert self._array is not None
        self._array.resize((rows, *self._array.shape[1:]), refcheck=False)


class UnitFacts:
    """The units of all chunks' records, with one public fact of each: gathered to check that a unit has only one."""

    def __init__(self) -> None:
        self._units, self._values, self._rows = Growing(np.int64), Growing(np.int32), Growing(np.int32)

    def add(self, units: NDArray[np.int64], values: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Take in some rows (n,): their units, their values, and their numbers in the file."""
        for whole, part in ((self._units, units), (self._values, values), (self._rows, rows)):
            whole.append(part)

    @property
    def units(self) -> NDArray[np.int64]:
        """The unit of every row, (n,)."""
        return self._units.whole()

    @property
    def values(self) -> NDArray[np.int32]:
        """The value of every row, (n,)."""
        return self._values.whole()

    def changing(self, unit: str | None, column: str, words: tuple[str, ...], *, most: int) -> list[CellFault]:
        """The first row of another value of each unit that has rows of several; of `most` units at most."""
        if unit is None or not len(self._units):
            return []
        units, values, rows = self._units.whole(), self._values.whole(), self._rows.whole()
        _, first, number = grouped(units)
        other = np.flatnonzero(values != values[first][number])
        once = other[np.unique(number[other], return_index=True)[1]]
        return [
            CellFault(
                int(rows[index]),
                column,
                repr(words[values[index]]),
                f"row {rows[first[number[index]]]} is of the same {unit!r} and has "
                f"{words[values[first[number[index]]]]!r}; the rows of one {unit!r} have one value there, which is "
                "public: mend them, or choose a column that does not change",
            )
            for index in np.sort(once)[:most]
        ]
