"""Trust model `local-slices` at a client: slices of features are charged, noised, and only then sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.data import Records
from fedsw.federation import messages
from fedsw.federation.budgets.local import SlicesPlan, slices_plan
from fedsw.federation.budgets.split import own_batch, sampling_rate
from fedsw.federation.node import account
from fedsw.federation.node.answers import each_pays, ledger_of, released
from fedsw.federation.node.node import Node
from fedsw.privacy.release import Paid, pay, release_paid
from fedsw.privacy.slices import BoundedSlices, DirectionStream, fresh_slices, slices_on, unprotected_slices
from fedsw.subnormal import flushing_to_zero
from fedsw.transport.flow import Slices
from fedsw.transport.sliced import project


def noised_slices(
    node: Node,
    place: Path | None,
    theta: Tensor,
    round_: int,
    attempt: int,
    federation: int,
    paid: Paid | None = None,
) -> tuple[Slices, float]:
    """Random slices of a fresh secret batch's features, charged on disk before their noise is drawn.

    Where whole orthogonal blocks make the profile hold for any directions, all clients use the task's public ones, so
    that the server can pool them; elsewhere this client draws its own, after the features are fixed. The batch is in
    uniformly random order: the place of a row says nothing of its record, which amplification by sampling rests on.

    Guarantee: the client's own (epsilon, delta) over all planned releases, for the replacement of one of its records,
    against everybody; see `fedsw.federation.budgets.local.slices_plan`.

    Args:
        place: of its ledger; None without privacy, where there is nothing to account for.
        theta: the model (r,); looked at only if the features pass through it. They are detached: private features are
            never differentiated.
        federation: records of the whole federation, for a delta such as "0.1/n".
        paid: the payment, where the clients of a site paid together (`slices_due`).

    Returns:
        The slices, and the epsilon that this client's ledger has spent then (public).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    task = node.task
    delta = node.delta(federation)
    plan = _plan(node, delta)
    if place is None:
        features = _features(node, theta, _shuffled_batch(node, plan, round_, attempt))
        directions = task.directions(round_, attempt)
        return unprotected_slices(project(features, task.clip.output), directions), float("inf")
    if paid is None:
        with account.opened(place, promise(node, delta)) as ledger:
            paid = pay(ledger, round_, attempt, [plan.charge], plan.sigma, [plan.part])
    features = _features(node, theta, _shuffled_batch(node, plan, round_, attempt))
    slices = _bounded(node, plan, features, round_, attempt)
    released = release_paid(slices.bounded, paid, plan.part.name, node.own_stream(round_, attempt, "slices noise"))
    return slices.released(released), released.spent


def slices_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for slices, for a payment together with others."""
    delta = node.delta(federation)
    plan = _plan(node, delta)
    return account.Due(place, promise(node, delta), round_, attempt, [plan.charge], plan.sigma, [plan.part])


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta."""
    experiment, epsilon = node.task.experiment, _plan(node, delta).epsilon
    return account.Promise(node.run, epsilon, delta, experiment.privacy.accountant, experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What all planned releases cost this client's records at that delta, or a smaller one."""
    plan = _plan(node, delta)
    return lifetime.planned(Step(plan.rate, plan.diameter / plan.sigma, slicing=plan.slicing), plan.releases)


def _plan(node: Node, delta: float) -> SlicesPlan:
    return slices_plan(node.task.experiment, dimension=node.task.dimension, rate=_rate(node), delta=delta)


def _bounded(node: Node, plan: SlicesPlan, features: Tensor, round_: int, attempt: int) -> BoundedSlices:
    radius = node.task.clip.output
    if plan.shared_directions:
        return slices_on(features, node.task.directions(round_, attempt), radius=radius)
    return fresh_slices(
        features,
        radius=radius,
        k=plan.slicing.k,
        scheme=plan.slicing.scheme,
        directions_stream=DirectionStream(node.own_stream(round_, attempt, "slices directions")),
    )


def _shuffled_batch(node: Node, plan: SlicesPlan, round_: int, attempt: int) -> Records:
    count = len(node.units) if plan.rate == 1.0 else own_batch(node.sizes, _fraction(node))[0]
    stream = node.own_stream(round_, attempt, "slices batch")
    keys = stream.words(len(node.units))
    return node.rows_of(np.argsort(keys, kind="stable")[:count], stream)


@flushing_to_zero
def _features(node: Node, theta: Tensor, records: Records) -> Tensor:
    task = node.task
    if not task.private_parameters:
        return task.fixed_points(records).cpu()
    model = task.prepared(node.model, theta)
    with torch.no_grad():
        pieces = map(task.given, task.chunks(records))
        parts = [task.outputs(model(piece.features), piece).cpu() for piece in pieces]
    return torch.cat(parts)


def _rate(node: Node) -> float:
    return sampling_rate(node.sizes, _fraction(node))


def _fraction(node: Node) -> float:
    return node.task.experiment.training.batch_fraction


def answer_slices(message: Message, context: Context) -> Message:
    """`local-slices`: random slices of a fresh secret batch's features, charged to each client's ledger."""

    def release(node: Node, asked: messages.SlicesAsked, paid: Paid | None = None) -> messages.NoisedSlices:
        theta = torch.zeros(0) if asked.theta is None else asked.theta.tensor()
        place = ledger_of(node, context) if node.task.experiment.privacy.noisy else None
        request = (asked.round, asked.attempt, asked.records)
        slices, spent = noised_slices(node, place, theta, *request, paid)
        public = torch.equal(slices.directions, node.task.directions(asked.round, asked.attempt))
        directions = None if public else slices.directions
        return messages.NoisedSlices(spent, slices.projections, directions, slices.sigma)

    def due(node: Node, asked: messages.SlicesAsked) -> account.Due | None:
        if not node.task.experiment.privacy.noisy:
            return None
        return slices_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.SLICES, message, context, release, each_pays(due, release))
