"""Trust model `local-slices` at the server: what learns from noised slices, fresh every round or stored once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedsw import wire
from fedsw.experiment import resolve_delta
from fedsw.local.flow import draw_stored, flow_step
from fedsw.local.plans import slices_plan
from fedsw.local.shares import own_batch, sampling_rate
from fedsw.local.slices import Slices, UnprotectedSlices
from fedsw.local.smoothed import noised_swd
from fedsw.randomness import Stream
from fedsw.sensitivity import Sensitivity
from fedsw.task import Task
from server.cohort import Member
from server.exchange import array_record
from server.imitation import imitation_of
from server.local import LocalMethod, require_array
from server.method import Outcome
from server.plan import Plan
from server.replies import deviation_of
from server.training import learning_rate

_STORED_PER_STEP = 50
"""Directions of a one-release flow that a step looks at."""


def make_plan(task: Task, members: Sequence[Member]) -> Plan:
    """What is fixed before the first round, for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`fedsw.local.plans`); this one is what may be shown.
    """
    experiment = task.experiment
    fraction = experiment.training.batch_fraction
    once = experiment.local.algorithm == "flow-one-release"
    sizes = sum(sum(member.sizes) for member in members)
    batch = sizes if once else sum(sum(own_batch(member.sizes, fraction)) for member in members)
    rate = max(sampling_rate(member.sizes, fraction) for member in members)
    delta = resolve_delta(experiment.privacy.delta, records=sizes)
    plan = slices_plan(task.experiment, dimension=task.dimension, rate=rate, delta=delta)
    public = ("the number of every client's records",)
    diameter = Sensitivity(plan.diameter, "diameter of the features", public=public)
    multiplier = plan.sigma / plan.diameter
    return Plan(task, (sizes,), (batch,), (plan.rate,), delta, plan.epsilon, multiplier, (diameter,))


class LocalSlices(LocalMethod):
    """Gradients of a sliced distance to noised slices (DP-SWD), or steps of a particle flow towards them.

    Args:
        store: where the slices of a one-release flow are kept; they are released, so that a resumed run reads them.
    """

    def __init__(self, store: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._imitation = imitation_of(self._task)
        self._store = store
        self._stored = _load(store)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        experiment = self._task.experiment
        stream = Stream.seeded(experiment.slicing.seed, "public noise", round_, attempt)
        if experiment.local.algorithm == "flow-one-release":
            if not self._stored:
                self._stored = self._slices(round_, attempt, theta, members)
                _save(self._store, self._stored)
            least = min(_STORED_PER_STEP, self._stored[0].count)
            slices = draw_stored(self._stored, least, stream=stream.child("stored directions"))
        else:
            slices = self._slices(round_, attempt, theta, members)
        vector = self._direction(round_, attempt, theta, slices, stream)
        return Outcome(vector, None, self.epsilon(), attempt, len(slices))

    def _direction(
        self, round_: int, attempt: int, theta: Tensor, slices: Sequence[Slices], stream: Stream
    ) -> Tensor:
        """What the optimizer moves against: the distance's gradient, or minus the flow's velocity."""
        local = self._task.experiment.local
        points = self._imitation.points(theta, sum(len(each) for each in slices), round_, attempt)
        dummy = not isinstance(slices[0], UnprotectedSlices)
        if local.algorithm == "dp-swd":
            match = noised_swd(points, slices, order=local.order, dummy=dummy, stream=stream)
            return self._imitation.gradient(match.cotangents)
        step = learning_rate(self._task.experiment.training, round_ - 1)
        moved = flow_step(points, slices, step=step, diffusion=local.diffusion, dummy=dummy, stream=stream)
        return ((points - moved) / step).reshape(-1)

    def _slices(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> list[Slices]:
        """One exchange: the clients' slices in client order."""
        task = self._task
        content: dict[str, ArrayRecord | ConfigRecord] = {
            "config": ConfigRecord({"round": round_, "attempt": attempt, "records": self._plan.records})
        }
        if task.private_parameters:
            content["model"] = array_record("theta", theta.to(task.dtype))
        public = task.directions(round_, attempt)

        def read(member: Member, reply: RecordDict) -> Slices:
            return _read_slices(task, reply, public)

        return list(self._ask(wire.SLICES, round_, members, content, read).values())


def _read_slices(task: Task, reply: RecordDict, public: Tensor) -> Slices:
    projections = require_array(reply, "projections", (None, public.shape[1]))
    sigma = deviation_of(reply, noisy=task.experiment.privacy.noisy)
    drawn = "directions" in cast(ArrayRecord, reply["arrays"])
    directions = require_array(reply, "directions", tuple(public.shape)) if drawn else public
    kind = UnprotectedSlices if sigma == 0 else Slices
    return kind(directions, projections.double(), sigma)


def _save(path: Path, slices: Sequence[Slices]) -> None:
    tensors = {}
    for position, each in enumerate(slices):
        tensors[f"{position}.directions"] = each.directions.clone()  # files hold no shared tensors
        tensors[f"{position}.projections"] = each.projections.contiguous()
        tensors[f"{position}.sigma"] = torch.tensor([each.sigma], dtype=torch.float64)
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.replace(path)


def _load(path: Path) -> list[Slices]:
    if not path.is_file():
        return []
    tensors = load_file(path)
    found: list[Slices] = []
    for position in range(len(tensors) // 3):
        sigma = float(tensors[f"{position}.sigma"])
        kind = UnprotectedSlices if sigma == 0 else Slices
        found.append(kind(tensors[f"{position}.directions"], tensors[f"{position}.projections"], sigma))
    return found
