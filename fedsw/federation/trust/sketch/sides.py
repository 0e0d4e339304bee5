"""Trust models `sketch` and `sketch-local`: an exact sum for a trusted server or one noised at a client, once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from flwr.app import Context as Memory
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import BudgetExhausted, Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.data import Records
from fedsw.experiment import resolve_delta
from fedsw.federation import messages
from fedsw.federation.budgets.local import PART, SketchBudget, sketch_budget
from fedsw.federation.exchange.cohort import Member, Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.masked import MaskedSketchAsked
from fedsw.federation.messages.sums import NoisySketch, SketchAsked, SumOfRecords, SumOfRecordsAsked
from fedsw.federation.node import account
from fedsw.federation.node.answers import answered, each_pays, fresh, ledger_of, released
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.trust.context import AtServer, Context, ExactSums, Once, SiteSums
from fedsw.federation.trust.local import LocalMethod
from fedsw.federation.trust.plan import Plan
from fedsw.privacy.release import Paid, Released, pay, release, release_paid
from fedsw.randomness import Stream
from fedsw.runs.observer import Outcome
from fedsw.runs.releases import Releases
from fedsw.sketches.law import STEP
from fedsw.sketches.learnt import flat_bytes
from fedsw.sketches.noised import NoisedSketch, bounded_sketch, bounded_sum, pooled, require_sum
from fedsw.tasks.measures import cells_of, inputs_of, law_of_problem, sketch_of_records, sketcher_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketched import FIRST, Stage

_ONLY = 0
"""The attempt that a ledger knows every stage by: a second one of a stage is no new step, and is refused."""


def stage_of(asked: SumOfRecordsAsked | SketchAsked | MaskedSketchAsked) -> Stage:
    """The stage that a server asks for, with the weights that it sends, whatever they are."""
    weights = b"" if asked.learnt is None or asked.round == 1 else flat_bytes(asked.learnt.tensor())
    return Stage(asked.round, weights)


def steps_of_records(node: Node, asked: Tensor, lost: NDArray[np.int64], key: bytes, stage: Stage = FIRST) -> Tensor:
    """`sketch`: the sum over all records of the clients that are asked and not lost, WITHOUT NOISE, in whole steps.

    It is for a server that is trusted, which noises the sum of all of them once. Sums of whole steps are exact, so they
    do not depend on how records are spread over clients and sites. Where a unit is declared, one row of each unit is in
    it, drawn at random.

    Args:
        asked: (S,), 1 for each client that is asked.
        lost: positions of clients.
        key: decides on the rows; secret, but in a seeded run.

    Returns:
        (cells, F + 1), int64; zeros if no client is left.
    """
    places = [int(place) for place in np.flatnonzero(asked.numpy()) if place not in lost]
    if not places:
        sketcher = sketcher_of(node.task, stage)
        return torch.zeros((sketcher.law.cells, sketcher.coordinates + 1), dtype=torch.int64)
    records = records_of(node, places, Stream(key))
    return (sketch_of_records(node.task, records, stage) / STEP).to(torch.int64)


def records_of(node: Node, places: Sequence[int], stream: Stream) -> Records:
    """The records of a node's clients at some positions, at least one; of units, a row each, drawn anew."""
    if len(places) == len(node.clients):
        return node.everybody(stream)
    return node.rows_of(np.sort(np.concatenate([node.units_of(place) for place in places])), stream)


