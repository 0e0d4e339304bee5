"""Starting a run for a person at a terminal: progress, interruption, failure, what to do next.

`print_run` is also what `fedsw show RUN` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsw._tools.exits import Exit
from fedsw._tools.later import imported_later
from fedsw._tools.settings import FederationError
from fedsw.cli.options import RunInterrupted, RunStopped, echo, echo_json, give_up_output, of_system
from fedsw.experiment.choices import modules_of
from fedsw.runs.commands import command_for
from fedsw.runs.progress import RunProgress
from fedsw.runs.recovery import StorageFault, require_remembered
from fedsw.runs.report import facts
from fedsw.runs.report.console import Screen
from fedsw.runs.report.run_documents import summary_screen
from fedsw.runs.run_files import RunFile, ended_early, has_asked, has_ended
from fedsw.runs.view import read_run, with_shapes
from fedsw.runs.write import draw_run, write_card

if TYPE_CHECKING:
    from fedsw.data import made_up as made_up_tables
    from fedsw.desk.own_data import synthetic_table as synthetic_table
    from fedsw.desk.use import trained as trained
    from fedsw.experiment import Experiment
    from fedsw.federation.engines import Engine
    from fedsw.federation.engines import driver as driver
    from fedsw.federation.engines.driver import RunResult
    from fedsw.runs.observer import Observer

# `fedsw show` loads this file, and no run: Flower and torch come with one, after all refusals
globals().update(imported_later(__spec__))


class RunRefused(ValueError):
    """A run that the federation refused before anything was spent; the message says what to mend."""


def execute(start: Callable[[Observer], RunResult], *, label: str, as_json: bool, quiet: bool) -> None:
    """Run `start` with a progress bar, draw its plots, write its model card, and print its summary.

    RunStopped if the run had begun, with the command that resumes or shows it; errors before that pass unchanged. A
    figure that cannot be drawn is a warning. The command ends with `Exit.ENDED_EARLY` if the run did.
    """
    with followed(start, label=label, quiet=quiet or as_json) as result:
        folder = result.directory
        with showing(folder):
            with _warning_of(f"the plots of {folder} could not be drawn"):
                draw_run(folder, modules_of(result.experiment))
            with _warning_of(f"the model card of {folder} could not be written"):
                write_card(folder)
            print_run(folder, as_json=as_json, quiet=quiet)
        require_whole(result)


def require_whole(result: RunResult) -> None:
    """End the command with `Exit.ENDED_EARLY` and the run's status if it ended before its planned end."""
    if ended_early(result.summary):
        echo(f"fedsw: the run {result.summary['status']}", err=True)
        raise typer.Exit(Exit.ENDED_EARLY)


_TRIED = 12
"""Rows of made-up cells that predictions are tried on."""


def rehearsed(directory: Path) -> None:
    """Try the later uses of a run: its screen, its card, and predictions for a table of made-up cells."""
    record = read_run(directory)
    summary_screen(record)
    write_card(directory)
    if not (directory / RunFile.MODEL).is_file():
        return
    thresholds = record.experiment.thresholds
    rule = thresholds.rule if thresholds.share and (directory / RunFile.SCORES).is_file() else None
    model = trained.load(directory, thresholds=rule, allow_modules=modules_of(record.experiment))
    columns = record.experiment.data.columns
    cells = None if columns is None or not model.answers else made_up_tables.made_up_cells(columns, _TRIED, seed=0)
    if columns is not None and cells is not None:
        table = directory / "made-up.csv"
        synthetic_table.write_table(table, cells, columns)
        model.predictions(table)


@contextmanager
def _warning_of(without: str) -> Iterator[None]:
    """Print a warning in place of an error."""
    try:
        yield
    except Exception as fault:
        echo(f"fedsw: warning: {without}: {fault}", err=True)


@contextmanager
def followed(start: Callable[[Observer], RunResult], *, label: str, quiet: bool) -> Iterator[RunResult]:
    """Run `start` with a progress bar; raises as `execute`, also for an error in the use of its result."""
    progress = RunProgress(label=label, quiet=quiet)
    with explaining(lambda: Begun(folder, command_for(folder)) if (folder := progress.directory) else None):
        with progress:
            result = start(progress)
        yield result


