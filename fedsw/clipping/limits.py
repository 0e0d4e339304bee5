"""The last word on a record: its part of the sum is measured as it is released, and cut to what it may weigh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.clipping.blocks import Call
from fedsw.clipping.rules.products import squared_norms
from fedsw.clipping.rules.rule import Factored

# What rounding can hide, relative to the reach of a record (see `Factored.reach`): in a squared norm, per number of the
# factors; in a sum over records, per product, so much above its unit roundoff that what is hidden stays unimportant.
_LOST_IN_NORM = 2.0**-51
_LOST_IN_SUM = 2.0**-40

# Magnitudes at which float64 loses nothing that matters: products of factors inside, and their squares, stay inside
# its range or are far below any limit. Float32 numbers are inside, but for those below its smallest normal number,
# which a processor may or may not take for 0, from thread to thread.
_LEAST, _MOST = 2.0**-400, 2.0**400
_LEAST_FLOAT32 = 2.0**-126
_LEAST_LIMIT = 2.0**-300


class Part(Protocol):
    """What every record adds to a sum by one call of a layer: some numbers, times its scale."""

    @property
    def call(self) -> Call:
        """Of the layer."""

    @property
    def scale(self) -> Tensor | None:
        """Of the numbers: (n,) float64, in range or infinite; None for 1."""

    def squares(self) -> Tensor:
        """At least the squared norm (n,), float64, of what a record adds, up to the scale; not finite if it is not."""

    def summed(self, factors: Tensor) -> Mapping[str, Tensor]:
        """The sum over records, each times its factor (n,), by parameter name; float64. Called last: it overwrites.

        What is not finite has the factor 0, and is replaced: 0 times infinity would be NaN for all.
        """


@dataclass(frozen=True)
class Products:
    """A part as the products of these factors, which are taken once to be measured and once to be added.

    Attributes:
        input: the layer's input (n, ...), float64, in range or infinite (indices stay integers).
        delta: its backprop (n, ...), likewise.
        gram: Gram matrices (n, 1, 1) of these factors.
    """

    call: Call
    rule: Factored
    input: Tensor
    delta: Tensor
    gram: Tensor
    scale: Tensor | None = None

    @staticmethod
    def of(call: Call, rule: Factored, delta: Tensor, scale: Tensor | None = None) -> Products:
        """The factors (n, ...) that arrived, in float64, 0 or infinite if out of range, and their Gram matrices."""
        a, delta = in_range(call.input), in_range(delta)
        gram = rule.gram(call.layer, a, [delta])
        return Products(call, rule, a, delta, gram, None if scale is None else in_range(scale))

    def squares(self) -> Tensor:
        """As `Part.squares`, (n,), with what rounding may have hidden where products cancel."""
        squares = self.gram.reshape(-1).clone()
        reach = self.rule.reach(self.call.layer, self.input, self.delta)
        if reach is not None:
            squares = squares + reach.mul_(_lost(self.input, self.delta))
        return squares

    def summed(self, factors: Tensor) -> Mapping[str, Tensor]:
        """As `Part.summed`; each of its parameter's shape."""
        for factor in (self.input, self.delta):
            if factor.is_floating_point():
                factor.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return self.rule.gradient(self.call.layer, self.input, self.delta, factors)


@dataclass(frozen=True)
class Numbers:
    """A part as numbers that exist: what is measured and what is added are the same, however they were made.

    Attributes:
        values: (n, entries of the parameter) by name, float64, in range or infinite.
    """

    call: Call
    values: Mapping[str, Tensor]
    scale: Tensor | None = None

    def squares(self) -> Tensor:
        """As `Part.squares`, (n,): sums of squares, in which nothing cancels."""
        total, *others = [squared_norms(each) for each in self.values.values()]
        for other in others:
            total.add_(other)
        return total

    def summed(self, factors: Tensor) -> Mapping[str, Tensor]:
        """As `Part.summed`; each of its parameter's shape."""
        return {name: factors @ each.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0) for name, each in self.values.items()}


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
        own = part.squares()
        squares = squares + (own if part.scale is None else own.sqrt_().mul_(part.scale).square_())
    norms = squares.sqrt()
    room = torch.where(limits < _LEAST_LIMIT, 0.0, limits) / norms
    return torch.where(norms < math.inf, room.clamp(max=1.0), 0.0).nan_to_num(nan=0.0)


def in_range(values: Tensor) -> Tensor:
    """A float64 copy of the same shape: 0 below the range, infinity above it; indices as they are."""
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
