"""Trust models `sketch` and `sketch-local`: an exact sum for a trusted server or one noised at a client, once a stage.

First the budget: noise and cost of every stage, and the steps that an account reserves for them.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.experiment import Experiment, resolve_delta
from fedsw.federation import messages
from fedsw.federation.exchange.participants import Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.node.node import Node
from fedsw.federation.trust import Once, Sides
from fedsw.federation.trust.budget_shares import Shares, SumBudget
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sums_once import (
    LocalSums,
    SiteSums,
    Sum,
    TrustedSums,
    answer_exactly,
    answer_noised,
    records_of,
)
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.sketches.noised import bounded_sum, require_sum, sketch_sensitivity
from fedsw.learning.sketches.sketch_law import STEP, Law
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records, sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Step, epsilon_by, lifetime
from fedsw.privacy.accounting.lifetime import Counts
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK

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

    # Numerical composition rounds every stage's epsilon up: all of them together may come out above one release of mu.
    spent = added_up(calibrated)
    if epsilon is None:
        return calibrated, spent
    while spent > epsilon:
        calibrated *= 1 + _ROOM + (spent / epsilon - 1)
        spent = added_up(calibrated)
    return calibrated, epsilon


class SketchSum(Sum):
    """The sketch of all records in a stage, by cell: (cells, F + 1).

    A record moves it by no more than its bound, whatever weights (z,) of the stage a server sends.
    """

    part, called, purpose, step, weights = PART, "sketch", "sketch", STEP, "learnt"
    charged_before = "stage {round} of the sketch was charged before, and is released once"
    attempt, late = 0, True

    def __init__(self, task: Problem, stage: Stage, weights: Tensor | None = None) -> None:
        super().__init__(task)
        self.stage, self._weights, self._sketcher = stage, weights, sketcher_of(task, stage)
        self.sizes, self.known = {"w": self._sketcher.coordinates + 1}, {"classifier": stage.weights}

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`; the first stage has no weights."""
        return cls(task, stage_with(round_, weights), weights)

    @classmethod
    def rounds(cls, experiment: Experiment) -> Sequence[int]:
        """See `Sum`: the stages."""
        return range(1, 1 + len(experiment.sketch.shares))

    @classmethod
    def folder(cls, round_: int) -> str:
        """See `Sum`: that of the first stage is the plain one."""
        return "" if round_ == 1 else f"stage-{round_}"

    @property
    def sent(self) -> Mapping[str, Broadcast | None]:
        """See `Sum`; zeros for the weights of the first of several stages."""
        if not self.task.experiment.sketch.stages or self._weights is None:
            return {"learnt": None}
        none = torch.zeros(Terms.of(self.task).sizes["z"], dtype=torch.float64)
        return {"learnt": Broadcast.exact(self._weights if len(self._weights) else none)}

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._sketcher.law.cells, self._sketcher.coordinates + 1

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (blocks, width)."""
        if not positions:
            return torch.zeros(self.shape, dtype=torch.int64)
        records = records_of(node, positions, stream)
        return (sketch_of_records(node.task, records, self.stage) / STEP).to(torch.int64)

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> SketchBudget:
        """See `Sum`: the same under every trust model, at the attempts that it plans for."""
        return sketch_budget(self.task.experiment, self._sketcher.law, delta, self.stage.number)

    def most(self, records: int) -> float:
        """See `Sum`."""
        return SLACK * math.sqrt(max(1.0, self._sketcher.law.counts)) * records

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (blocks, width), records (blocks,)."""
        try:
            require_sum(self._sketcher.law, steps.double() * STEP, int(records.sum()))
        except ValueError:  # its words hold numbers of the sum, which is no release
            return f"its sum is none of {int(records.sum())} records"
        return None

    def stream(self, node: Node, round_: int, attempt: int, purpose: str) -> Stream:
        """See `Sum`."""
        return node.own_stream(round_, attempt, purpose)

    def bounded(self, parts: Sequence[SiteSums], plan: FederationPlan, round_: int, attempt: int) -> Bounded:
        """See `Sum`."""
        sums = [part.steps.double() * STEP for part in parts]
        records = [int(part.site.sizes[part.included].sum()) for part in parts]
        (stratum,) = plan.strata
        return bounded_sum(self._sketcher.law, sums, records, round=round_, attempt=attempt, stratum=stratum)


def stage_with(number: int, weights: Tensor) -> Stage:
    """A stage through a classifier of these weights (z,); the first has none."""
    return Stage(number, flat_bytes(weights) if number > 1 else b"")


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Plan of the exchange: every record, once. The noise is the same under all trust models."""
    experiment, law = task.experiment, law_of_problem(task)
    size = sum(int(site.sizes.sum()) for site in sites)
    delta = resolve_delta(experiment.privacy.delta, records=size)
    budget = sketch_budget(experiment, law, delta)
    return FederationPlan.of(
        task,
        sizes=(size,),
        batch=(size,),
        rates=(1.0,),
        delta=delta,
        epsilon=budget.epsilon,
        multiplier=budget.whole,
        sensitivities=(replace(budget.sensitivity, public=("the number of every client's records",)),),
    )


EXACTLY = Once(TrustedSums, answer_exactly, {SketchSum: messages.RECORDS_SUM})
NOISED = Once(LocalSums, answer_noised, {SketchSum: messages.SKETCH})
TRUSTED = Sides(make_plan, EXACTLY.only, EXACTLY.handlers, EXACTLY)
LOCAL = Sides(
    make_plan,
    NOISED.only,
    NOISED.handlers,
    NOISED,
    epsilon=lambda node, delta: sketch_budget(node.task.experiment, law_of_problem(node.task), delta).epsilon,
    planned=lambda node, delta: planned_stages(node.task, delta),
)
