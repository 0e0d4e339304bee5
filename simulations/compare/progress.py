"""One display for a whole comparison: cells done, running and failed, and the time that is left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


class GridProgress:
    """A bar over the cells of a grid, on stderr; a context manager.

    `begun` says whether any cell was started. With `quiet`, or where stderr is not a terminal, nothing is shown.
    """

    def __init__(self, *, label: str, cells: int, done: int, quiet: bool = False) -> None:
        self.begun = False
        self._running, self._failed = 0, 0
        console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=5,
            speed_estimate_period=3600,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=cells, completed=done, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def running(self, cells: int) -> None:
        """Show how many cells run now."""
        self.begun, self._running = True, cells
        self._show()

    def ended(self, *, failed: bool) -> None:
        """Count a cell."""
        self._running -= 1
        self._failed += failed
        self._bar.advance(self._task)
        self._show()

    def _show(self) -> None:
        failures = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, state=f"{self._running} running{failures}")
