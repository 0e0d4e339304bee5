"""A commented experiment for clients' own tables, in TOML: what was given is filled in, the rest is left as blanks."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsw._tools.text import nearest
from fedsw.data.blocks import is_text
from fedsw.data.cells import MISSING
from fedsw.data.columns.column import PLAIN, Spelling
from fedsw.data.columns.date import is_time, seems_dated
from fedsw.data.columns.declared_kinds import CROSS, LONGEST_NAME
from fedsw.data.columns.number import SPELLINGS, as_number, is_amount, is_measured, readings
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import Spelt, Values, normal, number_text, numbers_rows
from fedsw.data.formats import SEPARATORS
from fedsw.data.persons import Marks, Persons, persons_in
from fedsw.data.places import places
from fedsw.desk.own_data.answers import (
    MOST_CATEGORIES,
    Ask,
    ColumnAnswer,
    ColumnForm,
    Look,
    Words,
    answer,
    asked_again,
    form_of,
    odd_rows,
    read_cells,
    read_header,
)
from fedsw.desk.own_data.apart import require_no_client_s
from fedsw.desk.own_data.examine import at_one_client, named_as_identifier
from fedsw.desk.own_data.positive import Positive, positive_of
from fedsw.desk.own_data.understood import Understood, as_comments, of_answer
from fedsw.experiment import DEFAULT_DELTA, ExperimentError, parse_experiment
from fedsw.experiment.load import BLANK, blank_lines

_TRAINING = """\
[training]
preset = "auto"            # model, rounds, batches, rate and clips by rule, from the number of records and ε alone;
                           # `fedsw plan` shows them. What you write here, or under [clip], wins
"""


_CUT = 'outside = "cut"'
_POINT = '# decimal = ","   # if numbers are written with decimal commas, as they often are beside semicolons'
_EPSILON = 1.0
_FEW, _MANY = 1_000, 40_000
"""Records times epsilon below which noise hides how good a model is however many judge it, and records from which a
tenth of them tells it to a point: there a tenth is kept, elsewhere a fifth."""
_KEPT = """\
held_out_fraction = {part}    # of each client's records, never trained on: costs it what {less} less ε would.
                           # {why} ...
held_out_to = "everybody"  # ... and counted once when training has ended: with noise, within the same guarantee
# held_out = "held-out.csv"   # or a table at the server that holds nobody's private record, instead of these two lines\
"""
_NONE_KEPT = '# held_out = "held-out.csv"   # a table at the server that holds no private record, to judge the model by'


LEAST_GROUP = 100
"""Public rows below which a combination of several group columns joins the others."""


@dataclass(frozen=True)
class DraftRequest:
    """Request for a draft: declarations on the command line (``words``), and the column of privacy-unit ids.

    Of the classes one is the favourable (``positive``), if declared; ``alpha`` is the weight of equal
    outputs of the groups, if asked for. With a ``declared`` number of records the guarantee is for
    additions and removals of them, and no row is counted.

    Several columns (``crossed``) make groups of their combinations; those with fewer than ``least_group`` public rows
    are one group, "other".

    Kinds may come from the clients' tables themselves if these are public, from a public table of the same columns, or
    from a guess by the form of private values; the rest from a person, if one is there to ask. What cannot be told even
    then (``doubt``), as days from months, is asked of a person in any case.
    """

    folder: Path
    group: str | None
    target: str
    words: Words
    from_public: bool = False
    public_table: Path | None = None
    guess: bool = False
    ask: Ask | None = None
    held_out: Path | None = None
    unit: str | None = None
    positive: str | None = None
    doubt: Ask | None = None
    alpha: float | None = None
    declared: int | None = None
    crossed: tuple[str, ...] = ()
    least_group: int = LEAST_GROUP
    skip_rows: int = 0

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Names of the columns that say a record's group."""
        return self.crossed or (() if self.group is None else (self.group,))

    @property
    def interactive(self) -> bool:
        """True if a person is there to ask."""
        return self.doubt is not None or self.ask is not None


@dataclass(frozen=True)
class Draft:
    """An experiment as TOML, its lines with blanks by number, what its reader must look at, and what was understood."""

    text: str
    blanks: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    understood: tuple[Understood, ...] = ()

    @property
    def looked_at(self) -> int:
        """Number of columns that were left out, guessed, or are to be filled in."""
        return sum(bool(line.look) for line in self.understood)


def draft(request: DraftRequest, *, name: str) -> Draft:
    """The experiment for the tables of a folder.

    Of the tables only the first row is read, which names the columns, unless the operator says that they are public
    (`from_public`) or that the kinds of their columns may be (`guess`). A public table is read whole.
    ExperimentError for a column that is not there, or tables that do not agree.
    """
    # columns are compared by their names in NFC, without blanks around them
    single, person = (None if column is None else normal(column) for column in (request.group, request.unit))
    crossed = tuple(map(normal, request.crossed))
    request = replace(request, group=single, target=normal(request.target), unit=person, crossed=crossed)
    if request.alpha and request.declared is not None:
        raise ExperimentError("--alpha has no bound for added and removed records: leave it, or --relation, out")
    if request.alpha and not request.group_columns:
        raise ExperimentError(
            f"--alpha {request.alpha:g} weighs equal outputs of groups, and none are declared: add --group COLUMN"
        )

    # what is known: the columns' names, and the cells that may be looked at
    known = Known.of(request)

    # what is asked: of the command line, the cells and a person, in this order, until each column has its declaration
    answers = ColumnAnswers.of(request, known)

    # what is written: TOML, and beside it what was understood
    features = {column: _feature(column, request, known, answers) for column in answers.inputs}
    understood = _understood(request, known, answers, features)
    lines = _data_lines(name, request, known, answers, tuple(features.values()), understood)
    text = "\n".join([*lines, *_training_lines(request, known, answers)]) + "\n"
    notes = tuple(
        f"column {column!r} is in some of the clients' tables only, and is left out" for column in known.partly
    )
    if answers.positive is not None and not answers.positive.sure:
        notes += (f"{request.target!r}, {answers.positive.why}; --positive says which",)
    blanks = blank_lines(text)
    if not blanks:
        _require_loaded(text)
    return Draft(text, blanks, notes, tuple(understood))


