"""The bound of a sketch under attack: pairs of records, labels and groups included, never move it by more."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsw.learning.sketches import GaussianKernel, SlicedCramer
from fedsw.learning.sketches.noised import PUBLIC, RELATION, sketch_sensitivity
from fedsw.learning.sketches.parts import Indicators, diameter
from fedsw.learning.sketches.sketch_law import MOST_COORDINATES, STEP, Law, Sketcher
from fedsw.privacy.sensitivity import SLACK
from tests.learning.sketches.samples import KERNEL, LAWS, MIXED, cells_of, normal

DRAWN = {name: law.drawn() for name, law in LAWS.items()}
OTHERS = 5


def movement(sketcher: Sketcher, record: Tensor, cell: int, other: Tensor, other_cell: int) -> float:
    """How far the sum moves when a record among others becomes another one."""
    law = sketcher.law
    rows, cells = normal(OTHERS, law.features).to(record), cells_of(law, OTHERS)

    def total(row: Tensor, its: int) -> Tensor:
        both = torch.cat([rows[:2], row[None], rows[2:]]), torch.cat([cells[:2], torch.tensor([its]), cells[2:]])
        return sketcher.sums(*both)

    return float((total(record, cell) - total(other, other_cell)).norm())


values = st.one_of(st.floats(-3, 3, width=32), st.floats(width=32), st.sampled_from([0.0, 1.0, -1.0]))


@st.composite
def pairs(draw):
    name = draw(st.sampled_from(sorted(LAWS)))
    law = LAWS[name]
    records = [
        torch.tensor(draw(st.lists(values, min_size=law.features, max_size=law.features)), dtype=torch.float32)
        for _ in range(2)
    ]
    return name, *records, *(draw(st.integers(0, law.cells - 1)) for _ in range(2))


@given(pairs())
@settings(max_examples=400, derandomize=True)
def test_replacing_one_record_label_and_group_included_never_exceeds_the_bound(pair):
    name, record, other, cell, other_cell = pair
    moved = movement(DRAWN[name], record, cell, other, other_cell)
    assert moved <= sketch_sensitivity(LAWS[name]).value


@given(pairs())
@settings(max_examples=200, derandomize=True)
def test_records_of_different_cells_move_a_sketch_of_waves_by_one_length_whatever_they_hold(pair):
    name, record, other, _, _ = pair
    law = LAWS[name]
    finite = torch.isfinite(torch.cat([record, other])).all() and torch.cat([record, other]).abs().max() < 1e6
    if law.cells > 1 and name in ("kernel", "kernel, groups", "cramer", "many counts") and bool(finite):
        moved = movement(DRAWN[name], record, 0, other, law.cells - 1)
        assert moved == pytest.approx(math.sqrt(2 * (1 + law.counts)), rel=1e-5)


def turned_round(sketcher: Sketcher, features: int) -> Tensor:
    """A move that turns every wave of as many frequencies as there are features to its opposite."""
    turns = sketcher.parts[0].turns.double()
    return torch.linalg.lstsq(turns.T, torch.full((turns.shape[1], 1), 0.5, dtype=torch.float64)).solution[:, 0]


def test_two_is_attained_within_a_cell_where_there_are_no_more_frequencies_than_features():
    law = Law(12, (GaussianKernel((1.0,), 12),), classes=2)
    sketcher = law.drawn(torch.float64)
    record = normal(12)
    moved = movement(sketcher, record, 1, record + turned_round(sketcher, 12), 1)
    assert moved == pytest.approx(2.0, abs=1e-6)
    assert moved > math.sqrt(2) * SLACK, "sqrt(2) is no bound for waves"
    assert moved >= 0.998 * sketch_sensitivity(law).value


def test_two_is_attained_by_a_move_of_one_period_along_a_direction_of_a_cramer_sketch():
    law = Law(3, (SlicedCramer(3, 50, 2.5),))
    sketcher = law.drawn(torch.float64)
    directions = sketcher.parts[0].turns[:, ::50] * 5.0  # whole block: orthonormal
    moved = movement(sketcher, torch.zeros(3, dtype=torch.float64), 0, 2.5 * directions.sum(dim=1), 0)
    assert moved == pytest.approx(2.0, abs=1e-6) and moved <= sketch_sensitivity(law).value


def test_the_count_makes_it_two_between_cells_and_the_bound_is_attained():
    for counts, wanted in ((1.0, 2.0), (3.0, math.sqrt(8))):
        law = Law(3, (KERNEL,), classes=3, counts=counts)
        moved = movement(law.drawn(torch.float64), normal(3), 0, normal(3, seed=1), 2)
        assert moved == pytest.approx(wanted, rel=1e-6)
        assert sketch_sensitivity(law).value == pytest.approx(SLACK * wanted)


def ascent(law: Law, steps: int = 150, restarts: int = 64) -> float:
    """The furthest that gradient ascent on pairs of records of one cell gets, from many starts."""
    sketcher = law.drawn(torch.float64)
    points = (4 * normal(2, restarts, law.features)).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.05)
    best = 0.0
    for _ in range(steps):
        moved = (sketcher(points[0]) - sketcher(points[1])).square().sum(dim=1)
        best = max(best, float(moved.detach().max()))
        optimizer.zero_grad()
        torch.autograd.backward(-moved.sum())
        optimizer.step()
    return math.sqrt(best)


@pytest.mark.parametrize(("pairs_", "least"), [(8, 1.99), (24, 1.6), (96, 1.5)])
def test_gradient_ascent_on_pairs_of_records_never_exceeds_two_and_comes_close(pairs_, least):
    law = Law(8, (GaussianKernel((1.0,), pairs_),))
    found = ascent(law)
    assert least < found <= sketch_sensitivity(law).value


def test_with_finitely_many_frequencies_inner_products_are_negative_somewhere_so_the_root_of_two_is_no_bound():
    assert ascent(Law(8, (GaussianKernel((1.0,), 96),))) > math.sqrt(2) * SLACK


def test_codes_have_inner_products_that_are_not_negative_and_attain_the_root_of_two():
    law = LAWS["codes, one cell"]
    bound = sketch_sensitivity(law)
    assert bound.value == pytest.approx(SLACK * math.sqrt(2)) and bound.bound == "sketch within a cell"
    first, second = torch.eye(3)[0], torch.eye(3)[1]
    assert movement(DRAWN["codes, one cell"], first, 0, second, 0) == pytest.approx(math.sqrt(2), abs=1e-6)
    assert movement(DRAWN["codes, one cell"], 9 * first, 0, -9 * first, 0) == pytest.approx(1.0, abs=1e-6)
    with_labels = sketch_sensitivity(LAWS["codes"])
    assert with_labels.value == pytest.approx(SLACK * math.sqrt(2.5)) and with_labels.bound == "sketch between cells"


def test_a_mixed_record_moves_the_root_of_what_its_parts_move():
    within = math.sqrt(4 / 3 + 2 * 2 / 3)
    assert within < 2  # the codes' part of the norm is worth having
    one_cell = Law(6, MIXED.parts)
    assert sketch_sensitivity(one_cell).value == pytest.approx(SLACK * within)
    assert sketch_sensitivity(MIXED).value == pytest.approx(SLACK * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.1, 10.0, 1e4, 1e12])
def test_a_record_weighs_at_most_one_with_every_rounding_far_inside_the_slack(dtype, spread):
    law = Law(16, (GaussianKernel((1.0, 4.0), 3000),))
    sketcher = law.drawn(dtype)
    rows = (normal(60, 16) * spread).to(dtype)
    cells = torch.zeros(1, dtype=torch.int64)
    lengths = [float(sketcher.sums(row[None], cells)[:, :-1].norm()) for row in rows]
    assert abs(max(lengths) - 1) < (SLACK - 1) / 100 and abs(min(lengths) - 1) < (SLACK - 1) / 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosines_and_sines_of_reduced_angles_are_as_accurate_as_the_proof_asks(dtype):
    angles = torch.linspace(-math.pi, math.pi, 2_000_001, dtype=torch.float64).to(dtype)
    exact = angles.double()
    for found, wanted in ((angles.cos(), torch.cos(exact)), (angles.sin(), torch.sin(exact))):
        assert float((found.double() - wanted).abs().max()) < 2.0**-20


def test_rounding_to_whole_steps_moves_the_longest_vector_by_less_than_the_proof_allows():
    assert math.sqrt(MOST_COORDINATES) * STEP / 2 <= 2.0**-15
    assert 2 * (2.0**-15 + math.sqrt(2) * 2.0**-20 + 1e-6) < 2 * (SLACK - 1)


def test_the_bound_says_which_relation_it_is_for_and_what_stays_public():
    bound = sketch_sensitivity(LAWS["kernel"])
    assert (bound.relation, bound.public) == (RELATION, PUBLIC)
    assert "label and group included" in bound.relation and bound.value == 2 * SLACK


def test_how_far_apart_records_are_follows_from_the_least_inner_product_of_a_part():
    assert diameter(KERNEL) == diameter(SlicedCramer(1, 1, 1.0)) == 2.0
    assert diameter(Indicators((0,))) == math.sqrt(2)
