"""RLL's table 5: what clipping costs over plain autodiff, side by side on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedsw.learning.models import mlp
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.sliced import cotangents, directions
from simulations.papers.store import Measured

_RADIUS, _BOUND = 1.0, 1.0


def ratios(*, records: int, slices: int, widths: Sequence[int], turns: int) -> Measured:
    """Times of both ways to the gradient of SW2^2(g(X), Z), and their ratio, for one hidden layer of each width (w,).

    Both ways take turns, so that a busy machine slows both; a time is the median of its turns. `plain` differentiates
    through the sorts, `clipped` clips every record's Jacobian in spectral norm first, as training does. Values are
    `ratio_<width>`; arrays `widths`, `plain`, `clipped` in seconds (w,).
    """
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"plain": [], "clipped": []}
    for width in widths:
        model = mlp(2, (int(width),), 2)
        inputs = torch.randn((records, 2), generator=generator)
        target = torch.randn((records, 2), generator=generator)
        normals = torch.randn((2, slices), dtype=torch.float64, generator=generator)
        theta = directions(2, slices, normals=normals)
        ways = {"plain": plain_gradient, "clipped": clipped_gradient}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns + 1):  # the first warms up
            for name, way in ways.items():
                seconds = _seconds(way, model, inputs, target, theta)
                times[name] += [seconds] if turn else []
        for name, turned in times.items():
            found[name].append(statistics.median(turned))
    values = {f"ratio_{width}": c / p for width, p, c in zip(widths, found["plain"], found["clipped"], strict=True)}
    return Measured(values, {"widths": np.array(widths), **{name: np.array(times) for name, times in found.items()}})


def plain_gradient(model: nn.Module, inputs: Tensor, target: Tensor, theta: Tensor) -> Tensor:
    """Gradient (r,) of SW2^2 between a model's outputs for inputs (n, p) and a target (n, d), slices theta (d, k)."""
    slices = theta.to(inputs.dtype)
    gaps = (model(inputs) @ slices).sort(dim=0).values - (target @ slices).sort(dim=0).values
    parts = torch.autograd.grad(gaps.square().mean(), list(model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def clipped_gradient(
    model: nn.Module, inputs: Tensor, target: Tensor, theta: Tensor, *, radius: float = _RADIUS, bound: float = _BOUND
) -> Tensor:
    """The same (r,) with outputs projected to a radius and every Jacobian clipped to a bound."""
    tape = record(model, inputs)
    inside = tape.raw * (radius / torch.linalg.vector_norm(tape.raw, dim=1, keepdim=True).clamp(min=radius))
    own, _ = cotangents(inside, target, theta)
    return clipped_sum(tape, [Term(tape.raw, own, bound)])


def _seconds(way: Callable[..., Tensor], *arguments: object) -> float:
    began = time.perf_counter()
    way(*arguments)
    return time.perf_counter() - began
