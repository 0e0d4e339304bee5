"""Limits on runs that are chosen adaptively, by what earlier ones released: one of several privacy filters holds.

Source: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from fedsw.privacy.accountants import ROUNDING
from fedsw.privacy.accounting.composition import SMALLEST_DELTA
from fedsw.privacy.accounting.lifetime.composing import (
    Cost,
    Counts,
    counted,
    total_epsilon,
    uncovered,
    worst_of,
)
from fedsw.privacy.accounting.profiles import Step
from fedsw.privacy.accounting.selection import ORDERS, renyi_divergence
from fedsw.privacy.accounting.slicing import Slicing, gaussian_mixture, log_moment, lost
from fedsw.privacy.accounting.stated import log_factor

_CLOSE, _LEAST, _MOST = 1e-3, 1e-4, 1e4
_BINS = 12

FILTERS = 3
"""Filters of which one must hold; each has its share of delta."""


@dataclass(frozen=True)
class AdmittedCost:
    """Cost that a run was admitted with, and the part of its filter's delta that this took; neither ever changes."""

    cost: Cost
    weight: float


@dataclass(frozen=True)
class Use:
    """A run's part of a limit: its cost and the shares that it was admitted with; it `leads` if it has the first."""

    cost: Cost
    shares: tuple[AdmittedCost, ...]
    leads: bool = False


def next_weight(shares: Sequence[AdmittedCost]) -> float:
    """The weight of one more share: 1/2, 1/6, 1/12 and so on, which never add up to more than 1."""
    return (1 - math.fsum(share.weight for share in shares)) / (len(shares) + 2)


def in_order(costs: Iterable[Cost]) -> list[Use]:
    """Uses of runs that were admitted one after another, each at once, and released all that they had planned."""
    uses: list[Use] = []
    for cost in costs:
        if cost.steps:
            share = AdmittedCost(cost, next_weight([share for use in uses for share in use.shares]))
            uses.append(Use(cost, (share,), leads=not uses))
    return uses


def lacking(cost: Cost, paid: Cost | None) -> Cost | None:
    """Part of a run's cost that its shares do not pay for, whichever group a record is in; None if they pay for all."""
    if paid is None:
        return cost if cost.steps else None
    rest = worst_of(paid.lacks(part) for part in cost.parts)
    return Cost.one(rest) if rest else None


@dataclass(frozen=True)
class Limit:
    """A limit (epsilon, delta) of all runs together; `first` is the cost admitted before anything was released."""

    epsilon: float
    delta: float
    first: Cost | None = None

    def admits(self, uses: Iterable[Use]) -> bool:
        """Say whether all runs together keep to the limit, however each was chosen.

        Guarantee: whatever is released in runs that this admits, one after another, is (epsilon, delta)-private
        together, for the replacement of one record within its groups. Where the first share passes one of the filters
        of `filters`, all runs together must pass one of them, not always the same. Where it passes none, it takes the
        limit whole: then only runs are admitted that copies of its commonest step cover, composed numerically at the
        whole delta.

        Source: docs/guarantees/ledger.md; Feldman and Zrnic 2021 and Rogers, Roth, Ullman and Vadhan 2016 (filters).
        """
        known, taken = self._led(uses)
        if not taken:
            return True
        if known.shared:
            return any(known._keeps(epsilon) for epsilon in known.filters(taken))
        return known._keeps(known._alike(taken, self.delta))

    @cached_property
    def shared(self) -> bool:
        """True if runs of other kinds may be added to the first one: its share passes a filter."""
        return self.first is None or any(self._keeps(epsilon) for epsilon in self.filters(in_order([self.first])))

    @cached_property
    def order(self) -> float:
        """The order of the divergences, which follows from the limit only.

        The smallest order that admits nine tenths as many small Gaussian releases as the best order does: sampled steps
        are expensive at high orders.
        """
        fits = [(self.epsilon - _beside(order, self.delta / FILTERS)) / order for order in ORDERS]
        return next(order for order, many in zip(ORDERS, fits, strict=True) if many >= min(0.9 * max(fits), max(fits)))

    def filters(self, uses: Iterable[Use]) -> Iterator[float]:
        """Epsilon of all runs by each filter, at a third of delta; one that is within the limit is enough.

        The sum of Renyi divergences of one `order`; copies of the first share's commonest step, composed numerically;
        the sum of the shares' own epsilons, at parts of delta that were fixed when each was admitted.
        """
        known, taken = self._led(uses)
        delta = self.delta / FILTERS
        yield max(0.0, sum(divergence(use.cost, self.order) for use in taken) + _beside(self.order, delta))
        yield known._alike(taken, delta)
        shares = [share for use in taken for share in use.shares]
        least = min((share.weight for share in shares), default=1.0)
        if least * delta < SMALLEST_DELTA:
            yield math.inf
        else:
            yield math.fsum(total_epsilon([share.cost], share.weight * delta) for share in shares)

    def chosen(self, uses: Iterable[Use]) -> float:
        """Epsilon of all runs, however each was chosen: the filters' least, or that of copies of the first step."""
        known, taken = self._led(uses)
        if not taken:
            return 0.0
        whole = math.inf if known.shared else known._alike(taken, self.delta)
        return whole if math.isfinite(whole) else min(known.filters(taken))

    def _led(self, uses: Iterable[Use]) -> tuple[Limit, list[Use]]:
        """The limit with its first share, and the runs that cost something; without one, the first of these leads."""
        taken = [use for use in uses if use.cost.steps]
        if self.first is not None or not taken:
            return self, taken
        return replace(self, first=taken[0].cost), [replace(taken[0], leads=True), *taken[1:]]

    def _alike(self, uses: Sequence[Use], delta: float) -> float:
        """Epsilon of as many copies of the first share's commonest step as cover all runs; inf if none do.

        A first share of several kinds of steps counts whole, and covers what the run takes that was admitted with it.
        """
        if self.first is None or not self.first.steps:
            return math.inf
        step = max(self.first.steps, key=self.first.steps.__getitem__)
        single = all(set(part) <= {step} for part in self.first.parts)
        longest = Cost.one({}) if single else self.first
        for use in uses:
            beyond = [self.first.lacks(part) for part in use.cost.parts] if use.leads and not single else use.cost.parts
            copies = [_copies(part, step) for part in beyond]
            if None in copies:
                return math.inf
            longest = longest.and_more({step: max(many or 0 for many in copies)})
        return _composed(longest, delta)

    def _keeps(self, epsilon: float) -> bool:
        return epsilon <= self.epsilon * (1 + ROUNDING)


