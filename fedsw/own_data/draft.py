"""A commented experiment for clients' own tables, in TOML: what was given is filled in, the rest is left as blanks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.experiment import ExperimentError
from fedsw.experiment.load import BLANK
from fedsw.own_data._positive import Positive, positive_of
from fedsw.own_data.answers import MOST_CATEGORIES, Ask, ColumnAnswer, Words, answer, form_of, read_cells, read_header
from fedsw.own_data.apart import require_no_client_s
from fedsw.own_data.examine import named_as_identifier, places
from fedsw.text import nearest

_TRAINING = """\
[training]
preset = "auto"            # rounds, batches, learning rate and clips by rule, from the number of records and ε alone;
                           # `fedsw plan` shows them. What you write here, or under [clip], wins
"""


_CUT = 'outside = "cut"'
_POINT = '# decimal = ","   # if numbers are written with decimal commas, as they often are beside semicolons'
_KEPT = """\
held_out_fraction = 0.2    # of each client's records, never trained on ...
held_out_to = "everybody"  # ... and counted once when training has ended: with noise, within the same guarantee
# held_out = "held-out.csv"   # or a table at the server that holds nobody's private record, instead of these two lines\
"""


@dataclass(frozen=True)
class DraftRequest:
    """What a draft is asked for: what the command line says of columns (``words``) and whose a row is (``unit``).

    Of the classes one is the favourable (``positive``), where somebody says which.

    Kinds may come from the clients' tables themselves if these are public, from a public table of the same columns, or
    from a guess by the form of private values; the rest from a person, if one is there to ask.
    """

    folder: Path
    group: str
    target: str
    words: Words
    from_public: bool = False
    public_table: Path | None = None
    guess: bool = False
    ask: Ask | None = None
    held_out: Path | None = None
    unit: str | None = None
    positive: str | None = None


@dataclass(frozen=True)
class Draft:
    """An experiment as TOML, how many blanks are left in it, and what its reader must look at (``notes``)."""

    text: str
    blanks: int
    notes: tuple[str, ...] = ()


def draft(asked: DraftRequest, *, name: str) -> Draft:
    """The experiment for the tables of a folder.

    Of the tables only the first row is read, which names the columns, unless the operator says that they are public
    (`from_public`) or that the kinds of their columns may be (`guess`). A public table is read whole.
    ExperimentError for a column that is not there, or tables that do not agree.
    """
    found = places(asked.folder)
    tables = [place.table for place in found]
    names, separator = _header(tables)
    _require_known(asked, names)
    public, origin = _public(asked, tables, separator)
    private = {} if public or not asked.guess else _cells(tables, separator)
    seen = public or private
    comma = any(form_of(cells).comma for cells in seen.values()) if seen else None

    def of(column: str, *, classes: bool) -> ColumnAnswer:
        cells = None if public is None else public.get(column)
        guessed = form_of(private[column]) if column in private else None
        given = {"public": cells, "origin": origin, "guessed": guessed, "ask": asked.ask}
        return answer(column, asked.words, classes=classes, **given)  # type: ignore[arg-type]

    regression, unit = _is_regression(asked, public, private), asked.unit or _asked_for_unit(names, asked)
    target = of(asked.target, classes=not regression)
    cuts = asked.words.edges.get(asked.group)
    edges = None if cuts is None else f"sensitive = {{name = {_text(asked.group)}, edges = [{', '.join(cuts)}]}}"
    group = of(asked.group, classes=cuts is None)
    positive = _favourable(asked, target, regression=regression)
    taken = {asked.target, unit, asked.group if cuts is None else None}
    inputs = [column for column in names if column not in taken]
    features = [_feature(column, of(column, classes=False), drop=column in asked.words.drop) for column in inputs]
    lines = [
        *_head(name, asked, len(found), clients_share=found[0].client is None),
        *_unit(unit, names),
        *_columns(separator, comma, features),
        _values("sensitive", asked.group, group) if edges is None else f"{edges}   # given with --edges",
        _targets(asked.target, target) if regression else _values("target", asked.target, target, positive),
        "",
        *_rest(regression, clients=4 if found[0].client is None else len(found)),
    ]
    text = "\n".join(lines) + "\n"
    notes = () if positive is None or positive.sure else (f"{asked.target!r}, {positive.why}; --positive says which",)
    return Draft(text, sum(f'"{BLANK}"' in line.partition("#")[0] for line in lines), notes)


def _favourable(asked: DraftRequest, target: ColumnAnswer, *, regression: bool) -> Positive | None:
    """The favourable one of the classes that are known; None where there are none."""
    said = asked.positive
    if regression and said is not None:
        raise ExperimentError(f"--positive names a class, and {asked.target!r} holds numbers; leave it out")
    if regression or not target.categories:
        return None if said is None else Positive(said, "positive: as given")
    return positive_of(asked.target, target.categories, said, asked.ask)


def _header(tables: Sequence[Path]) -> tuple[list[str], str]:
    names, separator = read_header(tables[0])
    for table in tables[1:]:
        others, other = read_header(table)
        if set(others) != set(names) or other != separator:
            odd = sorted(set(others) ^ set(names))
            what = f"column {odd[0]!r} is in one of them only" if odd else "their cells are parted differently"
            raise ExperimentError(f"{tables[0]} and {table} do not agree: {what}; all clients' tables are alike")
    return names, separator


def _require_known(asked: DraftRequest, names: Sequence[str]) -> None:
    roles = {"--group": asked.group, "--target": asked.target, "--unit": asked.unit}
    for option, column in [*roles.items(), *(("a column option", column) for column in sorted(asked.words.names))]:
        if column is not None and column not in names:
            option = "the code book" if column in asked.words.book else option
            raise ExperimentError(
                f"{option} names {column!r}, and the tables have no such column; {nearest(column, list(names))}they "
                f"have {', '.join(names)}"
            )


def _public(asked: DraftRequest, tables: Sequence[Path], separator: str) -> tuple[dict[str, list[str]] | None, str]:
    if (table := asked.public_table) is not None:
        if not table.is_file():
            raise FileNotFoundError(f"there is no public table {table}")
        say = "If the clients' tables are public, say --from-public; else name another table"
        require_no_client_s(table, tables, option="--public-table", remedy=say)
        return _cells([table], read_header(table)[1]), f"the public table {table}"
    if asked.from_public:
        return _cells(tables, separator), f"the tables in {asked.folder}, which their operator says are public"
    return None, ""


def _cells(tables: Sequence[Path], separator: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for table in tables:
        for column, cells in read_cells(table, separator).items():
            found.setdefault(column, []).extend(cells)
    return found


def _is_regression(asked: DraftRequest, public: dict[str, list[str]] | None, private: dict[str, list[str]]) -> bool:
    """Whether numbers are predicted: by the operator's bounds, or because more than ten of them may be seen."""
    said = asked.words.book.get(asked.target)
    if asked.target in asked.words.bounds or (said is not None and said.low is not None):
        return True
    seen = (public or private).get(asked.target)
    if asked.target in asked.words.categories or said is not None or seen is None:
        return False
    return form_of(seen).kind in ("number", "integer") and len(set(seen)) > 10


