"""One exchange in which a trusted server is sent exact sums: by every site, over all records of the clients asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedsw.errors import FederationError
from fedsw.federation import messages
from fedsw.federation.exchange.availability import Availability, Away
from fedsw.federation.exchange.cohort import Present, Site, too_few
from fedsw.federation.exchange.exchange import Fault, Request, Traffic, exchange
from fedsw.federation.messages import Exchange, Terms
from fedsw.federation.trust.plan import Plan, clients_of
from fedsw.randomness import Stream
from fedsw.runs.telemetry import event

_log = logging.getLogger("fedsw.server")


class Sums(Protocol):
    """An answer with sums of whole steps, and which of the site's clients are not in them."""

    @property
    def steps(self) -> Tensor:
        """Whole numbers by block, (b, w) int64."""

    @property
    def lost(self) -> Tensor:
        """Positions of clients, (L,)."""


_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=messages.Message)


@dataclass(frozen=True)
class Once:
    """What the door needs to know of a release beside the rounds: its own noise multiplier, and the run's noise."""

    multiplier: float
    plan: Plan

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        """Where the noise of an attempt comes from; secret."""
        return self.plan.noise_stream(round_, attempt)


@dataclass(frozen=True, eq=False)
class Answer:
    """A site's sums, in whole steps, and which of its clients are in them, (S,)."""

    site: Site
    steps: Tensor
    there: NDArray[np.bool_]


class ExactSums(Generic[_Down, _Up]):
    """Asks until enough clients are in the sums; nothing is released here, and a further attempt costs nothing.

    Args:
        begin: the next unused attempt number of a round.
        kind: the exchange; its answer has `steps` and `lost` (`Sums`).
        request: the message to a site, by round, attempt and, for each of its clients, whether it is asked (S,).
        fault: why a site's sums are none of its clients' that are in them; None if they can be. Never quotes them.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        sites: Sequence[Site],
        availability: Availability,
        traffic: Traffic,
        begin: Callable[[int], int],
        *,
        kind: Exchange[_Down, _Up],
        request: Callable[[int, int, Tensor], _Down],
        fault: Callable[[Answer], str | None],
    ) -> None:
        self._grid, self._plan, self._sites, self._traffic, self._begin = grid, plan, sites, traffic, begin
        self._availability, self._kind, self._request, self._fault = availability, kind, request, fault
        settings = plan.task.experiment.federation
        self._least = settings.min_clients or settings.clients
        self._timeout, self._max_attempts = settings.timeout, settings.max_attempts

    def collect(self, round_: int) -> tuple[int, list[Answer]]:
        """The attempt, and the sums of all sites that answered as they may, in client order.

        Raises:
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        lost = Away()
        for _ in range(self._max_attempts):
            present = self._availability.present(self._least, without=lost)
            self._require_enough(round_, clients_of(present), self._availability.away.joined(lost))
            attempt = self._begin(round_)
            found = self._ask(round_, attempt, [each for each in present if each.count], lost)
            if sum(int(answer.there.sum()) for answer in found) >= self._least:
                return attempt, found
        reason = f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded"
        raise FederationError(f"{reason}. {lost.describe(self._sites)}", recorded=reason)

    def _ask(self, round_: int, attempt: int, asked: Sequence[Present], lost: Away) -> list[Answer]:
        terms = [Terms.of(self._plan.task, S=len(each.here)) for each in asked]
        requests = [
            Request(
                each.site.node,
                messages.encode(self._request(round_, attempt, torch.from_numpy(each.here.astype(np.int64))), known),
            )
            for each, known in zip(asked, terms, strict=True)
        ]
        replies = exchange(
            self._grid, self._kind.kind, requests, group=self._kind.kind, timeout=self._timeout, traffic=self._traffic
        )
        found = []
        for each, known in zip(asked, terms, strict=True):
            answer = self._read(each, replies[each.site.node], known)
            if isinstance(answer, Fault):
                self._lose(each.site, answer, lost)
            elif bool(answer.there.any()):
                found.append(answer)
        return found

    def _read(self, each: Present, reply: RecordDict | Fault, terms: Terms) -> Answer | Fault:
        """A site's sums; what no such records make is refused, and never quoted."""
        if isinstance(reply, Fault):
            return reply
        try:
            answer: Sums = messages.decode(self._kind.up, reply, terms)  # type: ignore[assignment]
        except messages.Malformed as fault:
            return Fault(f"unreadable answer: {fault}")
        there = _who_is_in(each, answer)
        if there is None:
            return Fault("unreadable answer: its lost clients are none of its clients")
        found = Answer(each.site, answer.steps, there)
        wrong = self._fault(found)
        return found if wrong is None else Fault(wrong)

    def _lose(self, site: Site, fault: Fault, lost: Away) -> None:
        lost.lose(site, fault.reason)
        self._availability.away.lose(site, fault.reason)
        first = int(site.clients[0])
        _log.warning(
            "site of client %d lost: %s", first, fault.reason, extra=event("client lost", client=first, code=fault.code)
        )

    def _require_enough(self, round_: int, count: int, away: Away) -> None:
        if count < self._least:
            left = too_few(round_, count, sum(len(site.clients) for site in self._sites), self._least)
            raise FederationError(
                f"{left}. {away.describe(self._sites)} The ledger is kept: mend the clients, then resume the run",
                recorded=left,
            )


def _who_is_in(each: Present, answer: Sums) -> NDArray[np.bool_] | None:
    """Which of the site's clients are in its sums, (S,); None if it names lost ones that it does not have."""
    there, lost = each.here.copy(), answer.lost.numpy()
    if len(lost) and (int(lost.max()) >= len(there) or bool((np.diff(lost) <= 0).any())):
        return None
    there[lost] = False
    return there
