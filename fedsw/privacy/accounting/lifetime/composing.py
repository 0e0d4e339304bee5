"""Costs of runs in an account: which steps cover which others, and the epsilon of all runs together.

Source: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedsw.privacy.accounting._arrays import Floats, last_true
from fedsw.privacy.accounting.composition import Composition
from fedsw.privacy.accounting.ledger import Charge, Ledger, as_steps
from fedsw.privacy.accounting.pld import Distribution, Harmonics
from fedsw.privacy.accounting.profiles import Step, stated_step
from fedsw.privacy.accounting.selection import renyi_of_best
from fedsw.privacy.accounting.slicing import Slicing
from fedsw.privacy.accounting.stated import Tabled, convex_below, from_fields
from fedsw.privacy.relations import ADD_OR_REMOVE

Counts = Mapping[Step, int]

NO_NOISE: Counts = {Step(1.0, math.inf): 1}
"""Cost of a run without noise: infinite."""

_DIGITS = 10


def of_replacement(step: Step) -> Step:
    """A step that costs at least as much, for the replacement of one record.

    A record that a Poisson batch may hold, and that then moves the sum by at most Delta, moves it by at most 2 Delta
    when it is replaced: its step costs at most as much as one without replacement of twice the mu.
    """
    if step.relation == ADD_OR_REMOVE:
        return replace(step, sampling="without-replacement", mu=2 * step.mu)
    return step


def comparable(step: Step) -> Step:
    """A step that costs at least as much, for the replacement of one record, with a mu of few digits."""
    step = of_replacement(step.reduced)
    if step.costless or math.isinf(step.mu):
        return step
    if step.stated is not None:
        return stated_step(step.stated.raised(_up))
    return replace(step, mu=_up(step.mu))


def counted(steps: Iterable[tuple[Step, int]]) -> dict[Step, int]:
    """Comparable steps with how often each is taken; those that cost nothing are left out."""
    counts: dict[Step, int] = {}
    for step, times in steps:
        known = comparable(step)
        if times and not known.costless:
            counts[known] = counts.get(known, 0) + times
    return counts


def uncovered(spent: Counts, reserved: Counts) -> dict[Step, int]:
    """Spent steps that a reservation does not cover; each reserved step covers at most one.

    A step is covered by the least that does: one that costs little leaves what covers a larger one to that.
    """
    left = dict(reserved)
    rest: dict[Step, int] = {}
    for step, times in spent.items():
        covering = [candidate for candidate in left if _covers(candidate, step)]
        for candidate in sorted(
            covering, key=lambda candidate: (candidate != step, candidate.mu, candidate.sampling_rate)
        ):
            used = min(times, left[candidate])
            left[candidate] -= used
            times -= used
        if times:
            rest[step] = times
    return rest


def added(first: Counts, second: Counts) -> dict[Step, int]:
    """Sum of two counts of steps."""
    return {step: first.get(step, 0) + second.get(step, 0) for step in (*first, *second)}


@dataclass(frozen=True)
class Cost:
    """Cost of a run to one record: `parts`, the steps of each group that no other covers; `steps`, which cover all."""

    steps: Counts
    parts: tuple[Counts, ...]

    @classmethod
    def of(cls, groups: Iterable[Counts]) -> Cost:
        """The cost of a run with these steps by group."""
        parts: list[Counts] = []
        for group in groups:
            if not any(not uncovered(group, other) for other in parts):
                parts = [other for other in parts if uncovered(other, group)] + [group]
        return cls(worst_of(parts), tuple(parts) or ({},))

    @staticmethod
    def one(steps: Counts | Cost) -> Cost:
        """The cost of a run of one group; a `Cost` as it is."""
        return steps if isinstance(steps, Cost) else Cost(steps, (steps,))

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> Cost:
        """The steps that a run's ledger was charged for, by its groups."""
        return cls.of(counted(steps.items()) for steps in ledger.steps_by_group().values())

    @classmethod
    def beside_others(cls, ledger: Ledger) -> Cost:
        """Cost of a run when composed with others: its ledger's, or its selection if it is the best of several."""
        if ledger.selection is not None and ledger.released_rounds():
            return cls.one({stated_step(renyi_of_best(ledger.selection.law, ledger.selection.plans)): 1})
        return cls.of_ledger(ledger)

    def lacks(self, steps: Counts) -> dict[Step, int]:
        """Steps missing from the cost for a group that takes these steps: none if a part covers them."""
        return min((uncovered(steps, part) for part in self.parts), key=lambda rest: sum(rest.values()))

    def exceeded_by(self, ledger: Ledger, charges: Sequence[Charge], sigma: float) -> str | None:
        """First group of a ledger that would have taken more than this with one more release; None if none would."""
        planned, steps = self.counted(), as_steps(charges, sigma, ledger.groups)
        for group, taken in ledger.steps_by_group().items():
            if planned.lacks(counted([*taken.items(), (steps[group], 1)])):
                return group
        return None

    def and_more(self, rest: Counts) -> Cost:
        """The cost with more steps, whichever group takes them."""
        return Cost(added(self.steps, rest), tuple(added(part, rest) for part in self.parts))

    def counted(self) -> Cost:
        """This cost with every step replaced by a comparable one (`comparable`), which costs at least as much."""
        return Cost(counted(self.steps.items()), tuple(counted(part.items()) for part in self.parts))


