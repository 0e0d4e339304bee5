"""Laws of what error rates show: coverage, known points, and nothing where there is nothing."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsw.audit.bounds import epsilon_of_rates, gaussian_mu, judged, rate_at_least, rate_at_most, shown_epsilon
from fedsw.privacy.accounting import Step, epsilon, epsilon_bracket
from fedsw.privacy.accounting.epsilons import gaussian_epsilon
from tests.laws.attacks.canaries import shown_mu


@pytest.mark.parametrize("confidence", [0.9, 0.999])
@pytest.mark.parametrize("trials", [1, 7, 60])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.46, 0.9])
def test_bounds_on_rates_hold_as_often_as_they_say(rate, trials, confidence):
    """Exact, by summing the binomial law over the counts at which the bound is wrong."""
    counts = range(trials + 1)
    law = stats.binom.pmf(counts, trials, rate)
    above = [rate_at_most(count, trials, confidence) < rate for count in counts]
    below = [rate_at_least(count, trials, confidence) > rate for count in counts]
    assert law[above].sum() <= 1 - confidence + 1e-12
    assert law[below].sum() <= 1 - confidence + 1e-12


def test_bounds_on_rates_at_the_ends():
    assert rate_at_most(5, 5, 0.99) == 1.0 and rate_at_least(0, 5, 0.99) == 0.0
    assert rate_at_most(0, 100, 0.95) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert rate_at_least(100, 100, 0.95) == pytest.approx(0.05 ** (1 / 100))
    assert rate_at_most(0, 10, 1 - 1e-12) < 1.0


@pytest.mark.parametrize(("events", "trials", "confidence"), [(-1, 5, 0.9), (6, 5, 0.9), (0, 0, 0.9), (1, 5, 1.0)])
def test_counts_that_cannot_be_are_refused(events, trials, confidence):
    with pytest.raises(ValueError, match="trials|confidence"):
        rate_at_most(events, trials, confidence)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [1e-4, 0.3, 0.7])
def test_the_curve_through_a_point_of_a_gaussian_is_its_own(mu, alpha):
    beta = stats.norm.cdf(stats.norm.isf(alpha) - mu)
    assert gaussian_mu(alpha, beta) == pytest.approx(mu, rel=1e-9)


def test_a_point_no_better_than_guessing_shows_nothing():
    assert gaussian_mu(0.5, 0.5) == gaussian_mu(1.0, 0.0) == 0.0
    assert epsilon_of_rates(0.5, 0.5, 1e-5) == epsilon_of_rates(1.0, 0.2, 0.0) == 0.0
    assert shown_epsilon(0.0, 1.0, 10, 1e-5) == shown_epsilon(1.0, 0.0, 10, 1e-5) == 0.0


def test_without_any_curve_a_point_shows_the_ratio_of_the_rates():
    assert epsilon_of_rates(0.1, 0.2, 0.0) == pytest.approx(math.log(8))
    assert epsilon_of_rates(0.0, 0.5, 1e-3) == math.inf


@pytest.mark.parametrize("mu", [0.2, 1.5])
def test_scores_of_a_gaussian_show_nearly_mu_and_more_only_as_rarely_as_was_said(mu):
    rng = np.random.default_rng(0)
    found = [
        shown_mu(rng.normal(mu, 1, 40_000), rng.normal(0, 1, 40_000), 0.9, threshold)
        for threshold in (None, mu / 2)
        for _ in range(50)
    ]
    assert max(found) <= mu * 1.1 and np.mean(found) >= 0.8 * mu
    assert np.mean(np.array(found) > mu) <= 0.1


def test_either_neighbour_may_have_the_higher_scores():
    scores, others = np.random.default_rng(1).normal([[1.0], [0.0]], 1, (2, 1000))
    assert shown_mu(scores, others, 0.9) == shown_mu(others, scores, 0.9) > 0.5


def test_a_test_needs_a_trial_of_each_neighbour():
    attack = judged(np.arange(10.0), np.arange(5.0) - 100, 4.5)
    assert (attack.misses, attack.trials, attack.alarms, attack.other_trials) == (5, 10, 0, 5)
    with pytest.raises(ValueError, match="trials"):
        judged(np.array([1.0]), np.array([]), 0.5)


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_the_truth_about_a_step_shows_the_lower_pair_and_never_the_guarantee(rate):
    mu, steps, delta = 0.5, 100, 1e-5
    lower, upper = epsilon_bracket({Step(rate, mu): steps}, delta)
    shown = shown_epsilon(mu, rate, steps, delta)
    assert shown <= lower + 1e-3 and shown <= upper
    assert shown_epsilon(0.9 * mu, rate, steps, delta) < shown > shown_epsilon(mu, 0.9 * rate, steps, delta)
    if rate == 1.0:
        assert shown == gaussian_epsilon(math.sqrt(steps) * mu, delta) <= epsilon({Step(1.0, mu): steps}, delta)


@pytest.mark.parametrize(
    "broken",
    [(np.array([0.1, math.nan]), np.array([0.0]), 0.5)] * 1
    + [
        (np.array([0.1]), np.array([math.nan, 0.0]), 0.5),
        (np.array([0.1]), np.array([0.0]), math.nan),
    ],
)
def test_a_trial_that_shows_nothing_is_no_error_avoided(broken):
    with pytest.raises(ValueError, match="NaN"):
        judged(*broken)


@pytest.mark.parametrize("odd", [-1.0, 1.0, math.nan, math.inf])
def test_a_delta_that_is_none_and_a_rate_that_is_none_show_nothing(odd):
    calls = {
        "delta": [
            lambda: epsilon_of_rates(0.1, 0.1, odd),
            lambda: shown_epsilon(1.0, 0.5, 3, odd),
            lambda: shown_epsilon(1.0, 1.0, 3, odd),
        ],
        "rate": [
            lambda: epsilon_of_rates(odd * 2, 0.1, 1e-5),
            lambda: gaussian_mu(0.1, odd * 2),
            lambda: shown_epsilon(1.0, odd * 2, 3, 1e-5),
        ],
    }
    for name, wrong in calls.items():
        for call in wrong:
            with pytest.raises(ValueError, match=f"{name} is {'' if name == 'delta' else '.'}"):
                call()
    for mu, steps in ((math.nan, 3), (1.0, 2.5), (1.0, math.nan)):
        with pytest.raises(ValueError, match="NaN|whole number"):
            shown_epsilon(mu, 0.5, steps, 1e-5)
