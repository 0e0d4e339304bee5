"""The budget of a sketch: noise and cost of every stage, and the steps that an account reserves for them."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass

from fedsw.experiment import Experiment
from fedsw.federation.trust.budget_shares import SumBudget
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.tasks.measures import sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Step, epsilon_by, lifetime
from fedsw.privacy.accounting.lifetime import Counts

PART = "sketch"
_ROOM = 1e-7
"""Relative: what a ledger that adds up stages one by one may differ by in its last digits."""


@dataclass(frozen=True)
class SketchBudget(SumBudget):
    """One release of a sketch of all records, of one stage; `epsilon` is of all stages together.

    `whole` is the noise multiplier of one release that costs as much as all stages together; 0 without noise.
    """

    epsilon: float
    whole: float


def sketch_budget(experiment: Experiment, law: Law, delta: float, number: int = 1) -> SketchBudget:
    """An attempt at the release of a stage: the same at every client, and at a server that is trusted.

    Guarantee: one release of every stage, each with its noise, together satisfy (epsilon, delta) for the replacement of
    one record, label and group included, also where what a stage measures depends on the releases before: the exact
    profile of the Gaussian mechanism at mu = 1 / m, as stage i has m_i = m / sqrt(share_i), and the shares have sum 1.
    Where a trust model charges each of several attempts at a stage, every one of them has an equal part of its share.

    ValueError for an epsilon or a delta that cannot be reached.
    """
    privacy, attempts = experiment.privacy, experiment.privacy.model.attempts(experiment)
    epsilon = privacy.epsilon if privacy.noise_multiplier is None else None
    shares = tuple(share / attempts for share in experiment.sketch.shares for _ in range(attempts))
    multiplier, achieved = _sketch_calibrated(epsilon, privacy.noise_multiplier, delta, experiment.accountant, shares)
    of_stage = multiplier / math.sqrt(shares[(number - 1) * attempts])
    return SketchBudget(PART, sketch_sensitivity(law), of_stage, achieved, multiplier)


@dataclass(frozen=True)
class StageCost:
    """Cost of a stage: its share of the budget's mu^2, its mu over all attempts, and one attempt's sigma over Delta.

    `numbers` is how many a record's vector has.
    """

    share: float
    mu: float
    multiplier: float
    numbers: int


def stage_costs(task: Problem, delta: float) -> tuple[StageCost, ...]:
    """Costs of all stages of a sketch, as ledgers are charged: squares of mu add up to the whole budget's."""
    experiment, costs = task.experiment, list[StageCost]()
    attempts = experiment.privacy.model.attempts(experiment)
    for number, share in zip(range(1, experiment.stages + 1), experiment.sketch.shares, strict=False):
        sketcher = sketcher_of(task, Stage(number))
        multiplier = sketch_budget(experiment, sketcher.law, delta, number).multiplier
        costs.append(StageCost(share, math.sqrt(attempts) / multiplier, multiplier, sketcher.coordinates))
    return tuple(costs)


def planned_stages(task: Problem, delta: float) -> Counts:
    """Steps that an account reserves for a noised sketch: all planned attempts at every stage, as charged."""
    attempts, steps = task.experiment.privacy.model.attempts(task.experiment), Counter[Step]()
    for stage in stage_costs(task, delta):
        steps.update(lifetime.planned(Step(1.0, 1 / stage.multiplier), attempts))
    return steps


@functools.lru_cache(maxsize=64)
def _sketch_calibrated(
    epsilon: float | None, multiplier: float | None, delta: float, accountant: str, shares: tuple[float, ...]
) -> tuple[float, float]:
    """Multiplier and epsilon as a ledger adds stages up: raised until numerical accounts are within the budget."""
    calibrated, whole = plans.calibrated(epsilon, multiplier, delta=delta, rate=1.0, rounds=1, accountant=accountant)
    if len(shares) == 1 or not calibrated:
        return calibrated, whole

    def added_up(total: float) -> float:
        return epsilon_by(accountant, Counter(Step(1.0, math.sqrt(share) / total) for share in shares), delta)

    spent = added_up(calibrated)
    if epsilon is None:
        return calibrated, spent
    while spent > epsilon:
        calibrated *= 1 + _ROOM + (spent / epsilon - 1)
        spent = added_up(calibrated)
    return calibrated, epsilon
