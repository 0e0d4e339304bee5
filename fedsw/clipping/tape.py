"""A recorded forward pass: per-sample Jacobians measured, and pulled back through, without forming them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from fedsw.clipping.coverage import leaf_nodes, refuse_strays, trainable_names
from fedsw.clipping.precision import full_precision
from fedsw.clipping.refusals import UnsupportedModule
from fedsw.clipping.rules import Rule


@dataclass(frozen=True)
class Call:
    """One call of one layer: its input, and the place in the graph where its output was made.

    The edge is taken before anything can overwrite the output (an in-place activation moves its `grad_fn`).
    """

    title: str
    layer: nn.Module
    rule: Rule
    input: Tensor
    version: int
    source: Node | None
    edge: GradientEdge


@dataclass(frozen=True)
class Block:
    """A run of consecutive records: what the module returned for them, and its calls."""

    rows: slice
    outputs: tuple[Tensor, ...]
    calls: tuple[Call, ...]

    def backprops(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Pull cotangents of the outputs back to the output of every call, and no further."""
        pairs = [
            (output, cotangent[self.rows])
            for output, cotangent in zip(self.outputs, cotangents, strict=True)
            if output.requires_grad and cotangent is not None
        ]
        if not pairs or not self.calls:
            return [None] * len(self.calls)
        return list(
            torch.autograd.grad(
                [output for output, _ in pairs],
                [call.edge for call in self.calls],
                [cotangent for _, cotangent in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        )


class Tape:
    """A recorded forward pass; `record` makes it.

    Attributes:
        raw: what the module returned, a tensor or a tuple of tensors, cut from the module's graph. Heads are
            built from it.
        records: the number n of records.
        size: the number r of trainable parameters, the length of what `pull_back` returns.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[Block], *, single: bool) -> None:
        """Keep the blocks of a forward pass; `single` says that the module returned one bare tensor."""
        self._blocks = blocks
        self._measured: list[tuple[Tensor, GradientEdge, Tensor]] = []
        self._names = trainable_names(module)
        self._offsets: dict[int, int] = {}
        self.size = 0
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._offsets[id(parameter)] = self.size
                self.size += parameter.numel()
        outputs = zip(*(block.outputs for block in blocks), strict=True)
        self._leaves = tuple(_leaf(parts) for parts in outputs)
        self._live = [leaf for leaf in self._leaves if leaf.requires_grad]
        self.records = self._leaves[0].shape[0]
        self.raw: Any = self._leaves[0] if single else self._leaves

    @property
    def device(self) -> torch.device:
        """Where the passes run."""
        return self._leaves[0].device

    def gram(self, head: Tensor) -> Tensor:
        """Per-sample Gram matrices G_i = J_i J_i^T of J_i = d head_i / d parameters.

        Takes d backward passes, each only down to the outputs of the layers; the products are in float64.

        Args:
            head: (n,) or (n, d), float32 or float64, a function of `raw` in which row i depends on row i
                alone and no parameter takes part.

        Returns:
            (n, d, d), float64, with d = 1 for a head of shape (n,).

        Raises:
            UnsupportedModule: if the head uses a parameter directly, or a layer's input was overwritten.
            ValueError: if the head has another shape or type, or does not depend on `raw`.
        """
        self._require_head(head)
        self._require_intact()
        d = head.shape[1] if head.dim() == 2 else 1
        gram = torch.zeros((self.records, d, d), dtype=torch.float64, device=head.device)
        with full_precision(head.device), torch.no_grad():
            rows = [self._below([head], [_unit(head, r)]) for r in range(d)]
            for block in self._blocks:
                pulled = [block.backprops(row) for row in rows]
                for i, call in enumerate(block.calls):
                    deltas = _together([each[i] for each in pulled])
                    if deltas:
                        gram[block.rows] += call.rule.gram(call.layer, call.input, deltas)
        finite = _finite_rows(gram) & _finite_rows(head.detach())
        self._measured.append((head, get_gradient_edge(head), finite))
        return gram

    def pull_back(self, terms: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """Sum over heads and records of J_i^T cotangent_i, in one backward pass for all heads.

        The cotangents are injected at the heads that were measured, and the result is assembled from the
        inputs and backprops of the layers, the same factors as the Gram matrices. A record with a head,
        cotangent or Gram matrix that is not finite contributes 0, without branching and without touching the
        other records.

        Args:
            terms: pairs of a head that `gram` has measured (the same tensor) and its cotangents, in the shape
                of the head, or None for a term without contribution.

        Returns:
            (r,), float64: the trainable parameters in the order of `module.parameters()`, flattened.

        Raises:
            ValueError: if a head was never measured, or a cotangent has another shape.
        """
        self._require_intact()
        device = self._leaves[0].device
        total = torch.zeros(self.size, dtype=torch.float64, device=device)
        keep = torch.ones(self.records, dtype=torch.bool, device=device)
        used = [(head, cotangent) for head, cotangent in terms if cotangent is not None]
        for head, cotangent in used:
            if cotangent.numel() != head.numel() or cotangent.shape[:1] != head.shape[:1]:
                raise ValueError(
                    f"cotangents of shape {tuple(cotangent.shape)} for a head of shape {tuple(head.shape)}; "
                    "give one cotangent to every output."
                )
            keep = keep & self._finite(head) & _finite_rows(cotangent)
        if not used:
            return total
        heads = [head for head, _ in used]
        cotangents = [_clean(each.reshape(head.shape), keep).to(head.dtype) for head, each in used]
        with full_precision(device), torch.no_grad():
            row = self._below(heads, cotangents)
            for block in self._blocks:
                for call, delta in zip(block.calls, block.backprops(row), strict=True):
                    if delta is not None:
                        self._add(total, call, delta, keep[block.rows])
        return total

    def _add(self, total: Tensor, call: Call, delta: Tensor, keep: Tensor) -> None:
        """Add one call's sum over its records to the flat total, in float64."""
        keep = keep & _summable(call.input, delta)
        sums = call.rule.gradient(call.layer, _clean(call.input, keep), _clean(delta, keep))
        for name, value in sums.items():
            offset = self._offsets[id(getattr(call.layer, name))]
            total[offset : offset + value.numel()] += value.reshape(-1)

    def _below(self, heads: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Pull cotangents of heads back to the module's outputs; None where none arrives."""
        pulled = torch.autograd.grad(heads, self._live, cotangents, retain_graph=True, allow_unused=True)
        found = {id(leaf): each for leaf, each in zip(self._live, pulled, strict=True)}
        return [found.get(id(leaf)) for leaf in self._leaves]

    def _finite(self, head: Tensor) -> Tensor:
        """Which records had finite outputs and Gram matrices when this head was measured."""
        edge = get_gradient_edge(head) if head.requires_grad else None
        for _, measured, finite in self._measured:
            if edge is not None and measured.node is edge.node and measured.output_nr == edge.output_nr:
                return finite
        raise ValueError(
            f"a head of shape {tuple(head.shape)} was never measured on this tape: clipped cotangents belong "
            "to the very tensor whose Gram matrix they were clipped with (the unprojected outputs, not their "
            "projection). Pass that tensor to gram first."
        )

    def _require_head(self, head: Tensor) -> None:
        if head.dim() not in (1, 2) or head.shape[0] != self.records or not head.shape[1:].numel():
            raise ValueError(
                f"a head has shape {tuple(head.shape)}; it must be (n,) or (n, d), n = {self.records}."
            )
        if head.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a head is {head.dtype}, too coarse for a norm; use float32 or float64.")
        reached = list(leaf_nodes([head], {})) if head.requires_grad else []
        if not {get_gradient_edge(leaf).node for leaf in self._live} & set(reached):
            raise ValueError("a head does not depend on tape.raw: build it from tape.raw, without detaching.")
        refuse_strays(reached, self._names)

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


def _unit(head: Tensor, r: int) -> Tensor:
    """The cotangent that selects column r of a head for every record."""
    unit = torch.zeros_like(head)
    (unit if head.dim() == 1 else unit[:, r]).fill_(1.0)
    return unit


def _together(deltas: Sequence[Tensor | None]) -> list[Tensor]:
    """All d backprops of a call, zeros where a column of the head does not reach it; [] if none does."""
    known = next((delta for delta in deltas if delta is not None), None)
    return [] if known is None else [torch.zeros_like(known) if each is None else each for each in deltas]


def _finite_rows(values: Tensor) -> Tensor:
    """Which records have finite values: a sum is finite only if all its terms are."""
    return torch.isfinite(values.flatten(1).sum(1)) if values.dim() > 1 else torch.isfinite(values)


def _summable(a: Tensor, delta: Tensor) -> Tensor:
    """Which records have products of input and backprop that cannot overflow and spoil everybody's sum."""
    reach = _total(delta) * _total(a) if a.is_floating_point() else _total(delta)
    return reach < torch.finfo(delta.dtype).max


def _total(values: Tensor) -> Tensor:
    """Sum of the magnitudes of every record, not finite if one of them is not."""
    return values.flatten(1).abs().sum(1).to(torch.float64)


def _clean(values: Tensor, keep: Tensor) -> Tensor:
    """Zero the records that are not kept: 0 times a value that is not finite would be NaN for everybody."""
    if not values.is_floating_point():
        return values
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return finite.mul_(keep.reshape(-1, *[1] * (values.dim() - 1)))
