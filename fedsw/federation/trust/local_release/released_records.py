"""Trust model `local-release`: records are charged, privatised, and only then sent, once; a generator learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw._tools.subnormal import flushing_to_zero
from fedsw.experiment import Experiment, resolve_delta
from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation import messages
from fedsw.federation.exchange.participants import Member, Site
from fedsw.federation.messages import Terms
from fedsw.federation.messages.table import ReleaseAsked, ReleasedRecords
from fedsw.federation.node.node import Node
from fedsw.federation.node.own_ledger import GROUP
from fedsw.federation.node.replies import Due, answer_together, each_pays
from fedsw.federation.trust import Sides, promise
from fedsw.federation.trust.context import Context, LocalMethod
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.divergence import lost_direction
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import Adversary, Learner
from fedsw.mathematics.transport.denoise import wavelet_denoise
from fedsw.mathematics.transport.entropic import EntropicMatching, entropic_loss, plain_loss, sinkhorn_divergence
from fedsw.mathematics.transport.flow import Slices, UnprotectedSlices, noised_swd
from fedsw.privacy.accounting import Charge, Step, epsilon_by, lifetime
from fedsw.privacy.accounting.ledger import counted_as
from fedsw.privacy.accounting.lifetime import Counts
from fedsw.privacy.local_release import RecordRelease
from fedsw.privacy.release import Paid, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.runs.observer import Outcome


def release_of(experiment: Experiment, delta: float) -> RecordRelease:
    """The one-shot release of a client's records that an experiment asks for."""
    local, privacy = experiment.own(ReleaseSettings), experiment.privacy
    assert privacy.epsilon is not None
    return RecordRelease(
        privacy.epsilon,
        delta,
        experiment.clip.output,
        norm=local.norm,
        mechanism=local.mechanism,
        calibration=local.calibration,
        diameter=local.diameter,
        dct=local.dct,
        keep=local.keep,
    )


def release_charge(release: RecordRelease) -> Charge:
    """Charge of the release: every record once, at the true diameter, whatever the noise was calibrated for."""
    return Charge(GROUP, 1.0, 2 * release.radius)


def release_epsilon(experiment: Experiment, delta: float) -> float:
    """The release's epsilon: the one asked for, or a larger one where the noise is for the paper's diameter."""
    release = release_of(experiment, delta)
    step = Step(1.0, release_charge(release).sensitivity / release.scale)
    return epsilon_by(experiment.accountant, {step: 1}, delta)


def release_due(node: Node, request: ReleaseAsked, ledger: Path) -> Due:
    """Charges of a client for the release of its records, to its ledger at the path `ledger`."""
    delta, experiment = node.delta(request.records), node.task.experiment
    release = release_of(experiment, delta)
    charges = [release_charge(release)]
    return Due(ledger, promise(node, delta), request.round, request.attempt, charges, release.scale, [release.part])


def released_records(node: Node, request: ReleaseAsked, paid: Paid | None) -> ReleasedRecords:
    """All of a client's records, privatised once: rows (N_c, p) in the released space, about the public centre.

    Where a unit is declared, one row of each unit is released, drawn at random.

    Guarantee: that of `fedsw.privacy.local_release.RecordRelease`, charged on disk before it is noised (`release_due`).
    """
    assert paid is not None
    release = release_of(node.task.experiment, node.delta(request.records))
    records = node.everybody(node.own_stream(request.round, request.attempt, "release rows"))
    features = flushing_to_zero(node.task.inputs)(records).cpu() - node.task.experiment.clip.centre
    noise = node.own_stream(request.round, request.attempt, "release noise")
    released = release_paid(release.bounded(features), paid, release.part.name, noise)
    return ReleasedRecords(released.spent, released.value)


def planned(node: Node, delta: float) -> Counts:
    """Cost of the one release to this client's records, at that delta or a smaller one."""
    experiment = node.task.experiment
    release = release_of(experiment, delta)
    step = Step(1.0, release_charge(release).sensitivity / release.scale)
    return lifetime.planned(counted_as(release.mechanism)(step), 1)


