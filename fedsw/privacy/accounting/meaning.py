"""Privacy loss in a person's terms: how well an observer of every release could tell two records apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedsw.privacy.accounting.composition import Composition
from fedsw.privacy.accounting.profiles import Step

_POINTS = 160
_SMALLEST_DELTA = 1e-9
_LARGEST_EPSILON = 500.0
"""Smallest delta and largest epsilon of a profile's points: no bound on an observer needs others."""


@dataclass(frozen=True)
class Meaning:
    """Bounds on any observer of all releases, from points of a privacy profile.

    The observer knows every other record, and which two records the person's may be; the profile bounds both
    directions alike. All bounds are from above, whatever points are known: more points bring them closer.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of_steps(cls, steps: Mapping[Step, int] | Iterable[tuple[Step, int]]) -> Self:
        """Bounds from the numerical composition of releases for one relation; without any, nothing can be inferred."""
        composition = Composition(steps)
        most = min(composition.epsilon(_SMALLEST_DELTA), _LARGEST_EPSILON)
        epsilons = np.concatenate([[0.0], most * np.linspace(0.02, 1.0, _POINTS) ** 2]) if most else np.zeros(1)
        return cls(tuple(map(float, epsilons)), tuple(composition.delta(float(epsilon)) for epsilon in epsilons))

    @classmethod
    def of_claim(cls, epsilon: float, delta: float) -> Self:
        """Bounds from (epsilon, delta) only, by the dominating pair.

        Source: Kairouz, Oh, Viswanath 2015, Theorem 3.4.
        """
        if math.isinf(epsilon):
            return cls((0.0,), (1.0,))
        points = np.linspace(0.0, epsilon, _POINTS)
        seen = (1 - delta) / (1 + math.exp(-epsilon))
        return cls(
            tuple(map(float, points)), tuple(float(delta - seen * math.expm1(point - epsilon)) for point in points)
        )

    @classmethod
    def of_any(cls, meanings: Iterable[Meaning]) -> Self:
        """Bounds that hold by each of several profiles, one or more, whichever is a person's: profiles may cross.

        Between two points a profile is at most the chord over e^epsilon, in which it is convex; beyond the last, at
        most what it is there.
        """
        known = list(meanings)
        epsilons = np.unique(np.concatenate([meaning.epsilons for meaning in known]))
        deltas = [np.interp(np.exp(epsilons), np.exp(meaning.epsilons), meaning.deltas) for meaning in known]
        return cls(tuple(map(float, epsilons)), tuple(map(float, np.max(deltas, axis=0))))

    @property
    def advantage(self) -> float:
        """Largest difference between the true and the false positive rate of any test."""
        return self.deltas[0]

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Largest true positive rate of any test with that false positive rate."""
        rate = false_positive_rate
        bounds = (
            min(delta + math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - delta - rate))
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
        )
        return max(rate, min(1.0, *bounds))

    def success(self, prior: float) -> float:
        """Largest probability of guessing which of two records it is, for an observer who gave one of them `prior`."""
        least, log_odds = min(prior, 1 - prior), abs(math.log(prior) - math.log1p(-prior))
        index = int(np.searchsorted(self.epsilons, log_odds, side="right")) - 1
        return min(1.0, 1 - least + least * self.deltas[index])

    def shift(self, chance: float) -> float:
        """Largest rise of an observer's log-odds; the bound fails with probability `chance` at most.

        By Markov's inequality: P(L > t) (1 - e^(epsilon - t)) <= delta(epsilon) for every epsilon < t.
        """
        bounds = (
            epsilon - math.log1p(-delta / chance)
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
            if delta < chance
        )
        return min(bounds, default=math.inf)

    def posterior(self, prior: float, chance: float) -> float:
        """Return the posterior's upper bound for a belief of `prior`; it fails with probability `chance` at most."""
        return 1 / (1 + (1 - prior) / prior * math.exp(-self.shift(chance)))
