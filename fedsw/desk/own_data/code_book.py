"""A code book: what an operator declares of every column of a table, in one CSV or JSON file in place of many flags."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsw._tools.settings import ExperimentError
from fedsw._tools.text import nearest
from fedsw.data.columns.column import Spelling
from fedsw.data.columns.date import date_in
from fedsw.data.columns.number import as_number
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import normal
from fedsw.desk.own_data._dictionaries import REDCAP, of_redcap, of_schema, of_spss
from fedsw.desk.own_data.answers import ColumnAnswer, ColumnForm, as_date, read_header, require_order, with_missing
from fedsw.desk.own_data.examine import named_as_identifier

FIELDS = (
    "column", "role", "kind", "low", "high", "categories", "edges", "format", "missing", "fill", "outside", "unit",
    "positive",
)  # fmt: skip
"""Fields of a code book, one line for each column; all but the first may be left out or empty."""
ROLES = ("input", "group", "target", "person", "leave out")
_TEXT = "text"
"""The word for a column of categories."""
OUTSIDE = ("refuse", "cut")

_LISTS = ("categories", "edges", "missing")
_BETWEEN = "|"


@dataclass(frozen=True)
class CodeBookEntry:
    """A line of a code book: a column's role and declaration, a group's `edges`, the `positive` class of a target."""

    column: str
    role: str
    answer: ColumnAnswer
    edges: tuple[str, ...] = ()
    positive: str | None = None


@dataclass(frozen=True)
class CodeBook:
    """The entries of a code book by column."""

    entries: Mapping[str, CodeBookEntry] = field(default_factory=dict)
    name: str = ""
    foreign: bool = False
    """True for a dictionary of another program, which may describe columns that the tables do not have."""

    def with_role(self, role: str) -> str | None:
        """The column of a role that one column has; None if none does."""
        return next((entry.column for entry in self.entries.values() if entry.role == role), None)

    @property
    def positive(self) -> str | None:
        """The favourable class of the target, where it is said."""
        return next((entry.positive for entry in self.entries.values() if entry.role == "target"), None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are not inputs."""
        return tuple(entry.column for entry in self.entries.values() if entry.role == "leave out")


def read_code_book(path: Path | None) -> CodeBook:
    """Read a code book from a CSV file with the header `FIELDS` or some of them, or from a JSON list of such objects.

    Without a path it has no entries. A data dictionary of REDCap (CSV), a Frictionless Table Schema (JSON) and SPSS
    syntax (.sps: VALUE LABELS, MISSING VALUES) are read as they are; see `fedsw.desk.own_data._dictionaries`.

    Several categories, edges or missing cells are parted by "|"; in JSON they may be lists. Missing cells "|",
    or true, is the empty cell.
    ExperimentError names every row, column and value that cannot be read, with what is expected.
    """
    if path is None:
        return CodeBook()
    if not path.is_file():
        raise FileNotFoundError(f"there is no code book {path}; --code-book-template FILE writes one to fill in")
    entries: dict[str, CodeBookEntry] = {}
    faults: list[str] = []
    foreign, rows = _rows(path)
    for where, row in rows:
        try:
            entry = _entry(row, where, path.name)
        except ExperimentError as fault:
            faults.append(str(fault))
            continue
        if entry.column in entries:
            faults.append(f"{where} describes column {entry.column!r} a second time; keep one line of it")
        for role in ("group", "target", "person"):
            if entry.role == role and (other := CodeBook(entries).with_role(role)) is not None:
                faults.append(f"{where} gives {entry.column!r} the role {role!r}, which {other!r} has already")
        entries[entry.column] = entry
    if faults:
        raise ExperimentError("\n".join(faults))
    if not entries:
        raise ExperimentError(f"{path} describes no column; --code-book-template FILE writes one to fill in")
    return CodeBook(entries, path.name, foreign)


def template_of(table: Path, roles: Mapping[str, str]) -> tuple[str, list[str]]:
    """Draft a code book with the columns of a table; return it with those that look like identifiers and have no role.

    Of the table the first row is read only, which names the columns.
    """
    names, _ = read_header(table)
    return template(names, roles), [name for name in names if named_as_identifier(name) and name not in roles]


