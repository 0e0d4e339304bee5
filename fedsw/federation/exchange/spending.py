"""What clients with ledgers of their own say that they have spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedsw.errors import FederationError

_TOLERANCE = 1e-6  # relative; a release costs more


class Spending:
    """Epsilon that each client last told. It never falls: a ledger that stands lower than it did is another one."""

    def __init__(self) -> None:
        self._told: dict[int, float] = {}

    def recall(self, before: Iterable[Mapping[int, float]]) -> None:
        """Take note of what the clients told in earlier processes of the run, by client."""
        for told in before:
            for client, epsilon in told.items():
                self._told[client] = max(epsilon, self._told.get(client, 0.0))

    def hear(self, client: int, epsilon: float) -> None:
        """Take a client's word.

        Raises:
            FederationError: if this run has heard of more: what was spent would be forgotten.
        """
        before = self._told.get(client, 0.0)
        if epsilon < before * (1 - _TOLERANCE):
            raise FederationError(
                f"client {client}'s privacy ledger stands at epsilon {epsilon:.6g}, but it has told {before:.6g} in "
                "this run: another ledger is in its place, and would forget what was spent. Start the client with the "
                "state-dir that it had"
            )
        self._told[client] = max(epsilon, before)

    def worst(self) -> float:
        """Epsilon of the client that spent most; 0 before anybody did."""
        return max(self._told.values(), default=0.0)

    def by_client(self) -> dict[int, float]:
        """Epsilon of every client that told any."""
        return dict(sorted(self._told.items()))
