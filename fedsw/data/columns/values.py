"""When two cells are the same value, in every format: the one rule, by which declared values are found again.

A cell's text is compared: text in Unicode's form NFC without spaces and invisible characters around it, a whole number
however it is stored (7, 7.0 in a column of floats), a truth value as true or false. A whole number may be written with
zeros behind its point, and true and false in any case; two declared values that are opposite truth words (no and yes, 0
and 1) are also found by truth values and by 0 and 1. Zeros at the beginning count: 007 is not 7. `exact` values, which
are codes, are found by their own text only. A declaration may name other spellings of a value (`Spelt`).
"""

from __future__ import annotations

import decimal
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TRUE, FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
"""Words for truth values, in any case."""

_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_HARD = str.maketrans(dict.fromkeys("\u00a0\u2007\u202f", " "))
_WHOLE = re.compile(r"(-?)(0|[1-9]\d*)\.0*")
_DIGITS = re.compile(r"0*(\d+)(\.0*)?")


def composed(text: str) -> str:
    """A text in Unicode's form NFC, its hard blanks ordinary ones."""
    return text if text.isascii() else unicodedata.normalize("NFC", text).translate(_HARD)


def normal(text: str) -> str:
    """The same without spaces and invisible characters around it."""
    if text.isascii():
        return text.strip()
    before, stripped = "", composed(text)
    while stripped != before:
        before, stripped = stripped, stripped.strip().strip(_INVISIBLE)
    return stripped


def as_text(value: int | str) -> str:
    """The text by which a whole number, a truth value or a text is compared with declared values."""
    return str(value).lower() if isinstance(value, bool) else normal(str(value))


def as_texts(values: Any) -> Any:
    """Whole numbers and truth values of a list as the text they have in a file, texts in NFC; anything else as it is.

    Spaces around a text stay: they are refused where they are declared.
    """
    if not isinstance(values, list | tuple):
        return values
    return tuple(
        composed(value) if isinstance(value, str) else as_text(value) if isinstance(value, int) else value
        for value in values
    )


