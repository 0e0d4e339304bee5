"""The settings that a training began with, in its folder, which is resumed only with the same ones.

`described` has them by path, `keep` stores them, `require_same` compares; `fingerprint` digests custom objects.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import hmac
import math
import os
import struct
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools import files
from fedsw._tools.randomness import KEY_BYTES
from fedsw.learning.objectives import Clip
from fedsw.mathematics.clipping import named_globals
from fedsw.privacy.accounting.lifetime import accounts_folder
from fedsw.runs.run_files import jsonable, read_json, write_json
from fedsw.runs.single.objective import Deciding, Objective
from fedsw.runs.single.training_plan import Plan

BEGUN = "training.json"
"""The file with these settings."""
KEYS = "keys"
"""The folder, beside this machine's accounts, of the keys of such files."""

Described = Mapping[str, Any]
"""Plain values by their path, and a `Fingerprint` of each object that may hold something private."""

_MOST_NAMED = 4
_NEAR = 1e-9  # relative: a number that was written as text and read again
_KEYED, _KEY, _UNKNOWN = "keyed ", "key", "not described"
_MOVING = frozenset(
    {"optimizer", "last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "T_cur", "T_i"}
)
"""A scheduler's optimizer, and attributes that change with each step."""
_CYCLED = frozenset({"momentum", "betas"})
"""Settings of an optimizer's groups that some schedulers change beside the rate."""


def described(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    objective: Objective,
    clip: Clip,
    plan: Plan,
) -> Described:
    """All settings of a training and its guarantee, by path; no record, and no trained weight.

    Values that fedsw and torch set are plain and public. A custom task, penalty, model or scheduler has a `Fingerprint`
    of its code and of what it holds.
    """
    about: dict[str, Any] = {}
    for name, value in (("plan", plan), ("clip", clip)):
        about |= dict(_public(name, value))
    for name, value in objective.decisive().items():
        path = f"objective.{name}"
        if name == "penalties":
            about[path] = f"{len(value)} of"
            for number, penalty in enumerate(value):
                about |= dict((_public if installed(type(penalty)) else _held)(f"{path}[{number}]", penalty))
        else:
            about |= dict((_held if name == "task" and not isinstance(value, str) else _public)(path, value))
    about |= dict(_of_optimizer(optimizer))
    about |= dict(_of_scheduler(scheduler))
    about |= dict(_of_model(model))
    return {path: value if isinstance(value, Fingerprint) else jsonable(value) for path, value in about.items()}


def require_same(directory: Path, now: Described) -> None:
    """Refuse to resume a folder's training with other settings; warn of settings that cannot be compared.

    Raises:
        ValueError: naming the settings that differ, or if the folder has none on file.
    """
    begun = read_json(directory / BEGUN)
    if begun is None:
        raise ValueError(
            f"{directory} holds a ledger and no {BEGUN}: no PrivateTrainer of this version began there, and its "
            "settings are not known. Give another folder; on the same records what both spend adds up"
        )
    # The name is of a file in the folder, and so not to be taken for a path out of the folder of keys.
    stored = accounts_folder() / KEYS / Path(str(begun.pop(_KEY, None))).name
    key = stored.read_bytes() if stored.is_file() else None
    uncompared = {*begun.pop(_UNKNOWN, ()), *_unknown(now)}
    here = {path: _in_file(path, value, key) if key else value for path, value in now.items()}
    paths = [path for path in dict.fromkeys((*begun, *here)) if not _same(begun.get(path), here.get(path), bool(key))]
    if paths:
        named = []
        for path in paths[:_MOST_NAMED]:
            # Two digests show that an object is another one; what it holds may be private, and is not shown.
            keyed = all(path in about and str(about[path]).startswith(_KEYED) for about in (begun, here))
            was, is_ = _shown(begun, path), _shown(here, path)
            named.append(f"{path} is another than it was" if keyed else f"{path} was {was} and is {is_}")
        more = f"; and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        raise ValueError(
            f"{directory} holds a training that was begun with something else: {'; '.join(named)}{more}. Go on with "
            "what it was begun with, or give another folder; on the same records what both spend adds up"
        )
    if key is None:
        uncompared |= {path for path, value in now.items() if isinstance(value, Fingerprint)}
    if uncompared:
        why = "" if key else f" (the key of its {BEGUN} is not in {accounts_folder() / KEYS})"
        warnings.warn(
            f"{directory} goes on, and whether these are what it was begun with cannot be told{why}: "
            f"{', '.join(sorted(uncompared))}. That they are is your unproven assertion",
            stacklevel=5,
        )


