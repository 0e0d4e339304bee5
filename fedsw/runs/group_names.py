"""Names of groups, classes and their cells: as declared, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedsw.data.columns.declaration import Columns

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CELL = re.compile(r"(?:Y=(\d+),)?A=(\d+)")


@dataclass(frozen=True)
class Names:
    """Declared names of groups and classes, by their numbers; empty if undeclared.

    Rates and ratios between groups are of the class ``positive``; if it is None, of each class. Errors are in the units
    of the one ``predicted`` number; if that is empty they are coded, of a target in [0, 1]. ``target`` is the column of
    the classes.
    """

    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    positive: int | None = None
    predicted: str = ""
    target: str = field(default="", compare=False)

    def group(self, number: int) -> str:
        """The name of a group, "A=2" without one."""
        return self.groups[number] if 0 <= number < len(self.groups) else f"A={number}"

    def label(self, number: int) -> str:
        """The name of a class, "Y=2" without one; a number names its column, "ill = 1"."""
        if not 0 <= number < len(self.classes):
            return f"Y={number}"
        name = self.classes[number]
        return f"{self.target} = {name}" if self.target and _NUMBER.fullmatch(name) else name

    def cell(self, cell: str) -> str:
        """The name of a stratum: "female" for "A=0", "high,female" for "Y=1,A=0"; others as they are."""
        match = _CELL.fullmatch(cell)
        if match is None:
            return cell
        label = "" if match[1] is None else f"{self.label(int(match[1]))},"
        return label + self.group(int(match[2]))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {"positive": self.positive, "predicted": self.predicted}
        return {"groups": list(self.groups), "classes": list(self.classes), **numbers}


UNNAMED = Names()
"""The names of a run with unnamed groups and classes."""


def names_of_plan(plan: Mapping[str, Any], columns: Columns | None = None) -> Names:
    """The names that a run began with, by its plan.json; else those of declared columns; else none."""
    if isinstance(names := plan.get("names"), Mapping):
        column = None if columns is None else columns.target
        return replace(names_from(names), target="" if column is None else column.name)
    return UNNAMED if columns is None else names_of(columns)


def names_of(columns: Columns) -> Names:
    """The declared names, with those of the predicted number or class column."""
    predicted = "" if columns.units is None else columns.targets[0].name
    target = "" if columns.target is None else columns.target.name
    return Names(columns.groups, columns.classes, columns.positive, predicted, target)


def names_from(plain: Any) -> Names:
    """The names in JSON, as `Names.plain` writes them; `UNNAMED` for another value."""
    if not isinstance(plain, Mapping):
        return UNNAMED
    positive = plain.get("positive")
    return Names(
        _texts(plain.get("groups")),
        _texts(plain.get("classes")),
        positive if type(positive) is int else None,
        str(plain.get("predicted") or ""),
    )


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list) else ()
