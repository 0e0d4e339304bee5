"""The ring and the Gaussians on a circle: their laws, their public facts, their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats

from fedsw.data import Dataset, gaussians, mode_centres, ring

RING_RADIUS, MODE_CIRCLE, MODE_STD = 0.75, 0.8, 0.04

LAWS: list[Callable[..., Dataset]] = [ring, gaussians]


def test_ring_points_are_uniform_on_the_circle_of_three_quarters() -> None:
    points = ring(20_000, 100, seed=1).train.features.double()
    torch.testing.assert_close(points.norm(dim=1), torch.full((20_000,), RING_RADIUS).double(), atol=1e-7, rtol=0)
    angle = torch.atan2(points[:, 1], points[:, 0]).numpy()
    assert stats.kstest(angle, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-3


def test_ring_has_the_papers_size_and_no_labels() -> None:
    dataset = ring(n_test=10)
    assert len(dataset.train) == 100_000
    assert dataset.groups == ("all",) and dataset.classes == ("all",) and dataset.feature_names == ("x", "y")
    assert int(dataset.train.target.max()) == int(dataset.train.sensitive.max()) == 0


def test_gaussians_scatter_about_their_centres_as_their_law_says() -> None:
    n = 50_000
    records = gaussians(n, 10, seed=2).train
    assert all(abs(count - n / 5) < 5 * math.sqrt(n * 0.16) for count in records.target.bincount().tolist())
    noise = (records.features.double() - mode_centres()[records.target]) / MODE_STD
    for mode in range(5):
        for column in noise[records.target == mode].T:
            assert stats.kstest(column.numpy(), "norm").pvalue > 1e-4
    assert abs(float((noise[:, 0] * noise[:, 1]).mean())) < 5 / math.sqrt(n)


def test_gaussians_stay_in_the_unit_ball_and_apart_as_documented() -> None:
    centres = mode_centres()
    assert (1 - MODE_CIRCLE) / MODE_STD >= 5 - 1e-9
    assert stats.ncx2.sf(MODE_STD**-2, df=2, nc=(MODE_CIRCLE / MODE_STD) ** 2) < 6e-7
    nearest = torch.pdist(centres).min()
    assert float(nearest) == pytest.approx(2 * MODE_CIRCLE * math.sin(math.pi / 5))
    assert float(nearest) > 23 * MODE_STD


@pytest.mark.parametrize("modes", [1, 2, 7])
def test_centres_are_evenly_spaced_on_the_circle_from_the_top(modes: int) -> None:
    centres = mode_centres(modes, radius=2.0)
    torch.testing.assert_close(centres.norm(dim=1), torch.full((modes,), 2.0).double())
    torch.testing.assert_close(centres[0], torch.tensor([0.0, 2.0]).double(), atol=1e-12, rtol=0)
    if modes > 1:
        gaps = (centres.roll(-1, 0) - centres).norm(dim=1)
        torch.testing.assert_close(gaps, torch.full((modes,), 4 * math.sin(math.pi / modes)).double())
    assert len(gaussians(200, 50, modes=modes, seed=0).classes) == modes


@pytest.mark.parametrize("law", LAWS)
def test_the_seed_decides_everything_and_the_two_parts_are_independent_streams(law: Callable[..., Dataset]) -> None:
    first, again, other, longer = (
        law(200, 200, seed=1),
        law(200, 200, seed=1),
        law(200, 200, seed=2),
        law(200, 9, seed=1),
    )
    assert torch.equal(first.train.features, again.train.features)
    assert torch.equal(first.train.features, longer.train.features)
    assert float(torch.isclose(first.train.features, other.train.features).double().mean()) < 0.05
    assert float(torch.isclose(first.train.features, first.test.features).double().mean()) < 0.05


@pytest.mark.parametrize("law", LAWS)
def test_records_have_ids_of_their_own_and_one_group(law: Callable[..., Dataset]) -> None:
    dataset = law(30, 20, seed=0)
    assert torch.equal(torch.cat([dataset.train.ids, dataset.test.ids]), torch.arange(50))
    assert dataset.groups == ("all",) and not dataset.test.sensitive.any()


@pytest.mark.parametrize("law", LAWS)
def test_the_global_generators_are_neither_read_nor_moved(law: Callable[..., Dataset]) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = law(50, 5, seed=1).train.features
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(one, law(50, 5, seed=1).train.features)


@pytest.mark.parametrize(
    ("law", "setting", "reason"),
    [
        (ring, {"n": 0}, "n = 0; it must be at least 1"),
        (ring, {"n_test": -1}, "n_test = -1"),
        (ring, {"radius": 0.0}, "radius = 0.0; it must be finite and above 0"),
        (gaussians, {"modes": 0}, "modes = 0"),
        (gaussians, {"std": float("nan")}, "std = nan"),
        (gaussians, {"radius": float("inf")}, "radius = inf"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(law: Any, setting: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        law(**{"n": 5, "n_test": 5, **setting})
