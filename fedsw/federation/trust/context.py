"""What a trust model's side at the server is made of: a run's grid, plan, clients, folder and ledger, in one object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from flwr.serverapp import Grid

from fedsw.accounting import Ledger
from fedsw.federation.budgets.held_out import HELD_OUT
from fedsw.federation.budgets.moments import FIRST
from fedsw.federation.exchange.availability import Availability
from fedsw.federation.exchange.cohort import Site
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.trust.plan import Plan
from fedsw.runs.releases import Releases


@dataclass
class Context:
    """One run at the server, as a trust model sees it.

    A side is made before anything is spent, so that what cannot be run is refused then; its ledger, and what had
    arrived before, are there when it is entered, with the run's folder held.

    Attributes:
        grid: reaches the nodes.
        plan: what is fixed before the first round.
        sites: nodes and their clients, in client order.
        availability: who can be asked now.
        traffic: counts what travels.
        begin: the next unused attempt number of a round, on disk when it returns.
        stored: the folder of what clients released themselves; None where nothing of that kind is stored.
        ledger: the server's, where it is the server that charges; None where every client has its own.
        earlier: rounds of which something had arrived before the run was resumed.
    """

    grid: Grid
    plan: Plan
    sites: Sequence[Site]
    availability: Availability
    traffic: Traffic
    begin: Callable[[int], int]
    stored: Path | None = None
    ledger: Ledger | None = None
    earlier: frozenset[int] = frozenset()

    @functools.cached_property
    def releases(self) -> Releases:
        """What clients released themselves, stored once for all rounds."""
        assert self.stored is not None
        return Releases(self.stored)

    @property
    def charged(self) -> Ledger:
        """The server's ledger, under a trust model with one."""
        assert self.ledger is not None
        return self.ledger


class AtServer:
    """What sides with one ledger, the server's, have in common: whoever is trusted charges for all clients."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _ledger(self) -> Ledger:
        return self._context.charged

    def epsilon(self) -> float:
        """See `Side`."""
        return self._ledger.epsilon()

    def epsilon_by_client(self) -> dict[int, float]:
        """Empty: the guarantee is the federation's."""
        return {}

    def released_rounds(self) -> int:
        """See `Side`; neither moments nor what is released of records kept out of training are among them."""
        kept = self._ledger.steps_by_group().get(HELD_OUT, {})
        others = any(not step.costless for step in kept) + any(each.round == FIRST for each in self._ledger.entries())
        return self._ledger.released_rounds() - others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.close()
