"""Laws of what is counted of kept records: how far one record moves it, and what can be read off it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import BINS, ONE, Counts, RegressionSums
from fedsw.runs.evaluation.held_out_metrics import Tallied, as_many, held_out_of, noised_gain
from fedsw.runs.evaluation.quality import metrics_of_tables
from fedsw.runs.evaluation.verdict import warnings_of
from tests.federations import small

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.lists(ANYTHING, min_size=10, max_size=10), st.integers(0, 4), st.integers(0, 4))
def test_one_record_moves_counts_by_at_most_the_root_of_two_whatever_the_model_says(classes, numbers, one, other):
    tally, d = Counts(2, classes), 1 if classes == 2 else classes
    outputs = torch.tensor(numbers)[: 2 * d].reshape(2, d)
    vectors = tally.vectors(outputs, torch.tensor([one % classes, other % classes]))
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= tally.moved + 1e-12
    assert tally.fits((vectors.sum(0)[None] * ONE).long().repeat(2, 1), torch.tensor([2, 2]))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.lists(ANYTHING, min_size=12, max_size=12))
def test_one_record_moves_moments_by_at_most_the_stated_bound_whatever_the_model_says(targets, numbers):
    tally, values = RegressionSums(2, targets), torch.tensor(numbers)
    outputs, target = values[: 2 * targets].reshape(2, targets), values[6 : 6 + 2 * targets].reshape(2, targets)
    vectors = tally.vectors(outputs, target)
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= tally.moved + 1e-12
    assert tally.fits((vectors.sum(0)[None] * ONE).long().repeat(2, 1), torch.tensor([2, 2]))


@pytest.mark.parametrize(("targets", "least"), [(1, 0.999), (2, 0.999), (3, 0.999)])
def test_the_bounds_are_met_by_real_records(targets, least):
    counts = Counts(2, 2)
    found = counts.vectors(torch.tensor([[0.9], [0.1]]), torch.tensor([1, 1]))
    assert float(torch.linalg.vector_norm(found[0] - found[1])) == pytest.approx(counts.moved)
    # A target of 1 that is missed by 1, against a target of 0 that is met: every number moves as far as it can but one.
    moments = RegressionSums(2, targets)
    outputs = torch.tensor([[0.0] * targets, [0.0] * targets])
    moved = moments.vectors(outputs, torch.tensor([[1.0] * targets, [0.0] * targets]))
    assert float(torch.linalg.vector_norm(moved[0] - moved[1])) >= least * math.sqrt(3)


def test_counts_that_no_such_records_make_do_not_fit():
    tally, records = Counts(2, 2), torch.tensor([3, 2])
    right = torch.tensor([[1, 1, 1, 0], [0, 0, 2, 0]]) * ONE
    assert tally.fits(right, records)
    assert not tally.fits(right + 1, records) and not tally.fits(2 * right, records)
    assert not tally.fits(right - torch.tensor([[2, -2, 0, 0], [0, 0, 0, 0]]) * ONE, records)
    moments = RegressionSums(1, 1)
    sums = torch.zeros(1, moments.width, dtype=torch.int64)
    sums[0, -BINS] = 2 * ONE
    assert moments.fits(sums, torch.tensor([2])) and not moments.fits(sums, torch.tensor([3]))
    sums[0, 0] = 3 * ONE
    assert not moments.fits(sums, torch.tensor([2]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=8, max_size=8), st.integers(0, 40), st.integers(1, 40))
def test_counts_are_moved_alike_to_what_is_public_and_never_cut(values, one, other):
    records, seen = np.array([one, other]), np.array(values).reshape(2, 4)
    found = as_many(seen, records)
    assert found.sum(-1) == pytest.approx(records, abs=1e-9)
    assert (found - seen)[1] == pytest.approx((found - seen)[1, 0])
    assert np.ptp((found - seen)[0]) == pytest.approx(0, abs=1e-9) or one == 0


def test_counts_without_noise_are_as_they_are():
    counts = np.array([[3.0, 1.0, 0.0, 6.0], [2.0, 2.0, 5.0, 0.0]])
    assert as_many(counts, np.array([10, 9])) == pytest.approx(counts)


SHARES = np.array([[0.35, 0.05, 0.1, 0.5], [0.5, 0.1, 0.2, 0.2]])
RARE = np.array([[0.9, 0.06, 0.03, 0.01], [0.95, 0.0, 0.04, 0.01]])


def _released(shares, records, sigma: float, law: np.random.Generator) -> Tallied:
    counts = np.stack([law.multinomial(n, share) for n, share in zip(records, shares, strict=True)])
    noised = counts + law.normal(size=counts.shape) * sigma
    return Tallied(noised, sigma, np.array(records), 3, 0, 1.0, round=1)


@pytest.mark.parametrize(
    ("shares", "records", "sigma"),
    [
        (SHARES, (400, 400), 0.0),
        pytest.param(SHARES, (400, 400), 10.0, marks=pytest.mark.slow),
        pytest.param(SHARES, (30, 60), 3.0, marks=pytest.mark.slow),
        (RARE, (300, 80), 8.0),
    ],
)
def test_printed_intervals_hold_the_law_that_records_are_drawn_from_as_often_as_they_say(shares, records, sigma):
    """The truth is the law: 95 % means 90 to 99, of counts that noise makes negative, too."""
    task, tally, times, held = Problem.from_experiment(small()), Counts(2, 2), 200, {}
    law = np.random.default_rng(7)
    table = shares.reshape(1, 2, 2, 2) * np.array(records)[:, None, None]
    truth = {name: float(value[0]) for name, value in metrics_of_tables(table).items()}
    selected, right = shares[:, [1, 3]].sum(1), shares[:, [0, 3]].sum(1)
    constant = table[0].sum((0, 2)) / sum(records)
    for _ in range(times):
        found = held_out_of(task, tally, _released(shares, records, sigma, law))
        parts = [(name, each, truth[name]) for name, each in found.quality.intervals.items()]
        parts.append(("gain", found.quality.gain[1:], truth["accuracy"] - constant.max()))
        for place, own in enumerate(found.by_group.around.values()):
            rates = {
                "selection_rate": selected,
                "accuracy": right,
                "true_positive_rate": shares[:, 3] / shares[:, 2:].sum(1),
            }
            parts += [(f"{name} of {place}", own[name], float(true[place])) for name, true in rates.items()]
        for name, (low, high), true in parts:
            held[name] = held.get(name, 0) + int(low <= true <= high)
    assert all(count >= 0.90 * times for count in held.values()), held
    assert all(held[name] <= 0.995 * times for name in held if name.startswith(("accuracy", "selection"))), held


def test_more_noise_means_wider_intervals():
    task, table = Problem.from_experiment(small()), _released(SHARES, (400, 400), 0.0, np.random.default_rng(0)).values
    widths = []
    for sigma in (0.0, 10.0, 40.0):
        found = held_out_of(task, Counts(2, 2), Tallied(table, sigma, np.array([400, 400]), 3, 0, 1.0, round=1))
        low, high = found.quality.intervals["accuracy"]
        widths.append(high - low)
    assert widths[0] < widths[1] < widths[2] / 2


CONSTANT, EVEN, LIKELY = [0.963, 0.0, 0.037, 0.0], [0.25, 0.25, 0.25, 0.25], [0.45, 0.05, 0.45, 0.05]


@pytest.mark.parametrize(
    ("records", "sigma", "shares"),
    [
        *((150, 8.0, CONSTANT), (60, 0.0, EVEN), (60, 0.0, LIKELY), (2000, 20.0, EVEN)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((150, 8.0, EVEN), (150, 8.0, LIKELY), (60, 0.0, CONSTANT))
        ),
        *(pytest.param(2000, 20.0, shares, marks=pytest.mark.slow) for shares in (CONSTANT, LIKELY)),
    ],
)
def test_on_labels_of_pure_noise_hardly_a_run_is_called_better_than_a_constant(shares, records, sigma):
    """The class that is most frequent is chosen on the noised counts themselves, and makes no claim more likely."""
    task, law = Problem.from_experiment(small()), np.random.default_rng(3)
    claimed = 0
    for _ in range(200):
        found = held_out_of(task, Counts(1, 2), _released([shares], [records], sigma, law))
        claimed += found.quality.gain.above
        words = " ".join(warnings_of(metrics=found.metrics, quality=found.quality, records=records, **AFTER))
        assert ("constant" in words) != found.quality.gain.above
    assert claimed <= 5


def test_a_model_that_noise_hides_is_said_to_be_one_answer_perhaps():
    task, law = Problem.from_experiment(small()), np.random.default_rng(1)
    said = []
    for shares in ([0.963, 0.0, 0.037, 0.0], [0.5, 0.1, 0.1, 0.3]):
        found = held_out_of(task, Counts(2, 2), _released([shares] * 2, [300, 300], 8.0, law))
        assert found.quality.one_answer == (shares[1] == 0)
        said.append(" ".join(warnings_of(metrics=found.metrics, quality=found.quality, records=600, **AFTER)))
    assert "may answer the same for every record" in said[0] and "cannot be told from a constant" in said[0]
    assert "constant" not in said[1] and "may answer" not in said[1]


AFTER = {"start": None, "epsilon": 1.0, "noisy": True}


def _numbers(law: np.random.Generator, records: int, sigma: float, wrong: float, spread: float = 0.06) -> Tallied:
    """Sums of a regression whose targets lie about 0.4, and whose predictions are off by `wrong` and a little."""
    target = torch.from_numpy(np.clip(law.normal(0.4, spread, (records, 1)), 0, 1))
    outputs = torch.full_like(target, 0.4 + wrong)
    sums = RegressionSums(1, 1).vectors(outputs, target).sum(0, keepdim=True).numpy()
    return Tallied(sums + law.normal(size=sums.shape) * sigma, sigma, np.array([records]), 3, 0, 1.0, round=1)


@pytest.mark.parametrize(("records", "sigma", "wrong"), [(100, 8.0, 0.3), (1000, 8.0, 0.3), (400, 5.0, 0.0)])
def test_intervals_of_noised_sums_hold_the_true_errors_and_no_constant_is_called_better(records, sigma, wrong):
    task, law, times = Problem.from_experiment(small()), np.random.default_rng(5), 200
    held, claimed = dict.fromkeys(("model", "constant", "gain"), 0), 0
    error, constant = 0.06**2 + wrong**2, 0.06**2
    for _ in range(times):
        quality = held_out_of(task, RegressionSums(1, 1), _numbers(law, records, sigma, wrong)).quality
        known = {
            "model": (quality.intervals["mean_squared_error"], error),
            "constant": (quality.constant_intervals["mean_squared_error"], constant),
            "gain": (quality.gain[1:], constant - error),
        }
        for name, ((low, high), true) in known.items():
            held[name] += low <= true <= high
        claimed += quality.gain.above
    assert all(0.90 * times <= count <= 0.99 * times for count in held.values()), held
    assert claimed <= 5


def test_no_kept_records_are_no_metrics():
    task = Problem.from_experiment(small())
    none = Tallied(np.zeros((2, 4)), 1.0, np.array([0, 0]), 3, 0, 1.0, round=1)
    assert held_out_of(task, Counts(2, 2), none).metrics == {}


@pytest.mark.parametrize("more", [-130.0, -100.0, -3.0, 0.0, 99.0, 107.0, 300.0])
def test_an_interval_of_a_gain_never_ends_below_its_beginning(more):
    for noise in (0.0, 5.0, 80.0):
        found = noised_gain(more, abs(more) + noise, 100, noise)
        assert -1 <= found.low <= found.high <= 1
