"""Columns as an owner declares them: kinds, bounds, categories, missing cells, groups and classes."""

from __future__ import annotations

import datetime
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from fedsw.data.columns.column import PLAIN, ListedColumn
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import (
    AS_DECLARED,
    FALSE,
    TRUE,
    Spelt,
    as_text,
    as_texts,
    composed,
    folded,
    number_text,
    text_of,
)

if TYPE_CHECKING:
    from fedsw.data.columns.kind import ColumnKind


def require_distinct(name: str, what: str, values: tuple[str, ...]) -> None:
    """Refuse declared values that are fewer than two, not all different, empty, or with spaces around them."""
    untidy = any(not value or value != value.strip() for value in values)
    if len(values) < 2 or len(set(values)) < len(values) or untidy:
        raise ValueError(
            f"column {name!r} has {what} {list(values)}; at least two different ones, not empty and without "
            "spaces around them, are needed"
        )


MAX_FEATURES = 10_000
"""Most inputs of a model that declared columns may add up to."""


def _composed(name: Any) -> Any:
    """A name in Unicode's form NFC, as names in tables are compared."""
    return composed(name) if isinstance(name, str) else name


LONGEST_NAME = 200
"""Letters of a column's name at most."""

Name = Annotated[str, BeforeValidator(_composed), Field(min_length=1, max_length=LONGEST_NAME)]
Count = Annotated[int, Field(gt=0, le=MAX_FEATURES, strict=True)]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_texts)]
Decimal = Literal[".", ","]
Thousands = Literal["", ",", ".", " ", "'"]
Bound = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]


def _pairs(value: Any) -> Any:
    """A mapping of values to their other spellings as pairs, which never change."""
    if not isinstance(value, Mapping):
        return value
    return tuple((as_text(name), as_texts(others)) for name, others in value.items())


Same = Annotated[
    tuple[tuple[str, tuple[str, ...]], ...], BeforeValidator(_pairs), PlainSerializer(lambda pairs: dict(pairs))
]