@dataclass(frozen=True)
class Known:
    """The clients' tables and a public one, as far as they are looked at.

    One table is of all clients if it is ``shared``. All have the columns ``names``, only some those of ``partly``.
    ``cells`` are looked at: all of public tables, which are from ``origin``, and those of private ones if their kinds
    may be guessed (``public`` is then false). Of public clients' tables ``sizes`` are the numbers of rows.
    """

    tables: Sequence[Path]
    shared: bool
    names: Sequence[str]
    separator: str
    partly: Sequence[str]
    cells: Mapping[str, Sequence[str]]
    public: bool
    origin: str
    sizes: Sequence[int]
    forms: Mapping[str, ColumnForm]

    @classmethod
    def of(cls, request: DraftRequest) -> Known:
        """Read the first row of the tables, and the cells that the operator lets be looked at."""
        sources = places(request.folder)
        tables = [source.table for source in sources]
        names, separator, partly = _header(tables)
        _require_known(request, names, partly)
        cells, origin, sizes = dict[str, list[str]](), "", list[int]()
        public = request.public_table is not None or request.from_public
        if (table := request.public_table) is not None:
            if not table.is_file():
                raise FileNotFoundError(f"there is no public table {table}")
            say = "If the clients' tables are public, say --from-public; else name another table"
            require_no_client_s(table, tables, option="--public-table", remedy=say)
            cells, origin = _cells([table], read_header(table)[1], request.skip_rows)[0], f"the public table {table}"
        elif request.from_public:
            # bounds and categories are those of the held-out table as well, if it has the clients' columns
            read, beside = [*tables], request.held_out
            if beside is not None and beside.is_file() and (is_text(beside) or beside.suffix.lower() == ".parquet"):
                held, parted = read_header(beside)
                if set(read_header(tables[0])[0]) <= set(held) and parted == separator:
                    read.append(beside)
            cells, rows = _cells(read, separator, request.skip_rows)
            origin = f"the tables in {request.folder}, which their operator says are public"
            sizes = rows[: len(tables)]
        if not cells and request.guess:
            cells = _cells(tables, separator, request.skip_rows)[0]
        # of a column that only some tables have, the cells would not be beside those of the others
        cells = {column: cells[column] for column in names if column in cells}
        forms = {column: form_of(seen, odd=public) for column, seen in cells.items()}
        return cls(tables, sources[0].client is None, names, separator, partly, cells, public, origin, sizes, forms)


def _header(tables: Sequence[Path]) -> tuple[list[str], str, list[str]]:
    """Names of the columns that all tables have, what parts them, and names of those that only some have."""
    headers = {table: read_header(table) for table in tables}
    for table, (names, separator) in headers.items():
        if (twice := next((name for name, times in Counter(names).items() if times > 1 and name), None)) is not None:
            raise ExperimentError(f"{table} has two columns {twice!r}; rename one, or take one out, for every client")
        parted = headers[tables[0]][1]
        if separator != parted:
            raise ExperimentError(
                f"{tables[0]} and {table} do not agree: their cells are parted by {SEPARATORS.get(parted, parted)} and "
                f"by {SEPARATORS.get(separator, separator)}; write one of them as the other is"
            )
    first, separator = headers[tables[0]]
    every = dict.fromkeys(name for names, _ in headers.values() for name in names)
    shared = [name for name in first if all(name in names for names, _ in headers.values())]
    return shared, separator, [name for name in every if name not in shared]


def _require_known(request: DraftRequest, names: Sequence[str], partly: Sequence[str]) -> None:
    roles = [("--target", request.target), ("--unit", request.unit)]
    roles += [("--group", column) for column in request.group_columns]
    for option, column in [*roles, *(("a column option", column) for column in sorted(request.words.names))]:
        if column is not None and column not in names:
            option = "the code book" if column in request.words.book else option
            if column in partly:
                raise ExperimentError(
                    f"{option} names {column!r}, which only some of the clients' tables have: add it to the others, or "
                    "leave it out"
                )
            raise ExperimentError(
                f"{option} names {column!r}, and the tables have no such column; {nearest(column, list(names))}they "
                f"have {', '.join(names)}"
            )


def _cells(tables: Sequence[Path], separator: str, skip: int) -> tuple[dict[str, list[str]], list[int]]:
    """The cells of all tables by column, and how many rows each table has."""
    by_column, rows = dict[str, list[str]](), []
    for table in tables:
        read = read_cells(table, separator, skip=skip)
        rows.append(max(map(len, read.values()), default=0))
        for column, cells in read.items():
            by_column.setdefault(column, []).extend(cells)
    return by_column, rows


