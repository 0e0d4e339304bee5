"""One forward pass, block by block of records: what is noted for the tape."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from fedsw.clipping.blocks import Block
from fedsw.clipping.coverage import leaves, refuse_strays
from fedsw.clipping.listening import listening
from fedsw.clipping.outputs import Form
from fedsw.clipping.precision import full_precision
from fedsw.clipping.refusals import check
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
    form: Form | None = None
    with full_precision(tensors[0].device), torch.enable_grad():
        for start in range(0, max(n, 1), rows):
            part = slice(start, min(start + rows, n))
            given = [_rows(value, part, n) if isinstance(value, Tensor) else value for value in inputs]
            with listening(module, part.stop - start) as calls:
                returned = module(*given)
            form = form or Form.of(returned)
            outputs = form.tensors(returned, part.stop - start)
            sources = {call.edge.node: call.source for call in calls}
            live = [each for each in outputs if each.requires_grad]
            refuse_strays(leaves(live, sources), names)
            bare = len(live) == len(calls) == 1 and get_gradient_edge(live[0]) == calls[0].edge
            blocks.append(Block(part, outputs, tuple(calls), bare))
    return Tape(parameters, blocks, form or Form())


def _rows(value: Tensor, part: slice, n: int) -> Tensor:
    """Some of the n records, cut from any graph."""
    return (value if part == slice(0, n) else value[part]).detach()


def _block_rows(parameters: Collection[Tensor], tensors: Sequence[Tensor]) -> int:
    """Records per block: a cacheful of the widest layer, but enough of them to pay for a sum of length r."""
    widths = [value.shape[1:].numel() for value in tensors] + [p.shape[0] for p in parameters if p.dim()]
    r = sum(p.numel() for p in parameters if p.requires_grad)
    floats = _CACHED_FLOATS.get(tensors[0].device.type, _ACCELERATOR_FLOATS)
    return max(floats // max(*widths, 1), math.isqrt(r) // 4, 1)
