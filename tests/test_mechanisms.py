"""Laws of the noise of one release: enough, not more than needed, and of the right law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from fedsw.privacy.mechanisms import gaussian_sigma, laplace_scale
from fedsw.privacy.noise import spacing
from fedsw.randomness import Stream
from tests.doors import privatised

BUDGETS = [(e, d) for e in (0.01, 0.3, 1.0, 5.0, 30.0) for d in (1e-12, 1e-5, 1e-2, 0.3)]


def exact_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """delta(epsilon) of N(sensitivity, sigma^2) against N(0, sigma^2), by the normal law of its privacy loss."""
    mu = sensitivity / sigma
    first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(stats.norm.cdf(first) - math.exp(epsilon + stats.norm.logcdf(second)))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_true_delta_of_every_calibration_is_within_the_asked_one(epsilon, delta):
    for calibration in ("analytic", "rco"):
        sigma = gaussian_sigma(epsilon, delta, 3.0, calibration)
        assert exact_delta(epsilon, sigma, 3.0) <= delta * (1 + 1e-9), calibration


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_analytic_sigma_is_the_least_and_never_too_small(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta, 1.0)
    assert exact_delta(epsilon, sigma * (1 - 1e-6), 1.0) > delta
    assert gaussian_sigma(epsilon, delta, 1.0, "rco") > sigma


def test_the_closed_form_of_delta_is_the_integral_of_the_excess_density():
    sigma = gaussian_sigma(1.0, 1e-3, 2.0)
    excess = integrate.quad(
        lambda x: max(0.0, stats.norm.pdf(x, 2.0, sigma) - math.e * stats.norm.pdf(x, 0.0, sigma)),
        -10 * sigma,
        2 + 12 * sigma,
        limit=400,
        points=[sigma**2 / 2 + 1],
    )[0]
    assert excess == pytest.approx(1e-3, rel=1e-5)


def test_rco_is_equation_4():
    epsilon, delta = 0.7, 1e-4
    c = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    expected = (c + math.sqrt(c * c + epsilon)) / (epsilon * math.sqrt(2)) * 5
    assert gaussian_sigma(epsilon, delta, 5.0, "rco") == pytest.approx(expected, rel=1e-8)


def test_sigma_is_proportional_to_the_sensitivity_and_falls_with_the_budget():
    assert gaussian_sigma(1.0, 1e-5, 2.0) == pytest.approx(2 * gaussian_sigma(1.0, 1e-5, 1.0), rel=1e-12)
    assert gaussian_sigma(1.0, 1e-5, 1.0) > gaussian_sigma(1.1, 1e-5, 1.0) > gaussian_sigma(1.1, 1e-4, 1.0)


def test_a_laplace_release_has_a_likelihood_ratio_of_at_most_e_to_the_epsilon():
    scale = laplace_scale(0.4, 3.0)
    points = np.linspace(-50, 50, 2001)
    ratio = stats.laplace.logpdf(points, 0.0, scale) - stats.laplace.logpdf(points, 3.0, scale)
    assert 0.4 * (1 - 1e-6) <= ratio.max() <= 0.4


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_follows_its_law_and_its_scale(mechanism):
    rows = torch.full((1000, 200), 0.7, dtype=torch.float64)
    drawn = (privatised(mechanism, rows, 2.5, Stream.seeded(11, "noise")) - rows).numpy()
    assert drawn.dtype == np.float64 and drawn.shape == (1000, 200)
    law = stats.norm(0, 2.5) if mechanism == "gaussian" else stats.laplace(0, 2.5)
    assert stats.kstest(drawn.ravel(), law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(np.abs(drawn[:, 0]), drawn[:, 1])[0, 1]) < 0.15
    assert abs(np.corrcoef(drawn.ravel()[:-1], drawn.ravel()[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_comes_from_its_stream_alone_and_is_released_on_a_grid(mechanism):
    rows = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(10, 5)
    first, again, other = (privatised(mechanism, rows, 0.3, Stream.seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert all((value / spacing(0.3)).is_integer() for value in first.flatten().tolist())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_is_no_budget_is_refused(epsilon):
    for call in (lambda: gaussian_sigma(epsilon, 1e-5, 1.0), lambda: laplace_scale(epsilon, 1.0)):
        with pytest.raises(ValueError, match=f"epsilon is {epsilon}; it must be positive"):
            call()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1.0, 0.0, 1.0), "delta is 0.0; Gaussian noise needs delta"),
        ((1.0, 1.0, 1.0), "delta is 1.0; Gaussian noise needs delta"),
        ((1.0, math.nan, 1.0), "delta is nan"),
        ((1.0, 0.5, 1.0, "rco"), "'rco' needs delta below 1/2"),
        ((1.0, 1e-5, 0.0), "sensitivity is 0.0"),
        ((1.0, 1e-5, math.inf), "sensitivity is inf"),
        ((1.0, 1e-5, 1.0, "classic"), "choose one of analytic, rco"),
    ],
)
def test_what_gives_no_sigma_is_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        gaussian_sigma(*arguments)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_a_positive_scale_is_refused(mechanism, scale):
    with pytest.raises(ValueError, match=f"noise of scale {scale}"):
        privatised(mechanism, torch.zeros(1, dtype=torch.float64), scale, Stream.seeded(1))


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(ValueError, match="choose one of gaussian, laplace"):
        privatised("cauchy", torch.zeros(1, dtype=torch.float64), 1.0, Stream.seeded(1))
