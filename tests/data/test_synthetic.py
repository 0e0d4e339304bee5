"""The biased synthetic data: its law, its sizes, its seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedsw.data import synthetic


@pytest.fixture(scope="module")
def dataset() -> Any:
    return synthetic(seed=3)


def test_sizes_are_those_of_the_paper(dataset: Any) -> None:
    assert len(dataset.train) == 30_000
    assert dataset.train.features.shape == (30_000, 16)
    assert len(dataset.test) == 10_000
    assert dataset.groups == ("A=0", "A=1")
    # Binomial(30000, 1/2): five standard deviations are 433; the paper's draw has 15172 and 14828.
    for counts in (dataset.train.target.bincount(), dataset.train.sensitive.bincount()):
        assert all(abs(count - 15_000) < 433 for count in counts.tolist())


def test_the_group_equals_the_class_with_probability_p() -> None:
    for p in (0.0, 0.7, 1.0):
        records = synthetic(20_000, p=p, seed=1).train
        share = float((records.sensitive == records.target).double().mean())
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / 20_000)


def test_the_class_is_above_the_antidiagonal_and_the_point_is_the_same_draw(dataset: Any) -> None:
    point = synthetic(target="point", seed=3)
    assert point.train.target.shape == (30_000, 2)
    assert point.classes == ()
    assert 0 <= float(point.train.target.min()) <= float(point.train.target.max()) <= 1
    above = point.train.target.double().sum(dim=1) > 1
    assert float((above == (dataset.train.target == 1)).double().mean()) > 0.9999
    torch.testing.assert_close(point.train.features, dataset.train.features, rtol=0, atol=0)


def test_features_have_the_means_and_covariance_of_the_law() -> None:
    n = 40_000
    classes = synthetic(n, seed=5).train
    point = synthetic(n, target="point", seed=5).train
    x, y = classes.features.double(), point.target.double()
    group = classes.sensitive.double()
    mean = torch.cat([y.repeat(1, 4), group[:, None].expand(-1, 8)], dim=1)
    noise = x - mean
    variance = torch.tensor([0.2] * 8 + [0.4] * 8, dtype=torch.float64)
    assert float((noise.mean(dim=0) / (variance / n).sqrt()).abs().max()) < 5
    covariance = noise.T @ noise / n
    spread = torch.outer(variance, variance).sqrt() * math.sqrt(2 / n)
    assert float(((covariance - variance.diag()) / spread).abs().max()) < 5


def test_widths_and_variances_are_settings() -> None:
    records = synthetic(1000, d_core=3, d_spurious=0, var_core=0.0, target="point", seed=2).train
    y = records.target
    torch.testing.assert_close(records.features, torch.stack([y[:, 0], y[:, 1], y[:, 0]], dim=1), rtol=0, atol=0)


def test_the_seed_decides_everything_and_the_two_parts_are_independent_streams() -> None:
    first, again, other = synthetic(500, seed=1), synthetic(500, seed=1), synthetic(500, seed=2)
    longer = synthetic(500, n_test=20, seed=1)
    torch.testing.assert_close(first.train.features, again.train.features, rtol=0, atol=0)
    torch.testing.assert_close(first.train.features, longer.train.features, rtol=0, atol=0)
    assert not torch.equal(first.train.features, other.train.features)
    even = synthetic(500, n_test=500, seed=1)
    assert float(torch.isclose(even.train.features, even.test.features).double().mean()) < 0.01


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = synthetic(50, seed=1).train.features
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(one, synthetic(50, seed=1).train.features)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"n": 0}, "n = 0; it must be at least 1"),
        ({"n_test": 0}, "n_test = 0"),
        ({"d_core": 0}, "d_core = 0"),
        ({"d_spurious": -1}, "d_spurious"),
        ({"p": 1.2}, "p = 1.2; the probability"),
        ({"var_core": -1.0}, "var_core = -1.0; a variance"),
        ({"var_spurious": float("nan")}, "var_spurious = nan; a variance"),
        ({"target": "label"}, "target 'label' is unknown: choose 'class', 'point' or 'mean'"),
        ({"n": 1}, "no record of group"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        synthetic(**setting)


def test_the_mean_is_that_of_the_point_of_the_same_draw() -> None:
    point, mean = (synthetic(50, n_test=10, target=target, seed=3) for target in ("point", "mean"))
    assert torch.equal(point.train.features, mean.train.features) and mean.targets == 1
    assert torch.allclose(mean.train.target[:, 0], point.train.target.mean(dim=1))
