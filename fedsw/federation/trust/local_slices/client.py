"""Trust models `local-slices` and `local-release` at a client: features are charged, noised, and only then sent."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.accounting.profiles import stated_step
from fedsw.accounting.stated import Pure
from fedsw.data import Records
from fedsw.federation.budgets.local import (
    SlicesPlan,
    local_accountant,
    release_charge,
    release_epsilon,
    release_of,
    slices_plan,
)
from fedsw.federation.budgets.split import own_batch, sampling_rate
from fedsw.federation.node import account
from fedsw.federation.node.node import Node
from fedsw.privacy.release import Paid, pay, release_paid
from fedsw.privacy.slices import BoundedSlices, DirectionStream, fresh_slices, slices_on, unprotected_slices
from fedsw.randomness import KEY_BYTES, Stream
from fedsw.subnormal import flushing_to_zero
from fedsw.transport.flow import Slices
from fedsw.transport.sliced import project


def require_ready(node: Node) -> None:
    """Refuse, at the greeting, a run whose guarantee this client could not give.

    Raises:
        ValueError: naming the setting.
    """
    experiment = node.task.experiment
    if experiment.privacy.trust == "local-release":
        release_of(experiment, node.delta(0))


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
    released = release_paid(slices.bounded, paid, plan.part.name, _stream(node, round_, attempt, "slices noise"))
    return slices.released(released), released.spent


def slices_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for slices, for a payment together with others."""
    delta = node.delta(federation)
    plan = _plan(node, delta)
    return account.Due(place, promise(node, delta), round_, attempt, [plan.charge], plan.sigma, [plan.part])


def release_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for the release of its records, for a payment together with others."""
    delta = node.delta(federation)
    release = release_of(node.task.experiment, delta)
    charges = [release_charge(release)]
    return account.Due(place, promise(node, delta), round_, attempt, charges, release.scale, [release.part])


def released_records(
    node: Node, place: Path, round_: int, attempt: int, federation: int, paid: Paid | None = None
) -> tuple[Tensor, float]:
    """All of this client's records, privatised once: rows (N_c, p) in the released space, about the public centre.

    Where a unit is declared, one row of each unit is released, drawn at random.

    Guarantee: that of `fedsw.privacy.records.Release`, charged on disk before the noise is drawn.

    Args:
        paid: the payment, where the clients of a site paid together (`release_due`).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed; a second release would be paid for again.
    """
    delta = node.delta(federation)
    release = release_of(node.task.experiment, delta)
    if paid is None:
        with account.opened(place, promise(node, delta)) as ledger:
            paid = pay(ledger, round_, attempt, [release_charge(release)], release.scale, [release.part])
    records = node.everybody(_stream(node, round_, attempt, "release rows"))
    features = flushing_to_zero(node.task.inputs)(records).cpu() - node.task.experiment.clip.centre
    noise = _stream(node, round_, attempt, "release noise")
    released = release_paid(release.bounded(features), paid, release.part.name, noise)
    return release.released(released), released.spent


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta."""
    experiment = node.task.experiment
    released = experiment.privacy.trust == "local-release"
    epsilon = release_epsilon(experiment, delta) if released else _plan(node, delta).epsilon
    return account.Promise(node.run, epsilon, delta, local_accountant(experiment), experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What all planned releases cost this client's records at that delta, or a smaller one."""
    experiment = node.task.experiment
    if experiment.privacy.trust == "local-release":
        release = release_of(experiment, delta)
        mu = release_charge(release).sensitivity / release.scale
        pure = experiment.local.mechanism == "laplace"
        return lifetime.planned(stated_step(Pure(mu)) if pure else Step(1.0, mu), 1)
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
        directions_stream=DirectionStream(_stream(node, round_, attempt, "slices directions")),
    )


def _shuffled_batch(node: Node, plan: SlicesPlan, round_: int, attempt: int) -> Records:
    count = len(node.units) if plan.rate == 1.0 else own_batch(node.sizes, _fraction(node))[0]
    stream = _stream(node, round_, attempt, "slices batch")
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


def _stream(node: Node, round_: int, attempt: int, purpose: str) -> Stream:
    """This client's secret randomness of one purpose; reproducible only in a seeded (nominal) run."""
    seed = node.task.experiment.seed
    if seed is None:
        return Stream(os.urandom(KEY_BYTES))
    first = int(node.units.ids.min())  # a client's number in the seeded run: the least id of its records, or units
    return Stream.seeded(seed, purpose, first, round_, attempt)
