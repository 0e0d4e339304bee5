"""Laws of what is counted for thresholds: how far one record moves it, what it counts, and what it refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.federation.node.held_records import held_records
from fedsw.learning.moments.beside_rounds import require_scorable, scores_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import BINS, BOTH, COARSE, EDGES, ScoreCounts, counts_of_scores
from fedsw.privacy.relations import ADD_OR_REMOVE
from tests.federations import small

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=32)
COUNTED = small("thresholds.share=0.2")
ASKED = {
    "thresholds": ("thresholds.share=0.2",),
    "calibration": ("calibration.share=0.1",),
    "both": ("thresholds.share=0.2", "calibration.share=0.1"),
}
SITE = {"partition-id": 0, "num-partitions": 1}


def totals(counts: ScoreCounts, outputs, target, sensitive) -> torch.Tensor:
    """Counts of all records, by a plain addition."""
    found = torch.zeros((counts.groups, counts.width), dtype=torch.int64)
    for places, group in zip(counts.places(outputs, target).tolist(), sensitive.tolist(), strict=True):
        for place in places:
            found[group if counts.groups > 1 else 0, place] += 1
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(ANYTHING, min_size=6, max_size=6), st.integers(0, 5), st.integers(0, 1), st.integers(0, 2))
def test_a_replaced_record_moves_counts_by_at_most_the_root_of_two_whatever_it_is(numbers, position, label, group):
    """Adversarial: outputs that are no numbers, on edges or out of range, another label, another group."""
    counts, outputs = ScoreCounts(3, 1), torch.tensor([numbers]).T
    target, sensitive = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    before = totals(counts, outputs, target, sensitive)
    other = outputs.clone()
    other[position], target[position], sensitive[position] = outputs[(position + 1) % 6], label, group
    after = totals(counts, other, target, sensitive)
    assert float((after - before).double().norm()) <= counts.moved + 1e-12
    assert int(before.sum()) == int(after.sum()) == 6


@settings(max_examples=100, deadline=None)
@given(st.lists(ANYTHING, min_size=18, max_size=18), st.integers(0, 5), st.integers(0, 2))
def test_of_several_classes_each_is_counted_and_a_replaced_record_moves_all_of_their_counts(numbers, position, label):
    counts, outputs = ScoreCounts(1, None, COARSE, 3), torch.tensor(numbers).reshape(6, 3)
    target, sensitive = torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(6, dtype=torch.int64)
    before = totals(counts, outputs, target, sensitive)
    assert counts.fits(before, torch.tensor([6]))
    gone = totals(counts, outputs[1:], target[1:], sensitive[1:])
    assert float((before - gone).double().norm()) == pytest.approx(counts.moved_for(ADD_OR_REMOVE)) == math.sqrt(3)
    other = outputs.clone()
    other[position], target[position] = outputs[(position + 1) % 6], label
    after = totals(counts, other, target, sensitive)
    assert float((after - before).double().norm()) <= counts.moved + 1e-12 == math.sqrt(6) + 1e-12


def test_bins_are_public_and_the_same_for_every_model_and_every_record():
    """The edges are settings' alone: fewer for calibration, and those of thresholds among those of both."""
    of = {name: scores_of(Problem.from_experiment(small(*asked))).edges for name, asked in ASKED.items()}
    assert of == {"thresholds": EDGES, "calibration": COARSE, "both": BOTH} and {*EDGES, *COARSE} == {*BOTH}
    task = Problem.from_experiment(small(*ASKED["both"]))
    held, counts = held_records(task, SITE).records, scores_of(task)
    chances = torch.sigmoid(task.build_model()(task.inputs(held))).double()[:, 0].tolist()
    found = counts_of_scores(task, counts, held, task.build_model()).reshape(2, -1, 2).sum(dim=(0, 2)).tolist()
    wanted = [sum(low <= chance < high for chance in chances) for low, high in itertools.pairwise((*BOTH[:-1], 1.1))]
    assert found == wanted


def test_the_bound_is_met_by_a_record_that_changes_its_label_alone():
    counts = ScoreCounts(2, 1)
    moved = totals(counts, torch.tensor([[0.5]]), torch.tensor([1]), torch.tensor([0]))
    moved = moved - totals(counts, torch.tensor([[0.5]]), torch.tensor([0]), torch.tensor([0]))
    assert float(moved.double().norm()) == counts.moved == math.sqrt(2)


@pytest.mark.parametrize("positive", [0, 1])
def test_counts_are_those_of_a_plain_loop_over_records_and_bins(positive):
    task = Problem.from_experiment(COUNTED)
    held = held_records(task, SITE).records
    counts, model = ScoreCounts(2, positive), task.build_model()
    records = held.take(np.arange(200))
    found = counts_of_scores(task, counts, records, model)
    wanted = torch.zeros_like(found)
    with torch.no_grad():
        chances = torch.sigmoid(model(task.inputs(records))).double()[:, 0].tolist()
    for chance, label, group in zip(chances, records.target.tolist(), records.sensitive.tolist(), strict=True):
        chance = chance if positive == 1 else 1 - chance
        (bin_,) = (b for b in range(BINS) if b / BINS <= chance < (b + 1) / BINS)
        wanted[group, 2 * bin_ + (label == positive)] += 1
    assert torch.equal(found, wanted) and counts.fits(found, records.sensitive.bincount(minlength=2))


def test_counts_add_up_exactly_however_records_are_spread():
    task = Problem.from_experiment(COUNTED)
    held = held_records(task, SITE).records
    counts, model = scores_of(task), task.build_model()
    parts = [held.take(np.arange(start, 600, 3)) for start in range(3)]
    apart = sum(counts_of_scores(task, counts, part, model) for part in parts)
    assert torch.equal(apart, counts_of_scores(task, counts, held, model))


def test_counts_that_no_such_records_make_do_not_fit():
    counts, records = ScoreCounts(2, 1), torch.tensor([3, 2])
    right = torch.zeros((2, counts.width), dtype=torch.int64)
    right[0, 4], right[1, 63] = 3, 2
    assert counts.fits(right, records)
    negative = right.clone()
    negative[0, 0], negative[0, 4] = -1, 4
    for wrong in (right + 1, negative, right[:, 1:], right.double(), right.flip(0)):
        assert not counts.fits(wrong, records)


def test_thresholds_are_of_two_classes_and_several_groups():
    require_scorable(Problem.from_experiment(COUNTED))
    assert scores_of(Problem.from_experiment(small())) is None