@dataclass(frozen=True)
class ColumnAnswers:
    """Declarations of all columns by their roles: as the command line has them, cells show them, or a person answers.

    ``persons`` are columns that look like ids of persons. Of several group columns (``crossed``) the combinations with
    enough public rows, and those with fewer, are ``combined``; None if sizes are not public. ``without_target`` public
    rows have no target, and are left out.
    """

    numbers: Numerals
    persons: Mapping[str, Persons]
    unit: str | None
    regression: bool
    target: ColumnAnswer
    positive: Positive | None
    group: ColumnAnswer | None
    crossed: tuple[ColumnAnswer, ...]
    combined: tuple[Sequence[str], Sequence[str]] | None
    inputs: Mapping[str, ColumnAnswer]
    without_target: int

    @classmethod
    def of(cls, request: DraftRequest, known: Known) -> ColumnAnswers:
        """Take each declaration from where it is said first; what cannot be told then is asked of a person.

        Refusals come as early as what they are about is known, so that a person's answers are not lost.
        """
        numbers = Numerals.of(request, known)

        def of(column: str, *, classes: bool) -> ColumnAnswer:
            look = None
            if (cells := known.cells.get(column)) is not None:
                form = form_of(cells, labels=True) if classes else known.forms[column]
                if not known.public:  # which cells may be missing is a kind, and public; how often one occurs is not
                    form = form.with_missing(dict.fromkeys(form.missing, 0))
                look = Look(
                    form,
                    cells if known.public else None,
                    known.origin,
                    numbers.spelling,
                    numbers.by_column.get(column),
                    numbers.doubts.get(column, ""),
                )
            return answer(column, request.words, look, ask=request.ask, doubt=request.doubt, classes=classes)

        # A person is asked for the privacy unit first: epsilon is for a unit. It is the first column that seems to
        # name persons, by its public values or its name, of which they say so.
        words, unit, persons = request.words, request.unit, dict[str, Persons]()
        roles = (*request.group_columns, request.target)
        if known.public and unit is None:
            declared = {*words.bounds, *words.categories, *words.booleans, *words.integers, *words.dates, *words.drop}
            declared |= {name for name, entry in words.book.items() if entry.kind is not None}
            candidates = [name for name in known.cells if name not in (*declared, *roles)]
            marks = {name: Marks.of(cells) for name, cells in known.cells.items()}
            repeated = persons_in(marks, candidates, named=[name for name in candidates if named_as_identifier(name)])
            persons = {seems.column: seems for seems in repeated}
        for column in [*persons, *(name for name in known.names if name not in persons)] if unit is None else []:
            seems = persons.get(column)
            ask = request.ask if seems is None else request.doubt or request.ask
            if ask is None or column in roles or (seems is None and not named_as_identifier(column)):
                continue
            reply = ask(
                f"column {column}: {'' if seems is None else f'{seems.words}; '}are all rows with one value of it rows "
                "of one person? y or n; Enter is n"
            )
            if reply.strip().lower() in ("y", "yes"):
                unit = column
                break

        # the target and the groups, whatever their values look like: classes, unless numbers are predicted or cut
        regression = _is_regression(request, known)
        target = of(request.target, classes=not regression)
        group, cut, combined = None, request.group in words.edges, None
        if request.group is not None:
            group = of(request.group, classes=not cut)
            if not cut:
                _require_few(request.group, group, known.forms.get(request.group))
                _require_two("sensitive", request.group, group)
        crossed = tuple(of(column, classes=True) for column in request.crossed)
        if crossed:
            combined = _sized_combinations(request, crossed, known)
        if regression and request.positive is not None:
            raise ExperimentError(f"--positive names a class, and {request.target!r} holds numbers; leave it out")
        if not regression:
            _require_two("target", request.target, target)
        positive = None if request.positive is None else Positive(request.positive, "positive: as given")
        if not regression and target.categories:
            positive = positive_of(request.target, target.categories, request.positive, request.ask)

        # all others are inputs, the numbers that edges cut into groups among them
        taken = {request.target, unit, None if cut else request.group, *request.crossed}
        inputs = {column: of(column, classes=False) for column in known.names if column not in taken}
        targets = known.cells.get(request.target, ()) if known.public and target.empty is None else ()
        blank = sum(not cell for cell in targets)
        return cls(numbers, persons, unit, regression, target, positive, group, crossed, combined, inputs, blank)


