"""The canary attack on masked sums: by a server that writes the table, and C sites that subtract their own shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from rich.status import Status
from torch import Tensor

from fedsw.audit.bounds import judged
from fedsw.audit.finding import AttackResult, Claim
from fedsw.audit.neighbours import ABSENT, NUMBERS, ROUNDS, Pair, Trial, exchanged
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import MaskedSettings
from fedsw.federation.exchange.cohort import Present
from fedsw.federation.trust.distributed import client, site
from fedsw.federation.trust.distributed.budget import Attempt, attempts
from fedsw.federation.trust.distributed.cohort import least, own_counts
from fedsw.federation.trust.distributed.server import MaskedRounds
from fedsw.privacy.masks import Share, Whole, summed
from fedsw.privacy.release import Bounded, Paid, Part, release_share
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.randomness import Stream
from fedsw.runs.observer import Outcome

if TYPE_CHECKING:
    from fedsw.audit import sketched

    _Seen: TypeAlias = "View | sketched.View"
    _Trial: TypeAlias = "MaskedTrial | sketched.SketchTrial"

TRIALS = 1_000_000
"""Of each neighbour: every honest site draws noise of its own for each release."""


@dataclass(frozen=True)
class Leaving:
    """A site's part of a masked sum, flat, before its mask: exact, and in whole steps with its share of noise."""

    vector: Tensor
    numbers: Whole
    part: Part
    share: Share


@dataclass(frozen=True)
class View:
    """A masked sum as a server with C sites has it: the sum of the fewest parts that honest sites may have sent."""

    parts: tuple[Leaving, ...]

    @property
    def part(self) -> Part:
        """What the sum was paid for as."""
        return self.parts[0].part

    @property
    def exact(self) -> Tensor:
        """The sum without noise, (r,)."""
        return torch.stack([each.vector for each in self.parts]).sum(dim=0)

    @property
    def held(self) -> Tensor:
        """The sum (r,) as it is held, by the theorem on masks: they have cancelled."""
        return summed((each.numbers for each in self.parts), self.parts[0].share.step)

    def again(self, places: Tensor, count: int) -> NDArray[np.float64]:
        """So many releases of the same exact sum at some of its coordinates, (count, p), by the sites' own door."""
        wholes = []
        for each in self.parts:
            many = Bounded(each.vector[places].repeat(count), Sensitivity(each.part.sensitivity, "as it was paid for"))
            paid = [Paid(0, 0, 0.0, {each.part.name: each.part}) for _ in range(each.share.clients)]
            mask = np.zeros(count * len(places), dtype=np.uint64)
            wholes.append(release_share(many, paid, each.part.name, each.share, mask, Stream.secure()))
        found: NDArray[np.float64] = summed(wholes, self.parts[0].share.step).reshape(count, len(places)).numpy()
        return found


_BEYOND = 1e6
"""Further than any output is."""


