"""What kind of values a column seems to hold, by the form of its cells; a look at records that their operator allows.

Which kind was found is written into a declaration, which is public: nothing here is called unless the operator said
that the data are public, or that the kinds of their columns may be. The names of columns are public.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.columns.texts import FALSE, TRUE
from fedsw.data import BadRecords
from fedsw.data.formats import SEPARATORS

MISSING = ("", "NA", "N/A", "NaN", "nan", "?", "null", "NULL", "None")
"""Cells that mostly stand for a missing value."""

_FORMATS = (None, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d")
_TRUTHS = frozenset((*TRUE, *FALSE)) - {"1", "0"}


@dataclass(frozen=True)
class Form:
    """What the cells of a column look like.

    Attributes:
        kind: "number", "integer", "boolean", "date" or "text".
        format: how dates are written; None for ISO 8601.
        missing: the cells among `MISSING` that occur.
        comma: whether numbers have decimal commas.
    """

    kind: str
    format: str | None = None
    missing: tuple[str, ...] = ()
    comma: bool = False


def read_header(path: Path) -> tuple[list[str], str]:
    """Names of the columns of a CSV file, and what parts them; its records are not looked at.

    Raises:
        BadRecords: if it is no CSV file, or has no header.
    """
    if path.suffix.lower() != ".csv":
        raise BadRecords(f"{path}: a declaration is drafted from CSV tables; write it as CSV, or declare it by hand")
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline()
    separator = max(SEPARATORS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    if not any(names):
        raise BadRecords(f"{path} is empty; its first row must name the columns")
    return names, separator


def read_cells(path: Path, separator: str) -> Mapping[str, list[str]]:
    """All cells of a CSV file by column, as text without spaces around it; rows of another length are left out."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        names = [name.strip() for name in next(rows, [])]
        kept = [row for row in rows if len(row) == len(names)]
    return {name: [row[place].strip() for row in kept] for place, name in enumerate(names)}


def form_of(cells: Iterable[str]) -> Form:
    """The narrowest kind that every cell but the missing ones is of."""
    given = list(cells)
    missing = tuple(dict.fromkeys(cell for cell in given if cell in MISSING))
    values = {cell for cell in given if cell not in MISSING}
    if values and all(value.lower() in _TRUTHS for value in values):
        return Form("boolean", missing=missing)
    for comma in (False, True):
        numbers = [as_number(value, comma=comma) for value in values]
        if values and all(number is not None for number in numbers):
            whole = all(number is not None and number.is_integer() for number in numbers)
            return Form("integer" if whole else "number", missing=missing, comma=comma)
    for written in _FORMATS:
        if values and all(as_date(value, written) is not None for value in values):
            return Form("date", format=written, missing=missing)
    return Form("text", missing=missing)


def as_number(text: str, *, comma: bool) -> float | None:
    """The number behind a text; None if it is none."""
    if "_" in text or (comma and "." in text):
        return None
    try:
        value = float(text.replace(",", ".", 1) if comma else text)
    except ValueError:
        return None
    return value if abs(value) < 1e30 else None


def as_date(text: str, written: str | None) -> datetime.date | None:
    """The date behind a text; None if it is none."""
    try:
        if written is None:
            return datetime.date.fromisoformat(text) if "-" in text else None
        return datetime.datetime.strptime(text, written).date()
    except ValueError:
        return None


def distinct(cells: Sequence[str]) -> list[str]:
    """The values of a column but the missing ones, in their natural order."""
    return sorted({cell for cell in cells if cell not in MISSING})
