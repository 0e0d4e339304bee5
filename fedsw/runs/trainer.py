"""The optimizer's side of a round: a step along a released vector, and what may be said about it."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from fedsw.experiment import Training
from fedsw.runs.checkpoint import Checkpoint
from fedsw.runs.optimizers import PLAIN, optimizer_of, require_steps, scheduler_of


class Trainer:
    """Parameters as one flat float64 vector, moved only along released vectors.

    They are on the host, wherever the model runs: released vectors arise there, and checkpoints and messages take the
    parameters from there, so that a step moves nothing to or from a device.

    Raises:
        ExperimentError: if the settings' optimizer or scheduler is unknown or cannot be used; see `optimizers`.
    """

    def __init__(self, theta: Tensor, settings: Training) -> None:
        if settings.scheduler is not None or settings.optimizer not in PLAIN:
            require_steps(settings)
        self._parameter = torch.nn.Parameter(theta.detach().to("cpu", torch.float64).clone())
        self._average = self._parameter.detach().clone()
        self._first_averaged = settings.rounds - math.ceil(settings.averaging * settings.rounds) + 1
        self._settings, self._steps = settings, 0

    @functools.cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        """Made at the first step: torch loads its compiler with it, which takes seconds."""
        return optimizer_of(self._parameter, self._settings)

    @functools.cached_property
    def _scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        return scheduler_of(self._optimizer, self._settings)

    @property
    def steps(self) -> int:
        """Released rounds so far."""
        return self._steps

    @property
    def theta(self) -> Tensor:
        """The current iterate (r,)."""
        return self._parameter.detach()

    @property
    def model(self) -> Tensor:
        """The released model (r,): the mean of the last `averaging` of the iterates (post-processing), or the last."""
        return self._average

    def step(self, released: Tensor) -> None:
        """One optimizer step along a released gradient (r,)."""
        self._parameter.grad = shortened(released, self._settings.released_norm)
        if self._scheduler is None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate(self._settings, self._steps)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self._steps += 1
        averaged = max(1, self._steps - self._first_averaged + 1)
        self._average.add_(self.theta - self._average, alpha=1 / averaged)

    def state(self) -> Checkpoint:
        """Everything needed to go on from here."""
        kept = self._optimizer.state_dict()
        if self._scheduler is not None:
            kept["scheduler"] = self._scheduler.state_dict()
        return Checkpoint(self._steps, self.theta.clone(), self._average.clone(), kept)

    def restore(self, state: Checkpoint) -> None:
        """Go on from a checkpoint, bit for bit."""
        self._steps = state.round
        with torch.no_grad():
            self._parameter.copy_(state.theta)
            self._average.copy_(state.average)
        kept = dict(state.optimizer)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(kept.pop("scheduler"))
        self._optimizer.load_state_dict(kept)


def learning_rate(settings: Training, steps: int) -> float:
    """The rate of the step after `steps`: constant, then linear to 0 over the last `decay` of the rounds."""
    decaying = settings.decay * settings.rounds
    left = settings.rounds - steps
    return settings.learning_rate * (min(1.0, left / decaying) if decaying else 1.0)


def shortened(released: Tensor, norm: float | None) -> Tensor:
    """A released vector (r,), scaled down to an l2 norm where it is longer: post-processing. None leaves it."""
    if norm is None:
        return released
    length = float(torch.linalg.vector_norm(released))
    return released * (norm / length) if length > norm else released


def signal_to_noise(released: Tensor, sigma: float | None) -> float | None:
    """Estimated ratio of signal to noise norms, from the released vector (r,) alone; None where there is no noise.

    ||released||^2 / sigma^2 - r has mean ||signal||^2 / sigma^2, so this reads nothing private.
    """
    if not sigma:
        return None
    r = released.numel()
    return math.sqrt(max(0.0, (float(released.square().sum()) / sigma**2 - r) / r))
