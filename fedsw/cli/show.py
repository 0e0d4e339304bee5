"""`fedsw show`: the summary of a run again."""

from __future__ import annotations

from fedsw.cli.options import RUNS, Json, Run, Runs


def show_command(run: Run, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Print the summary of a run again.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.cli.execution import print_run
    from fedsw.runs.files import find_run

    print_run(find_run(run, runs), as_json=as_json)