def _feature(column: str, found: ColumnAnswer, *, drop: bool) -> str:
    if drop or (reason := _useless(column, found)) is not None:
        return f"  # {{name = {json.dumps(column)}}},   left out: {'as asked' if drop else reason}"
    parts = [f"name = {_text(column)}"]
    if found.kind in ("integer", "boolean", "date"):
        parts.append(f'kind = "{found.kind}"')
    if found.kind == "date" and found.format is not None:
        parts.append(f"format = {_text(found.format)}")
    if found.kind == "text":
        parts.append(f"categories = {_listed(found.categories)}")
    elif found.kind is None:
        parts.append(f'kind = "{BLANK}"')
    elif found.kind != "boolean":
        parts += [f"low = {_bound(found.low)}", f"high = {_bound(found.high)}"]
        parts += [_CUT] * found.cut
    if found.missing:
        parts.append(f"missing = {_listed(found.missing)}")
        if found.kind != "text":
            parts.append(f"fill = {_bound(found.fill)}")
    return f"  {{{', '.join(parts)}}},   # {_comment(found)}"


def _useless(column: str, found: ColumnAnswer) -> str | None:
    if named_as_identifier(column):
        return "it looks like an identifier"
    if found.kind == "text" and found.categories:
        if len(found.categories) > MOST_CATEGORIES:
            return f"it has {len(found.categories)} categories, over {MOST_CATEGORIES}"
        if len(found.categories) < 2:
            return "it has one value only"
    if found.low is not None and found.low == found.high:
        return "it has one value only"
    return None


