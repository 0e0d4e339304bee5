"""Laws of the composed epsilon: never below the truth, close to it, and indifferent to order and history."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting import (
    ACCOUNTANTS,
    Composition,
    DeltaTooSmall,
    Slicing,
    Step,
    epsilon,
    epsilon_bracket,
    epsilon_by,
    lower_epsilon,
    noise_multiplier,
    steps,
)
from fedsw.privacy.accounting.epsilons import compare, gaussian_epsilon
from tests.privacy.accounting.brute import bracket_of_delta

RATES = st.floats(-3, 0).map(lambda exponent: 10.0**exponent)
MUS = st.floats(-1.3, 0.6).map(lambda exponent: 10.0**exponent)
STEPS = st.builds(Step, RATES, MUS)
quick = settings(deadline=None, derandomize=True, max_examples=25)
few = settings(deadline=None, derandomize=True, max_examples=12)
SLOW = pytest.mark.slow

# sampling rate, steps, delta, sigma / Delta, epsilon
TABLE = [
    (0.01, 5000, 1e-5, 0.8, 8.7678),
    (0.01, 5000, 1e-5, 1.0, 5.3723),
    (0.01, 5000, 1e-5, 2.0, 1.7387),
    (0.1, 500, 0.1 / 30000, 2.0, 6.6346),
    (0.1, 500, 0.1 / 30000, 4.0, 2.6690),
    (0.1, 1000, 0.1 / 30000, 4.0, 3.9391),
    (0.25, 200, 1e-6, 5.0, 3.5506),
    (1.0, 100, 1e-5, 10.0, 4.3772),
]


@pytest.mark.parametrize(("p", "count", "delta", "multiplier", "expected"), TABLE)
def test_the_table_of_known_epsilons_is_met_from_above(p, count, delta, multiplier, expected):
    found = epsilon({Step(p, 1 / multiplier): count}, delta)
    assert expected - 1e-4 <= found <= expected + 0.003


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2, 0.5])
@pytest.mark.parametrize(
    ("mu", "count"), [(0.01, 1), (1.0, 1), (5.0, 1), (20.0, 1), (0.1, 100), (3.0, 50), (0.2, 4000)]
)
def test_full_batches_agree_with_the_closed_form_of_the_gaussian(mu, count, delta):
    exact = gaussian_epsilon(mu * math.sqrt(count), delta)
    for sampling in ("without-replacement", "poisson"):
        found = epsilon({Step(1.0, mu, sampling): count}, delta)
        set_aside = 2e-3 * exact if delta < 1e-8 else 0.0  # 1.1e-12 of delta for floating point
        assert exact * (1 - 1e-11) <= found <= exact + 1e-3 * min(1.0, max(mu * math.sqrt(count), exact)) + set_aside


QUICK = {(100.0, 1), (700.0, 10), (1e4, 1)}


@pytest.mark.parametrize(
    ("mu", "count"),
    [
        pytest.param(mu, count, marks=() if (mu, count) in QUICK else SLOW)
        for mu in (100.0, 300.0, 500.0, 700.0, 1e3, 5e3, 1e4)
        for count in (1, 10)
    ],
)
def test_low_noise_full_batches_are_never_below_the_closed_form_and_within_a_millionth(mu, count):
    exact = gaussian_epsilon(mu * math.sqrt(count), 1e-5)
    for sampling in ("without-replacement", "poisson"):
        found = epsilon({Step(1.0, mu, sampling): count}, 1e-5)
        assert exact * (1 - 1e-12) <= found <= exact + max(1e-3, 1e-6 * exact)


@pytest.mark.parametrize(
    ("p", "mu"),
    [
        pytest.param(p, mu, marks=() if mu == 30.0 or (p, mu) == (0.5, 1e4) else SLOW)
        for p in (1e-3, 0.5, 1 - 1e-9)
        for mu in (30.0, 300.0, 1000.0, 1e4)
    ],
)
def test_a_low_noise_sampled_step_inverts_its_exact_profile_from_above(p, mu):
    from fedsw.privacy.accounting import step_profile

    for step in (Step(p, mu), Step(p, mu, slicing=Slicing(50, 20))):
        found = epsilon({step: 1}, 1e-5)
        slack = 1e-6 if step.slicing is None else 5e-3  # slices are looked at every 256th of their loss
        ends = np.array([found, found - 1e-3 - slack * found])
        here, earlier = step_profile(step, ends).tolist()
        assert here <= 1e-5 * (1 + 1e-12) and earlier > 1e-5 - 3e-12


@pytest.mark.parametrize(
    ("p", "mu", "count", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.1, 0.5, 300, 1e-6),
        (0.001, 1.5, 5000, 1e-8),
        (0.3, 2.0, 5, 1e-4),
        (0.02, 0.8, 1, 1e-6),
    ],
)
def test_poisson_add_remove_agrees_with_dp_accounting(p, mu, count, delta):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    accountant.compose(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(1 / mu)), count)
    assert epsilon({Step(p, mu, "poisson"): count}, delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-3)


@quick
@given(st.lists(STEPS, min_size=1, max_size=3), st.floats(0.0, 4.0))
def test_up_to_three_steps_agree_with_brute_force_and_never_fall_below_it(steps, at):
    """Darboux sums of the Stieltjes integral of one profile over the other's loss enclose the truth."""
    lower, upper = bracket_of_delta(steps, at)
    found = Composition([(step, 1) for step in steps]).delta(at)
    assert lower <= found <= 1.02 * upper + 2e-12


