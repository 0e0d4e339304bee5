"""`fedsw status`: how far a run has come, once or until it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedsw.cli.options import RUNS, Json, Run, Runs
from fedsw.text import json_text, number

if TYPE_CHECKING:
    from fedsw.report.status import Status

Watch = Annotated[bool, typer.Option("--watch", help="Keep looking until the run ends; Ctrl-C stops looking only.")]
Every = Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="How often --watch looks.")]
_STYLES = {"running": "green", "finished": "green", "starting": "cyan", "stalled": "yellow", "stopped": "red"}


def status_command(
    run: Run, watch: Watch = False, every: Every = 2.0, runs: Runs = RUNS, as_json: Json = False
) -> None:
    """Print how far a run has come: rounds, ε spent, signal to noise, clients, bytes, pace, time left.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.report.status import read_status
    from fedsw.runs.finding import find_run

    directory = find_run(run, runs)
    if not watch:
        found = read_status(directory)
        if as_json:
            typer.echo(json_text(found.as_dict()))
        else:
            Console().print(status_view(found))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _follow(directory, every, lambda found: typer.echo(json_text(found.as_dict(), indent=None)))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                _follow(directory, every, lambda found: live.update(status_view(found), refresh=True))


def status_view(status: Status) -> RenderableType:
    """The status as a small table."""
    from fedsw.runs.resuming import command_for

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    state = Text(status.state, style=_STYLES[status.state])
    rows.add_row("state", Text.assemble(state, f"  {status.why}" if status.why else ""))
    bar = ProgressBar(total=status.rounds, completed=status.round, width=24)
    rows.add_row("round", Group(Text(f"{status.round} of {status.rounds}"), bar))
    rows.add_row("ε spent", f"{number(status.epsilon_spent)} of {number(status.epsilon)}")
    for client, spent in status.epsilon_by_client.items():
        rows.add_row(f"  client {client}", number(spent))
    if status.snr is not None:
        rows.add_row("SNR", number(status.snr, 2))
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