def number_text(value: float) -> str:
    """A number as it is written, every one differently: 30, 0.1, 1e+30."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def text_of(cell: Any) -> str | None:
    """The text by which a cell is compared; None if it is empty, no finite number, no truth value and no text."""
    if hasattr(cell, "item"):  # a number of NumPy's
        cell = cell.item()
    if isinstance(cell, int | str):
        return as_text(cell)
    if isinstance(cell, float | decimal.Decimal) and math.isfinite(cell):
        return number_text(float(cell))
    return None


def identifier_of(cell: Any) -> str | None:
    """The name of a person or unit, one for all spellings of a number: 123, 123.0 and 0123; None if it is none."""
    if hasattr(cell, "item"):
        cell = cell.item()
    if isinstance(cell, bool) or (text := text_of(cell)) is None or not text:
        return None
    digits = _DIGITS.fullmatch(text) if text.isascii() else None
    if isinstance(cell, float) and digits is None:
        return None
    return text if digits is None else digits[1]


@dataclass(frozen=True)
class Spelt:
    """Other ways in which declared values are written, which are public: ``same`` lists them, value by value.

    With ``letters`` "any" neither case nor blanks inside count. An ``empty`` cell is this value, as of a box that
    is unticked.
    """

    same: tuple[tuple[str, tuple[str, ...]], ...] = ()
    letters: str = "exact"
    empty: str | None = None


AS_DECLARED = Spelt()
"""No other ways."""


_YES = frozenset(("ja", "oui", "si", "sí", "sì", "sim", "да", "是", "有", "はい", "예", "tak", "evet", "igen", "ano"))
_NO = frozenset(
    ("nein", "non", "nei", "nej", "nee", "não", "nao", "нет", "否", "无", "無", "いいえ", "nie", "hayır", "nem")
)
_WORDS = {**dict.fromkeys((*TRUE, *_YES, "j"), True), **dict.fromkeys((*FALSE, *_NO), False)}
"""Words for truth values of many languages, by which a draft is made; of cells only those of `TRUE` are read so."""


def truth_of(text: str) -> bool | None:
    """The truth value that a word stands for in one of many languages; None for any other text."""
    return _WORDS.get(text.strip().lower())


def folded(text: str) -> str:
    """A text without its case, and each run of blanks one blank."""
    return " ".join(text.casefold().split())


def is_empty(cell: Any) -> bool:
    """Say whether a cell holds nothing: None, NaN, or blanks."""
    return cell is None or cell != cell or (isinstance(cell, str) and not normal(cell))


class Values:
    """Declared values, by which cells are found; `place` is -1 for a cell that is none of them."""

    def __init__(self, declared: Sequence[str], *, exact: bool = False, spelt: Spelt = AS_DECLARED) -> None:
        self._places = {value: index for index, value in enumerate(declared)}
        self._empty = -1 if spelt.empty is None else self._places[spelt.empty]
        self._folded = {folded(value): index for value, index in self._places.items()} if spelt.letters == "any" else {}
        self._alike: dict[str, int] = {}
        # two values, a word for true and its opposite for false: every such word is then one of them
        words = [value.lower() for value in declared]
        opposite = any(word in TRUE and FALSE[TRUE.index(word)] in words for word in words)
        self._opposite = not exact and len(words) == 2 and opposite
        if self._opposite:
            truths = {value.lower() in TRUE: index for value, index in self._places.items()}
            self._alike = {"true": truths[True], "1": truths[True], "false": truths[False], "0": truths[False]}
        if not exact:
            self._alike |= {alike(value, self._opposite): index for value, index in self._places.items()}
        for value, others in spelt.same:
            for other in others:
                self._places[other] = self._places[value]
                self._alike.setdefault(alike(other, self._opposite), self._places[value])
                if self._folded:
                    self._folded.setdefault(folded(other), self._places[value])

    def place(self, cell: Any) -> int:
        """The number of the declared value that a cell is; -1 if it is none."""
        if self._empty >= 0 and is_empty(cell):
            return self._empty
        if (text := text_of(cell)) is None:
            return -1
        index = self._places.get(text, -1)
        if index < 0 and self._alike:
            index = self._alike.get(alike(text, self._opposite), -1)
        return index if index >= 0 or not self._folded else self._folded.get(folded(text), -1)


def alike(text: str, truth: bool = False) -> str:
    """The spelling of a value that all of its spellings have in common."""
    if text.lower() in ("true", "false") or truth:
        text = text.lower()
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return text
    return whole[2] if whole[2] == "0" else whole[1] + whole[2]


def doubled(declared: Sequence[str]) -> tuple[str, str] | None:
    """Two declared values that are one value in another spelling, as 1 and 1.0; None if there are none."""
    first: dict[str, str] = {}
    for value in declared:
        other = first.setdefault(alike(value), value)
        if other != value:
            return other, value
    return None


def different(values: Iterable[str]) -> list[str]:
    """Values in their natural order, of several spellings of one the first."""
    first: dict[str, str] = {}
    for value in sorted(set(values)):
        first.setdefault(alike(value), value)
    return list(first.values())


def same_as(values: Sequence[str]) -> Callable[[Any], bool]:
    """Return a test of cells: does one stand for a missing value? The marker "" stands for an empty cell, None, NaN."""
    known = {*values, *map(alike, values)}

    def is_one(cell: Any) -> bool:
        if cell is None or cell != cell:  # NaN, or a date that is none
            return "" in known
        text = text_of(cell)
        return text is not None and (text in known or alike(text) in known)

    return is_one


_ROW_NUMBERS = re.compile(
    r"(unnamed: ?\d+|__index_level_\d+__|level_\d+|\.{3}\d+)|(row_?(names?|num(ber)?)?|index)", re.I
)


def numbers_rows(column: str) -> bool | None:
    """Say whether a column's name means that it numbers the rows, as "Unnamed: 0" and "__index_level_0__" do.

    None for "row" and "index", which may be called so for that.
    """
    named = _ROW_NUMBERS.fullmatch(column.strip())
    return False if named is None else True if named[1] else None
