"""Numbers: any finite one, or within public bounds; and how they are written in text."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np

from fedsw.data.columns.column import PLAIN, DeclaredColumn, Spelling
from fedsw.data.columns.distinct_cells import Cells, Distinct, Gaps
from fedsw.data.columns.kind import Bins, ColumnKind, Form, Numbers, Stored
from fedsw.data.columns.values import number_text

LARGEST = float(np.finfo(np.float32).max)
"""The largest number of a column without bounds."""

_DIGITS = 7
"""Significant digits of written numbers, of their range."""
_DECADES = 100.0
"""The ratio of bounds from which parts are equal in their logarithms."""
_BLANKS = "\u00a0\u202f\u2009"
"""Blanks that part thousands in print; declared as one blank, as an ordinary one is."""
_QUOTES = "\u2019"


class NumberKind(ColumnKind):
    """Any finite number."""

    name = "number"
    stored: ClassVar[Stored] = "numbers"
    whole = False
    ratios = True
    with_categories: ClassVar[str | None] = "category"

    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """Numbers as they are; a value above float64 is infinite."""
        return as_floats(cells, spelling)

    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """Numbers with seven digits of their range, never beyond a bound."""
        limits = self.bounds(column)
        if limits is not None:
            places = max(0, _DIGITS - 1 - int(np.floor(np.log10(limits[1] - limits[0]))))
            values = np.clip(np.round(values, places), *limits)
        texts = [number_text(value) for value in values.tolist()]
        return texts if spelling.decimal == "." else [text.replace(".", spelling.decimal) for text in texts]

    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """The kind of number and its bounds."""
        noun = "a whole number" if self.whole else "a finite number"
        limits = self.bounds(column)
        limit = "that a float32 holds" if limits is None else f"from {limits[0]:g} to {limits[1]:g}"
        commas = ", with a decimal comma" if spelling.decimal == "," else ""
        return f"{noun} {limit} is declared{commas}{_parted(spelling)}"

    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """Declared edges, or equal parts of the range; of its logarithm where bounds span over two decades."""
        low, high = self._limits_of(column)
        if column.edges:
            inner = [edge for edge in column.edges if low < edge < high]
            edges = np.array([low, *inner, high])
        elif self.ratios and low > 0 and high / low > _DECADES:
            edges = np.geomspace(low, high, bins + 1)
            edges[0], edges[-1] = low, high
        else:
            edges = np.linspace(low, high, bins + 1)
        return parts(edges.tolist())

    def _limits_of(self, column: DeclaredColumn) -> tuple[float, float]:
        if (limits := self.bounds(column)) is None:
            raise ValueError(f"column {column.name!r} has no bounds; declare low and high, public ones")
        return limits

    def words(self, column: DeclaredColumn) -> str:
        """The kind and its bounds."""
        limits = self.bounds(column)
        return self.name if limits is None else f"{self.name} from {limits[0]:.6g} to {limits[1]:.6g}"

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Every decimal and thousands separator under which all cells are numbers of this kind."""
        return tuple(Form(self.name, spelling=spelling) for spelling in spellings(cells))

    def bound_of(self, text: str) -> float | None:
        """The number."""
        return as_number(text)


