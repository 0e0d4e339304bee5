"""Declarations of columns: as the command line says, by the form of their cells, or as a person answers.

A kind that the form of cells gives away is written into a declaration, which is public: cells are looked at only where
the operator said that the data are public, or that the kinds of their columns may be. Names of columns are public.
"""

from __future__ import annotations

import csv
import datetime
import functools
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from fedsw._tools.settings import ExperimentError
from fedsw.data import BadRecords
from fedsw.data.blocks import is_text
from fedsw.data.cells import MISSING
from fedsw.data.columns.column import PLAIN, ListedColumn, Spelling
from fedsw.data.columns.date import EPOCH, FORMATS, date_in, is_date
from fedsw.data.columns.kind import ColumnKind
from fedsw.data.columns.number import SPELLINGS, as_number, is_amount
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import FALSE, TRUE, Values, different, folded, normal, text_of, truth_of
from fedsw.data.formats import SEPARATORS, damaged, open_text, parquet_of, parted_by
from fedsw.experiment.load import BLANK


@dataclass(frozen=True)
class ColumnForm:
    """The look of a column's cells: the narrowest kind that all but the missing ones are of, and how they are written.

    ``missing`` are the cells of `MISSING` that occur, with how often each does; ``formats`` all formats of which all
    dates may be, and ``spellings`` all ways to write numbers: of more than one a person has to say which.
    """

    kind: str
    missing: Mapping[str, int] = field(default_factory=dict)
    formats: tuple[str | None, ...] = ()
    spellings: tuple[Spelling, ...] = ()

    def with_missing(self, missing: Mapping[str, int]) -> ColumnForm:
        """The same with these cells missing."""
        return replace(self, missing=missing)


def read_header(path: Path) -> tuple[list[str], str]:
    """Names of the columns of a table, and what parts them; its records are not looked at."""
    if path.suffix.lower() == ".parquet":
        with damaged(path, "Parquet file"):
            return [normal(name) for name in parquet_of(path).read_schema(path).names], ","
    if not is_text(path):
        raise BadRecords(
            f"{path}: a declaration is drafted from a table of text (.csv, .tsv or .txt) or Parquet; write it as one, "
            "or declare it by hand"
        )
    with _text_of(path) as file:
        names, separator = _parted(file, parted_by(path))
    if not any(names):
        raise BadRecords(f"{path} is empty; its first row must name the columns")
    if len(names) == 1 and names[0].startswith("#"):
        raise BadRecords(f"{path} begins with a comment, {names[0][:60]!r}; its first row must name the columns")
    return names, separator


def _parted(file: IO[str], named: str | None) -> tuple[list[str], str]:
    """The names in the first row and what parts them: as many names as may be, blanks behind commas parting none."""
    start = file.tell()
    rows: dict[str, list[str]] = {}
    for separator in SEPARATORS if named is None else (named,):
        file.seek(start)
        rows[separator] = next(csv.reader(file, delimiter=separator), [])
    several = [separator for separator, row in rows.items() if len(row) > 1 and separator != ","]
    if several and any(name.startswith(" ") for name in rows.get(",", ())[1:]):
        rows[","] = [name for index, name in enumerate(rows[","]) if not index or not name.startswith(" ")]
        best = max(several, key=lambda separator: len(rows[separator]))
        if len(rows[best]) >= len(rows[","]):
            return [normal(name) for name in rows[best]], best
        file.seek(start)
        rows[","] = next(csv.reader(file, delimiter=","), [])
    best = max(rows, key=lambda separator: len(rows[separator]))
    return [normal(name) for name in rows[best]], best


def read_cells(path: Path, separator: str, *, skip: int = 0) -> Mapping[str, list[str]]:
    """All cells of a table by column, as text without spaces around it; rows of another length are left out.

    ``skip`` rows below the header of a text table are not records.
    """
    if path.suffix.lower() == ".parquet":
        with damaged(path, "Parquet file"):
            table = parquet_of(path).read_table(path).to_pydict()
        return {normal(name): [_as_text(cell) for cell in cells] for name, cells in table.items()}
    with _text_of(path) as file:
        rows = csv.reader(file, delimiter=separator)
        names = [normal(name) for name in next(rows, [])]
        whole = [row for number, row in enumerate(rows) if number >= skip and len(row) == len(names)]
    return {name: [normal(row[index]) for row in whole] for index, name in enumerate(names)}


