"""How much of what can be learnt noise will leave, as a curve over the strength of the signal, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsw.engines.settle import numbers_of, settled
from fedsw.experiment import Experiment
from fedsw.experiment.preset import Numbers
from fedsw.forecast.law import LAWS, Law, PublicRecords, drawn, halves, resampled
from fedsw.forecast.schema import scaled
from fedsw.forecast.twins import Score, trained
from fedsw.tasks.problem import Problem

STRENGTHS = (2.0, 5.0, 12.0, 30.0, 75.0, 200.0, 600.0)
"""Where the curve is measured on twins; between them it is interpolated."""
MOST_TWINS = 2_000
"""Twins of a training: more records are stood for by so many with less noise."""
HELD_OUT = 2_000
ABOUT_ALL = 0.9
"""Share of what can be learnt from which on noise is not worth speaking of."""
FEASIBLE = 0.25
"""Share of what can be learnt below which a constant does as well."""
_LITTLE = 1e-3
"""Gain over a constant, without noise, below which there is nothing to lose."""


@dataclass(frozen=True)
class Point:
    """What training on twins came to at one strength of the signal: scores under every law, in order."""

    strength: float
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Curve:
    """Training on twins of one size: without noise, and at several strengths of the signal.

    Attributes:
        reference: scores without noise, under every law.
        points: scores with noise, the weakest signal first.
    """

    reference: tuple[Score, ...]
    points: tuple[Point, ...]

    @property
    def learnable(self) -> tuple[float, ...]:
        """Under every law, how much better than a constant training can be.

        It is that of training without noise; or with little noise, where that learns fewer records by heart.
        """
        return tuple(
            max(reference.gain, *(point.scores[place].gain for point in self.points))
            for place, reference in enumerate(self.reference)
        )

    @property
    def taught(self) -> tuple[int, ...]:
        """The laws, by their places, under which there is something to learn."""
        return tuple(place for place, gain in enumerate(self.learnable) if gain >= _LITTLE)

    @property
    def kept(self) -> tuple[float, ...]:
        """At every point the share that is left of what can be learnt: between -1 and 1, the mean over the laws.

        It never falls as the signal grows. Laws under which there is nothing to learn have no say.
        """
        parts = [self._share(place) for place in self.taught]
        return tuple(_mean(each) for each in zip(*parts, strict=True)) or (0.0,) * len(self.points)

    def under(self, place: int) -> Curve:
        """The curve under one law alone."""
        points = tuple(Point(point.strength, (point.scores[place],)) for point in self.points)
        return Curve((self.reference[place],), points)

    def _share(self, place: int) -> list[float]:
        learnable = self.learnable[place]
        return _rising([max(-1.0, min(1.0, point.scores[place].gain / learnable)) for point in self.points])

    def at(self, strength: float) -> float:
        """The share of what can be learnt that is left at a strength of the signal."""
        if math.isinf(strength):
            return 1.0
        logs = [math.log(point.strength) for point in self.points]
        value = float(np.interp(math.log(max(strength, 1e-9)), logs, self.kept))
        weakest = self.points[0].strength
        return min(value, 1.0) if strength >= weakest else min(value, 1.0) - math.log(weakest / strength) * 0.1

    def strength_for(self, share: float) -> float:
        """The least strength at which so much is left; infinite if none of those measured is enough."""
        for before, after in zip((None, *self.points), self.points, strict=False):
            if self.at(after.strength) < share:
                continue
            if before is None:
                return after.strength
            low, high = self.at(before.strength), self.at(after.strength)
            place = (share - low) / (high - low)
            return float(before.strength * (after.strength / before.strength) ** place)
        return math.inf


def curve(
    experiment: Experiment,
    problem: Problem,
    by_group: Mapping[str, int],
    *,
    table: PublicRecords | None = None,
    laws: Sequence[Law] = LAWS,
    strengths: Sequence[float] = STRENGTHS,
    relative: float | None = None,
    seen: Callable[[], None] = lambda: None,
) -> Curve:
    """Train on twins, without noise and with several amounts of it.

    Args:
        experiment: settings of training, or `training.preset` "auto", which chooses for every strength anew.
        problem: of records with these columns.
        by_group: private records of every group, which are public.
        table: a public table to draw twins from, in place of the laws.
        laws: to draw twins from.
        strengths: of the signal, rising, at which twins are trained with noise.
        relative: multiplier of a round over that of one release of all records; None for the square root of the rounds.
        seen: called after every training.
    """
    sizes = scaled(by_group, min(sum(by_group.values()), MOST_TWINS))
    known = numbers_of(experiment, sizes, problem)
    twins = [_of_law(problem, sizes, law) for law in laws] if table is None else [_of_table(table, sizes, 0)]

    def scores(strength: float) -> tuple[Score, ...]:
        numbers, ready = at_strength(experiment, known, strength)
        each = numbers.multiplier * (math.sqrt(ready.training.rounds) if relative is None else relative)
        found = []
        for place, (private, held_out) in enumerate(twins):
            found.append(trained(problem, ready, private, held_out, multiplier=each, seed=place))
            seen()
        return tuple(found)

    return Curve(scores(math.inf), tuple(Point(each, scores(each)) for each in strengths))


def strength_of(experiment: Experiment, numbers: Numbers) -> float:
    """The strength of the signal at these numbers, with the clips that a run then has."""
    clip = settled(experiment, numbers).clip
    return numbers.strength(clip.jacobian, clip.loss)


def at_strength(experiment: Experiment, numbers: Numbers, strength: float) -> tuple[Numbers, Experiment]:
    """The numbers with as much noise as leaves that strength, and the experiment as it then runs."""
    if math.isinf(strength):
        quiet = replace(numbers, multiplier=0.0)
        return quiet, settled(experiment, quiet)
    unit = replace(numbers, multiplier=1.0)
    noisy = replace(numbers, multiplier=strength_of(experiment, unit) / strength)
    return noisy, settled(experiment, noisy)


def _of_law(problem: Problem, sizes: Mapping[str, int], law: Law) -> tuple[PublicRecords, PublicRecords]:
    """Twins to train on, and others of the same law to measure on."""
    columns = problem.experiment.data.columns
    assert columns is not None
    return drawn(columns, sizes, law, seed=0), drawn(columns, scaled(sizes, HELD_OUT), law, seed=1)


def _of_table(table: PublicRecords, sizes: Mapping[str, int], seed: int) -> tuple[PublicRecords, PublicRecords]:
    """Twins out of one half of a public table, and others out of the other half to measure on."""
    own, others = halves(table)
    return resampled(own, sizes, seed=seed), resampled(others, scaled(sizes, HELD_OUT), seed=seed + 1)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, in squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            last, count = pools.pop()
            pools[-1] = [(pools[-1][0] * pools[-1][1] + last * count) / (pools[-1][1] + count), pools[-1][1] + count]
    return [value for value, count in pools for _ in range(int(count))]