class IntegerKind(NumberKind):
    """Whole numbers."""

    name = "integer"
    whole = True
    with_categories = None

    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """Numbers without a fraction."""
        values = as_floats(cells, spelling)
        values[values != np.floor(values)] = np.nan
        return values

    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """Whole numbers."""
        return [number_text(value) for value in np.floor(values).tolist()]

    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """A part for each of at most `bins` numbers; else parts of whole numbers, as equal as they can be."""
        low, high = self._limits_of(column)
        low, high = float(np.ceil(low)), float(np.floor(high))
        if not column.edges and high - low < bins:
            return parts(np.arange(low, high + 2).tolist(), whole=True)
        whole = sorted({*np.ceil(np.array(super().describe(column, bins).edges[1:-1])).tolist()})
        return parts([low, *(edge for edge in whole if low < edge <= high), high + 1], whole=True)

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Those under which every number is whole."""
        return tuple(
            form for form in super().forms(cells) if all(as_float(cell, form.spelling).is_integer() for cell in cells)
        )


def parts(edges: Sequence[float], *, whole: bool = False) -> Bins:
    """Parts of numbers between edges; of whole ones each has its first and its last number for a name."""
    pairs = list(zip(edges[:-1], edges[1:], strict=True))
    if whole:
        last = [(low, high - 1) for low, high in pairs]
        return Bins(tuple(edges), tuple(f"{a:.6g}" if a == b else f"{a:.6g} to {b:.6g}" for a, b in last))
    return Bins(tuple(edges), tuple(f"{low:.4g} to {high:.4g}" for low, high in pairs))


def _parted(spelling: Spelling) -> str:
    if not spelling.thousands:
        return ""
    return f" (thousands may be parted by {'blanks' if spelling.thousands == ' ' else repr(spelling.thousands)})"


def as_floats(cells: Cells, spelling: Spelling = PLAIN) -> Numbers:
    """float64 of every cell (n,), NaN if it is not a number; a value above float64 is infinite."""
    if isinstance(cells, Gaps):
        return cells.values.copy()
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    if isinstance(cells, Distinct):
        return as_floats(cells.values, spelling)[cells.codes]
    if spelling == PLAIN and (plain := _plain_floats(cells)) is not None:
        return plain
    return np.array([as_float(cell, spelling) for cell in cells], dtype=np.float64)


def _plain_floats(cells: Cells) -> Numbers | None:
    """The numbers of texts that are all numbers; None if they are not, and each is to be looked at."""
    if isinstance(cells, np.ndarray) or set(map(type, cells)) != {str} or "_" in "".join(cells):
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def as_float(cell: Any, spelling: Spelling = PLAIN) -> float:
    """The number in a cell, NaN if it is none; a separator of thousands has three digits behind it, or it is none.

    Beside decimal commas a number with a point is none, unless points part thousands.
    """
    if isinstance(cell, str):
        if (text := _plain_text(cell, spelling)) is None:
            return np.nan
        cell = text
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan
    except OverflowError:
        return np.inf


def as_number(text: str, spelling: Spelling = PLAIN) -> float | None:
    """The number behind a text that is no larger than a bound may be; None if it is none."""
    value = as_float(text, spelling)
    return value if abs(value) < 1e30 else None


def _plain_text(cell: str, spelling: Spelling) -> str | None:
    """A text as Python writes the number; None if it is not written so."""
    if "_" in cell:
        return None  # Python's float reads "1_000" as 1000
    text = cell.strip()
    if not text.isascii():
        text = text.strip("\ufeff\u200b").replace("\u2212", "-")
    if spelling.thousands:
        text = _ordinary(text, spelling.thousands)
        if spelling.thousands in text:
            if _grouped(spelling.thousands, spelling.decimal).fullmatch(text) is None:
                return None
            text = text.replace(spelling.thousands, "")
    if spelling.decimal == ".":
        return text
    return None if "." in text else text.replace(spelling.decimal, ".", 1)


def _ordinary(text: str, thousands: str) -> str:
    """The same with printers' blanks or apostrophes as ordinary ones."""
    if text.isascii():
        return text
    for mark in _BLANKS if thousands == " " else _QUOTES if thousands == "'" else "":
        text = text.replace(mark, thousands)
    return text


def is_amount(text: str) -> bool:
    """Say whether a text is an amount: with a sign of money or percent, or negative in brackets: $1,200, 12%, (3.5)."""
    return _AMOUNT.fullmatch(text.strip()) is not None


_AMOUNT = re.compile(r"(?=.*[$€£¥%()]|.*-$)\(?[+-]?\s*[$€£¥]?\s*[+-]?\d[\d.,' \u00a0\u202f]*\s*[$€£¥%]?\)?-?")