_TOTALS = re.compile(
    "(grand )?(sub)?totals?( g[ée]n[ée]ral| geral| general)?|totale?( generale)?|totaa?lt?|sum(me|ma|a)?|(ins)?gesamt|"
    "(end|gesamt)summe|razem|ogółem|celkem|итого|всего|toplam|yhteensä|összesen|σύνολο|المجموع|总计|總計|小计|合计|合計|합계|총계",
    re.IGNORECASE,
)
_MOST_ODD_ROWS = 3


def odd_rows(path: Path, separator: str, *, skip: int = 0) -> list[str]:
    """Report rows of a public text table that are not records: by their line, with what leaves them out."""
    if not is_text(path):
        return []
    odd: list[str] = []
    kinds: dict[str, list[int]] = {}
    with _text_of(path) as file:
        reader = csv.reader(file, delimiter=separator)
        names = next(reader, [])
        first = [(reader.line_num, row) for row in itertools.islice(reader, 5)]
        imported = next((at for at, (_, row) in enumerate(first) if any('"ImportId"' in cell for cell in row)), None)
        if imported is not None and imported >= skip:
            odd.append(f"line {first[imported][0]} has Qualtrics' import ids: --skip-rows {imported + 1}")
            skip = imported + 1
        for line, row in itertools.chain(first[skip:], ((reader.line_num, row) for row in reader)):
            if not row:
                continue
            begins = row[0] if row[0] and not row[0].isspace() else next((cell for cell in row if cell.strip()), "")
            if not begins:
                kinds.setdefault("no cell: delete", []).append(line)
            elif len(row) != len(names):
                kinds.setdefault(f"{len(row)} cells for {len(names)} columns: delete", []).append(line)
            elif row == names:
                kinds.setdefault("the header again: delete", []).append(line)
            elif not begins[0].isdigit() and _TOTALS.fullmatch(begins.strip(" :")):
                kinds.setdefault("a total: delete", []).append(line)
    for what, lines in kinds.items():
        more = f" and {len(lines) - _MOST_ODD_ROWS} more" if len(lines) > _MOST_ODD_ROWS else ""
        listed = ", ".join(map(str, lines[:_MOST_ODD_ROWS]))
        thing, _, remedy = what.partition(": ")
        odd.append(
            f"{'lines' if len(lines) > 1 else 'line'} {listed}{more} {'have' if len(lines) > 1 else 'has'} {thing}: "
            f"{remedy} {'them' if len(lines) > 1 else 'it'}"
        )
    return [f"{path}: {words}" for words in odd]


