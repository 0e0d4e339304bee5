"""Lemmas and propositions that the papers state on the way: computed where they can be, by means of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, optimize, special, stats

Array = NDArray[np.float64]
POINTS = st.lists(st.floats(-5, 5).map(lambda value: round(value, 3)), min_size=1, max_size=6, unique=True)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.0), (1.0, 0.5), (3.0, 2.0), (2.0, 3.0)])
def test_rll_lemma_2_3_is_the_hockey_stick_of_two_normal_laws(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x))

    begins = mu / 2 + epsilon / mu  # the densities' ratio is e^epsilon there
    delta, _ = integrate.quad(excess, begins, begins + 40, limit=200)
    printed = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert printed == pytest.approx(delta, rel=1e-6, abs=1e-14)


def overlaps(n: int, m: int) -> Array:
    """RLL's R: the length that the i-th of n equal parts of [0, 1] and the j-th of m have in common."""
    i, j = np.arange(n)[:, None], np.arange(m)[None, :]
    common = np.minimum((i + 1) / n, (j + 1) / m) - np.maximum(i / n, j / m)
    return np.maximum(common, 0.0)


def by_ranks(u: Array, v: Array) -> float:
    """W2^2 by RLL's Proposition 3.1."""
    weights = overlaps(len(u), len(v))[np.ix_(stats.rankdata(u).astype(int) - 1, stats.rankdata(v).astype(int) - 1)]
    return float((weights * (u[:, None] - v) ** 2).sum())


@settings(max_examples=50, deadline=None)
@given(u=POINTS, v=POINTS)
def test_rll_proposition_3_1_is_the_optimal_transport_of_points_of_any_two_numbers(
    u: list[float], v: list[float]
) -> None:
    first, second = np.array(u), np.array(v)
    copies = np.repeat(first, len(v))[:, None] - np.repeat(second, len(u))
    rows, columns = optimize.linear_sum_assignment(copies**2)
    assert by_ranks(first, second) == pytest.approx(float((copies[rows, columns] ** 2).mean()), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(u=POINTS, v=POINTS)
def test_rll_proposition_3_2_is_the_derivative_where_no_two_points_tie(u: list[float], v: list[float]) -> None:
    first, second = np.array(u), np.array(v)
    weights = overlaps(len(u), len(v))[
        np.ix_(stats.rankdata(first).astype(int) - 1, stats.rankdata(second).astype(int) - 1)
    ]
    printed = 2 * (weights * (first[:, None] - second)).sum(axis=1)
    for position, step in enumerate(1e-4 * np.eye(len(u))):
        slope = (by_ranks(first + step, second) - by_ranks(first - step, second)) / 2e-4
        assert slope == pytest.approx(printed[position], abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(batch=st.integers(1, 64), clip=st.floats(0.1, 5.0), seed=st.integers(0, 1000))
def test_rr_3_1_a_sum_of_clipped_gradients_moves_by_2_c_whatever_the_batch(batch: int, clip: float, seed: int) -> None:
    """So noise z C on it has the epsilon of (q, z, T) alone, and subsampling amplifies it as it does noised slices."""
    gradients = np.random.default_rng(seed).normal(size=(batch, 3)) * 10
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1.0, clip / lengths)
    opposite = clipped.copy()
    opposite[0] *= -clip / np.linalg.norm(clipped[0])
    clipped[0] *= clip / np.linalg.norm(clipped[0])
    assert np.linalg.norm(clipped.sum(axis=0) - opposite.sum(axis=0)) == pytest.approx(2 * clip)


@pytest.mark.parametrize(("alpha", "delta", "sigma"), [(2.0, 3.0, 1.5), (5.0, 0.5, 1.0), (1.5, 4.0, 3.0)])
def test_rr_remark_2_has_the_square_of_the_sensitivity(alpha: float, delta: float, sigma: float) -> None:
    one, other = stats.norm(delta, sigma), stats.norm(0.0, sigma)
    shift = alpha * delta
    value, _ = integrate.quad(
        lambda x: math.exp(alpha * one.logpdf(x) + (1 - alpha) * other.logpdf(x)),
        shift - 30 * sigma,
        shift + 30 * sigma,
    )
    divergence = math.log(value) / (alpha - 1)
    assert divergence == pytest.approx(alpha * delta**2 / (2 * sigma**2))
    assert divergence != pytest.approx(alpha * delta / (2 * sigma**2), rel=0.1)  # without the square


GRID = np.linspace(-10, 10, 201)


def entropic(points: Array, weights: Array, target: Array, order: int, scale: float) -> float:
    """min E|U - V|^p + scale I(U, V) between points and a law on GRID, by Sinkhorn's iterations."""
    costs = np.abs(points[:, None] - GRID) ** order
    logs, log_target = np.log(weights), np.log(np.maximum(target, 1e-300))
    f, g = np.zeros(len(points)), np.zeros(len(GRID))
    for _ in range(200):
        g = -scale * special.logsumexp((f[:, None] - costs) / scale + logs[:, None], axis=0)
        f = -scale * special.logsumexp((g - costs) / scale + log_target, axis=1)
    return float(weights @ f + target @ g)


def released(points: Array, weights: Array, order: int, sigma: float) -> Array:
    """The law on GRID of points under noise of density exp(-|x|^p / (p sigma^p))."""
    kernel = np.exp(-(np.abs(GRID - points[:, None]) ** order) / (order * sigma**order))
    law = weights @ (kernel / kernel.sum(axis=1, keepdims=True))
    return np.asarray(law, dtype=np.float64)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_rco_lemma_5_1_holds_with_p_sigma_to_the_p_for_both_orders(order: int, sigma: float) -> None:
    true, other = (np.array([-1.0, 2.0]), np.array([0.3, 0.7])), (np.array([0.0, 1.0, 2.5]), np.array([0.2, 0.5, 0.3]))
    scale = order * sigma**order
    seen, made = released(*true, order, sigma), released(*other, order, sigma)
    divergence = float((seen * (np.log(seen) - np.log(made))).sum())
    gap = entropic(*other, seen, order, scale) - entropic(*true, seen, order, scale)
    assert 0 < scale * divergence <= gap + 1e-6


def smoothed(weights: Array, points: Array, sigma: float, levels: Array) -> Array:
    """Quantiles of points under N(0, sigma^2) at levels, by their distribution function on a fine grid."""
    fine = np.linspace(-10, 10, 40_001)
    cdf = weights @ stats.norm.cdf((fine - points[:, None]) / sigma)
    return np.interp(levels, cdf, fine)


def test_spf_proposition_1_needs_the_potential_smoothed_as_the_laws_are() -> None:
    """In one dimension: the derivative of W2^2/2 is the mean of psi * N_sigma, not of psi as printed."""
    sigma, levels = 0.7, (np.arange(200_000) + 0.5) / 200_000
    points = np.array([-2.0, 0.0, 1.5, 3.0])
    before, after = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.1, 0.2, 0.6])
    target = smoothed(np.array([0.1, 0.7, 0.1, 0.1]), points, sigma, levels)

    def half_squared(share: float) -> float:
        return float(((smoothed((1 - share) * before + share * after, points, sigma, levels) - target) ** 2).mean()) / 2

    slope = (half_squared(1e-2) - half_squared(-1e-2)) / 2e-2
    fine = np.linspace(-8, 8, 16_001)
    ranks = before @ stats.norm.cdf((fine - points[:, None]) / sigma)
    gradient = fine - np.interp(ranks, levels, target)
    potential = integrate.cumulative_trapezoid(gradient, fine, initial=0.0)
    as_printed = float((after - before) @ np.interp(points, fine, potential))
    kernel = stats.norm.pdf((fine - points[:, None]) / sigma) / sigma
    corrected = float((after - before) @ integrate.trapezoid(kernel * potential, fine, axis=1))
    assert corrected == pytest.approx(slope, rel=0.01)
    assert as_printed != pytest.approx(slope, rel=0.05)


