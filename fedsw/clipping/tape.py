"""A recorded forward pass: per-sample Jacobians measured, and pulled back through, without forming them."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedsw.clipping.clip import clean, finite, full_precision, require_cotangents, row_sums
from fedsw.clipping.columns import columns
from fedsw.clipping.gram import Block, Total, overlaps
from fedsw.clipping.refusals import OutputForm, UnsupportedModule, chained, require_head, units

Clip = Callable[[slice, Sequence[Tensor]], Sequence[Tensor]]
ColumnClip = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Measured:
    """A head whose Gram matrices were taken, at an edge of the graph.

    ``health`` (n,) is not finite for records whose outputs or Gram matrices were not; ``slope`` (n, d) is its
    derivative in the one column that the module returned, if it is one.
    """

    edge: GradientEdge
    health: Tensor
    slope: Tensor | None


class Tape:
    """A recorded forward pass; `record` makes it.

    ``raw`` is what the module returned for so many ``records``, cut from its graph, to build heads from; ``size`` r is
    the length of what `pull_back` returns. With one ``column``, every gradient of a head is a multiple of one gradient
    u_i = d raw_i / d parameters.
    """

    def __init__(self, parameters: Mapping[str, Tensor], blocks: Sequence[Block], form: OutputForm) -> None:
        """Keep the blocks of a forward pass, whose outputs came in this form."""
        self._blocks = blocks
        self._measured: list[_Measured] = []
        self._total = Total(parameters)
        self.size = self._total.size
        outputs = zip(*(block.outputs for block in blocks), strict=True)
        self._leaves = tuple(_leaf(parts) for parts in outputs)
        self._live = [leaf for leaf in self._leaves if leaf.requires_grad]
        self.column = len(self._live) == 1 and self._live[0].shape[1:].numel() == 1
        self._squared_gradient: Tensor | None = None
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
            slope = self._slopes([head] * len(units(head)), units(head)).T if self.column else None
            if slope is None:
                gram = self._layers_gram([self._below([head], [unit]) for unit in units(head)])
            else:
                gram = chained(slope, self.squared_gradient())
            health = row_sums(gram) + row_sums(head)
        self._measured.append(_Measured(get_gradient_edge(head), health, slope))
        return gram

    def slopes(self, heads: Sequence[Tensor]) -> Tensor:
        """Derivatives s (h, n), float64, of heads (n,) or (n, 1) in the one column of the module: J_i = s_i u_i^T."""
        for head in heads:
            self._require_head(head)
        self._require_column()
        with full_precision(self.device), torch.no_grad():
            return self._slopes(heads, [torch.ones_like(head) for head in heads])

    def squared_gradient(self) -> Tensor:
        """|u_i|^2 of the gradients of the module's one column: (n,), float64; one pass through the layers."""
        self._require_column()
        self._require_intact()
        if self._squared_gradient is None:
            with full_precision(self.device), torch.no_grad():
                self._squared_gradient = self._layers_gram([self._ones()]).reshape(-1)
        return self._squared_gradient

    def pull_back_column(self, cotangents: Tensor, keep: Tensor, limits: Tensor | None = None) -> Tensor:
        """Sum over the kept records of cotangent_i u_i, the gradients of the module's one column.

        Cotangents are (n,); records that are not to ``keep`` (n,) contribute 0, whatever their values. The result is
        (r,), float64, as `pull_back`.
        """
        self._require_column()
        self._require_intact()
        with full_precision(self.device), torch.no_grad():
            (live,) = self._live
            down = cotangents.to(live.dtype).reshape(live.shape)
            return self._assembled([down if leaf is live else None for leaf in self._leaves], keep, limits)

    def pull_back(self, terms: Sequence[tuple[Tensor, Tensor | None]], limits: Tensor | None = None) -> Tensor:
        """Sum over heads and records of J_i^T cotangent_i, in one backward pass for all heads.

        The cotangents are injected at the heads that were measured, and the result is assembled from the inputs and
        backprops of the layers, the same factors as the Gram matrices. A record with a head, cotangent or Gram matrix
        that is not finite contributes 0, without branching and without touching the other records.

        Terms are pairs of a head that `gram` has measured and its cotangents, in its shape, or None. A record's part is
        cut to its limit (n,), measured as it is added; None for no limit. The result is (r,), float64: the trainable
        parameters in the order of `module.parameters()`, flattened.
        """
        self._require_intact()
        used: list[tuple[Tensor, Tensor, _Measured]] = []
        with full_precision(self.device), torch.no_grad():
            for head, cotangent in terms:
                if cotangent is None:
                    continue
                require_cotangents(head, cotangent)
                used.append((head, cotangent.detach(), self._found(head)))
            if not used:
                return self._total.zeros(self.device)
            if self.column:
                down = self._along(used)
                return self.pull_back_column(down, finite([*(found.health for _, _, found in used), down]), limits)
            keep = finite([part for _, each, found in used for part in (found.health, row_sums(each))])
            return self._assembled(self._through(used, keep), keep, limits)

    def clipped(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int] | None = None) -> Tensor:
        """Sum over heads and records of J_i^T w_i for weights that follow from the Gram matrices of each record.

        What `gram` and `pull_back` do, block by block and with the same passes: the backprops that were measured are
        weighed and added, and no other backward pass is made.

        ``clip`` takes a slice of records and the Gram matrices (m, d, d) of the heads to their weights (m, d), float64;
        limits are as in `pull_back`. The sum is (r,), or (S, r) for S ``runs`` of so many consecutive records each. A
        record with a head or a Gram matrix that is not finite contributes 0.
        """
        for head in heads:
            self._require_head(head)
        if self.column:
            return self._clipped_along(heads, clip, limits, runs)
        self._require_intact()
        total = self._total.zeros(self.device, None if runs is None else len(runs))
        with full_precision(self.device), torch.no_grad():
            rows = [[self._below([head], [unit]) for unit in units(head)] for head in heads]
            ends = list(itertools.accumulate(map(len, rows)))
            for block in self._blocks:
                found = columns(block, [row for own in rows for row in own])
                grams = [found.gram(slice(end - len(own), end)) for end, own in zip(ends, rows, strict=True)]
                weights = torch.cat(list(clip(block.rows, grams)), dim=1)
                keep = self._healthy(heads, grams, block.rows)
                self._total.add(total, found.parts(weights), self._part(limits, block), keep, _in(runs, block))
        return total

    def clipped_column(self, clip: ColumnClip, limits: Tensor, runs: Sequence[int] | None = None) -> Tensor:
        """`clipped` of a module of one column: the sum of w_i u_i for weights that follow from the squares |u_i|^2.

        ``clip`` takes a slice of records and |u_i|^2 (m,) to the weights (m,), float64, and which records are kept; the
        result is (r,), or (S, r) with runs.
        """
        self._require_column()
        self._require_intact()
        total = self._total.zeros(self.device, None if runs is None else len(runs))
        with full_precision(self.device), torch.no_grad():
            ones = self._ones()
            for block in self._blocks:
                found = columns(block, [ones])
                weights, keep = clip(block.rows, found.gram(slice(None)).reshape(-1))
                parts = found.parts(weights.unsqueeze(1))
                self._total.add(total, parts, self._part(limits, block), keep, _in(runs, block))
        return total

    def _clipped_along(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int] | None) -> Tensor:
        """`clipped` of a module of one column, whose gradients are measured once for all heads."""
        with full_precision(self.device), torch.no_grad():
            slopes = [self._slopes([head] * len(units(head)), units(head)).T for head in heads]

        def along(rows: slice, squares: Tensor) -> tuple[Tensor, Tensor]:
            grams = [chained(slope[rows], squares) for slope in slopes]
            parts = [row_sums(w * slope[rows]) for w, slope in zip(clip(rows, grams), slopes, strict=True)]
            return functools.reduce(operator.add, parts), self._healthy(heads, grams, rows)

        return self.clipped_column(along, limits, runs)

    def _healthy(self, heads: Sequence[Tensor], grams: Sequence[Tensor], rows: slice) -> Tensor:
        """Which of some records have finite heads and Gram matrices."""
        return finite([row_sums(each) for each in (*grams, *(head.detach()[rows] for head in heads))])

    def _assembled(self, row: Sequence[Tensor | None], keep: Tensor, limits: Tensor | None) -> Tensor:
        """The sum (r,) over the kept records, from what arrives at the module's outputs, each within its limit."""
        total = self._total.zeros(self.device)
        if limits is None:
            limits = torch.full((self.records,), math.inf, dtype=torch.float64, device=self.device)
        for block in self._blocks:
            parts = columns(block, [row]).parts(None)
            self._total.add(total, parts, self._part(limits, block), self._part(keep, block))
        return total

    def _layers_gram(self, rows: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """Gram matrices (n, d, d) of d columns from what each sends to the module's outputs."""
        grams = [columns(block, rows).gram(slice(None)) for block in self._blocks]
        return grams[0] if len(grams) == 1 else torch.cat(grams)

    def _ones(self) -> list[Tensor | None]:
        """The cotangents that select the module's one column."""
        return [torch.ones_like(leaf) if leaf.requires_grad else None for leaf in self._leaves]

    def _part(self, values: Tensor, block: Block) -> Tensor:
        return values if len(self._blocks) == 1 else values[block.rows]

    def _slopes(self, heads: Sequence[Tensor], units: Sequence[Tensor]) -> Tensor:
        """Derivatives (d, n), float64, of d columns of heads in the one column of the module."""
        found = []
        for head, unit in zip(heads, units, strict=True):
            (slope,) = torch.autograd.grad((head,), self._live, (unit,), retain_graph=True, allow_unused=True)
            found.append((torch.zeros_like(self._live[0]) if slope is None else slope).reshape(-1))
        return torch.stack(found).to(torch.float64)

    def _below(self, heads: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Pull cotangents of heads back to the module's outputs; None where none arrives."""
        pulled = torch.autograd.grad(heads, self._live, cotangents, retain_graph=True, allow_unused=True)
        found = {id(leaf): each for leaf, each in zip(self._live, pulled, strict=True)}
        return [found.get(id(leaf)) for leaf in self._leaves]

    def _through(self, used: Sequence[tuple[Tensor, Tensor, _Measured]], keep: Tensor) -> list[Tensor | None]:
        """Pull cotangents of measured heads back to the module's outputs through the graph of the heads."""
        cotangents = [clean(each.reshape(head.shape), keep).to(head.dtype) for head, each, _ in used]
        return self._below([head for head, _, _ in used], cotangents)

    def _along(self, used: Sequence[tuple[Tensor, Tensor, _Measured]]) -> Tensor:
        """Pull cotangents of measured heads back to the module's one column by their slopes: (n,), float64."""
        parts = [each.reshape(found.slope.shape) * found.slope for _, each, found in used if found.slope is not None]
        return functools.reduce(operator.add, map(row_sums, parts))

    def _found(self, head: Tensor) -> _Measured:
        edge = get_gradient_edge(head) if head.requires_grad else None
        for found in self._measured:
            if edge is not None and found.edge.node is edge.node and found.edge.output_nr == edge.output_nr:
                return found
        raise ValueError(
            f"a head of shape {tuple(head.shape)} was never measured on this tape: clipped cotangents belong "
            "to the very tensor whose Gram matrix they were clipped with (the unprojected outputs, not their "
            "projection). Pass that tensor to gram first."
        )

    def _require_head(self, head: Tensor) -> None:
        require_head(head, self.records, self._live, self._total.names)

    def _require_column(self) -> None:
        if not self.column:
            raise ValueError("the module returned more than one number per record: use gram and pull_back.")

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


def _in(runs: Sequence[int] | None, block: Block) -> list[tuple[int, slice]] | None:
    return None if runs is None else overlaps(runs, block.rows)