def planned(step: Step, times: int) -> dict[Step, int]:
    """Steps to reserve for a plan: with a mu a trifle above the plan's, which rounding may exceed by a last digit."""
    if step.stated is not None or math.isinf(step.mu):
        return {step: times}
    return {replace(step, mu=step.mu * (1 + 10.0 ** (1 - _DIGITS))): times}


def worst_of(groups: Iterable[Counts]) -> dict[Step, int]:
    """Steps that cover those of every group of a run: those of one group that covers all others, if there is one."""
    known = list(groups)
    for steps in known:
        if not any(uncovered(other, steps) for other in known):
            return dict(steps)
    total: dict[Step, int] = {}
    for steps in known:
        total = _joined(total, steps)
    return total


def _joined(first: Counts, second: Counts) -> dict[Step, int]:
    """Steps that cover both: in pairs, the larger rate with the larger mu; the rest as it is."""
    joined: dict[Step, int] = {}
    queues = [sorted(counts.items(), key=lambda entry: -entry[0].mu) for counts in (first, second)]
    while all(queues):
        (one, many), (other, more) = queues[0][0], queues[1][0]
        if (one.slicing, one.stated) != (other.slicing, other.stated):
            break
        together = replace(one, sampling_rate=max(one.sampling_rate, other.sampling_rate), mu=max(one.mu, other.mu))
        times = min(many, more)
        joined = added(joined, {together: times})
        for queue, step, count in ((queues[0], one, many), (queues[1], other, more)):
            queue[:1] = [(step, count - times)] if count > times else []
    for queue in queues:
        joined = added(joined, dict(queue))
    return joined


def as_row(counts: Counts) -> list[dict[str, Any]]:
    """Rows of steps for an account's file, read again by `from_row`."""
    return [
        {
            "rate": step.sampling_rate,
            "mu": "inf" if math.isinf(step.mu) else step.mu,
            "slicing": None if step.slicing is None else asdict(step.slicing),
            "stated": None if step.stated is None else asdict(step.stated),
            "times": times,
        }
        for step, times in counts.items()
    ]


def from_row(rows: Iterable[Mapping[str, Any]]) -> dict[Step, int]:
    """The steps that a file keeps."""
    return {_step(row): int(row["times"]) for row in rows}


def _step(row: Mapping[str, Any]) -> Step:
    stated = row["stated"]
    if stated is None:
        slicing = None if row["slicing"] is None else Slicing(**row["slicing"])
        return Step(float(row["rate"]), float(row["mu"]), slicing=slicing)
    return stated_step(from_fields(stated))