@quick
@given(STEPS, st.floats(-9, -0.5).map(lambda exponent: 10.0**exponent))
def test_one_step_inverts_its_exact_profile_from_above(step, delta):
    from fedsw.privacy.accounting import step_profile

    found = epsilon({step: 1}, delta)
    before = np.array([found, max(0.0, found - 2e-3 * max(1.0, found))])
    here, earlier = step_profile(step, before).tolist()
    assert here <= delta * (1 + 1e-12)
    assert earlier > delta - 2e-12 or found < 2e-3


@few
@given(STEPS, st.integers(1, 2000), st.floats(1.0, 1.5))
def test_more_steps_more_sampling_or_less_noise_never_lower_epsilon(step, count, factor):
    here = epsilon({step: count}, 1e-6)
    slack = 1e-3 * max(1.0, here) / 2
    assert epsilon({step: count + 1}, 1e-6) >= here - slack
    assert epsilon({step: 2 * count}, 1e-6) >= here
    assert epsilon({Step(min(1.0, factor * step.sampling_rate), step.mu): count}, 1e-6) >= here - slack
    assert epsilon({Step(step.sampling_rate, factor * step.mu): count}, 1e-6) >= here - slack


@quick
@given(STEPS, st.integers(1, 2000), st.floats(0.5, 2.0), st.floats(-9, -2).map(lambda exponent: 10.0**exponent))
def test_one_reading_never_clears_an_epsilon_that_the_full_one_exceeds(step, count, factor, delta):
    composition = Composition({step: count})
    exact = composition.epsilon(delta)
    assert composition.within(exact * (1 + 1e-9) + 1e-15, delta)
    assert not composition.within(factor * exact, delta) or exact <= factor * exact * (1 + 1e-9) + 1e-15
    assert composition.within(math.inf, delta)


def test_different_steps_cost_the_same_in_any_order_and_however_they_are_added():
    steps = [(Step(0.01, 1.0), 8), (Step(0.02, 0.7), 6), (Step(0.5, 0.1), 4), (Step(1.0, 0.05), 10)]
    values = {epsilon(order, 1e-6) for order in itertools.permutations(steps)}
    gradually = Composition()
    for step, times in steps:
        for _ in range(times):
            gradually.add(step)
            gradually.epsilon(1e-6)
    values.add(gradually.epsilon(1e-6))
    assert max(values) - min(values) <= 1e-9 * max(values)
    # Gaussians of p = 1 compose in closed form with everything else: 10 steps of .05 are one of sqrt(10) * .05.
    merged = epsilon([*steps[:3], (Step(1.0, 0.05 * math.sqrt(10)), 1)], 1e-6)
    assert merged == pytest.approx(max(values), abs=1e-3)


