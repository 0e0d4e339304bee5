"""Columns as they were understood: a line for each column, with what changes it; on screens, in drafts, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsw.data.cells import MISSING
from fedsw.data.columns.column import Spelling
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Number
from fedsw.data.columns.registered import KINDS
from fedsw.desk.own_data.answers import ColumnAnswer
from fedsw.experiment.load import BLANK
from fedsw.runs.report.document import Listed

CAPTION = "What I understood"
_MOST_VALUES, _MOST_LINES = 6, 60


@dataclass(frozen=True)
class Understood:
    """A column's ``role``, what was understood of it, and the option or line of TOML that changes that.

    ``look`` says why a person has to look: it was left out, guessed between two readings, or is to be filled in.
    """

    column: str
    role: str
    understood: str
    change: str
    look: str = ""


def of_answer(column: str, role: str, declared: ColumnAnswer) -> Understood:
    """The line of a column as a draft declares it."""
    kind = None if declared.kind is None else KINDS.get(declared.kind)
    listing, bounded = kind is not None and kind.listing, kind is not None and kind.bounded
    blank = kind is None or (listing and not declared.categories) or (bounded and declared.low is None)
    look = "fill in" if declared.doubt or blank else ""
    odd = [cell for cell in declared.missing if cell not in MISSING or _may_be_value(cell, declared.categories)]
    if odd and declared.source.startswith("read off"):
        look = look or f"taken for missing: {', '.join(map(repr, odd[:_MOST_VALUES]))}"
    if declared.merged:
        look = look or f"taken for one value: {declared.merged}"
    return Understood(column, role, "; ".join(_of_answer(declared)), _option(column, declared.kind), look)


def _may_be_value(marker: str, values: Sequence[str]) -> bool:
    """Say whether a word for missing cells may be one of a column's values: NA among codes, None among words."""
    letters = bool(values) and marker.isalpha() and all(value.replace(" ", "").isalpha() for value in values)
    return letters and (
        marker == "None" or all(len(value) <= 3 and value.isupper() == marker.isupper() for value in values)
    )


def _of_answer(declared: ColumnAnswer) -> Iterator[str]:
    if declared.kind is None:
        yield "not known"
        return
    bounds = "" if declared.low is None else f" {declared.low} to {declared.high}"
    yield f"{declared.kind}{bounds}"
    yield from _values(declared.categories)
    yield from _spelt(declared.same, declared.empty)
    if declared.format is not None and declared.format != BLANK:
        yield f"written {declared.format}"
    if declared.spelling is not None:
        yield from _numerals(declared.spelling)
    if declared.missing:
        yield _missing(declared.missing, declared.fill)
    if declared.doubt:
        yield declared.doubt


def _values(values: Sequence[str]) -> Iterator[str]:
    if values:
        more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        yield ", ".join(map(repr, values[:_MOST_VALUES])) + more


def _spelt(same: Sequence[tuple[str, tuple[str, ...]]], empty: str | None) -> Iterator[str]:
    for value, others in same:
        yield f"{', '.join(map(repr, others))} count as {value!r}"
    if empty is not None:
        yield f"an empty cell is {empty!r}"


def _numerals(spelling: Spelling) -> Iterator[str]:
    if spelling.decimal != ".":
        yield "decimal commas"
    if spelling.thousands and spelling.thousands != BLANK:
        yield f"{spelling.thousands!r} between thousands"


def _missing(missing: Sequence[str], fill: object) -> str:
    cells = ", ".join(repr(cell) if cell else "empty" for cell in missing)
    return f"missing: {cells}" + ("" if fill is None else f", as {fill}")


def _option(column: str, kind: str | None) -> str:
    if kind is None:
        return f"--bounds {column}=LOW:HIGH or --categories {column}=A,B"
    known = KINDS.get(kind)
    if known.listing:
        return f"--categories {column}=A,B"
    if known.stored == "days":
        return f"--bounds {column}=LOW:HIGH, --dates {column}=FORMAT"
    return f"--bounds {column}=LOW:HIGH" if known.bounded else f"--categories {column}=A,B"


def of_columns(columns: Columns) -> list[Understood]:
    """The lines of a declaration, with the keys of [data.columns] that change each."""
    unit = "every row is another person's" if columns.unit is None else "all rows with one value are one person's"
    lines = [Understood(columns.unit or "(rows)", "privacy unit", unit, "unit in [data]")]
    if (group := columns.sensitive) is not None:
        parts = [", ".join(group.groups), *_spelt(group.same, group.empty)]
        parts += [f"{' and '.join(group.columns)} together"] if group.of else []
        lines.append(Understood(group.name, "group", "; ".join(parts), "sensitive: values, edges, same"))
    if (target := columns.target) is not None:
        parts = [*_values(target.values), *_spelt(target.same, target.empty)]
        parts += [] if columns.positive is None else [f"favourable: {target.values[columns.positive]!r}"]
        lines.append(Understood(target.name, "predicted", "; ".join(parts), "target: values, positive, same"))
    for number in (*columns.targets, *columns.features):
        role, section = ("input", "features") if isinstance(number, Feature) else ("predicted", "targets")
        parts = list(_of_number(number, columns))
        keys = "categories, same" if number.listed else "low, high, decimal, format, missing"
        lines.append(Understood(number.name, role, "; ".join(parts), f"{section}: {keys}"))
    return lines


def _of_number(number: Number, columns: Columns) -> Iterator[str]:
    yield number.reader.words(number) + (f" {number.units}" if number.units else "")
    if number.outside == "cut":
        yield "numbers outside count as the nearer bound"
    if number.format is not None:
        yield f"written {number.format}"
    if number.reader.stored == "numbers":
        yield from _numerals(columns.spelling_of(number))
    if isinstance(number, Feature):
        yield from _spelt(number.same, number.empty)
        if number.missing:
            yield _missing(number.missing, None if number.fill is None or number.listed else number.fill)


def shortened(lines: Sequence[Understood]) -> list[Understood]:
    """All lines to look at, and of the others as many as a screen has room for."""
    room = max(0, _MOST_LINES - sum(bool(line.look) for line in lines))
    quiet = [line for line in lines if not line.look][:room]
    shown = [line for line in lines if line.look or line in quiet]
    more = len(lines) - len(shown)
    return [*shown, *([Understood(f"and {more} more", "", "", "")] if more else [])]


def listed(lines: Sequence[Understood]) -> Listed:
    """The table for a screen."""
    headings = ("column", "is", "understood as", "changed by", "look at")
    rows = [(line.column, line.role, line.understood, line.change, line.look) for line in shortened(lines)]
    return Listed.of(CAPTION, headings, rows, left=headings, whole=("changed by",))


def as_comments(lines: Sequence[Understood]) -> list[str]:
    """The same as comments in TOML."""
    texts = [
        f"{line.column}, {line.role}: {line.understood}" + f" [{line.look}: {line.change}]" * bool(line.look)
        for line in shortened(lines)
    ]
    wrapped = [textwrap.wrap(text, 112, initial_indent="#   ", subsequent_indent="#     ") for text in texts]
    return [f"# {CAPTION}:", *(row for rows in wrapped for row in rows), "#"]


def plain(lines: Sequence[Understood]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [asdict(line) for line in lines]