def _as_text(cell: object) -> str:
    """A cell as a table of text has it: a date without its time, an empty one for none."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat()
    return normal(str(cell)) if (text := text_of(cell)) is None else text


@contextmanager
def _text_of(path: Path) -> Iterator[IO[str]]:
    with open_text(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        try:
            yield file
        except UnicodeDecodeError:
            raise BadRecords(f"{path} is not UTF-8; save the file as UTF-8") from None


def form_of(cells: Iterable[str], *, labels: bool = False, odd: bool = False) -> ColumnForm:
    """The narrowest kind that every cell but the missing ones is of.

    Of ``labels``, which are classes or groups, none is missing but an empty one. Where cells are public (``odd``), a
    few words among numbers or dates are missing, too, as "<0.5" and "n/k" are.
    """
    counted = Counter(cells)
    markers = ("",) if labels else MISSING
    missing = {cell: counted[cell] for cell in markers if counted[cell]}
    values = frozenset(counted) - set(markers)
    kinds = sorted(KINDS.items(), key=lambda item: item[1].any_text)
    fits = {name: forms for name, kind in kinds if values and (forms := kind.forms(values))}
    if odd and not labels and next(iter(fits), "category") == "category" and (few := _odd_among(counted, values)):
        return form_of({cell: count for cell, count in counted.items() if cell not in few}, odd=False).with_missing(
            {**missing, **few}
        )
    if not fits:
        return ColumnForm("category", missing)
    name = next(iter(fits))
    if odd and not labels and KINDS.get(name).stored == "numbers" and (codes := _codes_among(counted, values)):
        return form_of({cell: count for cell, count in counted.items() if cell not in codes}).with_missing(
            {**missing, **codes}
        )
    if KINDS.get(name).stored != "numbers":
        return ColumnForm(name, missing, tuple(dict.fromkeys(form.format for form in fits[name])))
    alike = {kind: [form.spelling for form in fits[kind]] for kind in fits if KINDS.get(kind).stored == "numbers"}
    spellings = tuple(spelling for spelling in SPELLINGS if any(spelling in known for known in alike.values()))
    fewest = next((kind for kind, known in alike.items() if spellings[0] in known), name)
    return ColumnForm(fewest, missing, spellings=spellings)


_MOST_ODD, _FEWEST_VALUES, _ODD_SHARE = 30, 10, 0.15
"""Different odd cells at most, different numbers or dates at least, and the share of odd cells at most, by which a
column with a few words is one of numbers or dates: laboratory values below a limit are a tenth of theirs."""


def _odd_among(counted: Mapping[str, int], values: Collection[str]) -> dict[str, int]:
    """The few cells, with their numbers, without which all others are numbers or dates; none if they are not few."""
    total = sum(counted[value] for value in values)
    ways: list[Callable[[str], bool]] = [functools.partial(_is_number, spelling=spelling) for spelling in SPELLINGS]
    ways += [functools.partial(is_date, written=written) for written in FORMATS]
    for fits in ways:
        odd = {value: counted[value] for value in values if not fits(value)}
        few = len(odd) <= _MOST_ODD and len(values) - len(odd) >= _FEWEST_VALUES
        if few and sum(odd.values()) <= _ODD_SHARE * total:
            return dict(sorted(odd.items()))
    return {}


_CODE_OF_MISSING = re.compile(r"-?(9{2,}|8{3,}|7{3,}|9{2,}[78])(\.0*)?|-[1-9](\.0*)?")


def _codes_among(counted: Mapping[str, int], values: Collection[str]) -> dict[str, int]:
    """Numbers that stand for a missing cell, as 9999 and -9: written so, and far from all others; none if none is."""
    codes = {value for value in values if _CODE_OF_MISSING.fullmatch(value)}
    others = [as_number(value) for value in values if value not in codes]
    plain = [number for number in others if number is not None]
    if not codes or len(plain) < max(_FEWEST_VALUES, len(others)):
        return {}
    low, high = min(plain), max(plain)
    away = high + max(high - low, 1.0)
    far = {code for code in codes if (number := as_number(code)) is not None and (number > away or number < 0 <= low)}
    return {code: counted[code] for code in sorted(far)}


def _is_number(text: str, spelling: Spelling) -> bool:
    return as_number(text, spelling) is not None


def fitting(values: Collection[str], forms: Collection[str]) -> frozenset[str]:
    """Which of some forms (names of `FORMS`) all values are of; each is asked until one of them does not fit."""
    return frozenset(form for form in forms if all(map(FORMS[form], values)))


def as_date(text: str) -> datetime.date | None:
    """The date behind a text in ISO 8601; None if it is none, or digits only."""
    return date_in(text, None) if "-" in text else None


_TRUTHS: frozenset[str] = frozenset((*TRUE, *FALSE)) - {"1", "0"}

FORMS: Mapping[str, Callable[[str], bool]] = {
    "truth": lambda value: value.lower() in _TRUTHS,
    "amount": is_amount,
    **{f"number {spelling}": functools.partial(_is_number, spelling=spelling) for spelling in SPELLINGS},
    **{f"date {written}": functools.partial(is_date, written=written) for written in FORMATS},
}
"""Forms that a value may have; the cells of a column are text if no form fits all of them."""


MOST_CATEGORIES = 100
"""Most categories that are read off a public table; a column with more is left out of the inputs."""

Ask = Callable[[str], str]
"""Asks a person at a terminal; an empty answer leaves a blank."""


@dataclass(frozen=True)
class ColumnAnswer:
    """Declaration of one column; None if it is left blank.

    Bounds are as they are written in TOML; a number outside counts as the nearer one if it is ``cut``. `source` says
    where the declaration came from, for a comment, and `doubt` what a person has to decide. `spelling` is how its
    numbers are written if not as in the rest of the table, `units` what they are measured in. Of categories `same`
    lists other spellings, `empty` is the one that an empty cell stands for, and `merged` names the cells that were
    taken for one.
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
    spelling: Spelling | None = None
    units: str = ""
    doubt: str = ""
    same: tuple[tuple[str, tuple[str, ...]], ...] = ()
    empty: str | None = None
    merged: str = ""


