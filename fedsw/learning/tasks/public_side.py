"""The side of a distance that is at the server: priors, generators, public domains, critics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.data import Records
from fedsw.data.sources import load_public
from fedsw.experiment import ExperimentError
from fedsw.experiment.sections import ReleaseSettings
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Inputs
from fedsw.mathematics.clipping import Tape, Term, clipped_sum, record


class PublicRecords:
    """Batches of the public domain, drawn from public randomness; it must be there, and fit the private records."""

    def __init__(self, task: Problem) -> None:
        dataset = load_public(task.experiment.data)
        if dataset is None:
            raise ExperimentError("domain adaptation needs data.public, the labelled public data set; it is not set")
        if dataset.train.features.shape[1] != task.features or len(dataset.classes) != task.classes:
            raise ExperimentError(
                f"data.public {task.experiment.data.public!r} has {dataset.train.features.shape[1]} features and "
                f"{len(dataset.classes)} classes; the private records have {task.features} and {task.classes}"
            )
        self._records = dataset.train
        self._seed, self._size = task.experiment.slicing.seed, task.experiment.data.public_batch

    def batch(self, round_: int, attempt: int) -> Records:
        """`data.public_batch` records, or all where there are fewer."""
        keys = Stream.seeded(self._seed, "public batch", round_, attempt).words(len(self._records))
        return self._records.take(smallest_keys(keys, min(self._size, len(self._records))))


class ForPublic(nn.Module):
    """A model as public records (m, p) meet it: by its own `public` where it has one, which moves them first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Any:
        """Return the model's outputs for public records (m, p)."""
        return getattr(self.model, "public", self.model)(features)


class PublicSide(ABC):
    """The other side's sample for one attempt, on the task's device; the server draws it from public randomness."""

    def __init__(self, task: Problem) -> None:
        self._task = task

    @abstractmethod
    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Its outputs (count, d) in its ball, under the model `theta`."""

    @abstractmethod
    def contribution(self, cotangents: Tensor) -> Tensor:
        """Its part of the gradient (r,), float64: clipped Jacobians where the cotangents carry private values.

        Guarantee: private records reach it through `cotangents` only, and it weighs at most L * sum ||q_j|| beyond
        what is public; `Matching.sensitivities` bounds it together with the clients' contributions.
        """


class Prior(PublicSide):
    """Uniform points in a ball; they have no parameters."""

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Fresh points (count, d) for the attempt; `theta` (r,) does not matter."""
        return self._task.clipped.prior(round_, attempt, 0, count)

    def contribution(self, cotangents: Tensor) -> Tensor:
        """Nothing: zeros (r,), whatever the cotangents (count, d) are."""
        return torch.zeros(self._task.parameters, dtype=torch.float64, device=self._task.device)


class Modelled(PublicSide):
    """A side with a sample from the task's model, on a tape from `sample` to `contribution`."""

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._model = task.build_model()
        self._tape: Tape | None = None
        self._given: Inputs | None = None

    def _bounded(self, tape: Tape, inputs: Inputs) -> Tensor:
        """The compared outputs (m, d) in their balls, in the precision in which clients' outputs travel."""
        clipped = self._task.clipped
        return clipped.in_balls(clipped.heads(tape.raw, inputs)).to(self._task.dtype)

    def contribution(self, cotangents: Tensor) -> Tensor:
        """Clipped Jacobians of the sample, transposed, applied to its cotangents (count, d): (r,), float64."""
        assert self._tape is not None and self._given is not None
        task = self._task
        head = task.outputs(self._tape.raw, self._given)
        return clipped_sum(self._tape, [Term(head, cotangents, task.clip.jacobian, task.experiment.clip.of_jacobians)])


class Generator(Modelled):
    """A generator's samples: the only side with parameters."""

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Samples (count, d) of fresh inputs under `theta` (r,).

        They are projected only where the noise is that of both sides: the bound for public samples does not look at
        their radius, and a sample that strayed out of the ball must be pulled back along its whole way.
        """
        model = self._task.prepared(self._model, theta)
        self._given = self._task.imagined(self._task.latents(count, "generator", round_, attempt))
        self._tape = record(model, self._given.features)
        if self._task.experiment.objective.protected == "both":
            return self._bounded(self._tape, self._given)
        return self._task.outputs(self._tape.raw, self._given).detach()


class Domain(Modelled):
    """Public labelled records that go through the model too, and carry the task loss."""

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._public, self._model = PublicRecords(task), ForPublic(self._model)

    def sample(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Features (m, d) of a public batch under `theta` (r,); the batch decides m."""
        self._given = self._task.given(self._public.batch(round_, attempt))
        self._task.prepared(self._model, theta)
        self._tape = record(self._model, self._given.features)
        return self._bounded(self._tape, self._given)

    def contribution(self, cotangents: Tensor) -> Tensor:
        """The clipped matching gradient (r,) of cotangents (m, d), plus that of (1 - alpha) * the public task loss."""
        assert self._given is not None
        loss = self._task.clipped.losses(self._model(self._given.features), self._given).mean()
        supervised = (1 - self._task.experiment.objective.alpha) * _flat_gradient([loss], self._model)
        return super().contribution(cotangents) + supervised


def public_side_of(task: Problem) -> PublicSide | None:
    """The other side of the task's objective; None if groups are compared, or penalties are composed."""
    kinds: dict[str, type[PublicSide]] = {"prior": Prior, "generator": Generator, "domain": Domain}
    side = task.objective.other_side
    return None if side is None else kinds[side](task)


