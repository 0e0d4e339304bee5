"""`fedsw bundle`: what this fedsw sends to nodes, and its hash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import Json, echo
from fedsw.text import json_text


def bundle_command(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Write the bundle's files into it.")] = None,
    as_json: Json = False,
) -> None:
    """Print the hash of the bundle that this fedsw sends to nodes.

    A node can demand it (`--bundle`). With DIR the files are written there, to be read, or submitted with `flwr run
    DIR`.
    """
    from fedsw.deploy.bundle import bundle_files, bundle_hash, write_bundle

    if folder is not None:
        write_bundle(folder)
    if as_json:
        written = None if folder is None else str(folder)
        echo(json_text({"sha256": bundle_hash(), "files": sorted(bundle_files()), "directory": written}))
    else:
        echo(bundle_hash())