@dataclass(frozen=True)
class Words:
    """Declarations on the command line, which come before those of a code book (`book`)."""

    bounds: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    booleans: Sequence[str] = ()
    integers: Sequence[str] = ()
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: Sequence[str] = ()
    decimal: str | None = None
    thousands: str | None = None
    book: Mapping[str, ColumnAnswer] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        *,
        bounds: Sequence[str],
        categories: Sequence[str],
        dates: Sequence[str],
        edges: Sequence[str],
        booleans: Sequence[str],
        integers: Sequence[str],
        drop: Sequence[str],
    ) -> Words:
        """Read the options of a command line; ExperimentError quotes the option that cannot be read."""
        return cls(
            bounds=dict(read_bounds(text) for text in bounds),
            categories=dict(read_list(text, "--categories") for text in categories),
            dates=dict(read_format(text) for text in dates),
            booleans=tuple(map(normal, booleans)),
            integers=tuple(map(normal, integers)),
            edges=dict(read_list(text, "--edges") for text in edges),
            drop=tuple(map(normal, drop)),
        )

    @property
    def names(self) -> set[str]:
        """Every column that is spoken of."""
        mappings = (self.bounds, self.categories, self.dates, self.edges, self.book)
        return set().union(*mappings, self.booleans, self.integers, self.drop)


def read_bounds(text: str) -> tuple[str, tuple[str, str]]:
    """`age=17:90` as a column and its bounds."""
    name, sign, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    low, high = low.strip(), high.strip()
    bounded = (known for _, known in KINDS.items() if known.bounded)
    kind = next((one for one in bounded if one.bound_of(low) is not None and one.bound_of(high) is not None), None)
    if not (sign and colon and name.strip()) or kind is None:
        days = "; days as 2019-01-31" if any(date_in(low, written) for written in FORMATS[1:] if low) else ""
        points = "; decimals with a point, 4.5" if "," in bounds else ""
        raise ExperimentError(f"--bounds {text!r} cannot be read; write COLUMN=LOW:HIGH, as in age=17:90{days}{points}")
    require_order(f"--bounds {text!r}", kind, low, high)
    return normal(name), (low, high)


def require_order(where: str, kind: ColumnKind, low: str, high: str) -> None:
    """Refuse bounds of which the lower is not below the upper."""
    least, most = kind.bound_of(low), kind.bound_of(high)
    if least is not None and most is not None and not least < most:
        raise ExperimentError(f"{where} has the lower bound {low}, which is not below the upper one, {high}")


def read_format(text: str) -> tuple[str, str]:
    """`born=%d.%m.%Y` as a column and the format of its dates."""
    name, sign, written = text.partition("=")
    if not (sign and name.strip() and "%" in written):
        raise ExperimentError(f"--dates {text!r} cannot be read; write COLUMN=FORMAT, as in born=%d.%m.%Y")
    return normal(name), written.strip()


def read_list(text: str, option: str) -> tuple[str, tuple[str, ...]]:
    """`job=a,b,c` as a column and its values."""
    name, sign, values = text.partition("=")
    listed = tuple(dict.fromkeys(normal(value) for value in values.split(",") if value.strip()))
    if not (sign and name.strip() and listed):
        raise ExperimentError(f"{option} {text!r} cannot be read; write COLUMN=A,B,C, as in job=clerk,nurse,other")
    return normal(name), listed


