"""Other accountants, reproduced from their sources and labelled for what they are."""

import importlib.util
import itertools
import math

import pytest

from fedsw.privacy.accounting import ACCOUNTANTS, Slicing, Step, epsilon, epsilon_by
from fedsw.privacy.accounting.epsilons import compare, gaussian_epsilon

# sampling rate, steps, delta, sigma / Delta, RDP-WOR, GDP-CLT uniform, GDP-CLT Poisson
TABLE = [
    (0.01, 5000, 1e-5, 0.8, 12.489, 9.087, 6.346),
    (0.01, 5000, 1e-5, 1.0, 8.796, 5.463, 4.010),
    (0.01, 5000, 1e-5, 2.0, 3.480, 1.745, 1.456),
    (0.1, 500, 0.1 / 30000, 2.0, 14.166, 6.859, 5.665),
    (0.1, 500, 0.1 / 30000, 4.0, 5.877, 2.702, 2.443),
    (0.1, 1000, 0.1 / 30000, 4.0, 8.750, 3.993, 3.604),
]


@pytest.mark.parametrize(("p", "count", "delta", "multiplier", "rdp", "uniform", "poisson"), TABLE)
def test_the_table_of_other_accountants_is_reproduced(p, count, delta, multiplier, rdp, uniform, poisson):
    steps = {Step(p, 1 / multiplier): count}
    assert epsilon_by("gdp-clt-uniform", steps, delta) == pytest.approx(uniform, abs=6e-4)
    assert epsilon_by("gdp-clt-poisson", steps, delta) == pytest.approx(poisson, abs=6e-4)
    if importlib.util.find_spec("dp_accounting"):
        assert epsilon_by("rdp-wor", steps, delta) == pytest.approx(rdp, abs=6e-4)


@pytest.mark.parametrize(("p", "count", "delta", "multiplier"), [row[:4] for row in TABLE])
def test_the_central_limits_are_those_of_opacus(p, count, delta, multiplier):
    gdp = pytest.importorskip("opacus.accountants.analysis.gdp")
    asked = {"steps": count, "noise_multiplier": multiplier, "sample_rate": p, "delta": delta}
    steps = {Step(p, 1 / multiplier): count}
    assert epsilon_by("gdp-clt-uniform", steps, delta) == pytest.approx(gdp.compute_eps_uniform(**asked), rel=1e-9)
    assert epsilon_by("gdp-clt-poisson", steps, delta) == pytest.approx(gdp.compute_eps_poisson(**asked), rel=1e-9)


def test_a_central_limit_can_claim_less_than_is_true_and_is_not_called_a_guarantee():
    few_low_noise_steps = {Step(0.01, 2.0): 20}
    assert epsilon_by("gdp-clt-uniform", few_low_noise_steps, 1e-6) < 0.7 * epsilon(few_low_noise_steps, 1e-6)
    assert {name for name, accountant in ACCOUNTANTS.items() if accountant.guarantee} == {
        "pld",
        "rdp-wor",
        "bernstein",
        "laplace",
    }


def test_the_renyi_bound_is_never_below_the_guarantee():
    pytest.importorskip("dp_accounting")
    for p, mu, count in [(0.01, 1.0, 100), (0.3, 0.2, 50), (1.0, 0.1, 100)]:
        steps = {Step(p, mu): count}
        assert epsilon_by("rdp-wor", steps, 1e-6) >= epsilon(steps, 1e-6)


def test_the_two_conventions_of_dp_accounting_differ_by_two_under_replacement_and_ours_is_that_of_its_rdp():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    read = {}
    for accountant in (pld.PLDAccountant, rdp.RdpAccountant):
        for multiplier in (5.0, 10.0):
            one = accountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
            one.compose(dp.GaussianDpEvent(multiplier))
            read[accountant, multiplier] = one.get_epsilon(1e-5)
    ours = epsilon({Step(1.0, 1 / 5.0): 1}, 1e-5)
    assert read[pld.PLDAccountant, 10.0] == pytest.approx(ours, abs=1e-3)
    assert read[rdp.RdpAccountant, 5.0] == pytest.approx(epsilon_by("rdp-wor", {Step(1.0, 1 / 5.0): 1}, 1e-5), rel=1e-9)
    assert read[rdp.RdpAccountant, 10.0] < ours <= read[rdp.RdpAccountant, 5.0]


def test_different_steps_add_up_in_every_accountant():
    pytest.importorskip("dp_accounting")
    step = Step(0.05, 0.8)
    for name in ACCOUNTANTS:
        whole = epsilon_by(name, {step: 30}, 1e-5)
        assert epsilon_by(name, [(step, 10), (Step(0.3, 0.0), 4), (step, 20)], 1e-5) == pytest.approx(whole, rel=1e-9)


def test_no_steps_cost_nothing_and_no_noise_costs_everything_in_every_accountant():
    pytest.importorskip("dp_accounting")
    for name in ACCOUNTANTS:
        assert epsilon_by(name, {}, 1e-5) == 0.0
        assert epsilon_by(name, {Step(0.1, math.inf): 1}, 1e-5) == math.inf
    assert epsilon_by("gdp-clt-uniform", {Step(0.1, 40.0): 1}, 1e-5) == math.inf  # e^1600


