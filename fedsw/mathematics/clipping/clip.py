"""From per-sample Gram matrices to the cotangents of clipped Jacobians."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Mode = Literal["spectral", "row"]


@dataclass(frozen=True)
class Safety:
    """Margins that keep a clip below its bound when the Gram matrix was computed in float32.

    The Gram matrix may err by ``eta`` of itself: every eigenvalue is raised by so much of the largest one. The bound is
    divided by ``shrink``, for rounding in the weights and in the final backward pass.
    """

    eta: float = 1e-5
    shrink: float = 1.0001

    def __post_init__(self) -> None:
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
    """Cotangents q~ with J^T q~ = (J clipped)^T q, from G = J J^T only.

    "spectral" is the exact clip of the singular values of J at the bound L, the Frobenius projection onto
    {||J||_2 <= L}: with G = V diag(lambda) V^T, q~ = V min(1, L/sqrt(lambda)) V^T q. "row" clips each of the
    d rows of J to norm L/sqrt(d), which is enough for ||J||_2 <= L but clips more.

    Guarantee: ||(J clipped)^T q|| <= L ||q|| for every q, as long as the error of `gram` is at most eta ||G||
    in spectral norm. A record with an infinite or NaN Gram matrix or cotangent gets the cotangent 0. Nothing
    branches on the values.

    Gram matrices are (n, d, d), cotangents (n, d), or (n,) if d is 1; the result has their shape, float64. An infinite
    bound leaves every finite record as it is. ValueError for a bound that is not positive, or an unknown mode.

    Source: docs/guarantees/clipping.md; RLL Remark A.2 for the row clip.
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
    """Refuse a bound that is not positive, and an unknown mode."""
    if not bound > 0:
        raise ValueError(f"bound is {bound}; a clip needs a bound above 0 (math.inf for none).")
    if mode not in ("spectral", "row"):
        raise ValueError(f"mode {mode!r} is unknown: choose 'spectral' or 'row'.")


def require_cotangents(head: Tensor, cotangents: Tensor) -> None:
    """Refuse cotangents that are not one to every output, of any shape."""
    if cotangents.numel() != head.numel() or cotangents.shape[:1] != head.shape[:1]:
        raise ValueError(
            f"cotangents of shape {tuple(cotangents.shape)} for a head of shape {tuple(head.shape)}; "
            "give one cotangent to every output."
        )


def _spectral(gram: Tensor, q: Tensor, limit: float, eta: float) -> Tensor:
    """Apply min(1, limit / sqrt(eigenvalue)) in the eigenbasis of every Gram matrix."""
    largest = gram.abs().amax(dim=(1, 2))
    scale = torch.where(largest > 0, largest, 1.0)[:, None]
    unit = gram / scale[:, None]  # finite, of at most 1: on NaN or infinity the solver would raise
    values, vectors = _eigh_2x2(unit) if gram.shape[-1] == 2 else _eigh(unit)
    values = values.clamp(min=0)
    # What float32 lost of the matrix, at most eta of its largest eigenvalue, is added to every eigenvalue: one that was
    # lost altogether would get the weight 1.
    weights = _weights((values + eta * values.amax(dim=1, keepdim=True)) * scale, limit)
    turned = torch.einsum("nrk,nr->nk", vectors, q)
    return torch.einsum("nrk,nk->nr", vectors, weights * turned)


def _weights(squares: Tensor, limit: float) -> Tensor:
    """min(1, limit / sqrt(square)), and 1 where the square is 0."""
    return squares.rsqrt().mul_(limit).clamp_(max=1.0)


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n, d) and eigenvectors (n, d, d); of a matrix without any, its Frobenius norm in every direction.

    LAPACK and cuSOLVER may give up after a number of steps. No finite matrix is known to make them; if a record's does,
    it must neither end the round nor change how the others are clipped. So each is then solved by itself, and one
    without a solution is scaled as a whole: its Frobenius norm is at least its largest eigenvalue.
    """
    try:
        solved: tuple[Tensor, Tensor] = torch.linalg.eigh(gram)
        return solved
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if len(gram) > 1:
            alone = [_eigh(gram[row : row + 1]) for row in range(len(gram))]
            return torch.cat([values for values, _ in alone]), torch.cat([vectors for _, vectors in alone])
        directions = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return torch.linalg.matrix_norm(gram).expand(gram.shape[:2]), directions.unsqueeze(0)


def _eigh_2x2(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Closed-form eigendecomposition: LAPACK's costs more than the whole gradient of a small model."""
    a, b, c = gram[:, 0, 0], gram[:, 0, 1], gram[:, 1, 1]
    mean, radius = (a + c) / 2, torch.hypot((a - c) / 2, b)
    angle = torch.atan2(2 * b, a - c) / 2  # 0 where both eigenvalues are equal, for which every basis will do
    cos, sin = angle.cos(), angle.sin()
    vectors = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    return torch.stack([mean + radius, mean - radius], 1), vectors