def _covers(larger: Step, smaller: Step) -> bool:
    if larger.stated is not None:
        return larger.stated.covers(smaller.stated)
    if smaller.stated is not None or larger.slicing != smaller.slicing:
        return False
    return larger.sampling_rate >= smaller.sampling_rate and larger.mu >= smaller.mu


def _up(value: float) -> float:
    """The number with few digits, never below it; one that has few stays as it is."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    if round(value / unit) * unit == value:
        return value
    above = math.ceil(value / unit)
    return above * unit if above * unit >= value else (above + 1) * unit


_EVEN, _NEAR, _COARSE = 1500, 500, 400
_DECADES = 5


def one_of(parts: Collection[Mapping[Step, int]]) -> Step:
    """One step that costs a record as much as the costliest of several groups' steps, whichever group it is in.

    Guarantee: its profile is at every loss at least that of every part's composition.

    Every part has a step that costs something; all steps have noise, and are for replacement neighbours.
    """
    return _one_of(frozenset(frozenset(part.items()) for part in parts))


@lru_cache(maxsize=256)
def _one_of(parts: frozenset[frozenset[tuple[Step, int]]]) -> Step:
    read = [Composition(sorted(part, key=repr)).reading() for part in parts]
    losses = _losses(max(_reach(curve) for curve in read))
    bounds = np.stack([curve.deltas(losses) for curve in read]).max(axis=0)
    left_out = float(bounds[-1])
    corners, values = convex_below(losses, np.maximum(bounds - left_out, 0.0))
    return stated_step(Tabled(tuple(corners.tolist()), tuple(values.tolist()), left_out))


def _reach(read: Distribution | Harmonics) -> float:
    """A loss at which little more is left of delta than what is set aside."""
    losses = np.linspace(0.0, read.end, _COARSE)
    much = last_true(read.deltas(losses) > 2 * read.excess)
    return float(losses[min(much + 1 if much >= 0 else 1, _COARSE - 1)])


def _losses(reach: float) -> Floats:
    """Privacy losses at which a profile is tabulated: even, and closer together near 0."""
    last = math.log10(reach)
    near = np.logspace(last - _DECADES, last, _NEAR + 1)[:-1]
    return np.unique(np.concatenate([np.linspace(0.0, reach, _EVEN), near]))


def composed_epsilon(steps: Iterable[Counts], delta: float) -> float:
    """Epsilon at delta of everything together, for the replacement of one record within the groups of all runs.

    Guarantee: an upper bound; inf where a step has no noise, or round-off uses delta up (docs/guarantees/ledger.md).
    """
    total = Counter[Step]()
    for counts in steps:
        total.update(counts)
    return _epsilon(frozenset(total.items()), delta)


def total_epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Epsilon at delta of runs together, for the replacement of one record within the groups of all of them.

    A run costs a record what its group costs. Which group that is in a later run may have been chosen by
    what an earlier one released, so each run counts with one step: the pointwise largest profile of its groups. If
    delta is too small for what such a step sets aside, a run counts with steps that cover those of all of its groups.

    Guarantee: an upper bound, as `composed_epsilon`.
    """
    taken = [cost for cost in costs if cost.steps]
    if len(taken) == 1:
        return max(composed_epsilon([part], delta) for part in taken[0].parts)
    epsilon = composed_epsilon((_by_group(cost) for cost in taken), delta)
    return epsilon if math.isfinite(epsilon) else composed_epsilon((cost.steps for cost in taken), delta)


def _by_group(cost: Cost) -> Counts:
    """A run of several groups as one step, which costs a record what its costliest group costs it at every loss."""
    if len(cost.parts) == 1:
        return cost.parts[0]
    if any(math.isinf(step.mu) for part in cost.parts for step in part):
        return NO_NOISE
    return {one_of(cost.parts): 1}


@lru_cache(maxsize=512)
def _epsilon(counts: frozenset[tuple[Step, int]], delta: float) -> float:
    if any(math.isinf(step.mu) for step, _ in counts):
        return math.inf
    return Composition(sorted(counts, key=repr)).epsilon(delta)
