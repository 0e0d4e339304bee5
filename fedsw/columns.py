"""What is declared about records that clients bring themselves: columns, bounds, categories, groups and classes.

Everything here is public and comes from whoever writes the experiment, never from the records: a bound or a category
that was looked up in private data would be a release of it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedsw.settings import ExperimentError, explain_all

MAX_FEATURES = 10_000
"""Most inputs of a model that declared columns may add up to."""

_EVERYBODY = ("all",)

Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(gt=0, le=MAX_FEATURES, strict=True)]
Bound = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]


class Declared(BaseModel):
    """Unknown keys are refused; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Number(Declared):
    """A column of finite numbers.

    With public bounds `low` and `high` a value outside them is refused, and those inside are mapped linearly to
    [0, 1] (`scale` "unit") or [-1, 1] ("signed"). Without bounds values are taken as they are.
    """

    name: Name
    low: Bound | None = None
    high: Bound | None = None
    scale: Literal["unit", "signed"] = "unit"

    @model_validator(mode="after")
    def _ordered(self) -> Number:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"column {self.name!r} has low = {self.low} and high = {self.high}; give both or neither")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"column {self.name!r} has low = {self.low}, not below high = {self.high}")
        if self.low is None and self.scale != "unit":
            raise ValueError(f"column {self.name!r} has scale {self.scale!r} and no bounds; give low and high")
        return self

    @property
    def in_unit(self) -> bool:
        """Whether its values are mapped to [0, 1]."""
        return self.low is not None and self.scale == "unit"


class Feature(Number):
    """A numeric column, `count` of them (`name`0, `name`1, ...), or a categorical one that becomes one-hot."""

    count: Count | None = None
    categories: tuple[str, ...] = ()

    _texts = field_validator("categories", mode="before")(lambda values: _as_texts(values))

    @model_validator(mode="after")
    def _one_kind(self) -> Feature:
        if self.categories:
            if self.low is not None or self.count is not None:
                raise ValueError(f"column {self.name!r} has categories; low, high and count are for numbers")
            _require_distinct(self.name, "categories", self.categories)
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in a file."""
        return (self.name,) if self.count is None else tuple(f"{self.name}{index}" for index in range(self.count))

    @property
    def inputs(self) -> int:
        """Inputs of the model that come of it."""
        return len(self.categories) or self.count or 1


class Label(Declared):
    """A column whose values are one of those declared: the classes."""

    name: Name
    values: tuple[str, ...]

    _texts = field_validator("values", mode="before")(lambda values: _as_texts(values))

    @model_validator(mode="after")
    def _at_least_two(self) -> Label:
        _require_distinct(self.name, "values", self.values)
        return self


class Group(Declared):
    """The column of the groups: one group for each of the declared `values`, or numbers cut at public `edges`.

    The edges e1 < e2 < ... cut the line into "name<e1", "e1<=name<e2", ..., "name>=ek": every number is in one group.
    Numbers are compared with them as they are in the file, in float64, before any scaling. With public bounds `low` and
    `high` a number outside them is refused, and every edge must lie above `low` and not above `high`.
    """

    name: Name
    values: tuple[str, ...] = ()
    edges: tuple[Bound, ...] = ()
    low: Bound | None = None
    high: Bound | None = None

    _texts = field_validator("values", mode="before")(lambda values: _as_texts(values))

    @model_validator(mode="after")
    def _one_kind(self) -> Group:
        if bool(self.values) == bool(self.edges):
            given = "both values and edges" if self.values else "neither values nor edges"
            raise ValueError(f"column {self.name!r} has {given}; groups are declared values, or numbers cut at edges")
        if self.values:
            _require_distinct(self.name, "values", self.values)
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
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their numbers."""
        if self.values:
            return self.values
        written = [_number_text(edge) for edge in self.edges]
        between = [f"{low}<={self.name}<{high}" for low, high in zip(written, written[1:], strict=False)]
        return (f"{self.name}<{written[0]}", *between, f"{self.name}>={written[-1]}")

    def require_within(self, low: float, high: float) -> None:
        """Refuse an edge that leaves a group which no number from `low` to `high` is in.

        Raises:
            ValueError: naming the edge and the bounds.
        """
        for edge in self.edges:
            if not low < edge <= high:
                raise ValueError(
                    f"column {self.name!r} has the edge {_number_text(edge)}, and bounds {_number_text(low)} and "
                    f"{_number_text(high)}: one of the groups beside it would be empty; move the edge between them"
                )


