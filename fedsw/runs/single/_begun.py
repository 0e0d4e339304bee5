"""A training's settings in plain words: its folder goes on with these, and with nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw.learning.objectives import Clip
from fedsw.runs.run_files import jsonable, read_json, write_json
from fedsw.runs.single.objective import Deciding, Objective
from fedsw.runs.single.training_plan import Plan

BEGUN = "training.json"
"""The file with the settings that a folder's training began with."""

Described = dict[str, Any]
"""Plain values by their path."""

_MOST_DEEP, _MOST_NAMED = 12, 4
_NEAR = 1e-9
_MOVING = frozenset(
    {"optimizer", "last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "T_cur", "T_i"}
)
"""Attributes that a scheduler counts with, and its optimizer."""
_CYCLED = frozenset({"momentum", "betas"})
"""Settings of an optimizer's groups that some schedulers move beside the rate."""
_SHOWN = (PurePath, enum.Enum, decimal.Decimal, fractions.Fraction, datetime.date, datetime.timedelta)
"""Values of Python's own that print as what they are."""
_OTHERS = ("torch", "fedsw", "numpy", "builtins", "abc", "typing", "collections", "functools")
"""Packages whose code is named and not described."""


def described(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    objective: Objective,
    clip: Clip,
    plan: Plan,
) -> Described:
    """Everything that decides what is trained and promised, by its path; of no record, and of no trained weight.

    Arrays are known by a digest, functions and classes of the user's own by their name and their code.
    """
    about: Described = {}
    for name, value in (("plan", plan), ("objective", objective), ("clip", clip)):
        about |= _flat(name, value)
    about |= dict(_of_optimizer(optimizer))
    about["scheduler"] = "none" if scheduler is None else type(scheduler).__name__
    about |= {} if scheduler is None else _flat("scheduler", scheduler)
    about |= dict(_of_model(model))
    return {path: jsonable(value) for path, value in about.items()}


def require_same(directory: Path, now: Described) -> None:
    """Refuse to go on with something else than a folder's training was begun with.

    Raises:
        ValueError: naming what differs, or that the folder does not say.
    """
    begun = read_json(directory / BEGUN)
    if begun is None:
        raise ValueError(
            f"{directory} holds a ledger and no {BEGUN}: no PrivateTrainer of this version began there, and what it "
            "trained is not known. Give another folder; on the same records what both spend adds up"
        )
    paths = [path for path in dict.fromkeys((*begun, *now)) if not _same(begun.get(path), now.get(path))]
    if paths:
        named = "; ".join(f"{path} was {_word(begun, path)} and is {_word(now, path)}" for path in paths[:_MOST_NAMED])
        more = f"; and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        raise ValueError(
            f"{directory} holds a training that was begun with something else: {named}{more}. Go on with what it was "
            "begun with, or give another folder; on the same records what both spend adds up"
        )


def keep(directory: Path, now: Described) -> None:
    """Put on file what the training in a folder begins with."""
    write_json(directory / BEGUN, now)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_NEAR)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _word(about: Mapping[str, Any], path: str) -> str:
    return repr(about[path]) if path in about else "not there"


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    yield "optimizer", type(optimizer).__name__
    for number, group in enumerate(optimizer.param_groups):
        where = f"optimizer.group {number}"
        yield f"{where}.parameters", str([tuple(parameter.shape) for parameter in group["params"]])
        cycled = _CYCLED if "max_momentum" in group else frozenset()
        rate = group.get("initial_lr", group.get("lr"))  # the other one is moved by a scheduler
        for name, value in {**group, "lr": rate}.items():
            if name not in ("params", "initial_lr", *cycled):
                yield from _flat(f"{where}.{name}", value).items()


