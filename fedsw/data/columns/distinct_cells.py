"""Cells of a column as a table's reader gives them, and the functions that look at each different one once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Distinct:
    """The cells of a column as places (n,) among its different values: what is asked is asked once a value."""

    values: Sequence[Any]
    codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> Any:
        return self.values[self.codes[index]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.values.__getitem__, self.codes.tolist())


@dataclass(frozen=True, eq=False)
class Gaps:
    """Numbers (n,) that were read already, anything where they are ``absent``, missing as their column declares."""

    values: NDArray[np.float64]
    absent: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.tolist())


Cells = Sequence[Any] | NDArray[Any] | Distinct | Gaps


def mapped(cells: Any, what: Callable[[Any], Any], dtype: Any) -> NDArray[Any]:
    """The answers (n,) of a function for every cell: it is asked once a value where they are known to be fewer."""
    distinct = by_value(cells)
    if isinstance(distinct, Distinct):
        return np.array([what(value) for value in distinct.values], dtype=dtype)[distinct.codes]
    return np.array([what(cell) for cell in distinct], dtype=dtype)


def by_value(cells: Any) -> Any:
    """Cells as `Distinct` where that takes no loop over objects of unlike types; else as Python objects."""
    if isinstance(cells, Distinct):
        return cells
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind not in "biuf":
            return cells.tolist()
        values, codes = np.unique(cells, return_inverse=True)
        return Distinct(values.tolist(), codes)
    listed = list(cells)
    if set(map(type, listed)) != {str}:  # True, 1 and 1.0 are equal, and different values
        return listed
    places = {value: index for index, value in enumerate(dict.fromkeys(listed))}
    return Distinct(list(places), np.fromiter(map(places.__getitem__, listed), np.int64, len(listed)))