class Columns(Declared):
    """The columns that are read from a client's file; it may have others, which are never looked at.

    Attributes:
        features: in the order of the model's inputs. The column of the groups may be among them.
        sensitive: the column of the groups; without it all records are one group, "all".
        target: the column of the classes.
        targets: the numbers of a regression, one or more.
    """

    features: Annotated[tuple[Feature, ...], Field(min_length=1)]
    sensitive: Group | None = None
    target: Label | None = None
    targets: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Columns:
        if self.inputs > MAX_FEATURES:
            raise ValueError(f"the features add up to {self.inputs} inputs; at most {MAX_FEATURES} are read")
        if self.target is not None and self.targets:
            raise ValueError("both target (classes) and targets (numbers) are declared; keep one")
        inputs = [column for feature in self.features for column in feature.columns]
        predicted = [number.name for number in self.targets] + ([] if self.target is None else [self.target.name])
        group = [] if self.sensitive is None else [self.sensitive.name]
        for names in ([*inputs, *predicted], [*predicted, *group]):  # the group alone may be an input too
            if (twice := _first_repeated(names)) is not None:
                raise ValueError(
                    f"column {twice!r} is declared twice; a column has one role, and only the group may be an input"
                )
        if self.sensitive is not None:
            for feature in self.features:
                if self.sensitive.name in feature.columns:
                    _require_one_word(self.sensitive, feature)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        labels = [label.name for label in (self.sensitive, self.target) if label is not None]
        features = [column for feature in self.features for column in feature.columns]
        return tuple(dict.fromkeys((*features, *labels, *(number.name for number in self.targets))))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of every input of the model: the column's, or "column=category"."""
        return tuple(
            name
            for feature in self.features
            for name in ([f"{feature.name}={value}" for value in feature.categories] or feature.columns)
        )

    @property
    def inputs(self) -> int:
        """Inputs of the model: one for a number, one for each category."""
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

    def misfit(
        self,
        *,
        task: str,
        penalty: str,
        model: str,
        grouped: bool,
        target: Literal["class", "numbers", "any"],
        unit: Literal["targets", "features"] | None,
        square: bool,
    ) -> str | None:
        """What a task needs that is not declared; None if nothing is missing.

        Args:
            task, penalty, model: names, for the message.
            grouped: whether the task compares groups.
            target: what it predicts.
            unit: what it compares with numbers in [0, 1].
            square: whether the model takes square images.
        """
        if grouped and self.sensitive is None:
            return f"objective.task {task!r} compares groups: declare data.columns.sensitive"
        if target == "numbers" and not self.targets:
            return f"objective.task {task!r} predicts numbers: declare one or more of them in data.columns.targets"
        if target != "numbers" and self.targets:
            return f"data.columns.targets are for a regression; objective.task {task!r} takes a target with values"
        if (target == "class" or penalty == "equality-of-odds") and self.target is None:
            return f"objective.task {task!r} with penalty {penalty!r} needs classes: declare data.columns.target"
        if square and math.isqrt(self.inputs) ** 2 != self.inputs:
            return f"model.kind {model!r} takes square images; data.columns.features add up to {self.inputs} inputs"
        return self._out_of_unit(task, unit)

    def _out_of_unit(self, task: str, unit: Literal["targets", "features"] | None) -> str | None:
        """The first column that a task compares with probabilities and that need not lie in [0, 1]."""
        compared: tuple[Number, ...] = self.targets if unit == "targets" else ()
        if unit == "features":
            compared = tuple(feature for feature in self.features if not feature.categories)
        for column in compared:
            if not column.in_unit:
                return (
                    f"objective.task {task!r} predicts numbers in [0, 1]; column {column.name!r} needs public bounds "
                    "low and high, and scale 'unit'"
                )
        return None


def _require_one_word(group: Group, feature: Feature) -> None:
    """Refuse a group that is an input too, if the two declarations of the column cannot both hold.

    Raises:
        ValueError: naming the column and both.
    """
    if feature.categories and group.values and set(feature.categories) != set(group.values):
        raise ValueError(
            f"column {group.name!r} has values {list(group.values)} as group and categories "
            f"{list(feature.categories)} as input; declare the same"
        )
    if feature.low is None or feature.high is None:
        return
    if group.low is not None and (group.low, group.high) != (feature.low, feature.high):
        raise ValueError(
            f"column {group.name!r} is from {group.low:g} to {group.high:g} as group and from {feature.low:g} to "
            f"{feature.high:g} as input; leave low and high out of sensitive"
        )
    group.require_within(feature.low, feature.high)


def read_columns(path: Path) -> Columns:
    """The declaration in a TOML file, with the keys of an experiment's [data.columns] at its top level.

    Raises:
        ExperimentError: naming the file, and the key with its value and limit.
    """
    try:
        return Columns.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise ExperimentError(f"the schema {path} cannot be read: {fault.strerror}") from None
    except ValidationError as fault:
        faults = "; ".join(explain_all(fault.errors(), Columns))
        raise ExperimentError(f"the schema {path}: {faults}") from None
    except (ValueError, RecursionError) as fault:
        raise ExperimentError(f"the schema {path} is not valid TOML: {fault}") from None


def difference(own: Columns, other: Columns) -> str | None:
    """The first thing in which two declarations differ, in words; None if they agree."""
    for role in ("features", "sensitive", "target", "targets"):
        mine, theirs = getattr(own, role), getattr(other, role)
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


def _as_texts(values: Any) -> Any:
    """Whole numbers and truth values as the text they have in a file."""
    if not isinstance(values, list | tuple):
        return values
    return tuple(as_text(value) if isinstance(value, int) else value for value in values)


def as_text(value: int | str) -> str:
    """How a whole number, a truth value or a text is compared with declared values."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _number_text(value: float) -> str:
    """A number as it is written, every one differently: 30, 0.1, 1e+30."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _first_repeated(names: Sequence[str]) -> str | None:
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _require_distinct(name: str, what: str, values: tuple[str, ...]) -> None:
    untidy = any(not value or value != value.strip() for value in values)
    if len(values) < 2 or len(set(values)) < len(values) or untidy:
        raise ValueError(
            f"column {name!r} has {what} {list(values)}; at least two different ones, not empty and without "
            "spaces around them, are needed"
        )
