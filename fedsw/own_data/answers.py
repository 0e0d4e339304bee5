"""What kind of values a column seems to hold, by the form of its cells; a look at records that their operator allows.

Which kind was found is written into a declaration, which is public: nothing here is called unless the operator said
that the data are public, or that the kinds of their columns may be. The names of columns are public.
"""

from __future__ import annotations

import csv
import datetime
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from fedsw.columns.date import date_in
from fedsw.columns.kind import Spelling
from fedsw.columns.number import as_float
from fedsw.columns.values import FALSE, TRUE
from fedsw.data import BadRecords
from fedsw.data.blocks import is_text
from fedsw.data.cells import MISSING
from fedsw.data.formats import SEPARATORS, damaged, parquet_of
from fedsw.settings import ExperimentError

_FORMATS = (None, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d")
_TRUTHS = frozenset((*TRUE, *FALSE)) - {"1", "0"}


@dataclass(frozen=True)
class ColumnForm:
    """What the cells of a column look like: their kind, how dates are written, which of `MISSING` occur, commas."""

    kind: str
    format: str | None = None
    missing: tuple[str, ...] = ()
    comma: bool = False


def read_header(path: Path) -> tuple[list[str], str]:
    """Names of the columns of a table, and what parts them; its records are not looked at."""
    if path.suffix.lower() == ".parquet":
        with damaged(path, "Parquet file"):
            return list(parquet_of(path).read_schema(path).names), ","
    if not is_text(path):
        raise BadRecords(
            f"{path}: a declaration is drafted from a table of text (.csv, .tsv or .txt) or Parquet; write it as one, "
            "or declare it by hand"
        )
    with _text_of(path) as file:
        line = file.readline()
    separator = max(SEPARATORS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    if not any(names):
        raise BadRecords(f"{path} is empty; its first row must name the columns")
    return names, separator


def read_cells(path: Path, separator: str) -> Mapping[str, list[str]]:
    """All cells of a table by column, as text without spaces around it; rows of another length are left out."""
    if path.suffix.lower() == ".parquet":
        with damaged(path, "Parquet file"):
            table = parquet_of(path).read_table(path).to_pydict()
        return {name: [_as_text(cell) for cell in cells] for name, cells in table.items()}
    with _text_of(path) as file:
        rows = csv.reader(file, delimiter=separator)
        names = [name.strip() for name in next(rows, [])]
        kept = [row for row in rows if len(row) == len(names)]
    return {name: [row[place].strip() for row in kept] for place, name in enumerate(names)}


def _as_text(cell: object) -> str:
    """A cell as a table of text has it: a date without its time, an empty one for none."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat()
    return str(cell).strip()


@contextmanager
def _text_of(path: Path) -> Iterator[IO[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield file
        except UnicodeDecodeError:
            raise BadRecords(f"{path} is not UTF-8 ({_seems(path)}); save the file as UTF-8") from None


def _seems(path: Path) -> str:
    with path.open("rb") as file:
        mark = file.read(2)
    return "it begins as UTF-16 does" if mark in (b"\xff\xfe", b"\xfe\xff") else "another encoding of text"


def form_of(cells: Iterable[str]) -> ColumnForm:
    """The narrowest kind that every cell but the missing ones is of."""
    given = list(cells)
    missing = tuple(dict.fromkeys(cell for cell in given if cell in MISSING))
    values = {cell for cell in given if cell not in MISSING}
    if values and all(value.lower() in _TRUTHS for value in values):
        return ColumnForm("boolean", missing=missing)
    for comma in (False, True):
        numbers = [as_number(value, comma=comma) for value in values]
        if values and all(number is not None for number in numbers):
            whole = all(number is not None and number.is_integer() for number in numbers)
            return ColumnForm("integer" if whole else "number", missing=missing, comma=comma)
    for written in _FORMATS:
        if values and all(is_date(value, written) for value in values):
            return ColumnForm("date", format=written, missing=missing)
    return ColumnForm("text", missing=missing)


def fitting(values: Collection[str], forms: Collection[str]) -> frozenset[str]:
    """Which of some forms (names of `FORMS`) all values are of; each is asked until one of them does not fit."""
    return frozenset(form for form in forms if all(map(FORMS[form], values)))


def as_number(text: str, *, comma: bool) -> float | None:
    """The number behind a text; None if it is none."""
    value = as_float(text, Spelling("," if comma else "."))
    return value if abs(value) < 1e30 else None


def as_date(text: str, written: str | None) -> datetime.date | None:
    """The date behind a text; None if it is none, or digits alone."""
    return None if written is None and "-" not in text else date_in(text, written)


def is_date(text: str, written: str | None) -> bool:
    """Whether a text is a date that is written so."""
    return as_date(text, written) is not None


FORMS: Mapping[str, Callable[[str], bool]] = {
    "truth": lambda value: value.lower() in _TRUTHS,
    "number": lambda value: as_number(value, comma=False) is not None,
    "number with a comma": lambda value: as_number(value, comma=True) is not None,
    **{f"date {written}": functools.partial(is_date, written=written) for written in _FORMATS},
}
"""What a value that is no text may be; the cells of a column are text if they are of none of these together."""


def distinct(cells: Sequence[str]) -> list[str]:
    """The values of a column but the missing ones, in their natural order."""
    return sorted({cell for cell in cells if cell not in MISSING})


MOST_CATEGORIES = 100
"""Most categories that are read off a public table; a column with more is left out of the inputs."""

Ask = Callable[[str], str]
"""Asks a person at a terminal; an empty answer leaves a blank."""


@dataclass(frozen=True)
class ColumnAnswer:
    """What is declared of one column; None where it is left blank.

    Bounds are as they are written in TOML; where it is ``cut``, one outside counts as the nearer; `source` is
    where that came from, for a comment.
    """

    kind: str | None = None
    low: str | None = None
    high: str | None = None
    categories: tuple[str, ...] = ()
    format: str | None = None
    missing: tuple[str, ...] = ()
    fill: str | None = None
    cut: bool = False
    source: str = ""


@dataclass(frozen=True)
class Words:
    """What the command line says of columns, before what a code book (`book`) does."""

    bounds: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    booleans: Sequence[str] = ()
    integers: Sequence[str] = ()
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: Sequence[str] = ()
    book: Mapping[str, ColumnAnswer] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Every column that is spoken of."""
        mappings = (self.bounds, self.categories, self.dates, self.edges, self.book)
        return set().union(*mappings, self.booleans, self.integers, self.drop)


def read_bounds(text: str) -> tuple[str, tuple[str, str]]:
    """`age=17:90` as a column and its bounds."""
    name, sign, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    numbers = [as_number(bound.strip(), comma=False) for bound in (low, high)]
    dates = [as_date(bound.strip(), None) for bound in (low, high)]
    if not (sign and colon and name.strip()) or (None in numbers and None in dates):
        raise ExperimentError(f"--bounds {text!r} cannot be read; write COLUMN=LOW:HIGH, as in age=17:90")
    return name.strip(), (low.strip(), high.strip())


def read_list(text: str, option: str) -> tuple[str, tuple[str, ...]]:
    """`job=a,b,c` as a column and its values."""
    name, sign, values = text.partition("=")
    listed = tuple(value.strip() for value in values.split(",") if value.strip())
    if not (sign and name.strip() and listed):
        raise ExperimentError(f"{option} {text!r} cannot be read; write COLUMN=A,B,C, as in job=clerk,nurse,other")
    return name.strip(), listed


def answer(
    name: str,
    words: Words,
    *,
    public: Sequence[str] | None,
    origin: str,
    guessed: ColumnForm | None,
    ask: Ask | None,
    classes: bool,
) -> ColumnAnswer:
    """What is declared of a column: as the command line says, then a public table, then a person; else a blank.

    Of its cells in a ``public`` table, whose ``origin`` goes into a comment; of the form of its private cells where the
    operator allowed a look (``guessed``). ``classes`` are groups or classes whatever their values look like.
    """
    if name in words.categories:
        return ColumnAnswer("text", categories=words.categories[name], source="given with --categories")
    if name in words.booleans:
        return ColumnAnswer("boolean", source="given with --boolean")
    if name in words.bounds:
        low, high = words.bounds[name]
        whole = "integer" if name in words.integers else _number_kind(guessed)
        kind = "date" if name in words.dates or as_date(low, None) else whole
        return with_missing(
            ColumnAnswer(kind, low, high, format=words.dates.get(name), source="given with --bounds"), guessed
        )
    if name in words.book:
        said = words.book[name]
        values = said.categories or (("0", "1") if said.kind == "boolean" else ())  # truth values are two classes
        return ColumnAnswer("text", categories=values, source=said.source) if classes else said
    if public is not None:
        return _read_off(public, origin, classes=classes)
    if ask is not None:
        return _asked(name, guessed, ask, classes=classes)
    form = "text" if classes else None if guessed is None else guessed.kind
    written = words.dates.get(name, None if guessed is None else guessed.format)
    found = ColumnAnswer(
        "date" if name in words.dates else form, format=written, source="its kind by the form of its values"
    )
    return with_missing(found if form else ColumnAnswer(), guessed)


def _number_kind(guessed: ColumnForm | None) -> str:
    return guessed.kind if guessed is not None and guessed.kind == "integer" else "number"


def _read_off(cells: Sequence[str], origin: str, *, classes: bool) -> ColumnAnswer:
    form, values = form_of(cells), distinct(cells)
    source = f"read off {origin}"
    if classes or form.kind == "text":
        return ColumnAnswer("text", categories=tuple(values), missing=() if classes else form.missing, source=source)
    if form.kind == "boolean":
        return with_missing(ColumnAnswer("boolean", source=source), form)
    if form.kind == "date":
        dates = sorted(date for value in values if (date := as_date(value, form.format)) is not None)
        found = ColumnAnswer("date", dates[0].isoformat(), dates[-1].isoformat(), format=form.format, source=source)
        return with_missing(found, form)
    numbers = [number for value in values if (number := as_number(value, comma=form.comma)) is not None]
    low, high = (_written(bound, whole=form.kind == "integer") for bound in (min(numbers), max(numbers)))
    return with_missing(ColumnAnswer(form.kind, low, high, source=source), form)


def _asked(name: str, guessed: ColumnForm | None, ask: Ask, *, classes: bool) -> ColumnAnswer:
    seems = "" if guessed is None else f" (it seems to hold {guessed.kind})"
    what = "its values, a,b,c" if classes else "its bounds, LOW:HIGH, or its categories, a,b,c"
    said = ask(f"column {name}{seems}: {what}, from a code book; Enter leaves it blank").strip()
    if not said:
        return ColumnAnswer("text" if classes else None if guessed is None else guessed.kind)
    if ":" in said and not classes:
        low, high = read_bounds(f"{name}={said}")[1]
        kind = "date" if as_date(low, None) else _number_kind(guessed)
        return with_missing(ColumnAnswer(kind, low, high, source="given by its operator"), guessed)
    return ColumnAnswer("text", categories=read_list(f"{name}={said}", "the answer")[1], source="given by its operator")


def with_missing(found: ColumnAnswer, form: ColumnForm | None, fill: str | None = None) -> ColumnAnswer:
    """The same with the missing cells that the form has, filled as given or in the middle of the bounds."""
    if form is None or not form.missing or found.kind is None:
        return found
    known = (cell for cell in MISSING if cell in form.missing)
    missing = tuple(dict.fromkeys((*known, *form.missing)))
    return replace(found, missing=missing, fill=_middle(found) if fill is None else fill)


def _middle(found: ColumnAnswer) -> str | None:
    if found.kind == "text":
        return None
    if found.kind == "boolean":
        return "0"
    if found.low is None or found.high is None:
        return None
    dates = as_date(found.low, None), as_date(found.high, None)
    if dates[0] is not None and dates[1] is not None:
        return (dates[0] + (dates[1] - dates[0]) / 2).isoformat()
    low, high = as_number(found.low, comma=False), as_number(found.high, comma=False)
    assert low is not None and high is not None
    return _written((low + high) / 2, whole=found.kind == "integer")


def _written(value: float, *, whole: bool) -> str:
    return str(round(value)) if whole else repr(value)