@dataclass(frozen=True)
class Numerals:
    """Way in which a table writes numbers: its declaration, or a ``doubt`` that a person has to decide.

    Columns of numbers that are written otherwise, or perhaps so, have a spelling in ``by_column``, and a doubt in
    ``doubts``. Nothing is known if no cell was looked at (``looked`` is false).
    """

    spelling: Spelling = PLAIN
    doubt: str = ""
    looked: bool = False
    stated: bool = False
    by_column: Mapping[str, Spelling] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: DraftRequest, known: Known) -> Numerals:
        """The way in which columns of numbers are written, or the doubt between several, for each column.

        Three digits behind every comma or point are decimals or thousands. The decimals of other columns decide it
        where they have a comma and the point parts thousands, or the other way round; else a person says which. Where
        no way fits all columns, each is written as its own cells are. Of cells that are not public none is quoted.
        """
        words, seen, forms = request.words, known.cells, known.forms
        written = {name: form.spellings for name, form in forms.items() if KINDS.get(form.kind).stored == "numbers"}
        cells = {name: sorted(set(seen[name]) - set(forms[name].missing)) for name in written}
        ways = {name: readings(cells[name], fit) for name, fit in written.items()}
        if words.decimal is not None or words.thousands is not None:
            stated = Spelling(words.decimal or ".", words.thousands or "")
            in_doubt = () if stated.thousands else (name for name, several in ways.items() if len(several) > 1)
            return cls(stated, looked=bool(seen), stated=True, by_column=dict.fromkeys(in_doubt, stated))
        marked = {name for name in written if any(mark in cell for cell in cells[name] for mark in ".,")}
        decided = {name for name in marked if len(ways[name]) == 1}
        decimals = {spelling.decimal for name in decided for spelling in written[name]}
        differing, doubts = dict[str, Spelling](), dict[str, str]()
        for name in (name for name, several in ways.items() if len(several) > 1):
            whole = any(cell.isdigit() for cell in cells[name])
            other, parted = sorted(ways[name], key=lambda way: bool(way.thousands))
            elsewhere = decimals if len(decimals) == 1 else set()
            if parted.decimal in elsewhere or (other.decimal in elsewhere and not whole):
                differing[name] = parted if parted.decimal in elsewhere else other
                continue
            differing[name], doubts[name] = cls._asked(name, cells[name], other, parted, request, public=known.public)
        apart = {name: (differing[name],) if name in differing else fit for name, fit in written.items()}
        fits = [spelling for spelling in SPELLINGS if apart and all(spelling in fit for fit in apart.values())]
        fits += [spelling for spelling in SPELLINGS if decided and all(spelling in written[name] for name in decided)]
        table = fits[0] if fits else PLAIN
        differing = {
            name: way for name, way in differing.items() if way != table or doubts.get(name) or not way.thousands
        }
        if len({*doubts.values()}) == 1 and not decided and all(doubts.values()):  # the table's one way of writing
            return cls(table, next(iter(doubts.values())), looked=bool(seen))
        return cls(
            table,
            looked=bool(seen),
            by_column=differing,
            doubts={name: doubt for name, doubt in doubts.items() if doubt},
        )

    @staticmethod
    def _asked(
        name: str, cells: Sequence[str], other: Spelling, parted: Spelling, request: DraftRequest, *, public: bool
    ) -> tuple[Spelling, str]:
        """Ask how a column's numbers are written; else the way with thousands, and the doubt in words."""
        cell = next(cell for cell in cells if as_number(cell, parted) != as_number(cell, other))
        if not public:
            cell = f"12{parted.thousands}345"
        as_thousands, as_decimals = (number_text(float(as_number(cell, way) or 0)) for way in (parted, other))
        if request.doubt is not None:

            def read(reply: str) -> str:
                if reply and reply not in (as_thousands, as_decimals):
                    raise ExperimentError(f"{reply!r} is neither")
                return reply

            question = f"column {name}: is {cell!r} the number {as_thousands} or {as_decimals}?"
            if reply := asked_again(request.doubt, question, read):
                return parted if reply == as_thousands else other, ""
        return parted, (
            f'write "{parted.thousands}" if {cell} is {as_thousands}, as the bounds have it; if it is '
            f'{as_decimals}, write thousands = "", set decimal = "{other.decimal}" and mend the bounds'
        )

    @property
    def lines(self) -> list[str]:
        """Lines of the declaration that say how numbers are written."""
        decimal = [f'decimal = "{self.spelling.decimal}"'] if self.spelling.decimal != "." else []
        if self.doubt:
            return [*decimal, f'thousands = "{BLANK}"   # {self.doubt}']
        why = "as given" if self.stated else "by the form of the numbers"
        return [*decimal, *([f'thousands = "{self.spelling.thousands}"   # {why}'] * bool(self.spelling.thousands))]


def _is_regression(request: DraftRequest, known: Known) -> bool:
    """Say whether numbers are predicted: by the operator's bounds, a person's word, or because they cannot be classes.

    ExperimentError for whole numbers that may be either, more than ten of them or public ones that fall off as counts
    do, and for more texts, dates or amounts than classes can be.
    """
    column, words = request.target, request.words
    entry = words.book.get(column)
    if column in words.bounds or (entry is not None and entry.low is not None):
        return True
    if column in words.categories or entry is not None or column not in known.cells:
        return False
    kind, values = KINDS.get(known.forms[column].kind), set(known.cells[column]) - set(MISSING)
    if kind.stored != "numbers":
        # more dates, amounts or texts than are classes are predicted as numbers, or listed by a person
        if kind.stored == "days" and len(values) > _MOST_NUMBERS:
            most, what = _MOST_NUMBERS, "dates"
            remedy = f"say from when to when, to predict days: --bounds {column}=LOW:HIGH"
        elif len(values) > _MOST_NUMBERS and all(map(is_amount, values)):
            most, what = _MOST_NUMBERS, "numbers with signs of money or percent"
            remedy = "write plain ones, 12 for 12%, in every table"
        elif len(values) > MOST_CATEGORIES:
            most, what, remedy = MOST_CATEGORIES, "texts", "predict another column"
        else:
            return False
        raise ExperimentError(
            f"the target {column!r} holds over {most} different {what}, no classes: {remedy}, or list all of them with "
            f"--categories {column}=A,B,..."
        )
    counts = not request.guess and kind.whole and _falls_as_counts(known.cells[column])
    if len(values) <= _MOST_NUMBERS and not counts:
        return False
    if not kind.whole or len(values) > MOST_CATEGORIES:
        return True
    what = f"the target {column!r} holds {len(values)} different whole numbers"
    if request.ask is not None:
        reply = request.ask(f"{what}: are they numbers, or codes of classes? n or c; Enter is n")
        return reply.strip() not in ("c", "C")
    raise ExperimentError(
        f"{what}, which may be codes of classes or numbers: say which with --categories {column}=A,B,... or "
        f"--bounds {column}=LOW:HIGH"
    )