@dataclass(frozen=True)
class Look:
    """A column's cells as far as they may be shown: its ``form``; the cells themselves where they are ``public``.

    The ``origin`` goes into a comment; ``spelling`` is how numbers are written in the table, ``column_spelling``
    how they are in this column if that is another way, or in doubt (``doubt`` in words).
    """

    form: ColumnForm
    cells: Sequence[str] | None = None
    origin: str = ""
    spelling: Spelling = PLAIN
    column_spelling: Spelling | None = None
    doubt: str = ""

    def written(self, declared: ColumnAnswer) -> ColumnAnswer:
        """A declaration of numbers with the way in which they are written, where that is not the table's."""
        form = self.form
        if declared.kind is None or KINDS.get(declared.kind).stored != "numbers" or not form.spellings:
            return declared
        way = self.column_spelling or (self.spelling if self.spelling in form.spellings else form.spellings[0])
        if self.doubt:
            return replace(declared, spelling=Spelling(way.decimal, BLANK), doubt=self.doubt)
        return replace(declared, spelling=None if way == self.spelling and self.column_spelling is None else way)


def answer(
    name: str, words: Words, look: Look | None, *, ask: Ask | None, doubt: Ask | None, classes: bool
) -> ColumnAnswer:
    """Return the declaration of a column: by the command line, then a public table, then a person; else a blank.

    ``classes`` are groups or classes whatever their values look like. A ``doubt`` is asked even beside a public table.
    """
    declared = _answer(name, words, look, ask=ask, doubt=doubt, classes=classes)
    return declared if look is None or classes else look.written(declared)


def _answer(
    name: str, words: Words, look: Look | None, *, ask: Ask | None, doubt: Ask | None, classes: bool
) -> ColumnAnswer:
    guessed = None if look is None else look.form
    if name in words.categories:
        return _listing(name, words.categories[name], look, classes=classes)
    if name in words.booleans:
        return with_missing(ColumnAnswer("boolean", source="given with --boolean"), guessed)
    if name in words.bounds:
        low, high = words.bounds[name]
        whole = "integer" if name in words.integers else _number_kind(guessed if look and look.cells is None else None)
        kind = "date" if name in words.dates or as_date(low) else whole
        declared = ColumnAnswer(kind, low, high, format=words.dates.get(name), source="given with --bounds")
        return with_missing(_formatted(declared, guessed, name, doubt), guessed)
    if name in words.book:
        entry = words.book[name]
        values = entry.categories or (KINDS.get(entry.kind).classes if entry.kind else ())
        return (
            replace(entry, kind="category", categories=values) if classes else _formatted(entry, guessed, name, doubt)
        )
    if look is not None and look.cells is not None:
        return _read_off(name, look, words.dates.get(name), classes=classes, ask=doubt)
    if ask is not None:
        return _asked(name, guessed, ask, classes=classes)
    if classes:
        return ColumnAnswer("category", source="" if guessed is None else _BY_FORM)
    if name in words.dates:
        return ColumnAnswer("date", format=words.dates[name], source="given with --dates")
    if guessed is None:
        return ColumnAnswer()
    return with_missing(_dated(ColumnAnswer(guessed.kind, source=_BY_FORM), guessed, name, None), guessed)


_BY_FORM = "its kind by the form of its values"


def _listing(name: str, values: tuple[str, ...], look: Look | None, *, classes: bool) -> ColumnAnswer:
    """Categories as given; of cells that were looked at, those that are not categories may be missing."""
    form = None if look is None else look.form
    source = "given with --categories"
    if len(values) == 1:
        return _checkbox(values[0], f"{source}: a box that is ticked or empty")
    if form is None or classes:
        return ColumnAnswer("category", categories=values, source=source)
    absent = {cell: count for cell, count in form.missing.items() if cell not in values}
    return with_missing(ColumnAnswer("category", categories=values, source=source), replace(form, missing=absent))


def _number_kind(guessed: ColumnForm | None) -> str:
    if guessed is None:
        return "number"
    kind = KINDS.get(guessed.kind)
    return guessed.kind if kind.bounded and kind.stored == "numbers" else "number"


def _dated(declared: ColumnAnswer, form: ColumnForm, name: str, ask: Ask | None) -> ColumnAnswer:
    """Add the format of a column's dates where one alone fits all of them; else ask a person, or leave a blank."""
    if len(form.formats) <= 1:
        return replace(declared, format=form.formats[0] if form.formats else None)
    which = " or ".join(f'"{written}"' for written in form.formats if written is not None)

    def read(reply: str) -> str:
        if (written := reply.strip('"')) and written not in form.formats:
            raise ExperimentError(f"{reply!r} is neither")
        return written

    question = f"column {name}: its dates may be written {which}; which is it?"
    if ask is not None and (reply := asked_again(ask, question, read)):
        return replace(declared, format=reply)
    return replace(declared, format=BLANK, doubt=f"say how its dates are written, {which}: every day fits each of them")


