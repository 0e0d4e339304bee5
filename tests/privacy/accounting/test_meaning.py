"""Laws of what epsilon means for a person: the Gaussian mechanism's closed forms, and every bound from above."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting.meaning import Meaning
from fedsw.privacy.accounting.profiles import Step

NORMAL = NormalDist()
RATES = st.floats(1e-4, 0.999)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 6.0])
def test_of_a_gaussian_release_advantage_and_rates_are_the_closed_form(mu):
    found = Meaning.of_steps({Step(1.0, mu): 1})
    exact = 2 * NORMAL.cdf(mu / 2) - 1
    assert exact <= found.advantage <= exact * 1.001 + 1e-9
    for rate in (0.001, 0.01, 0.1, 0.5, 0.9):
        exact = NORMAL.cdf(NORMAL.inv_cdf(rate) + mu)
        assert exact - 1e-12 <= found.true_positive_rate(rate) <= exact * 1.01 + 1e-9


@pytest.mark.parametrize("mu", [0.5, 2.0])
@pytest.mark.parametrize("prior", [0.02, 0.3, 0.5, 0.9])
def test_the_best_guess_after_a_gaussian_release_is_that_of_bayes(mu, prior):
    found = Meaning.of_steps({Step(1.0, mu): 1})
    cut = mu / 2 - math.log(prior / (1 - prior)) / mu  # where the two posteriors are equal
    exact = prior * (1 - NORMAL.cdf(cut - mu)) + (1 - prior) * NORMAL.cdf(cut)
    assert exact - 1e-12 <= found.success(prior) <= exact + 0.01


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("chance", [0.01, 1e-5])
def test_beliefs_rise_by_no_less_than_the_quantile_of_the_privacy_loss(mu, chance):
    found = Meaning.of_steps({Step(1.0, mu): 1})
    quantile = mu * mu / 2 + mu * NORMAL.inv_cdf(1 - chance)  # of the loss, which is normal
    assert quantile <= found.shift(chance) <= quantile + mu + 0.2


@given(st.floats(0.0, 8.0), st.floats(0.0, 0.01), RATES)
@settings(max_examples=60, deadline=None)
def test_a_claim_alone_bounds_what_its_definition_does(epsilon, delta, rate):
    found = Meaning.of_claim(epsilon, delta)
    most = min(1.0, delta + math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - delta - rate))
    assert found.true_positive_rate(rate) == pytest.approx(max(rate, most), rel=1e-9)
    assert found.advantage == pytest.approx((math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1), abs=1e-12)


@given(RATES, RATES, st.integers(1, 300), st.floats(0.05, 2.0))
@settings(max_examples=15, deadline=None)
def test_the_profile_says_no_more_than_its_epsilon_and_delta_do(prior, rate, releases, mu):
    steps = {Step(0.1, mu): releases}
    found = Meaning.of_steps(steps)
    for place in (40, 90, 140):
        claim = Meaning.of_claim(found.epsilons[place], found.deltas[place])
        assert found.success(prior) <= claim.success(prior) + 0.02  # points of a grid
        assert found.advantage <= claim.advantage + 1e-9
        assert found.true_positive_rate(rate) <= claim.true_positive_rate(rate) + 1e-3


def test_nothing_released_tells_nothing_and_a_release_without_noise_everything():
    nothing, everything = Meaning.of_steps({}), Meaning.of_steps({Step(1.0, math.inf): 1})
    assert (
        nothing.advantage == 0.0 and nothing.success(0.3) == 0.7 and nothing.posterior(0.3, 0.01) == pytest.approx(0.3)
    )
    assert everything.advantage == everything.success(0.3) == everything.posterior(0.3, 0.01) == 1.0
    assert nothing.true_positive_rate(0.2) == pytest.approx(0.2) and everything.true_positive_rate(0.2) == 1.0


def test_more_certainty_never_lowers_the_posterior():
    found = Meaning.of_steps({Step(0.2, 0.6): 50})
    for prior in (0.01, 0.5, 0.99):
        assert (
            prior <= found.posterior(prior, 0.05) <= found.posterior(prior, 0.01) <= found.posterior(prior, 1e-6) <= 1
        )


def test_bounds_for_any_group_are_each_groups_own_where_profiles_cross():
    groups = [Meaning.of_steps({Step(1.0, 0.75): 1}), Meaning.of_steps({Step(0.01, 1.7): 200})]
    counted, trained = groups
    assert counted.advantage > trained.advantage and counted.shift(1e-5) < trained.shift(1e-5)
    found = Meaning.of_any(groups)
    deltas = dict(zip(found.epsilons, found.deltas, strict=True))
    for group in groups:
        assert all(deltas[epsilon] >= delta for epsilon, delta in zip(group.epsilons, group.deltas, strict=True))
    assert found.advantage == counted.advantage
    for chance in (0.01, 1e-5):
        most = max(group.shift(chance) for group in groups)
        assert most - 1e-3 <= found.shift(chance) <= most + 0.05
    for rate in (0.001, 0.1, 0.9):
        most = max(group.true_positive_rate(rate) for group in groups)
        assert most - 1e-3 <= found.true_positive_rate(rate) <= most + 0.01
    for prior in (0.02, 0.4, 0.9):
        most = max(group.success(prior) for group in groups)
        assert most - 0.01 <= found.success(prior) <= most + 1e-9
    assert Meaning.of_any(groups[:1]) == counted


@pytest.mark.parametrize("mus", [(0.5, 2.0), (2.0, 0.1, 0.7)])
def test_chords_between_points_are_above_the_exact_profile(mus):
    found, mu = Meaning.of_any(Meaning.of_steps({Step(1.0, mu): 1}) for mu in mus), max(mus)
    for epsilon, delta in zip(found.epsilons, found.deltas, strict=True):
        above, below = (math.erfc((epsilon / mu + half) / math.sqrt(2)) / 2 for half in (-mu / 2, mu / 2))
        assert delta >= above - math.exp(epsilon) * below
