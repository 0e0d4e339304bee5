"""What runs of different kinds cost together, composed numerically from the steps of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from fedsw.accounting.comparison import gaussian_epsilon
from fedsw.accounting.composition import Composition
from fedsw.accounting.ledger import Ledger
from fedsw.accounting.lifetime.cover import Counts, counted, worst_of
from fedsw.accounting.profiles import Step

_CLOSE = 1e-2
_LEAST = 1e-4


def composed_epsilon(steps: Iterable[Counts], delta: float) -> float:
    """Epsilon at delta of everything together, for the replacement of one record within the groups of all runs.

    Guarantee: an upper bound; inf where a step has no noise, or where round-off uses delta up.

    Source: docs/guarantees.md, "One account for one data set".
    """
    total: dict[Step, int] = {}
    for own in steps:
        for step, times in own.items():
            total[step] = total.get(step, 0) + times
    return _epsilon(frozenset(total.items()), delta)


def room(steps: Iterable[Counts], epsilon: float, delta: float) -> float:
    """Epsilon at delta of the largest Gaussian release of all records that still fits below (epsilon, delta).

    Found from below, to about a hundredth; 0 if none fits.
    """
    taken = list(steps)
    if composed_epsilon(taken, delta) >= epsilon:
        return 0.0
    low, high = 0.0, _largest(epsilon, delta)
    while high - low > _CLOSE * high and high > _LEAST:
        middle = (low + high) / 2
        low, high = (middle, high) if _within([*taken, {Step(1.0, middle): 1}], epsilon, delta) else (low, middle)
    return gaussian_epsilon(low, delta)


def counts_of_ledger(ledger: Ledger) -> dict[Step, int]:
    """The steps that a run's ledger was charged for, those of its worst group."""
    return worst_of(counted(steps.items()) for steps in ledger.steps_by_group().values())


@lru_cache(maxsize=512)
def _epsilon(counts: frozenset[tuple[Step, int]], delta: float) -> float:
    if any(math.isinf(step.mu) for step, _ in counts):
        return math.inf
    return Composition(sorted(counts, key=repr)).epsilon(delta)


def _within(steps: Iterable[Counts], epsilon: float, delta: float) -> bool:
    composition = Composition()
    for own in steps:
        for step, times in own.items():
            composition.add(step, times)
    return composition.within(epsilon, delta)


def _largest(epsilon: float, delta: float) -> float:
    """mu of the Gaussian release that costs epsilon at delta by itself, from above."""
    low, high = 0.0, 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        low, high = high, 2 * high
    while high - low > _CLOSE / 10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_epsilon(middle, delta) < epsilon else (low, middle)
    return high
