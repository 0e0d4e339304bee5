"""A digest of whatever a task or a model holds: values, and code with all that it names."""

from __future__ import annotations

import enum
import functools
import hashlib
import struct
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping import named_globals

_NAMED = frozenset({"torch", "fedsw", "numpy"}) | (sys.stdlib_module_names - {"__main__"})
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True)
class Fingerprint:
    """A digest of something, and the kinds of parts that it could not describe: they may be any."""

    digest: bytes
    unknown: tuple[str, ...] = ()


class _Word(bytes):
    """A piece that goes into the digest as it is."""


def fingerprint(*values: Any) -> Fingerprint:
    """The digest of values: equal for equal ones, in every process of one version of Python.

    Functions and classes of the user's own are known by their code, what it closes over, and the globals that it names,
    helpers and constants; those that are installed by their names; weights that train by their shape. An object is
    taken apart as pickle would take it apart, by attributes and slots for most. What comes again is named there.
    """
    sink, unknown = hashlib.sha256(), dict[str, None]()
    seen: dict[int, tuple[int, Any]] = {}  # with the parts, so that no number is of two
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
            except Exception:  # what cannot be taken apart, or code of the user's own that raises when it is
                unknown[type(value).__qualname__] = None
                pending.append(_Word(b"unknown " + _name(type(value)).encode()))
    return Fingerprint(sink.digest(), tuple(unknown))


def installed(thing: Any) -> bool:
    """Say whether a class or function comes with Python or a package: it is known by its name."""
    return _from_a_package(getattr(thing, "__module__", None) or "builtins")


@functools.lru_cache(maxsize=4096)
def _from_a_package(module: str) -> bool:
    if module.partition(".")[0] in _NAMED:
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(part in path for part in _INSTALLED)


def _word(value: Any) -> bytes | None:
    """The digest's word of a value without parts; None if it has some."""
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
    """The parts of a value, in an order that its content decides."""
    if isinstance(value, Tensor):
        yield from _of_tensor(value)
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
        yield from _of_class(value)
    elif isinstance(value, nn.Module):
        yield from _of_module(value)
    else:
        taken = value.__reduce_ex__(4)
        whole = (taken, None, None, (), ()) if isinstance(taken, str) else (*taken, None, None, None)[:5]
        yield from (*whole[:3], list(whole[3] or ()), list(whole[4] or ()))


def _of_tensor(value: Tensor) -> Iterator[Any]:
    yield from (value.dtype, tuple(value.shape), value.layout)
    if value.requires_grad and value.is_leaf:  # it trains, and moves
        return
    whole = value.detach()
    if whole.layout == torch.sparse_coo:
        whole = whole.coalesce()
        yield from (whole.indices(), whole.values())
        return
    dense = whole if whole.layout == torch.strided else whole.to_dense()
    yield _Word(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


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


def _of_class(value: type) -> Iterator[Any]:
    for base in value.__mro__:
        yield _name(base)
        for name, part in sorted(vars(base).items()) if not installed(base) else ():
            special = name.startswith(("__", "_abc_")) or isinstance(part, MemberDescriptorType)
            if isinstance(part, FunctionType | property | classmethod | staticmethod) or not special:
                yield from (name, part)


def _of_module(value: nn.Module) -> Iterator[Any]:
    yield from (type(value), value.extra_repr() if installed(type(value)) else "")
    yield {name: part for name, part in vars(value).items() if not name.startswith("_") and name != "training"}
    for held in (value._parameters, value._buffers, value._modules):
        yield dict(held)
    yield from (*value._forward_pre_hooks.values(), *value._forward_hooks.values())


def names(part: CodeType) -> set[str]:
    """All names in a piece of code: of globals, attributes and arguments."""
    inner = [names(constant) for constant in part.co_consts if isinstance(constant, CodeType)]
    return {*part.co_names, *part.co_varnames}.union(*inner)


def _code(part: CodeType) -> tuple[Any, ...]:
    """Parts of a piece of code that decide what it does, without where it is written."""
    constants = [
        _code(constant) if isinstance(constant, CodeType)
        else sorted(map(repr, constant)) if isinstance(constant, frozenset)  # whose order changes between processes
        else repr(constant)
        for constant in part.co_consts
    ]  # fmt: skip
    return (part.co_code.hex(), part.co_names, part.co_varnames, constants)
