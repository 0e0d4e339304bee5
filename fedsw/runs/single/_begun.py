"""A training's settings: its folder goes on with these, and with nothing else."""

from __future__ import annotations

import dataclasses
import enum
import hmac
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsw._tools import files
from fedsw._tools.randomness import KEY_BYTES
from fedsw.learning.objectives import Clip
from fedsw.privacy.accounting.lifetime import accounts_folder
from fedsw.runs.run_files import jsonable, read_json, write_json
from fedsw.runs.single._fingerprint import Fingerprint, fingerprint, installed, names
from fedsw.runs.single.objective import Deciding, Objective
from fedsw.runs.single.training_plan import Plan

BEGUN = "training.json"
"""The file with the settings that a folder's training began with."""
KEYS = "keys"
"""The folder, beside this machine's accounts, of the keys of such files."""

Described = Mapping[str, Any]
"""Plain values by their path, and a `Fingerprint` of everything that may hold something private."""

_MOST_NAMED = 4
_NEAR = 1e-9
_KEYED, _KEY, _UNKNOWN = "keyed ", "key", "not described"
_MOVING = frozenset(
    {"optimizer", "last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "T_cur", "T_i"}
)
"""Attributes that a scheduler counts with, and its optimizer."""
_CYCLED = frozenset({"momentum", "betas"})
"""Settings of an optimizer's groups that some schedulers move beside the rate."""


def described(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    objective: Objective,
    clip: Clip,
    plan: Plan,
) -> Described:
    """Everything that decides what is trained and promised, by its path; of no record, and of no trained weight.

    Plain values are of what fedsw and torch set, which is public. What a task, a penalty, a model or a scheduler of the
    user's own holds, and its code, is a `Fingerprint`.
    """
    about: dict[str, Any] = {}
    for name, value in (("plan", plan), ("clip", clip)):
        about |= dict(_public(name, value))
    about |= dict(_of_objective(objective))
    about |= dict(_of_optimizer(optimizer))
    about |= dict(_of_scheduler(scheduler))
    about |= dict(_of_model(model))
    return {path: value if isinstance(value, Fingerprint) else jsonable(value) for path, value in about.items()}


def require_same(directory: Path, now: Described) -> None:
    """Refuse to go on with something else than a folder's training was begun with; warn of what cannot be compared.

    Raises:
        ValueError: naming what differs, or that the folder does not say.
    """
    begun = read_json(directory / BEGUN)
    if begun is None:
        raise ValueError(
            f"{directory} holds a ledger and no {BEGUN}: no PrivateTrainer of this version began there, and what it "
            "trained is not known. Give another folder; on the same records what both spend adds up"
        )
    key = _read_key(begun.pop(_KEY, None))
    unsaid = {*begun.pop(_UNKNOWN, ()), *_unknown(now)}
    here = {path: _in_file(path, value, key) if key else value for path, value in now.items()}
    paths = [path for path in dict.fromkeys((*begun, *here)) if not _same(begun.get(path), here.get(path), bool(key))]
    if paths:
        named = "; ".join(_differs(path, begun, here) for path in paths[:_MOST_NAMED])
        more = f"; and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        raise ValueError(
            f"{directory} holds a training that was begun with something else: {named}{more}. Go on with what it was "
            "begun with, or give another folder; on the same records what both spend adds up"
        )
    if key is None:
        unsaid |= {path for path, value in now.items() if isinstance(value, Fingerprint)}
    if unsaid:
        why = "" if key else f" (the key of its {BEGUN} is not in {accounts_folder() / KEYS})"
        warnings.warn(
            f"{directory} goes on, and whether these are what it was begun with cannot be told{why}: "
            f"{', '.join(sorted(unsaid))}. That they are is your word",
            stacklevel=5,
        )


def keep(directory: Path, now: Described) -> None:
    """Put on file what the training in a folder begins with, digests under a key that is kept outside the folder."""
    name, key = os.urandom(8).hex(), os.urandom(KEY_BYTES)
    try:
        files.replace(files.private_folder(accounts_folder() / KEYS) / name, key)
    except OSError as fault:
        raise ValueError(
            f"{accounts_folder() / KEYS} takes no key ({fault}), under which {directory / BEGUN} would say what was "
            "begun. Let FEDSW_ACCOUNTS name a folder that can be written; nothing was spent"
        ) from None
    content = {path: _in_file(path, value, key) for path, value in now.items()}
    write_json(directory / BEGUN, {_KEY: name, _UNKNOWN: sorted(_unknown(now)), **content})


def _read_key(name: Any) -> bytes | None:
    path = accounts_folder() / KEYS / Path(str(name)).name
    return path.read_bytes() if path.is_file() else None


def _unknown(now: Described) -> set[str]:
    """Paths of values that cannot be described, with their unknown kinds."""
    return {
        f"{path} (of {', '.join(value.unknown)})"
        for path, value in now.items()
        if isinstance(value, Fingerprint) and value.unknown
    }


def _in_file(path: str, value: Any, key: bytes) -> Any:
    if not isinstance(value, Fingerprint):
        return value
    return _KEYED + hmac.new(key, path.encode() + b"\0" + value.digest, "sha256").hexdigest()[:32]


