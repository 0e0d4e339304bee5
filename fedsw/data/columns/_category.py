"""Listed values: categories, one for all spellings of a value, and codes, compared letter by letter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedsw.data.columns.column import DeclaredColumn, Spelling
from fedsw.data.columns.distinct_cells import Cells, mapped
from fedsw.data.columns.kind import Bins, ColumnKind, Form, Numbers
from fedsw.data.columns.values import Values, doubled

_MOST_LISTED = 20


class CategoryKind(ColumnKind):
    """One of the declared values; see `fedsw.data.columns.values` for when a cell is one of them."""

    name = "category"
    listing = True
    any_text = True
    bounded = False

    def require(self, column: DeclaredColumn) -> None:
        """Values, and nothing that is for numbers."""
        if not column.listed:
            raise ValueError(
                f"column {column.name!r} is of kind {self.name!r}, which lists its values; declare them in categories"
            )
        if column.low is not None or column.format is not None or column.since is not None or column.edges:
            raise ValueError(
                f"column {column.name!r} has categories; low, high, edges, format and since are for numbers and dates: "
                "leave them out"
            )
        self.require_apart(column.name, column.listed)

    def require_apart(self, name: str, values: Sequence[str]) -> None:
        """Refuse two declared values that are one."""
        if not self.exact and (twice := doubled(values)) is not None:
            raise ValueError(
                f"column {name!r} has {twice[0]!r} and {twice[1]!r}, which are one value in two spellings; keep one, "
                "or set kind = 'code' to tell them apart"
            )

    def require_target(self, column: DeclaredColumn) -> None:
        """Listed values are classes."""
        raise ValueError(
            f"column {column.name!r} is a target of listed values; declare it as target = {{name, values}}"
        )

    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """The place of each cell's value among those declared."""
        return places_among(cells, Values(column.listed, exact=self.exact, spelt=column.spelt))

    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """The values as they are declared."""
        return [column.listed[int(value)] for value in values.tolist()]

    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """The first of the declared values."""
        return expected(column.listed)

    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """A part for each value."""
        return Bins(tuple(map(float, range(len(column.listed) + 1))), column.listed, listed=True)

    def words(self, column: DeclaredColumn) -> str:
        """The values."""
        return ", ".join(column.listed)

    def values(self, numbers: Numbers, column: DeclaredColumn) -> list[Any]:
        """The values as they are declared."""
        return self.write(numbers, column, Spelling())

    def bounds(self, column: DeclaredColumn) -> tuple[float, float] | None:
        """The first and the last place."""
        return 0.0, float(len(column.listed) - 1)

    def fill(self, column: DeclaredColumn) -> float | None:
        """None: a missing cell is none of the values."""
        return None

    def limits(self, column: DeclaredColumn) -> tuple[float, float]:
        """0 and 1: indicators."""
        return 0.0, 1.0

    def inputs(self, numbers: Numbers, column: DeclaredColumn) -> Numbers:
        """Indicators (n, k) of the values."""
        one_hot = np.zeros((len(numbers), len(column.listed)))
        one_hot[np.arange(len(numbers)), np.nan_to_num(numbers).astype(np.int64)] = 1.0
        return one_hot

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Any text."""
        return (Form(self.name),) if cells else ()


class CodeKind(CategoryKind):
    """One of the declared values, to the letter: "007" is not "7", and "1.0" not "1"."""

    name = "code"
    any_text = False
    exact = True

    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """The first of the declared codes, and that every letter counts."""
        return f"{expected(column.listed)}, and every letter and zero of a code counts"

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Digits of which some begin with a zero: a number would lose it."""
        digits = cells and all(cell.isascii() and cell.isdigit() for cell in cells)
        return (Form(self.name),) if digits and any(len(cell) > 1 and cell[0] == "0" for cell in cells) else ()


def places_among(cells: Cells, values: Values) -> Numbers:
    """The place (n,) of each cell's value among some declared ones; NaN if it is none."""
    places = mapped(cells, values.place, np.float64)
    places[places < 0] = np.nan
    return places


def expected(values: Sequence[str]) -> str:
    """The first of some declared values, for a message."""
    more = ", ..." if len(values) > _MOST_LISTED else ""
    return "declared are " + ", ".join(repr(value) for value in values[:_MOST_LISTED]) + more
