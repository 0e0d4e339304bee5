"""Objects put back as they were before a pass on private records: a pass leaves nothing of a record in a module.

What a forward pass may change is found by walking from the objects: tensors with their memory, attributes, containers,
class attributes of the user's own classes, what functions (hooks, forwards) close over, and the globals that they name.
"""

from __future__ import annotations

import copy
import datetime
import dis
import enum
import functools
import inspect
import logging
import re
import sys
import weakref
from abc import ABC
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Generic, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented)}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, re.Pattern, CodeType}
)
"""Types of values that nothing changes."""
_FIXED = (
    type, ModuleType, BuiltinFunctionType, enum.Enum, np.generic, np.dtype, PurePath, logging.Logger, weakref.ref,
    datetime.date, datetime.time, datetime.timedelta, property, classmethod, staticmethod,
)  # fmt: skip
_OWN_STATE = (dict, list, deque, set)
_SHIPPED = frozenset({"torch", "fedsw", "numpy"}) | (sys.stdlib_module_names - {"__main__"})
"""Packages known to store no record in globals, closures or class attributes of their functions and classes."""
_DICTS = frozenset({dict, OrderedDict})
_ABSENT = object()
_GLOBAL = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
_LARGE = 2**16  # bytes, from which memory of an earlier copy is kept
_IMMUTABLE_TYPE, _HEAP_TYPE = 1 << 8, 1 << 9  # Py_TPFLAGS_IMMUTABLETYPE and Py_TPFLAGS_HEAPTYPE
_FOREIGN = ("instancemethod", "cython_function_or_method")
_BARE = (object, Generic, Protocol, ABC)
"""Bases without a state."""
_Spare = dict[tuple[torch.device, int], list[torch.UntypedStorage]]
_SPARE: weakref.WeakKeyDictionary[nn.Module, _Spare] = weakref.WeakKeyDictionary()
"""Memory of a module's earlier copies, by device and size."""


@contextmanager
def unchanged(*things: Any) -> Iterator[None]:
    """Put modules, and whatever else a pass on private records runs through, back as they were before it.

    Guarantee: however a forward pass changes buffers, parameters, attributes, or what hooks close over, nothing of it
    outlasts the pass. It is done always, whatever changed, so that nothing branches on a record's value. What code
    keeps outside of what it can reach, in a file for one, stays.

    Raises:
        UnsupportedModule: for what cannot be copied, and so not be put back, by its path; before the pass.
    """
    with kept(*things):
        yield


@contextmanager
def kept(*things: Any) -> Iterator[StateBefore]:
    """`unchanged`, with the state, for passes in several pieces of which none may meet what another left."""
    state = StateBefore(*things)
    try:
        yield state
    finally:
        state.put_back()
        state.end()


class UnsupportedModule(ValueError):
    """The clip cannot measure this module's per-sample Jacobians; the error names the module and a substitute."""


