"""One display for a whole comparison: cells done, running and failed, and the time that is left."""

from __future__ import annotations

from fedsw.report.progress import Display

_HOUR = 3600.0


class GridProgress(Display):
    """A bar over the cells of a grid; a context manager. `begun` says whether any cell was started."""

    def __init__(self, *, label: str, cells: int, done: int, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, estimate=_HOUR)
        self.begun = False
        self._running, self._failed = 0, 0
        self._task = self._bar.add_task(label, total=cells, completed=done, state="")

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