def test_the_bracket_holds_the_lower_pairs_and_the_guarantee():
    lower, upper = epsilon_bracket({Step(0.01, 1.0): 1000}, 1e-5)
    assert lower == pytest.approx(1.8495, abs=1e-3) and upper == pytest.approx(2.199, abs=1e-3)
    assert lower_epsilon({Step(0.01, 1.0): 1000}, 1e-5) == pytest.approx(1.828, abs=1e-3)
    lower, upper = epsilon_bracket({Step(1.0, 0.1): 100}, 1e-5)
    assert lower <= gaussian_epsilon(1.0, 1e-5) <= upper <= lower + 2e-3
    lower, upper = epsilon_bracket({Step(0.01, 1.0, "poisson"): 1000}, 1e-5)
    assert lower <= 1.8281535 <= upper <= lower + 1e-3


def test_replaying_a_batch_costs_more_than_two_fresh_steps():
    """Table and gradient on one batch: compose first (mu^2 adds), subsample after."""
    replayed = epsilon({Step(0.01, math.sqrt(2)): 1000}, 1e-5)
    fresh = epsilon({Step(0.01, 1.0): 2000}, 1e-5)
    assert replayed == pytest.approx(5.14, abs=5e-3) and fresh == pytest.approx(3.20, abs=5e-3)


def test_an_observer_of_counts_faces_a_higher_sampling_rate():
    """Stratified sampling of 3 of 300 records keeps p; whoever sees 5 of 10 faces p = 1/2."""
    assert epsilon({Step(0.5, 1.0): 1000}, 1e-5) > 10 * epsilon({Step(0.01, 1.0): 1000}, 1e-5)


@quick
@given(STEPS, st.integers(1, 300), st.floats(-9, -1).map(lambda exponent: 10.0**exponent))
def test_epsilon_and_delta_are_inverses(step, count, delta):
    composition = Composition({step: count})
    found = composition.epsilon(delta)
    if found > 0.0:
        assert composition.delta(found) == pytest.approx(delta, rel=0.03)


def test_no_step_costs_nothing_and_no_noise_costs_everything():
    assert epsilon({}, 1e-5) == 0.0 and Composition({}).delta(0.0) == 0.0
    assert epsilon({Step(0.0, 5.0): 10, Step(0.3, 0.0): 10}, 1e-5) == 0.0
    assert epsilon({Step(0.1, math.inf): 1}, 1e-5) == math.inf
    assert Composition({Step(0.1, math.inf): 1}).delta(50.0) == 1.0
    assert epsilon_bracket({Step(0.1, math.inf): 1}, 1e-5) == (math.inf, math.inf)


@pytest.mark.parametrize("delta", [0.0, 9e-11, 1.0, -1e-5, math.nan])
def test_a_delta_that_floating_point_would_decide_is_refused(delta):
    with pytest.raises(ValueError, match="delta is .* at least 1e-10"):
        epsilon({Step(0.1, 1.0): 1}, delta)


def test_delta_never_reads_below_what_is_set_aside_for_floating_point():
    assert Composition({Step(0.01, 0.1): 3}).delta(50.0) >= 1e-12


def test_two_relations_never_mix():
    with pytest.raises(ValueError, match="two relations"):
        epsilon({Step(0.1, 1.0): 1, Step(0.1, 1.0, "poisson"): 1}, 1e-5)
    for accountant in ("laplace", "gdp-clt-uniform", "pld"):  # a replacement costs twice what presence does
        with pytest.raises(ValueError, match="two relations"):
            epsilon_by(accountant, {Step(0.1, 1.0): 1, Step(0.1, 1.0, "poisson"): 1}, 1e-5)
    with pytest.raises(ValueError, match="taken = -1"):
        Composition().add(Step(0.1, 1.0), -1)
    with pytest.raises(ValueError, match="epsilon is -1"):
        Composition({}).delta(-1.0)


def test_extreme_steps_neither_crash_nor_report_too_little():
    for p, mu, count in [(1e-200, 1.0, 3), (1.0, 1e-160, 5), (1e-12, 1e-12, 10**9), (1e-300, 1e3, 10)]:
        assert 0.0 <= epsilon({Step(p, mu): count}, 1e-6) < 1e-3
    assert 0.0 <= epsilon({Step(1e-300, 1e3, "poisson"): 10}, 1e-6) < 1e-3
    assert epsilon({Step(0.3, 2e4): 10}, 1e-6) == math.inf


