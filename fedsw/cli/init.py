"""`fedsw init`: an experiment drafted from clients' tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

_Columns = list[str] | None


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="A folder 0, 1, ... for each client, with train.csv.")],
    group: Annotated[str, typer.Option(metavar="COLUMN", help="The column of the groups.")],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column that is predicted.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file that is written.")] = Path(
        "own.toml"
    ),
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
    categories come from the options, from a public table, or from questions at a terminal; what is left is marked as a
    blank, which `fedsw check` asks for.
    """
    from fedsw.experiment import ExperimentError
    from fedsw.owndata.answers import Words, read_bounds, read_list
    from fedsw.owndata.draft import Asked, draft

    if output.exists() and not force:
        raise ExperimentError(f"{output} is there already; --force writes over it, -o names another file")
    words = Words(
        bounds=dict(read_bounds(text) for text in bounds or ()),
        categories=dict(read_list(text, "--categories") for text in categories or ()),
        dates={name: values[0] for name, values in (read_list(text, "--dates") for text in dates or ())},
        booleans=tuple(boolean or ()),
        edges=dict(read_list(text, "--edges") for text in edges or ()),
        drop=tuple(drop or ()),
    )
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() and not (from_public or public_table) else None
    beside = None if held_out is None else held_out.expanduser().resolve()
    asked = Asked(folder, group, target, words, from_public, public_table, guess, ask, beside, unit)
    found = draft(asked, name=_name(output))
    output.write_text(found.text, encoding="utf-8")
    rest = f"{found.blanks} lines to fill in" if found.blanks else "nothing left to fill in"
    typer.echo(f"{output}: {rest}. Next: fedsw check {output} --data-dir {folder}")


def _ask(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True))


def _name(path: Path) -> str:
    """A name that an experiment may have, from its file's."""
    letters = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in path.stem
    )
    return letters.lstrip("._-") or "own"
