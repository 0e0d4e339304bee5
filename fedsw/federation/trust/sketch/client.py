"""Trust models `sketch` and `sketch-local` at a client: an exact sum for a trusted server, or one noised here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.data import Records
from fedsw.federation import messages
from fedsw.federation.budgets.sketches import PART, SketchBudget, sketch_budget
from fedsw.federation.node import account
from fedsw.federation.node.answers import answered, each_pays, fresh, ledger_of, released
from fedsw.federation.node.node import Node, batch_key
from fedsw.privacy.release import Paid, Released, pay, release_paid
from fedsw.randomness import Stream
from fedsw.sketches.law import STEP
from fedsw.sketches.learnt import flat_bytes
from fedsw.sketches.noised import bounded_sketch
from fedsw.tasks.measures import cells_of, inputs_of, law_of_problem, sketch_of_records, sketcher_of
from fedsw.tasks.sketched import FIRST, Stage

_ONLY = 0
"""The attempt that a ledger knows every stage by: a second one of a stage is no new step, and is refused."""


def stage_of(asked: messages.SumOfRecordsAsked | messages.SketchAsked | messages.MaskedSketchAsked) -> Stage:
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


def answer_exactly(message: Message, context: Context) -> Message:
    """`sketch`: the exact sum over all records of the clients that are asked."""
    node, asked = fresh(messages.RECORDS_SUM, message, context)
    lost = node.lost(asked.round, asked.attempt)
    steps = steps_of_records(node, asked.asked, lost, batch_key(node.task, asked.round, asked.attempt), stage_of(asked))
    return answered(messages.SumOfRecords(steps, torch.from_numpy(lost)), node, message)


def answer_noised(message: Message, context: Context) -> Message:
    """`sketch-local`: the sketch of all of a client's records, noised by itself, charged to its ledger."""

    def release(node: Node, asked: messages.SketchAsked, paid: Paid | None = None) -> messages.NoisySketch:
        place = ledger_of(node, context)
        found = noised_sketch(node, place, stage_of(asked), asked.records, paid)
        return messages.NoisySketch(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.SketchAsked) -> account.Due:
        return sketch_due(node, ledger_of(node, context), stage_of(asked), asked.records)

    return released(messages.SKETCH, message, context, release, each_pays(due, release))