def run_whole(experiment: Experiment, engine: Engine, runs: Path, *, quiet: bool) -> Path:
    """Run an experiment with a progress bar, and return the folder of the completed run."""

    def start(observer: Observer) -> RunResult:
        return driver.run(experiment, engine=engine, runs=runs, observer=observer)

    with followed(start, label=experiment.name, quiet=quiet) as result:
        require_whole(result)
    return result.directory


@contextmanager
def showing(folder: Path, again: str = "") -> Iterator[None]:
    """Show or write the results of ended runs in a folder: an error here loses nothing.

    Raises:
        RunStopped: with `Exit.NOT_SHOWN`, the folder, and the command that shows it `again`.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        echo(f"fedsw: interrupted{_ended(folder, again)}", err=True)
        raise RunInterrupted from None
    except typer.Exit:
        raise
    except Exception as fault:
        give_up_output()
        raise RunStopped(f"not shown: {of_system(fault)}{_ended(folder, again)}", Exit.NOT_SHOWN) from fault


def print_run(directory: Path, *, as_json: bool, quiet: bool = False, coded: bool = False) -> None:
    """Print a run's screen, JSON, or with `quiet` its directory; errors are `coded`, or in the target's units.

    Its epsilon is the summary's; `show ledger` and pages replay the ledger. LedgerReplaced if its ledger is older than
    its summary, or of another run.
    """
    require_remembered(directory, missing_ok=True)
    if quiet and not as_json:
        echo(directory)
        return
    view = with_shapes(read_run(directory))
    view = facts.coded(view) if coded else view
    if as_json:
        echo_json(facts.plain(view))
    else:
        Screen().print(summary_screen(view))


@dataclass(frozen=True)
class Begun:
    """Work that had begun when a command broke off: its folder, and the command that resumes it."""

    folder: Path
    go_on: str


@contextmanager
def explaining(begun: Callable[[], Begun | None]) -> Iterator[None]:
    """Turn an error or signal that ends a run into one message with the command that resumes it.

    `begun` returns the begun work, None before any.

    Raises:
        RunStopped: instead of the error, if work had begun; its exit code tells whether budget was spent.
        RunInterrupted: for a signal.
        RunRefused: if the federation refused before anything was spent.
    """
    try:
        yield
    except KeyboardInterrupt:
        unfinished = begun()
        echo(f"fedsw: interrupted{_kept(unfinished) if unfinished else '; nothing had begun'}", err=True)
        raise RunInterrupted from None
    except (RunStopped, RunInterrupted, typer.Exit):  # explained already
        raise
    except Exception as fault:
        if unfinished := begun():
            raise RunStopped(f"stopped: {of_system(fault)}{_kept(unfinished)}", _spent(unfinished.folder)) from fault
        if isinstance(fault, StorageFault) and fault.__cause__ is not None:
            raise RunRefused(
                f"the disk does not take what a run must keep: {of_system(fault.__cause__)}. Nothing had begun; --runs "
                "and $FEDSW_ACCOUNTS say where runs and accounts are kept"
            ) from fault
        if isinstance(fault, FederationError):
            raise RunRefused(str(fault)) from fault
        raise


def _spent(folder: Path) -> Exit:
    """The exit code of a run in a folder that broke off."""
    if has_ended(folder):
        return Exit.NOT_SHOWN
    return Exit.BROKE_OFF if has_asked(folder) else Exit.FAILED


def _kept(begun: Begun) -> str:
    if has_ended(begun.folder):
        return _ended(begun.folder)
    if has_asked(begun.folder):
        return f"\nWhat was released is on record; `{begun.go_on}` goes on from there"
    return f"\nNothing was spent; `{begun.go_on}` goes on"


def _ended(folder: Path, again: str = "") -> str:
    return (
        f"\nIt has ended, and all that was released is in {folder}; `{again or f'fedsw show {folder}'}` shows it, and "
        "spends nothing"
    )