def _composed(cost: Cost, delta: float) -> float:
    """Epsilon of one run at a delta; inf at one that floating point cannot vouch for."""
    return total_epsilon([cost], delta) if delta >= SMALLEST_DELTA else math.inf


def _copies(steps: Counts, step: Step) -> int | None:
    """Number of copies of one step that cover these steps; None if no number does."""
    times = sum(steps.values())
    return None if uncovered(steps, {step: times}) else times


def room(limit: Limit, uses: Sequence[Use], like: Cost | None = None) -> float:
    """Epsilon, at the limit's delta, of the largest run of a given shape that still fits, to 0.1 percent; 0 if none."""
    shape = like or Cost.one({Step(1.0, 1.0): 1})
    weight = next_weight([share for use in uses for share in use.shares])

    def fits(factor: float) -> bool:
        cost = _scaled(shape, factor)
        return limit.admits([*uses, Use(cost, (AdmittedCost(cost, weight),))])

    if not limit.admits(uses) or not fits(_LEAST):
        return 0.0
    low = high = 1.0
    while fits(high) and high < _MOST:
        low, high = high, 2 * high
    while not fits(low):
        low, high = low / 2, low
    while high - low > _CLOSE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return total_epsilon([_scaled(shape, low)], limit.delta)


def divergence(cost: Cost, order: float) -> float:
    """Renyi divergence of a run's releases, in both orders of the neighbours: that of its costliest group."""
    return max(sum(times * _of_step(step, order) for step, times in part.items()) for part in cost.parts)


def _beside(order: float, delta: float) -> float:
    """Difference of epsilon at delta and the Renyi divergence (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return float(log_factor(np.array(order)) - math.log(delta)) / (order - 1)


def _scaled(cost: Cost, factor: float) -> Cost:
    """A cost with the noise of every release divided by a factor; of a stated profile nothing is known to change."""

    def scaled(steps: Counts) -> Mapping[Step, int]:
        return counted(
            (step if step.stated is not None else replace(step, mu=step.mu * factor), times)
            for step, times in steps.items()
        )

    return Cost(scaled(cost.steps), tuple(scaled(part) for part in cost.parts))


@lru_cache(maxsize=4096)
def _of_step(step: Step, order: float) -> float:
    """Renyi divergence of one step, from above; inf where it cannot be computed."""
    step = step.reduced
    if step.costless:
        return 0.0
    if step.stated is not None:
        return step.stated.divergence(order)
    if math.isinf(step.mu):
        return math.inf
    return renyi_divergence(step, order) if step.slicing is None else _of_slices(step, step.slicing, order)


def _of_slices(step: Step, slicing: Slicing, order: float) -> float:
    """Renyi divergence of a sliced step, from above: its moments are mixed over what slices leave of a move."""
    means, weights = gaussian_mixture(slicing, step.mu)
    bins = [np.array_split(part, min(_BINS, len(means))) for part in (means, weights)]
    logs = [  # a sum for each: differences of running sums would lose the smallest, or be 0
        math.log(shares.sum()) + (order - 1) * renyi_divergence(Step(step.sampling_rate, float(sizes[-1])), order)
        for sizes, shares in zip(*bins, strict=True)
    ]
    cut = _cut_off(slicing, order * (order - 1) * step.mu * step.mu / 2)  # as if all were sampled
    return float(np.logaddexp.reduce([*logs, cut])) / (order - 1)


def _cut_off(slicing: Slicing, s: float) -> float:
    """ln E exp(s B) over what the mixture leaves out: at the largest B, or by Hoelder's inequality."""
    mass = math.log(max(lost(slicing), 1e-300))
    if slicing.scheme == "orthogonal":
        return mass + s * (slicing.k // slicing.d + 1)
    powers = np.logspace(0.02, 1, 25).tolist()
    return float(min((1 - 1 / q) * mass + slicing.k * log_moment(slicing.d, q * s) / q for q in powers))