def keep(directory: Path, now: Described) -> None:
    """Store the settings of a new training in its folder, digests under a key that is kept outside the folder."""
    name, key = os.urandom(8).hex(), os.urandom(KEY_BYTES)
    try:
        files.replace(files.private_folder(accounts_folder() / KEYS) / name, key)
    except OSError as fault:
        raise ValueError(
            f"{accounts_folder() / KEYS} takes no key ({fault}), which {directory / BEGUN} needs for its digests. Let "
            "FEDSW_ACCOUNTS name a folder that can be written; nothing was spent"
        ) from None
    content = {path: _in_file(path, value, key) for path, value in now.items()}
    write_json(directory / BEGUN, {_KEY: name, _UNKNOWN: sorted(_unknown(now)), **content})


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
        return True  # without the key the digest cannot be compared
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_NEAR)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _shown(about: Mapping[str, Any], path: str) -> str:
    if path not in about:
        return "not there"
    hidden = isinstance(about[path], Fingerprint) or str(about[path]).startswith(_KEYED)
    return "there" if hidden else repr(about[path])


def _public(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value that fedsw or torch made, by its plain parts, with a fingerprint of each custom object in it."""
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
    """A custom object: its class by name, a fingerprint of its code and of each attribute that the code names.

    Other attributes' names may be private, too: they have one fingerprint together.
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
    """A value in a custom object: a function of a package by its name, all else as a fingerprint."""
    shown = callable(value) and installed(value) and hasattr(value, "__name__")
    yield path, value.__name__ if shown else fingerprint(value)


def _held(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """A custom object by all of its attributes, of its slots too; see `_own`."""
    named = [vars(base).get("__slots__", ()) for base in type(thing).__mro__]
    slots = [slot for slots in named for slot in ([slots] if isinstance(slots, str) else slots)]
    held = {slot: getattr(thing, slot) for slot in slots if not slot.startswith("__") and hasattr(thing, slot)}
    yield from _own(path, thing, held | dict(getattr(thing, "__dict__", {})))


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    kind = type(optimizer)
    yield "optimizer", kind.__name__
    if not installed(kind):
        yield "optimizer.code", fingerprint(kind)
    for number, group in enumerate(optimizer.param_groups):
        where = f"optimizer.group {number}"
        yield f"{where}.parameters", str([tuple(parameter.shape) for parameter in group["params"]])
        cycled = _CYCLED if "max_momentum" in group else frozenset()
        rate = group.get("initial_lr", group.get("lr"))  # with initial_lr a scheduler changes lr
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
            yield f"model.{name}.frozen", fingerprint(parameter.detach())
    for name, buffer in model.named_buffers():
        yield f"model.{name}", fingerprint(buffer.detach())


_NAMED = frozenset({"torch", "fedsw", "numpy"}) | (sys.stdlib_module_names - {"__main__"})
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True)
class Fingerprint:
    """A digest of an object, and the kinds of its parts that could not be described: any such part is equal."""

    digest: bytes
    unknown: tuple[str, ...] = ()


class _Word(bytes):
    """Bytes that enter the digest unchanged."""


def fingerprint(*values: Any) -> Fingerprint:
    """The digest of values: equal for equal ones, in every process of one version of Python.

    Custom functions and classes enter by their code, closures, and the globals that it names; installed ones by their
    names; weights that train by their shape. Other objects enter by the parts that pickle would store, mostly
    attributes and slots. An object that occurs again enters by its number.
    """
    sink, unknown = hashlib.sha256(), dict[str, None]()
    seen: dict[int, tuple[int, Any]] = {}  # with the objects: a freed one's id could be another's
    pending: list[Any] = list(reversed(values))
    while pending:
        value = pending.pop()
        if (word := _word(value)) is not None:
            sink.update(len(word).to_bytes(8, "big") + word)
        elif id(value) in seen:
            pending.append(_Word(b"again %d" % seen[id(value)][0]))
        else:
            seen[id(value)] = len(seen), value
            try:
                pending.extend(reversed([_Word(_name(type(value)).encode()), *_parts(value)]))
            except Exception:  # of an object that pickle refuses, or of its own code
                unknown[type(value).__qualname__] = None
                pending.append(_Word(b"unknown " + _name(type(value)).encode()))
    return Fingerprint(sink.digest(), tuple(unknown))


def installed(thing: Any) -> bool:
    """Return whether a class or function comes with Python or a package, so that its name identifies it."""
    return _from_a_package(getattr(thing, "__module__", None) or "builtins")


@functools.lru_cache(maxsize=4096)
def _from_a_package(module: str) -> bool:
    if module.partition(".")[0] in _NAMED:
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(part in path for part in _INSTALLED)


def _word(value: Any) -> bytes | None:
    """The bytes of a value without parts; None if it has parts."""
    if type(value) is _Word:
        return value
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype.str} ".encode() + value.tobytes()
    if type(value) is float:
        return b"float " + struct.pack(">d", value)
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}".encode()
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}".encode()
    if isinstance(value, ModuleType):
        return f"module {value.__name__}".encode()
    if isinstance(value, type | FunctionType) and installed(value):
        return _name(value).encode()
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, type | ModuleType | None):
        return _name(value).encode()
    if isinstance(value, np.ufunc):
        return f"numpy.{value.__name__}".encode()
    return None


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _parts(value: Any) -> Iterator[Any]:
    """The parts of a value, in an order that depends on its content only."""
    if isinstance(value, Tensor):
        yield from (value.dtype, tuple(value.shape), value.layout)
        if value.requires_grad and value.is_leaf:  # it trains: its values change
            return
        numbers = value.detach()
        if numbers.layout == torch.sparse_coo:
            numbers = numbers.coalesce()
            yield from (numbers.indices(), numbers.values())
            return
        dense = numbers if numbers.layout == torch.strided else numbers.to_dense()
        yield _Word(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        yield from (value.dtype.str, tuple(value.shape))
        yield from value.ravel().tolist() if value.dtype.hasobject else [_Word(np.ascontiguousarray(value).tobytes())]
    elif type(value) in (list, tuple, deque):
        yield from (len(value), *value)
    elif isinstance(value, set | frozenset):
        yield from sorted(_Word(fingerprint(part).digest) for part in value)
    elif isinstance(value, dict):
        items = list(value.items())
        for _, index in sorted((fingerprint(key).digest, index) for index, key in enumerate(value)):
            yield from items[index]
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, classmethod | staticmethod) or callable(value) and hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(value, type):
        for base in value.__mro__:
            yield _name(base)
            for name, part in sorted(vars(base).items()) if not installed(base) else ():
                special = name.startswith(("__", "_abc_")) or isinstance(part, MemberDescriptorType)
                if isinstance(part, FunctionType | property | classmethod | staticmethod) or not special:
                    yield from (name, part)
    elif isinstance(value, nn.Module):
        yield from (type(value), value.extra_repr() if installed(type(value)) else "")
        yield {name: part for name, part in vars(value).items() if not name.startswith("_") and name != "training"}
        for held in (value._parameters, value._buffers, value._modules):
            yield dict(held)
        yield from (*value._forward_pre_hooks.values(), *value._forward_hooks.values())
    else:
        taken = value.__reduce_ex__(4)
        whole = (taken, None, None, (), ()) if isinstance(taken, str) else (*taken, None, None, None)[:5]
        yield from (*whole[:3], list(whole[3] or ()), list(whole[4] or ()))


def _of_function(value: FunctionType) -> Iterator[Any]:
    yield from (repr(_code(value.__code__)), value.__defaults__, value.__kwdefaults__)
    for cell in value.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            yield None
    used = names(value.__code__)
    for name in named_globals(value.__code__):
        part = value.__globals__.get(name)
        yield from (name, part)
        if isinstance(part, ModuleType) and not _from_a_package(part.__name__):
            yield from (vars(part)[member] for member in sorted(used & set(vars(part))))


def names(part: CodeType) -> set[str]:
    """All names in a piece of code: of globals, attributes and arguments."""
    inner = [names(constant) for constant in part.co_consts if isinstance(constant, CodeType)]
    return {*part.co_names, *part.co_varnames}.union(*inner)


def _code(part: CodeType) -> tuple[Any, ...]:
    """Parts of a piece of code that decide what it does, without where it is written."""
    constants = [
        _code(constant) if isinstance(constant, CodeType)
        else sorted(map(repr, constant)) if isinstance(constant, frozenset)  # its order differs between processes
        else repr(constant)
        for constant in part.co_consts
    ]  # fmt: skip
    return (part.co_code.hex(), part.co_names, part.co_varnames, constants)
