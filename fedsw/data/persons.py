"""Columns that look like ids of persons by their values: these repeat, and other columns stay the same within them.

Names say little: a person's number is called Patientennummer, num_patient or k_7 as well. Where rows of one person are
several, and no privacy unit is declared, epsilon is that of a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data.cells import MISSING
from fedsw.data.columns.date import FORMATS, is_date
from fedsw.data.columns.distinct_cells import Distinct, Gaps, by_value
from fedsw.data.columns.values import text_of

MOST_ROWS = 2**18
"""Rows of a table that are looked at, the first ones."""
_ABSENT = np.iinfo(np.int64).min
_LEAST_ROWS, _LEAST_VALUES = 20, 10
"""Rows with a cell, and different cells among them, below which a column is not looked at."""
_FEW_ROWS, _MANY_ROWS = 10, 100
"""Mean rows a value up to which one column that stays the same marks values as persons, and up to which two do."""
_ALIKE, _BY_CHANCE, _SURE = 0.98, 0.9, 14.0
"""A column stays the same in so many values (a person's sex may be mended once), by chance in fewer, and in all of them
with a chance below e^-14: no column of the shipped data sets is taken for a person's then."""
_ONE_LENGTH, _LONG_LIST = 0.8, 100
"""Share of texts of one length from which they are codes; different values above which others may be names."""
_OLDEST = 120
"""Whole numbers up to this one may be ages, which take two such columns."""
_DECIMAL = re.compile(r"[+-]?\d*[.,]\d+|[+-]\d+")
_LOOKED_AT = 30
"""Texts, the first ones, by which a column's form is judged."""


@dataclass(frozen=True)
class Persons:
    """A column that seems to hold persons: its different ``values``, ``rows`` that have one, what stays the same."""

    column: str
    values: int
    rows: int
    constant: tuple[str, ...]

    @property
    def words(self) -> str:
        """Evidence, as a sentence without an end."""
        more = f" and {len(self.constant) - 3} more" if len(self.constant) > 3 else ""
        stay = f", and within each {', '.join(self.constant[:3])}{more} stay the same" if self.constant else ""
        return f"its {self.values:,} values are in {self.rows:,} rows{stay}"


class Marks:
    """A column's cells as numbers (n,), equal for equal cells; a whole number is itself, a missing one `_ABSENT`."""

    def __init__(self) -> None:
        self.whole, self._odd, self._rows = True, False, 0
        self._lengths: Counter[int] = Counter()
        self._texts: list[str] = []
        self._parts: list[NDArray[np.int64]] = []

    @classmethod
    def of(cls, cells: Any) -> Marks:
        """The marks of a column's cells (n,), the first `MOST_ROWS` of them."""
        marks = cls()
        marks.add(cells[:MOST_ROWS])
        return marks

    def add(self, cells: Any) -> None:
        """Take in some cells; none beyond `MOST_ROWS`."""
        if self._rows >= MOST_ROWS:
            return
        self._rows += len(cells)
        cells = cells.values if isinstance(cells, Gaps) else cells
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            self._parts.append(self._of_numbers(cells))
            return
        known = by_value(cells)
        values = known.values if isinstance(known, Distinct) else known
        marks = np.fromiter(map(self._of_text, map(text_of, values)), np.int64, len(values))
        self._parts.append(marks[known.codes] if isinstance(known, Distinct) else marks)

    def _of_numbers(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        if numbers.dtype.kind != "f":
            return numbers.astype(np.int64)
        absent = ~np.isfinite(numbers)
        safe = np.where(absent, 0.0, numbers)
        self.whole = self.whole and bool((safe == np.floor(safe)).all() and (np.abs(safe) < 2.0**62).all())
        marks = safe.astype(np.int64) if self.whole else safe.astype(np.float64).view(np.int64)
        return np.where(absent, _ABSENT, marks)

    def _of_text(self, text: str | None) -> int:
        if text is None or text in MISSING:
            return int(_ABSENT)
        self._lengths[len(text)] += 1
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        self.whole = False
        self._odd = self._odd or _DECIMAL.fullmatch(text) is not None
        if len(self._texts) < _LOOKED_AT:
            self._texts.append(text)
        return hash(text)

    @property
    def may_name(self) -> bool:
        """Say whether cells may name persons by their form: whole numbers, or texts but numbers and dates."""
        if self.whole:
            return True
        days = any(all(is_date(text, written) for text in self._texts) for written in FORMATS)
        return bool(self._texts) and not self._odd and not days

    @property
    def one_length(self) -> bool:
        """Say whether most cells are of one length, or whole numbers."""
        return self.whole or max(self._lengths.values(), default=0) >= _ONE_LENGTH * self._lengths.total()

    @property
    def array(self) -> NDArray[np.int64]:
        """All marks (n,)."""
        return np.concatenate(self._parts)[:MOST_ROWS] if self._parts else np.empty(0, dtype=np.int64)


def persons_in(
    columns: Mapping[str, Marks], candidates: Collection[str], *, named: Collection[str] = ()
) -> list[Persons]:
    """Columns among the candidates that look like ids of persons; a ``named`` one does if its values repeat.

    Of any other one, other columns stay the same within its values, surely not by chance; one that is cut from it, as
    an age group is from a year of birth, or that it renames, tells nothing.
    """
    arrays = {name: marks.array for name, marks in columns.items()}
    repeated = []
    for name in candidates:
        marks, array = columns[name], arrays[name]
        present = array != _ABSENT
        _, codes, counts = np.unique(array[present], return_inverse=True, return_counts=True)
        rows, values = len(codes), len(counts)
        if rows < _LEAST_ROWS or not _LEAST_VALUES <= values < rows or rows > _MANY_ROWS * values:
            continue
        constant: tuple[str, ...] = ()
        if marks.may_name and len(array) == max(map(len, arrays.values())):
            others = {other: arrays[other][present] for other in columns if other != name}
            constant = tuple(
                other for other, cells in others.items() if _stays(codes, counts, cells, ordered=marks.whole)
            )
        few = rows <= _FEW_ROWS * values
        aged = marks.whole and array[present].min() >= 0 and array[present].max() <= _OLDEST
        shows_persons = len(constant) >= (1 if few and marks.one_length and not aged else 2)
        if shows_persons and (marks.one_length or values > _LONG_LIST) or (name in named and few):
            repeated.append(Persons(name, values, rows, constant))
    return repeated


def _stays(codes: NDArray[np.int64], counts: NDArray[np.int64], cells: NDArray[np.int64], *, ordered: bool) -> bool:
    """Say whether a column's cells (n,) are the same in all rows of each value (n,), and not by chance."""
    if len(cells) != len(codes):
        return False
    _, values = np.unique(cells, return_inverse=True)
    several = counts > 1
    different = int(values.max()) + 1
    if different < 2 or different > len(counts) / 2:
        return False  # it has one value, or renames the other column

    def alike(cells: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which values (k,) of several rows have one cell in all of them."""
        least, most = np.full(len(counts), different), np.full(len(counts), -1)
        np.minimum.at(least, codes, cells)
        np.maximum.at(most, codes, cells)
        same: NDArray[np.bool_] = (least == most)[several]
        return same

    # what is alike when the rows are shuffled is no sign of persons: a column of few values, or of one frequent value
    by_chance = float(alike(np.random.default_rng(0).permutation(values)).mean())
    if by_chance > _BY_CHANCE or float((stay := alike(values)).mean()) < _ALIKE:
        return False
    if -np.log(max(by_chance, 1 / len(counts))) * len(stay) < _SURE:
        return False
    if ordered:  # the other column may be cut from this one: each of its values is then one stretch of numbers
        first = np.zeros(len(counts), dtype=np.int64)
        first[codes] = values
        return int(np.count_nonzero(np.diff(first))) >= 2 * different
    return True
