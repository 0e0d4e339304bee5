"""What an operator says about the columns of a table: bounds, categories, kinds; each with where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedsw.owndata.forms import MISSING, Form, as_date, as_number, distinct, form_of
from fedsw.settings import ExperimentError

MOST_CATEGORIES = 100
"""Most categories that are read off a public table; a column with more is left out of the inputs."""

Ask = Callable[[str], str]
"""Asks a person at a terminal; an empty answer leaves a blank."""


@dataclass(frozen=True)
class Answer:
    """What is declared of one column; None where it is left blank.

    Attributes:
        kind: "number", "integer", "boolean", "date", "text" or None.
        low, high: bounds, as they are written in TOML.
        categories: the values of a column of text.
        source: where that came from, for a comment.
    """

    kind: str | None = None
    low: str | None = None
    high: str | None = None
    categories: tuple[str, ...] = ()
    format: str | None = None
    missing: tuple[str, ...] = ()
    fill: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Words:
    """What the command line says of columns: bounds, categories, dates, truth values, edges, and what is left out."""

    bounds: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    booleans: Sequence[str] = ()
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: Sequence[str] = ()

    @property
    def names(self) -> set[str]:
        """Every column that is spoken of."""
        return {*self.bounds, *self.categories, *self.dates, *self.booleans, *self.edges, *self.drop}


def read_bounds(text: str) -> tuple[str, tuple[str, str]]:
    """`age=17:90` as a column and its bounds.

    Raises:
        ExperimentError: showing how they are written.
    """
    name, sign, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    numbers = [as_number(bound.strip(), comma=False) for bound in (low, high)]
    dates = [as_date(bound.strip(), None) for bound in (low, high)]
    if not (sign and colon and name.strip()) or (None in numbers and None in dates):
        raise ExperimentError(f"--bounds {text!r} cannot be read; write COLUMN=LOW:HIGH, as in age=17:90")
    return name.strip(), (low.strip(), high.strip())


def read_list(text: str, option: str) -> tuple[str, tuple[str, ...]]:
    """`job=a,b,c` as a column and its values.

    Raises:
        ExperimentError: showing how they are written.
    """
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
    guessed: Form | None,
    ask: Ask | None,
    classes: bool,
) -> Answer:
    """What is declared of a column: as the command line says, then a public table, then a person; else a blank.

    Args:
        public: the column's cells in a public table; None without one.
        origin: what that table is, for a comment.
        guessed: the form of its private cells, where the operator allowed a look at it.
        classes: whether its values are groups or classes, whatever they look like.
    """
    if name in words.categories:
        return Answer("text", categories=words.categories[name], source="given with --categories")
    if name in words.booleans:
        return Answer("boolean", source="given with --boolean")
    if name in words.bounds:
        low, high = words.bounds[name]
        kind = "date" if name in words.dates or as_date(low, None) else _number_kind(guessed)
        return _with_missing(
            Answer(kind, low, high, format=words.dates.get(name), source="given with --bounds"), guessed
        )
    if public is not None:
        return _read_off(public, origin, classes=classes)
    if ask is not None:
        return _asked(name, guessed, ask, classes=classes)
    form = "text" if classes else None if guessed is None else guessed.kind
    written = words.dates.get(name, None if guessed is None else guessed.format)
    found = Answer("date" if name in words.dates else form, format=written, source="its kind by the form of its values")
    return _with_missing(found if form else Answer(), guessed)


def _number_kind(guessed: Form | None) -> str:
    return guessed.kind if guessed is not None and guessed.kind == "integer" else "number"


def _read_off(cells: Sequence[str], origin: str, *, classes: bool) -> Answer:
    form, values = form_of(cells), distinct(cells)
    source = f"read off {origin}"
    if classes or form.kind == "text":
        return Answer("text", categories=tuple(values), missing=() if classes else form.missing, source=source)
    if form.kind == "boolean":
        return _with_missing(Answer("boolean", source=source), form)
    if form.kind == "date":
        dates = sorted(date for value in values if (date := as_date(value, form.format)) is not None)
        found = Answer("date", dates[0].isoformat(), dates[-1].isoformat(), format=form.format, source=source)
        return _with_missing(found, form)
    numbers = [number for value in values if (number := as_number(value, comma=form.comma)) is not None]
    low, high = (_written(bound, whole=form.kind == "integer") for bound in (min(numbers), max(numbers)))
    return _with_missing(Answer(form.kind, low, high, source=source), form)


def _asked(name: str, guessed: Form | None, ask: Ask, *, classes: bool) -> Answer:
    seems = "" if guessed is None else f" (it seems to hold {guessed.kind})"
    what = "its values, a,b,c" if classes else "its bounds, LOW:HIGH, or its categories, a,b,c"
    said = ask(f"column {name}{seems}: {what}, from a code book; Enter leaves it blank").strip()
    if not said:
        return Answer("text" if classes else None if guessed is None else guessed.kind)
    if ":" in said and not classes:
        low, high = read_bounds(f"{name}={said}")[1]
        kind = "date" if as_date(low, None) else _number_kind(guessed)
        return _with_missing(Answer(kind, low, high, source="given by its operator"), guessed)
    return Answer("text", categories=read_list(f"{name}={said}", "the answer")[1], source="given by its operator")


def _with_missing(found: Answer, form: Form | None) -> Answer:
    """The same with the missing cells that the form has, and a fill in the middle of the bounds."""
    if form is None or not form.missing or found.kind is None:
        return found
    return Answer(
        found.kind,
        found.low,
        found.high,
        found.categories,
        found.format,
        tuple(cell for cell in MISSING if cell in form.missing),
        _middle(found),
        found.source,
    )


def _middle(found: Answer) -> str | None:
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
