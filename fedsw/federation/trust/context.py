"""One run as a trust model sees it at the server, and how its sites are asked.

Asking clients, reading answers, losing the others, and whether enough are left: for every trust model; then what the
local trust models have in common: attempts, drop-outs, and reported epsilons of clients.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedsw.federation.exchange.availability import Availability, Away, Suspensions
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.exchange.participants import Member, Present, Site, clients_of
from fedsw.federation.messages import Exchange, Fault, Terms
from fedsw.federation.messages.table import Contribution, ExactSums, Release
from fedsw.federation.node.own_ledger import HELD_OUT
from fedsw.federation.trust.budget_shares import BEFORE_TRAINING, SCORES_PART, rounds_beside
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.privacy.accounting import BudgetExhausted, Ledger
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
        beside = {BEFORE_TRAINING, rounds_beside(self._context.plan.task.experiment)[SCORES_PART]}
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


_Noised = TypeVar("_Noised", bound=Release)


class LocalMethod(AtClients, ABC):
    """Runs rounds in which every client protects its own records; a `ServerSide`.

    There is no ledger here: what a client spent is in the client's own, and `spent` repeats what they say. A client
    that is lost is missing from the round; what it noised was charged. With fewer than `federation.min_clients` left
    the run stops: a fresh attempt would charge every client that answered again, so that is for the operator to decide
    (`fedsw resume` makes one), and `federation.max_attempts` is not used here.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sites, self._availability = context.sites, context.availability
        self._members = tuple(member for site in self._sites for member in site.members)
        self._of_node = {site.node: site for site in self._sites}
        self._collector = Collector(context, remains="The checkpoint and the clients' ledgers are kept")
        self._least = self._collector.least
        self._exhausted = Away()
        self._used_up: set[int] = set()
        self._lost: dict[int, str] = {}

    @abstractmethod
    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        """One attempt with these clients; see `round` for what it raises."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """One round at the model `theta` (flat, float64); see `ServerSide` for what it raises."""
        present = self._availability.present(self._least, without=self._exhausted, patient=True)
        members = [
            presence.site.member(int(position)) for presence in present for position in np.flatnonzero(presence.here)
        ]
        self._require_enough(round_, members, self._away())
        return self._attempt(round_, self._context.begin(round_), theta, members)

    def _away(self) -> str:
        return self._availability.away.describe(self._sites)

    def _ask(
        self,
        kind: Exchange[_Down, _Noised],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
    ) -> dict[Member, _Noised]:
        """One exchange: what the clients that answer released, in client order; others are lost. Raises as `round`."""
        answers: dict[Member, _Noised] = {}
        self._exchange(kind, round_, members, request, terms, answers.__setitem__)
        self._require_enough(round_, list(answers), describe(self._lost))
        return {member: answers[member] for member in members if member in answers}

    def _collect(
        self,
        kind: Exchange[_Down, _Noised],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
        arrays: Callable[[_Noised], Mapping[str, Tensor]],
        releases: Releases,
        *,
        late: bool = False,
        least: int | None = None,
    ) -> None:
        """Ask the clients that have not released yet, until enough have (all, if `late`), and keep `arrays` of each.

        Enough are `least`, by default `federation.min_clients`. Each release is on disk when it has arrived, whatever
        becomes of the others: it cannot be paid for again.
        """
        least = self._least if least is None else least
        if not late and len(releases.clients) >= least:
            return
        missing = [member for member in members if member.client not in releases.clients]

        def keep(member: Member, answer: _Noised) -> None:
            releases.keep(member.client, arrays(answer), round_, self._spending.by_client()[member.client])

        self._exchange(kind, round_, missing, request, terms, keep)
        holders = [member for member in self._members if member.client in releases.clients]
        if len(holders) < least:
            self._require_enough(round_, holders, describe(self._lost))

    def _exchange(
        self,
        kind: Exchange[_Down, _Noised],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
        take: Callable[[Member, _Noised], None],
    ) -> None:
        """Ask every client, and take what each releases as it arrives; a client that released nothing is lost."""
        lost: dict[int, str] = {}
        by_node: dict[int, list[Member]] = {}
        for member in members:
            by_node.setdefault(member.node, []).append(member)
        heard = set[int]()

        def arrived(node: int, reply: RecordDict | Fault) -> None:
            heard.add(node)
            for member, part in self._answers(by_node[node], reply):
                answer = self._answer(member, part, kind.up, terms(member))
                if not isinstance(answer, Fault):
                    take(member, answer)
                    self._rounds.add(round_)
                    continue
                # A reply that is a fault is its whole site's; in one that came, a client is missing by itself.
                site, alone = self._of_node[node], not isinstance(reply, Fault)
                lost[member.client] = answer.reason
                self._availability.lose(site, answer.reason, member.client if alone else None)
                if answer.code == wire.BUDGET_EXHAUSTED:
                    self._exhausted.lose_client(site, member.client, answer.reason)
                    self._used_up.add(member.client)
                lines = event("client lost", client=member.client, code=answer.code)
                _log.warning("client %d lost: %s", member.client, answer.reason, extra=lines)

        content = messages.encode(request, Terms.of(self._task))  # once; it is public
        requests = {
            node: RecordDict(dict(content))
            if len(self._of_node[node].clients) == 1
            else messages.addressed(content, [member.position for member in addressees])
            for node, addressees in by_node.items()
        }
        replies = self._context.exchanged(kind.kind, requests, arrived)
        # Nodes that never replied: `exchange` has a fault for each, and reports none of them as it comes.
        for node in [node for node in replies if node not in heard]:
            arrived(node, replies[node])
        self._lost = dict(sorted(lost.items()))

    def _answers(
        self, members: Sequence[Member], reply: RecordDict | Fault
    ) -> Iterable[tuple[Member, RecordDict | Fault]]:
        if isinstance(reply, Fault) or len(self._of_node[members[0].node].clients) == 1:
            return [(member, reply) for member in members]
        replies = messages.unpacked(reply, [member.position for member in members])
        return [(member, replies[member.position]) for member in members]

    def _answer(self, member: Member, reply: RecordDict | Fault, kind: type[_Noised], terms: Terms) -> _Noised | Fault:
        """A client's release; the epsilon that it reports is remembered first."""
        if isinstance(reply, Fault):
            return reply
        try:
            self._spending.hear(member.client, messages.decode_one(kind, "epsilon", reply, terms))
            return messages.decode(kind, reply, terms)
        except FederationError as fault:
            return Fault(str(fault))
        except messages.Malformed as fault:
            return Fault(f"unreadable release: {fault}")

    def _require_enough(self, round_: int, members: Sequence[Member], lost: str) -> None:
        if len(members) >= self._least:
            return
        if self._used_up:
            # by number: a client's own words may quote a record
            used_up = ", ".join(f"client {client}" for client in sorted(self._used_up))
            raise BudgetExhausted(
                f"{len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
                f"federation.min_clients. Budgets that are used up: {used_up}"
            )
        raise self._collector.too_few(round_, len(members), lost)


def describe(reasons: Mapping[int, str]) -> str:
    """One sentence for each client."""
    return " ".join(f"Client {client}: {reason}." for client, reason in reasons.items())