def _falls_as_counts(cells: Sequence[str]) -> bool:
    """Say whether whole numbers are 0, 1, 2, ..., four of them at least, and the upper half of them are rare."""
    times = Counter(int(number) for cell in cells if (number := as_number(cell)) is not None)
    often = [times[value] for value in range(len(times))]
    if len(often) < _FEWEST_COUNTS or not all(often):
        return False
    return _RARER * max(often[(len(often) + 1) // 2 :]) < max(often)


_FEWEST_COUNTS, _RARER = 4, 5
"""Different counts, and how many times as frequent as any of their upper half the most frequent one is."""


def _require_few(column: str, group: ColumnAnswer, form: ColumnForm | None) -> None:
    """Refuse undeclared groups if there would be very many, or one for each number."""
    kind = None if form is None else KINDS.get(form.kind)
    numeric = kind is not None and kind.stored in ("numbers", "days") and len(group.categories) > _MOST_NUMBERS
    declared = group.source.startswith(_BY_A_PERSON)
    if declared or not (numeric or len(group.categories) > MOST_GROUPS):
        return
    what = f"{len(group.categories)} different {'numbers' if numeric else 'values'}, and each would be a group"
    raise ExperimentError(
        f"column {column!r}, the group, has {what}; cut numbers at public edges with --edges {column}=30,50, or name "
        f"the groups with --categories {column}=A,B"
    )


MOST_GROUPS, _MOST_NUMBERS = 20, 10
"""Most groups that are read off a public table, and `check` times a run of; of numbers, which may be codes, fewer."""


def _require_two(role: str, column: str, declared: ColumnAnswer) -> None:
    """Refuse classes or groups of one value only."""
    if len(declared.categories) == 1:
        raise ExperimentError(
            f"column {column!r}, the {role}, has the one value {declared.categories[0]!r} ({declared.source}), and two "
            f"at least are compared; give all of them with --categories {column}={declared.categories[0]},..."
        )


def _sized_combinations(
    request: DraftRequest, parts: Sequence[ColumnAnswer], known: Known
) -> tuple[Sequence[str], Sequence[str]] | None:
    """The groups of several columns that have enough public rows, and those with fewer; None if sizes are not known.

    ExperimentError if there would be very many groups, or fewer than two that are large enough.
    """
    for column, part in zip(request.crossed, parts, strict=True):
        if column in request.words.edges:
            raise ExperimentError(
                f"--edges {column} cuts numbers into groups, and --group names several columns: give it one, or a "
                "column of the cut numbers"
            )
        _require_few(column, part, known.forms.get(column))
    counted = known.public and all(column in known.cells for column in request.crossed)
    if not counted or not all(part.categories for part in parts):
        return None
    readers = [Values(part.categories, spelt=Spelt(part.same, empty=part.empty)) for part in parts]
    columns = [map(reader.place, known.cells[column]) for reader, column in zip(readers, request.crossed, strict=True)]
    sizes = Counter(zip(*columns, strict=True))
    named = {
        places: CROSS.join(part.categories[index] for part, index in zip(parts, places, strict=True))
        for places in itertools.product(*(range(len(part.categories)) for part in parts))
    }
    large = [cell for places, cell in named.items() if sizes[places] >= request.least_group]
    small = [f"{cell} ({sizes[places]})" for places, cell in named.items() if sizes[places] < request.least_group]
    if len(large) < 2:
        raise ExperimentError(
            f"the groups of {' and '.join(request.crossed)} have fewer than {request.least_group} rows each, but for "
            f"{len(large)}: {', '.join(small[:5])}; lower --least-group, or name one column"
        )
    return large, small


def _feature(column: str, request: DraftRequest, known: Known, answers: ColumnAnswers) -> str:
    declared, drop, persons = answers.inputs[column], column in request.words.drop, answers.persons.get(column)
    cells = known.cells.get(column) if known.public else None
    if not drop and persons is not None:
        return (
            f"  # {{name = {_text(column)}}},   left out: it may identify persons, as {persons.words}; if it does "
            f"not, --bounds or --categories make it an input"
        )
    if drop or (reason := _useless(column, declared, cells)) is not None:
        return f"  # {{name = {_text(column)}}},   left out: {'as asked' if drop else reason}"
    if declared.kind is None:
        return f'  {{name = {_text(column)}, kind = "{BLANK}"}},   # {_comment(declared)}'
    kind, parts = KINDS.get(declared.kind), [f"name = {_text(column)}"]
    if declared.kind not in _DEFAULT_KINDS:
        parts.append(f'kind = "{declared.kind}"')
    parts += _written(declared)
    if kind.listing:
        parts += [f"categories = {_listed(declared.categories)}", *_spelt(declared)]
    elif kind.bounded:
        parts += [f"low = {_bound(declared.low)}", f"high = {_bound(declared.high)}", *[_CUT] * declared.cut]
    if declared.missing:
        parts.append(f"missing = {_listed(declared.missing)}")
        if not kind.listing:
            parts.append(f"fill = {_bound(declared.fill)}")
    return f"  {{{', '.join(parts)}}},   # {_comment(declared)}"


def _useless(column: str, declared: ColumnAnswer, cells: Sequence[str] | None) -> str | None:
    numbered = numbers_rows(column)
    if numbered or (numbered is None and (cells is None or len(set(cells)) == len(cells))) or _counts(cells):
        return "it numbers the rows"
    if not column:
        return "it has no name; write one into the first row of every table if it is an input"
    if len(column) > LONGEST_NAME:
        return f"its name has {len(column)} letters, over {LONGEST_NAME}; shorten it in every table if it is an input"
    listing = declared.kind is not None and KINDS.get(declared.kind).listing
    only = "it has one value only" if listing and len(declared.categories) == 1 else None
    if declared.source.startswith(_BY_A_PERSON) and (declared.categories or declared.low is not None):
        return only  # whoever lists a column's values, or bounds it, means it as an input
    if named_as_identifier(column):
        return "it looks like an identifier"
    if listing and declared.categories:
        if all(map(is_time, declared.categories)):
            return "it holds times of day, which are not read; write hours as numbers, 13.75, if it is an input"
        if all(map(seems_dated, declared.categories)):
            return (
                f"it seems to hold dates; say how they are written with --dates {column}=FORMAT, as %d. %B %Y, after "
                "years of two digits are written with four"
            )
        if all(text.startswith('="') for text in declared.categories):
            return 'its cells are formulas of a spreadsheet; write their values, 0844 for ="0844", if it is an input'
        if all(map(is_amount, declared.categories)):
            return "its numbers have signs of money or percent; write plain ones, 12 for 12%, if it is an input"
        if len(declared.categories) > _MOST_NUMBERS and all(map(is_measured, declared.categories)):
            return (
                f"its cells are as {declared.categories[0]!r}: write plain numbers, their unit in a code book, and a "
                "column for each of two numbers, if it is an input"
            )
        if len(declared.categories) > MOST_CATEGORIES:
            return (
                f"it has {len(declared.categories)} categories, over {MOST_CATEGORIES}; list them in a code book or "
                "with --categories if it is an input"
            )
        if only is not None:
            return only
    if cells is not None and not declared.categories and all(cell in declared.missing for cell in cells):
        return "it is empty"
    if declared.low is None or declared.high is None or cells is None or declared.kind is None:
        return None
    if declared.low == declared.high:
        return "it has one value only"
    limits = [KINDS.get(declared.kind).bound_of(bound) for bound in (declared.low, declared.high)]
    if KINDS.get(declared.kind).stored == "numbers" and any(abs(limit or 0.0) > _MOST_WHOLE for limit in limits):
        return "its numbers have over 15 digits, of which some would be lost, as those of an identifier"
    return None


_BY_A_PERSON = ("given", "from")
"""Beginnings of the source of what a person declared; of what was read off a table it is another."""


_MOST_WHOLE = 2.0**53
"""The largest of the whole numbers that float64 tells apart."""


def _counts(cells: Sequence[str] | None) -> bool:
    """Say whether a column's cells are 0, 1, 2, ... or 1, 2, 3, ... from row to row."""
    if not cells or len(cells) < _FEWEST_ROWS or cells[0] not in ("0", "1"):
        return False
    return all(cell == str(number) for number, cell in enumerate(cells, start=int(cells[0])))


_FEWEST_ROWS = 5
"""Rows from which on a column that counts them is taken for their numbers."""


def _understood(
    request: DraftRequest, known: Known, answers: ColumnAnswers, features: Mapping[str, str]
) -> list[Understood]:
    """Say of each column what was understood, and what a person has to look at; ``features`` are inputs' lines."""
    persons, partly = answers.persons, known.partly

    def alone(line: Understood, declared: ColumnAnswer) -> Understood:
        values = "" if line.look or not known.sizes else _at_one_client(declared, known.cells[line.column], known.sizes)
        return replace(line, look=values) if values else line

    # the privacy unit: rows, unless a column seems to name persons
    look = ""
    of_unit = "all rows with one value are one person's"
    if answers.unit is None:
        named = [name for name in known.names if named_as_identifier(name) and name not in request.words.drop]
        evidence = next((f", and of {name} {seems.words}" for name, seems in persons.items()), "")
        evidence = evidence or (f", if one person has one value of {named[0]} alone" if named else "")
        of_unit = f"each row protected alone{evidence}"
        look = "a row or a person" if evidence and not request.interactive else ""
    lines = [Understood(answers.unit or "(rows)", "privacy unit", of_unit, "--unit COLUMN", look)]
    if answers.numbers.lines:
        written, look = ", ".join(answers.numbers.lines), "fill in" if answers.numbers.doubt else ""
        lines.append(Understood("(numbers)", "written", written, "--decimal, --thousands", look))
    if request.group is not None and answers.group is not None:
        lines.append(alone(of_answer(request.group, "group", answers.group), answers.group))
    lines += [Understood(column, "group, combined", "", f"--group {column}") for column in request.crossed]

    target = alone(of_answer(request.target, "predicted", answers.target), answers.target)
    if answers.regression and known.public and not target.look:
        cells = known.cells.get(request.target, ())
        numbers = sorted(number for cell in cells if (number := as_number(cell)) is not None)
        # a median far below the mean, as of counts and costs: clipped gradients are drawn to the median
        if numbers and numbers[0] >= 0 and numbers[len(numbers) // 2] < _FAR_BELOW * sum(numbers) / len(numbers):
            what = "most are small: answers will be too small on average, the run says by how much"
            target = replace(target, understood=f"{target.understood}; {what}", look="most numbers are small")
    if (positive := answers.positive) is not None:
        target = replace(
            target,
            understood=f"{target.understood}; {positive.why}",
            look=target.look or ("" if positive.sure else "which class is wanted"),
            change=f"{target.change}, --positive CLASS",
        )
    lines.append(target)

    if answers.without_target:
        rows = f"{answers.without_target:,} without {request.target!r} are left out"
        lines.append(Understood("(rows)", "records", rows, "rows in [data.columns]", "left out"))
    if request.from_public:
        odd = [row for table in known.tables for row in odd_rows(table, known.separator, skip=request.skip_rows)]
        lines += [Understood("(rows)", "records", row, "--skip-rows N", "no records") for row in odd]
    for column, declared in answers.inputs.items():
        line = alone(of_answer(column, "input", declared), declared)
        if features[column].startswith("  # {") and (reason := features[column].partition("left out: ")[2]):
            look = "" if column in request.words.drop else "left out"
            line = Understood(column, "no input", reason, line.change, look)
        lines.append(line)
    why, remedy = "only some of the clients' tables have it", "add it to the others"
    return [*lines, *(Understood(column, "no input", why, remedy, "left out") for column in partly)]


_FAR_BELOW = 0.7
"""Part of its mean below which the median of numbers draws answers away from it; that of wages is some .9."""


def _at_one_client(declared: ColumnAnswer, cells: Sequence[str], rows: Sequence[int]) -> str:
    """Say which values of a column the rows of one client alone have, as another spelling would be."""
    if len(rows) < 2 or not declared.categories:
        return ""
    reader, counts, first = Values(declared.categories, spelt=Spelt(declared.same, empty=declared.empty)), {}, 0
    for client, size in enumerate(rows):
        places = Counter[int]()
        for cell, times in Counter(cells[first : first + size]).items():
            places[reader.place(cell)] += times
        counts[f"client {client}"] = {value: places[at] for at, value in enumerate(declared.categories)}
        first += size
    return at_one_client(counts)


def _data_lines(
    name: str,
    request: DraftRequest,
    known: Known,
    answers: ColumnAnswers,
    features: Sequence[str],
    understood: Sequence[Understood],
) -> list[str]:
    """The lines of [data] and [data.columns], under what was understood."""
    clients = "one table, split among the clients" if known.shared else f"{len(known.tables)} clients, a folder each"
    rows = f'rows = "leave out where the target is empty"   # {answers.without_target:,} public rows'
    numbers, persons = answers.numbers, next(iter(answers.persons.values()), None)
    # beside semicolons numbers often have decimal commas: the reader of the draft is reminded if no cell was looked at
    point = not numbers.looked and not numbers.stated and known.separator == ";"
    of_target = _targets(request.target, answers.target)
    if not answers.regression:
        of_target = _values("target", request.target, answers.target, answers.positive)
    return [
        f"# Drafted from {request.folder} ({clients}). Next: fedsw check, plan, run, with --data-dir {request.folder}",
        "#",
        "# Everything under [data.columns] is public: bounds and categories come from you, a code book or a law, and",
        "# where each came from stands beside it. What was looked up in private records would be a release of them.",
        "#",
        *as_comments(understood),
        f"name = {_text(name)}",
        "",
        "[data]",
        'source = "files"',
        f"account = {_text(account_name(request.folder))}   # the data set: all runs on it have one budget, "
        "`fedsw account`",
        _judged_by(request, None if answers.unit else known.tables, regression=answers.regression),
        *_unit(answers.unit, known.names, None if request.interactive else persons),
        "[data.columns]",
        *([f"separator = {_text(known.separator)}"] if known.separator != "," else []),
        *([f"skip_rows = {request.skip_rows}"] if request.skip_rows else []),
        *([rows] if answers.without_target else []),
        *numbers.lines,
        *([_POINT] if point else []),
        "features = [",
        *features,
        *(
            f"  # {{name = {json.dumps(name)}}},   left out: only some of the clients' tables have it"
            for name in known.partly
        ),
        "]",
        *_groups(request, answers),
        of_target,
        "",
    ]


def account_name(folder: Path) -> str:
    """A name for the data set in a folder, whatever is learnt from it: the folder's own, and a digest of its path."""
    whole = folder.expanduser().resolve()
    digest = hashlib.sha256(str(whole).encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in whole.name).strip("-")
    return f"{plain or 'data'}-{digest}"


def _judged_by(request: DraftRequest, tables: Sequence[Path] | None, *, regression: bool) -> str:
    """The lines on records that judge: fewer where they cost most or tell enough, and what they cost.

    They follow from the number of rows, or of what is declared where that is secret.
    """
    if request.held_out is not None:
        return f"held_out = {_text(str(request.held_out))}"
    if request.declared is not None and regression:
        return _NONE_KEPT
    rows = request.declared or (None if tables is None else _rows_of(tables))
    if rows is None:
        return _KEPT.format(part=0.2, less="a fifth", why=f"Write 0.1 where persons times ε are below {_FEW:,}")
    if rows * _EPSILON < _FEW:
        why = f"Records times ε are below {_FEW:,}: more would judge little better; write 0.2 above that"
        return _KEPT.format(part=0.1, less="a tenth", why=why)
    if rows >= _MANY:
        return _KEPT.format(part=0.1, less="a tenth", why="A tenth of so many tells accuracy to a point")
    why = f"Write 0.1 where records times ε are below {_FEW:,}: more would judge little better there"
    return _KEPT.format(part=0.2, less="a fifth", why=why)


def _rows_of(tables: Sequence[Path]) -> int | None:
    """About how many records there are, which is public if every row is a unit; None if unknown."""
    total = 0
    for table in tables:
        if table.suffix.lower() == ".parquet":
            parquet: Any = importlib.import_module("pyarrow.parquet")
            total += parquet.read_metadata(table).num_rows
        elif is_text(table):
            with table.open("rb") as lines:
                total += max(0, sum(1 for line in lines if line.strip()) - 1)
        else:
            return None
    return total


def _unit(unit: str | None, names: Sequence[str], persons: Persons | None) -> list[str]:
    """The line that declares the privacy unit: a blank if persons seem to have several rows, else a comment."""
    if unit is not None:
        return [f"unit = {_text(unit)}   # all rows with one value of it are one person's, protected together", ""]
    if persons is not None:
        return [
            f'unit = "{BLANK}"   # the column of persons: {_text(persons.column)}, or delete this line if every row is '
            f"another person's ({persons.words})",
            "",
        ]
    near = next((column for column in names if named_as_identifier(column)), None)
    if near is None:
        return [""]
    return [
        f"# unit = {_text(near)}   # if a person has several rows: all with one value are then protected as one",
        "",
    ]


def _groups(request: DraftRequest, answers: ColumnAnswers) -> list[str]:
    """The line that declares the groups: of one column, cut or not, or of all combinations of several."""
    if not request.crossed:
        if request.group is None or answers.group is None:
            return []
        if (cuts := request.words.edges.get(request.group)) is None:
            return [_values("sensitive", request.group, answers.group)]
        return [f"sensitive = {{name = {_text(request.group)}, edges = [{', '.join(cuts)}]}}   # given with --edges"]
    parts = answers.crossed
    of = ", ".join(
        f"{{name = {_text(column)}, values = {_listed(part.categories)}{''.join(f', {key}' for key in _spelt(part))}}}"
        for column, part in zip(request.crossed, parts, strict=True)
    )
    large, small = answers.combined or ((), ())
    if not small:
        why = parts[0].source or "fill in"
        return [f"sensitive = {{of = [{of}]}}   # a group for each combination; {why}"]
    values = f"values = {_listed([*large, _OTHER])}, other = {_text(_OTHER)}"
    return [
        f"sensitive = {{of = [{of}], {values}}}   # {_OTHER}: {', '.join(small)}, of under {request.least_group} rows "
        f"each (--least-group); {parts[0].source}"
    ]


_OTHER = "other"


def _values(role: str, column: str, declared: ColumnAnswer, positive: Positive | None = None) -> str:
    named = "" if positive is None or positive.value is None else f", positive = {_text(positive.value)}"
    keys = [f"name = {_text(column)}", f"values = {_listed(declared.categories)}", *_spelt(declared)]
    line = f"{role} = {{{', '.join(keys)}{named}}}"
    why = declared.source if declared.categories else "fill in: every value that there can be"
    return f"{line}   # {why}" + ("" if positive is None else f"; {positive.why}")


def _targets(column: str, declared: ColumnAnswer) -> str:
    unsaid = declared.kind is None or declared.kind in _DEFAULT_KINDS or KINDS.get(declared.kind).stored == "numbers"
    kind = [] if unsaid else [f'kind = "{declared.kind}"']
    bounds = [
        *kind,
        *_written(declared),
        f"low = {_bound(declared.low)}",
        f"high = {_bound(declared.high)}",
        *[_CUT] * declared.cut,
    ]
    return f"targets = [{{name = {_text(column)}, {', '.join(bounds)}}}]   # {_comment(declared)}"


def _comment(declared: ColumnAnswer) -> str:
    if declared.kind is None:
        return 'fill in: kind = "number", low and high; or categories = [...] in its place'
    kind = KINDS.get(declared.kind)
    if (kind.listing and not declared.categories) or (kind.bounded and declared.low is None):
        return f"fill in from a code book or a law, not from the records ({declared.source or 'not given'})"
    return f"{declared.source}; {declared.doubt}" if declared.doubt else declared.source


def _spelt(declared: ColumnAnswer) -> list[str]:
    """Return keys of a declaration for other spellings of its values."""
    pairs = ", ".join(f"{_text(value)} = {_listed(others)}" for value, others in declared.same)
    empty = [] if declared.empty is None else [f"empty = {_text(declared.empty)}"]
    return [*([f"same = {{{pairs}}}"] if pairs else []), *empty]


def _written(declared: ColumnAnswer) -> list[str]:
    """Return keys of a declaration for the way in which cells are written, and for the unit of measurement."""
    parts = [] if declared.format is None else [f"format = {_text(declared.format)}"]
    if declared.spelling is not None:
        parts += [f"decimal = {_text(declared.spelling.decimal)}", f"thousands = {_text(declared.spelling.thousands)}"]
    return [*parts, *([f"units = {_text(declared.units)}"] if declared.units else [])]


_DEFAULT_KINDS = ("number", "category")
"""Kinds that a declaration has without saying so."""


def _bound(value: str | None) -> str:
    return f'"{BLANK}"' if value is None else value


def _listed(values: Sequence[str]) -> str:
    return f"[{', '.join(_text(value) for value in values)}]" if values else f'["{BLANK}"]'


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _training_lines(request: DraftRequest, known: Known, answers: ColumnAnswers) -> list[str]:
    """The lines of the sections behind [data]: what is learnt, and with which guarantee."""
    grouped = bool(request.group_columns)
    means = "no groups are declared; --group COLUMN would name them"
    if grouped:
        means = "from 0, accuracy alone, to 1, equal outputs of the groups alone"
        if not request.alpha:
            means += f";\n{' ' * 27}# 0 until somebody asks: `fedsw plan` with objective.alpha=0.2 says what that buys"
    penalty = ['penalty = "statistical-parity"', f"{f'alpha = {request.alpha or 0.0}':<26} # {means}"]
    relation: list[str] = []
    if request.declared is not None:  # else a record's replacement, which is the default
        penalty = ['penalty = "none"           # none has a bound for added and removed records']
        relation = [
            'relation = "add-remove"    # of a record; a weaker promise than the same ε for its replacement',
            'sampling = "poisson"',
            f"{f'records = {request.declared}':<26} # public, and not counted: sums are divided by it",
        ]
    return [
        '# [model] kind = "additive", a function of each column, or "logistic": preset chooses what is not written',
        "[objective]",
        f'task = "{"regression" if answers.regression else "classification"}"',
        *penalty,
        *([] if answers.regression or not grouped else _THRESHOLDS),
        "",
        _TRAINING,
        "[privacy]",
        f"epsilon = {_EPSILON}              # or --epsilon on the command line",
        f'delta = "{DEFAULT_DELTA}"             # 1/n^2 of all n records, from 1e-9 to 1e-3: far below 1/n for any n',
        *relation,
        "",
        "[federation]",
        f"clients = {4 if known.shared else len(known.tables)}",
    ]


_THRESHOLDS = (
    "# [thresholds]",
    "# share = 0.2              # of the budget: a threshold for each group, where predictions may read the group;",
    "#                            the penalty (alpha) is for where they may not. Two classes only; both go together",
)


def _require_loaded(text: str) -> None:
    """Refuse a draft that does not load, before it is written, with the line of each column that is at fault."""
    left_out = [line.strip(" #") for line in text.splitlines() if line.startswith("  # {name = ")]
    try:
        raw = tomllib.loads(text)
        if not raw["data"]["columns"]["features"]:
            listed = "".join(f"\n  {line}" for line in left_out)
            raise ExperimentError(f"no column is left as an input{listed}")
        parse_experiment(raw)
    except (ExperimentError, tomllib.TOMLDecodeError) as fault:
        quoted = re.findall(r"'([^']+)'", str(fault))
        at = [
            f"\n  line {row}: {line.strip()}"
            for row, line in enumerate(text.splitlines(), start=1)
            if any(f"name = {_text(name)}" in line for name in quoted) and not line.strip().startswith("#")
        ]
        raise ExperimentError(
            f"a draft of these tables could not be run, and is not written: {fault}{''.join(at)}"
        ) from None
