"""The names of POT: POT's own cases, written anew, with POT as the oracle; arrays come back as what they came as."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch

import fedsw.ot as ours

SHAPES = [(1, 1, 1), (5, 5, 2), (20, 20, 2), (20, 15, 3), (7, 31, 1), (40, 10, 5), (3, 50, 12), (30, 30, 24)]


def pair(n, m, d, seed=0, shift=0.0):
    draw = np.random.RandomState(seed)
    return draw.randn(n, d), draw.randn(m, d) * 1.5 + shift


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 50), (5, 3), (24, 100)])
def test_random_projections_are_pots_number_by_number(d, k, seed):
    theirs = ot.sliced.get_random_projections(d, k, seed)
    np.testing.assert_array_equal(ours.get_random_projections(d, k, seed), theirs)
    state = ours.get_random_projections(d, k, np.random.RandomState(seed))
    np.testing.assert_array_equal(state, theirs)


@pytest.mark.parametrize("k", [1, 10, 50])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
def test_sliced_distances_are_pots(n, m, d, seed, k):
    x, y = pair(n, m, d, seed, shift=seed)
    theirs = ot.sliced_wasserstein_distance(x, y, n_projections=k, seed=seed)
    assert float(ours.sliced_wasserstein_distance(x, y, n_projections=k, seed=seed)) == pytest.approx(theirs, rel=1e-9)
    theta = ot.sliced.get_random_projections(d, k, seed + 9)
    given = ot.sliced_wasserstein_distance(x, y, projections=theta)
    assert float(ours.sliced_wasserstein_distance(x, y, projections=theta)) == pytest.approx(given, rel=1e-9)


@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
def test_a_sample_is_at_no_distance_of_itself_and_distances_are_symmetric(n, m, d):
    x, y = pair(n, m, d)
    assert float(ours.sliced_wasserstein_distance(x, x[::-1], seed=1)) < 1e-7
    one, other = (float(ours.sliced_wasserstein_distance(*each, seed=1)) for each in ((x, y), (y, x)))
    assert one == pytest.approx(other, rel=1e-12)


def test_in_one_dimension_it_is_the_wasserstein_distance():
    x, y = pair(100, 100, 1, shift=1.0)
    exact = math.sqrt(ot.wasserstein_1d(x[:, 0], y[:, 0], p=2))
    assert float(ours.sliced_wasserstein_distance(x, y)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"X_t": np.ones((3, 4))}, "shapes"),
        ({"X_s": np.ones(3)}, "one point a row"),
        ({"X_s": np.full((3, 2), np.nan)}, "finite"),
        ({"p": 1}, "order 2"),
        ({"projections": np.ones((2, 3))}, "norm|unit|length"),
        ({"n_projections": 0}, "n_projections"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, reason):
    with pytest.raises(ValueError, match=reason):
        ours.sliced_wasserstein_distance(**{"X_s": np.ones((3, 2)), "X_t": np.zeros((4, 2)), **change})


@pytest.mark.parametrize(
    ("n", "m", "d", "reg"),
    [
        *((*shape, 5.0) for shape in SHAPES[1:6]),
        # hundreds of times as many iterations, in both libraries
        *(pytest.param(*shape, 1.0, marks=pytest.mark.slow) for shape in SHAPES[1:6]),
        pytest.param(*SHAPES[1], 0.5, marks=pytest.mark.slow),
    ],
)
def test_plans_losses_and_divergences_are_pots(n, m, d, reg):
    x, y = pair(n, m, d, shift=0.5)
    costs = ot.dist(x, y)
    theirs = ot.sinkhorn(ot.unif(n), ot.unif(m), costs, reg, method="sinkhorn_log", stopThr=1e-12, numItermax=50_000)
    np.testing.assert_allclose(ours.sinkhorn(costs, reg, stopThr=1e-10, numItermax=50_000), theirs, atol=1e-8)

    def value(a, b):
        solved = ot.solve_sample(a, b, reg=reg, reg_type="KL", tol=1e-12, max_iter=50_000)
        return float(solved.value)

    tight = {"tolerance": 1e-10, "iterations": 50_000}
    assert float(ours.sinkhorn2(x, y, reg, **tight)) == pytest.approx(value(x, y), rel=1e-6)
    debiased = value(x, y) - (value(x, x) + value(y, y)) / 2
    assert float(ours.sinkhorn_divergence(x, y, reg, **tight)) == pytest.approx(debiased, rel=1e-5, abs=1e-7)
    assert abs(float(ours.sinkhorn_divergence(x, x, reg, **tight))) < 1e-9


@pytest.mark.parametrize("reg", [0.5, 2.0])
def test_the_cityblock_metric_is_pots(reg):
    x, y = pair(12, 9, 3)
    theirs = ot.solve_sample(x, y, reg=reg, reg_type="KL", metric="cityblock", tol=1e-12, max_iter=50_000).value
    found = ours.sinkhorn2(x, y, reg, metric="cityblock", tolerance=1e-10, iterations=50_000)
    assert float(found) == pytest.approx(float(theirs), rel=1e-6)
    with pytest.raises(ValueError, match="metric is 'cosine'"):
        ours.sinkhorn2(x, y, reg, metric="cosine")


@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]])
@pytest.mark.parametrize("b", [4, 9])
def test_barycentres_cost_what_pots_cost(b, weights):
    edges = np.linspace(0, 1, b + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    columns = np.random.RandomState(b).dirichlet(np.ones(b), 3).T
    costs = ot.dist(middles[:, None])
    shares = np.full(3, 1 / 3) if weights is None else np.array(weights)

    def total(law):
        return sum(share * ot.emd2(column, law, costs) for share, column in zip(shares, columns.T, strict=True))

    found = ours.barycenter(columns, edges, weights)
    assert found.sum() == pytest.approx(1.0) and found.min() > -1e-12
    theirs = ot.lp.barycenter(columns, costs, shares)
    assert total(found / found.sum()) == pytest.approx(total(theirs / theirs.sum()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("n", "m", "d"), SHAPES[1:5])
def test_gradients_are_those_of_the_squared_distance_and_move_by_their_sensitivity_at_most(n, m, d):
    x, y = (0.4 * np.tanh(each) / math.sqrt(d) for each in pair(n, m, d))
    theta = ours.get_random_projections(d, 30, 0)
    found = ours.sliced_wasserstein_gradients(x, y, theta, radius=1.0)
    source = torch.tensor(x, requires_grad=True)
    (ot.sliced_wasserstein_distance(source, torch.tensor(y), projections=torch.tensor(theta)) ** 2).backward()
    np.testing.assert_allclose(found.source, source.grad.numpy(), atol=1e-9)
    moved = x.copy()
    moved[0] = -1.0 / math.sqrt(d)
    after = ours.sliced_wasserstein_gradients(moved, y, theta, radius=1.0)
    # pulled back through one Jacobian for all, the identity
    change = np.linalg.norm(found.source.sum(0) - after.source.sum(0) - (found.target.sum(0) - after.target.sum(0)))
    assert 0 < change <= found.sensitivity.value
    far = ours.sliced_wasserstein_gradients(1e9 * x, y, theta, radius=1.0)
    assert np.isfinite(far.source).all() and far.sensitivity == found.sensitivity


@pytest.mark.parametrize("radius", [1.0, 1000.0])
def test_the_bound_of_gradients_has_room_for_rounding_where_it_is_attained(radius):
    direction = np.array([[0.6], [0.8]])
    points = np.tile(2 * radius * direction.T, (5, 1))
    found = ours.sliced_wasserstein_gradients(points, -points, direction, radius=radius)
    change = 2 * np.linalg.norm(found.source[0])  # one point's Jacobian is turned round, all else stays
    assert 0.998 * found.sensitivity.value < change < found.sensitivity.value / 1.0005


def test_denoising_finds_the_clean_points_that_noise_hid():
    draw = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    released = centres[draw.integers(0, 3, 300)] + draw.normal(0, 1.0, (300, 2))
    clean = ours.entropic_denoising(released, 1.0, points=15, steps=20, seed=0)

    def spread(points):
        return float(np.square(points[:, None] - centres).sum(2).min(1).mean())

    assert clean.shape == (15, 2) and spread(clean) < 0.4 * spread(released)
    assert ours.entropic_denoising(released, 1.0, steps=1).shape == released.shape


class Foreign:
    """An array of another library that follows the array API, as far as these functions ask."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __array_namespace__(self):
        return type("library", (), {"asarray": Foreign})


