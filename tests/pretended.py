"""A device that is not there: the processor computes, and every crossing between it and the host is counted.

Tensors of the pretended device hold an ordinary tensor, say that they are elsewhere (on torch's device `meta`, which
holds no numbers of its own), and compute with what they hold: the numbers of a run are real. What an accelerator has to
wait for is seen by torch's dispatcher: copies between the two, scalars that are read, and shapes that follow from
values. What an accelerator refuses, arithmetic between its tensors and the host's, is refused here too.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedsw.federation import flower
from fedsw.federation.engines.inprocess import InProcessGrid

ELSEWHERE = torch.device("meta")

_aten: Any = torch.ops.aten
_SHAPED_BY_VALUES = frozenset({"nonzero", "masked_select", "bincount", "repeat_interleave", "argwhere"})


class There(Tensor):
    """A tensor of the pretended device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=ELSEWHERE,
        )  # fmt: skip
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        """Nothing more; `__new__` keeps what is held."""

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a pretended tensor, where nobody counts")


@dataclass
class Seen:
    """What crossed in one part of a run.

    Attributes:
        up: shapes of what the host sent to the device, in order.
        down: shapes of what came back.
        reads: operations that gave the host a number or a truth value.
        waits: operations whose result's shape follows from values.
    """

    up: list[tuple[int, ...]] = field(default_factory=list)
    down: list[tuple[int, ...]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many of each."""
        return len(self.up), len(self.down), len(self.reads), len(self.waits)


class Pretended(TorchDispatchMode):
    """While it is `entered`, this thread's tensors on `ELSEWHERE` are real, and what crosses is counted by part."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Seen] = defaultdict(Seen)
        self._part, self._single = "outside", set[Any]()

    @contextmanager
    def entered(self) -> Iterator[Pretended]:
        """Pretend and count meanwhile.

        Of a list, torch makes a tensor on the device without a copy that the dispatcher sees, and it knows no autocast
        there: both are arranged here.
        """
        with ExitStack() as stack:
            for name in ("tensor", "as_tensor"):
                stack.enter_context(patch.object(torch, name, _sent(getattr(torch, name))))
            enabled = torch.is_autocast_enabled
            known = patch.object(torch, "is_autocast_enabled", lambda kind: kind != ELSEWHERE.type and enabled(kind))
            stack.enter_context(known)
            autocast = torch.autocast
            there = patch.object(torch, "autocast", lambda kind, **more: autocast(_known(kind), **more))
            stack.enter_context(there)
            stack.enter_context(self)
            yield self

    @contextmanager
    def part(self, name: str) -> Iterator[Seen]:
        """Count for that part meanwhile."""
        before, self._part = self._part, name
        try:
            yield self.seen[name]
        finally:
            self._part = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, seen, name = dict(kwargs or {}), self.seen[self._part], func.overloadpacket.__name__
        if func not in self._single:
            with self:  # in inference mode, operations that are made of others arrive whole
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
            self._single.add(func)
        leaves = [each for each in _leaves((args, kwargs)) if isinstance(each, Tensor)]
        _refuse_empty(name, leaves)
        device = kwargs.get("device")
        there = any(isinstance(each, There) for each in leaves)
        if name in ("_to_copy", "copy_"):
            self._copied(seen, name, args, device)
            there = isinstance(args[0], There) if device is None else torch.device(device) == ELSEWHERE
        elif name in ("index", "index_put_", "index_put") and there:
            self._indexed(seen, name, args[1])
        elif there:
            _refuse_mixtures(name, leaves)
            if name in _SHAPED_BY_VALUES or "unique" in name:
                seen.waits.append(name)
        if device is not None:
            there = torch.device(device) == ELSEWHERE
            kwargs["device"] = "cpu"
        wrappers = {id(each.held): each for each in leaves if isinstance(each, There)}
        found = func(*_mapped(_held, args), **_mapped(_held, kwargs))
        if wrappers and any(isinstance(each, bool | int | float) for each in _leaves(found)):
            seen.reads.append(name)
        return _mapped(lambda value: _chosen(value, wrappers, there), found)

    def _copied(self, seen: Seen, name: str, args: Any, device: Any) -> None:
        """Note a copy to the other side."""
        into, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
        if into is not None:
            there = isinstance(into, There)
        else:
            there = isinstance(source, There) if device is None else torch.device(device) == ELSEWHERE
        if there and not isinstance(source, There):
            seen.up.append(tuple(source.shape))
        if not there and isinstance(source, There):
            seen.down.append(tuple(source.shape))

    def _indexed(self, seen: Seen, name: str, indices: Any) -> None:
        """A mask's true values are counted before anything else happens; an index of the host is sent."""
        for index in indices:
            if index is not None and not isinstance(index, There):
                seen.up.append(tuple(index.shape))
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                seen.waits.append(name)


def _sent(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`make`, with what it makes on the pretended device sent there from the host."""

    def made(values: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or isinstance(values, There) or torch.device(device) != ELSEWHERE:
            return make(values, *args, **kwargs) if device is None else make(values, *args, device=device, **kwargs)
        return make(values, *args, **kwargs).to(device)

    return made


def _known(kind: str) -> str:
    return "cpu" if kind == ELSEWHERE.type else kind


def _chosen(value: Any, wrappers: dict[int, There], there: bool) -> Any:
    if not isinstance(value, Tensor) or not there:
        return value
    return wrappers[id(value)] if id(value) in wrappers else There(value)


def _leaves(tree: Any) -> Iterator[Any]:
    """What lists, tuples and dicts of an operation hold; torch's own `_pytree` takes several times as long."""
    if isinstance(tree, list | tuple | dict):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(each)
    else:
        yield tree


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same lists, tuples and dicts of changed leaves."""
    if isinstance(tree, dict):
        return {name: _mapped(change, each) for name, each in tree.items()}
    return type(tree)([_mapped(change, each) for each in tree]) if isinstance(tree, list | tuple) else change(tree)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, There) else value


def _refuse_empty(name: str, leaves: list[Tensor]) -> None:
    """Torch itself made a tensor on the device, of a list of numbers: nobody knows what it holds."""
    if any(each.device == ELSEWHERE and not isinstance(each, There) for each in leaves):
        raise AssertionError(f"{name} of a tensor that was made on the device out of sight, of a list as an index?")


def _refuse_mixtures(name: str, leaves: list[Tensor]) -> None:
    """Only numbers without a dimension may come from the host, as on an accelerator."""
    strangers = [tuple(each.shape) for each in leaves if not isinstance(each, There) and each.dim() > 0]
    if strangers:
        raise AssertionError(f"{name} of tensors of the device and of the host, shapes {strangers}")


class DirectGrid(InProcessGrid):
    """Answers messages in the thread that sends them, and counts what crosses at the nodes under the message's type."""

    def __init__(self, app: Any, configs: Any, pretended: Pretended) -> None:
        super().__init__(app, configs)
        self._pretended, self._waiting = pretended, dict[str, Any]()

    def push_messages(self, messages: Any) -> list[str]:
        """Answer all of them."""
        ids = []
        for message in messages:
            ids.append(secrets.token_hex(16))
            flower.number(message, ids[-1])
            with self._pretended.part(message.metadata.message_type):
                reply = self._answer(message)
            flower.number(reply, "r" + ids[-1])
            self._waiting[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Any) -> list[Any]:
        """The answers."""
        return [self._waiting.pop(each) for each in list(message_ids)]
