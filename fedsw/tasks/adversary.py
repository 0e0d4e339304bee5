"""A generator against a critic: what a Wasserstein GAN learns from released records. No private record is read here."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from fedsw.randomness import Stream
from fedsw.tasks.problem import Problem

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

    Guarantee: post-processing of released records.

    Source: Gulrajani and others 2017.
    """

    def __init__(self, task: Problem) -> None:
        self._task, self._model = task, task.build_model()
        self._pair = cast(Adversarial, self._model)
        self._every = task.experiment.local.critic + 1

    def gradient(self, theta: Tensor, released: Tensor, round_: int, attempt: int) -> Tensor:
        """The flat gradient (r,), float64, of this round's player, at a batch of released points (m, p)."""
        self._task.prepared(self._model, theta)
        latents = self._task.latents(len(released), "generator", round_, attempt)
        points = self._task.outputs(self._model(latents), self._task.imagined(latents))
        if round_ % self._every == 0:
            return self._flat(-self._values(points).mean(), self._pair.generator)
        there = released.to(points)
        between = self._between(points.detach(), there, round_, attempt).requires_grad_()
        (slopes,) = torch.autograd.grad(self._values(between).sum(), between, create_graph=True)
        penalty = (torch.linalg.vector_norm(slopes, dim=1) - 1).square().mean()
        loss = self._values(points.detach()).mean() - self._values(there).mean() + _PENALTY * penalty
        return self._flat(loss, self._pair.critic)

    def _values(self, points: Tensor) -> Tensor:
        """The critic's numbers (m,) of points (m, p) about the clip's centre."""
        found: Tensor = self._pair.critic(points + self._task.experiment.clip.centre)
        return found

    def _between(self, points: Tensor, released: Tensor, round_: int, attempt: int) -> Tensor:
        """A point (m, p) between every pair, uniformly; public randomness."""
        stream = Stream.seeded(self._task.experiment.slicing.seed, "critic", round_, attempt)
        part = torch.from_numpy(stream.uniforms(len(points))).to(points).unsqueeze(1)
        return part * points + (1 - part) * released

    def _flat(self, loss: Tensor, player: nn.Module) -> Tensor:
        """The gradient in the player's parameters, zero in the others, in the model's order."""
        own = {id(parameter) for parameter in player.parameters()}
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        moving = [parameter for parameter in parameters if id(parameter) in own]
        found = iter(torch.autograd.grad(loss, moving))
        flat = [next(found) if id(each) in own else torch.zeros_like(each) for each in parameters]
        return torch.cat([part.detach().reshape(-1) for part in flat]).to("cpu", torch.float64)
