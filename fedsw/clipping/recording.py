"""One forward pass under hooks: what is noted for the tape, and what only a forward pass can show."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from fedsw.clipping.blocks import Block, Call
from fedsw.clipping.coverage import leaves, refuse_strays
from fedsw.clipping.precision import full_precision
from fedsw.clipping.refusals import SEQUENTIAL, UnsupportedModule, check, describe
from fedsw.clipping.rules import RULES
from fedsw.clipping.tape import Tape

# Records are taken in blocks whose widest layer writes about this many floats: what a backward pass leaves
# behind is measured while it is still in the processor's cache, and d backprops never coexist for all n.
_CACHED_FLOATS = {"cpu": 2**18}
_ACCELERATOR_FLOATS = 2**26


def unrehearsed(module: nn.Module, *inputs: Any) -> Tape:
    """`record` without its rehearsal: what mixes records inside a custom forward passes.

    Raises:
        UnsupportedModule: if the module would escape the clip.
        ValueError: if the inputs disagree on n, or the module returns something else than tensors.
    """
    every = check(module)
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    sizes = {value.shape[0] if value.dim() else -1 for value in tensors}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            f"inputs have shapes {[tuple(value.shape) for value in tensors]}; the leading dimension of every "
            "tensor must count the records."
        )
    n = sizes.pop()
    rows = _block_rows(every.values(), tensors)
    parameters = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
    names = {id(parameter): name for name, parameter in parameters.items()}
    blocks: list[Block] = []
    single = False
    with full_precision(tensors[0].device), torch.enable_grad():
        for start in range(0, max(n, 1), rows):
            part = slice(start, min(start + rows, n))
            given = [_rows(value, part, n) if isinstance(value, Tensor) else value for value in inputs]
            with _listening(module, part.stop - start) as calls:
                returned = module(*given)
            single = isinstance(returned, Tensor)
            outputs = _outputs(returned, part.stop - start)
            sources = {call.edge.node: call.source for call in calls}
            live = [each for each in outputs if each.requires_grad]
            refuse_strays(leaves(live, sources), names)
            bare = len(live) == len(calls) == 1 and get_gradient_edge(live[0]) == calls[0].edge
            blocks.append(Block(part, outputs, tuple(calls), bare))
    return Tape(parameters, blocks, single=single)


def _rows(value: Tensor, part: slice, n: int) -> Tensor:
    """Some of the n records, cut from any graph."""
    return (value if part == slice(0, n) else value[part]).detach()


def _block_rows(parameters: Collection[Tensor], tensors: Sequence[Tensor]) -> int:
    """Records per block: a cacheful of the widest layer, but enough of them to pay for a sum of length r."""
    widths = [value.shape[1:].numel() for value in tensors] + [p.shape[0] for p in parameters if p.dim()]
    r = sum(p.numel() for p in parameters if p.requires_grad)
    floats = _CACHED_FLOATS.get(tensors[0].device.type, _ACCELERATOR_FLOATS)
    return max(floats // max(*widths, 1), math.isqrt(r) // 4, 1)


@contextmanager
def _listening(module: nn.Module, n: int) -> Iterator[list[Call]]:
    """Collect the calls of the supported layers below `module` during a forward pass of n records."""
    calls: list[Call] = []
    seen: set[int] = set()
    handles = []
    for name, layer in module.named_modules():
        if type(layer) in RULES:
            # Before any hook of the user, which may replace the output by something computed from it.
            hook = _hook(describe(name, layer), n, calls, seen)
            handles.append(layer.register_forward_hook(hook, prepend=True))
        elif isinstance(layer, SEQUENTIAL):
            handles.append(layer.register_forward_pre_hook(_batched(describe(name, layer)), with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _hook(title: str, n: int, calls: list[Call], seen: set[int]) -> Any:
    def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        rule = RULES[type(layer)]
        a = args[0] if args else None
        if not isinstance(a, Tensor):
            raise UnsupportedModule(f"{title} got its input by keyword; pass it by position.")
        if a.dim() < rule.least_dims(layer) or a.shape[0] != n or output.shape[0] != n:
            raise UnsupportedModule(
                f"{title} maps {tuple(a.shape)} to {tuple(output.shape)} for {n} records: the leading "
                "dimension must count the records, and nothing else may be computed along it. Keep records "
                "first."
            )
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return
        if id(layer) in seen:
            raise UnsupportedModule(
                f"{title} is called twice in one forward pass: its per-sample gradient has cross terms "
                "between the calls. Use a layer of its own for each call, or one call on a sequence."
            )
        seen.add(id(layer))
        if output.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModule(f"{title} returns {output.dtype}; use float32 or float64 throughout.")
        if not output.requires_grad:
            raise UnsupportedModule(
                f"{title} runs without gradient (torch.no_grad, re-entrant checkpointing), so its parameters "
                "would never train. Freeze it with requires_grad_(False), or use use_reentrant=False."
            )
        edge = get_gradient_edge(output)
        calls.append(Call(title, layer, rule, a.detach(), a._version, a.grad_fn, edge))

    return note


def _batched(title: str) -> Any:
    def look(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        shapes = [tuple(value.shape) for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not shapes or len(shapes[0]) != 3:
            raise UnsupportedModule(
                f"{title} got an input of shape {shapes[0] if shapes else 'unknown'} and would read the records as one "
                "sequence; give it (records, sites, features)."
            )

    return look


def _outputs(returned: Any, n: int) -> tuple[Tensor, ...]:
    outputs = (returned,) if isinstance(returned, Tensor) else returned
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(each, Tensor) for each in outputs):
        raise ValueError(
            f"the module returned {type(returned).__name__}; it must return a tensor or a tuple of tensors."
        )
    for output in outputs:
        if not output.dim() or output.shape[0] != n:
            raise UnsupportedModule(
                f"the module returned shape {tuple(output.shape)} for {n} records: every output must lead "
                "with the records. Return per-record values, not their sum or mean."
            )
    return tuple(outputs)
