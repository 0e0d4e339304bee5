"""Laws of calibration: the budget is met, and hardly anything is wasted."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting import Slicing, Step, epsilon, epsilon_by, noise_multiplier, steps

few = settings(deadline=None, derandomize=True, max_examples=6)


@few
@given(
    st.floats(-3, 0).map(lambda exponent: 10.0**exponent),
    st.integers(1, 3000),
    st.floats(0.05, 20.0),
    st.floats(-8, -3).map(lambda exponent: 10.0**exponent),
)
def test_the_multiplier_meets_epsilon_and_a_little_less_noise_does_not(p, count, target, delta):
    multiplier = noise_multiplier(target, delta, sampling_rate=p, steps=count)
    assert epsilon({Step(p, 1 / multiplier): count}, delta) <= target
    if multiplier > 0.011:
        assert epsilon({Step(p, 1 / (multiplier * (1 - 1e-4))): count}, delta) > target


@pytest.mark.parametrize("target", [0.1 * k for k in range(1, 31)])
def test_rounding_in_sigma_over_sensitivity_cannot_break_the_budget(target):
    multiplier = noise_multiplier(target, 1e-5, sampling_rate=1.0, steps=1)
    assert epsilon({Step(1.0, (1 + 9e-7) / multiplier): 1}, 1e-5) <= target


@few
@given(st.floats(-2, 0).map(lambda exponent: 10.0**exponent), st.floats(0.5, 5.0), st.floats(0.3, 8.0))
def test_the_steps_fit_and_one_more_does_not(p, multiplier, target):
    count = steps(target, 1e-6, sampling_rate=p, noise_multiplier=multiplier)
    step = Step(p, 1 / multiplier)
    assert epsilon({step: count}, 1e-6) <= target
    assert epsilon({step: count + 1}, 1e-6) > target


def test_a_full_batch_needs_the_noise_of_the_gaussian_mechanism():
    """mu of 100 steps at multiplier m is 10 / m; epsilon 4.37718 at delta 1e-5 is 1-GDP."""
    multiplier = noise_multiplier(4.37718, 1e-5, sampling_rate=1.0, steps=100)
    assert 10.0 <= multiplier <= 10.003


@pytest.mark.parametrize("slicing", [Slicing(50, 10), Slicing(50, 10, "orthogonal"), Slicing(10, 40, "orthogonal")])
def test_noise_and_steps_of_slices_meet_epsilon_and_waste_little(slicing):
    multiplier = noise_multiplier(2.0, 1e-5, sampling_rate=0.05, steps=200, slicing=slicing)
    assert epsilon({Step(0.05, 1 / multiplier, slicing=slicing): 200}, 1e-5) <= 2.0
    assert epsilon({Step(0.05, 1 / (multiplier * (1 - 1e-4)), slicing=slicing): 200}, 1e-5) > 2.0
    count = steps(2.0, 1e-5, sampling_rate=0.05, noise_multiplier=multiplier, slicing=slicing)
    assert 200 <= count <= 201
    plain = noise_multiplier(2.0, 1e-5, sampling_rate=0.05, steps=200)
    assert multiplier == pytest.approx(plain * math.sqrt(slicing.share), rel=0.1)


@pytest.mark.parametrize("accountant", ["bernstein", "bernstein-published", "clt"])
def test_the_papers_accountants_find_noise_for_slices_of_whole_images(accountant):
    """Of 784 pixels: calibration begins where noise is so large that dp_accounting's formulas leave floating point."""
    pytest.importorskip("dp_accounting")
    asked = {"sampling_rate": 0.0083, "steps": 40, "slicing": Slicing(784, 70), "accountant": accountant}
    multiplier = noise_multiplier(10.0, 1e-5, **asked)
    step = Step(0.0083, 1 / multiplier, slicing=Slicing(784, 70))
    assert 9.99 < epsilon_by(accountant, {step: 40}, 1e-5) <= 10.0


def test_poisson_needs_less_noise_for_its_weaker_relation():
    poisson = noise_multiplier(1.0, 1e-5, sampling_rate=0.01, steps=1000, sampling="poisson")
    assert poisson < noise_multiplier(1.0, 1e-5, sampling_rate=0.01, steps=1000)


@pytest.mark.parametrize("accountant", ["gdp-clt-uniform", "gdp-clt-poisson"])
def test_a_comparison_accountant_can_decide_instead(accountant):
    multiplier = noise_multiplier(1.0, 1e-5, sampling_rate=0.01, steps=1000, accountant=accountant)
    reached = epsilon_by(accountant, {Step(0.01, 1 / multiplier): 1000}, 1e-5)
    assert reached <= 1.0 < reached * 1.001


def test_a_budget_for_less_than_one_step_allows_none():
    assert steps(0.01, 1e-6, sampling_rate=1.0, noise_multiplier=0.5) == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"epsilon": math.inf}, "epsilon is inf"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"delta": 1e-11}, "delta is 1e-11"),
        ({"sampling_rate": 0.0}, "sampling_rate is 0.0"),
        ({"sampling_rate": 1.5}, "sampling_rate is 1.5"),
        ({"steps": 0}, "steps = 0"),
        ({"accountant": "moments"}, "'moments'"),
        ({"accountant": "laplace"}, "'laplace' is of laplace noise"),
        ({"steps": 10**7, "delta": 1e-10, "epsilon": 1e-3}, "of it is set aside for the floating-point round-off"),
    ],
)
def test_an_impossible_budget_is_refused_by_name(change, named):
    asked = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10} | change
    with pytest.raises(ValueError, match=named):
        noise_multiplier(**asked)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan])
def test_a_multiplier_that_is_not_positive_is_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier is"):
        steps(1.0, 1e-5, sampling_rate=0.1, noise_multiplier=multiplier)


def test_steps_of_normal_noise_are_not_counted_by_what_laplace_noise_costs():
    with pytest.raises(ValueError, match="'laplace' is of laplace noise"):
        steps(1.0, 1e-5, sampling_rate=0.1, noise_multiplier=1.0, accountant="laplace")
