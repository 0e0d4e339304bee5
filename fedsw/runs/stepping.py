"""A rehearsal of an optimizer and a scheduler on copies: those that cannot step along releases are refused, uncharged.

A release is one dense vector a round, with no loss to evaluate again.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Optimizer = torch.optim.Optimizer
Scheduler = torch.optim.lr_scheduler.LRScheduler


def require_steps(optimizer: Optimizer, scheduler: Scheduler | None, rounds: int) -> None:
    """Refuse an optimizer or scheduler that cannot step in every round, or be stored and resumed; both are unchanged.

    Copies of both step through all rounds along a made-up gradient; then their state is stored and loaded, as by a
    checkpoint. For an optimizer of torch the copied parameters are small, with as many dimensions.

    Raises:
        ValueError: naming which one cannot, and a kind that can.
    """
    if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
        raise ValueError(
            f"the scheduler {_kind(scheduler)} changes the rates of another optimizer, so that it would have no "
            "effect; make it with the optimizer that is given"
        )
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # of schedulers, which count the original's steps
        stepping, schedule = _copies(optimizer, scheduler)
        for _ in range(max(1, rounds - _done(scheduler))):
            _step(stepping)
            if schedule is not None:
                try:
                    schedule.step()
                except Exception as fault:  # torch's own, of many kinds
                    raise ValueError(
                        f"the scheduler {_kind(schedule)} cannot step once in each of {rounds} rounds "
                        f"({_error(fault)}). Take one that depends on rounds only and lasts as long, such as "
                        "CosineAnnealingLR: no loss is released to follow"
                    ) from None
        both = [stateful for stateful in (stepping, schedule) if stateful is not None]
        try:
            content = io.BytesIO()
            torch.save([stateful.state_dict() for stateful in both], content)
            stored = torch.load(io.BytesIO(content.getvalue()), weights_only=True)
            restore(stepping, stored[0])
            if schedule is not None:
                schedule.load_state_dict(stored[1])
        except Exception as fault:  # torch loads weights only, no objects
            raise ValueError(
                f"{' with '.join(map(_kind, both))} keeps state that a checkpoint cannot hold ({_error(fault)}), so "
                "that a stopped training could not resume; take another"
            ) from None


def restore(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's stored state bit for bit: torch casts numbers of another type to that of the parameters."""
    optimizer.load_state_dict(dict(state))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, stored in state["state"].items():
        for name, value in stored.items():
            if isinstance(value, Tensor) and isinstance(loaded := optimizer.state[parameters[number]][name], Tensor):
                optimizer.state[parameters[number]][name] = value.detach().clone().to(loaded.device)


def _copies(optimizer: Optimizer, scheduler: Scheduler | None) -> tuple[Optimizer, Scheduler | None]:
    """Both, with their own parameters; a scheduler's copy changes the rates of the optimizer's copy."""
    memo: dict[int, Any] = {}
    small = type(optimizer).__module__.startswith("torch.optim")
    twin = object.__new__(type(optimizer))  # `copy.deepcopy` omits attributes that a custom class adds
    memo[id(optimizer)] = twin
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"] if small):
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach().new_ones((2,) * parameter.dim()))
    try:
        for name, value in vars(optimizer).items():
            if name.startswith("_optimizer_") and isinstance(value, dict):
                vars(twin)[name] = OrderedDict()  # hooks, which may do anything
            elif name == "state" and small:  # of other shapes; it is made again by the first step
                vars(twin)[name] = type(value)(value.default_factory) if hasattr(value, "default_factory") else {}
            elif name != "step":  # a scheduler puts a bound one there
                vars(twin)[name] = copy.deepcopy(value, memo)
        return twin, copy.deepcopy(scheduler, memo)
    except Exception as fault:  # of anything that a custom class keeps
        both = _kind(optimizer) + ("" if scheduler is None else f" with {_kind(scheduler)}")
        raise ValueError(
            f"{both} cannot be copied to be tried before a charge ({_error(fault)}); take another"
        ) from None


def _step(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
    try:
        optimizer.step()
    except Exception as fault:  # torch's own, of many kinds
        raise ValueError(
            f"the optimizer {_kind(optimizer)} cannot step along a released gradient ({_error(fault)}): a round has "
            "one, dense, and no loss to evaluate again. Take one that needs no more, such as torch.optim.AdamW"
        ) from None


def _done(scheduler: Any) -> int:
    """Rounds that the scheduler of a resumed training has stepped through; of a chain without a count, at least."""
    inner = [_done(part) for part in getattr(scheduler, "_schedulers", ())]
    return max(0, int(getattr(scheduler, "last_epoch", min(inner, default=0))))


def _kind(thing: object) -> str:
    return type(thing).__name__


def _error(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"
