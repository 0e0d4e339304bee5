"""Trust model `local-slices`: slices of features are charged, noised, and only then sent; how a server learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.experiment import Experiment, resolve_delta
from fedsw.experiment.sections import SliceSettings
from fedsw.federation import messages
from fedsw.federation.exchange.participants import Member, Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.table import NoisedSlices, SlicesAsked
from fedsw.federation.node.node import Node
from fedsw.federation.node.own_ledger import GROUP
from fedsw.federation.node.replies import Due, answer_together, each_pays
from fedsw.federation.trust import Sides, promise
from fedsw.federation.trust.budget_shares import own_batch, sampling_rate
from fedsw.federation.trust.context import Context, LocalMethod
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.divergence import lost_direction
from fedsw.learning.tasks.objective import in_pieces
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import Learner
from fedsw.mathematics.clipping import unchanged
from fedsw.mathematics.transport.flow import Slices, UnprotectedSlices, draw_stored, flow_step, noised_swd
from fedsw.mathematics.transport.sliced import project
from fedsw.privacy import plan as plans
from fedsw.privacy.accountants import GAUSSIAN, NO_NOISE
from fedsw.privacy.accounting import Charge, Slicing, Step, lifetime
from fedsw.privacy.accounting.lifetime import Counts
from fedsw.privacy.release import Paid, Part, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.privacy.slices import BoundedSlices, DirectionStream, fresh_slices, slices_on, unprotected_slices
from fedsw.runs.observer import Outcome


@dataclass(frozen=True)
class SlicesPlan:
    """A client's releases of slices: their sampling rate p_c (1 for one release of everything), number and directions.

    `diameter` is how far a replaced record can move its features, `sigma` the noise of every projection (0 without
    privacy), `epsilon` that of all releases together.
    """

    rate: float
    releases: int
    slicing: Slicing
    diameter: float
    sigma: float
    epsilon: float

    @property
    def charge(self) -> Charge:
        """Charge of one release to the client's records."""
        return Charge(GROUP, self.rate, self.diameter, slicing=self.slicing)

    @property
    def part(self) -> Part:
        """The part that this charge pays for; its bound is that of the features, before slicing."""
        return Part("slices", self.diameter, self.sigma, GAUSSIAN if self.sigma else NO_NOISE)


def slices_plan(experiment: Experiment, *, dimension: int, rate: float, delta: float) -> SlicesPlan:
    """The noise with which a client at sampling rate `rate` keeps (epsilon, delta) over all its releases of slices.

    Guarantee: (epsilon, delta) for the replacement of one of the client's records, against all others, by the profile
    of random slicing, amplified by the client's own sampling and composed over releases
    (docs/guarantees/accounting.md). With the accountants of other papers it is what they say it is
    (`fedsw.privacy.accounting.ACCOUNTANTS`).
    """
    releases = experiment.releases
    rate = 1.0 if experiment.own(SliceSettings).once else rate
    slicing = Slicing(dimension, experiment.slicing.directions, experiment.slicing.scheme)
    diameter = 2 * experiment.clip.output
    privacy = experiment.privacy
    multiplier, epsilon = plans.calibrated(
        privacy.epsilon,
        privacy.noise_multiplier,
        delta=delta,
        rate=rate,
        rounds=releases,
        accountant=experiment.accountant,
        mechanism=experiment.mechanism,
        slicing=slicing,
    )
    return SlicesPlan(rate, releases, slicing, diameter, multiplier * diameter, epsilon)


def noised_slices(node: Node, theta: Tensor, round_: int, attempt: int, delta: float, paid: Paid | None) -> Slices:
    """Random slices of a fresh secret batch's features, charged on disk before their noise is drawn (`slices_due`).

    Where whole orthogonal blocks make the profile hold for any directions, all clients use the task's public ones, so
    that the server can pool them; elsewhere this client draws its own, after the features are fixed. The batch is in
    uniformly random order: the place of a row says nothing of its record, which amplification by sampling rests on.

    Guarantee: the client's own (epsilon, delta) over all planned releases, for the replacement of one of its records,
    against all others; see `slices_plan`.

    The model (r,) is looked at only if the features pass through it. They are detached: private features are never
    differentiated.
    """
    plan = _plan(node, delta)
    features = _features(node, theta, _shuffled_batch(node, plan, round_, attempt))
    if paid is None:
        return unprotected_slices(
            project(features, node.task.clip.output), node.task.clipped.directions(round_, attempt)[0]
        )
    slices = _bounded(node, plan, features, round_, attempt)
    noise = node.own_stream(round_, attempt, "slices noise")
    return slices.released(release_paid(slices.bounded, paid, plan.part.name, noise))