def noised_sketch(node: Node, place: Path, stage: Stage, federation: int, paid: Paid | None = None) -> Released:
    """`sketch-local`: the sketch of all of a client's records in a stage, with noise of its own; of units, a row each.

    Guarantee: the client's own (epsilon, delta) over all stages, for the replacement of one of its records, label and
    group included, against everybody, whatever weights a server sends: charged on disk before the noise is drawn. A
    stage is answered once, in whatever attempt it is asked for: in the ledger it has one number.

    Args:
        place: of its ledger.
        stage: which release, with the map that is looked through.
        federation: records of the whole federation, for a delta such as "0.1/n".
        paid: the payment, where the clients of a site paid together (`sketch_due`).

    Returns:
        What is released, (cells, F + 1) float64, and the epsilon that the client's ledger has spent then (public).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    if paid is None:
        due = sketch_due(node, place, stage, federation)
        with account.opened(place, due.promise) as ledger:
            paid = pay(ledger, due.round, due.attempt, due.charges, due.sigma, due.parts)
    number = stage.number
    records = node.everybody(node.own_stream(number, _ONLY, "sketch rows"))
    features, cells = inputs_of(node.task, records), cells_of(node.task, records)
    bounded = bounded_sketch(sketcher_of(node.task, stage), features, cells, round=number, attempt=_ONLY)
    return release_paid(bounded, paid, PART, node.own_stream(number, _ONLY, "sketch noise"))


def sketch_due(node: Node, place: Path, stage: Stage, federation: int) -> account.Due:
    """What this client pays for its sketch of a stage, for a payment together with others."""
    delta = node.delta(federation)
    budget = _budget(node, delta, stage)
    promised = promise(node, delta)
    return account.Due(place, promised, stage.number, _ONLY, [budget.charge], budget.sigma, [budget.part])


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta: one sketch a stage."""
    experiment = node.task.experiment
    epsilon = _budget(node, delta).epsilon
    return account.Promise(node.run, epsilon, delta, experiment.privacy.accountant, experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What the sketches of all stages cost this client's records at that delta, or a smaller one."""
    stages = range(1, 1 + len(node.task.experiment.sketch.shares))
    steps = [Step(1.0, 1 / _budget(node, delta, Stage(number)).multiplier) for number in stages]
    return Counter({each: count for step in steps for each, count in lifetime.planned(step, steps.count(step)).items()})


def _budget(node: Node, delta: float, stage: Stage = FIRST) -> SketchBudget:
    return sketch_budget(node.task.experiment, law_of_problem(node.task, stage), delta, stage.number)


def answer_exactly(message: Message, context: Memory) -> Message:
    """`sketch`: the exact sum over all records of the clients that are asked."""
    node, asked = fresh(messages.RECORDS_SUM, message, context)
    lost = node.lost(asked.round, asked.attempt)
    steps = steps_of_records(node, asked.asked, lost, batch_key(node.task, asked.round, asked.attempt), stage_of(asked))
    return answered(SumOfRecords(steps, torch.from_numpy(lost)), node, message)


def answer_noised(message: Message, context: Memory) -> Message:
    """`sketch-local`: the sketch of all of a client's records, noised by itself, charged to its ledger."""

    def release(node: Node, asked: SketchAsked, paid: Paid | None = None) -> NoisySketch:
        place = ledger_of(node, context)
        found = noised_sketch(node, place, stage_of(asked), asked.records, paid)
        return NoisySketch(found.spent, found.value, found.sigma)

    def due(node: Node, asked: SketchAsked) -> account.Due:
        return sketch_due(node, ledger_of(node, context), stage_of(asked), asked.records)

    return released(messages.SKETCH, message, context, release, each_pays(due, release))


_log = logging.getLogger("fedsw.server")


def make_plan(task: Problem, sites: Sequence[Site], *, attempts: int = 1) -> Plan:
    """What is fixed before the exchange: every record, once. The noise is the same under all trust models.

    Args:
        attempts: at every stage, where each of them is charged.
    """
    experiment, law = task.experiment, law_of_problem(task)
    size = sum(int(site.sizes.sum()) for site in sites)
    delta = resolve_delta(experiment.privacy.delta, records=size)
    budget = sketch_budget(experiment, law, delta, attempts=attempts)
    return Plan.of(
        task,
        sizes=(size,),
        batch=(size,),
        rates=(1.0,),
        delta=delta,
        epsilon=budget.epsilon,
        multiplier=budget.whole,
        sensitivities=(replace(budget.sensitivity, public=("the number of every client's records",)),),
    )


class TrustedSketch(AtServer):
    """`sketch`: clients send exact sums; the server adds them in whole steps, charges its ledger, and noises once.

    Who does not answer is not in the sum: nothing was released or charged for an attempt before all that answer are
    enough, so an attempt with too few is made again. After the release nobody is asked any more: a second one would
    cost every record again.
    """

    grows = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._plan = context.plan
        self._context = context
        self.records = 0
        self.records_by_client: Mapping[int, int] = {}

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange of the stage `round_`, through a classifier of weights `theta` (z,), of none in the first.

        Raises:
            BudgetExhausted: if the stage was charged before; nothing is then released.
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        task = self._plan.task
        stage = stage_with(round_, theta)
        sketcher, learnt = sketcher_of(task, stage), broadcast(task, theta)

        def request(round_: int, attempt: int, asked: Tensor) -> SumOfRecordsAsked:
            return SumOfRecordsAsked(round_, attempt, asked, learnt)

        def fault(answer: SiteSums) -> str | None:
            try:
                require_sum(sketcher.law, _total(answer), _records(answer))
            except ValueError:  # its words hold numbers of the sum, which is no release
                return f"its sum is none of {_records(answer)} records"
            return None

        self._require_new(round_)
        asking = ExactSums(
            self._context, kind=messages.RECORDS_SUM, request=request, fault=fault, w=sketcher.coordinates + 1
        )
        attempt, found = asking.collect(round_)
        sums, records = [_total(answer) for answer in found], [_records(answer) for answer in found]
        (stratum,) = self._plan.strata
        bounded = bounded_sum(sketcher.law, sums, records, round=round_, attempt=attempt, stratum=stratum)
        budget = sketch_budget(task.experiment, sketcher.law, self._plan.delta, round_)
        released = release(bounded, Once(budget.multiplier, self._plan), self._ledger)
        self.records = sum(records)
        clients = sum(int(answer.there.sum()) for answer in found)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, clients)

    def _require_new(self, number: int) -> None:
        """Refuse a stage that the ledger has: a second release of it would cost every record again."""
        if any(entry.round == number for entry in self._ledger.entries()):
            raise BudgetExhausted(f"stage {number} of the sketch was charged before, and is released once")


