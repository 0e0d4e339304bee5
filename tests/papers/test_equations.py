"""Numbered equations of the papers that claim something and that no other test computes: by numbers, as printed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from tests.papers.test_lemmas import GRID, Array, entropic, overlaps, released


def terms(u: Array, before: Array, after: Array, other: Array, of_u: Array, of_other: Array) -> dict[str, float]:
    """RLL's (16), (17), (19) to (23), where the first of u goes from before to after, with Jacobians of both sides."""
    n, m = len(u), len(other)

    def weights(values: Array) -> Array:
        return overlaps(n, m)[np.ix_(np.argsort(np.argsort(values)), np.argsort(np.argsort(other)))]

    moved, own, new = u.copy(), of_u.copy(), of_u.copy()
    moved[0], new[0] = after[0], after[1:]
    u, own[0] = np.concatenate([before[:1], u[1:]]), before[1:]
    first, second = weights(u), weights(moved)
    length = np.linalg.norm
    ours = ((first * (u[:, None] - other)).sum(1)) @ own - ((second * (moved[:, None] - other)).sum(1)) @ new
    theirs = ((first * (other - u[:, None])).sum(0) - (second * (other - moved[:, None])).sum(0)) @ of_other
    slots = (first - second) @ other
    largest = length(of_u, axis=1).max()
    return {
        "16": 2 * length(ours),
        "17": 2 * length(theirs),
        "19": 2 * length(of_other, axis=1).max() * np.abs(u @ first - moved @ second).sum(),
        "20": 2 * length((u * first.sum(1)) @ own - (moved * second.sum(1)) @ new),
        "21": 2 * length(own[0] * (first[0] @ other) - new[0] * (second[0] @ other)),
        "22": 2 * length(slots[1:] @ of_u[1:]),
        "23": 2 * largest * np.abs(slots[1:]).sum(),
    }


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 8), m=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_rll_16_to_23_the_terms_of_theorem_4_1_s_proof_are_at_most_what_it_says(n: int, m: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    u, other = draw.choice([-1.0, 1.0], n) * (1 - draw.random(n) * 1e-3), draw.uniform(-1, 1, m)
    directions = draw.normal(size=(n + m + 2, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    before, after = np.append(draw.uniform(-1, 1), directions[-1]), np.append(draw.uniform(-1, 1), directions[-2])
    found = terms(u, before, after, other, directions[:n], directions[n : n + m])
    assert overlaps(n, m).sum(axis=1) == pytest.approx(np.full(n, 1 / n))  # (18)
    assert overlaps(n, m).sum(axis=0) == pytest.approx(np.full(m, 1 / m))
    assert found["17"] <= found["19"] + 1e-12 and found["22"] <= found["23"] + 1e-12
    assert found["16"] <= found["20"] + found["21"] + found["22"] + 1e-12
    for equation in ("19", "20", "21", "23"):
        assert found[equation] <= 4 / n + 1e-12, equation  # M = L1 = L2 = 1


def test_rll_c_2_and_c_4_the_laws_of_groups_are_those_of_the_made_up_records() -> None:
    draw, p, n = np.random.default_rng(0), 0.7, 400_000
    answers, agrees = draw.random((n, 2)), draw.random(n) < p
    label = answers.sum(axis=1) > 1
    group = np.where(agrees, label, ~label)
    assert group.mean() == pytest.approx(0.5, abs=0.005)
    for each in (False, True):
        assert (group[label == each] == each).mean() == pytest.approx(p, abs=0.005)  # n_jj = p n / 2
    centred = answers.sum(axis=1)[~group] - 1
    below = integrate.quad(lambda x: 2 * p * (1 + x), -1, -0.5)[0]
    above = integrate.quad(lambda x: 2 * (1 - p) * (1 - x), 0.5, 1)[0]
    assert (centred < -0.5).mean() == pytest.approx(below, abs=0.005)
    assert (centred > 0.5).mean() == pytest.approx(above, abs=0.005)


def regularised(u: Array, other: Array, strength: float) -> Array:
    """Means of the entropic plan at u, by Sinkhorn's iterations."""
    costs, g = (u[:, None] - other) ** 2, np.zeros(len(other))
    for _ in range(200):
        f = -strength * special.logsumexp((g - costs) / strength - math.log(len(other)), axis=1)
        g = -strength * special.logsumexp((f[:, None] - costs) / strength - math.log(len(u)), axis=0)
    plan = np.exp((f[:, None] + g - costs) / strength)
    return np.asarray(plan @ other / plan.sum(axis=1))


@pytest.mark.parametrize("strength", [0.05, 1.0, 20.0])
def test_entropic_penalties_move_as_far_as_without_regularisation(strength: float) -> None:
    """M = L = 1, n times the movement: the replaced record's Jacobian turns, and for the divergence its output, too."""
    n = 20
    u, other = np.ones(n), -np.ones(n)
    assert 2 * 2 * abs(u[0] - regularised(u, other, strength)[0]) == pytest.approx(8)
    moved = u.copy()
    moved[0] = -1
    before, after = (2 * (regularised(x, x, strength) - regularised(x, other, strength)) for x in (u, moved))
    debiased = abs(before[0]) + abs(after[0]) + np.abs(before[1:] - after[1:]).sum()
    assert debiased == pytest.approx({0.05: 4.0, 1.0: 4.61, 20.0: 11.43}[strength], abs=0.01)


def test_entropic_plans_move_other_records_both_ways() -> None:
    """Unregularised ones move all of them up where one record goes down, so that their moves telescope."""
    u, other = np.array([-0.5, 0.25, 1.0]), np.array([0.0, 1.0, -1.0])
    moved = np.array([-0.75, 0.25, 1.0])
    shifts = (regularised(moved, other, 0.5) - regularised(u, other, 0.5))[1:]
    assert shifts == pytest.approx([0.0646, -0.0039], abs=1e-4)


def hockey_stick(mu: float, epsilon: float) -> float:
    second = math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    return float(stats.norm.cdf(-epsilon / mu + mu / 2)) - second


@settings(max_examples=50, deadline=None)
@given(mu=st.floats(0.1, 3.0), order=st.floats(1.01, 60.0), delta=st.floats(1e-9, 0.5))
def test_rr_proposition_1_has_no_delta_that_is_too_small(mu: float, order: float, delta: float) -> None:
    epsilon = order * mu**2 / 2 + math.log(1 / delta) / (order - 1)
    assert hockey_stick(mu, epsilon) <= delta * (1 + 1e-9)


def test_spf_4_s_rule_for_gaussian_noise_holds_up_to_epsilon_1_and_not_at_the_papers_10() -> None:
    """At delta = 1e-5 and c^2 = 2 ln(1.25/delta), the least that is printed."""
    delta = 1e-5
    c = math.sqrt(2 * math.log(1.25 / delta))
    for epsilon in (0.1, 0.5, 1.0, 5.0):
        assert hockey_stick(epsilon / c, epsilon) <= delta
    assert hockey_stick(10 / c, 10.0) > 2 * delta


def test_spf_6_the_map_of_one_dimension_is_the_identity_less_a_slope_that_need_not_be_convex() -> None:
    one, other = stats.norm(0, 1), stats.norm(1, 2)
    x = np.linspace(-3, 3, 101)
    mapped = other.ppf(one.cdf(x))
    assert mapped == pytest.approx(1 + 2 * x)
    assert np.all(np.diff(mapped) > 0)  # Brenier: the map itself is the derivative of a convex function
    assert np.all(np.diff(x - mapped) < 0)  # so the printed potential's derivative falls: it is concave


def gaussian_flow(t: float, start: float, strength: float) -> float:
    """The variance at t of SPF's (9) with V = x^2/2 from N(0, start): s' = -2 s + 2 lambda."""
    return strength + (start - strength) * math.exp(-2 * t)


def test_spf_9_is_the_gradient_flow_of_10() -> None:
    """Among zero-mean Gaussians, whose W2 is the distance of deviations r: r' = -d/dr (r^2/2 - lambda ln r)."""
    strength, start = 0.3, 2.0
    for t in (0.0, 0.5, 2.0):
        r = math.sqrt(gaussian_flow(t, start, strength))
        velocity = (
            math.sqrt(gaussian_flow(t + 1e-6, start, strength)) - math.sqrt(gaussian_flow(t - 1e-6, start, strength))
        ) / 2e-6

        def value(r: float) -> float:
            return r**2 / 2 - strength * math.log(r * math.sqrt(2 * math.pi * math.e))

        assert velocity == pytest.approx(-(value(r + 1e-6) - value(r - 1e-6)) / 2e-6, rel=1e-6)


def test_spf_17_approximates_16_only_with_the_place_of_the_particle() -> None:
    """Drift -x: variances after steps of h, against those of the equation (16), which (13) has."""
    strength, h, steps = 0.3, 1e-3, 1000
    whole = printed = 2.0
    for _ in range(steps):
        whole = (1 - h) ** 2 * whole + 2 * strength * h
        printed = h**2 * printed + 2 * strength * h
    assert whole == pytest.approx(gaussian_flow(1.0, 2.0, strength), rel=2e-3)
    assert printed == pytest.approx(2 * strength * h, rel=1e-3)  # one step's noise, whatever came before


def test_spf_39_needs_plus_before_the_diffusion() -> None:
    """Heat from N(0, s): for xi = e^-t x^2 both sides are -s with a plus, and apart with the printed minus."""
    strength, s = 0.4, 1.5

    def left(sign: int) -> float:
        return integrate.quad(lambda t: math.exp(-t) * (-(s + 2 * strength * t) + sign * 2 * strength), 0, 60)[0]

    assert left(1) == pytest.approx(-s)
    assert left(-1) == pytest.approx(-s - 4 * strength)


def test_spf_40_and_42_are_limits_of_sums_over_steps() -> None:
    strength, s, h = 0.4, 1.5, 1e-3
    t = h * np.arange(40_000)
    test, second, variance = np.exp(-t), 2 * np.exp(-t), s + 2 * strength * t  # xi = e^-t x^2
    by_parts = -(test[1:] * np.diff(variance)).sum()
    left = s + integrate.quad(lambda t: -math.exp(-t) * (s + 2 * strength * t), 0, 60)[0]
    assert by_parts == pytest.approx(left, abs=5 * h)
    assert h * second[1:].sum() == pytest.approx(2.0, abs=5 * h)


def test_spf_41_lacks_the_prime_of_its_left_side() -> None:
    """Along one direction, from N(a, 1) to N(a + b, 1): psi' = -b, psi = -b (x - a); xi = x^2 / 2."""
    a, b = 0.5, 1.0
    draws = stats.norm(a, 1).ppf((np.arange(10_000) + 0.5) / 10_000)
    derivative = float((-b * draws).mean())
    as_printed = float((-b * (draws - a) * draws).mean())
    assert derivative == pytest.approx(-a * b, abs=1e-3) and as_printed == pytest.approx(-b, abs=1e-2)


def test_spf_43_needs_plus_before_the_drift_and_44_minus_lambda_before_the_diffusion() -> None:
    """One implicit step among zero-mean Gaussians of deviation r, moved along zeta = x; smoothed laws add sigma^2."""
    sigma, target, before, strength, h = 0.5, 0.4, 1.2, 0.3, 0.1
    smooth = math.hypot(target, sigma)

    def value(r: float) -> float:
        return (math.hypot(r, sigma) - smooth) ** 2 / 2 - strength * math.log(r) + (r - before) ** 2 / (2 * h)

    radii = np.linspace(0.5, 1.5, 1_000_001)
    r = float(radii[np.argmin([(np.hypot(radii, sigma) - smooth) ** 2 / 2 - strength * np.log(radii)
                               + (radii - before) ** 2 / (2 * h)])])  # fmt: skip
    assert value(r) <= min(value(r + 1e-3), value(r - 1e-3))
    step = r * (r - before) / h  # of W2^2 / 2h: the mean of grad phi times x, over h
    drift = r**2 * (1 - smooth / math.hypot(r, sigma))  # the mean of (psi' * N_sigma) x, psi' = z (1 - ratio)
    assert step + drift - strength == pytest.approx(0, abs=1e-4)
    assert abs(step - drift - strength) > 0.1  # as printed
    assert -step == pytest.approx(drift - strength, abs=1e-4)  # (44), summed over steps
    assert abs(-step - (drift + 1)) > 0.1  # as printed: plus, and no lambda


def test_spf_49_and_50_run_the_steps_of_45_backwards() -> None:
    """Without noise: a drift to 0 brings a particle there by (45), and away from it by (47) with (49)'s minus."""
    stepped = interpolated = 1.0
    for _ in range(100):
        stepped += 0.01 * -stepped
        interpolated += 0.01 * interpolated  # minus the drift
    assert stepped == pytest.approx(math.exp(-1), rel=0.01) and interpolated == pytest.approx(math.e, rel=0.01)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_rco_14_s_last_line_is_right_and_the_line_before_has_a_sign_turned(p: int, sigma: float) -> None:
    """Of one dimension, h(Y) = 0: the least of m^p - sigma^p ln(e m^p C^p), for noise of density e^(-|x|^p/(p s^p))."""
    constant = {1: 2.0, 2: math.sqrt(2 * math.pi)}[p]
    sizes = np.linspace(0.05, 6, 200_001)
    bounds = sizes**p - sigma**p * np.log(math.e * sizes**p * constant**p)
    law = stats.laplace(scale=sigma) if p == 1 else stats.norm(scale=sigma)
    assert sizes[np.argmin(bounds)] == pytest.approx(sigma, abs=1e-3)
    assert bounds.min() == pytest.approx(sigma**p * (1 - p * law.entropy()), abs=1e-6)
    turned = sigma**p * p * math.log(sigma * constant)
    assert bounds.min() == pytest.approx(-turned, abs=1e-6)
    assert integrate.quad(lambda x: abs(x) ** p * law.pdf(x), -60, 60)[0] == pytest.approx(sigma**p, rel=1e-6)


def test_rco_15_as_printed_fails_for_laplace_noise_whose_p_is_1() -> None:
    """W_{2, 2 sigma^2} is less at two points than at the point that was released: the right side is below 0."""
    sigma, one = 1.0, np.array([1.0])
    seen = released(np.zeros(1), one, 1, sigma)
    apart = entropic(np.array([-0.9, 0.9]), np.array([0.5, 0.5]), seen, 2, 2 * sigma**2)
    assert (apart - entropic(np.zeros(1), one, seen, 2, 2 * sigma**2)) / (2 * sigma**2) < -0.02


def divergence(p: Array, q: Array) -> float:
    return float((p * np.log(p / q)).sum())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rco_16_to_23_are_identities_of_finite_laws(seed: int) -> None:
    draw = np.random.default_rng(seed)
    plan, seen = draw.dirichlet(np.ones(12)).reshape(3, 4), draw.dirichlet(np.ones(4))  # of V and Y
    plan = plan / plan.sum(axis=0) * seen
    made, mixed = draw.dirichlet(np.ones(3)), plan.sum(axis=1)
    noise = draw.random((3, 4)) + 0.1
    mixture = made @ noise
    exact = divergence(seen, mixture)
    assert exact == pytest.approx(float(seen @ np.log(seen) - seen @ np.log(mixture)))  # (16)

    def upper(plan: Array) -> float:
        given_y = plan / seen
        inner = (given_y * np.log(given_y / made[:, None])).sum(axis=0)
        return float(-(plan * np.log(noise)).sum() + seen @ inner + seen @ np.log(seen))

    best = made[:, None] * noise / mixture * seen  # the supremum of (17) is at the posterior
    assert upper(best) == pytest.approx(exact) and upper(plan) >= exact - 1e-12  # (17), (18), (19)
    inner = upper(plan) - float(seen @ np.log(seen)) + float((plan * np.log(noise)).sum())
    whole = divergence(plan, np.outer(made, seen))
    given_v = plan / mixed[:, None]
    of_rows = float(mixed @ (given_v * np.log(given_v / seen)).sum(axis=1))
    assert whole == pytest.approx(divergence(mixed, made) + of_rows)  # (20)
    assert whole == pytest.approx(inner)  # (21), (22): P_Y is the plan's own marginal
    assert inner == pytest.approx(divergence(plan, np.outer(mixed, seen)) + divergence(mixed, made))  # (23)


@pytest.mark.parametrize("order", [1, 2])
def test_rco_24_and_25_bound_the_divergence_and_are_bounded_by_the_distance(order: int) -> None:
    sigma = 0.8
    scale, true, other = order * sigma**order, np.array([-1.0, 2.0]), np.array([0.0, 1.0])
    half = np.array([0.5, 0.5])
    seen, made = released(true, half, order, sigma), released(other, half, order, sigma)
    least = entropic(true, half, seen, order, scale)
    constant = {1: 2.0, 2: math.sqrt(2 * math.pi)}[order]
    entropy = -float((seen * np.log(seen / (GRID[1] - GRID[0]))).sum())
    assert least == pytest.approx(scale * (entropy - math.log(constant * sigma)), rel=0.01)
    gap = entropic(other, half, seen, order, scale) - least
    assert scale * divergence(seen, made) - 1e-4 <= gap <= float((np.abs(true - other) ** order).mean()) + 1e-6
    draw = np.random.default_rng(0)
    x, noise = draw.choice(true, 100_000), draw.laplace(size=100_000)
    made_of = other[(x > 0).astype(int)]
    left, right = (np.abs(made_of - x - noise) ** order).mean(), (np.abs(made_of - x) ** order).mean()
    assert left <= right + (np.abs(noise) ** order).mean() + 0.05  # (26)
