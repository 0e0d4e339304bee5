"""A recorded forward pass: per-sample Jacobians measured, and pulled back through, without forming them."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsw.mathematics.clipping._columns import columns
from fedsw.mathematics.clipping._gram import Block, Total, overlaps
from fedsw.mathematics.clipping.clip import finite, full_precision, row_sums
from fedsw.mathematics.clipping.refusals import OutputForm, UnsupportedModule, chained, require_head, units

Clip = Callable[[slice, Sequence[Tensor]], Sequence[Tensor]]
ColumnClip = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


class Tape:
    """A recorded forward pass; `record` makes it.

    ``raw`` is what the module returned for so many ``records``, cut from its graph, to build heads from; ``size`` r is
    the length of what `clipped` returns. With one ``column``, every gradient of a head is a multiple of one gradient
    u_i = d raw_i / d parameters.
    """

    def __init__(self, parameters: Mapping[str, Tensor], blocks: Sequence[Block], form: OutputForm) -> None:
        self._blocks = blocks
        self._total = Total(parameters)
        self.size = self._total.size
        outputs = zip(*(block.outputs for block in blocks), strict=True)
        self._leaves = tuple(_leaf(parts) for parts in outputs)
        self._live = [leaf for leaf in self._leaves if leaf.requires_grad]
        self.column = len(self._live) == 1 and self._live[0].shape[1:].numel() == 1
        self.records = self._leaves[0].shape[0]
        self.raw: Any = form.arranged(self._leaves)

    @property
    def device(self) -> torch.device:
        """Where the passes run."""
        return self._leaves[0].device

    def gram(self, head: Tensor) -> Tensor:
        """Per-sample Gram matrices G_i = J_i J_i^T of J_i = d head_i / d parameters.

        Takes d backward passes, each only down to the outputs of the layers; the products are in float64. For a
        module that returns one column per record, one pass through the layers serves all heads: with u_i = d raw_i /
        d parameters, J_i = s_i u_i^T for the slopes s_i of the head, and G_i = |u_i|^2 s_i s_i^T, a product of
        factors without cancellation, as accurate as its factors.

        The head is (n,) or (n, d), a function of `raw` in which row i depends on row i alone and no parameter takes
        part; the result (n, d, d), float64. UnsupportedModule if a layer's input was overwritten.
        """
        self._require_head(head)
        self._require_intact()
        with full_precision(head.device), torch.no_grad():
            if self.column:
                return chained(self._columns_slopes(head), self._layers_gram([self._ones()]))
            return self._layers_gram([self._below(head, unit) for unit in units(head)])

    def slopes(self, heads: Sequence[Tensor]) -> Tensor:
        """Derivatives s (h, n), float64, of heads (n,) or (n, 1) in the one column of the module: J_i = s_i u_i^T."""
        for head in heads:
            self._require_head(head)
        self._require_column()
        with full_precision(self.device), torch.no_grad():
            return torch.stack([self._columns_slopes(head).reshape(-1) for head in heads])

    def clipped(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """Sum over heads and records of J_i^T w_i for weights that follow from the Gram matrices of each record.

        Block by block: the backprops that were measured are weighed and added, the same factors as of the Gram
        matrices, and no other backward pass is made. A record's part is cut to its limit (n,), measured as it is added.

        ``clip`` takes a slice of records and the Gram matrices (m, d, d) of the heads to their weights (m, d), float64.
        The sums are (S, r), float64, for S ``runs`` of so many consecutive records each, over the trainable parameters
        in the order of `module.parameters()`. A record with a head or a Gram matrix that is not finite contributes 0,
        without branching and without touching the other records.
        """
        for head in heads:
            self._require_head(head)
        if self.column:
            return self._clipped_along(heads, clip, limits, runs)
        self._require_intact()
        total = self._zeros(runs)
        with full_precision(self.device), torch.no_grad():
            rows = [[self._below(head, unit) for unit in units(head)] for head in heads]
            ends = list(itertools.accumulate(map(len, rows)))
            for block in self._blocks:
                measured = columns(block, [row for head_rows in rows for row in head_rows])
                grams = [
                    measured.gram(slice(end - len(head_rows), end)) for end, head_rows in zip(ends, rows, strict=True)
                ]
                weights = torch.cat(list(clip(block.rows, grams)), dim=1)
                keep = self._healthy(heads, grams, block.rows)
                self._total.add(
                    total, measured.parts(weights), self._part(limits, block), keep, overlaps(runs, block.rows)
                )
        return total

    def clipped_column(self, clip: ColumnClip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """`clipped` of a module of one column: the sum of w_i u_i for weights that follow from the squares |u_i|^2.

        ``clip`` takes a slice of records and |u_i|^2 (m,) to the weights (m,), float64, and which records are kept; the
        result is (S, r).
        """
        self._require_column()
        self._require_intact()
        total = self._zeros(runs)
        with full_precision(self.device), torch.no_grad():
            ones = self._ones()
            for block in self._blocks:
                measured = columns(block, [ones])
                weights, keep = clip(block.rows, measured.gram(slice(None)).reshape(-1))
                parts = measured.parts(weights.unsqueeze(1))
                self._total.add(total, parts, self._part(limits, block), keep, overlaps(runs, block.rows))
        return total

    def _clipped_along(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """`clipped` of a module of one column, whose gradients are measured once for all heads."""
        with full_precision(self.device), torch.no_grad():
            slopes = [self._columns_slopes(head) for head in heads]

        def along(rows: slice, squares: Tensor) -> tuple[Tensor, Tensor]:
            grams = [chained(slope[rows], squares) for slope in slopes]
            parts = [row_sums(w * slope[rows]) for w, slope in zip(clip(rows, grams), slopes, strict=True)]
            return functools.reduce(operator.add, parts), self._healthy(heads, grams, rows)

        return self.clipped_column(along, limits, runs)

    def _healthy(self, heads: Sequence[Tensor], grams: Sequence[Tensor], rows: slice) -> Tensor:
        return finite([row_sums(values) for values in (*grams, *(head.detach()[rows] for head in heads))])

    def _layers_gram(self, rows: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """Gram matrices (n, d, d) of d columns from what each sends to the module's outputs."""
        grams = [columns(block, rows).gram(slice(None)) for block in self._blocks]
        return grams[0] if len(grams) == 1 else torch.cat(grams)

    def _ones(self) -> list[Tensor | None]:
        """The cotangents that select the module's one column."""
        return [torch.ones_like(leaf) if leaf.requires_grad else None for leaf in self._leaves]

    def _zeros(self, runs: Sequence[int]) -> Tensor:
        return torch.zeros((len(runs), self.size), dtype=torch.float64, device=self.device)

    def _part(self, values: Tensor, block: Block) -> Tensor:
        return values if len(self._blocks) == 1 else values[block.rows]

    def _columns_slopes(self, head: Tensor) -> Tensor:
        """Derivatives (n, d), float64, of the d columns of a head in the one column of the module."""
        slopes = []
        for unit in units(head):
            (slope,) = torch.autograd.grad((head,), self._live, (unit,), retain_graph=True, allow_unused=True)
            slopes.append((torch.zeros_like(self._live[0]) if slope is None else slope).reshape(-1))
        return torch.stack(slopes).to(torch.float64).T

    def _below(self, head: Tensor, cotangents: Tensor) -> list[Tensor | None]:
        """Pull cotangents of a head back to the module's outputs; None where none arrives."""
        pulled = torch.autograd.grad((head,), self._live, (cotangents,), retain_graph=True, allow_unused=True)
        by_leaf = {id(leaf): cotangent for leaf, cotangent in zip(self._live, pulled, strict=True)}
        return [by_leaf.get(id(leaf)) for leaf in self._leaves]

    def _require_head(self, head: Tensor) -> None:
        require_head(head, self.records, self._live, self._total.names)

    def _require_column(self) -> None:
        if not self.column:
            raise ValueError("the module returned more than one number per record: use gram and clipped.")

    def _require_intact(self) -> None:
        for call in (call for block in self._blocks for call in block.calls):
            if call.input._version != call.version:
                raise UnsupportedModule(
                    f"{call.title}: its input was overwritten after the call (an in-place operation), so its "
                    "gradient cannot be measured. Use out-of-place operations, and a fresh batch each time."
                )


def _leaf(parts: Sequence[Tensor]) -> Tensor:
    """The blocks of one output as a leaf of its own graph."""
    joined = torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach()
    return joined.requires_grad_(any(part.requires_grad for part in parts))
