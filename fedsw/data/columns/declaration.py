"""The declaration of a table: its columns, groups and target; and how its values become codes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedsw._tools.settings import ExperimentError, read_toml, validated
from fedsw.data.columns.column import Spelling
from fedsw.data.columns.declared_kinds import (
    MAX_FEATURES,
    Decimal,
    Declared,
    Feature,
    Group,
    Label,
    Name,
    Number,
    Thousands,
)
from fedsw.data.columns.values import number_text

_EVERYBODY = ("all",)


class Columns(Declared):
    """The columns that are read from a client's file; it may have others, which are never looked at.

    Attributes:
        features: in the order of the model's inputs. The column of the groups may be among them.
        sensitive: the column of the groups; without it all records are one group, "all".
        target: the column of the classes.
        targets: the numbers of a regression, one or more.
        unit: the column of privacy-unit ids; all rows with one value there are protected as one unit.
        separator: what parts the cells of a CSV file, one character.
        decimal: what parts the decimals of numbers in text, "." or ",".
        thousands: what parts their thousands, ",", ".", " " or "'"; nothing if it is left out, and such numbers are
            refused.
        skip_rows: rows of a CSV file below its header that are not records, as the two of questions that Qualtrics has.
        rows: which rows are records: "all", or "leave out where the target is empty": which rows have one is then
            public.
    """

    features: Annotated[tuple[Feature, ...], Field(min_length=1)]
    sensitive: Group | None = None
    target: Label | None = None
    targets: tuple[Number, ...] = ()
    unit: Name | None = None
    separator: str = ","
    decimal: Decimal = "."
    thousands: Thousands = ""
    skip_rows: Annotated[int, Field(ge=0, le=1000)] = 0
    rows: Literal["all", "leave out where the target is empty"] = "all"

    @field_validator("separator")
    @classmethod
    def _one_character(cls, separator: str) -> str:
        if len(separator) != 1 or separator.isalnum() or separator in '"\r\n.':
            raise ValueError(
                f"separator is {separator!r}; one character that parts cells is expected, as ',', ';', '|' or '\\t'"
            )
        return separator

    @model_validator(mode="after")
    def _readable(self) -> Columns:
        for target in self.targets:
            target.reader.require_target(target)
        for number in (None, *self.features, *self.targets):
            if (spelling := self.spelling_of(number)).decimal == spelling.thousands:
                subject = "numbers" if number is None else f"column {number.name!r}"
                raise ValueError(
                    f"{subject} would have decimals and thousands parted by {spelling.decimal!r} alike; set decimal or "
                    "thousands to another character"
                )
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Columns:
        if self.inputs > MAX_FEATURES:
            raise ValueError(f"the features add up to {self.inputs} inputs; at most {MAX_FEATURES} are read")
        if self.target is not None and self.targets:
            raise ValueError("both target (classes) and targets (numbers) are declared; keep one")
        inputs = [column for feature in self.features for column in feature.columns]
        predicted = [number.name for number in self.targets] + ([] if self.target is None else [self.target.name])
        group = [] if self.sensitive is None else [*self.sensitive.columns]
        for names in ([*inputs, *predicted], [*predicted, *group]):  # the group alone may be an input too
            if (twice := next((name for name, times in Counter(names).items() if times > 1), None)) is not None:
                raise ValueError(
                    f"column {twice!r} is declared twice; a column has one role, and only the group may be an input"
                )
        if self.unit is not None and self.unit in (*inputs, *predicted, *group):
            raise ValueError(
                f"column {self.unit!r} is the unit, which identifies persons, and has another role too; a column has "
                "one role"
            )
        # the column of the groups may be an input as well: the two declarations of it must both hold
        if (groups := self.sensitive) is None:
            return self
        for feature in (feature for feature in self.features if groups.name in feature.columns):
            if feature.categories and groups.values and set(feature.categories) != set(groups.values):
                raise ValueError(
                    f"column {groups.name!r} has values {list(groups.values)} as group and categories "
                    f"{list(feature.categories)} as input; declare the same"
                )
            if feature.low is None or feature.high is None:
                continue
            if groups.low is not None and (groups.low, groups.high) != (feature.low, feature.high):
                raise ValueError(
                    f"column {groups.name!r} is from {groups.low:g} to {groups.high:g} as group and from "
                    f"{feature.low:g} to {feature.high:g} as input; leave low and high out of sensitive"
                )
            groups.require_within(feature.low, feature.high)
        return self

    @property
    def spelling(self) -> Spelling:
        """How numbers are written in text where a column says nothing else."""
        return Spelling(self.decimal, self.thousands)

    def spelling_of(self, number: Number | None) -> Spelling:
        """How the numbers of a column are written in text."""
        if number is None:
            return self.spelling
        decimal = self.decimal if number.decimal is None else number.decimal
        return Spelling(decimal, self.thousands if number.thousands is None else number.thousands)

    @property
    def group_number(self) -> Number | None:
        """The numbers that edges cut into groups, read as the same column is as an input; None without edges."""
        group = self.sensitive
        if group is None or not isinstance(number := group.column, Number):
            return None
        as_input = next((feature for feature in self.features if group.name in feature.columns), None)
        if as_input is None:
            return number
        alike = {name: getattr(as_input, name) for name in ("kind", "format", "since", "decimal", "thousands")}
        return number.model_copy(update=alike)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        groups = () if self.sensitive is None else self.sensitive.columns
        labels = [*groups, *([] if self.target is None else [self.target.name])]
        features = [column for feature in self.features for column in feature.columns]
        unit = () if self.unit is None else (self.unit,)
        return tuple(dict.fromkeys((*features, *labels, *(number.name for number in self.targets), *unit)))

    @property
    def listed(self) -> frozenset[str]:
        """The columns of declared values and of truth values: few different cells."""
        features = (feature.name for feature in self.features if feature.reader.stored == "texts")
        groups = () if self.sensitive is None or not self.sensitive.values else self.sensitive.columns
        labels = () if self.target is None else (self.target.name,)
        return frozenset((*features, *groups, *labels))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of every input of the model; see `declared_kinds.Feature.input_names`."""
        return tuple(name for feature in self.features for name in feature.input_names)

    @property
    def inputs(self) -> int:
        """Inputs of the model: one for a number, one for each category, one for what may be missing."""
        return sum(feature.inputs for feature in self.features)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return _EVERYBODY if self.sensitive is None else self.sensitive.groups

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for a regression, and one for all where no target is declared."""
        if self.targets:
            return ()
        return _EVERYBODY if self.target is None else self.target.values

    @property
    def positive(self) -> int | None:
        """The number of the favourable class; None if there is none, or none is declared of more than two."""
        return None if self.target is None else self.target.favourable

    @property
    def units(self) -> tuple[float, float] | None:
        """The lower bound of the one number to predict and the width of its bounds; None if there is not one."""
        if len(self.targets) != 1 or self.targets[0].low is None or self.targets[0].high is None:
            return None
        return self.targets[0].low, self.targets[0].high - self.targets[0].low

    def uncut(self) -> Columns:
        """The same where numbers that would be cut at their bounds are read as they are."""

        def as_read(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
            free = {"low": None, "high": None, "edges": (), "outside": "refuse", "scale": "unit"}
            return tuple(number.model_copy(update=free) if number.outside == "cut" else number for number in numbers)

        return self.model_copy(update={"features": as_read(self.features), "targets": as_read(self.targets)})


def read_columns(path: Path) -> Columns:
    """The declaration in a TOML file, which has the keys of [data.columns] at its top level; see `validated`."""
    raw = read_toml(path, "the schema")
    if "data" in raw:
        raise ExperimentError(
            f"the schema {path} has a section [data], as an experiment has; write what is under [data.columns] there "
            "at its top level, without the section's name"
        )
    return validated(Columns, raw, where=f"the schema {path}: ")


def difference(declared: Columns, other: Columns) -> str | None:
    """The first thing in which two declarations differ, in words; None if they agree."""
    for name in ("unit", "separator", "decimal", "thousands", "skip_rows", "rows"):
        if getattr(declared, name) != getattr(other, name):
            return f"{name} is {getattr(other, name)!r}, not {getattr(declared, name)!r}"
    for role in ("features", "sensitive", "target", "targets"):
        mine, theirs = getattr(declared, role), getattr(other, role)
        if mine == theirs:
            continue
        if isinstance(mine, tuple):
            if len(mine) != len(theirs):
                return f"{role} are {len(theirs)}, not {len(mine)}"
            position = next(index for index, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1])
            role, mine, theirs = f"{role}[{position}]", mine[position], theirs[position]
        return f"{role} is {_short(theirs)}, not {_short(mine)}"
    return None


def _short(declared: Declared | None) -> str:
    return "not declared" if declared is None else repr(declared.model_dump(exclude_defaults=True))


MOST_CODES = 2_000
"""Codes of all columns together: a sketch of pairs measures about half their square."""

LOWEST = 2.0**-40
"""Width of the bin of the lowest number, as a part of the range: far above what processors flush to zero."""

_FINE = (5, 7, 10)
"""Numbers are also cut at 2^-5, 2^-7 and 2^-10 of their range, since most values of many columns are at its low end."""


@dataclass(frozen=True)
class Coded:
    """One column of a table, as codes 0 .. size - 1: ``values`` (categories, groups), or parts of a ``number``.

    The ``role`` is "feature", "group", "target" or "class"; ``first`` is the index of its first input among the
    features of records, or its own among the targets. The ``edges`` of numbers increase, in the column's own units:
    code k holds edges[k] <= x < edges[k + 1], the last one its upper edge as well. ``missing`` is the text of a missing
    cell, which has the last code; None if none may be missing.
    """

    name: str
    role: str
    first: int
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    number: Number | None = None
    missing: str | None = None

    @property
    def size(self) -> int:
        """How many codes there are."""
        return (len(self.values) or len(self.edges) - 1) + (self.missing is not None)

    @property
    def whole(self) -> bool:
        """True if its numbers are whole: integers, days, truth values."""
        return self.number is not None and self.number.reader.whole


def coded_columns(
    columns: Columns, *, bins: int, group_in_cell: bool, with_class: bool = False, most: int = MOST_CODES
) -> tuple[Coded, ...]:
    """How every declared column is written as codes, by public numbers only.

    Categories and groups are codes as they are. Numbers are cut at their declared edges; without any, in `bins` equal
    parts of their declared range and finer ones at its low end; its lowest value has a separate code, and whole
    numbers of at most 2 `bins` values are a code each. A missing cell has one more. The classes are the blocks of
    records, not a column of codes, unless they are asked for (``with_class``); so are the groups with
    ``group_in_cell``.

    ExperimentError names a column of numbers without bounds, one of groups in blocks and an input, or
    the widest of more than ``most`` codes.
    """
    coded, first, group = [], 0, columns.sensitive
    for feature in columns.features:
        is_group = group is not None and group.name in feature.columns
        if is_group and group_in_cell and (group is None or group.edges):
            raise ExperimentError(
                f"column {feature.name!r} is an input, and its numbers cut at edges are the groups: blocks of groups "
                "take a column of values. Declare values, or leave the column out of the features"
            )
        if not (is_group and group_in_cell):
            edges = group.edges if is_group and group is not None else ()
            missing = feature.missing[0] if feature.missing else None
            if feature.categories:
                coded.append(Coded(feature.name, "feature", first, values=feature.categories, missing=missing))
            else:
                number = {name: getattr(feature, name) for name in Number.model_fields}
                named = (Number.model_validate({**number, "name": name}) for name in feature.columns)
                coded += [
                    _of_number(single, "feature", first + at, bins, edges, missing) for at, single in enumerate(named)
                ]
        first += feature.inputs
    if group is not None and not group_in_cell and all(group.name not in column.columns for column in columns.features):
        if group.values:
            coded.append(Coded(group.name, "group", 0, values=group.values))
        elif group.low is None or group.high is None:
            raise ExperimentError(
                f"column {group.name!r} has edges {[number_text(edge) for edge in group.edges]} and no bounds; numbers "
                "of the outer groups are to be made up: declare low and high of sensitive, public ones"
            )
        else:
            ends = Number(name=group.name, low=group.low, high=group.high)
            coded.append(Coded(group.name, "group", 0, edges=(group.low, *group.edges, group.high), number=ends))
    coded += [_of_number(number, "target", at, bins) for at, number in enumerate(columns.targets)]
    if with_class and columns.target is not None:
        coded.append(Coded(columns.target.name, "class", 0, values=columns.classes))
    if not coded:
        raise ExperimentError("every declared column tells blocks apart, and none is left to measure: declare features")
    if (total := sum(column.size for column in coded)) > most:
        widest = max(coded, key=lambda column: column.size)
        raise ExperimentError(
            f"the columns are {total} codes, column {widest.name!r} {widest.size} of them; at most {most} are "
            "measured: leave out columns, join categories or lower sketch.bins"
        )
    return tuple(coded)


def ranges(coded: tuple[Coded, ...]) -> tuple[tuple[int, int], ...]:
    """The codes (first, end) of every column, one column after the other."""
    ends = [0]
    for column in coded:
        ends.append(ends[-1] + column.size)
    return tuple(zip(ends[:-1], ends[1:], strict=True))


def _of_number(
    number: Number, role: str, first: int, bins: int, cuts: tuple[float, ...] = (), missing: str | None = None
) -> Coded:
    if (limits := number.reader.bounds(number)) is None:
        raise ExperimentError(
            f"column {number.name!r} has no bounds, and a sketch of tables cuts its range into codes: declare low and "
            "high, public ones"
        )
    # The last code holds its upper edge as well: of whole numbers it would hold two, unless the end is one above them.
    (low, high), whole = limits, number.reader.whole
    start, end = (float(math.ceil(low)), math.floor(high) + 1.0) if whole else (low, high)
    if whole and end - start <= 2 * bins and not number.edges:
        edges = tuple(start + step for step in range(int(end - start) + 1))
    else:
        span = end - start
        inner = [start + span * part / bins for part in range(1, bins)] + [start + span * 2.0**-fine for fine in _FINE]
        inner.append(start + 1 if whole else start + span * LOWEST)
        rounded = {float(math.ceil(edge)) if whole else edge for edge in (*(number.edges or inner), *cuts)}
        edges = (start, *sorted(edge for edge in rounded if start < edge < end), end)
    return Coded(number.name, role, first, edges=edges, number=number, missing=missing)
