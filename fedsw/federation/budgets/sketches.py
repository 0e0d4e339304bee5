"""How the releases of a sketch are planned, one a stage: their noise, what they cost, and the epsilon that follows."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass

from fedsw.accounting import Charge, Step, epsilon_by
from fedsw.experiment import Experiment
from fedsw.federation.budgets.split import GROUP
from fedsw.privacy import plan as plans
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.sketches.law import Law
from fedsw.sketches.noised import sketch_sensitivity

PART = "sketch"
_ROOM = 1e-7
"""Relative: what a ledger that adds up stages one by one may differ by in its last digits."""


@dataclass(frozen=True)
class SketchBudget:
    """One release of all records, of one stage.

    Attributes:
        sensitivity: how far a replaced record moves the sum, its label and group included.
        multiplier: sigma over that; 0 without noise.
        epsilon: of all stages together.
        whole: the noise multiplier of one release that costs as much as all stages together; 0 without noise.
    """

    sensitivity: Sensitivity
    multiplier: float
    epsilon: float
    whole: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in every number."""
        return self.multiplier * self.sensitivity.value

    @property
    def charge(self) -> Charge:
        """What it costs a client's records: all of them, once."""
        return Charge(GROUP, 1.0, self.sensitivity.value)

    @property
    def part(self) -> Part:
        """The part that this charge pays for."""
        return Part(PART, self.sensitivity.value, self.sigma)


def sketch_budget(
    experiment: Experiment, law: Law, delta: float, number: int = 1, *, attempts: int = 1
) -> SketchBudget:
    """The release of a stage that an experiment asks for: the same at every client, and at a server that is trusted.

    Guarantee: one release of every stage, each with its noise, together satisfy (epsilon, delta) for the replacement of
    one record, label and group included, also where what a stage measures depends on the releases before: the exact
    profile of the Gaussian mechanism at mu = 1 / m, as stage i has m_i = m / sqrt(share_i), and the shares have sum 1.
    Where each of several attempts at a stage is charged, every one of them has an equal part of its share.

    Args:
        law: what the stage measures.
        number: of the stage, from 1.
        attempts: at every stage.

    Raises:
        ValueError: for an epsilon or a delta that cannot be reached.
    """
    privacy = experiment.privacy
    epsilon = privacy.epsilon if privacy.noise_multiplier is None else None
    shares = tuple(share / attempts for share in experiment.sketch.shares for _ in range(attempts))
    multiplier, found = _calibrated(epsilon, privacy.noise_multiplier, delta, privacy.accountant, shares)
    return SketchBudget(
        sketch_sensitivity(law), multiplier / math.sqrt(shares[(number - 1) * attempts]), found, multiplier
    )


@functools.lru_cache(maxsize=64)
def _calibrated(
    epsilon: float | None, multiplier: float | None, delta: float, accountant: str, shares: tuple[float, ...]
) -> tuple[float, float]:
    """The noise multiplier of one release with the whole budget, and epsilon, as a ledger adds the stages up.

    Numerical accounts of several releases err a little more towards a larger epsilon than that of one, so the
    multiplier is raised until what they say is within the budget.
    """
    found, whole = plans.calibrated(epsilon, multiplier, delta=delta, rate=1.0, rounds=1, accountant=accountant)
    if len(shares) == 1 or not found:
        return found, whole

    def added_up(total: float) -> float:
        return epsilon_by(accountant, Counter(Step(1.0, math.sqrt(share) / total) for share in shares), delta)

    spent = added_up(found)
    if epsilon is None:
        return found, spent
    while spent > epsilon:
        found *= 1 + _ROOM + (spent / epsilon - 1)
        spent = added_up(found)
    return found, epsilon
