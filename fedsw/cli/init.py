"""`fedsw init`: an experiment drafted from clients' tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import echo

_Columns = list[str] | None


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="A folder 0, 1, ... with a table for each client.")],
    group: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the groups.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column that is predicted.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file that is written.")] = Path(
        "own.toml"
    ),
    code_book: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What is declared of every column: CSV or JSON, in place of flags."),
    ] = None,
    code_book_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a code book to fill in, with the tables' columns, and end."),
    ] = None,
    bounds: Annotated[
        _Columns, typer.Option("--bounds", metavar="COLUMN=LOW:HIGH", help="Public bounds; may be repeated.")
    ] = None,
    categories: Annotated[
        _Columns, typer.Option("--categories", metavar="COLUMN=A,B", help="Public values; may be repeated.")
    ] = None,
    dates: Annotated[
        _Columns, typer.Option("--dates", metavar="COLUMN=FORMAT", help="How dates are written, as %d.%m.%Y.")
    ] = None,
    boolean: Annotated[_Columns, typer.Option("--boolean", metavar="COLUMN", help="A column of truth values.")] = None,
    integer: Annotated[_Columns, typer.Option("--integer", metavar="COLUMN", help="A column of whole numbers.")] = None,
    edges: Annotated[
        _Columns, typer.Option("--edges", metavar="COLUMN=30,50", help="Cut the group's numbers here.")
    ] = None,
    drop: Annotated[_Columns, typer.Option("--drop", metavar="COLUMN", help="A column to leave out.")] = None,
    from_public: Annotated[
        bool, typer.Option("--from-public", help="The clients' tables are public: read bounds and categories off them.")
    ] = False,
    public_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public table of the same columns, to read them off.")
    ] = None,
    guess: Annotated[
        bool, typer.Option("--guess", help="Tell numbers, dates and text apart by looking: kinds are then public.")
    ] = False,
    unit: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Whose a row is: all rows of a person are protected as one.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's own table to measure on.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Draft a commented experiment for tables of your own.

    Of the tables only the names of their columns are read, unless you say --guess or --from-public. Bounds and
    categories come from a code book, from the options, from a public table, or from questions at a terminal; what is
    left is marked as a blank, which `fedsw check` asks for. --code-book-template writes a code book to fill in.
    """
    from fedsw.experiment import ExperimentError
    from fedsw.own_data.answers import Words, read_bounds, read_list
    from fedsw.own_data.code_book import CodeBook, read_code_book
    from fedsw.own_data.draft import DraftRequest, draft

    book = CodeBook() if code_book is None else read_code_book(code_book)
    group, target, unit = (
        group or book.with_role("group"),
        target or book.with_role("target"),
        unit or book.with_role("person"),
    )
    if code_book_template is not None:
        _write_template(code_book_template, folder, {"group": group, "target": target, "person": unit}, force=force)
        return
    if group is None or target is None:
        missing = "group" if group is None else "target"
        raise ExperimentError(
            f"nothing says which column is the {missing}: add --{missing} COLUMN, or a code book's role"
        )
    if output.exists() and not force:
        raise ExperimentError(f"{output} is there already; --force writes over it, -o names another file")
    cut = {entry.column: entry.edges for entry in book.entries.values() if entry.edges}
    words = Words(
        bounds=dict(read_bounds(text) for text in bounds or ()),
        categories=dict(read_list(text, "--categories") for text in categories or ()),
        dates={name: values[0] for name, values in (read_list(text, "--dates") for text in dates or ())},
        booleans=tuple(boolean or ()),
        integers=tuple(integer or ()),
        edges=cut | dict(read_list(text, "--edges") for text in edges or ()),
        drop=(*book.left_out, *(drop or ())),
        book={entry.column: entry.answer for entry in book.entries.values() if entry.column not in cut},
    )
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() and not (from_public or public_table) else None
    beside = None if held_out is None else held_out.expanduser().resolve()
    asked = DraftRequest(folder, group, target, words, from_public, public_table, guess, ask, beside, unit)
    found = draft(asked, name=_name(output))
    output.write_text(found.text, encoding="utf-8")
    rest = f"{found.blanks} lines to fill in" if found.blanks else "nothing left to fill in"
    echo(f"{output}: {rest}. Next: fedsw check {output} --data-dir {folder}")


def _write_template(path: Path, folder: Path, roles: dict[str, str | None], *, force: bool) -> None:
    from fedsw.experiment import ExperimentError
    from fedsw.own_data.answers import read_header
    from fedsw.own_data.code_book import template
    from fedsw.own_data.examine import named_as_identifier, places

    if path.exists() and not force:
        raise ExperimentError(f"{path} is there already; --force writes over it, or name another file")
    names, _ = read_header(places(folder)[0].table)
    known = {column: role for role, column in roles.items() if column}
    path.write_text(template(names, known), encoding="utf-8")
    for name in names:
        if named_as_identifier(name) and name not in known:
            echo(f"{name} looks like an identifier and is left out; where it says whose a row is, write person")
    echo(f"{path}: fill in bounds or categories. Next: fedsw init {folder} --code-book {path}")


def _ask(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True))


def _name(path: Path) -> str:
    """A name that an experiment may have, from its file's."""
    letters = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in path.stem
    )
    return letters.lstrip("._-") or "own"
