"""Gram matrices and sums of per-record Jacobians, call by call: measured with bounds on rounding, cut, and added."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from fedsw.mathematics.clipping.rules import Rule
from fedsw.mathematics.clipping.rules.attention import Projection
from fedsw.mathematics.clipping.rules.rule import Bare, Factored, squared_norms, trains


@dataclass(frozen=True)
class Call:
    """One call of one layer: its input, and the place in the graph where its output was made.

    The edge is taken before anything can overwrite the output (an in-place activation moves its `grad_fn`).
    """

    title: str
    layer: nn.Module | Projection | Bare
    rule: Rule
    input: Tensor
    version: int
    source: Node | None
    edge: GradientEdge

    def place(self, name: str) -> tuple[Tensor, int]:
        """The parameter, of its own shape, that the rule calls `name`, and its row at which the layer's part begins."""
        return self.layer.places[name] if isinstance(self.layer, Projection | Bare) else (getattr(self.layer, name), 0)

    @property
    def entries(self) -> int:
        """Size of the parameters that the rule measures, in numbers."""
        trained = [name for name in self.rule.parameters if trains(self.layer, name)]
        return sum(int(getattr(self.layer, name).numel()) for name in trained)


@dataclass(frozen=True)
class Block:
    """A run of consecutive records: what the module returned for them, and its calls.

    `bare` says that there is one call and its output is what the module returned: its backprop is the cotangent;
    `ragged` that the longest record decides how many sites all have.
    """

    rows: slice
    outputs: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    bare: bool
    ragged: bool = False

    @property
    def records(self) -> int:
        """Number of records in the block."""
        return int(self.rows.stop - self.rows.start)

    @property
    def floats(self) -> int:
        """Size of the inputs of all calls together, in numbers."""
        return sum(call.input.numel() for call in self.calls)

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
        outputs, arriving = zip(*pairs, strict=True)
        return pulled_back(outputs, [call.edge for call in self.calls], arriving)


