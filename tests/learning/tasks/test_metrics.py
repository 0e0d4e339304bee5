"""Metrics: against fairlearn, scipy and loops over records, for any number of groups and classes."""

from __future__ import annotations

import math
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score

from fedsw.learning.tasks import metrics
from fedsw.mathematics.transport.sliced import direction_shape, directions

bounded = settings(max_examples=60, deadline=None, derandomize=True)
bounded_slow_oracle = settings(max_examples=20, deadline=None, derandomize=True)


@st.composite
def tables(draw: st.DrawFn, groups: int = 2, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions, targets and groups with at least one record of every class in every group."""
    row = st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1), st.integers(0, groups - 1))
    rows = draw(st.lists(row, min_size=0, max_size=40))
    rows += [(draw(st.integers(0, classes - 1)), y, a) for y in range(classes) for a in range(groups)]
    predicted, target, sensitive = torch.tensor(rows).T
    return predicted, target, sensitive


def report(
    predicted: torch.Tensor, target: torch.Tensor, sensitive: torch.Tensor, *, groups: int = 2, classes: int = 2
) -> dict[str, float]:
    return metrics.classification(predicted.double(), predicted, target, sensitive, groups=groups, classes=classes)


def rate(event: list[bool]) -> float:
    return sum(event) / len(event) if event else math.nan


def rates_by_loop(predicted: Any, sensitive: Any, outcome: int, groups: int) -> list[float]:
    pairs = list(zip(predicted.tolist(), sensitive.tolist(), strict=True))
    return [rate([p == outcome for p, s in pairs if s == a]) for a in range(groups)]


def ratio_of(rates: list[float]) -> float:
    return min(rates) / max(rates) if max(rates) else 1.0


@given(tables())
@bounded_slow_oracle
def test_two_groups_and_classes_agree_with_fairlearn(table: tuple[torch.Tensor, ...]) -> None:
    fairlearn = pytest.importorskip("fairlearn.metrics")
    predicted, target, sensitive = table
    arrays = [column.numpy() for column in (target, predicted)]
    by = {"sensitive_features": sensitive.numpy()}
    found = report(predicted, target, sensitive)
    for name in ("demographic_parity_difference", "equalized_odds_difference"):
        assert found[name] == pytest.approx(getattr(fairlearn, name)(*arrays, **by), abs=1e-12)
    if predicted.any():
        expected = fairlearn.demographic_parity_ratio(*arrays, **by)
        assert found["disparate_impact"] == pytest.approx(expected, abs=1e-12)
    assert found["accuracy"] == metrics.accuracy(predicted, target) == accuracy_score(*arrays)


@given(tables(groups=3))
@bounded_slow_oracle
def test_three_groups_agree_with_fairlearn(table: tuple[torch.Tensor, ...]) -> None:
    fairlearn = pytest.importorskip("fairlearn.metrics")
    predicted, target, sensitive = table
    arrays = [column.numpy() for column in (target, predicted)]
    by = {"sensitive_features": sensitive.numpy()}
    found = report(predicted, target, sensitive, groups=3)
    for name in ("demographic_parity_difference", "equalized_odds_difference"):
        assert found[name] == pytest.approx(getattr(fairlearn, name)(*arrays, **by), abs=1e-12)


PAIRS = list(combinations_with_replacement(list(product((0, 1), repeat=3)), 2))
"""Every table of two records (prediction, target, group)."""
THEIRS = {
    "demographic_parity_difference": "demographic_parity_difference",
    "disparate_impact": "demographic_parity_ratio",
    "equalized_odds_difference": "equalized_odds_difference",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("add", [(), tuple((p, y, a) for p in (0, 1) for y in (0, 1) for a in (0, 1))])
def test_at_the_edges_of_fairlearn_metrics_are_nan_and_a_class_that_nobody_gets_is_parity(add: tuple[Any, ...]) -> None:
    """Four cases: nobody is chosen; a group is absent; a class is, in one group; a class is, in all."""
    fairlearn, differ = pytest.importorskip("fairlearn.metrics"), set()
    for rows in PAIRS[:: 4 if add else 1]:
        predicted, target, sensitive = torch.tensor([*rows, *add]).T
        found, arrays = report(predicted, target, sensitive), (target.numpy(), predicted.numpy())
        strata = {(y, a) for _, y, a in (*rows, *add)}
        groups = {a for _, a in strata}
        for ours, theirs in THEIRS.items():
            value = getattr(fairlearn, theirs)(*arrays, sensitive_features=sensitive.numpy())
            if len(strata) < 4 if ours == "equalized_odds_difference" else len(groups) < 2:
                assert math.isnan(found[ours]) and (math.isfinite(value) or not predicted.any())
                differ.add((ours, len(groups), len(strata)))
            elif ours == "disparate_impact" and not predicted.any():
                assert found[ours] == 1.0 and math.isnan(value)
            else:
                assert found[ours] == pytest.approx(value, abs=1e-12)
    assert bool(differ) is not bool(add)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_metrics_of_outputs_that_are_not_finite_are_nan(odd: float) -> None:
    """What a record without a class takes part in: all of it, or what is of its class or group."""
    _, target, sensitive = torch.tensor([(p, y, a) for p in (0, 1) for y in (0, 1) for a in (0, 1)]).T
    outputs = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)[:, None]
    outputs[7] = odd  # of class 1 and group 1
    for shaped in (outputs[:, 0], torch.cat([1 - outputs, outputs], dim=1)):
        rows = shaped[:, None] if shaped.ndim == 1 else shaped
        theta = torch.eye(rows.shape[1], dtype=torch.float64)
        for predicted in (metrics.predictions(rows), rows.nan_to_num().argmax(dim=1)):
            found = metrics.classification(shaped, predicted, target, sensitive, directions=theta)
            assert {name for name, value in found.items() if math.isfinite(value)} == {"eo_0", "od_0"}
        assert math.isnan(metrics.accuracy(metrics.predictions(rows), target))
        assert metrics.selection_rates(metrics.predictions(rows), sensitive).isnan().tolist() == [
            [False] * 2,
            [True] * 2,
        ]
    alone = torch.zeros(8, dtype=torch.int64)
    assert math.isnan(metrics.w2_squared(outputs, alone, groups=1))
    assert metrics.w2_squared(outputs[:7], alone[:7], groups=1) == 0.0


@given(tables(groups=3, classes=4))
@bounded
def test_many_groups_and_classes_agree_with_a_loop(table: tuple[torch.Tensor, ...]) -> None:
    predicted, target, sensitive = table
    found = report(predicted, target, sensitive, groups=3, classes=4)
    every = [rates_by_loop(predicted, sensitive, c, 3) for c in range(4)]
    torch.testing.assert_close(
        metrics.selection_rates(predicted, sensitive, groups=3, outcomes=4),
        torch.tensor(every, dtype=torch.float64).T,
    )
    gap = max(max(rates) - min(rates) for rates in every)
    assert found["demographic_parity_difference"] == pytest.approx(gap)
    ratios = [ratio_of(rates) for rates in every]
    assert [found[f"disparate_impact_{c}"] for c in range(4)] == pytest.approx(ratios)
    assert found["disparate_impact"] == pytest.approx(min(ratios))
    gaps = []
    for y in range(4):
        here = target == y
        among = [rates_by_loop(predicted[here], sensitive[here], c, 3) for c in range(4)]
        gaps.append(max(max(rates) - min(rates) for rates in among))
        assert found[f"eo_{y}"] == pytest.approx(min(ratio_of(rates) for rates in among))
    assert found["equalized_odds_difference"] == pytest.approx(max(gaps))


def test_disparate_impact_is_the_ratio_of_the_less_to_the_more_selected_group() -> None:
    sensitive = torch.tensor([0] * 10 + [1] * 10)
    predicted = torch.tensor([1] * 2 + [0] * 8 + [1] * 8 + [0] * 2)
    nobody = torch.zeros(20, dtype=torch.int64)
    assert report(predicted, predicted, sensitive)["disparate_impact"] == pytest.approx(0.25)
    assert report(predicted, predicted, 1 - sensitive)["disparate_impact"] == pytest.approx(0.25)
    assert report(nobody, predicted, sensitive)["disparate_impact"] == 1.0


def test_ratios_are_of_the_positive_class_and_of_the_worst_where_none_is() -> None:
    """Three classes: "accept" of 50 % of one group and 15 % of the other, "refer" of 30 % of each."""
    sensitive = torch.tensor([0] * 20 + [1] * 20)
    predicted = torch.tensor([2] * 10 + [1] * 6 + [0] * 4 + [2] * 3 + [1] * 6 + [0] * 11)

    def found(positive: int | None) -> dict[str, float]:
        outputs, about = predicted.double(), {"classes": 3, "positive": positive}
        return metrics.classification(outputs, predicted, predicted, sensitive, **about)

    assert [found(None)[f"disparate_impact_{c}"] for c in range(3)] == pytest.approx([4 / 11, 1.0, 0.3])
    assert [found(p)["disparate_impact"] for p in (None, 0, 1, 2)] == pytest.approx([0.3, 4 / 11, 1.0, 0.3])
    hired = torch.tensor([1] * 8 + [0] * 2 + [1] * 9 + [0] * 1)
    halves = torch.tensor([0] * 10 + [1] * 10)
    two = [metrics.classification(hired.double(), hired, hired, halves, positive=p) for p in (None, 1, 0)]
    assert [each["disparate_impact"] for each in two] == pytest.approx([8 / 9, 8 / 9, 0.5])
    with pytest.raises(ValueError, match="positive is 2"):
        metrics.classification(hired.double(), hired, hired, halves, positive=2)


def test_a_rate_over_no_records_is_nan_and_so_is_what_depends_on_it() -> None:
    predicted, target = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
    sensitive = torch.tensor([0, 0, 1])
    found = report(predicted, target, sensitive)
    assert math.isnan(found["equalized_odds_difference"]) and math.isnan(found["eo_1"]) and math.isnan(found["od_1"])
    assert not math.isnan(found["eo_0"])
    assert math.isnan(report(predicted, target, torch.zeros(3, dtype=torch.int64))["disparate_impact"])
    outputs = torch.tensor([0.1, 0.2, 0.3])
    assert math.isnan(metrics.w2_squared(outputs, sensitive, groups=3))
    absent = report(predicted, torch.full((3,), 2), sensitive, classes=4)
    assert math.isnan(absent["od_0"]) and math.isnan(absent["od_1"])
    assert math.isnan(metrics.kolmogorov_smirnov(outputs, sensitive, groups=3))


values = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.3, 1.0]), min_size=1, max_size=12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:scipy")
@given(values, values, values)
@bounded
def test_kolmogorov_smirnov_is_the_statistic_of_scipy_over_the_worst_pair(
    first: list[float], second: list[float], third: list[float]
) -> None:
    outputs = torch.tensor(first + second + third)
    sensitive = torch.tensor([0] * len(first) + [1] * len(second) + [2] * len(third))
    expected = max(stats.ks_2samp(*pair, method="asymp").statistic for pair in combinations([first, second, third], 2))
    assert metrics.kolmogorov_smirnov(outputs, sensitive, groups=3) == pytest.approx(expected, abs=1e-12)
    assert metrics.kolmogorov_smirnov(outputs[:, None], sensitive, groups=3) == pytest.approx(expected, abs=1e-12)


@given(values, values)
@bounded
def test_kolmogorov_smirnov_is_the_worst_parity_gap_over_thresholds(first: list[float], second: list[float]) -> None:
    outputs = torch.tensor(first + second)
    sensitive = torch.tensor([0] * len(first) + [1] * len(second))
    gaps = []
    for threshold in outputs.tolist():
        above = (outputs > threshold).long()
        gaps.append(report(above, above, sensitive)["demographic_parity_difference"])
    assert metrics.kolmogorov_smirnov(outputs, sensitive) == pytest.approx(max(gaps), abs=1e-12)


def w2_squared_by_steps(own: list[float], other: list[float]) -> float:
    """Squared distance of quantile functions on their common grid of n * m steps."""
    u, v = np.repeat(np.sort(own), len(other)), np.repeat(np.sort(other), len(own))
    return float(((u - v) ** 2).mean())


@given(values, values, values)
@bounded
def test_w2_squared_is_the_one_of_the_worst_pair(first: list[float], second: list[float], third: list[float]) -> None:
    outputs = torch.tensor(first + second + third, dtype=torch.float64)
    sensitive = torch.tensor([0] * len(first) + [1] * len(second) + [2] * len(third))
    expected = max(w2_squared_by_steps(*pair) for pair in combinations([first, second, third], 2))
    assert metrics.w2_squared(outputs, sensitive, groups=3) == pytest.approx(expected, abs=1e-12)
    assert metrics.w2_squared(outputs[:, None], sensitive, groups=3) == pytest.approx(expected, abs=1e-12)


def test_a_shift_has_its_square_as_distance_sliced_by_the_dimension() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    shift = torch.tensor([0.3, -0.2, 0.6], dtype=torch.float64)
    outputs, sensitive = torch.cat([points, points + shift]), torch.tensor([0] * 50 + [1] * 50)
    normals = torch.randn(direction_shape(3, 6), generator=generator, dtype=torch.float64)
    theta = directions(3, 6, normals=normals)
    assert metrics.w2_squared(outputs, sensitive, directions=theta) == pytest.approx(0.49 / 3)
    assert metrics.w2_squared(outputs[:, 0], sensitive) == pytest.approx(0.09)


def test_output_distances_are_distances_within_each_class() -> None:
    outputs = torch.tensor([0.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    target, sensitive = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])
    found = metrics.classification(outputs, target, target, sensitive)
    assert (found["od_0"], found["od_1"]) == pytest.approx((1.0, 9.0))
    assert metrics.w2_squared(outputs, sensitive) == pytest.approx(((0 - 0) ** 2 + (3 - 1) ** 2) / 2)


def test_mean_squared_error_adds_over_columns_and_averages_over_records() -> None:
    outputs, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    assert metrics.mean_squared_error(outputs, target) == pytest.approx((4 + 9) / 2)
    assert metrics.mean_squared_error(outputs[:, 0], target[:, 0]) == pytest.approx(9 / 2)


@given(tables(groups=2, classes=3))
@bounded
def test_the_report_holds_every_metric_under_its_name(table: tuple[torch.Tensor, ...]) -> None:
    predicted, target, sensitive = table
    outputs = predicted.double() / 3
    found = metrics.classification(outputs, predicted, target, sensitive, classes=3)
    names = "accuracy disparate_impact demographic_parity_difference equalized_odds_difference w2_squared ks"
    by_class = [f"{name}_{y}" for name in ("disparate_impact", "eo", "od") for y in range(3)]
    assert list(found) == [*names.split(), *by_class]
    assert found["w2_squared"] == metrics.w2_squared(outputs, sensitive)
    assert found["ks"] == metrics.kolmogorov_smirnov(outputs, sensitive)
    for y in range(3):
        assert found[f"od_{y}"] == metrics.w2_squared(outputs[target == y], sensitive[target == y])
    theta = torch.eye(2, dtype=torch.float64)
    wide = torch.stack([outputs, -outputs], dim=1)
    assert "ks" not in metrics.classification(wide, predicted, target, sensitive, classes=3, directions=theta)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda: metrics.accuracy(torch.zeros(3), torch.zeros(4)),
            r"predicted \(3,\), target \(4,\): one class",
        ),
        (lambda: metrics.accuracy(torch.zeros(3, 1), torch.zeros(3)), r"predicted \(3, 1\)"),
        (lambda: metrics.mean_squared_error(torch.zeros(3, 1), torch.zeros(3)), "differ in shape"),
        (
            lambda: metrics.selection_rates(torch.tensor([0, 2]), torch.tensor([0, 1])),
            r"predicted\[1\] is 2; .* 0 .. 1",
        ),
        (lambda: metrics.selection_rates(torch.tensor([0, 1]), torch.tensor([0, 5])), r"sensitive\[1\] is 5"),
        (
            lambda: metrics.w2_squared(torch.zeros(2, 2), torch.tensor([0, 1])),
            "d = 2 columns: give directions",
        ),
        (lambda: metrics.w2_squared(torch.zeros(2), torch.tensor([0, 1, 1])), "2 outputs for 3 records"),
        (lambda: metrics.w2_squared(torch.zeros(2), torch.tensor([0, 1]), groups=1), r"sensitive\[1\] is 1"),
        (
            lambda: metrics.kolmogorov_smirnov(torch.zeros(2, 2), torch.tensor([0, 1])),
            "d = 2 columns; a distribution",
        ),
    ],
)
def test_wrong_shapes_and_values_are_refused_by_name(call: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


def test_one_group_has_nobody_to_be_apart_from() -> None:
    report = metrics.classification(
        torch.rand(6),
        torch.tensor([0, 1] * 3),
        torch.tensor([0, 0, 1] * 2),
        torch.zeros(6, dtype=torch.int64),
        groups=1,
    )
    assert report["w2_squared"] == report["ks"] == report["demographic_parity_difference"] == 0
    assert report["disparate_impact"] == 1 and report["accuracy"] == pytest.approx(0.5)
