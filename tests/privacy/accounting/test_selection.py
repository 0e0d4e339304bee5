"""Laws of private selection: the best of a random number of runs never shows more than its bound allows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from fedsw.privacy.accounting import Step
from fedsw.privacy.accounting.selection import Repetitions, renyi_of_best, selected, with_mean, worst_curve
from fedsw.privacy.accounting.stated import Renyi

ORDERS = (1.1, 1.3, 1.6, 2.0, 3.0, 4.5, 7.0, 11.0, 18.0, 30.0, 60.0)
LAWS = [Repetitions(0.0, 0.02), Repetitions(1.0, 0.1), Repetitions(-0.5, 0.05), Repetitions(2.0, 0.3)]


def generating(law: Repetitions, x: np.ndarray) -> np.ndarray:
    """E x^K in closed form."""
    inner = 1 - (1 - law.gamma) * x
    if law.eta == 0.0:
        return np.log(inner) / math.log(law.gamma)
    return (inner**-law.eta - 1) / (law.gamma**-law.eta - 1)


def above(law: Repetitions, t: np.ndarray) -> np.ndarray:
    """1 - E (1 - t)^K: the chance that the best of K is in a part of chance t; accurate for tiny ones."""
    log = np.log1p((1 - law.gamma) / law.gamma * t)
    if law.eta == 0.0:
        return log / -math.log(law.gamma)
    return -np.expm1(-law.eta * log) / -math.expm1(law.eta * math.log(law.gamma))


def best(law: Repetitions, scores: np.ndarray) -> np.ndarray:
    """The exact law of the best outcome, scores in ascending order."""
    at_least = np.cumsum(scores[::-1])[::-1]
    return -np.diff(np.append(above(law, at_least), 0.0))


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(np.log((p**order * q ** (1 - order)).sum()) / (order - 1))


def curve_of(p: np.ndarray, q: np.ndarray) -> Renyi:
    return Renyi(ORDERS, tuple(max(renyi(p, q, a), renyi(q, p, a), 0.0) for a in ORDERS))


def surplus(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """delta(epsilon) of the pair, exactly."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def require_covered(law: Repetitions, p: np.ndarray, q: np.ndarray) -> None:
    bound = selected(curve_of(p, q), law)
    first, second = best(law, p), best(law, q)
    for order, divergence in zip(bound.orders, bound.divergences, strict=True):
        assert max(renyi(first, second, order), renyi(second, first, order)) <= divergence * (1 + 1e-9)
    for epsilon in (0.0, 0.1, 0.3, 1.0, 2.0, 4.0):
        exact = max(surplus(first, second, epsilon), surplus(second, first, epsilon))
        assert exact <= bound.delta(epsilon) + 1e-12


def laws_of(weights) -> tuple[np.ndarray, np.ndarray]:
    p, q = (np.array(each, dtype=float) + 1e-3 for each in weights)
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("law", LAWS)
@given(st.integers(2, 6).flatmap(lambda n: st.tuples(*[st.lists(st.floats(0, 1), min_size=n, max_size=n)] * 2)))
@settings(max_examples=40)
def test_no_mechanism_with_few_outcomes_shows_more_than_the_bound_of_the_selection(law, weights):
    require_covered(law, *laws_of(weights))


@pytest.mark.parametrize("law", LAWS)
def test_rare_good_outcomes_which_selection_looks_for_show_no_more_than_the_bound(law):
    usual = itertools.product((1e-4, 1e-3, 1e-2, 0.1, 0.4), (1.2, 2.0, 8.0))
    for rare, ratio in (*usual, (1e-4, math.exp(100)), (1e-3, math.exp(20)), (1e-3, math.exp(8))):
        p = np.array([1 - rare, rare])
        q = np.array([1 - rare / ratio, rare / ratio])
        require_covered(law, p, q)