def pulled_back(
    outputs: Sequence[Tensor], targets: Sequence[Tensor] | Sequence[GradientEdge], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    """Pull cotangents, of the outputs' shapes, back to targets in their graph, which is kept; None if none arrives.

    Computed as the gradient of the sum of all outputs times their cotangents: torch compares the shape of a cotangent
    that it is handed by its compiler's symbolic algebra, and importing that takes longer than many a training.
    """
    with torch.inference_mode(False), torch.enable_grad():  # a checkpointed layer runs again here, and must be recorded
        products = []
        for output, cotangent in zip(outputs, cotangents, strict=True):
            if output.shape != cotangent.shape:
                raise ValueError(f"a cotangent of shape {tuple(cotangent.shape)} for {tuple(output.shape)}")
            products.append((output * (cotangent.clone() if cotangent.is_inference() else cotangent)).sum())
        return list(torch.autograd.grad(products, targets, retain_graph=True, allow_unused=True))


# What rounding can hide, relative to the squared reach of a record (see `Factored.reach`): in a squared norm, per
# number of its factors; in a sum over records, the same in batches of all sizes, since under additions and removals
# the other records' parts must not follow from how many there are.
_LOST_IN_NORM = 2.0**-51
_LOST_IN_SUM = 2.0**-44

# Magnitudes at which float64 loses nothing that matters: products of factors inside, and their squares, stay inside
# its range or are far below any limit.
_LEAST, _MOST = 2.0**-400, 2.0**400
_LEAST_LIMIT = 2.0**-300


@dataclass(frozen=True)
class Products:
    """A part of a sum as products of factors, which are multiplied once to be measured and once to be added.

    Input and backprop ``delta`` are (n, ...), ``scale`` of what they make (n,), float64, in range or infinite; ``gram``
    (n, 1, 1) is of these factors.
    """

    call: Call
    rule: Factored
    input: Tensor
    delta: Tensor
    gram: Tensor
    scale: Tensor

    @staticmethod
    def of(call: Call, rule: Factored, inputs: Tensor, shared: Tensor | None, delta: Tensor, scale: Tensor) -> Products:
        """The factors of a call: its input as it was measured, and a backprop (n, ...) as it arrived."""
        delta = in_range(delta)
        return Products(call, rule, inputs, delta, rule.measured(call.layer, inputs, [delta], shared), in_range(scale))

    def squares(self) -> Tensor:
        """Upper bound (n,) of the squared norm of what a record adds, up to the scale; not finite if that is not.

        It includes what rounding may have hidden where products cancel.
        """
        squares = self.gram.reshape(-1).clone()
        reach = self.rule.reach(self.call.layer, self.input, self.delta)
        if reach is not None:
            sizes = self.rule.sizes(self.call.layer, self.input, self.delta)
            squares = squares + reach.mul_(_LOST_IN_NORM * sizes + _LOST_IN_SUM)
        return squares

    def rows(self, rows: slice) -> Products:
        """This part for some of the records."""
        return replace(
            self, input=self.input[rows], delta=self.delta[rows], gram=self.gram[rows], scale=self.scale[rows]
        )

    def summed(self, factors: Tensor) -> Mapping[str, Tensor]:
        """The sum over records, each times its factor (n,), by parameter name; float64. Called last: it overwrites.

        What is not finite has the factor 0, and is replaced: 0 times infinity would be NaN for all.
        """
        self._replace()
        return self.rule.gradient(self.call.layer, self.input, self.delta, factors)

    def summed_apart(self, factors: Tensor, runs: Sequence[int]) -> Mapping[str, Tensor] | None:
        """`summed` of consecutive runs of these lengths, side by side (S, ...); None if the rule cannot do so."""
        if self.rule.apart is None:
            return None
        self._replace()
        owners = torch.repeat_interleave(torch.arange(len(runs)), torch.tensor(runs)).to(factors.device)
        return self.rule.apart(self.call.layer, self.input, self.delta, factors, owners, len(runs))

    def _replace(self) -> None:
        for factor in (self.input, self.delta):
            if factor.is_floating_point():
                factor.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class Numbers:
    """A part of a sum as formed numbers: the same ones are measured and added, however they were made.

    They are (n, entries of the parameter) by name, and their scale (n,), float64, in range or infinite.
    """

    call: Call
    values: Mapping[str, Tensor]
    scale: Tensor

    def squares(self) -> Tensor:
        """As `Products.squares`, (n,): sums of squares, in which nothing cancels."""
        total, *others = [squared_norms(entries) for entries in self.values.values()]
        for other in others:
            total.add_(other)
        return total

    def rows(self, rows: slice) -> Numbers:
        """This part for some of the records."""
        return Numbers(self.call, {name: entries[rows] for name, entries in self.values.items()}, self.scale[rows])

    def summed(self, factors: Tensor) -> Mapping[str, Tensor]:
        """As `Products.summed`, factors (n,)."""
        return {
            name: factors @ entries.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            for name, entries in self.values.items()
        }

    def summed_apart(self, factors: Tensor, runs: Sequence[int]) -> None:
        """As `Products.summed_apart` of factors (n,): numbers are summed one run after the other."""


RecordTerm = Products | Numbers
"""Contribution of every record to a sum, through one call of a layer: some numbers, times the record's scale."""


def cuts(parts: Sequence[RecordTerm], limits: Tensor) -> Tensor:
    """Factors (n,) in [0, 1], float64, that bring every record's part of a sum within its limit.

    Guarantee: a record's part, times its factor, has at most the norm of its limit, whatever the passes through the
    network did to its backprops: it is measured from the same numbers that the sum is made of, in the same precision.
    A record with an infinite or NaN part gets 0, as does one with a limit below 2^-300. Nothing branches on the values.

    Limits are (n,), float64, infinity for none.

    Source: docs/guarantees/clipping.md.
    """
    squares = torch.zeros_like(limits)
    for part in parts:
        squares = squares + part.squares().sqrt_().mul_(part.scale).square_()
    norms = squares.sqrt()
    # A limit of 0 and a norm of 0 make NaN, which gets 0: there is nothing to add.
    room = torch.where(limits < _LEAST_LIMIT, 0.0, limits) / norms
    return torch.where(norms < math.inf, room.clamp(max=1.0), 0.0).nan_to_num(nan=0.0)


def in_range(values: Tensor) -> Tensor:
    """A float64 copy of the same shape: 0 below the range, infinity above it; indices as they are.

    Float32 numbers are inside. A processor may take those below 2^-126 for 0, in one thread and not in another; so
    what is measured and what is added read one copy.
    """
    if not values.is_floating_point():
        return values
    if values.dtype == torch.float64:
        sizes = values.abs()
        return torch.where(sizes <= _MOST, torch.where(sizes < _LEAST, 0.0, values), math.inf)
    return values.to(torch.float64)


class Total:
    """A sum over records, float64, (r,), with the offset of every trainable parameter; ``names`` are by `id`."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.names: dict[int, str] = {}
        self._offsets: dict[int, int] = {}
        self.size = 0
        for name, parameter in parameters.items():
            self.names[id(parameter)] = name
            self._offsets[id(parameter)] = self.size
            self.size += parameter.numel()

    def add(
        self,
        total: Tensor,
        parts: Sequence[RecordTerm],
        limits: Tensor,
        keep: Tensor,
        runs: Sequence[tuple[int, slice]],
    ) -> None:
        """Add some records' parts, each cut to its limit (n,), of those to keep (n,), to (S, r) by runs."""
        if not parts:
            return
        # Measured once over all calls of the block: a record's parts in different layers share one limit.
        cut = cuts(parts, limits).mul_(keep)
        for part in parts:
            factors = (cut * part.scale).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            apart = part.summed_apart(factors, [rows.stop - rows.start for _, rows in runs]) if len(runs) > 1 else None
            if apart is not None:
                self._put(total, part, [run for run, _ in runs], apart)
                continue
            for run, rows in runs:
                sums = part.rows(rows).summed(factors[rows])
                self._put(total, part, [run], {name: value.unsqueeze(0) for name, value in sums.items()})

    def _put(self, total: Tensor, part: RecordTerm, runs: Sequence[int], sums: Mapping[str, Tensor]) -> None:
        """Add sums (S', ...) of these runs."""
        for name, values in sums.items():
            parameter, start = part.call.place(name)  # an attention layer packs three maps in one parameter
            offset = self._offsets[id(parameter)] + start
            rows = slice(runs[0], runs[-1] + 1) if len(runs) == runs[-1] + 1 - runs[0] else list(runs)
            total[rows, offset : offset + values[0].numel()] += values.flatten(1)


def overlaps(runs: Sequence[int], block: slice) -> list[tuple[int, slice]]:
    """Runs of consecutive records, of these lengths, that reach into a block, and their rows in it."""
    pieces, end = [], 0
    for run, length in enumerate(runs):
        start, end = end, end + length
        first, last = max(start, block.start), min(end, block.stop)
        if first < last:
            pieces.append((run, slice(first - block.start, last - block.start)))
    return pieces
