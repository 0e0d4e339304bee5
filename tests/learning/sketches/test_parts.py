"""Laws of public frequencies: the kernel they estimate, the distance they are, and that no record decides them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import torch

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches import GaussianKernel, SlicedCramer
from fedsw.learning.sketches.maps import Convolutions, Cosine
from fedsw.learning.sketches.parts import Frequencies, cramer_frequencies, gaussian_frequencies
from fedsw.learning.sketches.sketch_law import Law
from tests.learning.sketches.samples import normal


def public(seed: int = 0) -> Stream:
    return Stream.seeded(seed, "public")


@pytest.mark.parametrize("scheme", ["orthogonal", "iid"])
@pytest.mark.parametrize("width", [1, 5])
def test_the_expected_inner_product_is_the_gaussian_kernel_within_monte_carlo_error(scheme, width):
    bandwidths = (0.7, 2.0)
    delta = normal(6, width) * 0.8
    kernel = sum(0.5 * torch.exp(-delta.square().sum(dim=1) / (2 * b * b)) for b in bandwidths)
    draws = torch.stack(
        [
            (torch.cos(delta @ drawn.vectors) * drawn.weights).sum(dim=1)
            for seed in range(200)
            for drawn in [gaussian_frequencies(width, 40, bandwidths, stream=public(seed), scheme=scheme)]
        ]
    )
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert bool(((draws.mean(dim=0) - kernel).abs() < 5 * error).all())
    assert float(error.max()) < 0.01


def test_orthogonal_blocks_are_orthogonal_and_meet_the_kernel_with_less_variance():
    drawn = gaussian_frequencies(6, 12, (1.0,), stream=public())
    for block in (drawn.vectors[:, :6], drawn.vectors[:, 6:]):
        gram = block.T @ block
        assert float((gram - torch.diag(torch.diagonal(gram))).abs().max()) < 1e-12
    delta = normal(6) * 0.3

    def variance(scheme: str) -> float:
        found = [
            float((torch.cos(delta @ f.vectors) * f.weights).sum())
            for seed in range(400)
            for f in [gaussian_frequencies(6, 6, (1.0,), stream=public(seed), scheme=scheme)]
        ]
        return float(np.var(found))

    assert variance("orthogonal") < 0.6 * variance("iid")


def naive_sliced_cramer(x: np.ndarray, y: np.ndarray, directions: np.ndarray) -> float:
    """Mean over directions of the integral of (F - G)^2, from the two step functions."""
    total = 0.0
    for theta in directions.T:
        u, v = np.sort(x @ theta), np.sort(y @ theta)
        ends = np.sort(np.concatenate([u, v]))
        for low, high in zip(ends[:-1], ends[1:], strict=True):
            f, g = np.mean(u <= low), np.mean(v <= low)
            total += (f - g) ** 2 * (high - low)
    return total / directions.shape[1]


def test_the_squared_distance_of_two_means_is_the_sliced_cramer_distance_of_the_two_samples():
    x, y = normal(7, 3, seed=1) * 0.3, normal(11, 3, seed=2) * 0.5 + 0.2
    reach = float(torch.cat([x, y]).norm(dim=1).max())
    period, harmonics, count = 2 * reach, 4000, 5
    drawn = cramer_frequencies(3, count, harmonics, period, stream=public())
    directions = drawn.vectors[:, ::harmonics] * period / math.pi
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(count, dtype=torch.float64))
    gaps = torch.stack([torch.exp(1j * (z @ drawn.vectors)).mean(dim=0) for z in (x, y)])
    found = SlicedCramer(count, harmonics, period).scale * float(
        (drawn.weights * (gaps[0] - gaps[1]).abs().square()).sum()
    )
    naive = naive_sliced_cramer(x.numpy(), y.numpy(), directions.numpy())
    assert abs(found - naive) < 2 * period / (math.pi**2 * harmonics)
    assert found == pytest.approx(naive, rel=5e-3)
    law = Law(3, (SlicedCramer(count, harmonics, period),))
    part, sketcher = law.parts[0], law.drawn(torch.float64)
    theta = sketcher.parts[0].turns[:, ::harmonics] * 2 * period
    moved = (sketcher(x).mean(dim=0) - sketcher(y).mean(dim=0)).square().sum()
    assert part.scale * float(moved) == pytest.approx(
        naive_sliced_cramer(x.numpy(), y.numpy(), theta.numpy()), rel=5e-3
    )


def test_frequencies_depend_on_the_seed_alone_and_every_part_has_its_own():
    part = GaussianKernel((1.0,), 8)
    first, again, other = (Law(3, (part, part), seed=seed).drawn() for seed in (1, 1, 2))
    turns = [[each.turns for each in sketcher.parts] for sketcher in (first, again, other)]
    assert torch.equal(turns[0][0], turns[1][0])
    assert not torch.equal(turns[0][0], turns[0][1]) and not torch.equal(turns[0][0], turns[2][0])


def test_every_bandwidth_has_its_pairs_and_the_weights_have_sum_1():
    drawn = gaussian_frequencies(4, 11, (1.0, 100.0), stream=public())
    assert drawn.vectors.shape == (4, 11)
    assert int((drawn.vectors.norm(dim=0) < 0.1).sum()) == 5
    assert float(drawn.weights.sum()) == pytest.approx(1.0) and float(drawn.weights[0]) == pytest.approx(0.5 / 6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: gaussian_frequencies(2, 4, (), stream=public()), "bandwidths"),
        (lambda: gaussian_frequencies(2, 4, (0.0,), stream=public()), "positive and finite"),
        (lambda: gaussian_frequencies(2, 1, (1.0, 2.0), stream=public()), "1 pairs for 2 bandwidths"),
        (lambda: gaussian_frequencies(2, 4, (1e-20,), stream=public()), "larger bandwidths"),
        (lambda: cramer_frequencies(2, 4, 0, 1.0, stream=public()), "harmonics = 0"),
        (lambda: cramer_frequencies(2, 4, 1, math.inf, stream=public()), "period = inf"),
        (lambda: Frequencies(torch.ones(2, 2), torch.ones(2)), "sum 1"),
        (lambda: Frequencies(torch.ones(2, 2), torch.ones(3)), "expected"),
        (lambda: Cosine(-1.0), "decay"),
        (lambda: Convolutions(filters=0), "filters = 0"),
        (lambda: Convolutions(kernel=4), "odd side"),
        (lambda: Cosine().width(5), "no square image"),
    ],
)
def test_a_setting_out_of_range_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_the_cosine_map_is_the_orthonormal_transform_and_keeps_every_kernel():
    images = normal(5, 16)
    mapped = Cosine().built(16, public())(images)
    np.testing.assert_allclose(
        mapped.reshape(-1, 4, 4).numpy(), scipy.fft.dctn(images.reshape(-1, 4, 4).numpy(), axes=(1, 2), norm="ortho")
    )
    torch.testing.assert_close(torch.cdist(mapped, mapped), torch.cdist(images, images))
    damped = Cosine(2.0).built(16, public())(images).reshape(-1, 4, 4)
    torch.testing.assert_close(damped[:, 1, 2], mapped.reshape(-1, 4, 4)[:, 1, 2] / 16)


@pytest.mark.parametrize(("side", "stride"), [(8, 1), (7, 1), (8, 2), (9, 2)])
def test_the_convolution_map_is_a_loop_over_places_and_has_its_announced_width(side, stride):
    chosen = Convolutions(3, 3, stride)
    module, images = chosen.built(side * side, public()), normal(2, side * side)
    filters = module.filters
    torch.testing.assert_close(filters.sum(dim=(2, 3)), torch.zeros(3, 1, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(filters.square().sum(dim=(1, 2, 3)), torch.ones(3, dtype=torch.float64))
    padded = np.pad(images.reshape(-1, side, side).numpy(), ((0, 0), (1, 1), (1, 1)))
    steps = range(0, side, stride)
    found = np.array(
        [
            [[[abs((image[r : r + 3, c : c + 3] * f[0].numpy()).sum()) for c in steps] for r in steps] for f in filters]
            for image in padded
        ]
    )
    half = math.ceil(len(steps) / 2)
    expected = np.array(
        [
            [
                [[plane[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for c in range(half)] for r in range(half)]
                for plane in image
            ]
            for image in found
        ]
    )
    mapped = module(images)
    assert mapped.shape == (2, chosen.width(side * side))
    np.testing.assert_allclose(mapped.numpy(), expected.reshape(2, -1), atol=1e-12)
