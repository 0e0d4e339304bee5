"""`fedsw evaluate`: a released model on the records that clients kept out of training."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsw.cli.options import RUNS, AllowModule, DataDir, Json, Run, Runs, echo
from fedsw.report.console import Screen


def evaluate_command(
    run: Run,
    runs: Runs = RUNS,
    data_dir: DataDir = None,
    client: Annotated[int | None, typer.Option(min=0, help="This client's records alone.")] = None,
    allow_module: AllowModule = None,
    as_json: Json = False,
) -> None:
    """Measure a run's model on records kept out of its training.

    `data.held_out_fraction` keeps them out. RUN is the run's directory, with config.json and model.safetensors, or an
    experiment's name for its latest run. The metrics have no noise: they are for the screen of whoever holds the
    records, and nothing is written or sent.
    """
    from dataclasses import asdict

    from fedsw.own_data.evaluate import evaluate, evaluated_view
    from fedsw.runs.files import find_run
    from fedsw.text import json_text

    found = evaluate(find_run(run, runs), data_dir, client, allow_modules=allow_module or ())
    if as_json:
        echo(json_text([asdict(each) for each in found]))
    else:
        Screen(highlight=False).print(evaluated_view(found))
