"""Trust model `local-release`: records are charged, privatised, and only then sent, once; a generator learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flwr.app import Context as Memory
from flwr.app import Message
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.accounting.profiles import stated_step
from fedsw.accounting.stated import Pure
from fedsw.experiment import resolve_delta
from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation import messages
from fedsw.federation.budgets.local import local_accountant, release_charge, release_epsilon, release_of
from fedsw.federation.exchange.cohort import Member, Site
from fedsw.federation.messages import Terms
from fedsw.federation.messages.local import ReleaseAsked, ReleasedRecords
from fedsw.federation.node import account
from fedsw.federation.node.answers import each_pays, ledger_of, released
from fedsw.federation.node.node import Node
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.local import LocalMethod
from fedsw.federation.trust.plan import Plan
from fedsw.privacy.release import Paid, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.randomness import Stream, smallest_keys
from fedsw.runs.observer import Outcome
from fedsw.subnormal import flushing_to_zero
from fedsw.tasks.problem import Problem
from fedsw.tasks.public_side import Adversary, learner_of
from fedsw.transport.denoise import wavelet_denoise
from fedsw.transport.entropic import EntropicMatching, entropic_loss, plain_loss, sinkhorn_divergence


def require_ready(node: Node) -> None:
    """Refuse, at the greeting, a run whose guarantee this client could not give.

    Raises:
        ValueError: naming the setting.
    """
    release_of(node.task.experiment, node.delta(0))


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
    records = node.everybody(node.own_stream(round_, attempt, "release rows"))
    features = flushing_to_zero(node.task.inputs)(records).cpu() - node.task.experiment.clip.centre
    noise = node.own_stream(round_, attempt, "release noise")
    found = release_paid(release.bounded(features), paid, release.part.name, noise)
    return release.released(found), found.spent


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta."""
    experiment = node.task.experiment
    epsilon = release_epsilon(experiment, delta)
    return account.Promise(node.run, epsilon, delta, local_accountant(experiment), experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What the one release costs this client's records at that delta, or a smaller one."""
    experiment = node.task.experiment
    release = release_of(experiment, delta)
    mu = release_charge(release).sensitivity / release.scale
    pure = experiment.own(ReleaseSettings).mechanism == "laplace"
    return lifetime.planned(stated_step(Pure(mu)) if pure else Step(1.0, mu), 1)


def answer_release(message: Message, context: Memory) -> Message:
    """`local-release`: all of a client's records, privatised once, charged to its ledger."""

    def release(node: Node, asked: ReleaseAsked, paid: Paid | None = None) -> ReleasedRecords:
        request = (asked.round, asked.attempt, asked.records)
        values, spent = released_records(node, ledger_of(node, context), *request, paid)
        return ReleasedRecords(spent, values)

    def due(node: Node, asked: ReleaseAsked) -> account.Due:
        return release_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.RELEASE, message, context, release, each_pays(due, release))


_LEAST_IMAGE = 64
"""Features from which a square number of them is taken for the pixels of an image."""


def make_plan(task: Problem, sites: Sequence[Site]) -> Plan:
    """What is fixed before the release: every record, once."""
    experiment = task.experiment
    sizes = sum(int(site.sizes.sum()) for site in sites)
    delta = resolve_delta(experiment.privacy.delta, records=sizes)
    release = release_of(experiment, delta)
    charge = release_charge(release)
    diameter = Sensitivity(charge.sensitivity, "diameter of the ball", public=("the number of every client's records",))
    epsilon = release_epsilon(experiment, delta)
    return Plan.of(
        task,
        sizes=(sizes,),
        batch=(sizes,),
        rates=(1.0,),
        delta=delta,
        epsilon=epsilon,
        multiplier=release.scale / charge.sensitivity,
        sensitivities=(diameter,),
    )


class LocalRelease(LocalMethod):
    """One exchange; then rounds of post-processing in which a generator learns from the privatised records.

    The released records are stored, "released" in its space (N_c, p); who is among them is not asked again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._release = release_of(self._task.experiment, self._plan.delta)
        self._learner = learner_of(self._task)
        self._adversary = Adversary(self._task) if self._task.experiment.own(ReleaseSettings).adversarial else None
        self._target: Tensor | None = None

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        if self._target is None:
            self._ask_all(round_, attempt, members)
            self._target = self._prepared(torch.cat([arrays["released"] for arrays in self._releases.read()]))
        stream = Stream.seeded(self._task.experiment.slicing.seed, "public minibatch", round_, attempt)
        count = max(1, math.floor(self._task.experiment.training.batch_fraction * len(self._target)))
        target = self._target[torch.from_numpy(smallest_keys(stream.words(len(self._target)), count))]
        vector = self._gradient(theta, target, round_, attempt)
        return Outcome(vector, None, self.epsilon(), attempt, len(self._releases.clients))

    def _gradient(self, theta: Tensor, target: Tensor, round_: int, attempt: int) -> Tensor:
        """The flat gradient (r,) at a batch (m, p) of what was released and prepared."""
        if self._adversary is not None:
            return self._adversary.gradient(theta, target, round_, attempt)
        points = self._learner.points(theta, len(target), round_, attempt).requires_grad_()
        (cotangents,) = torch.autograd.grad(self._loss(points, target).loss, points)
        return self._learner.gradient(cotangents)

    def _loss(self, points: Tensor, target: Tensor) -> EntropicMatching:
        local, release = self._task.experiment.own(ReleaseSettings), self._release
        if local.loss == "wavelet":
            return plain_loss(points, target, order=release.order)
        encoded = release.encode(points)
        if local.loss == "plain":
            return plain_loss(encoded, target, order=release.order)
        solve = entropic_loss if local.loss == "entropic" else sinkhorn_divergence
        return solve(encoded, target, order=release.order, scale=release.scale, fixed=local.iterations)

    def _prepared(self, released: Tensor) -> Tensor:
        """The released rows that the loss compares with: denoised or decoded features, or as they came."""
        local = self._task.experiment.own(ReleaseSettings)
        if not local.denoised:
            return self._release.decode(released) if local.adversarial else released
        rows, p = self._release.decode(released), self._task.dimension
        image = p >= _LEAST_IMAGE and math.isqrt(p) ** 2 == p
        return wavelet_denoise(
            rows,
            self._release.deviation,
            shape="image" if image else "vector",
            wavelet=local.wavelet or ("db2" if image else "haar"),
            thresholds=local.thresholds,
        )

    def _ask_all(self, round_: int, attempt: int, members: Sequence[Member]) -> None:
        asked = ReleaseAsked(round_, attempt, self._plan.records)

        def terms(member: Member) -> Terms:
            return Terms.of(self._task, N=sum(member.sizes))

        def arrays(answer: ReleasedRecords) -> Mapping[str, Tensor]:
            return {"released": answer.released.double()}

        self._collect(messages.RELEASE, round_, members, asked, terms, arrays, self._releases)