def _flat_gradient(outputs: list[Tensor], model: nn.Module, cotangents: list[Tensor] | None = None) -> Tensor:
    """In the trained parameters, in their order (r,), float64; zero for what no output comes from."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(outputs, parameters, cotangents, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.detach().reshape(-1).to(torch.float64) for gradient in gradients])


class Learner:
    """Training of points (m, p) about the clip's centre by the gradient of a loss, in the task's local trust models.

    They are a generator's samples of fresh inputs; particles, which are the parameters themselves; or features of
    public labelled records, with the public task loss beside the loss of the points.
    """

    def __init__(self, task: Problem) -> None:
        self._task, self._model = task, task.build_model()
        self._public = PublicRecords(task) if task.task.facts.other_side == "domain" else None
        self._moves = MODELS.get(task.experiment.model.kind).points
        self._points: Tensor | None = None
        self._loss: Tensor | None = None

    def points(self, theta: Tensor, count: int, round_: int, attempt: int) -> Tensor:
        """Fresh points (count, p), or where the particles are; detached, float64."""
        task, model = self._task, self._task.prepared(self._model, theta)
        if self._public is not None:
            inputs = task.given(self._public.batch(round_, attempt))
            raw = ForPublic(model)(inputs.features)
            self._loss = task.clipped.losses(raw, inputs).mean()
        elif self._moves:
            raw = model()
            inputs = task.imagined(raw.detach())
        else:
            inputs = task.imagined(task.latents(count, "generator", round_, attempt))
            raw = model(inputs.features)
        self._points = task.outputs(raw, inputs)
        return self._points.detach().to("cpu", torch.float64)

    def gradient(self, cotangents: Tensor) -> Tensor:
        """Flat gradient (r,), float64, of the loss with the derivative `cotangents` (m, p) in the points.

        Beside a public task loss it has the weight alpha, and the task's 1 - alpha.
        """
        assert self._points is not None
        pulled = cotangents.to(self._points)
        if self._loss is None:
            return _flat_gradient([self._points], self._model, [pulled]).cpu()
        alpha = self._task.experiment.objective.alpha
        weights = [alpha * pulled, torch.full_like(self._loss, 1 - alpha)]
        return _flat_gradient([self._points, self._loss], self._model, weights).cpu()


_PENALTY = 10.0


class Adversarial(Protocol):
    """A model with a generator and a critic."""

    generator: nn.Module
    critic: nn.Module


class Adversary:
    """Gradients of a model's generator and critic, in turn; both are in the one flat vector that is trained.

    The critic f descends E f(G(z)) - E f(y) + 10 E (|grad f(m)| - 1)^2, m between pairs of generated and released
    points; the generator descends -E f(G(z)). For every round of the generator there are `local.critic` of the critic,
    and the one that does not move has a gradient of zero: an optimizer with momentum would move it all the same.

    Guarantee: post-processing of released records. Source: Gulrajani and others 2017.
    """

    def __init__(self, task: Problem) -> None:
        self._task, self._model = task, task.build_model()
        self._pair = cast(Adversarial, self._model)
        self._every = task.experiment.own(ReleaseSettings).critic + 1

    def gradient(self, theta: Tensor, released: Tensor, round_: int, attempt: int) -> Tensor:
        """The flat gradient (r,), float64, of this round's player, at a batch of released points (m, p)."""
        self._task.prepared(self._model, theta)
        latents = self._task.latents(len(released), "generator", round_, attempt)
        points = self._task.outputs(self._model(latents), self._task.imagined(latents))
        if round_ % self._every == 0:
            return self._flat(-self._values(points).mean(), self._pair.generator)
        others = released.to(points)
        between = self._between(points.detach(), others, round_, attempt).requires_grad_()
        (slopes,) = torch.autograd.grad(self._values(between).sum(), between, create_graph=True)
        penalty = (torch.linalg.vector_norm(slopes, dim=1) - 1).square().mean()
        loss = self._values(points.detach()).mean() - self._values(others).mean() + _PENALTY * penalty
        return self._flat(loss, self._pair.critic)

    def _values(self, points: Tensor) -> Tensor:
        """The critic's numbers (m,) of points (m, p) about the clip's centre."""
        values: Tensor = self._pair.critic(points + self._task.experiment.clip.centre)
        return values

    def _between(self, points: Tensor, released: Tensor, round_: int, attempt: int) -> Tensor:
        """A point (m, p) between every pair, uniformly; public randomness."""
        stream = Stream.seeded(self._task.experiment.slicing.seed, "critic", round_, attempt)
        part = torch.from_numpy(stream.uniforms(len(points))).to(points).unsqueeze(1)
        return part * points + (1 - part) * released

    def _flat(self, loss: Tensor, player: nn.Module) -> Tensor:
        """The gradient in the player's parameters, zero in the others, in the model's order."""
        moved = {id(parameter) for parameter in player.parameters()}
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        moving = [parameter for parameter in parameters if id(parameter) in moved]
        gradients = iter(torch.autograd.grad(loss, moving))
        flat = [next(gradients) if id(weights) in moved else torch.zeros_like(weights) for weights in parameters]
        return torch.cat([part.detach().reshape(-1) for part in flat]).to("cpu", torch.float64)
