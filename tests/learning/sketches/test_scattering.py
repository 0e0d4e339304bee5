"""The scattering map: a loop in double precision, non-expansive for any two images, calm under translation."""

from __future__ import annotations

import cmath
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.maps import Scattering, filter_bank
from fedsw.learning.sketches.sketch_law import Law
from tests.learning.sketches.samples import normal

CHOICES = [Scattering(1, 1), Scattering(1, 3), Scattering(2, 2, 2), Scattering(2, 5), Scattering(3, 2, 2)]


def built(chosen: Scattering, side: int) -> torch.nn.Module:
    return chosen.built(side * side, Stream.seeded(0, "public"))


def wave(chosen: Scattering, scale: int, turn: int, row: int, column: int) -> tuple[complex, float]:
    """A Gaussian times a wave in space, and the Gaussian alone, which is taken off it so that its mean is 0."""
    deviation, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    across = deviation / min(1.0, 4 / chosen.orientations)
    angle = math.pi * turn / chosen.orientations
    along = math.cos(angle) * row + math.sin(angle) * column
    beside = math.cos(angle) * column - math.sin(angle) * row
    hill = math.exp(-0.5 * ((along / deviation) ** 2 + (beside / across) ** 2)) / (2 * math.pi * deviation * across)
    return hill * cmath.exp(1j * frequency * along), hill


def on_the_circle(function, around: int) -> np.ndarray:
    """What a function of the plane adds up to at every pixel of a circle of so many."""
    reach = range(-4, 5)
    return np.array(
        [
            [sum(function(r + a * around, c + b * around) for a in reach for b in reach) for c in range(around)]
            for r in range(around)
        ]
    )


