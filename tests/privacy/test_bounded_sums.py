"""Laws of plans for sums of clipped vectors: what a replaced vector moves, what it costs, and what leaves."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

import fedsw
from fedsw.privacy.accounting import AlreadySpent


def planned(**other):
    return fedsw.plan_sum(**{"norm": 2.0, "rounds": 9, "epsilon": 1.5, "delta": 1e-5, **other})


def exact(plan, vectors, tmp_path):
    """The sum without noise, by a plan and a ledger of none."""
    with fedsw.Ledger.create(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite", plan) as ledger:
        return fedsw.release(plan.bounded(vectors, round=1), plan, ledger).value


def test_a_replaced_vector_moves_the_sum_by_at_most_the_sensitivity_which_is_attained(tmp_path):
    plan, generator = planned(epsilon=math.inf), torch.Generator().manual_seed(0)
    rows = torch.randn(6, 5, generator=generator) * torch.logspace(-3, 12, 6).unsqueeze(1)
    other = rows.clone()
    other[5] = -rows[5]
    moved = float((exact(plan, rows, tmp_path) - exact(plan, other, tmp_path)).norm())
    assert 4.0 * (1 - 1e-12) <= moved <= plan.sensitivity.value


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan, 1e308])
def test_a_vector_that_is_not_finite_counts_as_0(worst, tmp_path):
    plan, rows = planned(epsilon=math.inf), torch.tensor([[1.0, 0.0], [worst, worst]], dtype=torch.float64)
    assert torch.equal(exact(plan, rows, tmp_path), torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_a_vector_within_the_norm_is_as_it_was(tmp_path):
    plan, row = planned(epsilon=math.inf), torch.tensor([0.3, -0.4, 1.1])
    assert torch.equal(exact(plan, row, tmp_path), row.double())


def test_epsilon_is_that_of_gaussian_releases_that_see_every_vector():
    """Dong, Roth and Su (2022), Corollary 3.3: T of them are one with mu = sqrt(T) / multiplier."""
    plan = planned()
    mu = math.sqrt(9) / plan.multiplier
    delta = norm.cdf(mu / 2 - 1.5 / mu) - math.exp(1.5) * norm.cdf(-mu / 2 - 1.5 / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3) and delta <= 1e-5
    assert planned(epsilon=None, noise_multiplier=plan.multiplier).epsilon == pytest.approx(1.5, rel=1e-4)


def test_noise_has_the_planned_scale_and_every_round_is_charged_before_it(tmp_path):
    plan = planned(rounds=2)
    with fedsw.Ledger.create(tmp_path / "l.sqlite", plan) as ledger:
        noise = fedsw.release(plan.bounded(torch.zeros(20_000), round=1), plan, ledger)
        assert float(noise.value.std()) == pytest.approx(plan.sigma, rel=0.03)
        assert noise.sigma == plan.sigma == pytest.approx(plan.multiplier * plan.sensitivity.value)
        with pytest.raises(AlreadySpent):
            fedsw.release(plan.bounded(torch.zeros(3), round=1), plan, ledger)
        fedsw.release(plan.bounded(torch.zeros(3), round=2), plan, ledger)
        with pytest.raises(fedsw.BudgetExhausted):
            fedsw.release(plan.bounded(torch.zeros(3), round=3), plan, ledger)
        assert ledger.epsilon() <= 1.5 and len(ledger.entries()) == 2


def test_the_guarantee_says_whose_vector_which_relation_and_what_is_public():
    words = planned(who="each client's update", vectors=7).guarantee
    assert "(1.5, 1e-05)-differential privacy of each client's update as a whole" in words
    assert "replacement by any other of norm at most 2" in words and "the number of vectors (7)" in words
    assert "9 rounds" in str(planned())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm": 0.0}, "norm = 0.0; it is above 0"),
        ({"norm": math.inf}, "norm = inf"),
        ({"rounds": 0}, "rounds"),
        ({"delta": 0.0}, "delta = 0.0; it lies between"),
        ({"noise_multiplier": 1.0}, "give epsilon"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(change, reason):
    with pytest.raises(ValueError, match=reason):
        planned(**change)
