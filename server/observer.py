"""Who watches a run: called with releasable numbers only."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Receives what may be shown while a run goes on (theory: every number here is releasable or marked unsafe)."""

    def started(self, plan: dict[str, Any]) -> None:
        """The run's plan and its `directory`, before the first round."""

    def round_done(self, record: dict[str, Any]) -> None:
        """One released round; also a line of metrics.jsonl."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary; also summary.json."""


class Silent:
    """An observer that looks away."""

    def started(self, plan: dict[str, Any]) -> None:
        """Ignore the plan."""

    def round_done(self, record: dict[str, Any]) -> None:
        """Ignore the round."""

    def finished(self, summary: dict[str, Any]) -> None:
        """Ignore the summary."""
