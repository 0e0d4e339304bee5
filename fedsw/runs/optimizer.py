"""The optimizer of a run: it steps along released vectors, averages iterates, and is put away and back whole."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedsw.experiment import ExperimentError
from fedsw.experiment.sections import Training
from fedsw.runs import stepping
from fedsw.runs.checkpoint import Checkpoint

PLAIN = ("sgd", "adam")
"""Optimizers that step along any vector, and need not be tried before a run."""
_Kind = TypeVar("_Kind")


def optimizer_of(parameter: torch.nn.Parameter, settings: Training) -> torch.optim.Optimizer:
    """The optimizer of a flat parameter (r,): "sgd" and "adam" with momentum and second_moment, or torch's by name."""
    if settings.optimizer in PLAIN:
        kind, keywords = _plain(settings)
        return kind([parameter], **keywords)
    arguments = {"lr": settings.learning_rate, **settings.optimizer_arguments}
    return _made("training.optimizer", settings.optimizer, torch.optim.Optimizer, torch.optim, [parameter], arguments)


def _plain(settings: Training) -> tuple[type[torch.optim.SGD | torch.optim.Adam], dict[str, Any]]:
    """Torch's class of "sgd" or "adam", and its arguments."""
    rate = settings.learning_rate
    if settings.optimizer == "adam":
        return torch.optim.Adam, {"lr": rate, "betas": (settings.momentum or 0.9, settings.second_moment)}
    return torch.optim.SGD, {"lr": rate, "momentum": settings.momentum}


def scheduler_of(optimizer: torch.optim.Optimizer, settings: Training) -> torch.optim.lr_scheduler.LRScheduler | None:
    """The scheduler of an optimizer, which steps once a round; None if the settings name none."""
    if settings.scheduler is None:
        return None
    if settings.scheduler == "ReduceLROnPlateau":
        raise ExperimentError(
            "training.scheduler 'ReduceLROnPlateau' follows a loss, and none is released every round; name one that "
            "follows the rounds, such as 'CosineAnnealingLR'"
        )
    schedulers, arguments = torch.optim.lr_scheduler, settings.scheduler_arguments
    return _made("training.scheduler", settings.scheduler, schedulers.LRScheduler, schedulers, optimizer, arguments)


def require_steps(settings: Training) -> None:
    """Try the optimizer and the scheduler through all rounds on a few numbers, and put their state away and back."""
    optimizer = optimizer_of(torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)), settings)
    scheduler = scheduler_of(optimizer, settings)
    try:
        stepping.require_steps(optimizer, scheduler, settings.rounds)
    except ValueError as fault:
        named = "" if scheduler is None else f" with training.scheduler {settings.scheduler!r}"
        raise ExperimentError(f"training.optimizer {settings.optimizer!r}{named}: {fault}") from None


def _made(what: str, name: str, base: type[_Kind], module: object, subject: object, arguments: dict[str, Any]) -> _Kind:
    """Make an object of the class of that name in a module of torch, from its subject and the settings' arguments."""
    known = {
        class_name: kind for class_name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not class_name.startswith("_")
    }  # fmt: skip
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
        shipped = ["'sgd'", "'adam'"] if base is torch.optim.Optimizer else []
        raise ExperimentError(
            f"{what} {name!r} is unknown; nearest known: {near!r}. Known: {', '.join([*shipped, *sorted(known)])}"
        )
    made: Callable[..., _Kind] = known[name]
    try:
        return made(subject, **arguments)
    except Exception as fault:  # torch's own, of many kinds
        reason = f"{type(fault).__name__}: {fault}"
        raise ExperimentError(
            f"{what} {name!r} does not take {arguments} ({reason}); {what}_arguments are what it is made with"
        ) from None


