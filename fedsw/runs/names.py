"""What groups, classes and strata are called for people: by their declared names, "female" and not "A=0"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw.columns import Columns
from fedsw.runs.files import PLAN, found_json

_CELL = re.compile(r"(?:Y=(\d+),)?A=(\d+)")


@dataclass(frozen=True)
class Names:
    """Declared names of groups and classes, by their numbers; empty where nobody declared any."""

    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def group(self, number: int) -> str:
        """The name of a group, "A=2" without one."""
        return self.groups[number] if 0 <= number < len(self.groups) else f"A={number}"

    def label(self, number: int) -> str:
        """The name of a class, "Y=2" without one."""
        return self.classes[number] if 0 <= number < len(self.classes) else f"Y={number}"

    def cell(self, cell: str) -> str:
        """The name of a stratum: "female" for "A=0", "high,female" for "Y=1,A=0"; others as they are."""
        found = _CELL.fullmatch(cell)
        if found is None:
            return cell
        label = "" if found[1] is None else f"{self.label(int(found[1]))},"
        return label + self.group(int(found[2]))

    def plain(self) -> dict[str, list[str]]:
        """For JSON."""
        return {"groups": list(self.groups), "classes": list(self.classes)}


def names_in(directory: Path, columns: Columns | None = None) -> Names:
    """The names that a run began with; else those of declared columns; else none."""
    found = found_json(directory / PLAN).get("names")
    if isinstance(found, Mapping):
        return Names(_texts(found.get("groups")), _texts(found.get("classes")))
    return Names() if columns is None else Names(columns.groups, columns.classes)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list) else ()
