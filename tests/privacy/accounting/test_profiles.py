"""Laws of one step's privacy profile."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import ndtr, ndtri

from fedsw.privacy.accounting import Step, step_profile
from fedsw.privacy.accounting.pld import round_off
from fedsw.privacy.accounting.profiles import curves, orientations, reach

RATES = st.floats(-4, 0).map(lambda exponent: 10.0**exponent)
MUS = st.floats(-2, 0.7).map(lambda exponent: 10.0**exponent)
quick = settings(deadline=None, derandomize=True, max_examples=40)


def profile(step: Step, *epsilons: float) -> list[float]:
    return step_profile(step, np.array(epsilons)).tolist()


@quick
@given(RATES, MUS, st.floats(0.0, 3.0))
def test_without_replacement_is_the_conjugate_of_the_subsampled_trade_off_curve(p, mu, epsilon):
    """delta(eps) = sup_x 1 - e^eps x - C_p(G_mu)(x), and C_p(f) has the conjugate of min(f_p, f_p^-1)."""
    x = ndtr(np.linspace(-38, 38, 200_001))
    f_p = p * ndtr(-ndtri(x) - mu) + (1 - p) * (1 - x)
    straight = (1 - math.exp(epsilon) * x - f_p).max()
    inverse = (1 - math.exp(epsilon) * f_p - x).max()  # f_p^-1 at f_p(x) is x
    (found,) = profile(Step(p, mu), epsilon)
    assert found == pytest.approx(max(straight, inverse, 0.0), abs=2e-8)
    assert found >= max(straight, inverse) - 1e-15


@quick
@given(RATES, MUS, st.floats(0.0, 2.0))
def test_poisson_is_the_worse_of_the_hockey_sticks_between_the_mixture_and_the_normal(p, mu, epsilon):
    def normal(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def mixture(x):
        return (1 - p) * normal(x) + p * normal(x - mu)

    def divergence(upper, lower):
        points = [mu + _log_ratio(epsilon, p, mu), mu + _log_ratio(-epsilon, p, mu)]
        inside = sorted(point for point in points if -12 < point < 20)
        value, _ = integrate.quad(
            lambda x: max(0.0, upper(x) - math.exp(epsilon) * lower(x)), -12, 20, points=inside or None, limit=400
        )
        return value

    at = np.array(epsilon)
    removed, added = (float(curves(Step(p, mu, "poisson"), side)[0](at)) for side in ("remove", "add"))
    assert removed == pytest.approx(divergence(mixture, normal), rel=1e-5, abs=1e-11)
    assert added == pytest.approx(divergence(normal, mixture), rel=1e-5, abs=1e-11)
    assert profile(Step(p, mu, "poisson"), epsilon) == [max(removed, added)]


def _log_ratio(epsilon, p, mu):
    inside = 1 + math.expm1(epsilon) / p
    return (math.log(inside) + mu * mu / 2) / mu - mu if inside > 0 else math.inf


def exact_profile(p, mu, epsilon):
    """With 60 digits."""
    mp.mp.dps = 60
    x = mp.log(1 + mp.expm1(mp.mpf(epsilon)) / mp.mpf(p))
    return p * (mp.ncdf(mp.mpf(mu) / 2 - x / mu) - mp.exp(x) * mp.ncdf(-mp.mpf(mu) / 2 - x / mu))


@pytest.mark.parametrize("p", [1.0, 0.1, 1e-4, 1e-9])
@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 12.0])
def test_the_profile_keeps_its_digits_far_into_the_tail_and_for_tiny_rates(p, mu):
    step = Step(p, mu)
    end, _ = reach(step, "symmetric", 1e-20)
    epsilons = [0.0, end / 1000, end / 30, end / 3, end / 1.5, end]
    for epsilon, found in zip(epsilons, profile(step, *epsilons), strict=True):
        assert found == pytest.approx(float(exact_profile(p, mu, epsilon)), rel=1e-9 if mu < 0.01 else 1e-11)


@pytest.mark.parametrize("mu", [0.01, 0.3, 3.0, 30.0, 100.0, 700.0, 1e4])
def test_what_is_set_aside_for_floating_point_covers_the_error_of_the_profile(mu):
    """A uniform error of one step's delta adds up over the steps."""
    bulk = max(0.0, mu * mu / 2 - 4 * mu), mu * mu / 2 + 4 * mu
    epsilons = np.linspace(*bulk, 60).tolist()
    found = profile(Step(1.0, mu), *epsilons)
    error = max(abs(float(mp.mpf(f) - exact_profile(1.0, mu, e))) for e, f in zip(epsilons, found, strict=True))
    assert 10**6 * error <= round_off({Step(1.0, mu): 10**6}) - round_off({})