def _formatted(declared: ColumnAnswer, form: ColumnForm | None, name: str, ask: Ask | None) -> ColumnAnswer:
    """Add the format of a column's dates, if none is given and its cells may be looked at."""
    if declared.format is not None or form is None or not _of_days(declared.kind) or not _of_days(form.kind):
        return declared
    return _dated(declared, form, name, ask)


def _of_days(kind: str | None) -> bool:
    return kind is not None and KINDS.get(kind).stored == "days"


def _read_off(name: str, look: Look, written: str | None, *, classes: bool, ask: Ask | None) -> ColumnAnswer:
    form, cells = look.form, look.cells or ()
    values = different(cell for cell in cells if cell not in form.missing)
    source = f"read off {look.origin}"
    if written is None and len(values) == 1 and form.missing.get("") and len(values[0]) <= _LONGEST_TICK:
        ticked = _checkbox(values[0], f"{source}: a box that is ticked or empty")
        others = {cell: count for cell, count in form.missing.items() if cell}
        return ticked if classes else with_missing(ticked, replace(form, missing=others))
    if classes:
        return _coded_once(ColumnAnswer("category", categories=tuple(values), source=source), cells)
    if written is not None:
        if (odd := next((value for value in values if date_in(value, written) is None), None)) is not None:
            raise ExperimentError(f"--dates {name}={written}: {odd!r} is no date that is written so")
        form = replace(form, kind="date", formats=(written,))
    spelling = look.column_spelling or look.spelling
    if form.spellings and spelling not in form.spellings:
        spelling = form.spellings[0]
    if form.spellings:
        # the first kind of numbers that all values are of, as they are written
        kinds = {name: kind.forms(values) for name, kind in KINDS.items() if kind.stored == "numbers"}
        fits = (kind for kind, forms in kinds.items() if any(way.spelling == spelling for way in forms))
        form = replace(form, kind=next(fits))
    kind = KINDS.get(form.kind)
    declared = _dated(ColumnAnswer(form.kind, source=source), form, name, ask)
    if kind.listing:
        exact = sorted({cell for cell in cells if cell not in form.missing}) if kind.exact else values
        return with_missing(_coded_once(replace(declared, categories=tuple(exact)), cells), form)
    if not kind.bounded:
        return with_missing(declared, form)
    formats = form.formats if declared.format == BLANK else (declared.format,)
    read_as = [ListedColumn(name, (), format=written_as, since=EPOCH) for written_as in formats]
    numbers = np.concatenate([kind.read(values, column, spelling) for column in read_as])
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    return with_missing(replace(declared, low=kind.bound_text(low), high=kind.bound_text(high)), form)


_LONGEST_TICK, _CODE = 12, 4
"""Letters of a tick at most; digits of a code from which one without its zeros is the same, as a postcode is."""


def _checkbox(value: str, source: str) -> ColumnAnswer:
    """The declaration of a box: ticked, as this value says, or empty."""
    unticked = "0" if value == "1" else "no"
    return ColumnAnswer("category", categories=(unticked, value), source=source, empty=unticked)


def _coded_once(declared: ColumnAnswer, cells: Sequence[str]) -> ColumnAnswer:
    """The same where several spellings of a value are one of its categories: by case, zeros, or words for yes and no.

    Of each value the word without a digit, and else the most frequent one, is the category; those that the reader of
    cells finds by itself are not listed.
    """
    counts = Counter(cells)
    by_value: dict[str, list[str]] = {}
    longest = max(map(len, declared.categories), default=0)  # no cell of the table has a value
    truths = {value: truth_of(value) for value in declared.categories}
    words = None not in truths.values() and len({*truths.values()}) == 2
    for value in declared.categories:
        padded = value.zfill(longest) if value.isascii() and value.isdigit() and longest >= _CODE else folded(value)
        key = str(truths[value]) if words else padded
        by_value.setdefault(key, []).append(value)
    if len(by_value) == len(declared.categories) or len(by_value) < 2:
        return declared
    spellings = [
        max(known, key=lambda value: (not value.isdigit(), counts[value], value)) for known in by_value.values()
    ]
    exact = KINDS.get(str(declared.kind)).exact
    reader = Values(spellings, exact=exact)
    same = tuple(
        (value, tuple(other for other in known if other != value and reader.place(other) < 0))
        for value, known in zip(spellings, by_value.values(), strict=True)
    )
    merged = "; ".join(" and ".join(map(repr, known)) for known in by_value.values() if len(known) > 1)
    return replace(
        declared,
        categories=tuple(spellings),
        same=tuple((value, others) for value, others in same if others),
        source=f"{declared.source}; taken for one value each: {merged}. --categories lists them apart if they are not",
        merged=merged,
    )


