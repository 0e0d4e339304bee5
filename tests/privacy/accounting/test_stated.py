"""Laws of steps of which only a profile is known: they compose as what they stand for, and never cost less."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import trapezoid

from fedsw.privacy.accounting import Step, epsilon
from fedsw.privacy.accounting.profiles import stated_step, step_profile
from fedsw.privacy.accounting.selection import renyi_divergence, renyi_of
from fedsw.privacy.accounting.stated import Pure, Renyi


def randomised_responses(single: float, times: int, delta: float) -> float:
    """Epsilon at delta of so many randomised responses, from their binomial law."""
    higher = math.exp(single) / (1 + math.exp(single))

    def surplus(epsilon: float) -> float:
        total = 0.0
        for count in range(times + 1):
            one = math.comb(times, count) * higher**count * (1 - higher) ** (times - count)
            other = math.comb(times, count) * (1 - higher) ** count * higher ** (times - count)
            total += max(0.0, one - math.exp(epsilon) * other)
        return total

    low, high = 0.0, single * times
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if surplus(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("single", "times", "delta"), [(1.0, 4, 1e-2), (0.3, 20, 1e-5), (0.05, 200, 1e-6)])
def test_pure_steps_compose_as_randomised_responses_do(single, times, delta):
    found = epsilon({stated_step(Pure(single)): times}, delta)
    exact = randomised_responses(single, times, delta)
    assert exact - 1e-9 <= found <= exact * (1 + 1e-3) + 1e-3
    assert found < single * times


@pytest.mark.parametrize("step", [Step(0.1, 0.5), Step(0.02, 1.5), Step(0.7, 0.2)])
@pytest.mark.parametrize("order", [1.3, 2.0, 9.0])
def test_a_renyi_divergence_is_that_of_the_dominating_pair_from_above(step, order):
    losses = np.linspace(0, 40, 400_001)
    weight = (order - 1) * order * (np.exp((order - 1) * losses) + np.exp(-order * losses))
    exact = math.log1p(float(trapezoid(weight * step_profile(step, losses), losses))) / (order - 1)
    assert exact * (1 - 1e-6) <= renyi_divergence(step, order) <= exact * (1 + 2e-3) + 1e-12


def test_the_divergence_of_a_full_batch_is_the_normal_law_s():
    assert renyi_divergence(Step(1.0, 0.8), 7.0) == pytest.approx(7 * 0.64 / 2)


def test_a_renyi_curve_composes_with_other_steps_and_never_below_them():
    step, other, delta = Step(0.1, 0.5), Step(1.0, 0.5), 1e-5
    curve = renyi_of([(step, 100)])
    assert epsilon({step: 100}, delta) <= epsilon({stated_step(curve): 1}, delta) <= curve.epsilon(delta) * 1.001
    together = epsilon({stated_step(curve): 1, other: 1}, delta)
    assert epsilon({step: 100, other: 1}, delta) <= together < curve.epsilon(delta) + epsilon({other: 1}, delta)


def test_the_profile_of_a_curve_is_convex_and_between_the_pair_s_and_the_conversion():
    curve = renyi_of([(Step(1.0, 1.0), 1)])
    losses = np.linspace(0, 12, 2001)
    profile = curve.profile(losses)
    assert bool((profile >= step_profile(Step(1.0, 1.0), losses)).all())
    at_nodes = np.array([curve.delta(float(loss)) for loss in losses[::50]])
    assert bool((profile[::50] <= at_nodes * (1 + 1e-2) + 1e-15).all())
    slopes = np.diff(profile) / np.diff(np.exp(losses))
    assert bool((np.diff(slopes) >= -1e-12 * np.abs(slopes)[1:]).all())
    assert float(slopes[0]) >= (float(profile[0]) - 1) / 2 - 1e-9  # else it is that of no symmetric pair


def test_a_curve_without_a_finite_divergence_costs_infinity():
    assert math.isinf(epsilon({stated_step(Renyi((1.5,), (1e4,))): 1}, 1e-5))
    with pytest.raises(ValueError, match="next to no noise"):
        renyi_of([(Step(0.5, 1e3), 1)])
