"""RLL's appendix F: one replaced record of n moves the gradient of W_1 by 2, and that of W_2^2 by 2/n."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsw.mathematics.transport.sliced import cotangents
from simulations.papers.store import Measured


def neighbours(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two samples (n, 1) that differ in one record, x_n = 1 against x_0 = 0, and the public points (n, 1) between them.

    Source: RLL, appendix F. As sets they differ in one record; the paper numbers the second one by its own ranks.
    """
    grid = torch.arange(n + 1, dtype=torch.float64)[:, None] / n
    moved = torch.cat([torch.zeros((1, 1), dtype=torch.float64), grid[1:-1]])
    first = torch.cat([grid[-1:], grid[1:-1]])
    public = (2 * torch.arange(1, n + 1, dtype=torch.float64)[:, None] - 1) / (2 * n)
    return first, moved, public


def gradient_of_w1(sample: Tensor, public: Tensor, theta: float = 0.0) -> float:
    """Derivative in theta of W_1(sample + theta, public) of samples (n, 1): the mean sign of sorted differences."""
    gaps = (sample + theta).sort(dim=0).values - public.sort(dim=0).values
    return float(gaps.sign().mean())


def gradient_of_w2_squared(sample: Tensor, public: Tensor, theta: float = 0.0) -> float:
    """Derivative in theta of W_2^2(sample + theta, public) for samples (n, 1), by fedsw's cotangents."""
    own, _ = cotangents(sample + theta, public, torch.ones((1, 1), dtype=torch.float64))
    return float(own.sum())


def sensitivities(sizes: Sequence[int]) -> Measured:
    """What replacing the record moves each gradient at theta = 0, for sample sizes (s,); and both along theta.

    Arrays: `sizes`, `w1`, `w2_squared` (s,); `theta`, `value_first`, `value_moved` (t,) of W_1 for n = 8.
    """
    moves: dict[str, list[float]] = {"w1": [], "w2_squared": []}
    for n in sizes:
        first, moved, public = neighbours(int(n))
        moves["w1"].append(abs(gradient_of_w1(first, public) - gradient_of_w1(moved, public)))
        both = gradient_of_w2_squared(first, public), gradient_of_w2_squared(moved, public)
        moves["w2_squared"].append(abs(both[0] - both[1]))
    first, moved, public = neighbours(8)
    theta = np.linspace(-0.25, 0.25, 201)
    curves = {
        name: np.array([float((sample.sort(dim=0).values + t - public).abs().mean()) for t in theta])
        for name, sample in (("value_first", first), ("value_moved", moved))
    }
    arrays = {"sizes": np.array(sizes), **{name: np.array(values) for name, values in moves.items()}}
    largest = {f"{name}_at_{sizes[-1]}": values[-1] for name, values in moves.items()}
    return Measured(largest, {**arrays, "theta": theta, **curves})