def template(names: Sequence[str], roles: Mapping[str, str]) -> str:
    """A code book as CSV with a line for each column, to be filled in; what looks like an identifier is left out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for name in names:
        proposed = "leave out" if named_as_identifier(name) else "input"
        writer.writerow([name, roles.get(name, proposed), *[""] * (len(FIELDS) - 2)])
    return text.getvalue()


def _rows(path: Path) -> tuple[bool, Iterator[tuple[str, Mapping[str, Any]]]]:
    """The rows of a code book with their places; True for a dictionary of another program."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} is not UTF-8; save the code book as UTF-8") from None
    if path.suffix.lower() == ".json":
        try:
            objects = json.loads(text)
        except ValueError as fault:
            raise ExperimentError(f"{path} is no JSON: {fault}") from None
        if isinstance(objects, dict) and ("fields" in objects or "resources" in objects):
            return True, of_schema(str(path), objects)
        if not isinstance(objects, list) or not all(isinstance(entry, dict) for entry in objects):
            raise ExperimentError(
                f'{path} is no list of objects; write [{{"column": "age", "low": 0, "high": 120}}, ...]'
            )
        entries = {f"{path}, entry {number}": entry for number, entry in enumerate(objects, start=1)}
        for where, entry in entries.items():
            _require_fields(tuple(entry), where)
        return False, iter(
            (where, {name.strip().lower(): value for name, value in entry.items()}) for where, entry in entries.items()
        )
    if path.suffix.lower() == ".sps":
        return True, of_spss(str(path), text)
    if text.lstrip('"').lower().startswith(REDCAP):
        return True, of_redcap(str(path), text)
    return False, _lines(path, text)


def _lines(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text), delimiter=separator)
    _require_fields(reader.fieldnames or (), str(path))
    for row in reader:
        if None in row or None in row.values():
            raise ExperimentError(f"{path}, line {reader.line_num} has not as many cells as the first line")
        if any(cell.strip() for cell in row.values()):
            cells = {name.strip().lower(): cell for name, cell in row.items()}
            # A spreadsheet that parts cells by another mark writes decimal commas: points take their place in cells
            # of numbers only.
            for name in () if separator == "," else _NUMBERS & cells.keys():
                parts = [part.strip() for part in cells[name].split(_BETWEEN)]
                if all(
                    as_number(part) is not None or as_number(part, Spelling(",")) is not None for part in parts if part
                ):
                    cells[name] = cells[name].replace(",", ".")
            yield f"{path}, line {reader.line_num}", cells


_NUMBERS = frozenset(("low", "high", "fill", "edges"))


def _require_fields(names: Sequence[str], where: str) -> None:
    stripped = [name.strip().lower() for name in names]
    for name in stripped:
        if name not in FIELDS:
            raise ExperimentError(
                f"{where} has the field {name!r}; {nearest(name, list(FIELDS))}a code book has {', '.join(FIELDS)}"
            )
    if "column" not in stripped:
        raise ExperimentError(f"{where} has no field 'column', the name of the column that a line describes")