def test_spf_proposition_2_needs_the_potentials_derivative_smoothed_as_the_laws_are() -> None:
    """Where a point moves, half of W2^2 of the smoothed laws moves by the mean of psi' over the noise, not by psi'."""
    sigma, levels = 0.5, (np.arange(400_000) + 0.5) / 400_000
    points, weights = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    target = smoothed(np.array([0.3, 0.7]), np.array([-1.5, 2.0]), sigma, levels)

    def half_squared(moved: float) -> float:
        law = smoothed(weights, points + np.array([moved, 0.0]), sigma, levels)
        return float(((law - target) ** 2).mean()) / 2

    slope = (half_squared(1e-2) - half_squared(-1e-2)) / 2e-2
    fine = np.linspace(-8, 8, 16_001)
    derivative = fine - np.interp(weights @ stats.norm.cdf((fine - points[:, None]) / sigma), levels, target)
    as_printed = float(weights[0] * np.interp(points[0], fine, derivative))
    kernel = stats.norm.pdf((fine - points[0]) / sigma) / sigma
    corrected = float(weights[0] * integrate.trapezoid(kernel * derivative, fine))
    assert corrected == pytest.approx(slope, rel=0.005)
    assert as_printed != pytest.approx(slope, rel=0.05)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_spf_4_1_the_smoothed_distance_does_not_vanish_with_much_noise(sigma: float) -> None:
    levels = (np.arange(200_000) + 0.5) / 200_000
    first, second = (smoothed(np.array([1.0]), np.array([point]), sigma, levels) for point in (0.0, 1.0))
    assert float(((first - second) ** 2).mean()) == pytest.approx(1.0, rel=1e-3)


def test_spf_27_takes_the_square_of_what_a_record_moves_for_the_movement() -> None:
    delta = 1e-5

    def needed(squared: float) -> float:
        """Sigma that is enough by the rule of 2.1, for a movement whose square is at most w, at epsilon = 1."""
        return math.sqrt(2 * math.log(1.25 / delta) * squared)

    def printed(squared: float, c: float) -> float:
        return c * squared

    by_2_1, by_4_3 = math.sqrt(2 * math.log(1.25 / delta)), 2 * math.log(1.25 / delta)
    assert all(printed(w, c) > needed(w) for w in (1.01, 4.0, 17.0) for c in (by_2_1, by_4_3))
    assert printed(0.01, by_2_1) == pytest.approx(needed(0.01) / 10)
    assert printed(0.01, by_4_3) < needed(0.01) / 2


def test_rco_corollary_1_recovers_points_at_the_noises_own_scale_alone() -> None:
    """Points at 1 and -1 under Laplace noise of scale 1/4: which points ±a has the least entropic distance?"""
    scale = 0.25
    halves = np.array([0.5, 0.5])
    seen = released(np.array([-1.0, 1.0]), halves, 1, scale)

    def best(regularisation: float) -> float:
        found = optimize.minimize_scalar(
            lambda a: entropic(np.array([-a, a]), halves, seen, 1, regularisation), bounds=(0.05, 2.0), method="bounded"
        )
        return float(found.x)

    assert best(scale) == pytest.approx(1.0, abs=0.03)
    assert best(1 / scale) == pytest.approx(0.7, abs=0.03)
