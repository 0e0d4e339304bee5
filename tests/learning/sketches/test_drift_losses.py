"""The losses are unbiased for batches of any size, and a square with its diagonal is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsw.learning.sketches.drift import Target
from fedsw.learning.sketches.noised import NoisedSketch
from tests.learning.sketches.samples import LAWS, cells_of, distance, drawn_distance, normal

pytestmark = pytest.mark.slow

LAW = LAWS["kernel"]
SKETCHER = LAW.drawn(torch.float64)
N = 200
SKETCH = NoisedSketch(LAW, SKETCHER.sums(normal(N, 3), cells_of(LAW, N)), 0.0, N)
PARTICLES = normal(12, 3, seed=9) * 0.5 + 0.3  # the generated law of a cell: four points, equally likely


def exact(target: Target) -> float:
    """The weighted squared distance to the generated law, in closed form."""
    means = SKETCHER(PARTICLES).reshape(3, 4, -1).mean(dim=1)
    gaps = (target.blocks - target.proportions.unsqueeze(1) * means).square().sum(dim=1)
    return float((target.weights * gaps).sum())


def batch(cells: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return SKETCHER(PARTICLES[4 * cells + torch.randint(0, 4, (len(cells),), generator=generator)])


def close(found: list[float], wanted: float) -> bool:
    return abs(np.mean(found) - wanted) < 5 * np.std(found) / math.sqrt(len(found))


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 5.0])])
@pytest.mark.parametrize("each", [2, 5])
def test_the_mean_over_small_batches_is_the_distance_itself(weights, each):
    target = Target.of(SKETCH, weights=weights)
    generator = torch.Generator().manual_seed(1)
    cells = torch.arange(3).repeat(each)
    found = [float(distance(target, batch(cells, generator), cells)) for _ in range(4000)]
    assert close(found, exact(target))
    assert min(found) < exact(target) < max(found)


def test_a_batch_with_unequal_cells_is_weighted_by_the_proportions_and_not_by_its_own():
    target = Target.of(SKETCH)
    generator = torch.Generator().manual_seed(2)
    cells = torch.tensor([0] * 7 + [1] * 2 + [2] * 3)
    assert close([float(distance(target, batch(cells, generator), cells)) for _ in range(4000)], exact(target))


def test_cells_drawn_at_random_give_the_same_mean_even_where_a_cell_is_missing():
    target = Target.of(SKETCH)
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(6000):
        cells = torch.multinomial(target.proportions, 3, replacement=True, generator=generator)
        found.append(float(drawn_distance(target, batch(cells, generator), cells)))
    assert close(found, exact(target))


def test_a_square_with_its_diagonal_is_biased_so_the_diagonal_matters():
    target = Target.of(SKETCH)
    generator = torch.Generator().manual_seed(4)
    cells, found = torch.arange(3).repeat(2), []
    for _ in range(4000):
        vectors = batch(cells, generator)
        means = torch.stack([vectors[cells == cell].mean(dim=0) for cell in range(3)])
        gaps = target.blocks - target.proportions.unsqueeze(1) * means
        found.append(float(gaps.square().sum()))
    assert not close(found, exact(target)) and np.mean(found) > exact(target)


def test_the_gradient_of_a_small_batch_has_the_mean_of_the_whole_laws_gradient():
    target = Target.of(SKETCH)
    shift = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    means = SKETCHER(PARTICLES + shift).reshape(3, 4, -1).mean(dim=1)
    gaps = (target.blocks - target.proportions.unsqueeze(1) * means).square().sum()
    (wanted,) = torch.autograd.grad(gaps, shift)
    generator, cells, found = torch.Generator().manual_seed(5), torch.arange(3).repeat(2), []
    for _ in range(4000):
        chosen = PARTICLES[4 * cells + torch.randint(0, 4, (6,), generator=generator)]
        loss = distance(target, SKETCHER(chosen + shift), cells)
        found.append(torch.autograd.grad(loss, shift)[0].numpy())
    error = np.std(found, axis=0) / math.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - wanted.numpy()) < 5 * error).all()


def test_the_noise_of_the_release_is_taken_off_and_does_not_bias_the_distance():
    sigma, generator = 8.0, torch.Generator().manual_seed(6)
    clean = exact(Target.of(SKETCH))
    means = SKETCHER(PARTICLES).reshape(3, 4, -1).mean(dim=1)
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    wanted, found = 0.0, []
    for turn in range(3000):
        noise = sigma * torch.randn(SKETCH.value[:, :-1].shape, generator=generator, dtype=torch.float64)
        noisy = torch.cat([SKETCH.value[:, :-1] + noise, SKETCH.value[:, -1:]], dim=1)
        target = Target.of(NoisedSketch(LAW, noisy, sigma, N), weights=weights)
        gaps = (target.blocks - target.proportions.unsqueeze(1) * means).square().sum(dim=1)
        found.append(float((weights * gaps).sum()) - target.noise)
        if turn == 0:
            unnoised = Target.of(SKETCH, weights=weights)
            wanted = exact(unnoised)
    assert close(found, wanted) and wanted != clean


def test_an_empty_cell_counts_with_what_its_sketch_holds():
    value = SKETCH.value.clone()
    value[1, -1] = 0.0
    target = Target.of(NoisedSketch(LAW, value, 0.0, N))
    cells = torch.tensor([0, 0, 2, 2])
    vectors = SKETCHER(normal(4, 3))
    lone = Target.of(NoisedSketch(LAW, value, 0.0, N), weights=torch.tensor([0.0, 1.0, 0.0]))
    assert float(distance(lone, vectors, cells)) == pytest.approx(float(target.blocks[1].square().sum()))


def test_at_some_coordinates_the_distance_has_the_whole_ones_mean():
    target = Target.of(SKETCH)
    cells, rows = torch.arange(3).repeat(4), normal(12, 3, seed=4)
    whole = float(distance(target, SKETCHER(rows), cells))
    found = []
    for seed in range(1500):
        module, places, factors = SKETCHER.some(0.25, torch.Generator().manual_seed(seed))
        found.append(float(distance(target.at(places, factors), module(rows), cells)))
    assert close(found, whole)


@pytest.mark.parametrize("weights", [torch.ones(2), torch.tensor([1.0, -1.0, 1.0]), torch.zeros(3)])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="not all 0"):
        Target.of(SKETCH, weights=weights)
