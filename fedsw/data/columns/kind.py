"""A kind of column: an object that reads, writes, words, makes up and describes its cells, and codes them as inputs.

`ColumnKind` is the type (`registered.KINDS` has those that declarations may name), `Bins` public parts
of a range, `Form` a reading of cells of an undeclared kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsw.data.columns.column import PLAIN, DeclaredColumn, Spelling
from fedsw.data.columns.distinct_cells import Cells
from fedsw.data.columns.values import number_text

Numbers = NDArray[np.float64]
Stored = Literal["numbers", "texts", "days"]


@dataclass(frozen=True)
class Bins:
    """Public parts of a column's range, for a histogram.

    Attributes:
        edges: (k + 1,), increasing, in the column's own numbers; part j holds edges[j] <= x < edges[j + 1], and the
            last one its upper edge, too.
        labels: (k,) names of the parts.
        listed: the parts are declared values and not numbers in order.
    """

    edges: tuple[float, ...]
    labels: tuple[str, ...]
    listed: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def places(self, values: Numbers) -> NDArray[np.int64]:
        """The part (n,) that each number (n,) is in; -1 for NaN and for what is outside."""
        edges = np.array(self.edges)
        parts = np.searchsorted(edges, values, side="right") - 1
        parts = np.where(values == edges[-1], len(self) - 1, parts)
        inside = (values >= edges[0]) & (values <= edges[-1])
        return np.where(inside, parts, -1).astype(np.int64)


@dataclass(frozen=True)
class Form:
    """A way to read cells of an undeclared kind: the kind's name, a date's format, how numbers are written."""

    kind: str
    format: str | None = None
    spelling: Spelling = PLAIN


class ColumnKind(ABC):
    """How the cells of a column are read and written, in one object.

    A column's *own numbers* are what `read` returns: numbers as they are, days, 0 and 1, the places of declared values.
    Subclasses are registered in `fedsw.data.columns.registered`, another package's by an entry point of the group
    `fedsw.kinds`.
    """

    name: ClassVar[str]
    stored: ClassVar[Stored] = "texts"
    """Form in which a fast reader of files may hand cells over: float64 numbers, text, or days."""
    whole: ClassVar[bool] = True
    """True if the column's own numbers are whole."""
    ratios: ClassVar[bool] = False
    """True if twice a number is twice as much of something, so that wide bounds are cut by factors."""
    bounded: ClassVar[bool] = True
    """True if a declaration gives public bounds, low and high."""
    listing: ClassVar[bool] = False
    """True if a declaration lists the values, each of which becomes an input."""
    formatted: ClassVar[bool] = False
    """True if a declaration may say by a format how cells are written."""
    exact: ClassVar[bool] = False
    """True if a cell is a value only when it is written as declared, so that 1 and 1.0 are two."""
    classes: ClassVar[tuple[str, ...]] = ()
    """Values of such a column where it names classes or groups and lists none; empty if a declaration has to."""
    any_text: ClassVar[bool] = False
    """True if cells of any text are of this kind, which is then tried after all others."""
    with_categories: ClassVar[str | None] = None
    """Name of the kind that a declaration of this one has where it lists categories; None for this one."""

    def prepared(self, declared: Mapping[str, Any]) -> Mapping[str, Any]:
        """The keys of a declaration with bounds and fill as numbers; as they are for most kinds."""
        return declared

    def require(self, column: DeclaredColumn) -> None:
        """Refuse a declaration that this kind cannot be read by; ValueError says what is wrong."""
        if column.listed:
            raise ValueError(
                f"column {column.name!r} has categories, and kind {self.name!r} lists none; leave one of the two out"
            )
        if column.since is not None or (column.format is not None and not self.formatted):
            raise ValueError(f"column {column.name!r} has format or since, which belong to dates; set kind to 'date'")

    def require_target(self, column: DeclaredColumn) -> None:
        """Refuse a column of this kind as a number that a regression predicts, where it cannot be one."""
        self.require(column)

    @abstractmethod
    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """The column's own numbers (n,) of cells (n,), NaN for a cell that is not of this kind."""

    @abstractmethod
    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """Cells (n,) of text that `read` reads as these numbers (n,), or as the nearest that can be written."""

    @abstractmethod
    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """A clause of a message that says which cells are declared: "a whole number from 0 to 9 is declared"."""

    @abstractmethod
    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """Public parts of the range, about `bins` of them, by the declaration only; ValueError without bounds."""

    @abstractmethod
    def words(self, column: DeclaredColumn) -> str:
        """The declaration in a few words, for a table of columns."""

    def values(self, numbers: Numbers, column: DeclaredColumn) -> list[Any]:
        """Python values (n,) for a person: numbers, dates, truth values, categories."""
        return list(numbers.tolist())

    def make_up(self, column: DeclaredColumn, count: int, chance: np.random.Generator, spelling: Spelling) -> list[str]:
        """Made-up cells (count,), uniform over what is declared, by no record: for rehearsals."""
        return self.write(self.drawn(column, count, chance), column, spelling)

    def drawn(self, column: DeclaredColumn, count: int, chance: np.random.Generator) -> Numbers:
        """The own numbers (count,) of made-up cells; from -1 to 1 without bounds."""
        limits = self.bounds(column)
        low, high = (-1.0, 1.0) if limits is None else limits
        if not self.whole:
            return chance.uniform(low, high, count)
        return chance.integers(int(np.ceil(low)), int(np.floor(high)), count, endpoint=True).astype(np.float64)

    def bounds(self, column: DeclaredColumn) -> tuple[float, float] | None:
        """The least and the largest of the column's own numbers; None if undeclared."""
        return None if column.low is None or column.high is None else (column.low, column.high)

    def fill(self, column: DeclaredColumn) -> float | None:
        """A public number in the middle of the bounds that may stand for a missing cell; None without bounds."""
        limits = self.bounds(column)
        if limits is None:
            return None
        middle = (limits[0] + limits[1]) / 2
        return float(round(middle)) if self.whole else middle

    def limits(self, column: DeclaredColumn) -> tuple[float, float]:
        """The least and the largest value of one input of the model."""
        if self.bounds(column) is None:
            return -np.inf, np.inf
        return (-1.0, 1.0) if column.scale == "signed" else (0.0, 1.0)

    def inputs(self, numbers: Numbers, column: DeclaredColumn) -> Numbers:
        """The model's inputs (n, k): numbers (n,) mapped by their bounds, or an indicator for each declared value."""
        if (limits := self.bounds(column)) is None:
            return numbers[:, None]
        unit = (numbers - limits[0]) / (limits[1] - limits[0])
        return (unit if column.scale == "unit" else 2 * unit - 1)[:, None]

    def twins(
        self, traits: Numbers, column: DeclaredColumn, chance: np.random.Generator, used: tuple[float, float]
    ) -> Numbers:
        """Inputs (n,) of public twins that follow standard normal traits (n,), over a part of the range drawn from."""
        if self.bounds(column) is None:
            return traits
        middle, part = chance.uniform(0.2, 0.6), chance.uniform(*used)
        unit = np.clip(middle + part * traits, 0.0, 1.0)
        return np.asarray(2 * unit - 1 if column.scale == "signed" else unit)

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Every way in which this kind could read all of some texts, none of them missing; none if it cannot.

        More than one is ambiguous: a person has to say which is meant.
        """
        return ()

    def bound_of(self, text: str) -> float | None:
        """The own number of a bound as its owner writes it in a declaration; None if it is none."""
        return None

    def worded(self, value: float, column: DeclaredColumn) -> str:
        """One of the column's own numbers, as people read it."""
        return number_text(value)

    def bound_text(self, value: float) -> str:
        """A bound as TOML has it."""
        return number_text(value)
