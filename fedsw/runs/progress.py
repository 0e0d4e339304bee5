"""Bars that show the progress of a run on a terminal and in a notebook: observers of the run."""

from __future__ import annotations

import functools
import html
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedsw._tools.text import harmless, number, upward
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.report.console import Screen
from fedsw.runs.report.metric_names import short_metrics
from fedsw.runs.roll_call import Called
from fedsw.runs.run_files import names_in


class Display:
    """A bar on stderr inside its context; nothing with `quiet`, or if stderr is not a terminal."""

    def __init__(self, *, quiet: bool, estimate: float = 30.0) -> None:
        console = Screen(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=5,
            speed_estimate_period=estimate,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


class RollLines(NoObserver):
    """An observer that prints each client's line whenever it changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, dict[int, str]()

    def roll_called(self, called: Sequence[Called]) -> None:
        """Print the changed lines."""
        for entry in called:
            if self._said.get(entry.node) != (line := entry.line()):
                self._said[entry.node] = line
                self._say(line)


class RunProgress(Display):
    """An observer that shows one bar, over one run or several runs in a row.

    Use it as a context manager. `begun` is True once a run has its plan, `directory` is the last run's.
    """

    def __init__(self, *, label: str, runs: int = 1, done: int = 0, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.plan: dict[str, Any] = {}
        self.begun = False
        self.directory: Path | None = None
        self._label, self._runs, self._runs_done = label, runs, done
        self._held_out = ""
        self._task: TaskID | None = None
        printed = functools.partial(self._bar.console.print, markup=False, highlight=False, soft_wrap=True)
        self._lines = RollLines(lambda line: None if quiet else printed(line))

    def roll_called(self, called: Sequence[Called]) -> None:
        """Print clients' changed lines above the bar."""
        self._lines.roll_called(called)

    def begin(self, label: str) -> None:
        """Show the label of the next of several runs."""
        self._label, self._held_out = label, ""

    def started(self, plan: dict[str, Any]) -> None:
        """Show the bar; its length is the rounds of all runs."""
        self.plan, self.begun, self.directory = plan, True, Path(plan["directory"])
        rounds = int(plan["rounds"])
        if self._task is None:
            done = self._runs_done * rounds
            self._task = self._bar.add_task(self._label, total=self._runs * rounds, completed=done, state="")
        self._bar.update(self._task, description=self._label)

    def round_done(self, record: dict[str, Any]) -> None:
        """Advance, and show what the round released."""
        if self._task is None:
            return
        if held_out := record.get("held_out"):
            self._held_out = short_metrics(held_out, names_in(Path(self.plan["directory"])))
        base = self._runs_done * int(self.plan["rounds"])
        state = describe_round(record, self.plan, self._held_out)
        self._bar.update(self._task, completed=base + int(record["round"]), state=state)

    def finished(self, summary: dict[str, Any]) -> None:
        """Count the run as done."""
        self._runs_done += 1


def describe_round(record: dict[str, Any], plan: dict[str, Any], held_out: str) -> str:
    """One line: ε spent of the target, the signal-to-noise estimate, the last held-out metrics."""
    parts = [f"ε {upward(record.get('epsilon'))} of {upward(plan.get('epsilon'))}"]
    if record.get("snr") is not None:
        parts.append(f"SNR {number(record['snr'], 2)}")
    if record.get("training_loss") is not None:
        parts.append(f"training loss {number(record['training_loss'])} (unsafe)")
    if held_out:
        parts.append(held_out)
    return "  ".join(parts)


_SECONDS = 0.2
"""Least time between two states of a bar."""


def watching() -> Observer:
    """Return an observer that draws a bar in a notebook; elsewhere one that does nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookBar() if getattr(shell, "kernel", None) is not None else NoObserver()


class NotebookBar:
    """An observer that shows rounds, ε and held-out metrics as a bar below a notebook's cell."""

    def started(self, plan: dict[str, Any]) -> None:
        """Draw the bar."""
        notebook: Any = importlib.import_module("IPython.display")
        self._plan, self._round, self._held_out, self._drawn, self._said = plan, 0, "", 0.0, "begins"
        self._display = notebook.DisplayHandle()
        self._display.display({"text/html": self._bar()}, raw=True)

    def round_done(self, record: dict[str, Any]) -> None:
        """Advance it, a few times a second at most."""
        if held_out := record.get("held_out"):
            self._held_out = short_metrics(held_out, names_in(Path(self._plan["directory"])))
        self._round, self._said = int(record["round"]), describe_round(record, self._plan, self._held_out)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def finished(self, summary: dict[str, Any]) -> None:
        """Leave the last state."""
        self._draw(f" {summary.get('status')}.")

    def broke_off(self, status: str) -> None:
        """Show the reason, and how to resume."""
        self._draw(f" {status}; fedsw.resume({str(self._plan['directory'])!r}) goes on.")

    def _draw(self, ended: str = "") -> None:
        self._drawn = time.monotonic()
        self._display.update({"text/html": self._bar(ended)}, raw=True)

    def _bar(self, ended: str = "") -> str:
        name, rounds = str(self._plan["name"]), int(self._plan["rounds"])
        words = html.escape(harmless(f"{name}: round {self._round} of {rounds}. {self._said}.{ended}"))
        return f'<progress value="{self._round}" max="{rounds}" aria-label="{html.escape(name)}"></progress> {words}'
