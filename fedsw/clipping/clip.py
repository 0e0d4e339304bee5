"""From per-sample Gram matrices to the cotangents of clipped Jacobians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["spectral", "row"]


@dataclass(frozen=True)
class Safety:
    """Margins that keep a clip below its bound when the Gram matrix was computed in float32.

    Attributes:
        eta: relative error of the Gram matrix that the clip must survive; every eigenvalue is raised by
            eta times the largest one before the weights are taken.
        shrink: the bound is divided by this, for rounding in the weights and in the final backward pass.
    """

    eta: float = 1e-5
    shrink: float = 1.0001

    def __post_init__(self) -> None:
        """Refuse margins that would loosen the clip."""
        if not (0 <= self.eta < 1 and self.shrink >= 1):
            raise ValueError(
                f"Safety(eta={self.eta}, shrink={self.shrink}): eta must be in [0, 1) and shrink at least 1. "
                "Use Safety() for float32 models, Safety.off() for float64 comparisons."
            )

    @staticmethod
    def off() -> Safety:
        """No margins: the clip of exact arithmetic, for comparisons in float64."""
        return Safety(eta=0.0, shrink=1.0)


def clip_cotangents(
    gram: Tensor, cotangents: Tensor, bound: float, *, mode: Mode = "spectral", safety: Safety | None = None
) -> Tensor:
    """Cotangents q~ with J^T q~ = (J clipped)^T q, from G = J J^T alone.

    "spectral" is the exact clip of the singular values of J at the bound L, the Frobenius projection onto
    {||J||_2 <= L}: with G = V diag(lambda) V^T, q~ = V min(1, L/sqrt(lambda)) V^T q. "row" clips each of the
    d rows of J to norm L/sqrt(d), which is enough for ||J||_2 <= L but clips more.

    Guarantee: ||(J clipped)^T q|| <= L ||q|| for every q, as long as the error of `gram` is at most eta ||G||
    in spectral norm. A record whose Gram matrix or cotangent is not finite gets the cotangent 0. Nothing
    branches on the values.

    Args:
        gram: per-sample Gram matrices (n, d, d).
        cotangents: (n, d), or (n,) if d is 1.
        bound: L > 0; infinity leaves every finite record as it is.
        mode: "spectral" or "row".
        safety: margins; the default is Safety().

    Returns:
        float64, in the shape of `cotangents`.

    Raises:
        ValueError: for a bound that is not positive, an unknown mode, or shapes that do not match.

    Source: docs/guarantees.md (clipping); RLL Remark A.2 for the row clip.
    """
    require_clip(bound, mode)
    n, d = gram.shape[0], gram.shape[-1]
    if gram.shape != (n, d, d) or cotangents.shape != (n, d) and (d > 1 or cotangents.shape != (n,)):
        raise ValueError(
            f"gram has shape {tuple(gram.shape)} and cotangents {tuple(cotangents.shape)}; "
            "they must be (n, d, d) and (n, d)."
        )
    margins = Safety() if safety is None else safety
    g, q = gram.detach().to(torch.float64), cotangents.detach().to(torch.float64).reshape(n, d)
    limit = bound / margins.shrink
    if d == 1:  # one number a record, for which both clips are the same
        return clip_numbers(g.reshape(n, 1).abs(), q, bound, safety).reshape(cotangents.shape)
    finite = torch.isfinite(g.sum((1, 2)) + q.sum(1))  # a sum is finite only if all its terms are
    g = torch.where(finite[:, None, None], g, 0.0)
    q = torch.where(finite[:, None], q, 0.0)
    if mode == "spectral":
        clipped = _spectral(g, q, limit, margins.eta)
    else:
        squares = torch.diagonal(g, dim1=1, dim2=2).clamp(min=0) * (1 + margins.eta)
        clipped = q * _weights(squares, limit / math.sqrt(d))
    return clipped.reshape(cotangents.shape)


def clip_numbers(squares: Tensor, cotangents: Tensor, bound: float, safety: Safety | None = None) -> Tensor:
    """`clip_cotangents` of Jacobians of one row each, from their squared norms: both float64, of any one shape."""
    margins = Safety() if safety is None else safety
    weights = _weights(squares, bound / (margins.shrink * math.sqrt(1 + margins.eta)))
    # 0 or not finite if the cotangent or the square is not
    return weights.mul_(cotangents).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def require_clip(bound: float, mode: str) -> None:
    """Refuse a bound that is not positive, and an unknown mode.

    Raises:
        ValueError: naming it.
    """
    if not bound > 0:
        raise ValueError(f"bound is {bound}; a clip needs a bound above 0 (math.inf for none).")
    if mode not in ("spectral", "row"):
        raise ValueError(f"mode {mode!r} is unknown: choose 'spectral' or 'row'.")


def require_cotangents(head: Tensor, cotangents: Tensor) -> None:
    """Refuse cotangents that are not one to every output.

    Raises:
        ValueError: naming both shapes.
    """
    if cotangents.numel() != head.numel() or cotangents.shape[:1] != head.shape[:1]:
        raise ValueError(
            f"cotangents of shape {tuple(cotangents.shape)} for a head of shape {tuple(head.shape)}; "
            "give one cotangent to every output."
        )


def _spectral(gram: Tensor, q: Tensor, limit: float, eta: float) -> Tensor:
    """Apply min(1, limit / sqrt(eigenvalue)) in the eigenbasis of every Gram matrix."""
    largest = gram.abs().amax(dim=(1, 2))
    scale = torch.where(largest > 0, largest, 1.0)[:, None]
    unit = gram / scale[:, None]
    values, vectors = _eigh_2x2(unit) if gram.shape[-1] == 2 else torch.linalg.eigh(unit)
    values = values.clamp(min=0)
    weights = _weights((values + eta * values.amax(dim=1, keepdim=True)) * scale, limit)
    turned = torch.einsum("nrk,nr->nk", vectors, q)
    return torch.einsum("nrk,nk->nr", vectors, weights * turned)


def _weights(squares: Tensor, limit: float) -> Tensor:
    """min(1, limit / sqrt(square)), and 1 where the square is 0."""
    return squares.rsqrt().mul_(limit).clamp_(max=1.0)


def _eigh_2x2(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Closed-form eigendecomposition: LAPACK's costs more than the whole gradient of a small model."""
    a, b, c = gram[:, 0, 0], gram[:, 0, 1], gram[:, 1, 1]
    mean, radius = (a + c) / 2, torch.hypot((a - c) / 2, b)
    angle = torch.atan2(2 * b, a - c) / 2
    cos, sin = angle.cos(), angle.sin()
    vectors = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    return torch.stack([mean + radius, mean - radius], 1), vectors
