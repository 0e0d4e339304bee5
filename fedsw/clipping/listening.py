"""What is noted of a module's layers while it runs forward, and what is refused of them there."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from fedsw.clipping.blocks import Call
from fedsw.clipping.pooling import applies, means
from fedsw.clipping.refusals import SEQUENTIAL, UnsupportedModule, describe
from fedsw.clipping.rules import RULES, Rule
from fedsw.clipping.rules.attention import PROJECTION, Projection, attended, projections


@contextmanager
def listening(module: nn.Module, n: int) -> Iterator[list[Call]]:
    """Collect the calls of the supported layers below `module` during a forward pass of n records.

    Hooks see the calls of most layers. Attention that trains gets another forward pass for as long, of the same
    values, since its own applies its weights where no hook sees them; small means get one that is faster.
    """
    notes = Notes(n)
    handles: list[RemovableHandle] = []
    replaced: list[nn.Module] = []
    try:
        for name, layer in module.named_modules():
            title = describe(name, layer)
            if type(layer) in RULES:
                # Before any hook of the user, which may replace the output by something computed from it.
                handles.append(layer.register_forward_hook(_hook(title, notes), prepend=True))
            elif isinstance(layer, SEQUENTIAL):
                handles.append(layer.register_forward_pre_hook(_batched(title), with_kwargs=True))
            if type(layer) is nn.MultiheadAttention and any(each.requires_grad for each in layer.parameters()):
                vars(layer)["forward"] = _attention(title, layer, notes)
                replaced.append(layer)
            elif applies(layer):
                vars(layer)["forward"] = functools.partial(means, layer)
                replaced.append(layer)
        yield notes.calls
    finally:
        for handle in handles:
            handle.remove()
        for layer in replaced:
            del vars(layer)["forward"]


class Notes:
    """The calls of one forward pass of n records, in their order."""

    def __init__(self, n: int) -> None:
        self.calls: list[Call] = []
        self._n = n
        self.seen: set[int] = set()

    def take(
        self, title: str, layer: nn.Module | Projection, rule: Rule, a: Tensor, output: Tensor, *, trained: bool
    ) -> None:
        """Note that a layer made this output (n, ...) of this input (n, ...), unless nothing in it is trained."""
        n = self._n
        if a.dim() < rule.least_dims(layer) or a.shape[0] != n or output.shape[0] != n:
            raise UnsupportedModule(
                f"{title} maps {tuple(a.shape)} to {tuple(output.shape)} for {n} records: the leading "
                "dimension must count the records, and nothing else may be computed along it. Keep records "
                "first."
            )
        if not trained:
            return
        if id(layer) in self.seen:
            raise UnsupportedModule(
                f"{title} is called twice in one forward pass: its per-sample gradient has cross terms "
                "between the calls. Use a layer of its own for each call, or one call on a sequence."
            )
        self.seen.add(id(layer))
        if output.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModule(f"{title} returns {output.dtype}; use float32 or float64 throughout.")
        if not output.requires_grad:
            raise UnsupportedModule(
                f"{title} runs without gradient (torch.no_grad, re-entrant checkpointing), so its parameters "
                "would never train. Freeze it with requires_grad_(False), or use use_reentrant=False."
            )
        edge = get_gradient_edge(output)
        self.calls.append(Call(title, layer, rule, a.detach(), a._version, a.grad_fn, edge))


def _hook(title: str, notes: Notes) -> Any:
    def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        a = args[0] if args else None
        if not isinstance(a, Tensor):
            raise UnsupportedModule(f"{title} got its input by keyword; pass it by position.")
        trained = any(parameter.requires_grad for parameter in layer.parameters())
        notes.take(title, layer, RULES[type(layer)], a, output, trained=trained)

    return note


def _attention(title: str, layer: nn.MultiheadAttention, notes: Notes) -> Any:
    parts = projections(layer)

    def project(which: int, a: Tensor) -> Tensor:
        part = parts[which]
        output = F.linear(a, part.weight, part.bias)
        trained = part.weight.requires_grad or part.bias is not None and part.bias.requires_grad
        notes.take(title, part, PROJECTION, a, output, trained=trained)
        return output

    return functools.partial(attended, layer, project)


def _batched(title: str) -> Any:
    def look(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        shapes = [tuple(value.shape) for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not shapes or len(shapes[0]) != 3:
            raise UnsupportedModule(
                f"{title} got an input of shape {shapes[0] if shapes else 'unknown'} and would read the records as one "
                "sequence; give it (records, sites, features)."
            )

    return look
