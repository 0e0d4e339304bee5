"""One run as a trust model sees it at the server, and how its sites are asked.

Asking clients, reading answers, losing the others, and whether enough are left: for every trust model.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.settings import FederationError, Unaccounted
from fedsw.federation import messages, wire
from fedsw.federation.exchange._suspension import Suspensions
from fedsw.federation.exchange.availability import Availability, Away
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.exchange.participants import Present, Site, clients_of
from fedsw.federation.messages import Exchange, Fault, Terms
from fedsw.federation.messages.table import Contribution, ExactSums
from fedsw.federation.node.own_ledger import HELD_OUT
from fedsw.federation.trust.budget_shares import FIRST, SCORES_PART, rounds_beside
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.privacy.accounting import Ledger
from fedsw.runs.observer import Outcome
from fedsw.runs.releases import Releases
from fedsw.runs.telemetry import event


@dataclass
class Context:
    """One run at the server, as a trust model sees it.

    A side is made before anything is spent, so that what cannot be run is refused then; its ledger (None if every
    client has its own), and the rounds of which something had arrived `earlier`, are there when it is entered, with the
    run's folder held. `begin` gives the next unused attempt number of a round, on disk when it returns; `stored` is the
    folder of what clients released themselves.
    """

    grid: Grid
    plan: FederationPlan
    sites: Sequence[Site]
    availability: Availability
    traffic: Traffic
    begin: Callable[[int], int]
    stored: Path | None = None
    ledger: Ledger | None = None
    earlier: frozenset[int] = frozenset()

    @functools.cached_property
    def releases(self) -> Releases:
        """Releases of clients themselves, stored once for all rounds."""
        assert self.stored is not None
        return Releases(self.stored)

    @functools.cached_property
    def suspensions(self) -> Suspensions:
        """Sites suspended for failures that others paid for, in all parts of the run."""
        return Suspensions()

    def require_charged(self, round_: int, released: Outcome) -> Outcome:
        """Return a released outcome if the run's ledger has a row of it; see `replies.require_charged` for clients'.

        Unaccounted if there is none: nothing may be done with it, and nothing may follow.
        """
        if self.ledger is not None and (round_, released.attempt) not in self.ledger.attempts():
            raise Unaccounted(
                f"round {round_}, attempt {released.attempt}, came out of trust "
                f"{self.plan.task.experiment.privacy.trust!r}, and {self.ledger.path} has no row of it: whatever is "
                "released goes through fedsw.privacy.release, with this ledger. The run ends, and has no guarantee",
                recorded=f"round {round_} was released, and no ledger has a row of it",
            )
        return released

    def exchanged(
        self,
        kind: str,
        requests: Mapping[int, RecordDict],
        arrived: Callable[[int, RecordDict | Fault], None] = lambda node, reply: None,
    ) -> Mapping[int, RecordDict | Fault]:
        """Send a request to every node, and wait for the replies; see `exchange`."""
        timeout = self.plan.task.experiment.federation.timeout
        return exchange(self.grid, kind, requests, group=kind, timeout=timeout, traffic=self.traffic, arrived=arrived)


class ServerSide(ABC):
    """A trust model at the server of one run, or of one release beside its rounds.

    It is a context manager that holds its ledger.

    Attributes:
        grows: True if clients that were missing can still be added to what was released once.
        records: records in the sum that was released once, by cell or group, (c,); public. Known after `round`.
    """

    grows: bool = False
    records: NDArray[np.int64]

    def ledger_of(self, open_ledger: Callable[[], Ledger]) -> Ledger | None:
        """The run's ledger if the server accounts for it; None if every client has its own."""
        return None

    @abstractmethod
    def epsilon(self) -> float:
        """Epsilon spent so far."""

    @abstractmethod
    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon spent so far by each client that has a guarantee of its own; empty if there is one for all."""

    @abstractmethod
    def released_rounds(self) -> int:
        """Rounds of which something was released."""

    @abstractmethod
    def round(self, round_: int, theta: Tensor) -> Outcome:
        """Run one round, or make the one release, at the model `theta` (r,), flat, float64.

        Raises:
            BudgetExhausted: when it would cost more than was asked for; nothing of it is then used.
            FederationError: when clients are missing.
        """

    def attempts_planned(self, rounds: int) -> int:
        """Number of attempts that a budget of rounds is for: one each, unless some are expected to fail."""
        return rounds

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client with its own release there; empty if the server has their sum only."""
        return {}

    def prepare(self, plan: FederationPlan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale.

        Raises:
            TypeError: where no rounds follow a release of moments.
        """
        raise TypeError(f"no rounds of trust {plan.task.experiment.privacy.trust!r} follow a release of moments")

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *failure: object) -> None: ...


class AtServer(ServerSide):
    """Base of trust models with one ledger: the server charges for all clients."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _ledger(self) -> Ledger:
        assert self._context.ledger is not None
        return self._context.ledger

    def ledger_of(self, open_ledger: Callable[[], Ledger]) -> Ledger:
        """See `ServerSide`."""
        return open_ledger()

    def epsilon(self) -> float:
        """See `ServerSide`."""
        return self._ledger.epsilon()

    def epsilon_by_client(self) -> dict[int, float]:
        """Empty: the guarantee is the federation's."""
        return {}

    def released_rounds(self) -> int:
        """See `ServerSide`; moments, scores, and what is released of kept records are not among them."""
        held_out = self._ledger.steps_by_group().get(HELD_OUT, {})
        beside = {FIRST, rounds_beside(self._context.plan.task.experiment)[SCORES_PART]}
        charged = {entry.round for entry in self._ledger.entries()}
        others = any(not step.costless for step in held_out) + len(beside & charged)
        return self._ledger.released_rounds() - others

    def __exit__(self, *failure: object) -> None:
        self._ledger.close()


class AtClients(ServerSide):
    """Base of trust models without a ledger at the server: every client has its own, and reports its epsilon."""

    def __init__(self, context: Context) -> None:
        self._context, self._plan, self._task = context, context.plan, context.plan.task
        self._spending = context.availability.spending
        self._rounds = set[int]()

    def epsilon(self) -> float:
        """The largest epsilon that a client reported as spent so far."""
        return self._spending.worst()

    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon that each client last reported."""
        return self._spending.by_client()

    def released_rounds(self) -> int:
        """Rounds of which something is known."""
        return len(self._rounds)

    def __enter__(self) -> Self:
        self._rounds |= self._context.earlier
        return self

    def __exit__(self, *failure: object) -> None:
        """Do nothing: the clients close their own ledgers."""


_log = logging.getLogger("fedsw.server")
_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=messages.Message)


class Collector:
    """Ask the sites of a run, in attempts, each with a number that no other attempt of its round ever had.

    Availability is settled before an attempt begins (`Availability`: a client that was lost takes part again once it
    has answered another greeting). One that does not answer, or not what was asked, is lost by name, and the others go
    on; one that was lost in a round is not asked in its further attempts. A suspended site (`Suspensions`)
    is not asked either, unless its suspension ends later and the run would end without it now; offline sites are then
    waited for, too, for as long as `federation.timeout`. `least` clients are enough; `remains` says what the run keeps
    when fewer are left, for the message.
    """

    def __init__(self, context: Context, *, remains: str) -> None:
        self._context, self._kept = context, remains
        settings = context.plan.task.experiment.federation
        self.least = settings.min_clients or settings.clients
        self._max_attempts = settings.max_attempts
        self._lost, self._refused = Away(), Away()

    def attempts(self, round_: int) -> Iterator[tuple[int, tuple[Present, ...]]]:
        """The attempts at a round: the number of each, and who can be asked in it, at least as many as are enough."""
        availability, self._lost, self._refused = self._context.availability, Away(), Away()
        for _ in range(self._max_attempts):
            without = self._lost.joined(self._context.suspensions.away(round_, for_good=False))
            present = availability.present(self.least, without=without)
            if clients_of(present) < self.least:
                without = self._refused.joined(self._context.suspensions.away(round_, for_good=True))
                present = availability.present(self.least, without=without, patient=True)
            if (count := clients_of(present)) < self.least:
                away = availability.away.joined(without)
                raise self.too_few(round_, count, away.describe(self._context.sites))
            yield self._context.begin(round_), present

    def gave_up(self, round_: int) -> FederationError:
        """Error to raise when the last attempt came to nothing."""
        reason = f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded"
        return FederationError(f"{reason}. {self._lost.describe(self._context.sites)}", recorded=reason)

    def too_few(self, round_: int, count: int, away: str) -> FederationError:
        """Error to raise if fewer clients than `federation.min_clients` are left; `away` names the others, and why."""
        members = sum(len(site.clients) for site in self._context.sites)
        left = f"round {round_}: {count} of {members} clients are left, fewer than the {self.least} of "
        left += "federation.min_clients"
        return FederationError(f"{left}. {away} {self._kept}: mend the clients, then resume the run", recorded=left)

    def ask(
        self,
        kind: Exchange[_Down, _Up],
        present: Sequence[Present],
        requests: Sequence[_Down],
        terms: Sequence[Terms],
        fault: Callable[[Present, _Up], str | None] = lambda presence, answer: None,
    ) -> dict[int, _Up]:
        """Ask every site its own message, and read the answers, by node; one that does not answer as asked is lost.

        `fault` says why an answer that can be read cannot be right, without quoting it; None if it can.
        """
        encoded = {
            presence.site.node: messages.encode(request, known)
            for presence, request, known in zip(present, requests, terms, strict=True)
        }
        replies = self._context.exchanged(kind.kind, encoded)
        answers: dict[int, _Up] = {}
        for presence, known in zip(present, terms, strict=True):
            answer = read(kind, replies[presence.site.node], known)
            if not isinstance(answer, Fault) and (wrong := fault(presence, answer)) is not None:
                answer = Fault(wrong)
            if isinstance(answer, Fault):
                self.lose(presence.site, answer)
            else:
                answers[presence.site.node] = answer
        return answers

    def lose(self, site: Site, fault: Fault) -> None:
        """Count a site as lost: for this round, and until it has answered another greeting.

        One that did not answer at all may be asked again in this round, once it is back, if the run would end without.
        """
        self._lost.lose(site, fault.reason)
        if fault.code not in wire.ABSENT:
            self._refused.lose(site, fault.reason)
        self._context.availability.lose(site, fault.reason)
        first, last = int(site.clients[0]), int(site.clients[-1])
        lines = event("client lost", client=first, code=fault.code)
        who = f"client {first}" if first == last else f"site of clients {first} to {last}"
        _log.warning("%s lost: %s", who, fault.reason, extra=lines)


def read(kind: Exchange[Any, _Up], reply: RecordDict | Fault, terms: Terms) -> _Up | Fault:
    """Decode a reply, or say as a fault why it is not an answer."""
    if isinstance(reply, Fault):
        return reply
    try:
        return messages.decode(kind.up, reply, terms)
    except messages.Malformed as fault:
        return Fault(f"unreadable answer: {fault}")


def who_is_in(presence: Present, answer: Contribution | ExactSums) -> NDArray[np.bool_] | None:
    """Which of a site's clients are in its answer, (S,); None if it names lost ones that it does not have."""
    included, lost = presence.here.copy(), answer.lost.numpy()
    if len(lost) and (int(lost.max()) >= len(included) or bool((np.diff(lost) <= 0).any())):
        return None
    included[lost] = False
    return included
