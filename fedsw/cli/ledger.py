"""`fedsw ledger`: what a run has spent, by its ledger."""

from __future__ import annotations

from fedsw.cli.options import RUNS, Json, Run, Runs, echo
from fedsw.report.console import Screen
from fedsw.text import json_text


def ledger_command(run: Run, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Replay a run's ledger and print what it has spent.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.report.screens import ledger_report
    from fedsw.runs.accounts import read_ledger
    from fedsw.runs.files import find_run

    account = read_ledger(find_run(run, runs))
    if as_json:
        echo(json_text(account))
    else:
        Screen().print(ledger_report(account))
