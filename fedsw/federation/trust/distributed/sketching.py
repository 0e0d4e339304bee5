"""Trust model `distributed` of a run on a sketch: one masked sum over all records, a stage at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import Context, Error, Message
from torch import Tensor

from fedsw.accounting import BudgetExhausted, Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.experiment import Experiment
from fedsw.federation import messages, wire
from fedsw.federation.budgets.local import PART, SketchBudget, sketch_budget
from fedsw.federation.exchange.cohort import Site
from fedsw.federation.messages.masked import MaskedSketchAsked
from fedsw.federation.node.account import Promise
from fedsw.federation.node.answers import node_of, note, state_of_site
from fedsw.federation.node.node import Node
from fedsw.federation.trust.distributed.budget import WholeSum, attempts_at_one, delta_of
from fedsw.federation.trust.distributed.cohort import Cohort, honest
from fedsw.federation.trust.distributed.server import MaskedSums, Sums, summed_scale
from fedsw.federation.trust.distributed.site import Answering, charged, masked, masked_reply
from fedsw.federation.trust.plan import Plan
from fedsw.federation.trust.sketch import sides as trusted
from fedsw.federation.trust.sketch.sides import records_of, stage_of
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.observer import Outcome
from fedsw.sketches.law import Law
from fedsw.sketches.noised import bounded_sketch
from fedsw.tasks.measures import cells_of, inputs_of, law_of_problem, sketcher_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketched import FIRST, Stage


def masked_sketch(message: Message, context: Context) -> Message:
    """The masked sum of a stage: over all records of the site's clients in the sum, charged before it is computed."""
    node, asked = node_of(messages.MASKED_SKETCH, message, context)
    state, stage = state_of_site(context), stage_of(asked)
    try:
        here = charged(node, asked, context, state, _agree(node, stage))
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    state.clear()  # the nonce is used up, whatever comes
    note(messages.MASKED_SKETCH, asked, node, context)
    numbers = masked(here, _bounded(here, asked, stage), PART, asked, {"classifier": stage.weights})
    return masked_reply(here, numbers, message)


def sum_of(task: Problem, cohort: Cohort, stage: Stage) -> WholeSum:
    """The noise and the cost of an attempt at a stage, whose cohort a site has checked.

    Guarantee: any H = T - C clients of the cohort add the noise that a trusted server would, at the stage's share of
    the budget and for the attempts that are planned (docs/guarantees/distributed.md).
    """
    law = law_of_problem(task, stage)
    budget = budget_of(task.experiment, law, delta_of(task.experiment, cohort.records), stage)
    longest = SLACK * math.sqrt(max(1.0, law.counts))
    most = tuple(longest * sum(map(sum, party.sizes)) for party in cohort.parties)
    return WholeSum(budget.charge, budget.part, honest(task.experiment), cohort.clients_by_site, most)


def budget_of(experiment: Experiment, law: Law, delta: float, stage: Stage = FIRST) -> SketchBudget:
    """What one attempt at a stage costs, of as many as are planned."""
    return sketch_budget(experiment, law, delta, stage.number, attempts=attempts_at_one(experiment))


def promise(node: Node, delta: float) -> Promise:
    """What every client's ledger accounts for in a run, at that delta: all planned attempts at all stages."""
    experiment = node.task.experiment
    epsilon = budget_of(experiment, law_of_problem(node.task), delta).epsilon
    return Promise(node.run, epsilon, delta, experiment.privacy.accountant, experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What all planned attempts at all stages cost a client's records at that delta, or a smaller one."""
    experiment, found = node.task.experiment, Counter[Step]()
    for number in range(1, 1 + len(experiment.sketch.shares)):
        stage = Stage(number)
        multiplier = budget_of(experiment, law_of_problem(node.task, stage), delta, stage).multiplier
        found.update(lifetime.planned(Step(1.0, 1 / multiplier), attempts_at_one(experiment)))
    return found


def _agree(node: Node, stage: Stage) -> Callable[[Cohort], WholeSum]:
    return lambda cohort: sum_of(node.task, cohort, stage)


def _bounded(here: Answering[WholeSum], asked: MaskedSketchAsked, stage: Stage) -> Bounded:
    """The site's exact sum; where a unit is declared, one row of each unit is in it, drawn at random."""
    node = here.node
    stream = node.own_stream(asked.round, asked.attempt, "sketch rows")
    records = records_of(node, np.flatnonzero(here.there).tolist(), stream)
    features, cells = inputs_of(node.task, records), cells_of(node.task, records)
    return bounded_sketch(sketcher_of(node.task, stage), features, cells, round=asked.round, attempt=asked.attempt)


def make_plan(task: Problem, sites: Sequence[Site]) -> Plan:
    """What is fixed before the first stage: that of a trusted server, for as many attempts as are planned."""
    return trusted.make_plan(task, sites, attempts=attempts_at_one(task.experiment))


class MaskedSketch(MaskedSums):
    """One masked sum of all records a stage; a `OneRelease`. A stage that is released is not asked for again."""

    grows = False
    records = 0

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Empty: their sum alone is known."""
        return {}

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        task, stage = self._task, trusted.stage_with(round_, theta)
        agreed, sketcher = sum_of(task, cohort, stage), sketcher_of(task, stage)
        asked = MaskedSketchAsked(round_, attempt, trusted.broadcast(task, theta), cohort.model_dump_json())
        length = sketcher.law.cells * (sketcher.coordinates + 1)
        vector = sites(messages.MASKED_SKETCH, asked, agreed.shares(PART)[0].step, length)
        if vector is None:
            return None
        self.records = sum(sum(map(sum, party.sizes)) for party in cohort.parties)
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, sum(agreed.clients))
