"""Clipping as the papers define it: one Jacobian a record, materialised, its singular values clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping import Tape, Term, clipped_sum, record

Build = Callable[[], nn.Module]
Draw = Callable[[int], Tensor]


class Flat(nn.Module):
    """Layers in a row, with the output of a record as one vector."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


def jacobian(module: nn.Module, x: Tensor, i: int, head: Callable[..., Tensor] | None = None) -> Tensor:
    """The (d, r) Jacobian of record i run alone, row by row, through plain autograd."""
    outputs = module(x[i : i + 1])
    outputs = (outputs if head is None else head(outputs, i)).reshape(-1)
    trained = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for value in outputs:
        parts = torch.autograd.grad(value, trained, retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts, strict=True)]
        rows.append(torch.cat([each.reshape(-1) for each in flat]))
    return torch.stack(rows).double()


def spectral_clip(j: Tensor, bound: float) -> Tensor:
    """Nearest matrix with singular values at most `bound`."""
    u, s, v = torch.linalg.svd(j, full_matrices=False)
    return u @ torch.diag(s.clamp(max=bound)) @ v


def row_clip(j: Tensor, bound: float) -> Tensor:
    """Every row scaled down to norm bound / sqrt(d) (RLL Remark A.2)."""
    limit = bound / math.sqrt(len(j))
    return j * (limit / j.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)


CLIPS = {"spectral": spectral_clip, "row": row_clip}


def naive_sum(
    module: nn.Module,
    x: Tensor,
    cotangents: Tensor,
    bound: float,
    mode: str = "spectral",
    head: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Sum over records of (clipped Jacobian)^T cotangent."""
    return sum(
        CLIPS[mode](jacobian(module, x, i, head), bound).T @ cotangents[i].double().reshape(-1) for i in range(len(x))
    )


def clipped_jacobian(module: nn.Module, record_x: Tensor, bound: float, mode: str = "spectral") -> Tensor:
    """The (d, r) matrix that one record's contribution really is, read off with unit cotangents."""
    rows = []
    for r in range(module(record_x).shape[1]):
        tape = record(module, record_x)
        unit = torch.zeros(1, tape.raw.shape[1], dtype=torch.float64)
        unit[0, r] = 1.0
        rows.append(clipped_sum(tape, [Term(tape.raw, unit, bound, mode)]))
    return torch.stack(rows)


def autograd_sum(module: nn.Module, outputs: Tensor, cotangents: Tensor) -> Tensor:
    """What an ordinary backward pass from `outputs` releases."""
    trained = [p for p in module.parameters() if p.requires_grad]
    parts = torch.autograd.grad(outputs, trained, cotangents.to(outputs.dtype), retain_graph=True)
    return torch.cat([each.reshape(-1) for each in parts]).double()


@contextmanager
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def weighed_sum(tape: Tape, terms: Sequence[tuple[Tensor, Tensor]], limits: Tensor | None = None) -> Tensor:
    """What heads leave in the sum under given weights of their columns, cut to the limits (n,) of records alone."""
    weights = [q.detach().double().reshape(tape.records, -1) for _, q in terms]
    if limits is None:
        limits = torch.full((tape.records,), math.inf, dtype=torch.float64)
    heads = [head for head, _ in terms]
    (found,) = tape.clipped(heads, lambda rows, grams: [each[rows] for each in weights], limits, [tape.records])
    return found