def is_measured(text: str) -> bool:
    """Say whether a text is a number with its unit of measurement, or two numbers: 50 kg, 120/80."""
    return _MEASURED.fullmatch(text.strip()) is not None


_MEASURED = re.compile(r"[+-]?\d[\d.,]* ?[^\W\d_]{1,6}(/[^\W\d_]{1,4})?\.?|\d+ ?/ ?\d+")


@functools.cache
def _grouped(thousands: str, decimal: str) -> re.Pattern[str]:
    """A number with separated thousands, as 1,234,567.8 and 12,34,567."""
    part, point = re.escape(thousands), re.escape(decimal)
    return re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:{part}\d{{2,3}})*{part}\d{{3}}(?:{point}\d*)?")


SPELLINGS = (
    PLAIN, Spelling(","), Spelling(".", ","), Spelling(",", "."), Spelling(".", " "), Spelling(",", " "),
    Spelling(".", "'"), Spelling(",", "'"),
)  # fmt: skip
"""How numbers are written, the most frequent first."""


def spellings(cells: Collection[str]) -> tuple[Spelling, ...]:
    """Every spelling under which all cells are numbers, in the order of `SPELLINGS`.

    Whether three digits behind every comma are decimals or thousands cannot be told, and both are among them. Points
    count as decimal points wherever they may be.
    """
    if not cells:
        return ()
    written, numbers = "".join(cells), dict[Spelling, bool]()
    for spelling in {_simplest(known, written) for known in SPELLINGS}:
        numbers[spelling] = all(as_number(cell, spelling) is not None for cell in cells)
    possible = [spelling for spelling in SPELLINGS if numbers[_simplest(spelling, written)]]
    if PLAIN in possible and not _may_be_thousands(cells):
        possible = [spelling for spelling in possible if spelling.thousands != "."]
    return tuple(possible)


def readings(cells: Collection[str], known: Sequence[Spelling]) -> list[Spelling]:
    """One of the known spellings of all cells for each different reading of them: of several, one is chosen."""
    written, by_simplest = "".join(cells), dict[Spelling, Spelling]()
    for spelling in known:
        by_simplest.setdefault(_simplest(spelling, written), spelling)
    if len(by_simplest) < 2 or not any(mark in written for mark in ".,"):
        return list(known[:1])
    different: dict[tuple[float | None, ...], Spelling] = {}
    for spelling in by_simplest.values():
        different.setdefault(tuple(as_number(cell, spelling) for cell in cells), spelling)
    return list(different.values())


def _simplest(spelling: Spelling, written: str) -> Spelling:
    """The simplest spelling that reads texts made of these characters as this one does: other marks are in none."""
    marks = {" ": _BLANKS, "'": _QUOTES}.get(spelling.thousands, "") + spelling.thousands
    thousands = spelling.thousands if any(mark in written for mark in marks) else ""
    return Spelling(spelling.decimal if "," in written or "." in written else ".", thousands)


def may_part_thousands(values: Numbers) -> bool:
    """Say whether numbers (n,), read with decimals, may be thousands: below 1000, three digits behind the point."""
    magnitudes = np.abs(values[np.isfinite(values)])
    parts = magnitudes[magnitudes != np.floor(magnitudes)]
    return bool(
        len(parts)
        and (magnitudes < 1000).all()
        and (parts >= 1).all()
        and (np.abs(parts * 1000 - np.rint(parts * 1000)) < 1e-6).all()
    )


def _may_be_thousands(cells: Collection[str]) -> bool:
    """Say whether points may part thousands: three digits behind each point, and none in numbers below 1000."""
    pointed = [cell.strip() for cell in cells if "." in cell]
    others = [cell.strip() for cell in cells if "." not in cell]
    if any(_grouped(".", ",").fullmatch(cell) is None for cell in pointed):
        return False
    return not pointed or all(abs(as_float(cell)) < 1000 for cell in others)