_Read = TypeVar("_Read")
_TRIES = 5
"""Answers to one question, of which the last is refused with an error."""


def asked_again(ask: Ask, question: str, read: Callable[[str], _Read]) -> _Read:
    """Read a person's answer; one that cannot be read is asked again, with the reason, and loses nothing."""
    reason = ""
    for _ in range(_TRIES - 1):
        try:
            return read(ask(f"{reason}{question}").strip())
        except ExperimentError as fault:
            reason = f"{fault}. "
    return read(ask(f"{reason}{question}").strip())


def _asked(name: str, guessed: ColumnForm | None, ask: Ask, *, classes: bool) -> ColumnAnswer:
    seems = "" if guessed is None else f" (it seems to hold {guessed.kind})"
    what = "its values, a,b,c" if classes else "its bounds, LOW:HIGH, or its categories, a,b,c"
    question = f"column {name}{seems}: {what}, from a code book; Enter leaves it blank"

    def read(reply: str) -> ColumnAnswer:
        if not reply:
            return ColumnAnswer("category" if classes else None if guessed is None else guessed.kind)
        if ":" in reply and not classes:
            low, high = read_bounds(f"{name}={reply}")[1]
            kind = "date" if as_date(low) else _number_kind(guessed)
            return ColumnAnswer(kind, low, high, source="given by its operator")
        values = read_list(f"{name}={reply}", "the answer")[1]
        if len(values) < 2:
            bounds = "" if classes else ", or bounds as 17:90"
            raise ExperimentError(f"{reply!r} is one value; write two at least, parted by commas{bounds}")
        return ColumnAnswer("category", categories=values, source="given by its operator")

    declared = asked_again(ask, question, read)
    if declared.low is None:
        return declared
    of_days = guessed is not None and _of_days(declared.kind) and _of_days(guessed.kind)
    return with_missing(_dated(declared, guessed, name, ask) if guessed is not None and of_days else declared, guessed)


def with_missing(declared: ColumnAnswer, form: ColumnForm | None, fill: str | None = None) -> ColumnAnswer:
    """Add the missing cells that were seen to a declaration, filled as given or with the middle of the bounds.

    A comment names the cells that were taken for missing, with how often each occurs if that is public.
    """
    if form is None or not form.missing or declared.kind is None:
        return declared
    counts = [f"{count:,} {_cell(cell)}" for cell, count in form.missing.items() if count]
    source = f"{declared.source}; taken for missing: {', '.join(counts)}" if counts else declared.source
    words = [cell for cell, count in form.missing.items() if cell and count]
    if words and KINDS.get(declared.kind).listing:
        source += f" (if {_cell(words[0])} is a value, move it to categories)"
    return replace(
        declared, missing=tuple(form.missing), fill=_middle(declared) if fill is None else fill, source=source
    )


def _cell(text: str) -> str:
    return repr(text) if text else "empty"


def _middle(declared: ColumnAnswer) -> str | None:
    """A number in the middle of the bounds, as TOML has it; None if none is needed or known."""
    kind = KINDS.get(str(declared.kind))
    if kind.listing:
        return None
    if not kind.bounded:
        return "0"
    if declared.low is None or declared.high is None:
        return None
    low, high = kind.bound_of(declared.low), kind.bound_of(declared.high)
    if low is None or high is None:
        return None
    return kind.bound_text(float(round((low + high) / 2, None if kind.whole else 12)))
