"""Laws of noised random slices: sensitivity, independence of directions and data, noise, refusals."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport import sliced
from fedsw.mathematics.transport.flow import Slices, UnprotectedSlices
from fedsw.privacy.slices import DirectionStream, unprotected_slices
from tests.doors import release_on, release_slices

RADIUS = 1.5
TINY = 1e-12  # noise whose grid does not blur what is measured under it


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(Stream.seeded(seed, "test data").normals(math.prod(shape))).reshape(shape)


def blocks(p: int, k: int, seed: int = 0) -> Tensor:
    return DirectionStream(Stream.seeded(seed, "public")).draw(p, k)


def release(features: Tensor, *, seed: int = 1, **other) -> Slices:
    settings = {
        "radius": RADIUS,
        "k": 4,
        "scheme": "orthogonal",
        "sigma": 0.3,
        "directions_stream": DirectionStream(Stream.seeded(seed)),
        "noise_stream": Stream.seeded(2),
    }
    return release_slices(features, **(settings | other))


def movement(x: Tensor, y: Tensor, **settings) -> float:
    """Length of the change of a release when x is replaced by y among other records, randomness held."""
    others = normal(6, x.shape[0])
    before, after = (release(torch.cat([others, row[None]]), sigma=TINY, **settings) for row in (x, y))
    assert torch.equal(before.directions, after.directions)
    change = after.projections - before.projections
    torch.testing.assert_close(change[:-1], torch.zeros_like(change[:-1]), rtol=0, atol=1e-12)
    return float(change[-1].norm())


@pytest.mark.parametrize(("p", "k"), [(1, 3), (2, 2), (3, 12), (8, 24)])
def test_on_whole_blocks_a_record_moves_at_most_the_diameter_times_the_root_of_k_over_p(p: int, k: int) -> None:
    limit = 2 * RADIUS * math.sqrt(k / p)
    theta = blocks(p, k)
    for seed in range(20):
        x, y = normal(p, seed=seed) * 10, normal(p, seed=100 + seed)
        assert movement(x, y, k=k) <= limit
        shared = [
            release_on(row[None], theta, radius=RADIUS, sigma=TINY, noise_stream=Stream.seeded(3)) for row in (x, y)
        ]
        assert float((shared[0].projections - shared[1].projections).norm()) <= limit
    assert movement(x * 1e3, -x * 1e3, k=k) == pytest.approx(limit, rel=1e-8)


@pytest.mark.parametrize(
    ("p", "k", "scheme", "law"),
    [
        (5, 1, "iid", stats.beta(0.5, 2)),
        (5, 3, "orthogonal", stats.beta(1.5, 1)),
        (3, 8, "orthogonal", stats.beta(1, 0.5, loc=2)),
        (2, 3, "orthogonal", stats.beta(0.5, 0.5, loc=1)),
    ],
)
def test_squared_movement_over_the_squared_diameter_follows_the_law_of_the_profile(p, k, scheme, law) -> None:
    x = normal(p) * 100
    squares = [(movement(x, -x, k=k, scheme=scheme, seed=seed) / 2 / RADIUS) ** 2 for seed in range(400)]
    assert stats.kstest(squares, law.cdf).pvalue > 1e-3


def test_independent_directions_add_their_beta_variables() -> None:
    stream = DirectionStream(Stream.seeded(8))
    unit = torch.tensor([1.0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    lengths = np.array([float((unit @ stream.draw(7, 12, "iid")).square().sum()) for _ in range(3000)])
    one = stats.beta(0.5, 3)
    assert lengths.mean() == pytest.approx(12 * one.mean(), rel=0.02)
    assert lengths.var() == pytest.approx(12 * one.var(), rel=0.1)


def test_rows_outside_the_ball_are_pulled_onto_it_and_rows_that_are_not_finite_become_the_origin() -> None:
    rows = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [math.inf, 0.0], [0.6, 0.1], [1e300, 0.0]], dtype=torch.float64)
    expected = torch.zeros((5, 2), dtype=torch.float64)
    expected[0] = torch.tensor([3.0, 4.0], dtype=torch.float64) / 5 * RADIUS
    expected[3] = rows[3]
    expected[4] = torch.tensor([RADIUS, 0.0])
    clean = release(expected)
    torch.testing.assert_close(release(rows).projections, clean.projections, rtol=0, atol=1e-12)


def test_the_frame_of_the_projections_is_that_of_the_features() -> None:
    features = normal(7, 3) * 0.1
    slices = release(features, k=6, sigma=TINY)
    torch.testing.assert_close(slices.projections, features @ slices.directions, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sigma", [0.01, 0.7, 3.0])
def test_the_noise_is_gaussian_of_the_stated_variance_and_uncorrelated(sigma: float) -> None:
    features = normal(20_000, 4)
    for slices in (
        release(features, sigma=sigma, radius=1e6),
        release_on(features, blocks(4, 4), radius=1e6, sigma=sigma, noise_stream=Stream.seeded(2)),
    ):
        noise = (slices.projections - features @ slices.directions) / sigma
        assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
        assert float((torch.cov(noise.T) - torch.eye(4)).abs().max()) < 0.04
        assert slices.sigma == sigma


def test_every_release_has_its_own_directions_and_noise() -> None:
    stream, noise, features = DirectionStream(Stream.seeded(1)), Stream.seeded(2), normal(5, 3)
    first, second = (release(features, k=3, directions_stream=stream, noise_stream=noise) for _ in range(2))
    assert not torch.isclose(first.directions, second.directions).any()
    noises = [slices.projections - features @ slices.directions for slices in (first, second)]
    assert not torch.isclose(*noises).any()
    source = Stream.seeded(1)
    assert not torch.equal(DirectionStream(source).draw(3, 3), DirectionStream(source).draw(3, 3))
    assert not torch.equal(DirectionStream(Stream.secure()).draw(3, 3), DirectionStream(Stream.secure()).draw(3, 3))


def test_directions_do_not_see_the_data() -> None:
    hostile = torch.full((5, 3), math.nan, dtype=torch.float64)
    thetas = [release(x, k=6).directions for x in (normal(5, 3), normal(5, 3, seed=9) * 1e9, hostile)]
    assert torch.equal(thetas[0], thetas[1]) and torch.equal(thetas[0], thetas[2])


def test_a_seed_shared_by_data_and_directions_does_not_align_them() -> None:
    """Directions from the very normals that made the records move them by far more than the law allows."""
    p = 200
    law = stats.beta(0.5, (p - 1) / 2)
    aligned, separated = [], []
    for seed in range(60):
        record = torch.from_numpy(Stream.seeded(seed).normals(p))
        unit = record / record.norm()
        naive = sliced.directions(p, 1, normals=torch.from_numpy(Stream.seeded(seed).normals(p))[:, None], scheme="iid")
        aligned.append(float((unit @ naive).square().sum()))
        slices = release(record[None], k=1, scheme="iid", directions_stream=DirectionStream(Stream.seeded(seed)))
        separated.append(float((unit @ slices.directions).square().sum()))
    assert min(aligned) == pytest.approx(1)
    assert stats.kstest(separated, law.cdf).pvalue > 1e-3


def test_drawing_directions_takes_no_number_of_their_source() -> None:
    source, twin = Stream.seeded(5), Stream.seeded(5)
    stream, _ = DirectionStream(source), DirectionStream(twin)
    stream.draw(4, 8)
    assert np.array_equal(source.words(8), twin.words(8))


def test_nobody_can_hand_directions_to_the_mechanism_that_draws_them() -> None:
    assert "directions" not in inspect.signature(release_slices).parameters
    with pytest.raises(TypeError, match="wrap its source, DirectionStream"):
        release(normal(5, 2), directions_stream=Stream.seeded(0))
    with pytest.raises(TypeError, match="Tensor"):
        release(normal(5, 2), directions_stream=blocks(2, 2))


def forgeries(p: int, k: int) -> dict[str, Tensor]:
    theta = blocks(p, k)
    along = normal(p, 1)
    nudged = theta.clone()
    nudged[:, 0] = (theta[:, 0] + 1e-8 * theta[:, 1]) / (theta[:, 0] + 1e-8 * theta[:, 1]).norm()
    return {
        "all along one record": (along / along.norm()).expand(p, k),
        "independent": DirectionStream(Stream.seeded(0)).draw(p, k, "iid"),
        "nudged by 1e-8": nudged,
        "too long": theta * 1.01,
        "isotropic, of uneven lengths": theta * torch.where(torch.arange(k) < p, 1.5, 0.5).double().sqrt(),
        "single precision": theta.float(),
        "not a number": torch.where(torch.arange(k) == 0, math.nan, theta),
        "partial block": theta[:, :-1],
        "another dimension": blocks(p + 1, k * (p + 1)),
        "none": theta[:, :0],
    }


@pytest.mark.parametrize("forgery", forgeries(3, 6))
def test_forged_directions_are_refused_before_anything_is_released(forgery: str) -> None:
    class Untouched(Stream):
        def words(self, count: int):
            raise AssertionError("noise was drawn")

    theta = forgeries(3, 6)[forgery]
    with pytest.raises(ValueError, match="direction"):
        release_on(normal(4, 3), theta, radius=RADIUS, sigma=1.0, noise_stream=Untouched(bytes(32)))


@pytest.mark.parametrize("k", [1, 5, 7])
def test_shared_directions_that_are_not_whole_blocks_are_refused_by_name(k: int) -> None:
    with pytest.raises(ValueError, match=rf"shape \(3, {k}\).*k a multiple of 3"):
        release_on(normal(4, 3), blocks(3, k), radius=RADIUS, sigma=1.0, noise_stream=Stream.seeded(0))


def test_isotropic_directions_built_from_the_data_are_harmless_and_pass() -> None:
    record = normal(3)
    theta = torch.linalg.qr(torch.cat([record[:, None], torch.eye(3, dtype=torch.float64)[:, :2]], dim=1)).Q
    ends = [
        release_on(row[None] * 9, theta, radius=RADIUS, sigma=TINY, noise_stream=Stream.seeded(0)).projections
        for row in (record, -record)
    ]
    assert float((ends[0] - ends[1]).norm()) == pytest.approx(2 * RADIUS, rel=1e-8)


@pytest.mark.parametrize("turned", [0.0, 7e-10])
def test_directions_at_the_edge_of_the_tolerance_move_no_record_beyond_the_bound(turned: float) -> None:
    """Two unit columns that are no right angle apart, by as much as passes, and records along their longest sum."""
    sine = math.sin(turned)
    theta = torch.tensor([[1.0, sine], [0.0, math.sqrt(1 - sine**2)]], dtype=torch.float64)
    record = torch.linalg.svd(theta).U[:, :1].T * 9
    ends = [
        release_on(row, theta, radius=RADIUS, sigma=TINY, noise_stream=Stream.seeded(0)).projections
        for row in (record, -record)
    ]
    assert 2 * RADIUS * (1 - 1e-8) < float((ends[0] - ends[1]).norm()) <= 2 * RADIUS


def test_whole_blocks_of_large_dimension_pass_the_check() -> None:
    theta = blocks(300, 600)
    assert release_on(normal(2, 300), theta, radius=1.0, sigma=1.0, noise_stream=Stream.seeded(0)).count == 600


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_zero_negative_or_undefined_sigma_is_refused_everywhere(sigma: float) -> None:
    theta = blocks(2, 2)
    for attempt in (
        lambda: release(normal(4, 2), sigma=sigma),
        lambda: release_on(normal(4, 2), theta, radius=1.0, sigma=sigma, noise_stream=Stream.seeded(0)),
        lambda: Slices(theta, normal(4, 2), sigma),
    ):
        with pytest.raises(ValueError, match=f"sigma is {sigma}; zero or negative sigma|noise of scale {sigma}"):
            attempt()


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_ball_without_a_finite_radius_is_refused(radius: float) -> None:
    with pytest.raises(ValueError, match="radius is"):
        release(normal(4, 2), radius=radius)


def test_releases_that_do_not_fit_are_refused() -> None:
    theta = blocks(2, 2)
    with pytest.raises(ValueError, match="at least one record"):
        release(normal(0, 2))
    with pytest.raises(ValueError, match="k = 0"):
        release(normal(4, 2), k=0)
    with pytest.raises(ValueError, match=r"expected \(p, k\) and \(n, k\)"):
        Slices(theta, normal(4, 3), 1.0)
    with pytest.raises(ValueError, match="not finite"):
        Slices(theta, torch.full((4, 2), math.nan), 1.0)
    with pytest.raises(ValueError, match="unit columns"):
        Slices(theta * 1e3, normal(4, 2), 1.0)


def test_a_release_keeps_no_way_back_to_the_features() -> None:
    features = normal(4, 2).float().requires_grad_()
    slices = release(features)
    for tensor in (slices.directions, slices.projections):
        assert tensor.dtype == torch.float64
        assert not tensor.requires_grad


def test_projections_without_noise_have_a_type_of_their_own_that_never_passes_for_a_release() -> None:
    slices = unprotected_slices(normal(4, 2), blocks(2, 4))
    assert isinstance(slices, UnprotectedSlices) and slices.sigma == 0
    with pytest.raises(ValueError, match="zero or negative sigma"):
        Slices(slices.directions, slices.projections, slices.sigma)
    with pytest.raises(ValueError, match="no noise"):
        UnprotectedSlices(slices.directions, slices.projections, 0.5)
    assert type(slices.columns([0])) is UnprotectedSlices
    assert type(release(normal(4, 2)).columns([0])) is Slices