class PlainOptimizer:
    """`torch.optim.SGD` with momentum, or `torch.optim.Adam` with betas, of one float64 parameter (r,) on the host.

    It takes torch's own functions and states without its classes, which load a compiler for seconds.
    ``arguments`` are those that torch's class takes; all others have its defaults. States are written and read as its.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], parameter: torch.nn.Parameter, **arguments: Any) -> None:
        if kind not in (torch.optim.SGD, torch.optim.Adam):
            raise ValueError(f"{kind.__name__} is not plain; SGD and Adam are")
        options = inspect.signature(kind).parameters
        defaults = {name: option.default for name, option in options.items() if name != "params"}
        self.param_groups: list[dict[str, Any]] = [{**defaults, **arguments, "params": [0]}]
        self._kind, self._parameter = kind, parameter
        self._state: dict[str, Any] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One step along the parameter's gradient."""
        gradient, values = self._parameter.grad, self._parameter.detach()
        assert gradient is not None
        group, state = self.param_groups[0], self._state
        if self._kind is torch.optim.SGD:
            buffers = [state.get("momentum_buffer")]
            of_sgd = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
            sgd([values], [gradient], buffers, foreach=False, fused=False, **{name: group[name] for name in of_sgd})
            if group["momentum"]:
                state["momentum_buffer"] = buffers[0]
            return
        if not state:
            of_scalars = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            state["step"] = torch.tensor(0.0, dtype=of_scalars)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(values), torch.zeros_like(values)
        first, second = group["betas"]
        averages, squares = [state["exp_avg"]], [state["exp_avg_sq"]]
        names = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        options = {"beta1": first, "beta2": second, **{name: group[name] for name in names}}
        adam([values], [gradient], averages, squares, [], [state["step"]], foreach=False, fused=False, **options)

    def state_dict(self) -> dict[str, Any]:
        """State of torch's own class after the same steps."""
        return {"state": {0: self._state} if self._state else {}, "param_groups": [dict(self.param_groups[0])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state, of this class or of torch's."""
        self.param_groups = [dict(state["param_groups"][0])]
        self._state = copy.deepcopy(state["state"].get(0, {}))


class Trainer:
    """Parameters as one flat float64 vector, moved only along released vectors.

    They are on the host, wherever the model runs: released vectors arise there, and checkpoints and messages take the
    parameters from there, so that a step moves nothing to or from a device.
    """

    def __init__(self, theta: Tensor, settings: Training) -> None:
        if settings.scheduler is not None or settings.optimizer not in PLAIN:
            require_steps(settings)
        self._parameter = torch.nn.Parameter(theta.detach().to("cpu", torch.float64).clone())
        self._average = self._parameter.detach().clone()
        self._first_averaged = settings.rounds - math.ceil(settings.averaging * settings.rounds) + 1
        self._settings, self.steps = settings, 0  # released rounds so far

    @functools.cached_property
    def _optimizer(self) -> torch.optim.Optimizer | PlainOptimizer:
        """Made at the first step: torch loads its compiler with one of its own, which takes seconds."""
        if self._settings.scheduler is None and self._settings.optimizer in PLAIN:
            kind, arguments = _plain(self._settings)
            return PlainOptimizer(kind, self._parameter, **arguments)
        return optimizer_of(self._parameter, self._settings)

    @functools.cached_property
    def _scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        optimizer = self._optimizer
        return None if isinstance(optimizer, PlainOptimizer) else scheduler_of(optimizer, self._settings)

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
                group["lr"] = self._settings.rate_after(self.steps)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self.steps += 1
        averaged = max(1, self.steps - self._first_averaged + 1)
        self._average.add_(self.theta - self._average, alpha=1 / averaged)

    def state(self) -> Checkpoint:
        """Everything needed to go on from here."""
        scheduler = self._scheduler  # made first: it writes where it begins into the optimizer's groups
        content = self._optimizer.state_dict()
        if scheduler is not None:
            content["scheduler"] = scheduler.state_dict()
        return Checkpoint(self.steps, self.theta.clone(), self._average.clone(), content)

    def restore(self, state: Checkpoint) -> None:
        """Go on from a checkpoint, bit for bit."""
        self.steps = state.round
        with torch.no_grad():
            self._parameter.copy_(state.theta)
            self._average.copy_(state.average)
        stored = dict(state.optimizer)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(stored.pop("scheduler"))
        if isinstance(self._optimizer, PlainOptimizer):
            self._optimizer.load_state_dict(stored)
        else:
            stepping.restore(self._optimizer, stored)
        for step in state.later:
            self.step(step.released)


def shortened(released: Tensor, norm: float | None) -> Tensor:
    """A released vector (r,), scaled down to an l2 norm where it is longer: post-processing. None leaves it."""
    if norm is None:
        return released
    length = float(torch.linalg.vector_norm(released))
    return released * (norm / length) if length > norm else released


def signal_to_noise(square: float, sigma: float | None, parameters: int) -> float | None:
    """Estimated ratio of signal to noise norms, from a released vector (r,) only; None if there is no noise.

    ||released||^2 / sigma^2 - r has mean ||signal||^2 / sigma^2, so this reads nothing private.

    Args:
        square: the released vector's squared norm; parameters: r.
    """
    if not sigma:
        return None
    return math.sqrt(max(0.0, (square / sigma**2 - parameters) / parameters))
