"""What a privacy loss means for a person: how well an observer of every release could tell two records apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedsw.privacy.accounting._composition import Composition
from fedsw.privacy.accounting.profiles import Step

_POINTS = 160
_SMALLEST_DELTA = 1e-9
_LARGEST_EPSILON = 500.0
"""Of the points: what is said of a person does not depend on a smaller delta, nor on a larger epsilon."""


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
        """By the numerical composition of releases for one neighbouring relation; without any nothing is inferred."""
        composition = Composition(steps)
        most = min(composition.epsilon(_SMALLEST_DELTA), _LARGEST_EPSILON)
        epsilons = np.concatenate([[0.0], most * np.linspace(0.02, 1.0, _POINTS) ** 2]) if most else np.zeros(1)
        return cls(tuple(map(float, epsilons)), tuple(composition.delta(float(each)) for each in epsilons))

    @classmethod
    def of_claim(cls, epsilon: float, delta: float) -> Self:
        """By (epsilon, delta) alone, of the pair that dominates. Source: Kairouz, Oh, Viswanath 2015, Theorem 3.4."""
        if math.isinf(epsilon):
            return cls((0.0,), (1.0,))
        points = np.linspace(0.0, epsilon, _POINTS)
        seen = (1 - delta) / (1 + math.exp(-epsilon))
        return cls(
            tuple(map(float, points)), tuple(float(delta - seen * math.expm1(each - epsilon)) for each in points)
        )

    @property
    def advantage(self) -> float:
        """The most that a test's true positive rate exceeds its false positive rate."""
        return self.deltas[0]

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most that a test reaches with that false positive rate."""
        rate = false_positive_rate
        bounds = (
            min(delta + math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - delta - rate))
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
        )
        return max(rate, min(1.0, *bounds))

    def success(self, prior: float) -> float:
        """How often the best guess is right, of whoever gave one of the two records the probability `prior` before."""
        least, log_odds = min(prior, 1 - prior), abs(math.log(prior) - math.log1p(-prior))
        place = int(np.searchsorted(self.epsilons, log_odds, side="right")) - 1
        return min(1.0, 1 - least + least * self.deltas[place])

    def shift(self, chance: float) -> float:
        """By how much log-odds may rise at most, but with probability `chance`.

        By Markov's inequality: P(L > t) (1 - e^(epsilon - t)) <= delta(epsilon) for every epsilon < t.
        """
        bounds = (
            epsilon - math.log1p(-delta / chance)
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
            if delta < chance
        )
        return min(bounds, default=math.inf)

    def posterior(self, prior: float, chance: float) -> float:
        """What was believed with probability `prior` is believed with at most that afterwards, but with `chance`."""
        return 1 / (1 + (1 - prior) / prior * math.exp(-self.shift(chance)))
