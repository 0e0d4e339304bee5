"""Laws of calibration: what noised counts of scores make of probabilities, and what they never make of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.learning.tasks import calibration
from fedsw.learning.tasks.calibration import LogitCalibration, calibration_of
from fedsw.learning.tasks.score_counts import BOTH, COARSE, ScoreCounts

N = 200_000


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def counted(counts: ScoreCounts, logits, target, sigma=0.0, seed=0):
    """Noised counts (groups, width) of records with such logits, all of one group."""
    outputs = torch.from_numpy(logits)
    chances = torch.sigmoid(outputs[:, None]) if logits.ndim == 1 else outputs.softmax(dim=1)
    values = np.zeros((counts.groups, counts.width))
    np.add.at(values[0], counts.places(chances, torch.from_numpy(target)).numpy().reshape(-1), 1.0)
    return values + sigma * np.random.default_rng(seed).normal(size=values.shape)


def two(scale: float, shift: float, seed: int = 0):
    """Logits of a model whose right probabilities are those of scale * logit + shift, and classes drawn by them."""
    draw = np.random.default_rng(seed)
    logits = 4 * draw.normal(size=N)
    return logits, (draw.random(N) < sigmoid(scale * logits + shift)).astype(np.int64)


def log_loss(logits, target):
    return float(np.mean(np.logaddexp(0, logits) - target * logits))


@pytest.mark.parametrize("edges", [COARSE, BOTH])
@pytest.mark.parametrize(("scale", "shift"), [(0.25, 0.5), (0.5, -1.0), (1.0, 0.0)])
def test_of_many_records_the_log_loss_is_nearly_that_of_the_right_probabilities(edges, scale, shift):
    logits, target = two(scale, shift)
    found = calibration_of(ScoreCounts(1, 1, edges), counted(ScoreCounts(1, 1, edges), logits, target), 0.0, N)
    reached = log_loss(found.scale * logits + found.shift[0], target)
    assert reached <= log_loss(scale * logits + shift, target) + 4e-3
    assert found.log_loss.low - 0.02 <= reached <= found.log_loss.high + 0.02 and reached < found.log_loss.shares


@pytest.mark.parametrize(("middle", "spread"), [(-0.45, 0.5), (0.45, 0.5), (-0.2, 1.0)])
def test_where_most_records_are_in_one_bin_they_are_not_taken_to_lie_at_its_middle(middle, spread):
    """A model that can tell little has its probabilities about the frequent class's share, all of them on one side."""
    draw = np.random.default_rng(1)
    logits = middle + spread * draw.normal(size=N)
    target = (draw.random(N) < sigmoid(0.8 * logits)).astype(np.int64)
    found = calibration_of(ScoreCounts(1, 1, COARSE), counted(ScoreCounts(1, 1, COARSE), logits, target), 0.0, N)
    assert found.shift == pytest.approx((0.0,), abs=0.2) and found.scale == pytest.approx(0.8, abs=0.3)
    assert log_loss(found.scale * logits + found.shift[0], target) <= log_loss(0.8 * logits, target) + 1e-3


@pytest.mark.parametrize(("sigma", "rel"), [(0.0, 1e-6), (50.0, 0.02)])
def test_the_positive_class_may_be_either_and_groups_are_added(sigma, rel):
    """The first class's counts, mirrored, are the second's: logits move the same way, whoever is called positive."""
    logits, target = two(0.3, 0.7)
    second = counted(ScoreCounts(1, 1, COARSE), logits, target, sigma)
    first = second.reshape(-1, 2)[::-1, ::-1].reshape(1, -1)
    one, other = (calibration_of(ScoreCounts(1, p, COARSE), v, sigma, N) for p, v in ((1, second), (0, first)))
    assert (one.scale, *one.shift) == pytest.approx((other.scale, *other.shift), rel=rel)
    apart = np.concatenate([0.25 * second, 0.75 * second])
    assert calibration_of(ScoreCounts(2, 1, COARSE), apart, 0.0, N).scale == pytest.approx(
        calibration_of(ScoreCounts(1, 1, COARSE), second, 0.0, N).scale
    )


def test_of_several_classes_a_scale_and_shifts_of_all_logits_follow():
    draw = np.random.default_rng(0)
    right = 1.2 * draw.normal(size=(N, 3)) + np.array([0.0, 0.7, -0.7])
    target = np.asarray((right + draw.gumbel(size=right.shape)).argmax(axis=1))
    logits, counts = 4 * right + np.array([1.0, 0.0, -2.0]), ScoreCounts(1, None, COARSE, 3)
    found = calibration_of(counts, counted(counts, logits, target), 0.0, N)

    def loss(values):
        return float(torch.nn.functional.cross_entropy(torch.from_numpy(values), torch.from_numpy(target)))

    assert len(found.shift) == 3
    assert loss(found.scale * logits + np.array(found.shift)) < loss(right) + 0.02 < loss(logits) - 0.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=14, max_size=14),
    st.floats(0.0, 1e5),
    st.integers(0, 10_000),
    st.sampled_from([0, 1]),
)
def test_whatever_the_noise_made_of_counts_scores_keep_their_order_and_stay_finite(values, sigma, records, positive):
    found = calibration_of(ScoreCounts(1, positive, COARSE), np.array([values]), sigma, float(records))
    assert 0 <= found.scale <= 2.5 and np.isfinite(found.shift).all()
    assert (found.scale == 0) == (found.evidence < calibration.TELLS)
    assert LogitCalibration.read(found.said()) == found
    older = LogitCalibration.read({name: said for name, said in found.said().items() if name != "evidence"})
    assert (older.scale, older.shift) == (found.scale, found.shift) and older.evidence == math.inf
    chances = found.of_positive(np.array([0.0, 0.2, 0.5, 0.9, 1.0]), positive)
    assert np.all(np.diff(chances) >= 0) and chances.min() >= 0 and chances.max() <= 1


