"""`fedsw show`: a run again: its summary, how far it has come, its ledger, its card; and a client's own side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedsw.cli.options import RUNS, Json, Run, Runs, echo
from fedsw.report.console import Screen
from fedsw.text import json_text, number, upward

if TYPE_CHECKING:
    from fedsw.report.accounts import ClientStatus
    from fedsw.report.status import Status

What = Annotated[
    Literal["summary", "progress", "ledger", "card", "client"],
    typer.Argument(metavar="[summary|progress|ledger|card|client]"),
]
Watch = Annotated[bool, typer.Option("--watch", help="progress: look until the run ends; Ctrl-C stops looking only.")]
Every = Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="How often --watch looks.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="card: where to write it; the run's card.md.")
]
_CLIENT_STYLES = {"taking part": "green", "quiet": "yellow", "over": "green"}
_STYLES = {"running": "green", "finished": "green", "starting": "cyan", "stalled": "yellow", "stopped": "red"}


def show_command(
    run: Run,
    what: What = "summary",
    watch: Watch = False,
    every: Every = 2.0,
    output: Output = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Show a run: its summary, progress, ledger or card.

    RUN is the run's directory, or an experiment's name for its latest run. Its summary is what it printed when it
    ended; progress has rounds, ε spent, signal to noise, clients, bytes, pace and the time left; ledger replays what
    it spent; card writes its model card again. With client, RUN is the --state-dir of `fedsw client`: the runs that
    this machine takes part in, and what its own ledgers have spent.
    """
    from fedsw.runs.files import find_run

    if watch and what != "progress":
        raise typer.BadParameter("--watch follows a run at its server: fedsw show RUN progress --watch")
    if output is not None and what != "card":
        raise typer.BadParameter("--output is where a card is written: fedsw show RUN card -o FILE")
    if what == "client":
        _show_client(Path(run), as_json=as_json)
        return
    directory = find_run(run, runs)
    if what == "progress":
        _show_progress(directory, watch=watch, every=every, as_json=as_json)
    elif what == "ledger":
        _show_ledger(directory, as_json=as_json)
    elif what == "card":
        from fedsw.use.card import write_card

        path = write_card(directory, output)
        echo(json_text({"card": str(path)}) if as_json else str(path))
    else:
        from fedsw.cli.execution import print_run

        print_run(directory, as_json=as_json)


def _show_progress(directory: Path, *, watch: bool, every: float, as_json: bool) -> None:
    from fedsw.report.status import read_status

    if not watch:
        found = read_status(directory)
        if as_json:
            echo(json_text(found.as_dict()))
        else:
            Screen().print(status_view(found))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _follow(directory, every, lambda found: echo(json_text(found.as_dict(), indent=None)))
        else:
            with Live(console=Screen(), auto_refresh=False) as live:
                _follow(directory, every, lambda found: live.update(status_view(found), refresh=True))


def _show_ledger(directory: Path, *, as_json: bool) -> None:
    from fedsw.report.screens import ledger_report
    from fedsw.runs.accounts import read_ledger

    account = read_ledger(directory)
    if as_json:
        echo(json_text(account))
    else:
        Screen().print(ledger_report(account))


def _show_client(folder: Path, *, as_json: bool) -> None:
    """A client's own side."""
    from fedsw.report.accounts import read_client_status

    found = read_client_status(folder.expanduser())
    if as_json:
        echo(json_text(found.as_dict()))
    else:
        Screen().print(client_view(found))


def client_view(status: ClientStatus) -> RenderableType:
    """A client's own side as a small table: a part for each run, the last at the end, and ledgers of other runs."""
    from fedsw.report.accounts import state_of, words_of_run

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for run in status.runs:
        state, ago = state_of(run), _duration(max(0.0, time.time() - run.heard))
        about = Text.assemble((state, _CLIENT_STYLES[state]), f", last asked {ago} ago")
        rows.add_row(f"run {run.name}", Group(about, *map(Text, words_of_run(run, Path(status.folder)))))
    known = {run.run for run in status.runs}
    for ledger in status.ledgers:
        if ledger.run not in known:
            spent = f"ε = {upward(ledger.epsilon, 4)} of {upward(ledger.budget, 4)} at δ = {upward(ledger.delta)}"
            rows.add_row(
                f"client {ledger.client}", Text(f"{spent}, {ledger.rounds} rounds, of the run {ledger.run[:12]}")
            )
    rows.add_row("folder", Text(status.folder, style="cyan"))
    return rows


def status_view(status: Status) -> RenderableType:
    """The status as a small table."""
    from fedsw.experiment.catalogue import of_unit
    from fedsw.runs.record import command_for

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    state = Text(status.state, style=_STYLES[status.state])
    rows.add_row("state", Text.assemble(state, f"  {status.why}" if status.why else ""))
    bar = ProgressBar(total=status.rounds, completed=status.round, width=24)
    rows.add_row("round", Group(Text(f"{status.round} of {status.rounds}"), bar))
    rows.add_row("ε spent", f"{upward(status.epsilon_spent)} of {upward(status.epsilon)}")
    if status.unit != "record":
        rows.add_row("ε is for", of_unit(status.unit))
    for client, spent in status.epsilon_by_client.items():
        rows.add_row(f"  client {client}", upward(spent))
    if status.snr is not None:
        rows.add_row(
            "SNR", f"{number(status.snr, 2)} in the last round: how well sums are heard, not what the model is worth"
        )
    if status.clients_alive is not None:
        rows.add_row("clients", f"{status.clients_alive} of {status.clients} in the last round")
    if status.bytes_up is not None and status.bytes_down is not None:
        rows.add_row("traffic", f"{status.bytes_up:,} bytes up, {status.bytes_down:,} down (arrays, all clients)")
    if status.seconds_per_round is not None:
        left = "" if status.seconds_left is None else f", about {_duration(status.seconds_left)} left"
        rows.add_row("pace", f"{status.seconds_per_round:.3g} s a round{left} (for the operator, not for publication)")
    rows.add_row("last sign", f"{_duration(status.seconds_since)} ago")
    rows.add_row("folder", Text(status.directory, style="cyan"))
    if status.state == "stopped":
        rows.add_row("go on", Text(command_for(Path(status.directory)), style="cyan"))
    return rows


def _follow(directory: Path, every: float, show: Callable[[Status], None]) -> None:
    from fedsw.report.status import read_status

    while True:
        found = read_status(directory)
        show(found)
        if found.state in ("finished", "stopped"):
            return
        time.sleep(every)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
