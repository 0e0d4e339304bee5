"""What runs may cost together where each is chosen by what earlier ones released: a filter of one Renyi order.

Source: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from fedsw.accounting.lifetime.composing import Cost, Counts, counted, one_cost, total_epsilon, uncovered
from fedsw.accounting.profiles import Step
from fedsw.accounting.selection import ORDERS, renyi_divergence
from fedsw.accounting.slicing import Slicing, gaussian_mixture, log_moment, lost
from fedsw.accounting.stated import Pure, Renyi, log_factor

_TOLERANCE = 1e-9
_CLOSE, _LEAST, _MOST = 1e-3, 1e-4, 1e4
_LOOKED_AT, _BINS = ORDERS[::2], 12


@dataclass(frozen=True)
class Limit:
    """A limit (epsilon, delta) of all runs together, and the plan of the first, in which no release had a part."""

    epsilon: float
    delta: float
    first: Cost | None = None

    def admits(self, costs: Iterable[Cost]) -> bool:
        """Whether runs that count with these costs keep to it, however each was chosen.

        Guarantee: whatever is released under costs that this admits, one after another, is (epsilon, delta)-private
        together, for the replacement of one record within its groups. The first run's plan alone is composed
        numerically. Whatever is added to it must fit by Renyi divergences of one order, which the limit and that plan
        settle; where the plan itself does not, nothing but more of the step that it takes most often is ever added: of
        any other there would be a choice, and as fixed plans both may fit.

        Source: docs/guarantees/ledger.md; Feldman and Zrnic 2021 (filters).
        """
        taken = [cost for cost in costs if cost.steps]
        first = self.first or (taken[0] if taken else one_cost({}))
        more = [first.lacks(part) for part in taken[0].parts] if len(taken) == 1 else []
        if len(taken) < 2 and not any(more):
            return self._keeps(total_epsilon(taken, self.delta))
        if replace(self, first=first).shared:
            return self._keeps(self.chosen(taken))
        longer = _longer(first, more) if more else None
        return longer is not None and self._keeps(total_epsilon([longer], self.delta))

    @cached_property
    def shared(self) -> bool:
        """Whether other runs may be added to the first: its plan fits by Renyi divergences, too."""
        return self.first is None or self._keeps(self.chosen([self.first]))

    @cached_property
    def order(self) -> float:
        """The Renyi order at which most copies of the first run's plan fit."""
        least = [_beside(order, self.delta) for order in _LOOKED_AT]
        own = [divergence(self.first or one_cost({Step(1.0, 1e-3): 1}), order) for order in _LOOKED_AT]
        fits = [(self.epsilon - other) / max(each, 1e-300) for each, other in zip(own, least, strict=True)]
        if max(fits) <= 0.0:
            return _LOOKED_AT[int(np.argmin(np.add(own, least)))]
        return _LOOKED_AT[int(np.argmax(fits))]

    def chosen(self, costs: Iterable[Cost]) -> float:
        """Epsilon at delta of costs of which each may follow from what was released before; inf if it is not known."""
        taken = [cost for cost in costs if cost.steps]
        if not taken:
            return 0.0
        order = self.order if self.first else replace(self, first=taken[0]).order
        return max(0.0, sum(divergence(cost, order) for cost in taken) + _beside(order, self.delta))

    def _keeps(self, epsilon: float) -> bool:
        return epsilon <= self.epsilon * (1 + _TOLERANCE)


def _longer(plan: Cost, more: Sequence[Counts]) -> Cost | None:
    """A plan with as many more of its commonest step as cover what each group takes beyond it; None if they do not."""
    if not plan.steps:
        return None
    own, times = max(plan.steps, key=plan.steps.__getitem__), max(sum(rest.values()) for rest in more)
    return None if any(uncovered(rest, {own: times}) for rest in more) else plan.and_more({own: times})


def room(limit: Limit, costs: Sequence[Cost], like: Cost | None = None) -> float:
    """Epsilon at the limit's delta of the largest run like one that still fits, to a thousandth; 0 if none does."""
    shape = like or one_cost({Step(1.0, 1.0): 1})

    def fits(factor: float) -> bool:
        return limit.admits([*costs, _scaled(shape, factor)])

    if not limit.admits(costs) or not fits(_LEAST):
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
    """Renyi divergence of a run's releases, in both orders of the neighbours: that of its dearest group."""
    return max(sum(times * _of_step(step, order) for step, times in part.items()) for part in cost.parts)


def _beside(order: float, delta: float) -> float:
    """What epsilon at delta is above the divergence (Canonne, Kamath, Steinke 2020, Proposition 12)."""
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
    if isinstance(step.stated, Pure):
        moment = np.logaddexp(order * step.stated.epsilon, (1 - order) * step.stated.epsilon)
        return float(moment - np.logaddexp(0.0, step.stated.epsilon)) / (order - 1)
    if isinstance(step.stated, Renyi):
        return _between_orders(step.stated, order)
    if step.stated is not None or math.isinf(step.mu):
        return math.inf
    return renyi_divergence(step, order) if step.slicing is None else _of_slices(step, step.slicing, order)


def _of_slices(step: Step, slicing: Slicing, order: float) -> float:
    """Moments are mixed as profiles are, over what is left of a move, raised to a few sizes, and what is cut off."""
    means, weights = gaussian_mixture(slicing, step.mu)
    bins = [np.array_split(part, min(_BINS, len(means))) for part in (means, weights)]
    logs = [  # a sum for each: differences of running sums would lose the smallest, or be 0
        math.log(shares.sum()) + (order - 1) * renyi_divergence(Step(step.sampling_rate, float(own[-1])), order)
        for own, shares in zip(*bins, strict=True)
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


def _between_orders(stated: Renyi, order: float) -> float:
    """(order - 1) times the divergence is convex and 0 at order 1: below the chord between two known orders."""
    if order > stated.orders[-1]:
        return math.inf
    logs = [(known - 1) * value for known, value in zip(stated.orders, stated.divergences, strict=True)]
    return float(np.interp(order, [1.0, *stated.orders], [0.0, *logs])) / (order - 1)
