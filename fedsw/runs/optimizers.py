"""Optimizers and schedulers of torch by name, for steps along released vectors; unsuitable ones are refused.

What a step reads was released, and what it computes is post-processing: no choice here changes a guarantee.
"""

from __future__ import annotations

import difflib
import io
from typing import Any

import torch

from fedsw.experiment import ExperimentError, Training

PLAIN = ("sgd", "adam")
"""Optimizers that step along any vector, and need not be tried before a run."""


def optimizer_of(parameter: torch.nn.Parameter, settings: Training) -> torch.optim.Optimizer:
    """The optimizer of a flat parameter (r,): "sgd" and "adam" with momentum and second_moment, or torch's by name.

    Raises:
        ExperimentError: if torch.optim has none of that name, it does not take its arguments, or it cannot step along a
            vector.
    """
    rate = settings.learning_rate
    if settings.optimizer == "adam":
        betas = (settings.momentum or 0.9, settings.second_moment)
        return torch.optim.Adam([parameter], lr=rate, betas=betas)
    if settings.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=rate, momentum=settings.momentum)
    kind = _named("training.optimizer", settings.optimizer, torch.optim, torch.optim.Optimizer)
    made: torch.optim.Optimizer = _made(
        "training.optimizer", settings.optimizer, kind, [parameter], {"lr": rate, **settings.optimizer_arguments}
    )
    return made


def scheduler_of(optimizer: torch.optim.Optimizer, settings: Training) -> torch.optim.lr_scheduler.LRScheduler | None:
    """The scheduler of an optimizer, which steps once a round; None where the settings name none.

    Raises:
        ExperimentError: if torch has none of that name, it does not take its arguments, or it asks for a loss.
    """
    if settings.scheduler is None:
        return None
    place = torch.optim.lr_scheduler
    if settings.scheduler == "ReduceLROnPlateau":
        raise ExperimentError(
            "training.scheduler 'ReduceLROnPlateau' follows a loss, and none is released every round; name one that "
            "follows the rounds, such as 'CosineAnnealingLR'"
        )
    kind = _named("training.scheduler", settings.scheduler, place, place.LRScheduler)
    made: torch.optim.lr_scheduler.LRScheduler = _made(
        "training.scheduler", settings.scheduler, kind, optimizer, settings.scheduler_arguments
    )
    return made


def require_steps(settings: Training) -> None:
    """Try the optimizer and the scheduler on a vector of zeros, and put their state away and back.

    Raises:
        ExperimentError: naming what cannot step, or what cannot be kept in a checkpoint.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = optimizer_of(parameter, settings)
    scheduler = scheduler_of(optimizer, settings)
    parameter.grad = torch.ones_like(parameter)
    try:
        optimizer.step()
    except Exception as fault:  # torch's own, of many kinds
        raise ExperimentError(
            f"training.optimizer {settings.optimizer!r} cannot step along a released vector "
            f"({type(fault).__name__}: {fault}); one that needs nothing but a dense gradient can, such as 'AdamW'"
        ) from None
    if scheduler is not None:
        scheduler.step()
    if not _kept(optimizer.state_dict()) or not (scheduler is None or _kept(scheduler.state_dict())):
        raise ExperimentError(
            f"training.optimizer {settings.optimizer!r} with scheduler {settings.scheduler!r} keeps a state that no "
            "checkpoint holds, so that the run could not be resumed; use another"
        )


def _named(what: str, name: str, place: Any, base: type) -> Any:
    found = getattr(place, name, None)
    if isinstance(found, type) and issubclass(found, base) and found is not base and not name.startswith("_"):
        return found
    known = sorted(
        each for each, kind in vars(place).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not each.startswith("_")
    )  # fmt: skip
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    own = "'sgd', 'adam', " if base is torch.optim.Optimizer else ""
    raise ExperimentError(f"{what} {name!r} is unknown; nearest known: {near!r}. Known: {own}{', '.join(known)}")


def _made(what: str, name: str, kind: Any, subject: Any, arguments: dict[str, Any]) -> Any:
    try:
        return kind(subject, **arguments)
    except Exception as fault:  # torch's own, of many kinds
        reason = f"{type(fault).__name__}: {fault}"
        raise ExperimentError(
            f"{what} {name!r} does not take {arguments} ({reason}); {what}_arguments are what it is made with"
        ) from None


def _kept(state: Any) -> bool:
    content = io.BytesIO()
    torch.save(state, content)
    try:
        torch.load(io.BytesIO(content.getvalue()), weights_only=True)
    except Exception:  # what torch does not load by its values alone
        return False
    return True
