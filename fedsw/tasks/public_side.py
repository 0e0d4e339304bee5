"""The other side of a matching objective: a sample of a prior, a generator or a public domain, and its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedsw.clipping import Tape, Term, clipped_sum, record
from fedsw.objectives.matching import Matching
from fedsw.randomness import Stream
from fedsw.tasks.generation import uniform_ball
from fedsw.tasks.problem import Problem
from fedsw.tasks.public import ForPublic, PublicRecords
from fedsw.tasks.task import Inputs


class PublicSide(ABC):
    """Somebody else's sample for one attempt; the server draws it from public randomness.

    Samples, cotangents and contributions are on the task's device.
    """

    def __init__(self, task: Problem) -> None:
        self._task = task

    @abstractmethod
    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Its outputs (count, d) in its ball, under the model `theta`."""

    @abstractmethod
    def contribution(self, cotangents: Tensor) -> Tensor:
        """Its part of the gradient (r,), float64: clipped Jacobians where the cotangents carry private values.

        Guarantee: private records reach it through `cotangents` alone, and it weighs at most L * sum ||q_j|| beyond
        what is public; `Matching.sensitivities` bounds it together with the clients' contributions.
        """


class Prior(PublicSide):
    """Uniform points in a ball; they have no parameters."""

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Fresh points (count, d) for the attempt; `theta` (r,) does not matter."""
        stream = Stream.seeded(self._task.experiment.slicing.seed, "prior", round_, attempt)
        radius = self._task.experiment.objective.prior_radius
        return uniform_ball(count, self._task.dimension, radius, stream).to(self._task.device)

    def contribution(self, cotangents: Tensor) -> Tensor:
        """Nothing: zeros (r,), whatever the cotangents (count, d) are."""
        return torch.zeros(self._task.parameters, dtype=torch.float64, device=self._task.device)


class Generator(PublicSide):
    """A generator's samples: the only side with parameters."""

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._model = task.build_model()
        self._tape: Tape | None = None
        self._given: Inputs | None = None

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Samples (count, d) of fresh inputs under `theta` (r,).

        They are projected only where the noise is that of both sides: the bound for public samples does not look at
        their radius, and a sample that strayed out of the ball must be pulled back along its whole way.
        """
        model = self._task.prepared(self._model, theta)
        self._given = self._task.imagined(self._task.latents(count, "generator", round_, attempt))
        self._tape = record(model, self._given.features)
        if self._task.experiment.objective.protected == "both":
            return self._task.rounded(self._task.heads(self._tape.raw, self._given))
        return self._task.outputs(self._tape.raw, self._given).detach()

    def contribution(self, cotangents: Tensor) -> Tensor:
        """Clipped Jacobians of the samples, transposed, applied to their cotangents (count, d): (r,), float64."""
        assert self._tape is not None and self._given is not None
        return _matched(self._task, self._tape, self._given, cotangents)


class Domain(PublicSide):
    """Public labelled records that go through the model too, and carry the task loss."""

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._public = PublicRecords(task)
        self._model = ForPublic(task.build_model())
        self._tape: Tape | None = None
        self._given: Inputs | None = None

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Features (m, d) of a public batch under `theta` (r,); the batch decides m."""
        self._given = self._task.given(self._public.batch(round_, attempt))
        self._task.prepared(self._model, theta)
        self._tape = record(self._model, self._given.features)
        return self._task.rounded(self._task.heads(self._tape.raw, self._given))

    def contribution(self, cotangents: Tensor) -> Tensor:
        """The clipped matching gradient (r,) of cotangents (m, d), plus that of (1 - alpha) * the public task loss."""
        assert self._tape is not None and self._given is not None
        return _matched(self._task, self._tape, self._given, cotangents) + self._supervised()

    def _supervised(self) -> Tensor:
        task, model, given = self._task, self._model, self._given
        assert given is not None
        loss = task.losses(model(given.features), given).mean()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        flat = torch.cat([gradient.detach().reshape(-1).to(torch.float64) for gradient in found])
        return (1 - task.experiment.objective.alpha) * flat


def public_side_of(task: Problem) -> PublicSide | None:
    """The other side of the task's objective; None where private groups are compared with each other.

    Raises:
        ExperimentError, FileNotFoundError: if a public domain is missing or does not fit.
    """
    if not isinstance(task.objective, Matching):
        return None
    kinds: dict[str, type[PublicSide]] = {"prior": Prior, "generator": Generator, "domain": Domain}
    return kinds[task.objective.other_side](task)


def _matched(task: Problem, tape: Tape, given: Inputs, cotangents: Tensor) -> Tensor:
    head = task.outputs(tape.raw, given)
    return clipped_sum(tape, [Term(head, cotangents, task.clip.jacobian, task.experiment.clip.of_jacobians)])