def test_arrays_come_back_as_what_they_came_as():
    x, y = pair(6, 5, 2)
    theta = ours.get_random_projections(2, 4, 0)
    calls = {
        "distance": lambda a, b: ours.sliced_wasserstein_distance(a, b, seed=0),
        "loss": lambda a, b: ours.sinkhorn2(a, b, 1.0),
        "divergence": lambda a, b: ours.sinkhorn_divergence(a, b, 1.0),
        "gradients": lambda a, b: ours.sliced_wasserstein_gradients(a, b, theta, radius=1.0).target,
        "denoised": lambda a, b: ours.entropic_denoising(a, 0.5, steps=1, seed=0),
    }
    for name, call in calls.items():
        arrays, lists = np.asarray(call(x, y)), np.asarray(call(x.tolist(), y.tolist()))
        tensor, foreign = call(torch.tensor(x), torch.tensor(y)), call(Foreign(x), Foreign(y))
        assert isinstance(tensor, torch.Tensor) and isinstance(foreign, Foreign), name
        for other in (lists, tensor.numpy(), foreign.values):
            np.testing.assert_allclose(other, arrays, rtol=1e-12, err_msg=name)


def test_losses_of_tensors_are_differentiable():
    x, y = (torch.tensor(each) for each in pair(6, 5, 2))
    for loss in (lambda a: ours.sliced_wasserstein_distance(a, y, seed=0), lambda a: ours.sinkhorn2(a, y, 1.0)):
        point = x.clone().requires_grad_()
        loss(point).backward()
        assert float(point.grad.norm()) > 0