def test_the_cost_of_one_run_alone_is_no_bound_of_the_best_of_many():
    law = with_mean(50.0)
    p, q = np.array([1 - 0.02, 0.02]), np.array([1 - 0.02 / 1.5, 0.02 / 1.5])
    one, best_p, best_q = curve_of(p, q), best(law, p), best(law, q)
    broken = [
        order
        for order, divergence in zip(one.orders, one.divergences, strict=True)
        if max(renyi(best_p, best_q, order), renyi(best_q, best_p, order)) > divergence
    ]
    assert broken
    single = max(surplus(p, q, 0.1), surplus(q, p, 0.1))
    assert max(surplus(best_p, best_q, 0.1), surplus(best_q, best_p, 0.1)) > 3 * single


@pytest.mark.parametrize("law", LAWS)
def test_the_law_of_the_number_of_runs_is_the_stated_one(law):
    masses = np.array(list(itertools.islice(law.masses(), 4000)))
    counts = np.arange(1, 4001)
    assert masses.sum() == pytest.approx(1, abs=1e-9)
    assert (masses * counts).sum() == pytest.approx(law.mean, rel=1e-9)
    for x in (0.2, 0.7, 0.95):
        assert (masses * x**counts).sum() == pytest.approx(float(generating(law, np.array(x))), rel=1e-9)
        assert 1 - generating(law, np.array(x)) == pytest.approx(float(above(law, np.array(1 - x))), rel=1e-9)
    edges = np.cumsum(masses)
    assert [law.draw(0.0), law.draw(edges[0] + 1e-9), law.draw(edges[4] + 1e-9)] == [1, 2, 6]


@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_law_is_found_by_its_mean(mean, eta):
    assert with_mean(mean, eta).mean == pytest.approx(mean, rel=1e-9)


def test_settings_drawn_at_random_cost_what_the_worst_of_them_costs():
    together = worst_curve([Renyi((2.0, 3.0, 4.0), (0.1, 0.5, 0.6)), Renyi((2.0, 4.0), (0.2, 0.4))])
    assert together == Renyi((2.0, 4.0), (0.2, 0.6))


@pytest.mark.parametrize(("eta", "gamma"), [(-1.0, 0.5), (0.0, 0.0), (0.0, 1.0), (math.inf, 0.5)])
def test_a_law_that_is_none_is_refused(eta, gamma):
    with pytest.raises(ValueError, match="must be|lies"):
        Repetitions(eta, gamma)


def integrated(step: Step, orders: np.ndarray) -> np.ndarray:
    """Renyi divergences of one step: ln(1 + the integral of a(a-1)(e^((a-1)e) + e^(-ae)) h(e)) / (a-1).

    By x, where e = ln(1 + p(e^x - 1)), h is p times the profile of two normal laws at x.
    """
    p, mu, divergences = step.sampling_rate, step.mu, []
    for a in orders:
        x = np.linspace(0.0, mu * mu / 2 + a * mu * mu + 12 * mu, 3001)
        e = np.log1p(p * np.expm1(x))
        first = special.log_ndtr(-x / mu + mu / 2)
        log_h = math.log(p) + first + np.log(-np.expm1(np.minimum(x + special.log_ndtr(-x / mu - mu / 2) - first, 0)))
        logs = np.logaddexp((a - 1) * e, -a * e) + log_h + math.log(p) + x - e
        divergences.append(np.logaddexp(0.0, math.log(a * (a - 1)) + special.logsumexp(logs, b=x[1])) / (a - 1))
    return np.array(divergences)


@pytest.mark.parametrize("law", LAWS)
def test_the_epsilon_of_a_selection_is_that_of_the_theorem_with_divergences_that_are_integrated_anew(law):
    a, plans = np.concatenate([1 + np.geomspace(0.02, 1.0, 30), np.geomspace(2.0, 300.0, 90)[1:]]), (Step(0.1, 0.4), 40)
    run = integrated(*plans[:1], a) * plans[1]
    second = np.min((1 - 1 / a) * run + math.log(1 / law.gamma) / a)
    best_of = run + (1 + law.eta) * second + math.log(law.mean) / (a - 1)
    expected = float(np.min(best_of + (math.log(1 / 1e-5) + a * np.log1p(-1 / a) - np.log(a - 1)) / (a - 1)))
    assert renyi_of_best(law, [plans]).epsilon(1e-5) == pytest.approx(expected, rel=5e-3)
