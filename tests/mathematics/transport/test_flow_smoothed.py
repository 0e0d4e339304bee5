"""Laws of DP-SWD: values and gradients against POT, pools of clients, dummy noise, no way to private features."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport import flow
from fedsw.mathematics.transport.flow import Order, Slices, flow_step, noised_swd
from fedsw.privacy.slices import DirectionStream, unprotected_slices
from tests.doors import release_on, release_slices

SIZES = [(1, 1), (9, 9), (7, 3), (3, 7), (12, 8), (40, 31)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(Stream.seeded(seed, "test data").normals(math.prod(shape))).reshape(shape)


def blocks(p: int, k: int, seed: int = 0) -> Tensor:
    return DirectionStream(Stream.seeded(seed, "public")).draw(p, k)


def released(features: Tensor, theta: Tensor, *, sigma: float = 0.4, seed: int = 3) -> Slices:
    return release_on(features, theta, radius=10.0, sigma=sigma, noise_stream=Stream.seeded(seed))


def by_pot(generated: Tensor, slices: Slices, order: Order, dummy: Stream | None) -> tuple[Tensor, Tensor]:
    """Value and gradient from POT's one-dimensional distances and autograd."""
    leaf = generated.detach().clone().requires_grad_()
    own = leaf @ slices.directions
    if dummy is not None:
        own = own + slices.sigma * torch.from_numpy(dummy.normals(own.numel())).reshape(own.shape)
    value = ot.wasserstein_1d(own, slices.projections, p=order).mean()
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("dummy", [True, False])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize(("p", "k"), [(1, 1), (3, 6)])
def test_value_and_gradient_equal_pot_on_the_noised_projections(p, k, n, m, order: Order, dummy: bool) -> None:
    slices, generated = released(normal(n, p), blocks(p, k)), normal(m, p, seed=5) * 1.4 + 0.2
    match = noised_swd(generated, [slices], order=order, dummy=dummy, stream=Stream.seeded(6))
    value, gradient = by_pot(generated, slices, order, Stream.seeded(6) if dummy else None)
    torch.testing.assert_close(match.value, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(match.cotangents, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_without_noise_it_is_the_sliced_wasserstein_distance_of_pot(n: int, m: int, order: Order) -> None:
    features, generated, theta = normal(n, 3), (normal(m, 3, seed=5) * 1.4).requires_grad_(), blocks(3, 9)
    match = noised_swd(generated, [unprotected_slices(features, theta)], order=order, stream=Stream.seeded(0))
    reference = ot.sliced_wasserstein_distance(generated, features, projections=theta, p=order) ** order
    reference.backward()
    torch.testing.assert_close(match.value, reference.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(match.cotangents, generated.grad, rtol=1e-9, atol=1e-12)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.3, 1.0]), min_size=1, max_size=9),
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.2, 1.0]), min_size=1, max_size=9),
    st.sampled_from([1, 2]),
)
def test_tied_samples_of_any_size_have_the_value_of_a_loop_over_quantiles(own, other, order) -> None:
    m, n = len(own), len(other)
    cells = math.lcm(m, n)
    gaps = [abs(sorted(own)[c * m // cells] - sorted(other)[c * n // cells]) ** order for c in range(cells)]
    one = torch.ones((1, 1), dtype=torch.float64)
    columns = [torch.tensor(values, dtype=torch.float64)[:, None] for values in (own, other)]
    match = noised_swd(columns[0], [unprotected_slices(columns[1], one)], order=order, stream=Stream.seeded(0))
    assert float(match.value) == pytest.approx(math.fsum(gaps) / cells, abs=1e-13)


@pytest.mark.parametrize("order", [1, 2])
def test_the_gradient_is_the_slope_of_the_value(order: Order) -> None:
    slices, generated, along = released(normal(11, 2), blocks(2, 4)), normal(7, 2, seed=5), normal(7, 2, seed=8)
    values = [
        noised_swd(generated + t * along, [slices], order=order, stream=Stream.seeded(6)).value for t in (-1e-6, 1e-6)
    ]
    slope = (noised_swd(generated, [slices], order=order, stream=Stream.seeded(6)).cotangents * along).sum()
    assert float((values[1] - values[0]) / 2e-6) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("order", [1, 2])
def test_clients_on_common_directions_are_one_client_with_all_their_records(order: Order) -> None:
    theta, generated = blocks(2, 6), normal(8, 2, seed=5)
    parts = [released(normal(n, 2, seed=n), theta, seed=n) for n in (5, 9, 2)]
    whole = Slices(theta, torch.cat([part.projections for part in parts]), parts[0].sigma)
    together, alone = (
        noised_swd(generated, clients, order=order, stream=Stream.seeded(6)) for clients in (parts, [whole])
    )
    torch.testing.assert_close(together.value, alone.value, rtol=1e-12, atol=0)
    torch.testing.assert_close(together.cotangents, alone.cotangents, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dummy", [True, False])
def test_clients_with_directions_of_their_own_are_weighted_by_their_records(order: Order, dummy: bool) -> None:
    generated = normal(8, 3, seed=5)
    parts = [released(normal(n, 3, seed=n), blocks(3, k, seed=k), sigma=s) for n, k, s in ((6, 3, 0.1), (2, 6, 0.5))]
    match = noised_swd(generated, parts, order=order, dummy=dummy, stream=Stream.seeded(6))
    stream = Stream.seeded(6)
    expected = [by_pot(generated, part, order, stream if dummy else None) for part in parts]
    torch.testing.assert_close(match.value, 0.75 * expected[0][0] + 0.25 * expected[1][0], rtol=1e-9, atol=1e-12)
    gradient = 0.75 * expected[0][1] + 0.25 * expected[1][1]
    torch.testing.assert_close(match.cotangents, gradient, rtol=1e-9, atol=1e-12)


def test_common_directions_with_unequal_noise_are_not_pooled() -> None:
    theta, generated = blocks(2, 2), normal(8, 2, seed=5)
    parts = [released(normal(4, 2, seed=n), theta, sigma=sigma) for n, sigma in ((1, 0.1), (2, 2.0))]
    match = noised_swd(generated, parts, stream=Stream.seeded(6), dummy=False)
    expected = [by_pot(generated, part, 2, None)[0] for part in parts]
    torch.testing.assert_close(match.value, (expected[0] + expected[1]) / 2, rtol=1e-9, atol=0)


@pytest.mark.parametrize("order", [1, 2])
def test_the_mean_over_clients_is_at_least_the_pooled_loss(order: Order) -> None:
    theta, generated = blocks(2, 6), normal(30, 2, seed=5)
    parts = [released(normal(n, 2, seed=n) + n / 4, theta, seed=n) for n in (5, 9, 2)]
    pooled = noised_swd(generated, parts, order=order, dummy=False, stream=Stream.seeded(6)).value
    turned = [
        # The same directions in another order: the same loss of each, and no pool.
        part.columns(torch.roll(torch.arange(6), shift).tolist())
        for shift, part in enumerate(parts)
    ]
    mean = noised_swd(generated, turned, order=order, dummy=False, stream=Stream.seeded(6)).value
    assert float(mean) > float(pooled) + 0.01


@pytest.mark.parametrize("own", [False, True])
def test_towards_a_barycentre_the_loss_is_the_mean_of_pots_distances_whatever_clients_have(own: bool) -> None:
    """As POT's free-support sliced barycentre minimises it: a distance to each client, on the directions it has."""
    clients = [normal(9, 3, seed=1) - 2, normal(40, 3, seed=2) * 0.5, normal(7, 3, seed=3) + 2]
    thetas = [blocks(3, 6, seed=client if own else 0) for client in range(3)]
    slices = [unprotected_slices(records, theta) for records, theta in zip(clients, thetas, strict=True)]
    leaf = normal(12, 3, seed=5).requires_grad_()
    value = sum(
        ot.sliced_wasserstein_distance(leaf, records, projections=theta, p=2) ** 2
        for records, theta in zip(clients, thetas, strict=True)
    ) / len(clients)
    value.backward()
    match = noised_swd(leaf.detach(), slices, towards="barycentre", dummy=False, stream=Stream.seeded(0))
    torch.testing.assert_close(match.value, value.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(match.cotangents, leaf.grad, rtol=1e-9, atol=1e-12)


def test_on_a_line_particles_reach_pots_free_support_barycentre() -> None:
    line = torch.ones((1, 1), dtype=torch.float64)
    clients = [normal(8, 1, seed=1) - 3, normal(8, 1, seed=2) * 2, normal(8, 1, seed=3) + 5]
    slices, points = [unprotected_slices(records, line) for records in clients], normal(8, 1, seed=4)
    for _ in range(60):
        points = flow_step(
            points, slices, step=0.5, diffusion=0.0, towards="barycentre", dummy=False, stream=Stream.seeded(0)
        )
    known = [records.numpy() for records in clients]
    uniform = [np.full(8, 1 / 8)] * 3
    by_pot = ot.lp.free_support_barycenter(known, uniform, normal(8, 1, seed=4).numpy(), numItermax=50)
    assert np.sort(points.numpy().ravel()) == pytest.approx(np.sort(by_pot.ravel()), abs=1e-6)


@pytest.mark.parametrize(("dummy", "spread"), [(True, 0.3), (False, math.hypot(0.3, 0.5))])
def test_dummy_noise_makes_the_barycentre_that_of_the_records_and_not_of_their_noise(
    dummy: bool, spread: float
) -> None:
    line = torch.ones((1, 1), dtype=torch.float64)
    clients = [normal(4000, 1, seed=seed) * 0.3 + seed for seed in (1, 3)]
    slices = [released(records, line, sigma=0.5, seed=10 + client) for client, records in enumerate(clients)]
    points, public = normal(2000, 1, seed=5), Stream.seeded(1)
    for _ in range(120):
        points = flow_step(points, slices, step=0.2, diffusion=0.0, towards="barycentre", dummy=dummy, stream=public)
    assert float(points.mean()) == pytest.approx(2.0, abs=0.05)
    assert float(points.std()) == pytest.approx(spread, abs=0.06)


def test_clients_that_differ_and_share_no_directions_pull_towards_their_mean() -> None:
    one = torch.ones((1, 1), dtype=torch.float64)
    ends, middle = torch.tensor([[-1.0], [1.0]]), torch.zeros((2, 1))
    for theta, losses in ((one, (0.0, 1.0)), (-one, (2.0, 1.0))):
        clients = [unprotected_slices(-one, one), unprotected_slices(one, theta)]
        found = [float(noised_swd(points, clients, stream=Stream.seeded(0)).value) for points in (ends, middle)]
        assert found == pytest.approx(losses)


@pytest.mark.parametrize("order", [1, 2])
def test_points_that_meet_what_they_are_matched_with_stay(order: Order) -> None:
    points = torch.tensor([[0.5], [-1.0], [0.5], [2.0]], dtype=torch.float64)
    slices = unprotected_slices(points.repeat(3, 1), torch.ones((1, 1), dtype=torch.float64))
    match = noised_swd(points, [slices], order=order, stream=Stream.seeded(0))
    assert float(match.value) == 0 and not match.cotangents.any()


@pytest.mark.parametrize("order", [1, 2])
def test_dummy_noise_makes_the_records_own_law_optimal_and_its_absence_a_wider_one(order: Order) -> None:
    sigma, theta = 1.0, torch.ones((1, 1), dtype=torch.float64)
    slices = released(normal(20_000, 1), theta, sigma=sigma)
    fresh = normal(20_000, 1, seed=9)
    scales = (0.8, 1.0, math.sqrt(2), 1.8)
    losses = {
        dummy: [
            float(noised_swd(s * fresh, [slices], order=order, dummy=dummy, stream=Stream.seeded(6)).value)
            for s in scales
        ]
        for dummy in (True, False)
    }
    assert min(losses[True]) == losses[True][1]
    assert min(losses[False]) == losses[False][2]


def test_the_gradient_flows_through_the_generated_side_only() -> None:
    private, generated = normal(6, 2).requires_grad_(), normal(5, 2, seed=5).requires_grad_()
    slices = release_slices(
        private,
        radius=5.0,
        k=2,
        scheme="orthogonal",
        sigma=1.0,
        directions_stream=DirectionStream(Stream.seeded(0)),
        noise_stream=Stream.seeded(1),
    )
    match = noised_swd(generated, [slices], stream=Stream.seeded(2))
    assert not match.value.requires_grad and not match.cotangents.requires_grad
    (generated * 3).backward(match.cotangents)
    assert private.grad is None
    torch.testing.assert_close(generated.grad, 3 * match.cotangents)


def test_blocks_of_directions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slices, generated = released(normal(11, 2), blocks(2, 8)), normal(7, 2, seed=5)
    whole = noised_swd(generated, [slices], order=1, stream=Stream.seeded(6))
    monkeypatch.setattr(flow, "DEFAULT_MEMORY_LIMIT", 1)
    parts = noised_swd(generated, [slices], order=1, stream=Stream.seeded(6))
    assert torch.equal(whole.value, parts.value) and torch.equal(whole.cotangents, parts.cotangents)


def test_what_cannot_be_compared_is_refused() -> None:
    slices = released(normal(4, 2), blocks(2, 2))
    with pytest.raises(ValueError, match="no release"):
        noised_swd(normal(4, 2), [], stream=Stream.seeded(0))
    with pytest.raises(ValueError, match=r"q = 3"):
        noised_swd(normal(4, 2), [slices], order=3, stream=Stream.seeded(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="towards 'both' is unknown"):
        noised_swd(normal(4, 2), [slices], towards="both", stream=Stream.seeded(0))  # type: ignore[arg-type]
    refused = ((normal(4, 3), "slices of dimension 2"), (normal(0, 2), "is empty"), (normal(2), "expected .n, d."))
    for generated, why in refused:
        with pytest.raises(ValueError, match=why):
            noised_swd(generated, [slices], stream=Stream.seeded(0))
