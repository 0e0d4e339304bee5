"""The last word on a record: its part of the sum is measured as it is released, and cut to what it may weigh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.clipping.blocks import Call

# What rounding can hide, relative to the reach of a record (see `Rule.reach`): in a squared norm, per number of the
# factors; in a sum over records, per product, so much above its unit roundoff that what is hidden stays unimportant.
_LOST_IN_NORM = 2.0**-51
_LOST_IN_SUM = 2.0**-40

# Magnitudes at which float64 loses nothing that matters: products of factors inside, and their squares, stay inside
# its range or are far below any limit. Float32 numbers are inside, but for those below its smallest normal number,
# which a processor may or may not take for 0, from thread to thread.
_LEAST, _MOST = 2.0**-400, 2.0**400
_LEAST_FLOAT32 = 2.0**-126
_LEAST_LIMIT = 2.0**-300


@dataclass(frozen=True)
class Part:
    """What every record adds to a sum by one call of a layer: the products of these factors, in float64.

    Attributes:
        call: of the layer.
        input: the layer's input (n, ...), float64, in range or infinite (indices stay integers).
        delta: its backprop (n, ...), likewise.
    """

    call: Call
    input: Tensor
    delta: Tensor


def part_of(call: Call, delta: Tensor) -> Part:
    """The factors (n, ...) that are measured, cut and added: what arrived, float64, 0 or infinite if out of range."""
    return Part(call, _in_range(call.input), _in_range(delta))


def rows_of(part: Part, rows: slice) -> Part:
    """What some of the records add."""
    return Part(part.call, part.input[rows], part.delta[rows])


def overlaps(runs: Sequence[int], block: slice) -> Iterator[tuple[int, slice]]:
    """Which runs of consecutive records, of these lengths, have records in a block, and where in it they are."""
    end = 0
    for run, length in enumerate(runs):
        start, end = end, end + length
        first, last = max(start, block.start), min(end, block.stop)
        if first < last:
            yield run, slice(first - block.start, last - block.start)


def summed(part: Part, cut: Tensor) -> dict[str, Tensor]:
    """The sum over records of their parts, each times its factor of `cut` (n,), by parameter name; float64.

    Each is of its parameter's shape.

    What is not finite has the factor 0, and is replaced: 0 times infinity would be NaN for all.
    """
    for factor in (part.input, part.delta):
        if factor.is_floating_point():
            factor.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return part.call.rule.gradient(part.call.layer, part.input, part.delta, cut)


def cuts(parts: Sequence[Part], limits: Tensor) -> Tensor:
    """Factors (n,) in [0, 1], float64, that bring every record's part of a sum within its limit.

    Guarantee: a record's part, times its factor, has at most the norm of its limit, whatever the passes through the
    network did to its backprops: it is measured from the same numbers that the sum is made of, in the same precision.
    A record whose part is not finite gets 0, as does one whose limit is below 2^-300. Nothing branches on the values.

    Args:
        parts: of the calls that a backward pass reached.
        limits: (n,), float64, infinity for none.

    Source: docs/guarantees.md, "Theorem: what leaves is what was measured".
    """
    squares = torch.zeros_like(limits)
    for part in parts:
        rule, layer = part.call.rule, part.call.layer
        squares = squares + rule.gram(layer, part.input, [part.delta]).reshape(-1)
        reach = rule.reach(layer, part.input, part.delta)
        if reach is not None:
            squares = squares + reach.mul_(_lost(part.input, part.delta))
    norms = squares.sqrt()
    room = torch.where(limits < _LEAST_LIMIT, 0.0, limits) / norms
    return torch.where(norms < math.inf, room.clamp(max=1.0), 0.0).nan_to_num(nan=0.0)


def _in_range(values: Tensor) -> Tensor:
    """A float64 copy with 0 for magnitudes below the range and infinity above it; indices as they are."""
    if not values.is_floating_point():
        return values
    if values.dtype == torch.float64:
        sizes = values.abs()
        return torch.where(sizes <= _MOST, torch.where(sizes < _LEAST, 0.0, values), math.inf)
    return F.hardshrink(values, _LEAST_FLOAT32).to(torch.float64)


def _lost(a: Tensor, delta: Tensor) -> float:
    """What rounding can hide of the squared norm of a record's part, relative to its squared reach."""
    sizes = a.shape[1:].numel() + delta.shape[1:].numel()
    return _LOST_IN_NORM * sizes + (_LOST_IN_SUM * delta.numel()) ** 2
