"""Whose the rows of a file are, and that what is public of a unit is the same in all of its rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsw.data.faults import Fault


class Owned:
    """Whose the records of all chunks are, and one public fact of them: gathered to check that a unit has one."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, units: NDArray[np.int64], values: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Take in some rows (n,): their units, their values, and their numbers in the file."""
        self._parts.append((units, values, rows))

    @property
    def units(self) -> NDArray[np.int64]:
        """The unit of every row, (n,)."""
        return self._joined(0)

    @property
    def values(self) -> NDArray[np.int64]:
        """The value of every row, (n,)."""
        return self._joined(1)

    def changing(self, unit: str | None, column: str, words: tuple[str, ...], *, most: int) -> list[Fault]:
        """The first row of another value of each unit that has rows of several; of `most` units at most.

        Args:
            unit: its column; None for no fault.
            column: of the values.
            words: what the values are called.
        """
        if unit is None or not self._parts:
            return []
        units, values, rows = (self._joined(which) for which in range(3))
        _, first, number = np.unique(units, return_index=True, return_inverse=True)
        other = np.flatnonzero(values != values[first][number])
        once = other[np.unique(number[other], return_index=True)[1]]
        return [
            Fault(
                int(rows[place]),
                column,
                repr(words[values[place]]),
                f"row {rows[first[number[place]]]} is of the same {unit!r} and has "
                f"{words[values[first[number[place]]]]!r}; the rows of one {unit!r} have one value there, which is "
                "public: mend them, or choose a column that does not change",
            )
            for place in np.sort(once)[:most]
        ]

    def _joined(self, which: int) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, dtype=np.int64), *(part[which] for part in self._parts)])