def slices_due(node: Node, request: SlicesAsked, ledger: Path) -> Due:
    """Charges of a client for a release of slices, to its ledger at the path `ledger`."""
    delta = node.delta(request.records)
    plan = _plan(node, delta)
    return Due(ledger, promise(node, delta), request.round, request.attempt, [plan.charge], plan.sigma, [plan.part])


def released_slices(node: Node, request: SlicesAsked, paid: Paid | None) -> NoisedSlices:
    """A client's slices as they leave; directions that are not the public ones go with them."""
    theta = torch.zeros(0) if request.theta is None else request.theta.tensor()
    slices = noised_slices(node, theta, request.round, request.attempt, node.delta(request.records), paid)
    public = torch.equal(slices.directions, node.task.clipped.directions(request.round, request.attempt)[0])
    spent = math.inf if paid is None else paid.spent
    return NoisedSlices(spent, slices.projections, None if public else slices.directions, slices.sigma)


def planned(node: Node, delta: float) -> Counts:
    """Cost of all planned releases to this client's records, at that delta or a smaller one."""
    plan = _plan(node, delta)
    return lifetime.planned(Step(plan.rate, plan.diameter / plan.sigma, slicing=plan.slicing), plan.releases)


def _plan(node: Node, delta: float) -> SlicesPlan:
    rate = sampling_rate(node.sizes, node.task.experiment.training.batch_fraction)
    return slices_plan(node.task.experiment, dimension=node.task.dimension, rate=rate, delta=delta)


def _bounded(node: Node, plan: SlicesPlan, features: Tensor, round_: int, attempt: int) -> BoundedSlices:
    radius = node.task.clip.output
    if plan.slicing.fixed:  # whole orthogonal blocks: any such directions hide a record, so all may share them
        return slices_on(features, node.task.clipped.directions(round_, attempt)[0], radius=radius)
    return fresh_slices(
        features,
        radius=radius,
        k=plan.slicing.k,
        scheme=plan.slicing.scheme,
        directions_stream=DirectionStream(node.own_stream(round_, attempt, "slices directions")),
    )


def _shuffled_batch(node: Node, plan: SlicesPlan, round_: int, attempt: int) -> Records:
    fraction = node.task.experiment.training.batch_fraction
    count = len(node.units) if plan.rate == 1.0 else own_batch(node.sizes, fraction)[0]
    # Keys order all units, and the first ones are the batch: in that order a row's place says nothing of its record.
    stream = node.own_stream(round_, attempt, "slices batch")
    keys = stream.words(len(node.units))
    return node.rows_of(np.argsort(keys, kind="stable")[:count], stream)


