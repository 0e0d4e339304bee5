"""What learns to look like released features: a generator, particles, or a public domain; plain gradients, no clips.

Whatever happens here is post-processing of what clients released under their own guarantees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedsw.experiment.kinds import model_kind
from fedsw.tasks.problem import Problem
from fedsw.tasks.public import ForPublic, PublicRecords


class Learner(ABC):
    """Points (m, p) under a model, about the clip's centre, and the gradient of a loss of them."""

    def __init__(self, task: Problem) -> None:
        self._task = task
        self._model = task.build_model()
        self._points: Tensor | None = None

    def points(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Fresh points (count, p), or where the particles are; detached, float64."""
        self._task.prepared(self._model, theta)
        self._points = self._forward(count, round_, attempt)
        return self._points.detach().to("cpu", torch.float64)

    def gradient(self, cotangents: Tensor) -> Tensor:
        """Flat gradient (r,), float64, of the loss whose derivative in the points is `cotangents` (m, p)."""
        assert self._points is not None
        return self._flat([self._points], [cotangents.to(self._points)])

    @abstractmethod
    def _forward(self, count: int, round_: int, attempt: int) -> Tensor: ...

    def _flat(self, outputs: list[Tensor], cotangents: list[Tensor]) -> Tensor:
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(outputs, parameters, cotangents, allow_unused=True)
        flat = [
            (torch.zeros_like(parameter) if gradient is None else gradient.detach()).reshape(-1)
            for parameter, gradient in zip(parameters, found, strict=True)
        ]
        return torch.cat(flat).to("cpu", torch.float64)


class Samples(Learner):
    """A generator's samples of fresh inputs."""

    def _forward(self, count: int, round_: int, attempt: int) -> Tensor:
        latents = self._task.latents(count, "generator", round_, attempt)
        return self._task.outputs(self._model(latents), self._task.imagined(latents))


class Cloud(Learner):
    """Particles: the points are the parameters."""

    def _forward(self, count: int, round_: int, attempt: int) -> Tensor:
        points = self._model()
        return self._task.outputs(points, self._task.imagined(points.detach()))


class PublicFeatures(Learner):
    """Features of public labelled records, with the public task loss beside the loss of the points."""

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._public, self._met = PublicRecords(task), ForPublic(self._model)
        self._loss: Tensor | None = None

    def gradient(self, cotangents: Tensor) -> Tensor:
        """alpha times the gradient (r,) of the features' loss plus (1 - alpha) times that of the public task loss.

        `cotangents` (m, d) are the derivative of the former in the features.
        """
        assert self._points is not None and self._loss is not None
        alpha = self._task.experiment.objective.alpha
        weights = [alpha * cotangents.to(self._points), torch.full_like(self._loss, 1 - alpha)]
        return self._flat([self._points, self._loss], weights)

    def _forward(self, count: int, round_: int, attempt: int) -> Tensor:
        task = self._task
        given = task.given(self._public.batch(round_, attempt))
        raw = self._met(given.features)
        self._loss = task.losses(raw, given).mean()
        return task.outputs(raw, given)


def learner_of(task: Problem) -> Learner:
    """What learns in the task's local trust models.

    Raises:
        ExperimentError, FileNotFoundError: if a public domain is missing.
    """
    if task.task.facts.other_side == "domain":
        return PublicFeatures(task)
    return Cloud(task) if model_kind(task.experiment.model.kind).points else Samples(task)
