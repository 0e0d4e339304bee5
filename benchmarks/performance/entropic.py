"""A step of the entropic loss against POT as one would call it, at the marginal error that POT's 400 iterations reach.

A step is the costs, the plan and the gradient in the generated points. POT's kernel-domain `sinkhorn` and its log
domain are called on the same costs with 400 iterations each; ours gets their marginal error as its tolerance.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.performance.comparing import Row, faster, sides
from fedsw.mathematics.transport.entropic import _costs, _marginal_error, entropic_loss

_ITERATIONS = 400
_LEAST = 1e-12
_CASES = ((400, 784, 2, 0.3), (400, 784, 2, 0.2), (400, 784, 2, 0.15), (400, 400, 784, 4.0))


def measure(quick: bool) -> list[Row]:
    """Rows by numbers of points, dimension and scale."""
    rows = []
    for n, m, d, scale in [(40, 80, 2, 0.3)] if quick else _CASES:
        rng = np.random.default_rng(0)
        x = torch.from_numpy(rng.standard_normal((n, d))).requires_grad_()
        y = torch.from_numpy(1.3 * rng.standard_normal((m, d)) + 0.5)
        import ot

        for name, solver in (("ot.sinkhorn", ot.sinkhorn), ("ot.bregman.sinkhorn_log", ot.bregman.sinkhorn_log)):
            rows.append(_row(x, y, scale, name, solver, turns=2 if quick else 5))
    return rows


def _row(x: Tensor, y: Tensor, scale: float, name: str, solver: Callable[..., object], *, turns: int) -> Row:
    plan = _pots_plan(x, y, scale, solver)
    error = max(_marginal_error(plan), _LEAST)
    ours = entropic_loss(x, y, order=2, scale=scale, tolerance=error, iterations=20_000)
    if not ours.marginal_error <= error:
        raise AssertionError(f"our marginal error {ours.marginal_error} is above {error}")
    ways = {
        "ours": lambda: entropic_loss(x, y, order=2, scale=scale, tolerance=error, iterations=20_000).loss.backward(),
        "other": functools.partial(_pots_step, x, y, scale, solver),
    }
    what = f"entropic step, {len(x)} x {len(y)} points of R^{x.shape[1]}, scale {scale:g}, marginal error {error:.1e}"
    note = "iterations follow the problem's own rate, and each reads the kernel twice: memory"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return faster(what, f"{name}, {_ITERATIONS} iterations", sides(ways, turns=turns), goal=3.0, note=note)


def _pots_plan(x: Tensor, y: Tensor, scale: float, solver: Callable[..., object]) -> np.ndarray:
    costs = _costs(x.detach(), y, 2).numpy()
    sides = (np.full(size, 1 / size) for size in costs.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(solver(*sides, costs, 2 * scale**2, numItermax=_ITERATIONS, stopThr=0, warn=False))


def _pots_step(x: Tensor, y: Tensor, scale: float, solver: Callable[..., object]) -> None:
    plan = torch.from_numpy(_pots_plan(x, y, scale, solver))
    (plan * _costs(x, y, 2)).sum().backward()