class _Copied:
    """A value known by a copy only: it is made by other code than Python's, and cannot be put back from within."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def fresh(self) -> Any:
        return copy.deepcopy(self._value)


class StateBefore:
    """All that a pass may change of some things, as it is now."""

    def __init__(self, *things: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        self._empty: list[dict[Any, Any]] = []
        self._filled: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._seen: dict[int, Any] = {}  # which keeps them alive, so that no number comes twice
        self._memory: dict[tuple[torch.device, int], tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._spare = _SPARE.setdefault(things[0], {}) if things and isinstance(things[0], nn.Module) else {}
        self._pending: list[tuple[Any, str, bool]] = [(thing, type(thing).__name__, True) for thing in things]
        while self._pending:
            self._take(*self._pending.pop())

    def put_back(self) -> None:
        """Bring everything to what it was; may be called again."""
        with torch.no_grad():
            for storage, content in self._memory.values():
                if storage.nbytes() != content.nbytes():
                    storage.resize_(content.nbytes())
                storage.copy_(content)
            for empty in self._empty:
                empty.clear()
            for filled, held in self._filled:
                if list(filled) != list(held):  # in another order, too
                    filled.clear()
                for key, part in held.items():
                    filled[key] = part.fresh() if type(part) is _Copied else part
            for undo in self._undo:
                undo()

    def apart(self, value: Tensor) -> Tensor:
        """The tensor, or a copy of one that lies in memory that is put back."""
        if value.layout != torch.strided or value.is_meta:
            return value
        try:
            memory = value.device, value.untyped_storage().data_ptr()
        except NotImplementedError:  # inside a transform of torch.func, which hides where a tensor lies
            return value.clone()
        return value.clone() if memory in self._memory else value

    def end(self) -> None:
        """Keep the copies' memory for the next pass: fresh pages cost more than copying into them."""
        for _, content in self._memory.values():
            if content.nbytes() >= _LARGE:
                self._spare.setdefault((content.device, content.nbytes()), []).append(content)
        self._memory.clear()

    def _take(self, value: Any, path: str, strict: bool) -> None:
        handler = _handler(cast(Hashable, type(value)))
        if handler is not None and id(value) not in self._seen:
            self._seen[id(value)] = value
            handler(self, value, path, strict)

    def _bound(self, value: MethodType, path: str, strict: bool) -> None:
        self._next(value.__self__, path, strict)
        self._next(value.__func__, path, strict)

    def _partial(self, value: functools.partial[Any], path: str, strict: bool) -> None:
        for part in (value.func, value.args, value.keywords):
            self._next(part, path, strict)

    def _fixed(self, value: Any, path: str, strict: bool) -> None:
        """A container that stays as it is, though its parts may not."""
        for part in value.values() if isinstance(value, MappingProxyType) else value:
            self._next(part, path, strict)

    def _next(self, value: Any, path: str, strict: bool) -> None:
        if type(value) not in _PLAIN:
            self._pending.append((value, path, strict))

    def _held(self, value: Any, path: str, strict: bool) -> Any:
        """Return what to put back for a part of a container: itself, and its state is taken; or a copy."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, tuple) and any(_opaque(part) for part in value):
            return _copy_of(value, path) if strict else value
        if _opaque(value):
            return _copy_of(value, path) if strict else value
        self._next(value, path, strict)
        return value

    def _tensor(self, value: Tensor, path: str, strict: bool) -> None:
        if nn.parameter.is_lazy(value):
            return
        if value.layout != torch.strided or value.is_meta:
            before = value.detach().clone()
            self._undo.append(lambda: setattr(value, "data", before.clone()))
            return
        alias, storage = value.detach(), value.untyped_storage()
        address = value.device, storage.data_ptr()
        if address not in self._memory and storage.nbytes():
            if free := self._spare.get((storage.device, storage.nbytes())):
                content = free.pop()
                content.copy_(storage)
            else:
                content = cast(torch.UntypedStorage, storage.clone())  # type: ignore[no-untyped-call]
            self._memory[address] = storage, content
        if not value.is_inference():
            self._undo.append(lambda: setattr(value, "data", alias))
        if value.is_leaf:
            gradient = value.grad
            self._undo.append(lambda: setattr(value, "grad", gradient))
            self._next(gradient, path, strict)
        self._dict(vars(value), path, strict)

    def _array(self, value: np.ndarray[Any, Any], path: str, strict: bool) -> None:
        if value.dtype == object:
            for part in value.flat:
                self._next(part, path, strict)
        if value.flags.writeable:
            before = value.copy()
            self._undo.append(lambda: np.copyto(value, before))

    def _dict(self, value: dict[Any, Any], path: str, strict: bool) -> None:
        held = dict(value)
        self._filled.append((value, held))
        for key, part in held.items():
            if type(part) in _PLAIN:
                continue
            if type(part) in _DICTS and not part:  # as most of a layer's are
                self._empty.append(part)
                continue
            held[key] = self._held(part, f"{path}.{key}", strict)

    def _list(self, value: list[Any] | deque[Any], path: str, strict: bool) -> None:
        held = [self._held(part, path, strict) for part in value]

        def refill() -> None:
            if isinstance(value, list):  # at once, so that no other thread sees it without its parts
                value[:] = [_fresh(part) for part in held]
                return
            value.clear()
            value.extend(_fresh(part) for part in held)

        self._undo.append(refill)

    def _set(self, value: set[Any], path: str, strict: bool) -> None:
        before = set(value)

        def refill() -> None:
            value.intersection_update(before)
            value.update(before)

        self._undo.append(refill)

    def _function(self, value: FunctionType, path: str, strict: bool) -> None:
        """Take what a user's function closes over; the globals that it names are put back where they can be."""
        if _shipped(value):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._cell(cell, f"{path}, which closes over {name}", strict)
        self._next(value.__defaults__, path, strict)
        self._next(value.__kwdefaults__, path, strict)
        self._dict(vars(value), path, strict)
        spaces = value.__globals__
        for name in named_globals(value.__code__):
            if name not in spaces:
                self._undo.append(functools.partial(spaces.pop, name, None))
                continue
            part = spaces[name]
            self._undo.append(functools.partial(spaces.__setitem__, name, part))
            self._next(part, path, False)

    def _cell(self, cell: CellType, path: str, strict: bool) -> None:
        if id(cell) in self._seen:
            return
        self._seen[id(cell)] = cell
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return
        held = self._held(content, path, strict)
        self._undo.append(lambda: setattr(cell, "cell_contents", _fresh(held)))

    def _object(self, value: Any, path: str, strict: bool) -> None:
        if hasattr(value, "__dict__"):
            self._dict(vars(value), path, strict)
        kind = type(value)
        if not (_shipped(kind) or kind.__flags__ & _IMMUTABLE_TYPE):  # objects of those types take no other class
            self._undo.append(lambda: object.__setattr__(value, "__class__", kind))
        for name, slot in _slots(cast(Hashable, kind)):
            self._slot(value, slot, f"{path}.{name}", strict)
        for base in kind.__mro__:
            if not _shipped(base) and id(base) not in self._seen:
                self._seen[id(base)] = base
                self._class(base, path)

    def _slot(self, value: Any, slot: MemberDescriptorType, path: str, strict: bool) -> None:
        try:
            part = slot.__get__(value)
        except AttributeError:

            def empty() -> None:
                if getattr(value, slot.__name__, _ABSENT) is not _ABSENT:
                    slot.__delete__(value)

            self._undo.append(empty)
            return
        held = self._held(part, path, strict)
        try:
            slot.__set__(value, part)
        except AttributeError:  # it cannot be set, and so not change
            return
        self._undo.append(lambda: slot.__set__(value, _fresh(held)))

    def _class(self, kind: type, path: str) -> None:
        for name, part in list(vars(kind).items()):
            if isinstance(part, FunctionType):
                self._next(part, f"{path}.{name}", False)
            elif not name.startswith("__") and isinstance(part, (Tensor, np.ndarray, *_OWN_STATE)):
                self._next(part, f"{path}.{name}", True)
        data = {name: part for name, part in vars(kind).items() if _is_data(name, part)}

        def refill() -> None:
            for name in [name for name, part in vars(kind).items() if _is_data(name, part) and name not in data]:
                delattr(kind, name)
            for name, part in data.items():
                if vars(kind).get(name, _ABSENT) is not part:
                    setattr(kind, name, part)

        self._undo.append(refill)


