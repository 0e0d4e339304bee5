"""Laws of what is counted of kept records: how far one record moves it, and what can be read off it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.runs.quality import metrics_of_tables
from fedsw.runs.tallied import Tallied, fitted, held_out_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import BINS, ONE, Counts, Moments
from tests.federations import small

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 5), st.lists(ANYTHING, min_size=10, max_size=10), st.integers(0, 4), st.integers(0, 4))
def test_one_record_moves_counts_by_at_most_the_root_of_two_whatever_the_model_says(classes, numbers, one, other):
    tally, d = Counts(2, classes), 1 if classes == 2 else classes
    outputs = torch.tensor(numbers)[: 2 * d].reshape(2, d)
    vectors = tally.vectors(outputs, torch.tensor([one % classes, other % classes]))
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= tally.moved + 1e-12
    assert tally.fits((vectors.sum(0)[None] * ONE).long().repeat(2, 1), torch.tensor([2, 2]))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3), st.lists(ANYTHING, min_size=12, max_size=12))
def test_one_record_moves_moments_by_at_most_the_stated_bound_whatever_the_model_says(targets, numbers):
    tally, values = Moments(2, targets), torch.tensor(numbers)
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
    moments = Moments(2, targets)
    outputs = torch.tensor([[0.0] * targets, [0.0] * targets])
    moved = moments.vectors(outputs, torch.tensor([[1.0] * targets, [0.0] * targets]))
    assert float(torch.linalg.vector_norm(moved[0] - moved[1])) >= least * math.sqrt(3)


def test_counts_that_no_such_records_make_do_not_fit():
    tally, records = Counts(2, 2), torch.tensor([3, 2])
    right = torch.tensor([[1, 1, 1, 0], [0, 0, 2, 0]]) * ONE
    assert tally.fits(right, records)
    assert not tally.fits(right + 1, records) and not tally.fits(2 * right, records)
    assert not tally.fits(right - torch.tensor([[2, -2, 0, 0], [0, 0, 0, 0]]) * ONE, records)
    moments = Moments(1, 1)
    sums = torch.zeros(1, moments.width, dtype=torch.int64)
    sums[0, -BINS] = 2 * ONE
    assert moments.fits(sums, torch.tensor([2])) and not moments.fits(sums, torch.tensor([3]))
    sums[0, 0] = 3 * ONE
    assert not moments.fits(sums, torch.tensor([2]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=8, max_size=8), st.integers(0, 40), st.integers(1, 40))
def test_fitted_counts_are_never_negative_and_add_up_to_what_is_public(values, one, other):
    records = np.array([one, other])
    found = fitted(np.array(values).reshape(2, 4), records)
    assert (found >= 0).all() and found.sum(-1) == pytest.approx(records, abs=1e-9)


def test_counts_without_noise_are_fitted_by_themselves():
    counts = np.array([[3.0, 1.0, 0.0, 6.0], [2.0, 2.0, 5.0, 0.0]])
    assert fitted(counts, np.array([10, 9])) == pytest.approx(counts)


def _table(n: int, law: np.random.Generator) -> np.ndarray:
    shares = np.array([[0.35, 0.05, 0.1, 0.5], [0.5, 0.1, 0.2, 0.2]])
    return np.stack([law.multinomial(n, share) for share in shares]).astype(float)


@pytest.mark.parametrize("sigma", [0.0, 5.0, 20.0])
def test_standard_errors_hold_both_the_draw_of_records_and_the_noise(sigma):
    """The truth is the law that records are drawn from: two standard errors hold it about as often as they say."""
    task = Problem.from_experiment(small())
    shares = np.array([[0.35, 0.05, 0.1, 0.5], [0.5, 0.1, 0.2, 0.2]]).reshape(1, 2, 2, 2)
    truth = {name: float(value[0]) for name, value in metrics_of_tables(shares).items()}
    names = ("accuracy", "demographic_parity_difference", "disparate_impact")
    within, times = dict.fromkeys(names, 0), 120
    for seed in range(times):
        law = np.random.default_rng(seed)
        values = _table(400, law) + law.normal(size=(2, 4)) * sigma
        found = held_out_of(task, Counts(2, 2), Tallied(values, sigma, np.array([400, 400]), 3, 0, 1.0, round=1))
        for name in names:
            within[name] += abs(found.metrics[name] - truth[name]) <= 2 * found.quality.standard_errors[name]
    assert all(count >= 0.88 * times for count in within.values()), within


def test_more_noise_means_larger_standard_errors():
    task, table = Problem.from_experiment(small()), _table(400, np.random.default_rng(0))
    errors = [
        held_out_of(task, Counts(2, 2), Tallied(table, sigma, np.array([400, 400]), 3, 0, 1.0, round=1))
        .quality.standard_errors["accuracy"]
        for sigma in (0.0, 10.0, 40.0)
    ]  # fmt: skip
    assert errors[0] < errors[1] < errors[2]


def test_no_kept_records_are_no_metrics():
    task = Problem.from_experiment(small())
    none = Tallied(np.zeros((2, 4)), 1.0, np.array([0, 0]), 3, 0, 1.0, round=1)
    assert held_out_of(task, Counts(2, 2), none).metrics == {}