class _Lying(MaskedRounds):
    """A server that asks as few clients as it may, and sends a table that pulls every pole to the other one."""

    holder = 0

    def _attempt(self, round_: int, attempt: int, theta: Tensor, present: Sequence[Present]) -> Outcome | None:
        fewest = least(self._task.experiment)
        others = [each for each in present if int(each.site.clients[0]) != self.holder]
        own = [each for each in present if int(each.site.clients[0]) == self.holder]
        return super()._attempt(round_, attempt, theta, [*own, *others][:fewest])

    def _slot_means(
        self, counts: Tensor, agreed: Attempt, theta: Tensor, round_: int, attempt: int
    ) -> tuple[Tensor, Tensor | None]:
        upper = torch.arange(agreed.bins) >= agreed.bins // 2
        ends = torch.where(upper, -_BEYOND, _BEYOND).to(torch.float64)  # a client cuts them to its bound
        return ends.repeat(len(counts) // agreed.bins), None


class MaskedTrial(Trial):
    """A `Trial` of trust `distributed`, whose server and C sites are against the holder of the canary."""

    def __init__(self, experiment: Experiment, neighbours: Pair | None, folder: Path, *, canary: bool) -> None:
        super().__init__(experiment, neighbours, folder, canary=canary)
        self._rounds = _Lying(self.context)
        self._rounds.holder = neighbours.client if neighbours else 0
        self._honest = least(experiment) - experiment.own(MaskedSettings).colluding

    @property
    def steps(self) -> int:
        """As many attempts as the noise is for."""
        return attempts(self.task.experiment)

    def views(self, round_: int) -> list[View]:
        """Both masked sums of one real round, or the only one, at a fresh attempt; the holder is among the honest."""
        with _overheard() as left:
            self._rounds.round(round_, self.theta)
        return [
            View(tuple(each for each in left if each.part.name == name)[: self._honest])
            for name in dict.fromkeys(each.part.name for each in left)
        ]

    def counts(self, place: int, trial: int) -> NDArray[np.int64]:
        """See `Trial`: the same in every attempt."""
        return own_counts(self.sites[place].sizes, self.task.experiment.training.batch_fraction)


@contextmanager
def _overheard() -> Iterator[list[Leaving]]:
    """What leaves the sites of this process, in order, as it is before the mask."""
    left, vectors = list[Leaving](), list[Tensor]()

    def bounded(value: Tensor, sensitivity: Sensitivity) -> Bounded:
        vectors.append(value.detach().reshape(-1).clone())
        return Bounded(value, sensitivity)

    def leaving(value: Bounded, paid: Sequence[Paid], name: str, share: Share, mask: Whole, stream: Stream) -> Whole:
        part = paid[0].parts[name]
        numbers = release_share(value, paid, name, share, mask, stream)
        left.append(Leaving(vectors[-1], numbers - mask, part, share))
        return numbers

    with exchanged(client, "Bounded", bounded), exchanged(site, "release_share", leaving):
        yield left


@dataclass(frozen=True)
class Direction:
    """What the canary moves in each sum of a round: where they start, along what, and mu, all that they tell."""

    mu: float
    start: tuple[Tensor, ...]
    along: tuple[Tensor, ...]

    @classmethod
    def between(cls, one: Sequence[_Seen], other: Sequence[_Seen]) -> Direction:
        """From the views of a round without the canary's value, `other`, to those with it."""
        start = tuple(view.exact for view in other)
        along = tuple(view.exact - at for view, at in zip(one, start, strict=True))
        parts = [float(v.norm()) / view.part.scale for v, view in zip(along, one, strict=True)]
        return cls(math.hypot(*parts), start, along)

    def score(self, held: Sequence[NDArray[np.float64]], views: Sequence[_Seen]) -> NDArray[np.float64]:
        """The most powerful statistic of releases (n, p): N(0, 1) without the canary's value, N(mu, 1) with it."""
        total = 0.0
        for numbers, start, along, view in zip(held, self.start, self.along, views, strict=True):
            places = self.places(along)
            total = total + ((numbers - start[places].numpy()) @ along[places].numpy()) / view.part.scale**2
        return np.asarray(total) / self.mu

    @staticmethod
    def places(along: Tensor) -> Tensor:
        """The coordinates (p,) that it moves: noise of the others tells nothing."""
        return torch.nonzero(along.abs() > 0).reshape(-1)


def scores_of(views: Sequence[_Seen], direction: Direction, count: int) -> NDArray[np.float64]:
    """Scores (count,) of as many releases of the same sums."""
    places = [direction.places(along) for along in direction.along]
    each = max(1, NUMBERS // max(1, sum(map(len, places))))
    found = [
        direction.score([view.again(at, part) for view, at in zip(views, places, strict=True)], views)
        for part in [each] * (count // each) + [count % each] * (count % each > 0)
    ]
    return np.concatenate(found)


def score_held(views: Sequence[_Seen], direction: Direction) -> NDArray[np.float64]:
    """The score of what was held in a real round, (1,)."""
    held = [
        view.held[direction.places(along)][None].numpy() for view, along in zip(views, direction.along, strict=True)
    ]
    return direction.score(held, views)


def attack(one: _Trial, other: _Trial, claim: Claim, releases: tuple[int, int], status: Status) -> AttackResult:
    """On all that is seen of a round; every round is a real one, and so are the first scores."""
    status.update("real rounds on both neighbours")
    least, pair, present, rounds = math.inf, None, 0, min(max(ROUNDS, math.ceil(ABSENT / claim.rate)), claim.rounds)
    seen: tuple[list[Sequence[_Seen]], list[Sequence[_Seen]]] = ([], [])
    for round_ in range(1, rounds + 1):
        views = one.views(round_), other.views(round_)
        direction = Direction.between(*views)
        if direction.mu > 0.01 * claim.mu:
            present += 1
            for each, own in zip(seen, views, strict=True):
                each.append(own)
            if direction.mu < least:
                least, pair = direction.mu, (views, direction)
    if pair is None:
        raise ExperimentError(
            f"the canary was in no batch of {rounds} rounds, as many as its ledger allows; raise training.rounds or "
            "training.batch_fraction"
        )
    status.update("releases with real noise")
    views, direction = pair
    singly, together = releases
    repeated, scores = 0, []
    for each, own in zip(seen, views, strict=True):
        noises = [tuple((view.held - view.exact).numpy().tobytes() for view in of_round) for of_round in each]
        repeated += len(noises) - len(set(noises))
        scores.append(np.concatenate([score_held(own, direction), scores_of(own, direction, singly + together - 1)]))
    found = (scores[0], scores[1])
    judgement = judged(*found, threshold=direction.mu / 2)
    return AttackResult(direction.mu * claim.sigma, rounds, present, judgement, None, repeated, found)
