"""What a recorded forward pass leaves behind: the calls of its layers, in blocks of consecutive records."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from fedsw.clipping.rules import Rule
from fedsw.clipping.rules.attention import Projection


@dataclass(frozen=True)
class Call:
    """One call of one layer: its input, and the place in the graph where its output was made.

    The edge is taken before anything can overwrite the output (an in-place activation moves its `grad_fn`).
    """

    title: str
    layer: nn.Module | Projection
    rule: Rule
    input: Tensor
    version: int
    source: Node | None
    edge: GradientEdge

    def place(self, name: str) -> tuple[Tensor, int]:
        """The parameter, of its own shape, that the rule calls `name`, and its row at which the layer's part begins."""
        return self.layer.places[name] if isinstance(self.layer, Projection) else (getattr(self.layer, name), 0)


@dataclass(frozen=True)
class Block:
    """A run of consecutive records: what the module returned for them, and its calls.

    `bare` says that there is one call and its output is what the module returned: its backprop is the cotangent.
    """

    rows: slice
    outputs: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    bare: bool

    def backprops(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Pull cotangents (n, ...) of the outputs back to the output of every call, of its shape, and no further."""
        pairs = [
            (output, cotangent[self.rows])
            for output, cotangent in zip(self.outputs, cotangents, strict=True)
            if output.requires_grad and cotangent is not None
        ]
        if not pairs or not self.calls:
            return [None] * len(self.calls)
        if self.bare and len(pairs) == 1 and not pairs[0][0]._backward_hooks:
            return [pairs[0][1]]
        with torch.inference_mode(False):  # a checkpointed layer runs again here, and must be recorded
            pulled = torch.autograd.grad(
                [output for output, _ in pairs],
                [call.edge for call in self.calls],
                [cotangent for _, cotangent in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        return list(pulled)

    def gram(self, rows: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """Gram matrices (n, d, d), float64, of d columns from what each sends to the outputs: sums over the calls."""
        pulled = [self.backprops(row) for row in rows]
        deltas = [_together([each[i] for each in pulled]) for i in range(len(self.calls))]
        parts = [
            call.rule.gram(call.layer, call.input, own) for call, own in zip(self.calls, deltas, strict=True) if own
        ]
        if not parts:
            shape = (self.rows.stop - self.rows.start, len(rows), len(rows))
            return torch.zeros(shape, dtype=torch.float64, device=self.outputs[0].device)
        return functools.reduce(Tensor.add_, parts)


def _together(deltas: Sequence[Tensor | None]) -> list[Tensor]:
    """All d backprops of a call, zeros where a column of the head does not reach it; [] if none does."""
    known = next((delta for delta in deltas if delta is not None), None)
    return [] if known is None else [torch.zeros_like(known) if each is None else each for each in deltas]