def _comment(found: ColumnAnswer) -> str:
    if found.kind is None:
        return 'fill in: kind = "number", low and high; or categories = [...] in its place'
    blank = (found.kind == "text" and not found.categories) or (
        found.kind in ("number", "integer", "date") and found.low is None
    )
    if blank:
        return f"fill in from a code book or a law, not from the records ({found.source or 'not given'})"
    return found.source


def _values(role: str, column: str, found: ColumnAnswer, positive: Positive | None = None) -> str:
    named = "" if positive is None or positive.value is None else f", positive = {_text(positive.value)}"
    line = f"{role} = {{name = {_text(column)}, values = {_listed(found.categories)}{named}}}"
    why = found.source if found.categories else "fill in: every value that there can be"
    return f"{line}   # {why}" + ("" if positive is None else f"; {positive.why}")


def _targets(column: str, found: ColumnAnswer) -> str:
    bounds = [f"low = {_bound(found.low)}", f"high = {_bound(found.high)}", *[_CUT] * found.cut]
    return f"targets = [{{name = {_text(column)}, {', '.join(bounds)}}}]   # {_comment(found)}"


def _head(name: str, asked: DraftRequest, count: int, *, clients_share: bool) -> list[str]:
    there = "one table, split among the clients" if clients_share else f"{count} clients, a folder each"
    held_out = _KEPT if asked.held_out is None else f"held_out = {_text(str(asked.held_out))}"
    return [
        f"# Drafted from {asked.folder} ({there}). Next: fedsw check, plan, run, with --data-dir {asked.folder}",
        "#",
        "# Everything under [data.columns] is public: bounds and categories come from you, a code book or a law, and",
        "# where each came from stands beside it. What was looked up in private records would be a release of them.",
        f"name = {_text(name)}",
        "",
        "[data]",
        'source = "files"',
        f"account = {_text(account_name(asked.folder))}   # the data set: all runs on it have one budget, "
        "`fedsw account`",
        held_out,
    ]


def account_name(folder: Path) -> str:
    """A name for the data set in a folder, whatever is learnt from it: the folder's own, and a digest of its path."""
    whole = folder.expanduser().resolve()
    digest = hashlib.sha256(str(whole).encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in whole.name).strip("-")
    return f"{plain or 'data'}-{digest}"


def _asked_for_unit(names: Sequence[str], asked: DraftRequest) -> str | None:
    """The first column that looks like an identifier and that a person says to be the unit."""
    for column in names:
        if asked.ask is None or column in (asked.group, asked.target) or not named_as_identifier(column):
            continue
        said = asked.ask(f"column {column}: are all rows with one value of it rows of one person? y or n; Enter is n")
        if said.strip().lower() in ("y", "yes"):
            return column
    return None


def _unit(unit: str | None, names: Sequence[str]) -> list[str]:
    """The line that says whose privacy counts; a comment where nobody said."""
    if unit is not None:
        return [f"unit = {_text(unit)}   # all rows with one value of it are one person, whose privacy counts", ""]
    near = next((column for column in names if named_as_identifier(column)), None)
    if near is None:
        return [""]
    return [
        f"# unit = {_text(near)}   # if a person has several rows: all with one value are then protected as one",
        "",
    ]


def _columns(separator: str, comma: bool | None, features: Sequence[str]) -> list[str]:
    """The lines of the columns; `comma` is whether decimals are commas, None where no cell was looked at."""
    return [
        "[data.columns]",
        *([f"separator = {_text(separator)}"] if separator != "," else []),
        *(['decimal = ","'] if comma else [_POINT] if comma is None and separator == ";" else []),
        "features = [",
        *features,
        "]",
    ]


def _rest(regression: bool, *, clients: int) -> list[str]:
    return [
        "[model]",
        'kind = "logistic"',
        "",
        "[objective]",
        f'task = "{"regression" if regression else "classification"}"',
        'penalty = "statistical-parity"',
        "alpha = 0.2                # from 0, accuracy alone, to 1, equal outputs of the groups alone",
        "",
        _TRAINING,
        "[privacy]",
        "epsilon = 1.0              # or --epsilon on the command line",
        'delta = "auto"             # 1/n^2 of all n records, and 1e-9 where that is less: far below 1/n for any n',
        "",
        "[federation]",
        f"clients = {clients}",
    ]


def _bound(value: str | None) -> str:
    return f'"{BLANK}"' if value is None else value


def _listed(values: Sequence[str]) -> str:
    return f"[{', '.join(_text(value) for value in values)}]" if values else f'["{BLANK}"]'


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