@flushing_to_zero
def _features(node: Node, theta: Tensor, records: Records) -> Tensor:
    task = node.task
    if not task.private_parameters:
        return task.fixed_points(records).cpu()
    model = task.prepared(node.model, theta)
    with torch.no_grad(), unchanged(model, task.task):
        pieces = map(task.given, in_pieces(records, task.clipped.micro_batch))
        parts = [task.outputs(model(piece.features), piece).cpu() for piece in pieces]
    return torch.cat(parts)


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Plan for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`slices_plan`); this one is what may be shown.
    """
    experiment = task.experiment
    members = [member for site in sites for member in site.members]
    fraction = experiment.training.batch_fraction
    once = experiment.own(SliceSettings).once
    sizes = sum(sum(member.sizes) for member in members)
    batch = sizes if once else sum(sum(own_batch(member.sizes, fraction)) for member in members)
    rate = max(sampling_rate(member.sizes, fraction) for member in members)
    delta = resolve_delta(experiment.privacy.delta, records=sizes)
    plan = slices_plan(task.experiment, dimension=task.dimension, rate=rate, delta=delta)
    public = ("the number of every client's records",)
    diameter = Sensitivity(plan.diameter, "diameter of the features", public=public)
    multiplier = plan.sigma / plan.diameter
    return FederationPlan.of(
        task,
        sizes=(sizes,),
        batch=(batch,),
        rates=(plan.rate,),
        delta=delta,
        epsilon=plan.epsilon,
        multiplier=multiplier,
        sensitivities=(diameter,),
    )


class LocalSlices(LocalMethod):
    """Gradients of a sliced distance to noised slices (DP-SWD), or steps of a particle flow towards them.

    The slices of a one-release flow are stored; a client with stored slices is not asked again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._learner = Learner(self._task)
        self._stored: list[Slices] = []

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        experiment = self._task.experiment
        stream = Stream.seeded(experiment.slicing.seed, "public noise", round_, attempt)
        if experiment.own(SliceSettings).once:
            if not self._stored:
                self._stored = self._released(round_, attempt, theta, members)
            least = min(experiment.own(SliceSettings).per_step, self._stored[0].count)
            slices = draw_stored(self._stored, least, stream=stream.child("stored directions"))
        else:
            slices = self._slices(round_, attempt, theta, members)
        vector = self._direction(round_, attempt, theta, slices, stream)
        return Outcome(vector, None, self.epsilon(), attempt, len(slices))

    def _direction(self, round_: int, attempt: int, theta: Tensor, slices: Sequence[Slices], stream: Stream) -> Tensor:
        """Gradient for the optimizer: the distance's, or minus the flow's velocity."""
        local = self._task.experiment.own(SliceSettings)
        points = self._learner.points(theta, sum(len(part) for part in slices), round_, attempt)
        if not bool(points.isfinite().all()):
            return lost_direction(theta)
        dummy = not isinstance(slices[0], UnprotectedSlices)
        if local.algorithm == "dp-swd":
            match = noised_swd(points, slices, order=local.order, towards=local.towards, dummy=dummy, stream=stream)
            return self._learner.gradient(match.cotangents)
        step = self._task.experiment.training.rate_after(round_ - 1)
        moved = flow_step(
            points, slices, step=step, diffusion=local.diffusion, towards=local.towards, dummy=dummy, stream=stream
        )
        return ((points - moved) / step).reshape(-1)

    def _slices(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> list[Slices]:
        public = self._task.clipped.directions(round_, attempt)[0]
        answers = self._ask(messages.SLICES, round_, members, self._asked(round_, attempt, theta), self._terms)
        return [_slices(answer, public) for answer in answers.values()]

    def _released(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> list[Slices]:
        """The slices of all records that every client releases once, in client order."""
        public = self._task.clipped.directions(round_, attempt)[0]

        def arrays(answer: NoisedSlices) -> Mapping[str, Tensor]:
            slices = _slices(answer, public)
            sigma = torch.tensor(slices.sigma, dtype=torch.float64)
            return {"directions": slices.directions, "projections": slices.projections, "sigma": sigma}

        request = self._asked(round_, attempt, theta)
        self._collect(messages.SLICES, round_, members, request, self._terms, arrays, self._context.releases)
        return [_slices_of(**stored) for stored in self._context.releases.read()]

    def _terms(self, member: Member) -> Terms:
        """The lengths of a client's answer: slices of all of its records, or of a batch."""
        experiment, sizes = self._task.experiment, member.sizes
        once = experiment.own(SliceSettings).once
        n = sum(sizes if once else own_batch(sizes, experiment.training.batch_fraction))
        return Terms.of(self._task, k=1 if self._task.dimension == 1 else experiment.slicing.directions, n=n)

    def _asked(self, round_: int, attempt: int, theta: Tensor) -> SlicesAsked:
        task = self._task
        model = Broadcast.of(theta, Terms.of(task)) if task.private_parameters else None
        return SlicesAsked(round_, attempt, self._plan.records, model)


def _slices(answer: NoisedSlices, public: Tensor) -> Slices:
    """A client's slices, on the public directions or on some of its own."""
    directions = public if answer.directions is None else answer.directions
    return _slices_of(directions, answer.projections.double(), answer.sigma)


def _slices_of(directions: Tensor, projections: Tensor, sigma: Tensor | float) -> Slices:
    return (UnprotectedSlices if sigma == 0 else Slices)(directions, projections, float(sigma))


SIDES = Sides(
    make_plan,
    LocalSlices,
    {messages.SLICES: answer_together(messages.SLICES, each_pays(slices_due, released_slices))},
    epsilon=lambda node, delta: _plan(node, delta).epsilon,
    planned=planned,
)
