"""The last word on a record: its part of the sum is measured as it is released, and cut to what it may weigh."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsw.clipping.blocks import Call

# What rounding can hide, relative to the reach of a record (see `Rule.reach`): in a squared norm, per number of the
# factors; in a sum over records, per product, so much above its unit roundoff that what is hidden stays unimportant.
_LOST_IN_NORM = 2.0**-51
_LOST_IN_SUM = 2.0**-40


def cuts(reached: Sequence[tuple[Call, Tensor]], limits: Tensor) -> Tensor:
    """Factors (n,) in [0, 1], float64, that bring every record's part of a sum within its limit.

    Guarantee: a record's part, times its factor, has at most the norm of its limit, whatever the passes through the
    network did to its backprops: it is measured from the same factors that the sum is made of. A record whose part is
    not finite, or too large for the precision of the sum, gets 0. Nothing branches on the values.

    Args:
        reached: the calls that a backward pass reached, each with its backprop.
        limits: (n,), float64, infinity for none.

    Source: docs/guarantees.md, "Theorem: what leaves is what was measured".
    """
    squares = torch.zeros_like(limits)
    for call, delta in reached:
        squares = squares + call.rule.gram(call.layer, call.input, [delta]).reshape(-1)
        reach = call.rule.reach(call.layer, call.input, delta)
        if reach is not None:
            squares = squares + reach.mul_(_lost(call.input, delta))
    norms = squares.sqrt()
    room = limits / norms
    largest = min(torch.finfo(delta.dtype).max for _, delta in reached)
    return torch.where(norms < largest, room.clamp(max=1.0), 0.0).nan_to_num(nan=0.0)


def _lost(a: Tensor, delta: Tensor) -> float:
    """What rounding can hide of the squared norm of a record's part, relative to its squared reach."""
    sizes = a.shape[1:].numel() + delta.shape[1:].numel()
    return _LOST_IN_NORM * sizes + (_LOST_IN_SUM * delta.numel()) ** 2
