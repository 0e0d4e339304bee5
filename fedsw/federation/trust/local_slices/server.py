"""Trust model `local-slices` at the server: what learns from noised slices, fresh every round or stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsw.experiment import resolve_delta
from fedsw.experiment.sections import SliceSettings
from fedsw.federation import messages
from fedsw.federation.budgets.local import slices_plan
from fedsw.federation.budgets.split import own_batch, sampling_rate
from fedsw.federation.exchange.cohort import Member, Site
from fedsw.federation.messages import Broadcast, NoisedSlices, SlicesAsked, Terms
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.local import LocalMethod
from fedsw.federation.trust.plan import Plan
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.randomness import Stream
from fedsw.runs.observer import Outcome
from fedsw.tasks.problem import Problem
from fedsw.tasks.public_side import learner_of
from fedsw.transport.flow import Slices, UnprotectedSlices, draw_stored, flow_step, noised_swd


def make_plan(task: Problem, sites: Sequence[Site]) -> Plan:
    """What is fixed before the first round, for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`trust.local_plans`); this one is what may be shown.
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
    return Plan.of(
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

    The slices of a one-release flow are stored; who is among them is not asked again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._learner = learner_of(self._task)
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
        """What the optimizer moves against: the distance's gradient, or minus the flow's velocity."""
        local = self._task.experiment.own(SliceSettings)
        points = self._learner.points(theta, sum(len(each) for each in slices), round_, attempt)
        dummy = not isinstance(slices[0], UnprotectedSlices)
        if local.algorithm == "dp-swd":
            match = noised_swd(points, slices, order=local.order, dummy=dummy, stream=stream)
            return self._learner.gradient(match.cotangents)
        step = self._task.experiment.training.rate_after(round_ - 1)
        moved = flow_step(points, slices, step=step, diffusion=local.diffusion, dummy=dummy, stream=stream)
        return ((points - moved) / step).reshape(-1)

    def _slices(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> list[Slices]:
        """One exchange: the clients' slices in client order."""
        public, fraction = self._task.directions(round_, attempt), self._task.experiment.training.batch_fraction

        def terms(member: Member) -> Terms:
            return Terms.of(self._task, k=public.shape[1], n=sum(own_batch(member.sizes, fraction)))

        answers = self._ask(messages.SLICES, round_, members, self._asked(round_, attempt, theta), terms)
        return [_slices(answer, public) for answer in answers.values()]

    def _released(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> list[Slices]:
        """The slices of all records that every client releases once, in client order."""
        public = self._task.directions(round_, attempt)

        def terms(member: Member) -> Terms:
            return Terms.of(self._task, k=public.shape[1], n=sum(member.sizes))

        def arrays(answer: NoisedSlices) -> Mapping[str, Tensor]:
            return _arrays_of(_slices(answer, public))

        asked = self._asked(round_, attempt, theta)
        self._collect(messages.SLICES, round_, members, asked, terms, arrays, self._releases)
        return [_slices_of(each) for each in self._releases.read()]

    def _asked(self, round_: int, attempt: int, theta: Tensor) -> SlicesAsked:
        task = self._task
        model = Broadcast.of(theta, Terms.of(task)) if task.private_parameters else None
        return SlicesAsked(round_, attempt, self._plan.records, model)


def _slices(answer: NoisedSlices, public: Tensor) -> Slices:
    """A client's slices, on the public directions or on some of its own."""
    directions = public if answer.directions is None else answer.directions
    kind = UnprotectedSlices if answer.sigma == 0 else Slices
    return kind(directions, answer.projections.double(), answer.sigma)


def _arrays_of(slices: Slices) -> dict[str, Tensor]:
    sigma = torch.tensor(slices.sigma, dtype=torch.float64)
    return {"directions": slices.directions, "projections": slices.projections, "sigma": sigma}


def _slices_of(arrays: Mapping[str, Tensor]) -> Slices:
    sigma = float(arrays["sigma"])
    kind = UnprotectedSlices if sigma == 0 else Slices
    return kind(arrays["directions"], arrays["projections"], sigma)
