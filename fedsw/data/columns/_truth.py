"""Truth values: true, false, yes, no, t, f, y, n, 1 and 0, read as 1 and 0."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedsw.data.columns.column import DeclaredColumn, Spelling
from fedsw.data.columns.distinct_cells import Cells, mapped
from fedsw.data.columns.kind import Bins, ColumnKind, Form, Numbers
from fedsw.data.columns.values import FALSE, TRUE, alike, is_empty, text_of

_TRUTHS = dict.fromkeys(TRUE, 1.0) | dict.fromkeys(FALSE, 0.0)
_WORDS = frozenset(_TRUTHS) - {"1", "0"}


class TruthKind(ColumnKind):
    """Truth values, in any case; written as true and false, or in the two words of a format: "N|Y", false first."""

    name = "boolean"
    classes = ("0", "1")
    bounded = False
    formatted = True

    def require(self, column: DeclaredColumn) -> None:
        """No bounds: they are 0 and 1."""
        super().require(column)
        if column.low is not None:
            raise ValueError(f"column {column.name!r} holds truth values, which are 0 and 1; leave low and high out")
        if column.format is not None and [as_truth(word) for word in column.format.split("|")] != [0.0, 1.0]:
            raise ValueError(
                f"column {column.name!r} has format {column.format!r}; of truth values it is a word for false and one "
                "for true, as 'no|yes', 'N|Y' or '0|1'"
            )

    def require_target(self, column: DeclaredColumn) -> None:
        """Truth values are two classes."""
        raise ValueError(f"column {column.name!r} is a target of truth values; declare it as target = {{name, values}}")

    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """1 for true and 0 for false."""
        if (unticked := column.spelt.empty) is not None:
            return mapped(cells, lambda cell: as_truth(unticked if is_empty(cell) else cell), np.float64)
        return mapped(cells, as_truth, np.float64)

    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """The words true and false, or those of the format."""
        false, true = ("false", "true") if column.format is None else column.format.split("|")
        return [true if value else false for value in values.tolist()]

    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """The words."""
        return "a truth value is declared: true, false, yes, no, t, f, y, n, 1 or 0"

    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """False and true."""
        return Bins((0.0, 1.0, 2.0), ("false", "true"), listed=True)

    def words(self, column: DeclaredColumn) -> str:
        """The kind."""
        return self.name

    def values(self, numbers: Numbers, column: DeclaredColumn) -> list[Any]:
        """Python's truth values."""
        return [bool(number) for number in numbers.tolist()]

    def bounds(self, column: DeclaredColumn) -> tuple[float, float] | None:
        """0 and 1."""
        return 0.0, 1.0

    def limits(self, column: DeclaredColumn) -> tuple[float, float]:
        """0 and 1, as they are."""
        return 0.0, 1.0

    def inputs(self, numbers: Numbers, column: DeclaredColumn) -> Numbers:
        """0 and 1, as they are."""
        return numbers[:, None]

    def twins(
        self, traits: Numbers, column: DeclaredColumn, chance: np.random.Generator, used: tuple[float, float]
    ) -> Numbers:
        """1 where a trait is above a level drawn by chance."""
        return (traits > chance.normal(0.5, 0.5)).astype(np.float64)

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Words for truth values, with a format where each has one spelling; 1 and 0 alone are numbers."""
        words = {cell.lower() for cell in cells}
        if not (words and words <= frozenset(_TRUTHS) and words & _WORDS):
            return ()
        spelt = sorted(set(cells), key=lambda cell: _TRUTHS[cell.lower()])
        both = len(spelt) == 2 and len({_TRUTHS[cell.lower()] for cell in spelt}) == 2
        return (Form(self.name, "|".join(spelt) if both and spelt != ["false", "true"] else None),)


def as_truth(cell: Any) -> float:
    """1 or 0 for a truth value, a word for one, or the number however it is stored; NaN for anything else."""
    text = text_of(cell)
    return np.nan if text is None else _TRUTHS.get(alike(text, truth=True), np.nan)