def row_sums(values: Tensor) -> Tensor:
    """Sums (n,) of every record's values: finite only if all its terms are."""
    if values.shape[1:].numel() == 1:
        return values.reshape(-1)
    return (values if values.dim() == 2 else values.flatten(1)).sum(1)


def finite(sums: Sequence[Tensor]) -> Tensor:
    """Mark the records (n,) of which all these sums are finite: a sum is finite only if all its terms are."""
    return functools.reduce(operator.add, sums).abs() < math.inf


_backends: Any = torch.backends
_mkldnn, _cudnn = _backends.mkldnn, _backends.cudnn
_inside: ContextVar[str] = ContextVar("full_precision", default="")  # the type of device

# The switches that the kernels read: one per operation since torch 2.9. Asking torch for its older, global
# settings raises once a caller has mixed the two kinds, so these alone are read and set.
_CPU = (
    [(backend, "fp32_precision", "ieee") for backend in (_mkldnn.matmul, _mkldnn.conv, _mkldnn.rnn)]
    if hasattr(_mkldnn, "conv")
    else []
)
_ACCELERATOR = (
    [(backend, "fp32_precision", "ieee") for backend in (_backends.cuda.matmul, _cudnn.conv, _cudnn.rnn)]
    if hasattr(_cudnn, "conv")
    else [(_cudnn, "allow_tf32", False), (_backends.cuda.matmul, "allow_tf32", False)]
)
# The fused attention of evaluation mode: a frozen encoder with a padding mask makes nested tensors of it, which have no
# shape that could be checked. With one path for all it is also the same function on every machine.
_FUSED = [(_backends.mha, "_is_fastpath_enabled", False)] if hasattr(_backends.mha, "_is_fastpath_enabled") else []
SWITCHES: list[tuple[Any, str, Any]] = _CPU + _FUSED + (_ACCELERATOR if _backends.cuda.is_built() else [])

# The switches are the process', so threads share them: the first to come notes what the caller had set, and the
# last to go puts it back. One that leaves early must not turn TF32 on under the others' clips.
_lock = threading.Lock()
_holders = 0
_callers: list[Any] = []


class full_precision:
    """Switch autocast and every reduced float32 mode off, and put the caller's settings back.

    A Gram matrix of relative error 1e-3 (TF32, bfloat16) lets Jacobians through that are far above the bound;
    cuDNN's TF32 is on by default. Nested in itself, for the same type of device, it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        if _inside.get() == self._device:
            return
        self._token = _inside.set(self._device)
        _hold()
        self._autocast: torch.autocast | None = None
        if torch.is_autocast_enabled(self._device):
            self._autocast = torch.autocast(self._device, enabled=False)
            self._autocast.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *failure: Any) -> None:
        if self._token is None:
            return
        try:
            if self._autocast is not None:
                self._autocast.__exit__(*failure)
        finally:
            _let_go()
            _inside.reset(self._token)
            self._token = None


def _hold() -> None:
    global _holders
    with _lock:
        current = [getattr(backend, switch) for backend, switch, _ in SWITCHES]
        if not _holders:
            _callers[:] = current
        for (backend, switch, exact), value in zip(SWITCHES, current, strict=True):
            if value != exact:
                setattr(backend, switch, exact)
        _holders += 1


def _let_go() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders:
            return
        for (backend, switch, exact), value in zip(SWITCHES, _callers, strict=True):
            if value != exact:
                setattr(backend, switch, value)
