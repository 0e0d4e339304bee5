"""The canary attack on masked sums: by a server that writes the table, and C sites that subtract their own shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.audit.neighbours import Pair, Trial, View, exchanged, worst_neighbours
from fedsw.experiment.sections import MaskedSettings
from fedsw.federation.exchange.participants import Present
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.distributed import site
from fedsw.federation.trust.distributed.attempt_cost import Attempt, attempts
from fedsw.federation.trust.distributed.masked_rounds import MaskedRounds
from fedsw.federation.trust.distributed.members import least, own_counts
from fedsw.privacy.masks import Share, Whole, summed
from fedsw.privacy.release import Bounded, Paid, Part, release_share
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.runs.observer import Outcome


@dataclass(frozen=True)
class Leaving:
    """A site's part of a masked sum, flat, before its mask: exact, and in whole steps with its share of noise."""

    vector: Tensor
    numbers: Whole
    part: Part
    share: Share


def view_of(parts: Sequence[Leaving]) -> View:
    """A masked sum as a server with C sites has it: the sum of the fewest parts that honest sites may have sent.

    By the theorem on masks they have cancelled in what is held.
    """
    step, part = parts[0].share.step, parts[0].part

    def again(places: Tensor, count: int) -> NDArray[np.float64]:
        wholes = []
        for leaving in parts:
            many = Bounded(
                leaving.vector[places].repeat(count), Sensitivity(part.sensitivity, "as it was paid for", part.relation)
            )
            paid = [Paid(0, 0, 0.0, {part.name: leaving.part}) for _ in range(leaving.share.clients)]
            mask = np.zeros(count * len(places), dtype=np.uint64)
            wholes.append(release_share(many, paid, part.name, leaving.share, mask, Stream.secure()))
        numbers: NDArray[np.float64] = summed(wholes, step).reshape(count, len(places)).numpy()
        return numbers

    exact = torch.stack([leaving.vector for leaving in parts]).sum(dim=0)
    return View(exact, summed((leaving.numbers for leaving in parts), step), part.scale, again)


_BEYOND = 1e6
"""Further than any output is."""


class _Lying(MaskedRounds):
    """A server that asks as few clients as it may, and sends a table that pulls every pole to the other one."""

    holder = 0

    def _attempt(self, round_: int, attempt: int, theta: Tensor, present: Sequence[Present]) -> Outcome | None:
        fewest = least(self._task.experiment)
        others = [site for site in present if int(site.site.clients[0]) != self.holder]
        holders = [site for site in present if int(site.site.clients[0]) == self.holder]
        return super()._attempt(round_, attempt, theta, [*holders, *others][:fewest])

    def _slot_means(
        self, counts: Tensor, agreed: Attempt, theta: Tensor, round_: int, attempt: int
    ) -> tuple[Tensor, Tensor | None]:
        upper = torch.arange(agreed.bins) >= agreed.bins // 2
        ends = torch.where(upper, -_BEYOND, _BEYOND).to(torch.float64)  # a client cuts them to its bound
        return ends.repeat(len(counts) // agreed.bins), None


class MaskedTrial(Trial):
    """A `Trial` of trust `distributed`: the server and C sites collude against the holder of the canary."""

    trials = 1_000_000  # every honest site draws noise of its own for each release

    @cached_property
    def _rounds(self) -> _Lying:
        rounds = _Lying(self.context)
        rounds.holder = self.victim
        return rounds

    @property
    def steps(self) -> int:
        """As many attempts as the noise is for."""
        return attempts(self.task.experiment)

    def worst(self, cell: int) -> Pair:
        """See `worst_neighbours`."""
        return worst_neighbours(self.task, cell, self.holder(cell), tables=split.asks_tables(self.task.experiment))

    def overheard(self, round_: int) -> list[list[Leaving]]:
        """Honest sites' messages for both masked sums of one real round, or the only one; the holder is among them."""
        with overheard() as left:
            self._rounds.round(round_, self.theta)
        names = dict.fromkeys(leaving.part.name for leaving in left)
        experiment = self.task.experiment
        honest = least(experiment) - experiment.own(MaskedSettings).colluding
        return [[leaving for leaving in left if leaving.part.name == name][:honest] for name in names]

    def views(self, round_: int) -> list[View]:
        """The sums of one real round, at a fresh attempt."""
        return [view_of(parts) for parts in self.overheard(round_)]

    def counts(self, index: int, trial: int) -> NDArray[np.int64]:
        """See `Trial`: the same in every attempt."""
        return own_counts(self.sites[index].sizes, self.task.experiment.training.batch_fraction)


@contextmanager
def bounded_ones() -> Iterator[list[Tensor]]:
    """Record the exact value, flat, of everything that is bounded meanwhile, by any code."""
    values, genuine = list[Tensor](), Bounded.__init__

    def noting(self: Bounded, value: Tensor, *arguments: Any, **about: Any) -> None:
        values.append(value.detach().reshape(-1).clone())
        genuine(self, value, *arguments, **about)

    with exchanged(Bounded, "__init__", noting):
        yield values


@contextmanager
def overheard() -> Iterator[list[Leaving]]:
    """Record what leaves the sites of this process, in order, as it is before the mask."""
    left = list[Leaving]()

    def leaving(value: Bounded, paid: Sequence[Paid], name: str, share: Share, mask: Whole, stream: Stream) -> Whole:
        part = paid[0].parts[name]
        numbers = release_share(value, paid, name, share, mask, stream)
        left.append(Leaving(vectors[-1], numbers - mask, part, share))
        return numbers

    with bounded_ones() as vectors, exchanged(site, "release_share", leaving):
        yield left