def _of_model(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in model.named_modules():
        yield f"model.{name}" if name else "model", f"{type(layer).__name__}({layer.extra_repr()})"
        attributes = {key: value for key, value in vars(layer).items() if not key.startswith("_") and key != "training"}
        for key, value in {**attributes, "code": _code_of(type(layer))}.items():
            yield from _flat(f"model.{name}.{key}" if name else f"model.{key}", value).items()
    for name, parameter in model.named_parameters():
        shape = f"{parameter.dtype} {tuple(parameter.shape)}"
        yield f"model.{name}", shape if parameter.requires_grad else f"frozen {_digested(parameter)}"


def _flat(path: str, value: Any, depth: int = 0, seen: frozenset[int] = frozenset()) -> Described:
    """A value's plain parts by their paths; one that holds itself is named there."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {path: value}
    if isinstance(value, Tensor | np.ndarray):
        return {path: _digested(torch.as_tensor(value))}
    if isinstance(value, type) or depth > _MOST_DEEP or id(value) in seen:
        return {path: value.__qualname__ if isinstance(value, type) else type(value).__qualname__}
    parts, about = _parts(value)
    described: Described = {} if about is None else {path: about}
    for key, part in parts.items():
        described |= _flat(f"{path}{key}", part, depth + 1, seen | {id(value)})
    return described


def _parts(value: Any) -> tuple[Mapping[str, Any], str | None]:
    """Parts of a value by the rest of their path, and words about the value itself."""
    if isinstance(value, list | tuple):
        return {f"[{number}]": part for number, part in enumerate(value)}, f"{len(value)} of"
    if isinstance(value, set | frozenset):
        return {}, str(sorted(map(repr, value)))
    if isinstance(value, Mapping):
        return {f"[{key}]": part for key, part in value.items()}, None
    if isinstance(value, FunctionType):
        if _others(value.__module__):
            return {}, value.__qualname__
        cells = {f".{number}": cell.cell_contents for number, cell in enumerate(value.__closure__ or ())}
        return {**cells, ".defaults": value.__defaults__}, f"{value.__qualname__} {_digest(_code(value.__code__))}"
    if isinstance(value, functools.partial):
        return {".of": value.func, ".arguments": value.args, ".named": value.keywords}, "partial"
    if isinstance(value, MethodType):
        return {".code": value.__func__}, value.__qualname__
    if isinstance(value, BuiltinFunctionType):
        return {}, value.__name__
    kind = type(value)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return {}, repr(value) if isinstance(value, _SHOWN) else kind.__qualname__
    parts = {f".{key}": part for key, part in _values(value).items()}
    return {**parts, **({".code": code} if (code := _code_of(kind)) else {})}, kind.__qualname__


def _values(thing: Any) -> Mapping[str, Any]:
    """Parts of an object by name."""
    if isinstance(thing, nn.Module):
        return dict(_of_model(thing))
    if isinstance(thing, Deciding):
        return thing.decisive()
    if dataclasses.is_dataclass(thing):
        return {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)}
    values = dict(getattr(thing, "__dict__", {}))
    if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        return {name: value for name, value in values.items() if name not in _MOVING}
    return values


def _code_of(kind: type) -> str:
    """A digest of the code that a class of the user's own, and those that it is derived from, are made of; else ""."""
    codes = [
        (name, _code(made.__code__))
        for base in kind.__mro__
        if not _others(base.__module__)
        for name, made in vars(base).items()
        if isinstance(made, FunctionType)
    ]
    return _digest(codes) if codes else ""


def _code(code: CodeType) -> tuple[Any, ...]:
    """Parts of a piece of code that decide what it does, without where it is written."""
    parts = [
        _code(part) if isinstance(part, CodeType)
        else sorted(map(repr, part)) if isinstance(part, frozenset)  # whose order changes between processes
        else repr(part)
        for part in code.co_consts
    ]  # fmt: skip
    return (code.co_code.hex(), code.co_names, code.co_varnames, parts)


def _others(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OTHERS


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _digested(value: Tensor) -> str:
    """Shape, type and a digest of the numbers."""
    whole = value.detach().cpu().contiguous()
    content = hashlib.sha256(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{whole.dtype} {tuple(whole.shape)} {content.hexdigest()[:16]}"