def test_where_records_are_hardly_ever_sampled_delta_adds_up():
    found = epsilon({Step(4e-7, 4.42): 2516}, 3.7e-6)
    exact = _sparse_epsilon(4e-7, 4.42, 2516, 3.7e-6)
    assert exact - 1e-2 <= found <= exact + 1e-2


def _sparse_epsilon(p, mu, count, delta):
    """Where a record is hardly ever sampled, delta(eps) is count times that of one step."""
    from fedsw.privacy.accounting import step_profile

    grid = np.linspace(0, 20, 200_001)
    return float(grid[(count * step_profile(Step(p, mu), grid) <= delta).argmax()])


def test_a_grid_that_turns_out_too_coarse_is_refined_until_epsilon_stands_still(monkeypatch):
    steps = {Step(0.1, 0.25): 500}
    expected = epsilon(steps, 1e-6)
    first = Composition._first_spacing
    monkeypatch.setattr(Composition, "_first_spacing", lambda self, side, quantile: 64 * first(self, side, quantile))
    assert expected <= epsilon(steps, 1e-6) <= expected + 1e-3
    assert Composition(steps).delta(expected) == pytest.approx(1e-6, rel=0.02)


def test_everything_is_float64_whatever_the_default_type():
    torch.set_default_dtype(torch.float32)
    before = epsilon({Step(0.01, 1.0): 500}, 1e-5)
    torch.set_default_dtype(torch.float64)
    try:
        assert epsilon({Step(0.01, 1.0): 500}, 1e-5) == before
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.isfinite(before)


BEYOND = {Step(0.01, 0.01): 10**6}


def test_where_round_off_uses_delta_up_epsilon_says_so_and_how_much():
    words = r"delta is 1e-10, and 1\.3e-10 of it is set .* 1000000 steps \(1e-16 a step\).* Use a delta of 2\.6e-10"
    for ask in (epsilon, epsilon_bracket, lambda steps, delta: epsilon_by("pld", steps, delta)):
        with pytest.raises(DeltaTooSmall, match=words):
            ask(BEYOND, 1e-10)
        assert math.isfinite(np.max(ask(BEYOND, 2.6e-10)))
        with pytest.raises(DeltaTooSmall):
            ask(BEYOND | {Step(0.01, 0.02): 1}, 1e-10)
    running = Composition(BEYOND)
    assert running.epsilon(1e-10) == math.inf and "set aside" in running.beyond(1e-10)
    assert running.beyond(1e-9) is None and Composition().beyond(1e-10) is None
    assert epsilon({Step(0.01, math.inf): 10**6}, 1e-10) == math.inf  # no noise needs no other word


def test_where_round_off_uses_delta_up_nothing_is_calibrated_and_no_step_more_fits():
    with pytest.raises(DeltaTooSmall, match="1000000 steps"):
        noise_multiplier(1.0, 1e-10, sampling_rate=0.01, steps=10**6)
    most = steps(50.0, 1e-10, sampling_rate=0.01, noise_multiplier=100.0)
    assert 750_000 < most < 10**6
    assert epsilon({Step(0.01, 0.01): most}, 1e-10) <= 50.0
    rows = {row["name"]: row for row in compare(BEYOND, 1e-10)}
    assert rows["pld"]["epsilon"] is None and "set aside" in rows["pld"]["note"]


@pytest.mark.parametrize("times", [1.5, math.nan, math.inf, -1, True, "3"])
def test_a_step_is_taken_a_whole_number_of_times(times):
    step = Step(0.1, 0.5)
    calls = [
        lambda: Composition({step: times}),
        lambda: Composition().add(step, times),
        lambda: epsilon([(step, times)], 1e-5),
        lambda: epsilon_bracket({step: times}, 1e-5),
        lambda: noise_multiplier(1.0, 1e-5, sampling_rate=0.1, steps=times),
        lambda: noise_multiplier(1.0, 1e-5, sampling_rate=0.1, steps=2, beside={step: times}),
        *(lambda name=name: epsilon_by(name, [(step, times)], 1e-5) for name in ACCOUNTANTS),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is a whole number"):
            call()
    assert Composition({step: 3.0}).epsilon(1e-5) == Composition({step: np.int64(3)}).epsilon(1e-5)