def test_masses_that_are_no_histograms_are_refused_with_what_to_divide_by():
    columns = np.array([[0.5, 2.0], [0.5, 1.0]])
    for wrong in (columns, np.array([[1.5, 0.5], [-0.5, 0.5]])):
        with pytest.raises(ValueError, match=r"divide by A.sum\(axis=0\)"):
            ours.barycenter(wrong, [0.0, 0.5, 1.0])


def test_arrays_of_jax_come_back_as_arrays_of_jax_with_numpys_numbers():
    jax = pytest.importorskip("jax")
    x, y = pair(30, 20, 3, shift=1.0)
    columns = np.abs(x[:5]) / np.abs(x[:5]).sum(axis=0)

    def every(convert):
        a, b, costs = convert(x), convert(y), convert(np.square(x[:, None] - y).sum(-1))
        yield ours.sliced_wasserstein_distance(a, b, n_projections=16, seed=0)
        yield ours.sinkhorn_divergence(a, b, reg=0.5)
        yield ours.sinkhorn(costs, 1.0)
        yield ours.entropic_denoising(a, scale=0.3, points=5, seed=0)
        yield ours.barycenter(convert(columns), convert(np.linspace(0, 1, 6)))

    for theirs, numbers in zip(every(jax.numpy.asarray), every(np.asarray), strict=True):
        assert isinstance(theirs, jax.Array)
        np.testing.assert_allclose(np.asarray(theirs), numbers, rtol=1e-4, atol=1e-5)
