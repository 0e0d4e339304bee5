"""Laws of printed intervals: they hold the truth as often as they say, count units and not rows, and claim no luck."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedsw._tools.text import apart, measured
from fedsw.data import Records
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation import intervals
from fedsw.runs.evaluation.evaluator import parts_of
from fedsw.runs.evaluation.intervals import (
    Rate,
    curve_area,
    gain,
    largest_gap,
    mean,
    positive_mean,
    rate_of,
    share,
    smallest_ratio,
    sum_of_sizes,
)
from fedsw.runs.evaluation.quality import by_group, quality_of_classes, quality_of_numbers
from tests.federations import small

TIMES = 200


def held(draw, true: float, times: int = TIMES) -> float:
    found = [draw() for _ in range(times)]
    return sum(each[0] <= true <= each[1] for each in found) / times


@pytest.mark.parametrize("records", [5, 20, 60, 300])
def test_intervals_of_shares_hold_every_true_share_nearly_as_often_as_they_say(records):
    """Exactly, over all counts: near 0 and 1 and of few records, too."""
    found = [share(count, records) for count in range(records + 1)]
    low, high = np.array(found).T
    for true in (0.0, 0.001, 0.01, 0.04, 0.1, 0.3, 0.5, 0.8, 0.97, 0.999, 1.0):
        chances = stats.binom.pmf(np.arange(records + 1), records, true)
        assert chances[(low <= true) & (true <= high)].sum() >= 0.90


@pytest.mark.parametrize(
    ("records", "true", "noise"), [(40, 0.02, 4.0), (40, 0.98, 4.0), (200, 0.5, 15.0), (9, 0.3, 1.0)]
)
def test_with_noise_they_hold_it_as_often_as_they_say(records, true, noise):
    law = np.random.default_rng(0)
    assert 0.90 <= held(lambda: share(law.binomial(records, true) + noise * law.normal(), records, noise), true) <= 0.99


def test_a_count_that_noise_made_negative_is_never_seen_more_sharply_than_noise_allows():
    at_nothing = share(0.0, 100, 5.0)
    for count in (-3.0, -10.0, -100.0):
        assert share(count, 100, 5.0) == at_nothing and at_nothing.high >= 1.9 * 5.0 / 100
        assert share(100 - count, 100, 5.0) == (pytest.approx(1 - at_nothing.high, abs=1e-6), 1.0)


def persons(law, count: int, rows: int, true: float, alike: float):
    """Rows of persons of different numbers of rows who are alike inside: whose each is, and whether it hits."""
    own = law.beta(true * (1 - alike) / alike, (1 - true) * (1 - alike) / alike, count)
    units = np.repeat(np.arange(count), law.poisson(rows * law.choice([0.5, 1.5], count)) + 1)
    return law.random(len(units)) < own[units], units


@pytest.mark.parametrize(
    ("count", "rows", "true", "alike"),
    [(42, 140, 0.8, 0.3), (42, 140, 0.99, 0.2), (8, 20, 0.9, 0.5), (6, 20, 0.5, 0.9), (20, 10, 0.95, 0.2)],
)
def test_persons_count_and_not_their_rows(count, rows, true, alike):
    law = np.random.default_rng(1)
    assert held(lambda: rate_of(*persons(law, count, rows, true, alike)).at(0.95), true) >= 0.90


def test_errors_of_numbers_are_those_of_persons_few_of_them_by_student():
    law = np.random.default_rng(2)

    def draw(positive: bool):
        units = np.repeat(np.arange(10), 30)
        values = law.normal(0, 1, 10)[units] + law.normal(0, 0.3, 300)
        return positive_mean(np.square(values), units) if positive else mean(values, units)

    assert 0.90 <= held(lambda: draw(False), 0.0) <= 0.99
    assert 0.90 <= held(lambda: draw(True), 1.09) <= 0.99


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.3), (0.5, 0.2), (0.02, 0.1)])
def test_gaps_and_ratios_of_groups_are_held_where_there_is_no_gap_too(one, other):
    law = np.random.default_rng(3)

    def draw(of):
        rates = [rate_of(law.random(80) < true, np.arange(80)) for true in (one, other)]
        return of(rates)

    assert held(lambda: draw(lambda rates: largest_gap([rates])), abs(one - other)) >= 0.90
    assert held(lambda: draw(lambda rates: smallest_ratio([rates])), min(one, other) / max(one, other)) >= 0.90


@pytest.mark.slow
def test_the_largest_of_many_gaps_is_not_taken_for_a_gap():
    law = np.random.default_rng(4)

    def draw():
        return largest_gap([[rate_of(law.random(60) < 0.4, np.arange(60)) for _ in range(4)] for _ in range(3)])

    assert held(draw, 0.0) >= 0.90


def test_areas_under_curves_are_held():
    law = np.random.default_rng(5)
    true = float(stats.norm.cdf(1.5 / math.sqrt(2)))

    def draw():
        high, low = law.normal(1.5, 1, 15), law.normal(0, 1, 25)
        return curve_area(float((high[:, None] > low).mean()), 15, 25)

    assert 0.90 <= held(draw, true) <= 0.99
    assert curve_area(1.0, 5, 5).low < 0.9


def records(target, sensitive=None, unit=None) -> Records:
    target = torch.as_tensor(target)
    sensitive = torch.arange(len(target)) % 2 if sensitive is None else torch.as_tensor(sensitive)
    unit = None if unit is None else torch.as_tensor(unit)
    return Records(torch.zeros((len(target), 1)), sensitive, target, torch.arange(len(target)), unit=unit)


def test_no_calibration_error_is_above_1_however_little_is_known_of_it():
    for seen in (0.02, 0.3):
        low, high = sum_of_sizes(np.full(10, seen), np.full(10, 0.5))
        assert 0 <= low <= high == 1


@pytest.mark.parametrize(("common", "classes", "count"), [(0.5, 2, 60), (0.9, 2, 400), (0.4, 3, 150)])
def test_on_labels_of_pure_noise_hardly_a_model_is_called_better_than_a_constant(common, classes, count):
    """The constant is the best one, and which one that is was chosen on the same records."""
    law, claimed = np.random.default_rng(6), 0
    shares = [common, *[(1 - common) / (classes - 1)] * (classes - 1)]
    for _ in range(TIMES):
        data = records(law.choice(classes, count, p=shares))
        right = np.where(law.random(count) < 0.7, int(np.argmax(shares)), law.integers(0, classes, count))
        outputs = torch.eye(classes, dtype=torch.float64)[right]
        found = quality_of_classes(outputs[:, 1:] if classes == 2 else outputs, data, groups=1, classes=classes)
        claimed += found.gain.above
    assert claimed <= 5


def test_nor_of_persons_nor_of_numbers():
    law, claimed = np.random.default_rng(7), [0, 0]
    for _ in range(TIMES):
        label, units = np.repeat(law.integers(0, 2, 24), 20), np.repeat(np.arange(24), 20)
        data = records(label, unit=units)
        outputs = torch.from_numpy(np.repeat(law.random(24), 20))[:, None]
        claimed[0] += quality_of_classes(outputs, data, groups=1, classes=2).gain.above
        target = torch.from_numpy(law.random((60, 1))).float()
        numbers = Records(data.features[:60], data.sensitive[:60], target, data.ids[:60])
        claimed[1] += quality_of_numbers(torch.full((60, 1), 0.5 + 0.03 * law.normal()), numbers).gain.above
    assert max(claimed) <= 5


def test_a_few_answers_that_happen_to_be_right_are_no_gain():
    for right in range(1, 8):
        differences = np.zeros(200)
        differences[:right] = 1.0
        assert not gain(differences, np.arange(200)).above or 0.5**right <= 0.01
    differences[:12] = 1.0
    assert gain(differences, np.arange(200)).above


def test_a_model_s_gain_is_held_as_often_as_it_is_said():
    law = np.random.default_rng(8)

    def draw():
        target = law.integers(0, 2, 120)
        outputs = np.where(law.random(120) < 0.75, target, 1 - target)
        found = quality_of_classes(torch.from_numpy(outputs * 1.0)[:, None], records(target), groups=1, classes=2)
        return found.gain[1:]

    assert 0.90 <= held(draw, 0.25) <= 0.995


def test_rows_of_the_same_persons_make_no_interval_narrower():
    law = np.random.default_rng(9)
    label, answer = law.integers(0, 2, 42), law.random(42)
    found = []
    for times in (1, 140):
        units = np.repeat(np.arange(42), times)
        data = records(label[units], sensitive=np.arange(42)[units] % 2, unit=units)
        outputs = torch.from_numpy(answer[units])[:, None]
        quality = quality_of_classes(outputs, data, groups=2, classes=2)
        table = by_group(Problem.from_experiment(small()), outputs, data).around
        own = next(iter(table.values()))
        found.append([*quality.intervals.values(), quality.gain[1:], own["true_positive_rate"], own["auc"]])
        assert set(parts_of(data)[:times].tolist()) == {0}
    for (low, high), (low_of_rows, high_of_rows) in zip(*found, strict=True):
        assert high_of_rows - low_of_rows >= 0.95 * (high - low)


def test_every_number_in_the_table_by_group_has_an_interval_that_holds_it():
    law = np.random.default_rng(10)
    target = law.integers(0, 2, 90)
    outputs = torch.from_numpy(np.clip(0.5 + 0.3 * (target - 0.5) + 0.2 * law.normal(size=90), 0, 1))[:, None]
    task, data = Problem.from_experiment(small()), records(target)
    table, around = by_group(task, outputs, data)
    for group, numbers in table.items():
        assert set(around[group]) == set(numbers) - {"count"}
        assert all(around[group][name][0] <= numbers[name] <= around[group][name][1] for name in around[group])


def test_one_record_says_nothing():
    assert rate_of(np.array([True]), np.array([0])).at(0.95).low < 0.1
    assert mean(np.array([1.0]), np.array([0])) == (-math.inf, math.inf)
    found = quality_of_classes(torch.tensor([[0.9]]), records([1]), groups=2, classes=2)
    assert not found.gain.above and not found.gain.below


def test_numbers_that_differ_are_shown_with_digits_that_differ():
    assert apart(0.67512, 0.67541) == ("0.6751", "0.6754") and apart(0.5, 0.7) == ("0.5", "0.7")
    assert measured(0.29, (0.08, 0.5)) == "0.29 (0.08 to 0.5)" and measured(0.29, None) == "0.29"
    assert measured(-0.1, (0.0, 0.2)) == "below what the noise allows to see (0 to 0.2)"
    assert measured(1.1, (0.8, 1.0)) == "above what the noise allows to see (0.8 to 1)"
    assert measured(math.nan, (0.0, 1.0)) == measured(None, (0.0, 1.0)) == "not to be seen (0 to 1)"
    assert intervals.UNKNOWN.at(0.95) == (0.0, 1.0) and isinstance(intervals.UNKNOWN, Rate)