_HANDLERS: tuple[tuple[type | tuple[type, ...], Any], ...] = (
    (Tensor, StateBefore._tensor),
    (np.ndarray, StateBefore._array),
    (dict, StateBefore._dict),
    ((list, deque), StateBefore._list),
    ((tuple, frozenset, MappingProxyType), StateBefore._fixed),
    (set, StateBefore._set),
    (FunctionType, StateBefore._function),
    (MethodType, StateBefore._bound),
    (functools.partial, StateBefore._partial),
    (nn.Module, StateBefore._object),
)


@functools.lru_cache(maxsize=4096)
def _handler(cached: Hashable) -> Any:
    """The method of `StateBefore` that takes values of a type; None if nothing of them changes."""
    kind = cast(type, cached)
    if kind in _PLAIN or issubclass(kind, _FIXED):
        return None
    for kinds, handler in _HANDLERS:
        if issubclass(kind, kinds):
            return handler
    return None if _shipped(kind) else StateBefore._object


@functools.lru_cache(maxsize=4096)
def named_globals(code: CodeType) -> tuple[str, ...]:
    """Names of globals in a piece of code, and in functions that it makes."""
    names = [str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL]
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in named_globals(part)]
    return tuple(dict.fromkeys((*names, *inner)))


def _fresh(held: Any) -> Any:
    return held.fresh() if type(held) is _Copied else held


def _copy_of(value: Any, path: str) -> _Copied:
    try:
        return _Copied(copy.deepcopy(value))
    except Exception as fault:  # whatever it is
        raise UnsupportedModule(
            f"{path} is a {type(value).__qualname__}, of which no copy can be made ({type(fault).__name__}: {fault}), "
            "so that what a pass on private records leaves in it could not be taken out again. Keep it elsewhere"
        ) from None


@functools.lru_cache(maxsize=4096)
def _slots(kind: Hashable) -> tuple[tuple[str, MemberDescriptorType], ...]:
    return tuple(
        (name, slot)
        for base in cast(type, kind).__mro__
        if not _shipped(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    )


def _is_data(name: str, part: Any) -> bool:
    return not (name.startswith("__") or isinstance(part, FunctionType | MemberDescriptorType) or callable(part)
                or inspect.isdatadescriptor(part) or name.startswith("_abc_"))  # fmt: skip


def _shipped(thing: Any) -> bool:
    """Say whether a class or function is of a package that keeps nothing of a record outside its objects."""
    return _in_shipped(getattr(thing, "__module__", None))


@functools.lru_cache(maxsize=4096)
def _in_shipped(module: Any) -> bool:
    return str(module or "").partition(".")[0] in _SHIPPED


def _opaque(value: Any) -> bool:
    """Say whether a value has a state of its own that is not reached by attributes, and is known by a copy only."""
    if type(value) in _PLAIN or isinstance(value, _FIXED):
        return False
    return _kind_opaque(cast(Hashable, type(value)))


@functools.lru_cache(maxsize=4096)
def _kind_opaque(cached: Hashable) -> bool:
    kind = cast(type, cached)
    if issubclass(kind, Tensor | np.ndarray | tuple | frozenset | FunctionType | MethodType | functools.partial):
        return False
    if issubclass(kind, MappingProxyType):
        return False
    if issubclass(kind, (*_OWN_STATE, nn.Module)):
        return False
    if kind.__module__.partition(".")[0] == "fedsw":
        return False
    if _shipped(kind):
        return True
    return any(_in_c(base) for base in kind.__mro__ if base not in _BARE)


def _in_c(kind: type) -> bool:
    """True if a class is written in another language than Python: it is not a heap type, or has methods of another."""
    return not kind.__flags__ & _HEAP_TYPE or any(
        type(part).__name__ in _FOREIGN
        or getattr(part, "__objclass__", None) is kind
        and not (isinstance(part, MemberDescriptorType) or inspect.isgetsetdescriptor(part))
        for part in vars(kind).values()
    )