def convolved(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    around = len(image)
    found = np.zeros_like(kernel)
    for r, c in itertools.product(range(around), repeat=2):
        found += image[r, c] * np.roll(kernel, (r, c), (0, 1))
    return found


def naive(chosen: Scattering, image: np.ndarray) -> np.ndarray:
    """Convolutions as sums over pixels, of filters that are evaluated in space."""
    side, step = len(image), 2**chosen.scales
    places = math.ceil(side / step)
    around, first = step * (places + 1), step // 2
    low, waves = filter_bank(around, chosen.scales, chosen.orientations)
    still = np.zeros((around, around))
    still[first : first + side, first : first + side] = image
    width = 0.8 * 2 ** (chosen.scales - 1)
    hill = on_the_circle(lambda r, c: math.exp(-0.5 * (r * r + c * c) / width**2) / (2 * math.pi * width**2), around)
    hill *= float(low[0]) ** 2 / hill.sum()
    kernels = {}
    for scale, turn in itertools.product(range(chosen.scales), range(chosen.orientations)):
        both = on_the_circle(lambda r, c, j=scale, t=turn: np.array(wave(chosen, j, t, r, c)), around)
        kernel = both[..., 0] - both[..., 0].sum() / both[..., 1].sum() * both[..., 1]
        peak = np.fft.fft2(kernel).real.max()
        kernels[scale, turn] = kernel * float(waves[scale, turn].max()) / peak

    def means(plane: np.ndarray) -> list[float]:
        lowered = convolved(plane, hill) * step
        return [lowered[step * (r + 1), step * (c + 1)] for r in range(places) for c in range(places)]

    found, second = means(still), []
    for kernel in kernels.values():
        found += means(np.abs(convolved(still, kernel)))
    if chosen.order == 2:
        for scale, later in itertools.combinations(range(chosen.scales), 2):
            for one, other in itertools.product(range(chosen.orientations), repeat=2):
                inner = np.abs(convolved(still, kernels[scale, one]))
                second += means(np.abs(convolved(inner, kernels[later, other])))
    return np.array(found + second)


@pytest.mark.parametrize(("chosen", "side"), [(Scattering(1, 3), 5), (Scattering(2, 2, 2), 6), (Scattering(1, 6), 4)])
def test_the_map_is_a_loop_over_pixels_and_has_its_announced_width(chosen, side):
    images = normal(2, side * side)
    found = built(chosen, side)(images)
    assert found.shape == (2, chosen.width(side * side))
    expected = [naive(chosen, image.reshape(side, side).numpy()) for image in images]
    np.testing.assert_allclose(found.numpy(), np.array(expected), atol=1e-9)


@pytest.mark.parametrize("chosen", CHOICES)
def test_the_sampled_low_pass_and_all_wavelets_together_have_the_norm_1(chosen):
    step = 2**chosen.scales
    around = 2 * step if chosen.scales == 3 else 3 * step
    low, waves = filter_bank(around, chosen.scales, chosen.orientations)
    assert float(waves[:, :, 0, 0].abs().max()) < 1e-15  # a mean of 0
    points = torch.eye(around**2, dtype=torch.float64).reshape(-1, around, around)
    spectra = torch.fft.fft2(points)
    lowered = torch.fft.ifft2(spectra * low * low.unsqueeze(1)).real[:, ::step, ::step] * step
    moved = torch.view_as_real(torch.fft.ifft2(spectra.unsqueeze(1) * waves.flatten(0, 1)))
    matrix = torch.cat([lowered.flatten(1), moved.flatten(1)], dim=1)
    assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(1.0, abs=1e-12)


def expansion(module: torch.nn.Module, one: Tensor, other: Tensor) -> Tensor:
    return (module(one) - module(other)).norm(dim=1) / (one - other).norm(dim=1)


@pytest.mark.parametrize("chosen", CHOICES)
def test_no_two_images_are_farther_apart_after_the_map_however_they_are_sought(chosen):
    side = 8
    module = built(chosen, side)
    one = torch.cat([normal(12, 64), torch.ones(4, 64, dtype=torch.float64)]).requires_grad_()
    other = torch.cat([0.9 * normal(12, 64), torch.zeros(4, 64, dtype=torch.float64)]).requires_grad_()
    optimizer = torch.optim.Adam([one, other], lr=0.05)
    before = float(expansion(module, one, other).max().detach())
    for _ in range(60):
        optimizer.zero_grad()
        ratios = expansion(module, one, other)
        (-ratios.sum()).backward()
        optimizer.step()
    assert before < float(expansion(module, one, other).max().detach()) <= 1 + 1e-12


def test_a_wide_hill_comes_close_to_the_bound_so_there_is_no_room_in_it():
    side = 60
    line = torch.sin(math.pi * (torch.arange(side, dtype=torch.float64) + 0.5) / side)
    hill = (line * line.unsqueeze(1)).reshape(1, -1)
    assert 0.97 < float(expansion(built(Scattering(1, 2), side), hill, torch.zeros_like(hill))) <= 1


def test_every_image_is_mapped_by_itself_and_has_a_gradient():
    module, images = built(Scattering(2, 3, 2), 8), normal(5, 64)
    alone = torch.cat([module(row.unsqueeze(0)) for row in images])
    torch.testing.assert_close(module(images), alone, rtol=0, atol=1e-13)
    images.requires_grad_()
    (slope,) = torch.autograd.grad(module(images)[2].sum(), images)
    assert float(slope[2].norm()) > 0 and float(slope[[0, 1, 3, 4]].abs().max()) == 0
    assert torch.autograd.gradcheck(module, (normal(1, 64, seed=3).requires_grad_(),), atol=1e-6)


def test_a_blank_image_has_a_finite_gradient():
    blank = torch.zeros(1, 64, dtype=torch.float64, requires_grad=True)
    built(Scattering(2, 3, 2), 8)(blank).sum().backward()
    assert bool(torch.isfinite(blank.grad).all())


def test_a_translation_moves_orders_1_and_2_by_far_less_than_pixels():
    side, chosen = 24, Scattering(3, 4, 2)
    module, places = built(chosen, side), 9
    stage = torch.zeros(20, side, side, dtype=torch.float64)
    stage[:, 6:18, 6:18] = normal(20, 12, 12)
    moved = stage.roll(1, dims=2)

    def change(before: Tensor, after: Tensor) -> float:
        return float((after - before).norm() / before.norm())

    still, gone = module(stage.flatten(1)), module(moved.flatten(1))
    pixels, last = change(stage, moved), places * (1 + 3 * 4)
    for kept in (slice(places, last), slice(last, None)):
        assert change(still[:, kept], gone[:, kept]) < 0.25 * pixels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sketch_looks_through_it_in_the_precision_of_the_records_whatever_the_chunk(dtype):
    law = Law(64, (GaussianKernel((1.0,), 8, map=Scattering(2, 2, 2)),), seed=1)
    sketcher, rows = law.drawn(dtype), normal(9, 64).to(dtype)
    cells = torch.zeros(9, dtype=torch.int64)
    part = sketcher.parts[0]
    angles = part.looked_at(rows) @ (2 * math.pi * part.turns)
    torch.testing.assert_close(sketcher(rows), torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(8))
    torch.testing.assert_close(sketcher.sums(rows, cells, chunk=2), sketcher.sums(rows, cells), rtol=0, atol=1e-5)


@pytest.mark.parametrize("images", [normal(1, 64), normal(1, 64, seed=1)])
def test_nothing_of_it_is_drawn(images):
    chosen = Scattering(2, 3)
    one, other = (chosen.built(64, Stream.seeded(seed, "public")) for seed in (1, 2))
    assert torch.equal(one(images), other(images))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Scattering(0), "scales = 0"),
        (lambda: Scattering(1, 0), "orientations = 0"),
        (lambda: Scattering(2, 2, 3), "order = 3"),
        (lambda: Scattering(1, 2, 2), "take 2 scales"),
        (lambda: Scattering(3).width(49), "at most the side"),
        (lambda: Scattering().width(50), "no square image"),
    ],
)
def test_a_setting_out_of_range_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
