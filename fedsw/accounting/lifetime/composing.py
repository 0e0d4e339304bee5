"""Epsilon of all runs in an account, of which each may have gone one of several ways."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedsw.accounting.composition import Composition
from fedsw.accounting.discretise import Harmonics
from fedsw.accounting.ledger import Ledger
from fedsw.accounting.lifetime.cover import NO_NOISE, Cost, Counts, counted, one_cost
from fedsw.accounting.pld import Distribution
from fedsw.accounting.profiles import Step, stated_step
from fedsw.accounting.stated import Tabled, convex_below

_EVEN, _NEAR, _COARSE = 1500, 500, 400
_DECADES = 5


def one_of(parts: Collection[Mapping[Step, int]]) -> Step:
    """The step of a mechanism that costs a record the steps of one of the parts.

    Which part that is may follow from all that was released before, here or elsewhere.

    Guarantee: its profile is at every loss at least that of every part's composition.

    Args:
        parts: at least one, each with a step that costs something; of noise, for replacement neighbours.

    Source: docs/guarantees.md, "One account for one data set".
    """
    return _one_of(frozenset(frozenset(part.items()) for part in parts))


@lru_cache(maxsize=256)
def _one_of(parts: frozenset[frozenset[tuple[Step, int]]]) -> Step:
    read = [Composition(sorted(part, key=repr)).reading() for part in parts]
    losses = _losses(max(_reach(each) for each in read))
    bounds = torch.stack([each.deltas(losses) for each in read]).amax(0).numpy()
    left_out = float(bounds[-1])
    corners, values = convex_below(losses.numpy(), np.maximum(bounds - left_out, 0.0))
    return stated_step(Tabled(tuple(corners.tolist()), tuple(values.tolist()), left_out))


def _reach(read: Distribution | Harmonics) -> float:
    """A loss at which little more is left of delta than what is set aside."""
    losses = torch.linspace(0.0, read.end, _COARSE, dtype=torch.float64)
    much = (read.deltas(losses) > 2 * read.excess).nonzero()
    return float(losses[min(int(much.max()) + 1 if len(much) else 1, _COARSE - 1)])


def _losses(reach: float) -> Tensor:
    """Where a table is made: even, and closer together near 0."""
    last = math.log10(reach)
    near = torch.logspace(last - _DECADES, last, _NEAR + 1, dtype=torch.float64)[:-1]
    found: Tensor = torch.unique(torch.cat([torch.linspace(0.0, reach, _EVEN, dtype=torch.float64), near]))
    return found


_CLOSE = 1e-3
_LEAST = 1e-4
_MOST = 1e4
_TOLERANCE = 1e-9


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


def total_epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Epsilon at delta of runs together, for the replacement of one record within the groups of all of them.

    A run costs a record what the group costs that it is in. Whose group that is in a later run may have been chosen by
    what an earlier one released, so each run counts with one step whose profile is the largest of its groups'. Where
    delta is too small for what such a step sets aside, a run counts with steps that cover those of all of its groups.

    Guarantee: an upper bound, as `composed_epsilon`.

    Source: docs/guarantees.md, "One account for one data set".
    """
    taken = [cost for cost in costs if cost.steps]
    if len(taken) == 1:
        return max(composed_epsilon([part], delta) for part in taken[0].parts)
    found = composed_epsilon((_by_group(cost) for cost in taken), delta)
    return found if math.isfinite(found) else composed_epsilon((cost.steps for cost in taken), delta)


def _by_group(cost: Cost) -> Counts:
    """A run of several groups as one step, which costs a record what its dearest group costs it at every loss."""
    if len(cost.parts) == 1:
        return cost.parts[0]
    if any(math.isinf(step.mu) for part in cost.parts for step in part):
        return NO_NOISE
    return {one_of(cost.parts): 1}


def admitted(costs: Iterable[Cost], epsilon: float, delta: float) -> bool:
    """Whether runs together keep to a limit: what lets a run in, and what says how much still fits."""
    return total_epsilon(costs, delta) <= epsilon * (1 + _TOLERANCE)


def room(costs: Iterable[Cost], epsilon: float, delta: float, like: Cost | None = None) -> float:
    """Epsilon at delta of the largest run that still fits below (epsilon, delta), to a thousandth; 0 if none does.

    Args:
        like: its releases, whose noise is made smaller or larger; one Gaussian release of all records by default.
    """
    taken, shape = list(costs), like or one_cost({Step(1.0, 1.0): 1})

    def fits(factor: float) -> bool:
        return admitted([*taken, _scaled(shape, factor)], epsilon, delta)

    if not admitted(taken, epsilon, delta) or not fits(_LEAST):
        return 0.0
    low = high = 1.0
    while fits(high) and high < _MOST:
        low, high = high, 2 * high
    while not fits(low):
        low, high = low / 2, low
    while high - low > _CLOSE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return total_epsilon([_scaled(shape, low)], delta)


def cost_of_ledger(ledger: Ledger) -> Cost:
    """The steps that a run's ledger was charged for, by its groups."""
    return Cost.of(counted(steps.items()) for steps in ledger.steps_by_group().values())


def _scaled(cost: Cost, factor: float) -> Cost:
    """A cost with the noise of every release divided by a factor; of a stated profile nothing is known to change."""

    def scaled(steps: Counts) -> dict[Step, int]:
        return counted(
            (step if step.stated is not None else replace(step, mu=step.mu * factor), times)
            for step, times in steps.items()
        )

    return Cost(scaled(cost.steps), tuple(scaled(part) for part in cost.parts))


@lru_cache(maxsize=512)
def _epsilon(counts: frozenset[tuple[Step, int]], delta: float) -> float:
    if any(math.isinf(step.mu) for step, _ in counts):
        return math.inf
    return Composition(sorted(counts, key=repr)).epsilon(delta)