class Declared(BaseModel):
    """Unknown keys are refused; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _as_one_text(value: Any) -> Any:
    """A whole number or truth value as the text it has in a file; anything else as it is."""
    return text_of(value) if isinstance(value, int | str) else value


class Spellings(Declared):
    """How the values of a column are written elsewhere: what a declaration of listed values may say of their cells.

    `same` names other spellings of a value, `same = {no = ["nein", "0"]}`; with `letters` "any" neither case nor blanks
    inside a value count; an `empty` cell is this value, as of a box that was not ticked. All of it is public.
    """

    same: Same = ()
    letters: Literal["exact", "any"] = "exact"
    empty: Annotated[str | None, BeforeValidator(_as_one_text)] = None

    @property
    def spelt(self) -> Spelt:
        """The same for the reader of cells."""
        return Spelt(self.same, self.letters, self.empty)

    def require_spelt(self, name: str, values: tuple[str, ...], missing: tuple[str, ...] = ()) -> None:
        """Refuse spellings of a value that is not declared, and one spelling of two values."""
        named = [*(value for value, _ in self.same), *([] if self.empty is None else [self.empty])]
        if unknown := [value for value in named if value not in values]:
            raise ValueError(
                f"column {name!r} has same or empty for {unknown[0]!r}, which is none of its values {list(values)}"
            )
        others = [other for _, listed in self.same for other in listed]
        taken = [*others, *(values if others else ()), *missing]
        if self.letters == "any":
            taken = [*map(folded, values), *(text for text in map(folded, others) if text not in map(folded, values))]
        if twice := [text for text, times in Counter(taken).items() if times > 1]:
            raise ValueError(f"column {name!r} has {twice[0]!r} as two values; leave it with one of them")
        if self.empty is not None and "" in missing:
            raise ValueError(f"column {name!r} has empty and an empty cell among missing; keep one of them")


class Number(Declared):
    """A column of finite numbers.

    With public bounds `low` and `high` values inside them are mapped linearly to [0, 1] (`scale` "unit") or [-1, 1]
    ("signed"). One outside them is refused, or counts as the nearer bound where `outside` is "cut". Without bounds
    values are taken as they are.

    `kind` names how cells are read (`fedsw.data.columns.registered`): "integer" refuses what is not whole; "boolean"
    reads true, false, yes, no, t, f, y, n, 1 and 0 as 1 and 0, and writes them in the words of `format`, "N|Y", false
    first (false and true if it is left out); "date" reads dates, as `format` writes them (see
    `datetime.strptime`; ISO 8601, 2024-05-31, if it is left out), as days since the public date `since`, 1970-01-01 if
    it is left out. `low` and `high` of dates are dates, or days.

    `decimal` and `thousands` say how its numbers are written in text, where that is not the table's way. `units` is
    what they are measured in, for people.

    `edges`, increasing and inside the bounds, are where a sketch of tables cuts the numbers, in place of equal parts of
    their range: quantiles of public records, for a long tail.
    """

    name: Name
    kind: str = "number"
    low: Bound | None = None
    high: Bound | None = None
    scale: Literal["unit", "signed"] = "unit"
    format: str | None = None
    since: datetime.date | None = None
    edges: tuple[Bound, ...] = ()
    outside: Literal["refuse", "cut"] = "refuse"
    decimal: Decimal | None = None
    thousands: Thousands | None = None
    units: Annotated[str, Field(max_length=50)] = ""

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(kind := raw.get("kind", "number"), str):
            return raw
        if raw.get("categories"):
            kind = KINDS.get(kind).with_categories or kind
        return KINDS.get(kind).prepared({**raw, "kind": kind})

    @model_validator(mode="after")
    def _ordered(self) -> Number:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"column {self.name!r} has low = {self.low} and high = {self.high}; give both or neither")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"column {self.name!r} has low = {self.low}, not below high = {self.high}")
        if self.low is None and self.outside == "cut":
            raise ValueError(f"column {self.name!r} has outside 'cut' and no bounds; give low and high")
        if self.low is None and self.scale != "unit":
            raise ValueError(f"column {self.name!r} has scale {self.scale!r} and no bounds; give low and high")
        if self.edges:
            inside = self.low is not None and self.high is not None and self.low < self.edges[0]
            if not inside or not self.edges[-1] <= (self.high or 0) or list(self.edges) != sorted({*self.edges}):
                raise ValueError(
                    f"column {self.name!r} has edges {list(self.edges)}; give low and high, and edges that increase, "
                    "each above low and at most high"
                )
        self.reader.require(self)
        return self

    @property
    def reader(self) -> ColumnKind:
        """The object of its kind, which reads, writes and codes its cells."""
        return KINDS.get(self.kind)

    @property
    def listed(self) -> tuple[str, ...]:
        """The values that its declaration lists; none of a number."""
        return ()

    @property
    def spelt(self) -> Spelt:
        """No other ways to write values: none is listed."""
        return AS_DECLARED

    @property
    def bounded(self) -> bool:
        """True if it has public bounds."""
        return self.low is not None and self.high is not None

    @property
    def in_unit(self) -> bool:
        """True if its values are mapped to [0, 1]."""
        return self.reader.limits(self) == (0.0, 1.0)


class Feature(Spellings, Number):
    """A numeric column, `count` of them (`name`0, `name`1, ...), or a categorical one that becomes one-hot.

    A cell that is among `missing` (the empty text "" stands for an empty cell) is valid: one more input, the last of
    the column, is 1 for it and 0 for others. Its number is then that of `fill`, within the bounds, and its category is
    `fill`, or none if it is left out. Which cells may be missing and what takes their place is public.

    `knots`, increasing and within the bounds, are where an additive model's function of the column may bend.
    """

    count: Count | None = None
    categories: Texts = ()
    missing: Texts = ()
    fill: Bound | str | None = None
    knots: tuple[Bound, ...] = ()

    @field_validator("missing", mode="before")
    @classmethod
    def _empty_cells(cls, value: Any) -> Any:
        return ("",) if value is True else () if value is False else value

    @model_validator(mode="after")
    def _one_kind(self) -> Feature:
        if self.categories:
            if self.count is not None:
                raise ValueError(
                    f"column {self.name!r} has categories; low, high and count are for numbers: leave them out"
                )
            require_distinct(self.name, "categories", self.categories)
        values = self.categories
        if self.reader.classes and self.empty is not None and not self.same:
            values = (self.empty,) if self.empty.lower() in (*TRUE, *FALSE) else ()
        self.require_spelt(self.name, values, self.missing)
        return self

    @model_validator(mode="after")
    def _knots_within(self) -> Feature:
        if not self.knots:
            return self
        if not self.reader.bounded or self.low is None or self.high is None:
            raise ValueError(
                f"column {self.name!r} has knots, and they lie between the bounds of a number: give low and high"
            )
        known = len(self.knots) > 1 and list(self.knots) == sorted({*self.knots})
        if not known or self.knots[0] < self.low or self.knots[-1] > self.high:
            low, high, *knots = (self.reader.worded(value, self) for value in (self.low, self.high, *self.knots))
            raise ValueError(
                f"column {self.name!r} has knots {knots}; give at least two, increasing, from {low} to {high}"
            )
        return self

    @model_validator(mode="after")
    def _filled(self) -> Feature:
        if not self.missing:
            if self.fill is not None:
                raise ValueError(
                    f"column {self.name!r} has fill and no missing; missing lists the cells that it stands for, [''] "
                    "for empty ones"
                )
            return self
        if self.count is not None:
            raise ValueError(f"column {self.name!r} has count and missing; declare columns that may be missing singly")
        if any(value != value.strip() for value in self.missing):
            raise ValueError(f"column {self.name!r} has missing {list(self.missing)}; leave out the spaces around them")
        if twice := [value for value in self.categories if value in self.missing]:
            raise ValueError(f"column {self.name!r} has {twice[0]!r} as a category and as missing; keep one")
        if self.categories:
            if self.fill is not None and self.filled_category is None:
                raise ValueError(
                    f"column {self.name!r} has fill {self.fill!r}, which is none of its categories; name one, or leave "
                    "fill out"
                )
        elif not isinstance(self.fill, int | float):
            raise ValueError(
                f"column {self.name!r} may be missing: give fill, a public number that stands for what is missing"
            )
        elif (limits := self.reader.bounds(self)) is not None and not limits[0] <= self.fill <= limits[1]:
            raise ValueError(
                f"column {self.name!r} has fill {number_text(float(self.fill))}, outside {number_text(limits[0])} to "
                f"{number_text(limits[1])}; name a number within the bounds"
            )
        return self

    @property
    def listed(self) -> tuple[str, ...]:
        """Its categories."""
        return self.categories

    @property
    def filled_category(self) -> int | None:
        """Which of the categories stands for a missing cell; None if none does."""
        fill = number_text(self.fill) if isinstance(self.fill, float) else self.fill
        return self.categories.index(fill) if fill in self.categories else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in a file."""
        return (self.name,) if self.count is None else tuple(f"{self.name}{index}" for index in range(self.count))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Name of every input of the model that comes of it: the column's, "column=category", "column is missing"."""
        values = tuple(f"{self.name}={value}" for value in self.categories) or self.columns
        return (*values, f"{self.name} is missing") if self.missing else values

    @property
    def inputs(self) -> int:
        """Inputs of the model that come of it."""
        return (len(self.categories) or self.count or 1) + bool(self.missing)


