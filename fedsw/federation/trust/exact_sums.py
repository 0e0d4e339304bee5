"""One exchange in which a trusted server is sent exact sums: by every site, over all records of the clients asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.exchange.cohort import Present, Site
from fedsw.federation.messages import Exchange, Terms
from fedsw.federation.trust.collect import Collector, who_is_in
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.plan import Plan
from fedsw.randomness import Stream


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
class SiteSums:
    """A site's sums, in whole steps, and which of its clients are in them, (S,)."""

    site: Site
    steps: Tensor
    there: NDArray[np.bool_]


class ExactSums(Generic[_Down, _Up]):
    """Asks until enough clients are in the sums; nothing is released here, and a further attempt costs nothing.

    Args:
        kind: the exchange; its answer has `steps` and `lost` (`Sums`).
        request: the message to a site, by round, attempt and, for each of its clients, whether it is asked (S,).
        fault: why a site's sums are none of its clients' that are in them; None if they can be. Never quotes them.
        sizes: lengths of its answer that the task does not say.
    """

    def __init__(
        self,
        context: Context,
        *,
        kind: Exchange[_Down, _Up],
        request: Callable[[int, int, Tensor], _Down],
        fault: Callable[[SiteSums], str | None],
        **sizes: int,
    ) -> None:
        self._sizes = sizes
        self._task, self._kind, self._request, self._fault = context.plan.task, kind, request, fault
        self._collector = Collector(context, kept="The ledger is kept")

    def collect(self, round_: int) -> tuple[int, list[SiteSums]]:
        """The attempt, and the sums of all sites that answered as they may, in client order.

        Raises:
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        for attempt, present in self._collector.attempts(round_):
            asked = [each for each in present if each.count]
            terms = [Terms.of(self._task, S=len(each.here), **self._sizes) for each in asked]
            content = [self._request(round_, attempt, torch.from_numpy(each.here.astype(np.int64))) for each in asked]
            answers = self._collector.ask(self._kind, asked, content, terms, self._wrong)
            found = [_sums_of(each, answers[each.site.node]) for each in asked if each.site.node in answers]
            if sum(int(each.there.sum()) for each in found) >= self._collector.least:
                return attempt, [each for each in found if bool(each.there.any())]
        raise self._collector.gave_up(round_)

    def _wrong(self, each: Present, answer: _Up) -> str | None:
        """Why a site's sums cannot be right: what no such records make is refused, and never quoted."""
        if who_is_in(each, cast(Sums, answer)) is None:
            return "unreadable answer: its lost clients are none of its clients"
        return self._fault(_sums_of(each, answer))


def _sums_of(each: Present, answer: messages.Message) -> SiteSums:
    sums = cast(Sums, answer)
    there = who_is_in(each, sums)
    assert there is not None
    return SiteSums(each.site, sums.steps, there)
