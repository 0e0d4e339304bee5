"""`fedsw card`: what a reader must know of a run's model, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import RUNS, Json, Run, Runs, echo
from fedsw.text import json_text


def card_command(
    run: Run,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; the run's card.md.")
    ] = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write the model card of a run again.

    It tells the guarantee, what the model is worth on held-out records, columns and settings. RUN is the run's
    directory, or an experiment's name for its latest run, which wrote card.md when it ended.
    """
    from fedsw.runs.files import find_run
    from fedsw.use.card import write_card

    path = write_card(find_run(run, runs), output)
    echo(json_text({"card": str(path)}) if as_json else str(path))
