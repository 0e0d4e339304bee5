"""Trust models `sketch` and `sketch-local`: an exact sum for a trusted server or one noised at a client, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.experiment import resolve_delta
from fedsw.federation import messages
from fedsw.federation.exchange.participants import Member, Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.node.node import Node
from fedsw.federation.trust import Sides
from fedsw.federation.trust.budget_shares import Shares
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sketch.sketch_costs import PART, SketchBudget, planned_stages, sketch_budget
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
from fedsw.learning.sketches.noised import bounded_sum, require_sum
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records, sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.observer import Outcome
from fedsw.runs.releases import Releases

_ONLY = 0
"""The attempt that a ledger knows every stage by: a second one of a stage is no new step, and is refused."""


class SketchSum(Sum):
    """The sketch of all records in a stage, by cell: (cells, F + 1).

    A record moves it by no more than its bound, whatever weights (z,) of the stage a server sends.
    """

    part, purpose, step, weights = PART, "sketch", STEP, "learnt"

    def __init__(self, task: Problem, stage: Stage, weights: Tensor | None = None) -> None:
        super().__init__(task)
        self.stage, self._weights, self._sketcher = stage, weights, sketcher_of(task, stage)
        self.sizes, self.known = {"w": self._sketcher.coordinates + 1}, {"classifier": stage.weights}

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`; the first stage has no weights."""
        return cls(task, stage_with(round_, weights), weights)

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

    def numbered(self, round_: int, attempt: int) -> tuple[int, int]:
        """See `Sum`: a stage is answered once, in whatever attempt it is asked for."""
        return round_, _ONLY

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


class TrustedSketch(TrustedSums):
    """`sketch`: clients send exact sums, which the server noises; see `TrustedSums`.

    After the release nobody is asked any more: a second one would cost every record again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, messages.RECORDS_SUM, SketchSum)

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `TrustedSums`; the round is the stage. One that the ledger has is refused."""
        if any(entry.round == round_ for entry in self._ledger.entries()):
            raise BudgetExhausted(f"stage {round_} of the sketch was charged before, and is released once")
        return super().round(round_, theta)


class LocalSketches(LocalSums):
    """`sketch-local`: every client sends one sketch a stage that it has noised itself; see `LocalSums`."""

    grows = True

    def __init__(self, context: Context) -> None:
        super().__init__(context, messages.SKETCH, SketchSum)
        self._stored: dict[int, Releases] = {}
        self._stage = 1

    def __enter__(self) -> Self:
        super().__enter__()
        for number in range(2, 1 + len(self._task.experiment.sketch.shares)):
            self._rounds |= self.stored(number).rounds()
        return self

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client whose sketch of the last stage is there."""
        released = self.stored(self._stage).clients
        return {member.client: sum(member.sizes) for member in self._members if member.client in released}

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        self._stage = round_
        return super()._attempt(round_, attempt, theta, members)

    def stored(self, round_: int) -> Releases:
        """See `LocalSums`: those of later stages have folders of their own."""
        if round_ == 1:
            return self._context.releases
        if round_ not in self._stored:
            assert self._context.stored is not None
            self._stored[round_] = Releases(self._context.stored / f"stage-{round_}")
        return self._stored[round_]


TRUSTED = Sides(make_plan, TrustedSketch, {messages.RECORDS_SUM: answer_exactly(messages.RECORDS_SUM, SketchSum)})
LOCAL = Sides(
    make_plan,
    LocalSketches,
    {messages.SKETCH: answer_noised(messages.SKETCH, SketchSum)},
    epsilon=lambda node, delta: sketch_budget(node.task.experiment, law_of_problem(node.task), delta).epsilon,
    planned=lambda node, delta: planned_stages(node.task, delta),
)
