"""What the one release of records that were kept out of training costs these records, and what it costs the others."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from fedsw.accounting import Charge, Step, lifetime
from fedsw.accounting.lifetime import Cost, Counts
from fedsw.experiment import Experiment
from fedsw.privacy import plan as plans
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import SLACK, Sensitivity
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import Tally

HELD_OUT = "held out"
"""The group of a ledger that holds the records which were kept out of training; no record is in another, too."""

PART = "tally"
PUBLIC = ("how many records of each group are kept out of training",)


def tally_of(task: Problem) -> Tally | None:
    """What is released of kept records; None in an experiment that releases nothing of them."""
    return task.task.tally(task.shape) if task.experiment.data.held_out_released else None


@dataclass(frozen=True)
class HeldOutBudget:
    """One release of all kept records.

    Attributes:
        sensitivity: how far a replaced record moves the sums.
        multiplier: sigma over that; 0 without noise.
        attempts: how many the budget is for.
    """

    sensitivity: Sensitivity
    multiplier: float
    attempts: int = 1

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in every number."""
        return self.multiplier * self.sensitivity.value

    def charges(self, others: Sequence[str]) -> list[Charge]:
        """What it costs: every kept record, once; those of the other groups nothing."""
        own = Charge(HELD_OUT, 1.0, self.sensitivity.value)
        return [*(Charge(group, 0.0, 0.0) for group in others), own]

    @property
    def part(self) -> Part:
        """The part that this pays for."""
        return Part(PART, self.sensitivity.value, self.sigma, "gaussian" if self.multiplier else "none")

    def planned(self) -> Counts:
        """What an account sets aside for it."""
        if not self.multiplier:
            return lifetime.NO_NOISE
        return lifetime.planned(Step(1.0, 1 / self.multiplier), self.attempts)


def held_out_budget(
    experiment: Experiment, tally: Tally, epsilon: float, delta: float, attempts: int = 1
) -> HeldOutBudget:
    """The release of kept records, in so many attempts, at the run's own (epsilon, delta): training meets none of them.

    Guarantee: training reads none of the kept records, and this reads no others. So whoever sees both sees, of any one
    record, a release of (epsilon, delta) and nothing else: for the replacement of one record within its group, the run
    keeps (epsilon, delta) as a whole.

    Source: docs/guarantees/units.md.
    """
    multiplier = _multiplier(epsilon, delta, experiment.privacy.accountant, attempts)
    return HeldOutBudget(_sensitivity(tally), multiplier, attempts)


def idle(experiment: Experiment) -> list[Charge]:
    """What a round of training costs the kept records: nothing; a ledger wants it said where it has their group."""
    return [Charge(HELD_OUT, 0.0, 0.0)] if experiment.data.held_out_released else []


def with_held_out(groups: Sequence[str], experiment: Experiment) -> tuple[str, ...]:
    """The groups of a run's ledger."""
    return (*groups, HELD_OUT) if experiment.data.held_out_released else tuple(groups)


def run_with_split(run: str, experiment: Experiment) -> str:
    """The run's name in a client's ledger, with what decides who is kept out where something of them is released.

    A server that nobody trusts could else go on with a run under another split, and have records counted that were
    trained on: each part would stay within its epsilon, and one record would have paid both.
    """
    if not experiment.data.held_out_released:
        return run
    deciding = experiment.model_dump_json(include={"data", "objective", "partition", "federation"})
    return f"{run}.{hashlib.sha256(deciding.encode()).hexdigest()[:16]}"


def covering(training: Counts, budget: HeldOutBudget) -> Cost:
    """What an account sets aside for a run: a record is trained on or kept out, and which, other runs do not know."""
    return Cost.of([training, budget.planned()])


def _sensitivity(tally: Tally) -> Sensitivity:
    return SLACK * Sensitivity(tally.moved, "tally of kept records", public=PUBLIC)


@functools.lru_cache(maxsize=64)
def _multiplier(epsilon: float, delta: float, accountant: str, attempts: int) -> float:
    return plans.calibrated(epsilon, None, delta=delta, rate=1.0, rounds=attempts, accountant=accountant)[0]
