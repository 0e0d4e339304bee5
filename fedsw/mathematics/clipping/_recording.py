"""One forward pass, block by block of records: what is noted for the tape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from fedsw.mathematics.clipping._gram import Block, Call
from fedsw.mathematics.clipping._tape import Tape
from fedsw.mathematics.clipping.clip import full_precision
from fedsw.mathematics.clipping.refusals import (
    SEQUENTIAL,
    OutputForm,
    UnsupportedModule,
    check,
    describe,
    leaves,
    refuse_strays,
)
from fedsw.mathematics.clipping.rules import RULES, Rule
from fedsw.mathematics.clipping.rules._attention import PROJECTION, Projection, attended, projections

# Records are taken in blocks whose widest layer writes about this many floats: what a backward pass leaves
# behind is measured while it is still in the processor's cache, and d backprops never coexist for all n. A layer that
# reads vectors writes what its width says; one that reads images or sequences writes a multiple of it.
_CACHED_VECTORS, _CACHED_SITES = 2**19, 2**18
_ACCELERATOR_FLOATS = 2**26


def unrehearsed(module: nn.Module, *inputs: Any) -> Tape:
    """`record` without its rehearsal: what mixes records inside a custom forward passes."""
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
    form: OutputForm | None = None
    with full_precision(tensors[0].device), torch.enable_grad():
        for start in range(0, max(n, 1), rows):
            part = slice(start, min(start + rows, n))
            arguments = [value[part].detach() if isinstance(value, Tensor) else value for value in inputs]
            with listening(module, part.stop - start) as calls:
                returned = module(*arguments)
            form = form or OutputForm.of(returned)
            outputs = form.tensors(returned, part.stop - start)
            sources = {call.edge.node: call.source for call in calls}
            live = [output for output in outputs if output.requires_grad]
            refuse_strays(leaves(live, sources), names)
            bare = len(live) == len(calls) == 1 and get_gradient_edge(live[0]) == calls[0].edge
            blocks.append(Block(part, outputs, tuple(calls), bare))
    return Tape(parameters, blocks, form or OutputForm())


def _block_rows(parameters: Collection[Tensor], tensors: Sequence[Tensor]) -> int:
    """Records per block: a cacheful of the widest layer, but enough of them to pay for a sum of length r."""
    widths = [value.shape[1:].numel() for value in tensors] + [p.shape[0] for p in parameters if p.dim()]
    r = sum(p.numel() for p in parameters if p.requires_grad)
    vectors = all(value.dim() < 3 for value in (*tensors, *parameters))
    cached = _CACHED_VECTORS if vectors else _CACHED_SITES
    floats = cached if tensors[0].device.type == "cpu" else _ACCELERATOR_FLOATS
    return max(floats // max(*widths, 1), math.isqrt(r) // 4, 1)


@contextmanager
def listening(module: nn.Module, n: int) -> Iterator[list[Call]]:
    """Collect the calls of the supported layers below `module` during a forward pass of n records.

    Attention that trains gets another forward pass for as long, of the same values, since its own applies its weights
    where no hook sees them; small means get one that is faster.
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
            if type(layer) is nn.MultiheadAttention and any(
                parameter.requires_grad for parameter in layer.parameters()
            ):
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
    def note(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        a = args[0] if args else None
        if not isinstance(a, Tensor):
            raise UnsupportedModule(f"{title} got its input by keyword; pass it by position.")
        if not isinstance(output, Tensor):
            returned = type(output).__name__
            raise UnsupportedModule(f"{title} returns a {returned}; a layer with a rule returns one tensor.")
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


_MOST = 16  # numbers in a window, each of which takes one pass over the output


def applies(layer: nn.Module) -> bool:
    """Say whether the layer is a mean over small windows that do not overlap, as torch computes it."""
    return (
        type(layer) is nn.AvgPool2d
        and "forward" not in vars(layer)
        and _pair(layer.kernel_size) == _pair(layer.stride)
        and _pair(layer.padding) == (0, 0)
        and math.prod(_pair(layer.kernel_size)) <= _MOST
        and not layer.ceil_mode
        and layer.divisor_override is None
    )


def means(layer: nn.AvgPool2d, images: Tensor) -> Tensor:
    """Output of the layer for images (n, C, H, W), up to the order of its sums; torch's own for anything else."""
    kernel = _pair(layer.kernel_size)
    if images.dim() != 4 or images.shape[2] < kernel[0] or images.shape[3] < kernel[1]:
        return nn.AvgPool2d.forward(layer, images)
    result: Tensor = _Means.apply(images, kernel)  # type: ignore[no-untyped-call]
    return result


class _Means(torch.autograd.Function):
    """Keeps its input as torch's own does, though nothing reads it: a checkpointed layer runs torch's own again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(images)
        ctx.kernel, ctx.shape = kernel, images.shape
        first, *others = _taps(images, kernel)
        total = first.clone(memory_format=torch.contiguous_format)
        for tap in others:
            total.add_(tap)
        return total.div_(math.prod(kernel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors  # which lets a checkpoint run
        (gradient,) = gradients
        whole = all(size % k == 0 for size, k in zip(ctx.shape[2:], ctx.kernel, strict=True))
        pulled = (gradient.new_empty if whole else gradient.new_zeros)(ctx.shape)
        share = gradient / math.prod(ctx.kernel)
        for tap in _taps(pulled, ctx.kernel):
            tap.copy_(share)
        return pulled, None


def _taps(images: Tensor, kernel: tuple[int, int]) -> Iterator[Tensor]:
    """The numbers at each place of the windows, as views (n, C, H // kernel, W // kernel)."""
    high, wide = kernel
    rows, columns = images.shape[2] // high * high, images.shape[3] // wide * wide
    for i, j in itertools.product(range(high), range(wide)):
        yield images[:, :, i:rows:high, j:columns:wide]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
