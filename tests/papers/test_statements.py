"""What the papers state beside the theorems that fedsw relies on: laws, distances, bounds, a counterexample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.flow import noised_swd
from tests.doors import release_on

SIZES = st.floats(0.05, 5.0)


@settings(max_examples=200, deadline=None)
@given(r=st.integers(1, 10**6), t=st.floats(1e-3, 60.0))
def test_the_square_of_normal_noise_exceeds_corollary_4_2s_bound_with_less_than_its_delta(r: int, t: float) -> None:
    assert stats.chi2.sf(r + 2 * math.sqrt(r * t) + 2 * t, r) <= math.exp(-t)


def test_with_either_term_of_corollary_4_2_halved_it_is_no_bound() -> None:
    assert stats.chi2.sf(1000 + math.sqrt(1000 * 10.0) + 20, 1000) > math.exp(-10.0)
    assert stats.chi2.sf(1 + 2 * math.sqrt(20.0) + 20.0, 1) > math.exp(-20.0)


def published_gradient(x: torch.Tensor, seed: int) -> torch.Tensor:
    """RLL, D.1: the gradient in (slope, shift) of DP-SWD between a hard sigmoid of x and z = 0, both noised."""
    theta = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    outputs = (theta[0] * x + theta[1]).clamp(0, 1)[:, None]
    line, noise = torch.ones((1, 1), dtype=torch.float64), Stream.seeded(seed, "z")
    slices = release_on(x.new_zeros((4, 1)), line, radius=1.0, sigma=0.4, noise_stream=noise)
    match = noised_swd(outputs.detach(), [slices], order=2, dummy=True, stream=Stream.seeded(seed, "x"))
    outputs.backward(match.cotangents)
    assert theta.grad is not None
    return theta.grad


def test_noised_slices_protect_no_record_that_the_map_acts_on() -> None:
    x = torch.tensor([-3.0, -1.5, 1.5, 3.0], dtype=torch.float64)
    replaced = torch.cat([x[1:], x.new_tensor([0.5])])
    for seed in range(50):
        assert published_gradient(x, seed).abs().max() == 0
        assert published_gradient(replaced, seed).abs().max() > 0


def smoothed_distance(one: np.ndarray, other: np.ndarray, sigma: float, order: int) -> float:
    """DP-SWD of two Gaussians (mean, variances by axis), whose smoothed projections are Gaussian."""
    angles = np.linspace(0, math.pi, 64, endpoint=False)
    units = np.stack([np.cos(angles), np.sin(angles)])
    levels = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    laws = [(law[0] @ units, np.sqrt(law[1] @ units**2 + sigma**2)) for law in (one, other)]
    gaps = np.abs((laws[0][0] - laws[1][0])[:, None] + np.outer(laws[0][1] - laws[1][1], levels))
    return float((gaps**order).mean() ** (1 / order))


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(SIZES, min_size=12, max_size=12), sigma=st.floats(0.01, 3.0), order=st.sampled_from([1, 2]))
def test_smoothed_sliced_distances_are_symmetric_and_satisfy_the_triangle_inequality(numbers, sigma, order) -> None:
    a, b, c = np.array(numbers).reshape(3, 2, 2)
    ab, bc, ac = (smoothed_distance(*pair, sigma, order) for pair in ((a, b), (b, c), (a, c)))
    assert ac <= ab + bc + 1e-9
    assert smoothed_distance(b, a, sigma, order) == pytest.approx(ab)


def test_the_square_without_its_root_is_no_distance() -> None:
    a, b, c = (np.array([[mean, 0.0], [1.0, 1.0]]) for mean in (0.0, 1.0, 2.0))
    ab, bc, ac = (smoothed_distance(*pair, 0.5, 2) ** 2 for pair in ((a, b), (b, c), (a, c)))
    assert ac > ab + bc


def entropic_gap(divergence: float, order: int, sigma: float) -> float:
    """What the divergence of smoothed laws is multiplied by in the corrected Theorem 1 (ii)."""
    return order * sigma**order * divergence


@settings(max_examples=200, deadline=None)
@given(mean=st.floats(-4, 4), own=SIZES, other=SIZES, sigma=SIZES)
def test_the_smoothed_divergence_of_gaussians_is_below_their_distance_over_2_sigma_squared(
    mean: float, own: float, other: float, sigma: float
) -> None:
    target, generated = own**2 + sigma**2, other**2 + sigma**2
    divergence = 0.5 * (target / generated + mean**2 / generated - 1 - math.log(target / generated))
    assert entropic_gap(divergence, 2, sigma) <= mean**2 + (own - other) ** 2 + 1e-9


@settings(max_examples=25, deadline=None)
@given(shift=st.floats(0, 4), sigma=st.floats(0.1, 3.0))
def test_the_smoothed_divergence_of_points_under_laplace_noise_is_below_their_distance_over_sigma(
    shift: float, sigma: float
) -> None:
    law = stats.laplace(scale=sigma)
    divergence, _ = integrate.quad(
        lambda y: law.pdf(y) * (law.logpdf(y) - law.logpdf(y - shift)), -40 * sigma, shift + 40 * sigma,
        points=[0.0, shift], limit=200,
    )  # fmt: skip
    assert entropic_gap(divergence, 1, sigma) <= shift + 1e-6


def test_without_that_factor_theorem_1_ii_is_false_where_there_is_little_noise() -> None:
    apart, sigma = 1.0, 0.1  # two points: the divergence is a^2 / (2 sigma^2), the distance a^2
    divergence = apart**2 / (2 * sigma**2)
    assert divergence > apart**2 and entropic_gap(divergence, 2, sigma) == pytest.approx(apart**2)
