"""Laws of the lower pair on an equilateral triangle: its loss, its mirror image, and what it adds to the bracket."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from fedsw.privacy.accounting import Composition, Step, epsilon, epsilon_bracket, lower_epsilon, step_profile
from fedsw.privacy.accounting.profiles import exceedances, triangle_masses


def _by_cells(loss: float, p: float, mu: float, cells: int = 2000) -> tuple[float, float]:
    """The same two masses from a fine grid over the plane, in coordinates that know nothing of the library's."""
    x = (np.arange(cells) + 0.5) / cells * (mu + 14) - 7
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    centres = [(0.0, 0.0), (mu, 0.0), (mu / 2, mu * math.sqrt(0.75))]
    shift = [np.exp(x * c - c * c / 2) for point in centres for c in point]
    r = np.outer(density, density)
    a, b = (r * np.outer(shift[2 * i], shift[2 * i + 1]) for i in (1, 2))
    one, other = (1 - p) * r + p * a, (1 - p) * r + p * b
    region = np.log(one) - np.log(other) > loss
    return float(one[region].sum()), float(other[region].sum())


@pytest.mark.parametrize(("p", "mu", "loss"), [(0.3, 1.0, 0.1), (0.3, 1.0, 0.5), (0.05, 2.0, 0.2), (0.9, 0.5, 0.0)])
def test_the_mass_beyond_a_loss_is_that_of_the_plane(p, mu, loss):
    above, below = exceedances(np.array([loss]), p, mu)
    one, other = _by_cells(loss, p, mu)
    assert float(above[0]) == pytest.approx(one, rel=5e-3) and float(below[0]) == pytest.approx(other, rel=5e-3)


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0, 10.0])
def test_without_sampling_the_pair_is_the_plain_gaussian(mu):
    losses = np.linspace(0.0, 3 * mu, 50)
    above, below = exceedances(losses, 1.0, mu)
    np.testing.assert_allclose(above, ndtr(mu / 2 - losses / mu), rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(below, ndtr(-mu / 2 - losses / mu), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("p", [1e-4, 0.01, 0.3, 0.99])
@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0, 6.0])
def test_one_step_is_nowhere_above_the_dominating_pair(p, mu):
    losses = np.append(0.0, np.logspace(-6, 0.7, 60))
    above, below = exceedances(losses, p, mu)
    exact = step_profile(Step(p, mu), losses)
    assert (above - np.exp(losses) * below <= exact * (1 + 1e-9) + 1e-15 * above + 1e-18).all()


@pytest.mark.parametrize(("p", "mu"), [(0.01, 1.0), (0.2, 0.3), (0.5, 2.0)])
def test_turned_round_the_pair_is_its_own_mirror_image(p, mu):
    spacing = math.log1p(p * math.expm1(mu * mu / 2 + 8 * mu)) / 100_000
    nodes = spacing * np.arange(1.0, 100_000)
    minus, centre, plus = triangle_masses(nodes, p, mu)
    assert float(minus.sum() + centre + plus.sum()) == pytest.approx(1.0, abs=1e-12)
    # What Q has at a loss is what P has at minus the loss, times or divided by e^loss.
    seen = plus > 1e-8
    ratio = np.log(plus[seen] / minus[seen]) - nodes[seen]
    assert np.abs(ratio).max() <= 0.51 * spacing


@pytest.mark.parametrize(("multiplier", "expected", "first"), [(1.0, 4.4766, 4.2019), (0.8, 7.384, 6.842)])
def test_the_known_lower_ends_are_met_from_below(multiplier, expected, first):
    steps = {Step(0.01, 1 / multiplier): 5000}
    lower, upper = epsilon_bracket(steps, 1e-5)
    assert expected - 2e-3 <= lower <= expected + 5e-4 < upper
    assert first - 2e-3 <= lower_epsilon(steps, 1e-5) <= first + 5e-4


@pytest.mark.parametrize("p", [1e-3, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("count", [1, 30, 1000])
@pytest.mark.parametrize("mu", [0.1, 1.0, 2.5])
def test_the_lower_end_is_never_above_the_guarantee(p, count, mu):
    steps = {Step(p, mu): count}
    found = Composition(steps, sides=("triangle",)).lower_epsilon(1e-5)
    assert 0.0 <= found <= epsilon(steps, 1e-5)


def test_the_larger_of_the_two_pairs_is_the_lower_end():
    often = {Step(0.1, 0.5): 500}
    assert epsilon_bracket(often, 1e-6)[0] == lower_epsilon(often, 1e-6)  # smaller than the first at p = .1
    assert Composition(often, sides=("triangle",)).lower_epsilon(1e-6) < lower_epsilon(often, 1e-6)
    steps = {Step(0.01, 1.0): 500, Step(0.02, 0.8): 500}
    assert lower_epsilon(steps, 1e-5) < epsilon_bracket(steps, 1e-5)[0] < epsilon(steps, 1e-5)
