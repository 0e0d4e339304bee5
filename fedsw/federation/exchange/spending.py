"""The epsilon that clients report from ledgers of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedsw.errors import FederationError
from fedsw.text import upward

_TOLERANCE = 1e-6  # relative; a release costs more


class Spending:
    """The epsilon that each client last reported. A lower one than before means that its ledger was replaced."""

    def __init__(self) -> None:
        self._reported: dict[int, float] = {}

    def recall(self, before: Iterable[Mapping[int, float]]) -> None:
        """Remember what clients reported to earlier processes of the run.

        Args:
            before: epsilon by client, a mapping for every record of it.
        """
        for report in before:
            for client, epsilon in report.items():
                self._reported[client] = max(epsilon, self._reported.get(client, 0.0))

    def hear(self, client: int, epsilon: float) -> None:
        """Remember the epsilon that a client reports.

        Raises:
            FederationError: if the client reported more before: its ledger was replaced, and forgets what was spent.
        """
        before = self._reported.get(client, 0.0)
        if epsilon < before * (1 - _TOLERANCE):
            raise FederationError(
                f"client {client}'s privacy ledger has spent epsilon {upward(epsilon, 6)}, but it reported "
                f"{upward(before, 6)} in "
                "this run before: the ledger was replaced, and would forget what was spent. Start the client with the "
                "state-dir that it had"
            )
        self._reported[client] = max(epsilon, before)

    def worst(self) -> float:
        """The largest epsilon that a client reported; 0 before any report."""
        return max(self._reported.values(), default=0.0)

    def by_client(self) -> dict[int, float]:
        """The last epsilon of every client that reported one."""
        return dict(sorted(self._reported.items()))
