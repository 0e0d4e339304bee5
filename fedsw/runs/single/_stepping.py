"""A rehearsal of an optimizer and a scheduler on copies: what cannot step along releases is refused before a charge."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from typing import Any

import torch

Optimizer = torch.optim.Optimizer
Scheduler = torch.optim.lr_scheduler.LRScheduler


def require_steps(optimizer: Optimizer, scheduler: Scheduler | None, rounds: int) -> None:
    """Refuse what could not step once in every round, or be stored and go on; both stay as they are.

    A copy of the optimizer steps along a made-up gradient, a copy of the scheduler through all rounds, and what both
    keep is put away and back, as a checkpoint does.

    Raises:
        ValueError: naming what cannot, and what can.
    """
    if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
        raise ValueError(
            f"the scheduler {_kind(scheduler)} changes the rates of another optimizer, so that it would have no "
            "effect; make it with the optimizer that is given"
        )
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # of schedulers, which count other steps than a copy's
        stepping, schedule = _copies(optimizer, scheduler)
        _step(stepping)
        if schedule is not None:
            _schedule(schedule, rounds)
        _put_back(stepping, schedule)


def _copies(optimizer: Optimizer, scheduler: Scheduler | None) -> tuple[Optimizer, Scheduler | None]:
    """Both, with parameters of their own; a scheduler's copy changes the rates of the optimizer's."""
    memo: dict[int, Any] = {}
    twin = object.__new__(type(optimizer))  # as `copy.deepcopy` leaves out what a class of the user's own adds
    memo[id(optimizer)] = twin
    try:
        for name, value in vars(optimizer).items():
            if name.startswith("_optimizer_") and isinstance(value, dict):
                vars(twin)[name] = OrderedDict()  # hooks, which may do anything
            elif name != "step":  # a scheduler puts a bound one there
                vars(twin)[name] = copy.deepcopy(value, memo)
        return twin, copy.deepcopy(scheduler, memo)
    except Exception as fault:  # whatever a class of the user's own keeps
        both = _kind(optimizer) + ("" if scheduler is None else f" with {_kind(scheduler)}")
        raise ValueError(f"{both} cannot be copied, and is tried before anything is spent ({_said(fault)})") from None


def _step(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
    try:
        for _ in range(2):  # the first makes what the second starts from
            optimizer.step()
    except Exception as fault:  # torch's own, of many kinds
        raise ValueError(
            f"the optimizer {_kind(optimizer)} cannot step along a released gradient ({_said(fault)}): a round has "
            "one, dense, and no loss to evaluate again. Take one that needs no more, such as torch.optim.AdamW"
        ) from None


def _schedule(scheduler: Scheduler, rounds: int) -> None:
    done = max(0, int(scheduler.last_epoch))  # of one that goes on
    try:
        for _ in range(max(1, rounds - done)):
            scheduler.step()
    except Exception as fault:  # torch's own, of many kinds
        raise ValueError(
            f"the scheduler {_kind(scheduler)} cannot step once in each of {rounds} rounds ({_said(fault)}). Take one "
            "that follows the rounds alone, such as CosineAnnealingLR: no loss is released to follow"
        ) from None


def _put_back(optimizer: Optimizer, scheduler: Scheduler | None) -> None:
    content = io.BytesIO()
    both = [stateful for stateful in (optimizer, scheduler) if stateful is not None]
    try:
        torch.save([stateful.state_dict() for stateful in both], content)
        stored = torch.load(io.BytesIO(content.getvalue()), weights_only=True)
        for stateful, state in zip(both, stored, strict=True):
            stateful.load_state_dict(state)
    except Exception as fault:  # what torch does not load by its values alone
        raise ValueError(
            f"{' with '.join(map(_kind, both))} keeps what no checkpoint holds ({_said(fault)}), so that a training "
            "that stopped could not go on; take another"
        ) from None


def _kind(thing: object) -> str:
    return type(thing).__name__


def _said(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"
