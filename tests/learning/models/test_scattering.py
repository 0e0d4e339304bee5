"""Laws of images as fixed filters see them: what they are, how long at most, and what a model of them is trained on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsw._tools.settings import ExperimentError
from fedsw.data.records import with_features
from fedsw.data.sources import load_dataset
from fedsw.experiment import parse_experiment
from fedsw.learning.models.scattering import (
    ANGLES,
    GRID,
    GRID_OF_PAIRS,
    SOFT,
    WEIGHT_OF_PAIRS,
    ScatteredImages,
    wavelets,
    windows,
)
from fedsw.learning.moments.moments_sum import layout_of, sums_of
from fedsw.learning.moments.preparation import variance_in, whitening_of
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.tasks.problem import Problem

DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits", "most_records": 300},
    "model": {"kind": "scattering", "orders": 1},
    "objective": {"alpha": 0.0},
    "privacy": {"epsilon": 50.0, "delta": 1e-5, "moments": 0.2},
    "training": {"rounds": 3, "batch_fraction": 1.0, "learning_rate": 0.1},
    "clip": {"loss": 0.7},
    "evaluation": {"mode": "full"},
    "federation": {"clients": 2},
    "seed": 1,
}
SIDE = 9
ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32), st.floats(0, 1, width=32), st.sampled_from([0.0, 1.0])
)


def images(many: int, side: int = SIDE) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).uniform(0, 1, (many, side * side)))


def by_loops(image: np.ndarray, orders: int) -> np.ndarray:
    """The numbers of one image (side, side), one pixel and one filter after the other."""
    side = len(image)

    def moduli(picture: np.ndarray, scale: int, stride: int, angle: int) -> np.ndarray:
        real, imaginary = wavelets(scale)[2 * angle], wavelets(scale)[2 * angle + 1]
        radius, seen = len(real) // 2, np.zeros((math.ceil(side / stride),) * 2)
        for row in range(0, side, stride):
            for column in range(0, side, stride):
                sums = [0.0, 0.0]
                for down in range(-radius, radius + 1):
                    for right in range(-radius, radius + 1):
                        if 0 <= row + down < side and 0 <= column + right < side:
                            pixel = picture[row + down, column + right]
                            sums[0] += pixel * real[down + radius, right + radius]
                            sums[1] += pixel * imaginary[down + radius, right + radius]
                seen[row // stride, column // stride] = math.hypot(*sums)
        return seen

    def averaged(picture: np.ndarray, places: int) -> np.ndarray:
        weights = windows(len(picture), places)
        return np.array([[np.sum(np.outer(a, b) * picture) for b in weights] for a in weights])

    def joined(channels: list[np.ndarray]) -> np.ndarray:
        flat = np.concatenate([(channel - channel.mean()).ravel() for channel in channels])
        return flat / np.linalg.norm(flat)

    fine = [moduli(image, 0, 1, angle) for angle in range(ANGLES)]
    averages = [averaged(picture, GRID) for picture in [*fine, *(moduli(image, 1, 2, a) for a in range(ANGLES))]]
    norms = np.sqrt(sum(average**2 for average in averages))
    first = joined([average / (norms + SOFT * norms.mean() + 1e-6) for average in averages])
    if orders == 1:
        return first
    parents = [averaged(picture, GRID_OF_PAIRS) for picture in fine[::2]]
    soft = SOFT * np.mean(parents) + 1e-6
    pairs = [
        averaged(moduli(picture, 1, 2, angle), GRID_OF_PAIRS) / (parent + soft)
        for picture, parent in zip(fine[::2], parents, strict=True)
        for angle in range(0, ANGLES, 2)
    ]
    both = np.concatenate([first, WEIGHT_OF_PAIRS * joined(pairs)])
    return both / np.linalg.norm(both)


@pytest.mark.parametrize("orders", [1, 2])
def test_numbers_are_those_of_loops_over_pixels_and_filters(orders: int) -> None:
    made, rows = ScatteredImages(SIDE, orders), images(1)
    expected = by_loops(rows[0].reshape(SIDE, SIDE).numpy(), orders)
    assert made.width == len(made.names) == len(expected) == {1: 784, 2: 1040}[orders]
    assert np.allclose(made(rows)[0].numpy(), expected, atol=2e-5)
    assert torch.allclose(made(rows.float()).double(), made(rows), atol=1e-5)


@settings(max_examples=60, deadline=None)
@example(np.full((2, SIDE * SIDE), np.linspace(0, 3e38, SIDE * SIDE), dtype=np.float32))
@example(np.full((2, SIDE * SIDE), np.nan, dtype=np.float32))
@example(np.random.default_rng(1).uniform(0, 1, (64, SIDE * SIDE)).astype(np.float32))
@given(arrays(np.float32, (2, SIDE * SIDE), elements=ANYTHING))
def test_a_record_is_inside_the_unit_ball_whatever_it_holds(numbers: np.ndarray) -> None:
    found = ScatteredImages(SIDE, 2)(torch.from_numpy(numbers))
    assert bool(torch.isfinite(found).all())
    assert float(torch.linalg.vector_norm(found.double(), dim=1).max()) <= 1


def test_an_image_of_one_shade_tells_nothing_but_its_edges_and_none_of_another_record() -> None:
    made, rows = ScatteredImages(SIDE, 2), images(4)
    assert not made(torch.zeros(1, SIDE * SIDE)).any()
    alone = torch.cat([made(row[None]) for row in rows])
    assert torch.allclose(made(rows), alone, atol=1e-12)
    assert torch.allclose(made(rows), made(5 * rows), atol=1e-4)


def test_moments_of_images_move_by_less_than_their_bound_whichever_record_is_replaced() -> None:
    problem = Problem.from_experiment(parse_experiment(DIGITS))
    layout = layout_of(problem)
    assert layout is not None and layout.features == problem.features == 784
    rows = torch.cat([images(3, 8).float(), torch.zeros(1, 64), torch.full((1, 64), math.nan)])
    coded = problem.coding(rows)
    vectors = torch.cat([layout.vectors(coded, torch.full((len(rows),), target)) for target in (0, 9)])
    gram = vectors @ vectors.T
    apart = (gram.diag()[:, None] + gram.diag() - 2 * gram).sqrt().nan_to_num()
    assert float(gram.diag().max()) <= 1
    assert 0.8 * layout.moved <= float(apart.max()) <= layout.moved


def test_variance_without_noise_is_estimated_from_noised_moments() -> None:
    problem = Problem.from_experiment(parse_experiment(DIGITS, ["data.most_records=1437"]))
    layout = layout_of(problem)
    assert layout is not None
    train = load_dataset(problem.experiment.record_source).train
    exact = Moments.exact(layout, sums_of(problem, layout, train), (len(train),))
    noise = torch.randn(exact.values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noised = Moments(layout, exact.values + noise, 1.0, (len(train),))
    whitening = whitening_of(noised, 0.1)
    true = float(np.trace(whitening @ exact.covariance @ whitening))
    plugged = float(np.trace(whitening @ noised.covariance @ whitening))
    assert abs(variance_in(noised, 0.1) - true) < 0.05 * true < 0.05 * abs(plugged - true)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.source=adult", "sees images, and data.source 'adult' has none"),
        ("model.orders=3", "model.orders"),
        ("model.hidden=[3]", "does not read"),
        ("data.code=1.0", "data.code puts other numbers"),
        ("objective.task=regression", "regression"),
    ],
)
def test_what_filters_cannot_see_is_refused_and_named(change: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        parse_experiment(DIGITS, [change])


def test_codes_are_kept_for_the_very_same_records_alone() -> None:
    problem = Problem.from_experiment(parse_experiment(DIGITS))
    records = load_dataset(problem.experiment.record_source).test.take(range(3))
    first, other = problem.readied(records), with_features(records, 1 - records.features)
    assert torch.equal(problem.readied(records).features, first.features)
    assert not torch.equal(problem.readied(other).features, first.features)
    records.features[0] = 1 - records.features[0]
    assert not torch.equal(problem.readied(records).features, first.features)


def test_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="7 pixels a side; filters see one of 8 at least"):
        ScatteredImages(7, 1)
