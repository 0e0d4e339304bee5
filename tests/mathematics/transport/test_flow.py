"""Laws of the particle flows: the step against its formula, convergence, stored slices, noise of their own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.flow import Slices, draw_stored, flow_step
from fedsw.mathematics.transport.sliced import sliced_w2
from fedsw.privacy.slices import DirectionStream, unprotected_slices
from tests.doors import release_slices


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(Stream.seeded(seed, "test data").normals(math.prod(shape))).reshape(shape)


def draws(seed: int = 0) -> DirectionStream:
    return DirectionStream(Stream.seeded(seed, "public"))


def release(features: Tensor, *, k: int = 4, sigma: float = 0.5, seed: int = 0) -> Slices:
    return release_slices(
        features,
        radius=5.0,
        k=k,
        scheme="orthogonal",
        sigma=sigma,
        directions_stream=draws(seed),
        noise_stream=Stream.seeded(seed, "noise"),
    )


def test_a_step_is_the_mean_over_directions_of_quantiles_at_the_particles_ranks() -> None:
    particles, slices = normal(9, 3), release(normal(9, 3, seed=4), k=6)
    velocity = torch.zeros_like(particles)
    for direction in range(6):
        theta = slices.directions[:, direction]
        own, private = particles @ theta, slices.projections[:, direction].sort().values
        for i in range(9):
            rank = int((own < own[i]).sum())
            velocity[i] += (private[rank] - own[i]) * theta / 6
    moved = flow_step(particles, [slices], step=0.7, diffusion=0.0, dummy=False, stream=Stream.seeded(0))
    torch.testing.assert_close(moved, particles + 0.7 * velocity, rtol=0, atol=1e-13)


def test_dummy_noise_of_the_releases_sigma_enters_ranks_and_positions_of_the_comparison() -> None:
    particles, slices = normal(9, 3), release(normal(9, 3, seed=4), k=6)
    noise = torch.from_numpy(Stream.seeded(7).normals(54)).reshape(9, 6)
    own = particles @ slices.directions + slices.sigma * noise
    quantiles = slices.projections.sort(dim=0).values.gather(0, own.argsort(dim=0).argsort(dim=0))
    expected = particles + 0.7 * (quantiles - own) @ slices.directions.T / 6
    moved = flow_step(particles, [slices], step=0.7, diffusion=0.0, dummy=True, stream=Stream.seeded(7))
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_translation_is_undone_at_the_rate_of_the_step_over_the_dimension(p: int) -> None:
    target, shift, theta = normal(20, p), 3 * normal(p, seed=2), draws().draw(p, 4 * p)
    slices = unprotected_slices(target, theta)
    moved = flow_step(target + shift, [slices], step=0.5, diffusion=0.0, dummy=True, stream=Stream.seeded(0))
    torch.testing.assert_close(moved, target + (1 - 0.5 / p) * shift, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stored", [True, False])
def test_without_noise_the_flow_reaches_the_target(stored: bool) -> None:
    target = torch.cat([normal(300, 2) * 0.2 + 2, normal(300, 2, seed=1) * 0.2 - 2])
    particles, fresh, public = normal(400, 2, seed=6), draws(1), Stream.seeded(3)
    store = unprotected_slices(target, fresh.draw(2, 60))
    judge = draws(2).draw(2, 100)
    assert float(sliced_w2(particles, target, judge)) > 1
    for _ in range(60):
        slices = draw_stored([store], 20, stream=public)[0] if stored else unprotected_slices(target, fresh.draw(2, 20))
        particles = flow_step(particles, [slices], step=1.0, diffusion=0.0, dummy=True, stream=public)
    assert float(sliced_w2(particles, target, judge)) < 2e-3


def test_with_dummy_noise_the_spread_of_the_records_is_learned_and_without_it_that_of_the_noise_too() -> None:
    store = release(normal(4000, 1), k=1, sigma=1.0)
    ends = {}
    for dummy in (True, False):
        particles, public = 0.1 * normal(2000, 1, seed=6), Stream.seeded(3)
        for _ in range(80):
            particles = flow_step(particles, [store], step=0.2, diffusion=0.0, dummy=dummy, stream=public)
        ends[dummy] = float(particles.std())
    assert ends[True] == pytest.approx(1, abs=0.1)
    assert ends[False] == pytest.approx(math.sqrt(2), abs=0.1)


def test_diffusion_adds_gaussian_noise_of_variance_two_lambda_h() -> None:
    point, slices = torch.zeros((20_000, 2), dtype=torch.float64), release(normal(30, 2))
    still, moved = (
        flow_step(point, [slices], step=0.3, diffusion=amount, dummy=False, stream=Stream.seeded(4))
        for amount in (0.0, 0.7)
    )
    covariance = torch.cov((moved - still).T)
    torch.testing.assert_close(covariance, 2 * 0.7 * 0.3 * torch.eye(2, dtype=torch.float64), rtol=0, atol=0.02)


def test_stored_slices_are_read_as_often_as_wanted_and_never_noised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    private_noise = Stream.seeded(0, "noise")
    store = release_slices(
        normal(50, 2),
        radius=5.0,
        k=12,
        scheme="orthogonal",
        sigma=0.5,
        directions_stream=draws(),
        noise_stream=private_noise,
    )
    numbers = store.projections.clone()

    def refuse(count: int) -> None:
        raise AssertionError("new private noise was drawn")

    monkeypatch.setattr(private_noise, "words", refuse)
    particles, public, used = normal(30, 2, seed=1), Stream.seeded(1), set()
    for _ in range(40):
        (part,) = draw_stored([store], 5, stream=public)
        matches = (part.directions.T[:, None] == store.directions.T).all(dim=-1)
        assert (matches.sum(dim=1) == 1).all()
        positions = matches.int().argmax(dim=1)
        assert len(set(positions.tolist())) == 5
        assert torch.equal(part.projections, store.projections[:, positions])
        assert part.sigma == store.sigma
        used |= set(positions.tolist())
        particles = flow_step(particles, [part], step=0.5, diffusion=0.1, dummy=True, stream=public)
    assert used == set(range(12))
    assert torch.equal(store.projections, numbers)


def test_steps_with_the_same_public_randomness_are_the_same() -> None:
    store, particles = release(normal(50, 2)), normal(30, 2, seed=1)
    first, second = (
        flow_step(particles, [store], step=0.5, diffusion=0.1, dummy=True, stream=Stream.seeded(9)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_stored_clients_give_the_same_positions_so_that_common_directions_pool() -> None:
    first = release(normal(20, 2), k=8)
    second = Slices(first.directions, normal(15, 8), first.sigma)
    one, two = draw_stored([first, second], 3, stream=Stream.seeded(5))
    assert torch.equal(one.directions, two.directions)


def test_settings_out_of_range_are_refused() -> None:
    store, particles = release(normal(20, 2)), normal(5, 2)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="step h"):
            flow_step(particles, [store], step=step, diffusion=0.0, dummy=True, stream=Stream.seeded(0))
    for diffusion in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="diffusion lambda"):
            flow_step(particles, [store], step=1.0, diffusion=diffusion, dummy=True, stream=Stream.seeded(0))
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"directions = {count}; it is a whole number, 1 to 4"):
            draw_stored([store], count, stream=Stream.seeded(0))
    with pytest.raises(ValueError, match=r"\[4, 6\] directions"):
        draw_stored([store, release(normal(20, 2), k=6)], 2, stream=Stream.seeded(0))
    with pytest.raises(ValueError, match="at least one"):
        draw_stored([], 2, stream=Stream.seeded(0))
