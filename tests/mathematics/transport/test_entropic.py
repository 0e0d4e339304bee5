"""Laws of the transport losses: their values, their gradients, and that the entropic one undoes the noise."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import ot
import pytest
import scipy.linalg
import torch
from scipy import stats

from fedsw.mathematics.transport import entropic
from fedsw.mathematics.transport import entropic as sinkhorn
from fedsw.mathematics.transport.entropic import entropic_loss, plain_loss, sinkhorn_divergence

TIGHT = {"tolerance": 1e-10, "iterations": 20_000}
LOSSES = [
    functools.partial(entropic_loss, scale=1.5, **TIGHT),
    functools.partial(sinkhorn_divergence, scale=1.5, **TIGHT),
]
LOSSES.append(plain_loss)


def clouds(n: int = 12, m: int = 17, d: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    generated = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return generated.requires_grad_(), 1 + 2 * torch.randn(m, d, generator=generator, dtype=torch.float64)


def normal_grid(n: int) -> torch.Tensor:
    """n quantiles of N(0, 1), (n, 1), scaled to variance 1."""
    points = torch.from_numpy(stats.norm.ppf((np.arange(n) + 0.5) / n)).unsqueeze(1)
    return points / points.std(correction=0)


# --- values and gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2])
def test_the_entropic_value_is_that_of_naive_scaling_iterations(order):
    x, y = (points.detach() for points in clouds())
    costs = np.array(
        [[sum(abs(a - b) ** order for a, b in zip(p, q, strict=True)) for q in y.tolist()] for p in x.tolist()]
    )
    regulariser = order * 1.5**order
    kernel = np.exp(-costs / regulariser)
    right = np.ones(17)
    for _ in range(5000):
        left = (1 / 12) / (kernel @ right)
        right = (1 / 17) / (kernel.T @ left)
    plan = left[:, None] * kernel * right
    value = (plan * costs).sum() + regulariser * (plan * np.log(plan * 12 * 17)).sum()
    result = entropic_loss(x, y, order=order, scale=1.5, **TIGHT)
    assert result.loss.item() == pytest.approx(value, rel=1e-8) and result.converged


def test_the_plain_value_is_the_assignment_of_sorted_points_on_a_line():
    x, y = clouds(30, 30, 1)
    result = plain_loss(x, y, order=2)
    gaps = torch.sort(x[:, 0]).values - torch.sort(y[:, 0]).values
    assert result.loss.item() == pytest.approx((gaps**2).mean().item()) and result.converged
    (gradient,) = torch.autograd.grad(result.loss, x)
    expected = torch.zeros(30, dtype=torch.float64).scatter_(0, torch.argsort(x[:, 0]), 2 * gaps.detach() / 30)
    torch.testing.assert_close(gradient[:, 0], expected)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_with_the_plan_held_fixed_is_that_of_the_value(loss, order):
    x, y = clouds()
    (gradient,) = torch.autograd.grad(loss(x, y, order=order).loss, x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    step = 1e-5
    with torch.no_grad():
        ends = [loss(x + sign * step * direction, y, order=order).loss.item() for sign in (1, -1)]
    assert float((gradient * direction).sum()) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_gradients_reach_a_single_precision_generator_and_nothing_else():
    generator, y = torch.nn.Linear(3, 3), clouds()[1].requires_grad_()
    entropic_loss(generator(torch.randn(12, 3)), y.detach(), order=2, scale=1.0).loss.backward()
    assert generator.weight.grad is not None and generator.weight.grad.dtype == torch.float32
    assert float(generator.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize("order", [1, 2])
def test_the_debiased_divergence_is_zero_with_zero_gradient_where_the_points_agree_and_positive_elsewhere(order):
    x, y = clouds(15, 15)
    same = sinkhorn_divergence(x, x.detach().clone(), order=order, scale=1.5, **TIGHT)
    (gradient,) = torch.autograd.grad(same.loss, x)
    assert abs(same.loss.item()) < 1e-8 and float(gradient.abs().max()) < 1e-8
    assert sinkhorn_divergence(x, y, order=order, scale=1.5).loss.item() > 0.1
    (biased,) = torch.autograd.grad(entropic_loss(x, x.detach().clone(), order=order, scale=1.5).loss, x)
    assert float(biased.abs().max()) > 1e-3


# --- undoing the noise ------------------------------------------------------------------------------------------------

CLEAN = np.array([[2.0, 0.7], [0.7, 0.5]])
SIGMA = 1.0


def gaussian_gradient(map_: np.ndarray, released: np.ndarray, sigma: float) -> np.ndarray:
    """Gradient in G of W_{2, 2 sigma^2}(N(0, G G'), N(0, released)), from the closed form of the Gaussian plan.

    The cross-covariance of the plan is (A^1/2 (4 A^1/2 B A^1/2 + sigma^4 I)^1/2 A^-1/2 - sigma^2 I) / 2 (Janati,
    Muzellec, Peyre, Cuturi 2020, Theorem 1).
    """
    law = map_ @ map_.T
    root = np.real(scipy.linalg.sqrtm(law))
    inner = np.real(scipy.linalg.sqrtm(4 * root @ released @ root + sigma**4 * np.eye(len(law))))
    cross = (root @ inner @ np.linalg.inv(root) - sigma**2 * np.eye(len(law))) / 2
    return 2 * (map_ - cross.T @ np.linalg.inv(map_).T)


def loss_gradient(map_: np.ndarray, latent: torch.Tensor, released: torch.Tensor, loss) -> np.ndarray:
    weight = torch.tensor(map_, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(latent @ weight.T, released).loss, weight)
    return gradient.numpy()


def test_in_closed_form_the_clean_covariance_is_stationary_and_the_noisy_one_is_not():
    released = CLEAN + SIGMA**2 * np.eye(2)
    clean, noisy = np.linalg.cholesky(CLEAN), np.linalg.cholesky(released)
    np.testing.assert_allclose(gaussian_gradient(clean, released, SIGMA), 0, atol=1e-12)
    assert np.abs(gaussian_gradient(noisy, released, SIGMA)).max() > 0.5


@pytest.mark.parametrize("variance", [0.5, 1.0, 1.5, 2.0])
def test_on_a_line_the_losss_gradient_is_the_closed_forms(variance):
    latent = normal_grid(400)
    released = math.sqrt(2.0) * latent  # clean variance 1, noise variance 1
    loss = functools.partial(entropic_loss, order=2, scale=1.0, tolerance=1e-9)
    map_ = np.array([[math.sqrt(variance)]])
    ours = loss_gradient(map_, latent, released, loss)
    np.testing.assert_allclose(ours, gaussian_gradient(map_, np.array([[2.0]]), 1.0), atol=0.02)


def test_in_the_plane_the_losss_gradient_vanishes_at_the_clean_covariance_only():
    sobol = torch.quasirandom.SobolEngine(4, scramble=True, seed=1).draw(1024, dtype=torch.float64)
    points = torch.special.ndtri(sobol.clamp(1e-6, 1 - 1e-6))
    points = points @ torch.linalg.inv(torch.linalg.cholesky(points.T @ points / 1024)).T  # covariance exactly I
    noisy = np.linalg.cholesky(CLEAN + SIGMA**2 * np.eye(2))
    latent, released = points[:, :2], points[:, 2:] @ torch.from_numpy(noisy).T
    loss = functools.partial(entropic_loss, order=2, scale=SIGMA)
    at_clean = loss_gradient(np.linalg.cholesky(CLEAN), latent, released, loss)
    at_noisy = loss_gradient(noisy, latent, released, loss)
    assert np.abs(at_clean).max() < 0.12 and np.abs(at_noisy).max() > 0.6
    plain = functools.partial(plain_loss, order=2)
    assert np.abs(loss_gradient(noisy, latent, released, plain)).max() < 0.12  # what W_2 learns is the noisy one


def test_training_finds_the_clean_covariance_where_plain_w2_finds_the_noisy_one():
    generator = torch.Generator().manual_seed(5)
    clean = (
        torch.randn(2000, 2, generator=generator, dtype=torch.float64) @ torch.from_numpy(np.linalg.cholesky(CLEAN)).T
    )
    released = clean + SIGMA * torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    errors = {}
    for name, loss in (
        ("entropic", functools.partial(entropic_loss, order=2, scale=SIGMA, tolerance=1e-3)),
        ("plain", functools.partial(plain_loss, order=2)),
    ):
        covariance = train_linear(loss, released, generator)
        errors[name] = np.linalg.norm(covariance - CLEAN)
        if name == "plain":
            assert np.linalg.norm(covariance - CLEAN - SIGMA**2 * np.eye(2)) < 0.5
    assert errors["entropic"] < 0.35 and errors["plain"] > 1.0


def train_linear(loss, released: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    """Covariance of the linear generator that minibatch descent ends at."""
    weight = torch.eye(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.3)
    for step in range(60):
        optimiser.param_groups[0]["lr"] = 0.3 * (1 - step / 60)
        latent = torch.randn(200, 2, generator=generator, dtype=torch.float64)
        batch = released[torch.randperm(len(released), generator=generator)[:200]]
        optimiser.zero_grad()
        loss(latent @ weight.T, batch).loss.backward()
        optimiser.step()
    return (weight @ weight.T).detach().numpy()


def test_under_laplace_noise_order_one_finds_the_clean_points():
    """Clean points +-2, noise of scale b: the force on a generated pair +-s vanishes at s = 2 for scale b only."""
    scale = 0.7
    quantiles = torch.from_numpy(stats.laplace.ppf((np.arange(300) + 0.5) / 300, scale=scale)).unsqueeze(1)
    released = torch.cat((quantiles - 2, quantiles + 2))
    signs = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)

    def force(at: float, used: float) -> float:
        place = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        loss = entropic_loss(place * signs, released, order=1, scale=used, tolerance=1e-9).loss
        return float(torch.autograd.grad(loss, place)[0])

    assert abs(force(2.0, scale)) < 0.01
    assert force(1.8, scale) < -0.05 and force(2.2, scale) > 0.05
    assert abs(force(2.0, 3 * scale)) > 0.05


# --- the solver -------------------------------------------------------------------------------------------------------


def test_small_regularisers_and_large_costs_are_solved_without_a_warning():
    x, y = clouds(40, 50, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (0.05, 1.0, 100.0):
            result = entropic_loss(100 * x, 100 * y, order=2, scale=100 * scale)
            assert torch.isfinite(result.loss) and result.marginal_error < 1.0
            assert scale < 1.0 or result.converged


def test_when_the_scalings_break_down_the_log_domain_takes_over(monkeypatch):
    x, y = clouds()
    expected = entropic_loss(x, y, order=2, scale=1.5, **TIGHT).loss.item()
    broken = lambda costs, *_: np.full(costs.shape, np.nan)  # noqa: E731
    monkeypatch.setattr(entropic, "entropic_plan", broken)
    result = entropic_loss(x, y, order=2, scale=1.5, **TIGHT)
    assert result.loss.item() == pytest.approx(expected, rel=1e-9) and result.converged


def test_a_plan_that_ran_out_of_iterations_says_so():
    x, y = clouds()
    result = entropic_loss(x, y, order=2, scale=0.2, tolerance=1e-8, iterations=2)
    assert not result.converged and result.marginal_error > 1e-4
    assert not sinkhorn_divergence(x, y, order=2, scale=0.2, tolerance=1e-8, iterations=2).converged


def uniform_marginals(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.full(size, 1 / size) for size in costs.shape)


@pytest.mark.parametrize("scale", [1.5, 1.0, 0.5])
@pytest.mark.parametrize(("n", "m"), [(30, 30), (25, 40), (40, 25), (1, 7), (7, 1)])
def test_the_over_relaxed_plan_is_pots_in_the_log_domain(n, m, scale):
    x, y = (points.detach().numpy() for points in clouds(n, m, 2))
    costs = ((x[:, None] - y) ** 2).sum(axis=2)
    expected = ot.bregman.sinkhorn_log(*uniform_marginals(costs), costs, 2 * scale**2, numItermax=10**5, stopThr=1e-13)
    plan = sinkhorn.entropic_plan(costs, 2 * scale**2, 1e-12, 10**5)
    np.testing.assert_allclose(plan, expected, atol=1e-11)


def test_plans_of_kernels_that_underflow_are_found_where_plain_scalings_are_not():
    x, y = (20 * points.detach().numpy() for points in clouds(25, 35, 2))
    costs = ((x[:, None] - y) ** 2).sum(axis=2)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = ot.sinkhorn(*uniform_marginals(costs), costs, 2.0, warn=False)
        plan = sinkhorn.entropic_plan(costs, 2.0, 1e-6, 50_000)
    assert not np.abs(plain.sum(axis=1) - 1 / 25).sum() < 0.1
    assert np.abs(plan.sum(axis=1) - 1 / 25).sum() < 1e-6 and np.abs(plan.sum(axis=0) - 1 / 35).sum() < 1e-12


def test_over_relaxation_needs_a_fraction_of_the_plain_iterations(monkeypatch):
    x, y = (points.detach().numpy() for points in clouds(60, 60, 2))
    costs, step, counts = ((x[:, None] - y) ** 2).sum(axis=2), sinkhorn._Scaling.step, []
    for most in (1.97, 1.0):
        taken = []
        monkeypatch.setattr(sinkhorn._Scaling, "step", lambda *args, taken=taken: taken.append(1) or step(*args))
        monkeypatch.setattr(sinkhorn, "_LARGEST_OMEGA", most)
        plan = sinkhorn.entropic_plan(costs, 0.1, 1e-6, 10**5)
        assert np.abs(plan.sum(axis=1) - 1 / 60).sum() <= 1e-6
        counts.append(len(taken))
    assert 3 * counts[0] < counts[1]


def test_errors_that_grow_under_over_relaxation_end_it_and_the_plan_is_found_all_the_same(monkeypatch):
    x, y = (points.detach().numpy() for points in clouds(20, 30, 2))
    costs = ((x[:, None] - y) ** 2).sum(axis=2)
    monkeypatch.setattr(sinkhorn, "_best_omega", lambda errors, omega: 2.5)
    with np.errstate(all="ignore"):
        plan = sinkhorn.entropic_plan(costs, 1.0, 1e-8, 5000)
    assert np.abs(plan.sum(axis=1) - 1 / 20).sum() <= 1e-8


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
def test_the_marginals_meet_the_asked_tolerance(tolerance):
    result = entropic_loss(*clouds(60, 45), order=2, scale=0.5, tolerance=tolerance)
    assert result.marginal_error <= tolerance == result.tolerance


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": 3}, "order is 3; choose 1"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": math.nan}, "scale is nan"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"iterations": 0}, "iterations = 0"),
        ({"released": torch.zeros(4, 2)}, r"generated \(12, 3\) and released \(4, 2\)"),
        ({"released": torch.zeros(0, 3)}, "released is empty"),
        ({"generated": torch.full((12, 3), math.inf)}, r"generated\[0, 0\] = inf is not finite"),
        (
            {"generated": torch.full((12, 3), 1e200, dtype=torch.float64)},
            r"costs\[0, 0\] = inf .* lower the learning rate",
        ),
    ],
)
@pytest.mark.parametrize("loss", [entropic_loss, sinkhorn_divergence])
def test_what_cannot_be_matched_is_refused_by_name(loss, change, said):
    x, y = clouds()
    arguments = {"generated": x, "released": y, "order": 2, "scale": 1.0} | change
    with pytest.raises(ValueError, match=said):
        loss(arguments.pop("generated"), arguments.pop("released"), **arguments)