@quick
@given(RATES, MUS, st.sampled_from(["without-replacement", "poisson"]))
def test_nothing_but_the_stated_tail_lies_beyond_the_reach(p, mu, sampling):
    step = Step(p, mu, sampling)
    for side in orientations(step):
        above, below = reach(step, side, 1e-13)
        upwards, downwards = curves(step, side)
        assert float(upwards(np.array(above))) <= 1e-13
        # P(L < -x) <= e^-x Q-profile part: mass of P below -x is at most e^-x times that of the reversed pair.
        assert math.exp(-below) * float(downwards(np.array(below))) <= 1e-13


@quick
@given(RATES, MUS, st.floats(1.0, 2.0), st.sampled_from(["without-replacement", "poisson"]))
def test_more_sampling_or_less_noise_never_lowers_delta(p, mu, factor, sampling):
    epsilons = [0.0, 0.01, 0.1, 1.0, 3.0]
    here = profile(Step(p, mu, sampling), *epsilons)
    more = profile(Step(min(1.0, p * factor), mu, sampling), *epsilons)
    larger = profile(Step(p, mu * factor, sampling), *epsilons)
    assert all(b >= a * (1 - 1e-12) - 1e-16 for a, b in zip(here, more, strict=True))
    assert all(b >= a * (1 - 1e-12) - 1e-16 for a, b in zip(here, larger, strict=True))
    assert all(b <= a for a, b in zip(here, here[1:], strict=False))


@quick
@given(RATES, MUS)
def test_replacement_without_sampling_luck_costs_at_least_the_mixture_pair(p, mu):
    """The Poisson pair is met by real neighbours under replacement, so that it can only be more private."""
    epsilons = [0.0, 0.01, 0.3, 1.0, 4.0]
    upper = profile(Step(p, mu), *epsilons)
    lower = profile(Step(p, mu, "poisson"), *epsilons)
    assert all(a <= b + 1e-16 for a, b in zip(lower, upper, strict=True))


def test_full_batches_have_the_profile_of_the_gaussian_mechanism_in_both_schemes():
    for mu in (0.3, 2.0, 40.0):
        epsilons = [0.0, 0.5, 2.0, 40.0, 900.0]
        exact = [float(exact_profile(1.0, mu, e)) for e in epsilons]
        assert profile(Step(1.0, mu), *epsilons) == pytest.approx(exact, rel=1e-11, abs=1e-300)
        for side in ("remove", "add"):
            curve, _ = curves(Step(1.0, mu, "poisson"), side)
            assert curve(np.array(epsilons)).tolist() == pytest.approx(exact, rel=1e-11, abs=1e-300)


@quick
@given(RATES, MUS, st.sampled_from(["without-replacement", "poisson"]))
def test_torch_has_the_same_profile_within_what_is_set_aside_for_its_error(p, mu, sampling):
    step, epsilons = Step(p, mu, sampling), np.linspace(0.0, 5.0, 40)
    error = np.abs(step_profile(step, torch.from_numpy(epsilons)).numpy() - step_profile(step, epsilons)).max()
    assert 10**6 * error <= round_off({step: 10**6}) - round_off({})


def test_costless_steps_reveal_nothing():
    assert Step(0.0, 3.0).costless and Step(0.2, 0.0).costless and not Step(0.2, 1e-9).costless
    assert profile(Step(0.0, 3.0), 0.0, 1.0) == [0.0, 0.0]
    assert step_profile(Step(0.0, 3.0), torch.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-0.1, 1.0), "sampling_rate is -0.1"),
        ((1.1, 1.0), "sampling_rate is 1.1"),
        ((math.nan, 1.0), "sampling_rate is nan"),
        ((0.5, -1.0), "mu"),
        ((0.5, math.nan), "mu"),
        ((0.5, 1.0, "uniform"), "'uniform'"),
    ],
)
def test_a_step_out_of_range_is_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        Step(*arguments)
