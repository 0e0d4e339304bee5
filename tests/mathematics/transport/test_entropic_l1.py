"""Laws of l1 distances between all pairs: their values and gradients are the naive ones, ties and equal points too."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.mathematics.transport.entropic import l1_distances

SIZES = st.tuples(*[st.integers(1, 7)] * 3, st.integers(0, 1000))


def points(count: int, dimension: int, seed: int) -> torch.Tensor:
    """Points on a coarse grid, so that many coordinates tie."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, (count, dimension), generator=generator).double() / 3


@settings(max_examples=50, deadline=None)
@given(SIZES)
def test_distances_and_gradients_are_those_of_a_loop_over_pairs(sizes):
    n, m, d, seed = sizes
    x, y = points(n, d, seed), points(m, d, seed + 1)
    weights = torch.randn(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    left, right = torch.zeros(n, d, dtype=torch.float64), torch.zeros(m, d, dtype=torch.float64)
    naive = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        for j in range(m):
            naive[i, j] = (x[i] - y[j]).abs().sum()
            left[i] += weights[i, j] * torch.sign(x[i] - y[j])
            right[j] -= weights[i, j] * torch.sign(x[i] - y[j])
    x.requires_grad_(), y.requires_grad_()
    distances = l1_distances(x, y)
    torch.testing.assert_close(distances.detach(), naive, rtol=0, atol=1e-12)
    assert bool((distances >= 0).all())
    for found, expected in zip(torch.autograd.grad(distances, (x, y), weights), (left, right), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_points_against_themselves_pull_each_other_only():
    x = points(6, 4, 3).requires_grad_()
    distances = l1_distances(x, x)
    assert float(distances.detach().diagonal().abs().max()) < 1e-12
    (both,) = torch.autograd.grad(distances, x, torch.eye(6, dtype=torch.float64))
    assert float(both.abs().max()) == 0.0
