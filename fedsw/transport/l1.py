"""All l1 distances between two sets of points, and their gradient, by matrix-vector products over whole rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def l1_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_i - y_j||_1 of all pairs, (n, m), differentiable in both; memory O(nm + (n + m) d).

    What `torch.cdist(x, y, p=1)` computes, in less time: that takes one pair and one coordinate after the other.

    Args:
        x: points (n, d).
        y: points (m, d), of the same floating type.
    """
    distances: Tensor = _Distances.apply(x, y)  # type: ignore[no-untyped-call]
    return distances


class _Distances(torch.autograd.Function):
    """The derivative in x_ik is the sum over j of w_ij sign(x_ik - y_jk), and 0 where both are equal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        # |a - b| = 2 max(a, b) - a - b
        sums, larger, ones = x.new_empty(len(x), len(y)), torch.empty_like(y), x.new_ones(x.shape[1])
        for row, point in zip(sums, x, strict=True):
            torch.maximum(y, point, out=larger)
            torch.mv(larger, ones, out=row)
        distances = 2 * sums - x.sum(dim=1).unsqueeze(1) - y.sum(dim=1)
        return distances.clamp_(min=0.0)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return (_signed(x, y, weights) if needs_x else None, _signed(y, x, weights.T) if needs_y else None)


def _signed(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The sums over j of weights_ij sign(x_i - y_j), (n, d), of points (n, d) and (m, d)."""
    sums, signs = torch.empty_like(x), torch.empty_like(y)
    for row, point, weight in zip(sums, x, weights, strict=True):
        torch.sub(point, y, out=signs).sign_()
        torch.mv(signs.T, weight, out=row)
    return sums