def _listing(kind: str) -> str:
    if not KINDS.get(kind).listing:
        names = ", ".join(repr(name) for name, known in KINDS.items() if known.listing)
        raise ValueError(f"kind is {kind!r}, which lists no values; groups and classes are {names}")
    return kind


ListedKind = Annotated[str, AfterValidator(_listing)]


class Label(Spellings):
    """A column of declared values: the classes.

    `positive` is the favourable one of them, "hired", which rates, ratios between groups and thresholds are of. Left
    out, it is the second of two classes; of more none is, and ratios are those of the class that is worst off.
    """

    name: Name
    values: Texts
    positive: Annotated[str | None, BeforeValidator(_as_one_text)] = None
    kind: ListedKind = "category"

    @model_validator(mode="after")
    def _at_least_two(self) -> Label:
        require_distinct(self.name, "values", self.values)
        self.require_spelt(self.name, self.values)
        reader = KINDS.get(self.kind)
        reader.require(self.column)
        if self.positive is not None and math.isnan(reader.read([self.positive], self.column, PLAIN)[0]):
            raise ValueError(
                f"column {self.name!r} has positive {self.positive!r}, which is none of its values "
                f"{list(self.values)}; name the favourable one of them"
            )
        return self

    @property
    def favourable(self) -> int | None:
        """The number of the favourable class; None for more than two of which none is declared."""
        if self.positive is not None:
            return int(KINDS.get(self.kind).read([self.positive], self.column, PLAIN)[0])
        return 1 if len(self.values) == 2 else None

    @property
    def column(self) -> ListedColumn:
        """The column of the classes, as its kind reads it."""
        return ListedColumn(self.name, self.values, spelt=self.spelt)


