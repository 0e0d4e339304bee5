"""Faults of cells, rows that are gathered chunk by chunk, and their units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def grouped(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Group equal numbers (n,): the different ones (k,), ascending; each one's first place (k,); which each is (n,)."""
    # numpy.unique finds the same by a stable sort, which takes several times as long
    order = np.argsort(numbers)
    ordered, begins = numbers[order], np.ones(len(numbers), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts, which = np.flatnonzero(begins), np.empty(len(numbers), dtype=np.int64)
    which[order] = np.cumsum(begins) - 1
    return ordered[starts], np.minimum.reduceat(order, starts) if len(starts) else order, which


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


class Owned:
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