_LEAST_IMAGE = 64
"""Features from which a square number of them is taken for the pixels of an image."""


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Plan of the release: every record, once."""
    experiment = task.experiment
    sizes = sum(int(site.sizes.sum()) for site in sites)
    delta = resolve_delta(experiment.privacy.delta, records=sizes)
    release = release_of(experiment, delta)
    charge = release_charge(release)
    public = ("the number of every client's records",)
    diameter = Sensitivity(charge.sensitivity, "diameter of the ball", norm=release.norm, public=public)
    epsilon = release_epsilon(experiment, delta)
    return FederationPlan.of(
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

    The released rows (N_c, p) are stored, as "released"; a client with stored rows is not asked again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._release = release_of(self._task.experiment, self._plan.delta)
        self._learner = Learner(self._task)
        self._adversary = Adversary(self._task) if self._task.experiment.own(ReleaseSettings).adversarial else None
        self._target: Tensor | None = None
        self._apart: list[Tensor] = []

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        stream = Stream.seeded(self._task.experiment.slicing.seed, "public minibatch", round_, attempt)
        if self._task.experiment.own(ReleaseSettings).loss == "barycentre":
            if not self._apart:
                self._ask_all(round_, attempt, members)
                self._apart = [self._release.decode(entry["released"]) for entry in self._context.releases.read()]
            vector = self._towards_barycentre(theta, round_, attempt, stream)
            return Outcome(vector, None, self.epsilon(), attempt, len(self._apart))
        if self._target is None:
            self._ask_all(round_, attempt, members)
            self._target = self._prepared(torch.cat([arrays["released"] for arrays in self._context.releases.read()]))
        count = max(1, math.floor(self._task.experiment.training.batch_fraction * len(self._target)))
        target = self._target[torch.from_numpy(smallest_keys(stream.words(len(self._target)), count))]
        vector = self._gradient(theta, target, round_, attempt)
        return Outcome(vector, None, self.epsilon(), attempt, len(self._context.releases.clients))

    def _towards_barycentre(self, theta: Tensor, round_: int, attempt: int, stream: Stream) -> Tensor:
        """The flat gradient (r,) of the mean over clients of the sliced distance to a batch of what each released."""
        directions = self._task.clipped.directions(round_, attempt)[0]
        sigma = self._release.deviation
        kind = Slices if sigma else UnprotectedSlices
        slices = list[Slices]()
        for rows in self._apart:
            count = max(1, math.floor(self._task.experiment.training.batch_fraction * len(rows)))
            chosen = rows[torch.from_numpy(smallest_keys(stream.words(len(rows)), count))]
            slices.append(kind(directions, chosen @ directions.to(chosen), sigma))
        points = self._learner.points(theta, sum(map(len, slices)), round_, attempt)
        if not bool(points.isfinite().all()):
            return lost_direction(theta)
        match = noised_swd(points, slices, towards="barycentre", dummy=sigma > 0, stream=stream.child("dummy"))
        return self._learner.gradient(match.cotangents)

    def _gradient(self, theta: Tensor, target: Tensor, round_: int, attempt: int) -> Tensor:
        """The flat gradient (r,) at a batch (m, p) of what was released and prepared."""
        if self._adversary is not None:
            return self._adversary.gradient(theta, target, round_, attempt)
        points = self._learner.points(theta, len(target), round_, attempt).requires_grad_()
        if not bool(points.isfinite().all()):
            return lost_direction(theta)
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
        request = ReleaseAsked(round_, attempt, self._plan.records)

        def terms(member: Member) -> Terms:
            return Terms.of(self._task, N=sum(member.sizes))

        def arrays(answer: ReleasedRecords) -> Mapping[str, Tensor]:
            return {"released": answer.released.double()}

        self._collect(messages.RELEASE, round_, members, request, terms, arrays, self._context.releases)


SIDES = Sides(
    make_plan,
    LocalRelease,
    {messages.RELEASE: answer_together(messages.RELEASE, each_pays(release_due, released_records))},
    epsilon=lambda node, delta: release_epsilon(node.task.experiment, delta),
    planned=planned,
    require_ready=lambda node: release_of(node.task.experiment, node.delta(0)),
)
