"""Which steps are no more costly than others: a reservation covers what is spent if every step of it is covered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedsw.accounting.profiles import Step, stated_step
from fedsw.accounting.slicing import Slicing
from fedsw.accounting.stated import Pure, Renyi

Counts = Mapping[Step, int]

NO_NOISE: Counts = {Step(1.0, math.inf): 1}
"""What a run without noise costs."""

_DIGITS = 10


def comparable(step: Step) -> Step:
    """A step that costs at least as much, for the replacement of one record, with a mu of few digits.

    A record that a Poisson batch may hold, and that then moves the sum by at most Delta, moves it by at most 2 Delta
    when it is replaced: its step costs at most as much as one without replacement of twice the mu.
    """
    step = step.reduced
    if step.sampling == "poisson":
        step = replace(step, sampling="without-replacement", mu=2 * step.mu)
    if step.costless or math.isinf(step.mu) or isinstance(step.stated, Renyi):
        return step
    if isinstance(step.stated, Pure):
        return stated_step(Pure(_up(step.stated.epsilon)))
    return replace(step, mu=_up(step.mu))


def counted(steps: Iterable[tuple[Step, int]]) -> dict[Step, int]:
    """Comparable steps with how often each is taken; those that cost nothing are left out."""
    found: dict[Step, int] = {}
    for step, times in steps:
        known = comparable(step)
        if times and not known.costless:
            found[known] = found.get(known, 0) + times
    return found


def uncovered(spent: Counts, reserved: Counts) -> dict[Step, int]:
    """Which of the spent steps no step of the reservation is left for; every step of it covers one at most."""
    left = dict(reserved)
    rest: dict[Step, int] = {}
    for step, times in spent.items():
        fitting = sorted((each for each in left if _covers(each, step)), key=lambda each: each != step)
        for each in fitting:
            used = min(times, left[each])
            left[each] -= used
            times -= used
        if times:
            rest[step] = times
    return rest


def added(first: Counts, second: Counts) -> dict[Step, int]:
    """Both together."""
    return {step: first.get(step, 0) + second.get(step, 0) for step in (*first, *second)}


@dataclass(frozen=True)
class Cost:
    """What a run takes of one record, whichever of the run's groups it is in.

    Attributes:
        steps: such that every group's are covered by them.
        parts: the steps of each group that no other group's cover; one record pays one of them.
    """

    steps: Counts
    parts: tuple[Counts, ...]

    @classmethod
    def of(cls, groups: Iterable[Counts]) -> Cost:
        """The cost of a run whose groups take these steps."""
        found: list[Counts] = []
        for own in groups:
            if not any(not uncovered(own, other) for other in found):
                found = [other for other in found if uncovered(other, own)] + [own]
        return cls(worst_of(found), tuple(found) or ({},))

    def lacks(self, own: Counts) -> dict[Step, int]:
        """What to add so that a group of these steps pays no more than the cost: nothing if a part covers it."""
        return min((uncovered(own, part) for part in self.parts), key=lambda rest: sum(rest.values()))

    def and_more(self, rest: Counts) -> Cost:
        """The cost with more steps, whichever group takes them."""
        return Cost(added(self.steps, rest), tuple(added(part, rest) for part in self.parts))

    def counted(self) -> Cost:
        """The same of comparable steps."""
        return Cost(counted(self.steps.items()), tuple(counted(part.items()) for part in self.parts))


def one_cost(steps: Counts | Cost) -> Cost:
    """The cost of a run of one group, or the cost that is given."""
    return steps if isinstance(steps, Cost) else Cost(steps, (steps,))


def planned(step: Step, times: int) -> dict[Step, int]:
    """Steps as they are reserved for: a trifle above the plan's, which rounding may exceed by a last digit."""
    if step.stated is not None or math.isinf(step.mu):
        return {step: times}
    return {replace(step, mu=step.mu * (1 + 10.0 ** (1 - _DIGITS))): times}


def worst_of(groups: Iterable[Counts]) -> dict[Step, int]:
    """Steps that cover those of every group of a run: those of one group that covers all others, if there is one.

    A record is in one group only, and which one another run has it in is not known here.
    """
    found = list(groups)
    for own in found:
        if not any(uncovered(other, own) for other in found):
            return dict(own)
    total: dict[Step, int] = {}
    for own in found:
        total = _joined(total, own)
    return total


def _joined(first: Counts, second: Counts) -> dict[Step, int]:
    """Steps that cover both: in pairs, the larger rate with the larger mu; the rest as it is."""
    found: dict[Step, int] = {}
    queues = [sorted(own.items(), key=lambda each: -each[0].mu) for own in (first, second)]
    while all(queues):
        (one, many), (other, more) = queues[0][0], queues[1][0]
        if (one.slicing, one.stated) != (other.slicing, other.stated):
            break
        together = replace(one, sampling_rate=max(one.sampling_rate, other.sampling_rate), mu=max(one.mu, other.mu))
        times = min(many, more)
        found = added(found, {together: times})
        for queue, step, count in ((queues[0], one, many), (queues[1], other, more)):
            queue[:1] = [(step, count - times)] if count > times else []
    for queue in queues:
        found = added(found, dict(queue))
    return found


def as_row(counts: Counts) -> list[dict[str, Any]]:
    """What an account's file keeps of steps."""
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


def from_row(kept: Iterable[Mapping[str, Any]]) -> dict[Step, int]:
    """The steps that a file keeps."""
    return {_step(each): int(each["times"]) for each in kept}


def _step(kept: Mapping[str, Any]) -> Step:
    stated = kept["stated"]
    if stated is None:
        slicing = None if kept["slicing"] is None else Slicing(**kept["slicing"])
        return Step(float(kept["rate"]), float(kept["mu"]), slicing=slicing)
    if "orders" in stated:
        return stated_step(Renyi(tuple(stated["orders"]), tuple(stated["divergences"])))
    return stated_step(Pure(float(stated["epsilon"])))


def _covers(larger: Step, smaller: Step) -> bool:
    if isinstance(larger.stated, Pure) and isinstance(smaller.stated, Pure):
        return larger.stated.epsilon >= smaller.stated.epsilon
    if (larger.slicing, larger.stated) != (smaller.slicing, smaller.stated):
        return False
    return larger.sampling_rate >= smaller.sampling_rate and larger.mu >= smaller.mu


def _up(value: float) -> float:
    """The number with few digits, never below it; one that has few stays as it is."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    if round(value / unit) * unit == value:
        return value
    above = math.ceil(value / unit)
    return above * unit if above * unit >= value else (above + 1) * unit
