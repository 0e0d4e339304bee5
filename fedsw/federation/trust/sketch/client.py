"""Trust models `sketch` and `sketch-local` at a client: an exact sum for a trusted server, or one noised here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.federation import messages
from fedsw.federation.budgets.sketches import PART, SketchBudget, sketch_budget
from fedsw.federation.node import account
from fedsw.federation.node.answers import answered, each_pays, fresh, ledger_of, released
from fedsw.federation.node.node import Node, batch_key
from fedsw.privacy.release import Paid, Released, pay, release_paid
from fedsw.randomness import Stream
from fedsw.sketches.law import STEP
from fedsw.sketches.noised import bounded_sketch
from fedsw.tasks.measures import cells_of, inputs_of, law_of_problem, sketch_of_records, sketcher_of


def steps_of_records(node: Node, asked: Tensor, lost: NDArray[np.int64], key: bytes) -> Tensor:
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
        law = law_of_problem(node.task)
        return torch.zeros((law.cells, sketcher_of(node.task).coordinates + 1), dtype=torch.int64)
    stream = Stream(key)
    if len(places) == len(node.clients):
        records = node.everybody(stream)
    else:
        records = node.rows_of(np.sort(np.concatenate([node.units_of(place) for place in places])), stream)
    return (sketch_of_records(node.task, records) / STEP).to(torch.int64)


def noised_sketch(
    node: Node, place: Path, round_: int, attempt: int, federation: int, paid: Paid | None = None
) -> Released:
    """`sketch-local`: the sketch of all of this client's records, with noise of its own, once; of units, a row of each.

    Guarantee: the client's own (epsilon, delta), for the replacement of one of its records, label and group included,
    against everybody: charged on disk before the noise is drawn, and there is no budget for a second one.

    Args:
        place: of its ledger.
        federation: records of the whole federation, for a delta such as "0.1/n".
        paid: the payment, where the clients of a site paid together (`sketch_due`).

    Returns:
        What is released, (cells, F + 1) float64, and the epsilon that the client's ledger has spent then (public).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    if paid is None:
        delta = node.delta(federation)
        budget = _budget(node, delta)
        with account.opened(place, promise(node, delta)) as ledger:
            paid = pay(ledger, round_, attempt, [budget.charge], budget.sigma, [budget.part])
    records = node.everybody(node.own_stream(round_, attempt, "sketch rows"))
    features, cells = inputs_of(node.task, records), cells_of(node.task, records)
    bounded = bounded_sketch(sketcher_of(node.task), features, cells, round=round_, attempt=attempt)
    return release_paid(bounded, paid, PART, node.own_stream(round_, attempt, "sketch noise"))


def sketch_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for its sketch, for a payment together with others."""
    delta = node.delta(federation)
    budget = _budget(node, delta)
    return account.Due(place, promise(node, delta), round_, attempt, [budget.charge], budget.sigma, [budget.part])


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta: one sketch."""
    experiment = node.task.experiment
    epsilon = _budget(node, delta).epsilon
    return account.Promise(node.run, epsilon, delta, experiment.privacy.accountant, experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What the one sketch costs this client's records at that delta, or a smaller one."""
    return lifetime.planned(Step(1.0, 1 / _budget(node, delta).multiplier), 1)


def _budget(node: Node, delta: float) -> SketchBudget:
    return sketch_budget(node.task.experiment, law_of_problem(node.task), delta)


def answer_exactly(message: Message, context: Context) -> Message:
    """`sketch`: the exact sum over all records of the clients that are asked."""
    node, asked = fresh(messages.RECORDS_SUM, message, context)
    lost = node.lost(asked.round, asked.attempt)
    steps = steps_of_records(node, asked.asked, lost, batch_key(node.task, asked.round, asked.attempt))
    return answered(messages.SumOfRecords(steps, torch.from_numpy(lost)), node, message)


def answer_noised(message: Message, context: Context) -> Message:
    """`sketch-local`: the sketch of all of a client's records, noised by itself, charged to its ledger."""

    def release(node: Node, asked: messages.SketchAsked, paid: Paid | None = None) -> messages.NoisySketch:
        place = ledger_of(node, context)
        found = noised_sketch(node, place, asked.round, asked.attempt, asked.records, paid)
        return messages.NoisySketch(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.SketchAsked) -> account.Due:
        return sketch_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.SKETCH, message, context, release, each_pays(due, release))