def test_whatever_the_noise_every_accountant_reads_an_epsilon_that_falls_with_it():
    pytest.importorskip("dp_accounting")
    for name, accountant in ACCOUNTANTS.items():
        slicing = Slicing(784, 70) if accountant.covers == "sliced" else None
        sampling = "poisson" if name == "gdp-clt-poisson" else "without-replacement"
        multipliers = [10.0**-exponent for exponent in range(-1, 15, 7)]
        read = [epsilon_by(name, {Step(0.01, each, sampling, slicing): 100}, 1e-5) for each in multipliers]
        assert all(0 <= after <= before + 1e-12 for before, after in itertools.pairwise(read)), (name, read)


def test_the_gaussian_epsilon_is_the_known_one():
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377178, abs=1e-6)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0 and gaussian_epsilon(1.0, 0.5) == 0.0


SLICES = {Step(1 / 600, 1.0, slicing=Slicing(784, 200)): 60000}


def test_the_published_calculations_for_slices_are_reproduced_beside_the_guarantees():
    pytest.importorskip("dp_accounting")
    rows = {row["name"]: row for row in compare(SLICES, 1e-5)}
    assert {name: row["guarantee"] for name, row in rows.items()} == {
        "pld": True,
        "bernstein": True,
        "bernstein-published": False,
        "clt": False,
    }
    assert 0.966 <= rows["pld"]["epsilon"] <= 0.967
    assert rows["clt"]["epsilon"] == pytest.approx(2.4787, abs=1e-3)
    assert rows["bernstein-published"]["epsilon"] == pytest.approx(1656.5, abs=0.5)
    assert rows["bernstein"]["epsilon"] == pytest.approx(28672, abs=2)


def test_one_release_of_slices_is_bounded_as_published():
    """There the failure of one release is all there is to share."""
    pytest.importorskip("dp_accounting")
    once = {Step(1.0, 0.5, slicing=Slicing(30, 20)): 1}
    bernstein = epsilon_by("bernstein", once, 1e-5)
    assert bernstein == epsilon_by("bernstein-published", once, 1e-5) > epsilon(once, 1e-5)
    assert epsilon_by("bernstein", {next(iter(once)): 2}, 1e-5) > epsilon_by("bernstein-published", once, 1e-5)


def test_accountants_refuse_slices_that_they_do_not_cover():
    orthogonal = {Step(0.1, 1.0, slicing=Slicing(5, 3, "orthogonal")): 2}
    for name in ("gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor"):
        with pytest.raises(ValueError, match=f"{name} is not for random slices"):
            epsilon_by(name, SLICES, 1e-5)
    for name in ("bernstein", "bernstein-published", "clt"):
        with pytest.raises(ValueError, match=f"{name} is only for slices through independent"):
            epsilon_by(name, orthogonal, 1e-5)
    assert [row["epsilon"] is None for row in compare(orthogonal, 1e-5)] == [False, True, True, True]
    whole, plain = {Step(0.1, 1.0, slicing=Slicing(5, 5, "orthogonal")): 2}, {Step(0.1, 1.0): 2}
    assert compare(whole, 1e-5) == compare(plain, 1e-5)


def test_what_cannot_be_compared_says_why(monkeypatch):
    rows = {row["name"]: row for row in compare({Step(0.1, 1.0, "poisson"): 3}, 1e-5)}
    assert rows["rdp-wor"]["epsilon"] is None and "Poisson" in rows["rdp-wor"]["note"]
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "dp_accounting" else find(name))
    rows = {row["name"]: row for row in compare({Step(0.1, 1.0): 3}, 1e-5)}
    assert rows["rdp-wor"]["epsilon"] is None and "not installed" in rows["rdp-wor"]["note"]
    assert rows["pld"]["epsilon"] > 0 and rows["pld"]["guarantee"] and not rows["gdp-clt-uniform"]["guarantee"]


def test_an_unknown_accountant_and_a_bound_of_something_else_are_refused():
    with pytest.raises(ValueError, match="'moments'.*gdp-clt-uniform"):
        epsilon_by("moments", {}, 1e-5)
    with pytest.raises(ValueError, match="Poisson"):
        epsilon_by("rdp-wor", {Step(0.1, 1.0, "poisson"): 1}, 1e-5)
    with pytest.raises(ValueError, match="delta is 0"):
        epsilon_by("gdp-clt-uniform", {Step(0.1, 1.0): 1}, 0.0)


def test_laplace_releases_add_their_pure_epsilon_whatever_delta_and_sampling() -> None:
    """mu is then the l1 sensitivity / scale; other accountants would take it for a Gaussian's."""
    steps = {Step(0.1, 0.5): 3, Step(1.0, 2.0): 1}
    assert epsilon_by("laplace", steps, 1e-5) == epsilon_by("laplace", steps, 1e-9) == 3.5
    assert "laplace" not in {row["name"] for row in compare(steps, 1e-5)}
