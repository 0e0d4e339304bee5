"""A bar that a notebook draws while a run goes on; it needs nothing installed, and stays in a saved notebook."""

from __future__ import annotations

import html
import importlib
import sys
import time
from typing import Any

from fedsw.report.progress import describe_round, short_metrics
from fedsw.runs.observer import NoObserver, Observer
from fedsw.text import harmless

_SECONDS = 0.2
"""At least, between two states of a bar."""


def watching() -> Observer:
    """Return an observer that draws a bar where a notebook's kernel runs this; elsewhere one that does nothing."""
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
            self._held_out = short_metrics(held_out)
        self._round, self._said = int(record["round"]), describe_round(record, self._plan, self._held_out)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def finished(self, summary: dict[str, Any]) -> None:
        """Leave the last state."""
        self._draw(f" {summary.get('status')}.")

    def broke_off(self, status: str) -> None:
        """Say why there is no more of it, and how to go on."""
        self._draw(f" {status}; fedsw.resume({str(self._plan['directory'])!r}) goes on.")

    def _draw(self, ended: str = "") -> None:
        self._drawn = time.monotonic()
        self._display.update({"text/html": self._bar(ended)}, raw=True)

    def _bar(self, ended: str = "") -> str:
        name, rounds = str(self._plan["name"]), int(self._plan["rounds"])
        words = html.escape(harmless(f"{name}: round {self._round} of {rounds}. {self._said}.{ended}"))
        return f'<progress value="{self._round}" max="{rounds}" aria-label="{html.escape(name)}"></progress> {words}'
