"""Common parts of the local trust models at the server: attempts, drop-outs, and reported epsilons of clients."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import RecordDict
from torch import Tensor

from fedsw._tools.settings import FederationError
from fedsw.federation import messages, wire
from fedsw.federation.exchange.availability import Away
from fedsw.federation.exchange.participants import Member
from fedsw.federation.messages import Exchange, Fault, Terms
from fedsw.federation.messages.table import Release
from fedsw.federation.trust.context import AtClients, Collector, Context
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.runs.observer import Outcome
from fedsw.runs.releases import Releases
from fedsw.runs.telemetry import event

_log = logging.getLogger("fedsw.server")
_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=Release)


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
        kind: Exchange[_Down, _Up],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
    ) -> dict[Member, _Up]:
        """One exchange: what the clients that answer released, in client order; others are lost. Raises as `round`."""
        answers: dict[Member, _Up] = {}
        self._exchange(kind, round_, members, request, terms, answers.__setitem__)
        self._require_enough(round_, list(answers), describe(self._lost))
        return {member: answers[member] for member in members if member in answers}

    def _collect(
        self,
        kind: Exchange[_Down, _Up],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
        arrays: Callable[[_Up], Mapping[str, Tensor]],
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

        def keep(member: Member, answer: _Up) -> None:
            releases.keep(member.client, arrays(answer), round_, self._spending.by_client()[member.client])

        self._exchange(kind, round_, missing, request, terms, keep)
        holders = [member for member in self._members if member.client in releases.clients]
        if len(holders) < least:
            self._require_enough(round_, holders, describe(self._lost))

    def _exchange(
        self,
        kind: Exchange[_Down, _Up],
        round_: int,
        members: Sequence[Member],
        request: _Down,
        terms: Callable[[Member], Terms],
        take: Callable[[Member, _Up], None],
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
                if isinstance(answer, Fault):
                    self._lose(member, answer, lost, alone=not isinstance(reply, Fault))
                else:
                    take(member, answer)
                    self._rounds.add(round_)

        content = messages.encode(request, Terms.of(self._task))  # once; it is public
        requests = {node: self._addressed(content, node, addressees) for node, addressees in by_node.items()}
        replies = self._context.exchanged(kind.kind, requests, arrived)
        for node in [node for node in replies if node not in heard]:
            arrived(node, replies[node])
        self._lost = dict(sorted(lost.items()))

    def _addressed(self, content: RecordDict, node: int, members: Sequence[Member]) -> RecordDict:
        """The request to a node: to a site, with the positions of the clients that are asked."""
        if len(self._of_node[node].clients) == 1:
            return RecordDict(dict(content))
        return messages.addressed(content, [member.position for member in members])

    def _answers(
        self, members: Sequence[Member], reply: RecordDict | Fault
    ) -> Iterable[tuple[Member, RecordDict | Fault]]:
        if isinstance(reply, Fault) or len(self._of_node[members[0].node].clients) == 1:
            return [(member, reply) for member in members]
        replies = messages.unpacked(reply, [member.position for member in members])
        return [(member, replies[member.position]) for member in members]

    def _lose(self, member: Member, fault: Fault, lost: dict[int, str], *, alone: bool) -> None:
        """Count a client as lost; with its whole site, unless it is `alone` in that."""
        site = self._of_node[member.node]
        lost[member.client] = fault.reason
        self._availability.lose(site, fault.reason, member.client if alone else None)
        if fault.code == wire.BUDGET_EXHAUSTED:
            self._exhausted.lose_client(site, member.client, fault.reason)
            self._used_up.add(member.client)
        lines = event("client lost", client=member.client, code=fault.code)
        _log.warning("client %d lost: %s", member.client, fault.reason, extra=lines)

    def _answer(self, member: Member, reply: RecordDict | Fault, kind: type[_Up], terms: Terms) -> _Up | Fault:
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
            used_up = ", ".join(f"client {client}" for client in sorted(self._used_up))  # not in words of theirs
            raise BudgetExhausted(
                f"{len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
                f"federation.min_clients. Budgets that are used up: {used_up}"
            )
        raise self._collector.too_few(round_, len(members), lost)


def describe(reasons: Mapping[int, str]) -> str:
    """One sentence for each client."""
    return " ".join(f"Client {client}: {reason}." for client, reason in reasons.items())
