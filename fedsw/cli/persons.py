"""`fedsw persons`: whether hospitals that do not see each other's records have persons in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import Json, echo

persons = typer.Typer(no_args_is_help=True, help="Count the persons that clients have in common, by hashes.")


@persons.command("digest")
def digest_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="This client's own records.")],
    schema: Annotated[Path, typer.Option(metavar="FILE", help="The columns, with `unit`, that this client agrees to.")],
    key_file: Annotated[
        Path, typer.Option(metavar="FILE", help="The key that the operators share, and the server does not have.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the hashes go.")],
) -> None:
    """Write a keyed hash of everybody who has rows in a table, for the operators of the other clients.

    Who has the key can find out whether a person whose identifier he knows is in the table.
    """
    from fedsw.deploy.certificates import write_secret
    from fedsw.own_data.persons import digests

    content = digests(table, schema, key_file)
    write_secret(output, content)
    count = len(content.splitlines()) - 1
    echo(f"{output}: hashes of {count} persons; whoever has the key, too, can try identifiers on it")


@persons.command("compare")
def compare_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of `fedsw persons digest`.")],
    as_json: Json = False,
) -> None:
    """Say how many persons each two files have in common. Exits with 2 if there are any."""
    from fedsw.own_data.persons import in_common
    from fedsw.text import json_text

    found = in_common(files)
    if as_json:
        plain = [
            {"files": [str(each.one), str(each.other)], "persons": each.persons, "common": each.common}
            for each in found
        ]
        echo(json_text({"pairs": plain}))
    else:
        for each in found:
            sizes = f"of {each.persons[0]} and {each.persons[1]}"
            echo(f"{each.one} and {each.other}: {each.common} persons in common, {sizes}")
    if any(each.common for each in found):
        raise typer.Exit(2)