def _entry(row: Mapping[str, Any], where: str, book: str) -> CodeBookEntry:
    text = {name: _as_text(row.get(name)) for name in FIELDS if name not in _LISTS}
    lists = {name: _as_list(row.get(name)) for name in _LISTS}
    truth = _as_text(row.get("missing")).lower()
    if truth in ("true", "false"):  # the empty cell is missing, or none is, as in a declaration
        lists["missing"] = ("",) if truth == "true" else ()
    text |= {name: text[name].lower() for name in ("role", "kind", "outside")}
    column, role, kind = normal(text["column"]), text["role"] or "input", text["kind"]
    if not column:
        raise ExperimentError(f"{where} names no column")
    outside = text["outside"] or OUTSIDE[0]
    fixed = ((role, ROLES, "role"), (kind, ("", _TEXT, *KINDS.names()), "kind"), (outside, OUTSIDE, "outside"))
    faults = [
        f"{where}: the {what} of {column!r} is {value!r}; write one of {', '.join(filter(None, known))}"
        for value, known, what in fixed
        if value not in known
    ]
    kind = {_TEXT: "category"}.get(kind, kind)
    if not kind and not lists["categories"] and ("%" in text["format"] or as_date(text["low"]) is not None):
        kind = "date"
    if kind in KINDS.names() and KINDS.get(kind).stored == "days":  # its bounds may be written as its cells are
        for end in ("low", "high"):
            day = date_in(text[end], text["format"]) if text["format"] and text[end] else None
            text[end] = text[end] if day is None else day.isoformat()
    if not faults:
        faults = [f"{where}: {fault}" for fault in _faults(column, kind, text, lists)]
    if faults:
        raise ExperimentError("\n".join(faults))
    form = kind or ("category" if lists["categories"] else "number" if text["low"] else None)
    said = ColumnAnswer(
        form,
        text["low"] or None,
        text["high"] or None,
        lists["categories"],
        text["format"] or None,
        cut=outside == "cut",
        source=f"from {book}",
        units=text["unit"],
    )
    if lists["missing"] and form is not None:
        said = with_missing(
            said, ColumnForm(form, missing=dict.fromkeys(lists["missing"], 0)), fill=text["fill"] or None
        )
    return CodeBookEntry(column, role, said, lists["edges"], text["positive"] or None)


def _faults(column: str, kind: str, text: Mapping[str, str], lists: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    low, high, categories = text["low"], text["high"], lists["categories"]
    for name in ("categories", "missing"):
        if len(lists[name]) == 1 and (apart := next((mark for mark in ";,\t" if mark in lists[name][0]), None)):
            yield (
                f"{name} of {column!r} are {lists[name][0]!r}, one value with {apart!r} in it; part several "
                f"by {_BETWEEN!r}: {_BETWEEN.join(part.strip() for part in lists[name][0].split(apart))}"
            )
    if len(categories) == 1 and text["role"] != "leave out":
        yield (
            f"column {column!r} has one category, {categories[0]!r}, which tells nothing; write all, parted by "
            f"{_BETWEEN!r}, or give it the role 'leave out'"
        )
    if text["outside"] and not low:
        yield f"column {column!r} has outside and no bounds; give low and high"
    if bool(low) != bool(high):
        yield f"column {column!r} has one bound; give low and high"
    if low and categories:
        yield f"column {column!r} has bounds and categories; keep one of them"
    reader = KINDS.get(kind or ("category" if categories else "number"))
    if low and not reader.bounded:
        yield f"column {column!r} is of kind {reader.name!r}, which has no bounds; leave them out"
    elif low and high:
        if (odd := next((bound for bound in (low, high) if reader.bound_of(bound) is None), None)) is not None:
            what = "a date, as 2024-05-31" if reader.stored == "days" else "a number, as 17 or 0.5"
            yield f"a bound of {column!r} is {odd!r}; write {what}"
        else:
            try:
                require_order(f"column {column!r}", reader, low, high)
            except ExperimentError as fault:
                yield str(fault)
    if categories and not reader.listing:
        yield f"column {column!r} has categories, and kind {kind!r}; write 'text'"
    if text["format"] and not reader.formatted:
        yield f"column {column!r} has a format, which belongs to dates and truth values; write their kind"
    if (positive := text["positive"]) and text["role"] != "target":
        yield f"column {column!r} has positive {positive!r}, the favourable class of the target; leave it out"
    for edge in lists["edges"]:
        if as_number(edge) is None:
            yield f"an edge of {column!r} is {edge!r}; write numbers, as 30|50"


def _as_text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _as_list(value: Any) -> tuple[str, ...]:
    """Parts of a cell, or of a list, each once; "" among missing cells stands for the empty cell, "|" alone as well."""
    if isinstance(value, list):
        return tuple(str(part) for part in value)
    text = _as_text(value)
    return tuple(dict.fromkeys(part.strip() for part in text.split(_BETWEEN))) if text else ()