def cells_of(values: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names of all combinations of some columns' values, the last column's changing first."""
    return tuple(map(CROSS.join, itertools.product(*values)))


class GroupPart(Spellings):
    """One of several columns that say a record's group together."""

    name: Name
    values: Texts
    kind: ListedKind = "category"

    @model_validator(mode="after")
    def _at_least_two(self) -> GroupPart:
        require_distinct(self.name, "values", self.values)
        self.require_spelt(self.name, self.values)
        KINDS.get(self.kind).require(self.column)
        return self

    @property
    def column(self) -> ListedColumn:
        """The column as its kind reads it."""
        return ListedColumn(self.name, self.values, spelt=self.spelt)


CROSS = " × "
"""What stands between the values of several columns in the name of a group."""


class Group(Spellings):
    """The column of the groups: one group for each of the declared `values`, or numbers cut at public `edges`.

    Several columns make groups of all their combinations, "female × black": `of` declares each, `values` lists the
    combinations, all of them if it is left out; those that it does not list are the group `other`, or are refused.

    The edges e1 < e2 < ... cut the line into "name<e1", "e1<=name<e2", ..., "name>=ek": every number is in one group.
    Numbers are compared with them as they are in the file, in float64, before any scaling. With public bounds `low` and
    `high` a number outside them is refused, and every edge must lie above `low` and not above `high`.
    """

    name: Name
    values: Texts = ()
    edges: tuple[Bound, ...] = ()
    low: Bound | None = None
    high: Bound | None = None
    kind: ListedKind = "category"
    of: tuple[GroupPart, ...] = ()
    other: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _crossed(cls, raw: Any) -> Any:
        """The name and the values of several columns, where they are left out."""
        if not isinstance(raw, Mapping) or not raw.get("of"):
            return raw
        parts = [GroupPart.model_validate(part) for part in raw["of"]]
        known = {"name": CROSS.join(part.name for part in parts), "values": cells_of([part.values for part in parts])}
        return {**known, **{key: value for key, value in raw.items() if value or key not in known}}

    @model_validator(mode="after")
    def _combined(self) -> Group:
        if not self.of:
            if self.other is not None:
                raise ValueError(
                    f"column {self.name!r} has other, which is for groups of several columns; leave it out"
                )
            return self
        if len({part.name for part in self.of}) < max(2, len(self.of)):
            raise ValueError(f"the groups {self.name!r} are of several columns: name two or more different ones in of")
        cells = cells_of([part.values for part in self.of])
        if unknown := [value for value in self.values if value not in cells and value != self.other]:
            raise ValueError(f"the groups {self.name!r} have the value {unknown[0]!r}; combinations are {list(cells)}")
        if self.other is not None and self.other not in self.values:
            raise ValueError(f"the groups {self.name!r} have other {self.other!r}, which is none of their values")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that say a record's group."""
        return tuple(part.name for part in self.of) or (self.name,)

    @property
    def combined(self) -> tuple[int, ...]:
        """The group's number of every combination of the columns' values, the last column's changing first."""
        numbers = {value: number for number, value in enumerate(self.values)}
        other = -1 if self.other is None else numbers[self.other]
        return tuple(numbers.get(cell, other) for cell in cells_of([part.values for part in self.of]))

    def parts_of(self, number: int) -> tuple[str, ...]:
        """The columns' values of a group, of the first combination that is in it."""
        return list(itertools.product(*(part.values for part in self.of)))[self.combined.index(number)]

    @model_validator(mode="after")
    def _one_kind(self) -> Group:
        if bool(self.values) == bool(self.edges):
            declared = "both values and edges" if self.values else "neither values nor edges"
            raise ValueError(
                f"column {self.name!r} has {declared}; groups are declared values, or numbers cut at edges"
            )
        if self.values:
            require_distinct(self.name, "values", self.values)
            self.require_spelt(self.name, self.values)
            KINDS.get(self.kind).require(ListedColumn(self.name, self.values))
            if self.low is not None or self.high is not None:
                raise ValueError(f"column {self.name!r} has values; low and high are for numbers that edges cut")
        if any(not below < above for below, above in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"column {self.name!r} has edges {list(self.edges)}; each must be above the one before it")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"column {self.name!r} has low = {self.low} and high = {self.high}; give both or neither")
        if self.low is not None and self.high is not None:
            self.require_within(self.low, self.high)
        return self

    @property
    def column(self) -> ListedColumn | Number:
        """The column of the groups, as its kind reads it: of declared values, or the numbers that edges cut."""
        if self.values:
            return ListedColumn(self.name, self.values, spelt=self.spelt)
        return Number(name=self.name, low=self.low, high=self.high)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their numbers."""
        if self.values:
            return self.values
        written = [number_text(edge) for edge in self.edges]
        between = [f"{low}<={self.name}<{high}" for low, high in zip(written, written[1:], strict=False)]
        return (f"{self.name}<{written[0]}", *between, f"{self.name}>={written[-1]}")

    def require_within(self, low: float, high: float) -> None:
        """Refuse an edge that leaves a group which no number from `low` to `high` is in."""
        for edge in self.edges:
            if not low < edge <= high:
                raise ValueError(
                    f"column {self.name!r} has the edge {number_text(edge)}, and bounds {number_text(low)} and "
                    f"{number_text(high)}: one of the groups beside it would be empty; move the edge between them"
                )
