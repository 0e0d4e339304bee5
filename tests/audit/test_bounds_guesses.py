"""Laws of what right guesses say about epsilon: exact where the law of the guesses is known, never too much else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from fedsw.audit.bounds import Leakage, curve_p_value, epsilon_of_guesses, excludes, p_value
from fedsw.privacy.accounting import Step

COUNTS = [(5, 5, 5), (8, 10, 10), (8, 10, 20), (18, 20, 40), (1, 1, 1), (25, 40, 40), (0, 3, 5)]


def randomised(epsilon: float):
    """The curve of randomised response, as `Least`."""
    return lambda p: max(0.0, p * math.exp(-epsilon), 1 - math.exp(epsilon) * (1 - p))


def gaussian(mu: float):
    return lambda p: float(special.ndtr(special.ndtri(p) - mu))


@pytest.mark.parametrize(("correct", "guesses", "canaries"), COUNTS)
def test_for_randomised_response_the_p_value_is_the_exact_one(correct: int, guesses: int, canaries: int) -> None:
    for epsilon in (0.0, 0.5, 2.0):
        right = math.exp(epsilon) / (1 + math.exp(epsilon))
        exact = sum(
            math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k) for k in range(correct, guesses + 1)
        )
        assert p_value(correct, guesses, canaries, epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [1, 7, 60])
def test_more_than_epsilon_is_shown_of_randomised_response_no_oftener_than_allowed(
    epsilon: float, guesses: int
) -> None:
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    for error in (0.05, 1e-3):
        counts = np.arange(guesses + 1)
        shown = np.array([epsilon_of_guesses(int(v), guesses, 2 * guesses, 0.0, error=error) for v in counts])
        assert law.pmf(counts[shown > epsilon]).sum() <= error * (1 + 1e-9)


def test_of_randomised_response_many_coins_show_nearly_all_of_epsilon() -> None:
    right = round(4000 * math.e / (1 + math.e))
    assert 0.9 < epsilon_of_guesses(right, 4000, 4000, 0.0, error=0.05) < 1.0


def test_what_delta_adds_is_the_formula_of_the_theorem() -> None:
    correct, guesses, canaries, epsilon, delta = 30, 40, 100, 0.7, 1e-4
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    below = [2 / i * sum(law.pmf(k) for k in range(correct - i, correct)) for i in range(1, correct + 1)]
    expected = sum(law.pmf(k) for k in range(correct, guesses + 1)) + canaries * delta * max(below)
    assert p_value(correct, guesses, canaries, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_more_right_guesses_and_less_confidence_show_more() -> None:
    leakage = Leakage(Step(0.3, 0.5), 20, 1e-5)
    for show in (
        lambda v, error: epsilon_of_guesses(v, 50, 200, 1e-5, error=error),
        lambda v, error: leakage.shown(v, 50, 200, error=error),
    ):
        row = [show(v, 0.05) for v in (0, 25, 35, 40, 45, 50)]
        assert row == sorted(row) and row[0] == row[1] == 0.0 < row[-1]
        assert show(48, 1e-6) < show(48, 0.05)


def test_one_coin_guessed_right_shows_nothing() -> None:
    assert epsilon_of_guesses(1, 1, 1, 0.0, error=0.05) == 0.0
    assert p_value(1, 1, 1, 1.0, 0.0) == pytest.approx(math.e / (1 + math.e))
    assert curve_p_value(1, 1, 1, randomised(1.0)) == pytest.approx(math.e / (1 + math.e), rel=1e-3)
    assert Leakage(Step(1.0, 0.5), 1, 1e-5).shown(1, 1, 1, error=0.05) == 0.0


@pytest.mark.parametrize(("correct", "guesses", "canaries"), COUNTS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_curves_p_value_is_the_most_that_any_law_of_counts_reaches(
    correct: int, guesses: int, canaries: int, epsilon: float
) -> None:
    """All inequalities at once are a linear program where the curve is made of lines."""
    counts, rows, limits = np.arange(guesses + 1), [], []
    for t in range(guesses):
        right = (counts > t) * counts / canaries
        wrong = (counts >= t) * (guesses - counts) / canaries
        rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
        limits += [0.0, 1 - math.exp(-epsilon)]
    program = optimize.linprog(
        -(counts >= correct).astype(float),
        A_ub=np.array(rows), b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1.0],
    )  # fmt: skip
    assert curve_p_value(correct, guesses, canaries, randomised(epsilon)) == pytest.approx(-program.fun, rel=2e-3)


@pytest.mark.parametrize("mu", [0.1, 0.8, 2.5])
def test_independent_gaussian_coins_exclude_their_own_curve_no_oftener_than_allowed(mu: float) -> None:
    law = stats.binom(80, special.ndtr(mu / 2))
    for error in (0.05, 1e-4):
        excluded = [v for v in range(81) if excludes(v, 80, 80, gaussian(mu), error=error)]
        assert law.pmf(excluded).sum() <= error
        assert excludes(80, 80, 80, gaussian(mu / 50), error=error)


def test_a_single_secret_shared_by_all_coins_excludes_nothing_it_should_not() -> None:
    """A mechanism that tells all coins with probability delta and else nothing: its counts are far from independent."""
    coins, delta = 30, 0.2
    total_variation = lambda p: max(0.0, p - delta)  # noqa: E731
    counts = np.arange(coins + 1)
    law = (1 - delta) * stats.binom(coins, 0.5).pmf(counts)
    law[-1] += delta
    for error in (0.05, 0.15, 0.19):
        excluded = [v for v in range(coins + 1) if excludes(v, coins, coins, total_variation, error=error)]
        assert law[excluded].sum() <= error
    assert stats.binom(coins, 0.5 + delta / 2).sf(coins - 1) < 0.05  # which independent coins would never do


@pytest.mark.parametrize("step", [Step(1.0, 0.3), Step(0.2, 0.5)])
def test_a_composed_curve_is_below_every_test_of_its_neighbours(step: Step) -> None:
    """Of C_p(G_mu) once: events x > z and x < -z of the mixture (1 - p) N(0, 1) + p N(mu, 1) against N(0, 1)."""
    least, p, mu = Leakage(step, 1, 1e-6).least(), step.sampling_rate, step.mu
    for z in np.linspace(-3, 3, 25):
        for sign in (1, -1):
            null = special.ndtr(-sign * z)
            mixed = (1 - p) * null + p * special.ndtr(sign * (mu - z))
            assert least(mixed) <= null + 1e-12 and least(null) <= mixed + 1e-12
            assert least(mixed) <= mixed


def test_a_curve_of_nearly_all_records_is_nearly_that_of_all() -> None:
    exact, near = (Leakage(Step(p, 0.2), 16, 1e-6).least() for p in (1.0, 0.9999))
    for p in np.linspace(0.01, 0.99, 30):
        assert near(p) == pytest.approx(exact(p), abs=2e-3)


def test_a_scale_is_read_as_that_much_more_of_mu() -> None:
    leakage = Leakage(Step(1.0, 0.1), 25, 1e-6)
    assert leakage.epsilon(3.0) == pytest.approx(Leakage(Step(1.0, 0.3), 25, 1e-6).epsilon())
    assert leakage.least(3.0)(0.4) == pytest.approx(gaussian(1.5)(0.4))


@pytest.mark.parametrize("counts", [(2, 1, 5), (-1, 1, 5), (1, 6, 5)])
def test_impossible_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="right guesses are at most the guesses"):
        p_value(*counts, 1.0, 0.0)
    with pytest.raises(ValueError, match="right guesses are at most the guesses"):
        excludes(*counts, gaussian(1.0), error=0.05)


def test_an_impossible_error_and_a_curve_of_another_relation_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        epsilon_of_guesses(1, 1, 1, 0.0, error=0.0)
    with pytest.raises(ValueError, match="no curve under replacement"):
        Leakage(Step(0.1, 1.0, "poisson"), 1, 1e-6)


@pytest.mark.parametrize("delta", [-1.0, 1.0, math.nan, math.inf])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    for call in (lambda: p_value(9, 10, 20, 1.0, delta), lambda: epsilon_of_guesses(9, 10, 20, delta, error=0.05)):
        with pytest.raises(ValueError, match="delta is"):
            call()
    with pytest.raises(ValueError, match="epsilon is"):
        p_value(9, 10, 20, math.nan, 1e-5)
