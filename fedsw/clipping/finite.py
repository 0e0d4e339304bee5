"""Which records have finite values, and how the others are taken out without branching on any value."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor


def row_sums(values: Tensor) -> Tensor:
    """Sums (n,) of every record's values: finite only if all its terms are."""
    if values.shape[1:].numel() == 1:
        return values.reshape(-1)
    return (values if values.dim() == 2 else values.flatten(1)).sum(1)


def finite(sums: Sequence[Tensor]) -> Tensor:
    """Which records have finite values in all of several (n,): a sum is finite only if all its terms are."""
    return functools.reduce(operator.add, sums).abs() < math.inf


def clean(values: Tensor, factors: Tensor) -> Tensor:
    """Every record times its factor (n,), and 0 where that is 0: 0 times what is not finite would be NaN for all."""
    if not values.is_floating_point():
        return values
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return finite.mul_(factors.reshape(-1, *[1] * (values.dim() - 1)))
