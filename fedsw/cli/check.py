"""`fedsw check`: everything that is wrong with clients' own files, before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import DataDir, Epsilon, Json, Name, Set, Settings, changes_of, echo
from fedsw.report.console import Screen


def check_command(
    experiment: Name,
    settings: Settings = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    data_dir: DataDir = None,
    client: Annotated[int | None, typer.Option(min=0, help="Look at this client's records alone.")] = None,
    estimate: Annotated[bool, typer.Option(help="Estimate time and memory with a short made-up run.")] = True,
    as_json: Json = False,
) -> None:
    """List every fault of all clients' files, and what a run takes.

    Prints sizes and what is public, too. Faults quote records: they are for the screen of whoever holds the files.
    Exits with 2 if a run could not start.
    """
    from fedsw.experiment import ExperimentError, load_experiment
    from fedsw.experiment.catalogue import find_experiment
    from fedsw.own_data.examine import examine
    from fedsw.own_data.screen import as_plain, examination_view
    from fedsw.text import json_text

    changes = changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir)
    chosen = load_experiment(find_experiment(experiment), changes)
    if chosen.data.source == "files" and chosen.data.data_dir is None:
        raise ExperimentError(
            f"{experiment} does not say where the clients' files are: add --data-dir DIR, a folder with a folder 0, 1, "
            "... for each client, or a client's own folder"
        )
    found = examine(chosen, Path(chosen.data.data_dir or ".").expanduser(), client)
    cost = None
    if estimate and found.fits and not found.alone:
        from fedsw.own_data.screen import measured_cost

        try:
            cost = measured_cost(chosen, [file.groups for file in found.files])
        except ExperimentError as fault:  # settings that do not go with so many records
            found = replace(found, together=(*found.together, str(fault)))
    if as_json:
        echo(json_text(as_plain(chosen, found, cost)))
    else:
        Screen(highlight=False).print(examination_view(chosen, found, cost))
    if not found.fits:
        raise typer.Exit(2)