def _same(one: Any, other: Any, keyed: bool) -> bool:
    if not keyed and str(one).startswith(_KEYED) and isinstance(other, Fingerprint):
        return True  # which cannot be told
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_NEAR)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _differs(path: str, begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how a value differs, without one that may be private."""
    if all(path in about and str(about[path]).startswith(_KEYED) for about in (begun, now)):
        return f"{path} is another than it was"
    return f"{path} was {_shown(begun, path)} and is {_shown(now, path)}"


def _shown(about: Mapping[str, Any], path: str) -> str:
    if path not in about:
        return "not there"
    hidden = isinstance(about[path], Fingerprint) or str(about[path]).startswith(_KEYED)
    return "there" if hidden else repr(about[path])


def _public(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value that fedsw or torch made, by its plain parts; of what it holds of the user's own, a fingerprint."""
    if isinstance(value, enum.Enum) or value is None or type(value) in (bool, int, float, str):
        yield path, str(value) if isinstance(value, enum.Enum) else value
    elif isinstance(value, Deciding):
        for name, part in value.decisive().items():
            yield from _public(f"{path}.{name}", part)
    elif type(value) in (list, tuple):
        yield path, f"{len(value)} of"
        for number, part in enumerate(value):
            yield from _public(f"{path}[{number}]", part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and installed(type(value)):
        yield path, type(value).__qualname__
        for field in dataclasses.fields(value):
            yield from _public(f"{path}.{field.name}", getattr(value, field.name, None))
    elif callable(value) and installed(value) and hasattr(value, "__name__"):
        yield path, value.__name__
    else:
        yield path, fingerprint(value)


def _own(path: str, thing: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Something of the user's own: its class by name, a fingerprint of its code and of each attribute that code names.

    Attributes that the class's code does not name may be named for what they hold: they have one fingerprint together.
    """
    kind = type(thing)
    yield path, kind.__qualname__
    if not installed(kind):
        yield f"{path}.code", fingerprint(kind)
    functions = [made for base in kind.__mro__ for made in vars(base).values() if hasattr(made, "__code__")]
    known = set[str]().union(*(names(made.__code__) for made in functions))
    for name in sorted(known & set(values)):
        yield from _value(f"{path}.{name}", values[name])
    if other := {name: value for name, value in values.items() if name not in known}:
        yield f"{path}.other attributes", fingerprint(other)


def _value(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Something that an object of the user's own holds: a function of a package by its name, all else in secret."""
    shown = callable(value) and installed(value) and hasattr(value, "__name__")
    yield path, value.__name__ if shown else fingerprint(value)


def _attributes(thing: Any) -> dict[str, Any]:
    """All that an object holds by name, in slots too."""
    slots = [name for base in type(thing).__mro__ for name in _slots(base)]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | dict(getattr(thing, "__dict__", {}))


def _slots(kind: type) -> Sequence[str]:
    named = vars(kind).get("__slots__", ())
    return [name for name in ([named] if isinstance(named, str) else named) if not name.startswith("__")]


def _of_objective(objective: Objective) -> Iterator[tuple[str, Any]]:
    for name, value in objective.decisive().items():
        path = f"objective.{name}"
        if name == "penalties":
            yield path, f"{len(value)} of"
            for number, penalty in enumerate(value):
                plain = installed(type(penalty))
                yield from (_public if plain else _held)(f"{path}[{number}]", penalty)
        else:
            yield from (_held if name == "task" and not isinstance(value, str) else _public)(path, value)


def _held(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    yield from _own(path, thing, _attributes(thing))


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    kind = type(optimizer)
    yield "optimizer", kind.__name__
    if not installed(kind):
        yield "optimizer.code", fingerprint(kind)
    for number, group in enumerate(optimizer.param_groups):
        where = f"optimizer.group {number}"
        yield f"{where}.parameters", str([tuple(parameter.shape) for parameter in group["params"]])
        cycled = _CYCLED if "max_momentum" in group else frozenset()
        rate = group.get("initial_lr", group.get("lr"))  # the other one is moved by a scheduler
        for name, value in {**group, "lr": rate}.items():
            if name not in ("params", "initial_lr", *cycled):
                yield from (_public if name in optimizer.defaults and installed(kind) else _value)(
                    f"{where}.{name}", value
                )


def _of_scheduler(scheduler: Any, path: str = "scheduler") -> Iterator[tuple[str, Any]]:
    if scheduler is None:
        yield path, "none"
        return
    values = {name: value for name, value in vars(scheduler).items() if name not in _MOVING}
    inner = values.pop("_schedulers", ())
    if installed(type(scheduler)):
        yield path, type(scheduler).__name__
        for name, value in values.items():
            yield from _public(f"{path}.{name}", value)
    else:
        yield from _own(path, scheduler, values)
    for number, part in enumerate(inner):
        yield from _of_scheduler(part, f"{path}[{number}]")


def _of_model(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in model.named_modules():
        path = f"model.{name}" if name else "model"
        plain = installed(type(layer))
        values = {key: value for key, value in vars(layer).items() if not key.startswith("_") and key != "training"}
        if plain:
            yield path, f"{type(layer).__name__}({layer.extra_repr()})"
            values = {key: value for key, value in values.items() if key not in getattr(layer, "__constants__", ())}
            if values:
                yield f"{path}.attributes", fingerprint(values)
        else:
            yield from _own(path, layer, values)
        if layer._forward_hooks or layer._forward_pre_hooks:
            yield f"{path}.hooks", fingerprint([*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()])
    for name, parameter in model.named_parameters():
        yield f"model.{name}", f"{parameter.dtype} {tuple(parameter.shape)}"
        if not parameter.requires_grad:
            yield f"model.{name}.frozen", _content(parameter)
    for name, buffer in model.named_buffers():
        yield f"model.{name}", _content(buffer)


def _content(value: Tensor) -> Fingerprint:
    return fingerprint(value.detach())
