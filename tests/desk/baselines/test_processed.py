"""Histograms by group: what one record can move, what is charged, and that nothing leaves twice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsw._tools.randomness import Stream
from fedsw.desk.baselines.processed import GROUP, SENSITIVITY, bounded_histograms, release_histograms
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Ledger

EDGES = np.linspace(0.0, 1.0, 11)


def records(n: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    return generator.normal(0.5, 0.4, n), generator.integers(0, 3, n)


def ledger(tmp_path, epsilon: float = 1.0) -> Ledger:
    return Ledger.create(tmp_path / "ledger.sqlite", groups=[GROUP], delta=1e-6, epsilon=epsilon, accountant="laplace")


def counts(scores, groups):
    return bounded_histograms(scores, groups, EDGES, count=3)._take().numpy()


def test_a_record_replaced_within_its_group_moves_the_counts_by_two_at_most():
    scores, groups = records(50)
    whole, moves = counts(scores, groups), []
    for place in range(50):
        for value in (-3.0, 0.0, 0.449, 0.95, 7.0, math.nan, math.inf):
            other = scores.copy()
            other[place] = value
            moved = counts(other, groups) - whole
            assert not np.delete(moved, groups[place], axis=0).any()
            moves.append(np.abs(moved).sum())
    assert max(moves) == SENSITIVITY


def test_counts_are_of_every_record_once():
    scores, groups = records(500)
    found = counts(scores, groups)
    assert found.sum(axis=1).tolist() == np.bincount(groups, minlength=3).tolist()
    inside = (groups == 1) & (scores >= 0.3) & (scores < 0.4)
    assert found[1, 3] == inside.sum()


def test_the_noise_has_scale_two_over_epsilon(tmp_path):
    scores, groups = records(200)
    edges = np.linspace(0.0, 1.0, 4001)
    bounded = bounded_histograms(scores, groups, edges, count=3)
    with ledger(tmp_path, 0.5) as account:
        noised = release_histograms(bounded, 0.5, account, stream=Stream.seeded(3, "noise"))
        assert account.epsilon() == pytest.approx(0.5, rel=1e-6)
    noise = noised - bounded._take().numpy()
    assert np.abs(noise).mean() == pytest.approx(2 / 0.5, rel=0.05)  # E|Laplace(b)| = b


def test_one_budget_pays_once(tmp_path):
    scores, groups = records(20)
    with ledger(tmp_path) as account:
        bounded = bounded_histograms(scores, groups, EDGES, count=3)
        release_histograms(bounded, 1.0, account)
        with pytest.raises((AlreadySpent, BudgetExhausted)):
            release_histograms(bounded, 1.0, account)
        assert len(account.entries()) == 1


def test_more_than_the_budget_is_refused_before_anything_leaves(tmp_path):
    scores, groups = records(20)
    with ledger(tmp_path, 0.5) as account:
        with pytest.raises(BudgetExhausted):
            release_histograms(bounded_histograms(scores, groups, EDGES, count=3), 1.0, account)
        assert not account.entries()


def test_the_counts_do_not_print():
    scores, groups = records(20)
    assert "hidden" in repr(bounded_histograms(scores, groups, EDGES, count=3))


@pytest.mark.parametrize(
    ("scores", "groups", "words"),
    [
        (np.zeros(3), np.zeros(2, dtype=np.int64), r"scores \(3,\) and groups \(2,\)"),
        (np.zeros(2), np.array([0, 3]), r"must be in 0 .. 2"),
    ],
)
def test_records_that_do_not_fit_are_refused(scores, groups, words):
    with pytest.raises(ValueError, match=words):
        bounded_histograms(scores, groups, EDGES, count=3)