class LocalSketches(LocalMethod):
    """`sketch-local`: every client sends one sketch that it has noised itself; those that came are added up.

    The clients' sketches are stored, "noised" (cells, F + 1) with "sigma"; who is among them is not asked again.
    Whoever is missing is asked whenever the run goes on, so that late clients can be added.
    """

    grows = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stored: dict[int, Releases] = {}
        self._stage = 1

    def __enter__(self) -> Self:
        super().__enter__()
        for number in range(2, 1 + len(self._task.experiment.sketch.shares)):
            self._rounds |= self._of(number).rounds()
        return self

    @property
    def records(self) -> int:
        """Records of all clients whose sketches of the last stage are there."""
        return sum(sum(member.sizes) for member in self._there())

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client whose sketch is there."""
        return {member.client: sum(member.sizes) for member in self._there()}

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        self._stage, releases = round_, self._of(round_)
        sketcher = sketcher_of(self._task, stage_with(round_, theta))
        asked = SketchAsked(round_, attempt, self._plan.records, broadcast(self._task, theta))

        def terms(member: Member) -> Terms:
            return Terms.of(self._task, w=sketcher.coordinates + 1)

        def arrays(answer: NoisySketch) -> Mapping[str, Tensor]:
            return {"noised": answer.values, "sigma": torch.tensor(answer.sigma, dtype=torch.float64)}

        self._collect(messages.SKETCH, round_, members, asked, terms, arrays, releases, late=True)
        there = self._there()
        pairs = zip(there, releases.read(), strict=True)
        sketch = pooled(
            [NoisedSketch(sketcher.law, own["noised"], float(own["sigma"]), sum(member.sizes)) for member, own in pairs]
        )
        return Outcome(sketch.value.reshape(-1), sketch.sigma, self.epsilon(), attempt, len(there))

    def _there(self) -> list[Member]:
        """The clients whose sketches of the stage are there, in client order."""
        clients = self._of(self._stage).clients
        return sorted((member for member in self._members if member.client in clients), key=lambda each: each.client)

    def _of(self, number: int) -> Releases:
        """What clients released in a stage: those of later ones have folders of their own."""
        if number == 1:
            return self._releases
        if number not in self._stored:
            assert self._context.stored is not None
            self._stored[number] = Releases(self._context.stored / f"stage-{number}")
        return self._stored[number]


def stage_with(number: int, weights: Tensor) -> Stage:
    """A stage through a classifier of these weights (z,); the first has none."""
    return Stage(number, flat_bytes(weights) if number > 1 else b"")


def broadcast(task: Problem, weights: Tensor) -> Broadcast | None:
    """The weights of a stage (z,) as they are sent, none for zeros; None where a sketch has one stage."""
    if not task.experiment.sketch.stages:
        return None
    size = Terms.of(task).sizes["z"]
    return Broadcast.exact(weights if len(weights) else torch.zeros(size, dtype=torch.float64))


def _total(answer: SiteSums) -> Tensor:
    """A site's sum, (cells, F + 1) float64."""
    return answer.steps.to(torch.float64) * STEP


def _records(answer: SiteSums) -> int:
    """How many records are in it."""
    return int(answer.site.sizes[answer.there].sum())