def test_where_noise_hides_everything_probabilities_are_drawn_together_and_not_apart(monkeypatch):
    """What was believed before counts: private models are too sure."""
    monkeypatch.setattr(calibration, "TELLS", -np.inf)
    logits, target = two(0.3, 0.0)
    few, counts = slice(0, 200), ScoreCounts(1, 1, COARSE)
    scales = []
    for seed in range(40):
        values = counted(counts, logits[few], target[few], sigma=300.0, seed=seed)
        scales.append(calibration_of(counts, values, 300.0, 200.0).scale)
    assert 0.15 < float(np.median(scales)) < 0.6 and max(scales) < 1.0


def test_too_sure_a_model_s_log_loss_falls_at_the_noise_of_a_tenth_of_epsilon_one():
    """2 000 records, sigma of a tenth of mu^2 at epsilon 1: on the mean of draws, and below the class shares'."""
    counts, sigma, before, after, shares = ScoreCounts(1, 1, COARSE), 18.0, [], [], []
    for seed in range(20):
        logits, target = two(0.3, -0.5, seed)
        train, test = slice(0, 2000), slice(2000, None)
        values = counted(counts, logits[train], target[train], sigma, seed)
        found = calibration_of(counts, values, sigma, 2000.0)
        after.append(log_loss(found.scale * logits[test] + found.shift[0], target[test]))
        before.append(log_loss(logits[test], target[test]))
        base = target[test].mean()
        shares.append(log_loss(np.full(N - 2000, np.log(base / (1 - base))), target[test]))
    assert np.mean(before) > np.mean(shares) > np.mean(after) + 0.05


def sums_of(signal: float, classes: int, seeds: int, records: int, sigma: float):
    """Calibrations, and how much worse than the class shares their log loss and answers are, of so many draws."""
    draw, slope = np.random.default_rng(classes), np.linspace(0.4, -0.4, classes)
    seen = draw.normal(size=(N // 4, classes))
    target = np.asarray((signal * seen + slope + draw.gumbel(size=seen.shape)).argmax(axis=1))
    logits = slope + signal * seen + 3 * draw.normal(size=seen.shape)
    of, counts = (
        logits if classes > 2 else logits[:, 1] - logits[:, 0],
        ScoreCounts(1, None if classes > 2 else 1, COARSE, classes),
    )
    found, worse = [], []
    for seed in range(seeds):
        rows = draw.integers(0, len(target), records)
        one = calibration_of(counts, counted(counts, of[rows], target[rows], sigma, seed), sigma, float(records))
        logits_of = np.array(one.shift) + one.scale * (logits if classes > 2 else of[:, None])
        logits_of = logits_of if classes > 2 else np.concatenate([0 * logits_of, logits_of], axis=1)
        loss = float(torch.nn.functional.cross_entropy(torch.from_numpy(logits_of), torch.from_numpy(target)))
        shares = np.bincount(target) / len(target)
        right = float((logits_of.argmax(axis=1) == target).mean())
        found.append(one)
        worse.append((loss + float(shares @ np.log(shares)), float(shares.max()) - right))
    return found, np.array(worse)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("sigma", "records"), [(34.0, 1000), (18.0, 3000)])
def test_without_a_signal_the_class_shares_are_predicted_and_nothing_is_worse_than_they_are(classes, sigma, records):
    """At the noise of a tenth of mu^2 at epsilon 0.5 and 1, whose draw moves the shares themselves."""
    found, worse = sums_of(0.0, classes, 30, records, sigma)
    alone = np.array([one.scale == 0 for one in found])
    assert alone.mean() > 0.7 and all(
        one.log_loss.value == pytest.approx(one.log_loss.shares) for one in found if not one.scale
    )
    noise = classes * 14 * (sigma / records) ** 2  # of shares by such counts, and of what depends on them
    assert worse[:, 0].mean() < 0.01 + noise and worse[:, 1].mean() < 0.01 + np.sqrt(noise) / 4


@pytest.mark.parametrize("classes", [2, 3])
def test_where_there_is_a_signal_the_model_stays_and_beats_the_class_shares(classes):
    found, worse = sums_of(2.0, classes, 30, 3000, 18.0)
    assert np.mean([one.scale > 0 for one in found]) > 0.95
    assert worse[:, 0].mean() < -0.03 and worse[:, 1].mean() < -0.02


@pytest.mark.parametrize("positive", [0, 1])
def test_the_class_shares_are_those_of_the_counts_and_the_answer_is_the_most_frequent_class(positive, monkeypatch):
    monkeypatch.setattr(calibration, "TELLS", np.inf)
    logits, target = two(0.3, -1.0)
    counts = ScoreCounts(1, 1, COARSE)
    values = counted(counts, logits, target)
    if not positive:
        values = values.reshape(-1, 2)[::-1, ::-1].reshape(1, -1)
    found = calibration_of(ScoreCounts(1, positive, COARSE), values, 0.0, N)
    shares = found.of_positive(np.array([0.0, 0.3, 1.0]), 1)
    assert found.scale == 0 and shares == pytest.approx(target.mean(), abs=1e-4) and shares.max() < 0.5
