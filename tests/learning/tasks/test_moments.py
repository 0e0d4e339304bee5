"""Laws of moments: how far one record moves their sums, that sums are exact, and what is read off them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.learning.models.coded import Hats
from fedsw.learning.moments.moments_sum import GRID, STEP, Layout, layout_of, sums_of
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.tasks.problem import Problem
from tests.federations import small

ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32), st.floats(-2, 2, width=32), st.sampled_from([0.0, 1.0])
)


def layout(
    targets: int = 2,
    *,
    classes: bool = True,
    cells: int = 2,
    features: int = 3,
    bound: float = 2.0,
    constant: float = 1.0,
    emphasis: float = 1.0,
) -> Layout:
    middle, centre = 0.0 if classes else 0.5, (0.5,) + (0.0,) * (features - 1)
    return Layout(cells, features, targets, classes, bound, centre, middle, constant, emphasis)


def blocks(layout: Layout, inputs, target, cell) -> torch.Tensor:
    """What each record adds to all cells together: (n, cells * w)."""
    found = torch.zeros(len(inputs), layout.cells, layout.width, dtype=torch.float64)
    found[torch.arange(len(inputs)), cell] = layout.vectors(inputs, target)
    return found.flatten(1)


@settings(max_examples=400, deadline=None)
@given(
    st.booleans(),
    st.lists(ANYTHING, min_size=10, max_size=10),
    st.tuples(*[st.integers(0, 1)] * 4),
    st.tuples(st.floats(1, 5), st.floats(1, 5)),
)
def test_one_record_moves_moments_of_inputs_by_at_most_the_root_of_two_whatever_it_holds(
    classes, numbers, small_ones, weights
):
    one, other, here, there = small_ones
    law = layout(classes=classes, bound=1.5 + here, constant=weights[0], emphasis=weights[1])
    values = torch.tensor(numbers, dtype=torch.float64)
    target = torch.tensor([one, other]) if classes else values[6:].reshape(2, 2)
    found = blocks(law, values[:6].reshape(2, 3), target, torch.tensor([here, there]))
    assert float(torch.linalg.vector_norm(found[0] - found[1])) <= law.moved
    assert law.moved == math.sqrt(2)


@settings(max_examples=200, deadline=None)
@given(st.lists(ANYTHING, min_size=10, max_size=10), st.tuples(*[st.integers(0, 1)] * 4), st.booleans())
def test_one_record_moves_moments_of_hats_by_at_most_the_root_of_two_whatever_it_holds(numbers, small_ones, classes):
    declared = [{"name": "a", "low": 0, "high": 1}, {"name": "b", "categories": ["x", "y"], "missing": [""]}]
    coding = Hats(Columns.model_validate({"features": [*declared, {"name": "c", "kind": "boolean"}]}), 3)
    one, other, here, there = small_ones
    values = torch.tensor(numbers, dtype=torch.float64)
    law = Layout.weighted(
        2, coding.width, 2, classes=classes, centre=tuple(coding.middle), reach=coding.reach, least=0.0
    )
    target = torch.tensor([one, other]) if classes else values[6:].reshape(2, 2)
    inputs = coding(torch.cat([values, values])[:10].reshape(2, 5))
    found = blocks(law, inputs, target, torch.tensor([here, there]))
    assert float(torch.linalg.vector_norm(found[0] - found[1])) <= law.moved == math.sqrt(2)
    assert float(torch.linalg.vector_norm(inputs, dim=1).max()) <= 1 + 1e-12


def test_the_bound_is_nearly_met_by_real_records():
    """Two records with orthogonal vectors in one cell, or any two of norm 1 in two cells."""
    law = layout(bound=60.0)
    inputs = torch.tensor([[0.5, 1e6, 0.0], [0.5, 0.0, 1e6]])
    for cell in ([0, 0], [0, 1]):
        found = blocks(law, inputs, torch.tensor([0, 1]), torch.tensor(cell))
        assert float(torch.linalg.vector_norm(found[0] - found[1])) >= 0.999 * law.moved


@settings(max_examples=200, deadline=None)
@given(st.lists(ANYTHING, min_size=8, max_size=8), st.floats(0.1, 10))
def test_a_records_whole_numbers_stay_in_the_unit_ball_exactly(numbers, bound):
    law = layout(2, features=2, bound=bound)
    whole = law.integers(torch.tensor(numbers).reshape(4, 2), torch.tensor([0, 1, 2, -1])).long()
    assert int((whole**2).sum(1).max()) <= 4**GRID


def problem_and_records(*overrides: str, count: int = 300):
    task = Problem.from_experiment(small(*overrides))
    rng = np.random.default_rng(1)
    p = task.features
    classes = task.classes > 0
    target = torch.from_numpy(rng.integers(0, 2, count)) if classes else None
    numbers = torch.from_numpy(rng.random((count, max(1, task.shape.targets))).astype(np.float32))
    features = torch.from_numpy(rng.normal(size=(count, p)).astype(np.float32)) * 0.3
    features[:, 0] += 0.5 * (target if target is not None else numbers[:, 0])
    group = torch.from_numpy(rng.integers(0, 2, count))
    return task, Records(features, group, numbers if target is None else target, torch.arange(count))


def released(task, records) -> Moments:
    law = layout_of(task)
    assert law is not None
    sizes = tuple(len(rows) for rows in task.cells_of(records))
    return Moments.exact(law, sums_of(task, law, records), sizes)


def targets_alone(*, classes: bool, cells: int = 1) -> Layout:
    return Layout.weighted(cells, 0, 2, classes=classes, centre=(), reach=0.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(ANYTHING, min_size=10, max_size=10), st.tuples(*[st.integers(0, 1)] * 4), st.booleans())
def test_one_record_moves_moments_of_the_target_alone_by_at_most_the_root_of_two(numbers, small_ones, classes):
    one, other, here, there = small_ones
    law, values = targets_alone(classes=classes, cells=2), torch.tensor(numbers, dtype=torch.float64)
    target = torch.tensor([one, other]) if classes else values[6:].reshape(2, 2)
    added = blocks(law, values[:6].reshape(2, 3), target, torch.tensor([here, there]))
    assert float(torch.linalg.vector_norm(added[0] - added[1])) <= law.moved == math.sqrt(2)
    assert law.bound == pytest.approx(math.sqrt(2)) and law.radius == pytest.approx(0, abs=1e-6)


def test_moments_of_the_target_alone_hold_its_mean_whatever_inputs_are_with_the_noise_of_a_sum_of_numbers():
    law, target = targets_alone(classes=False), torch.rand(50, 2, generator=torch.Generator().manual_seed(3))
    for inputs in (torch.rand(50, 4), torch.full((50, 4), math.nan)):
        sums = law.vectors(inputs, target).sum(0, keepdim=True)
        read = Moments(law, sums, 0.0, (50,))
        assert read.target_mean == pytest.approx(target.double().mean(0).numpy(), abs=1e-3)
    noise = Moments(law, sums, law.moved * 3.0, (50,)).noise_of_targets
    assert noise == pytest.approx(3.0 / 50 * math.sqrt(2)), "two numbers in [0, 1] are the root of two apart at most"


@pytest.mark.parametrize("overrides", [(), ("objective.task='regression'",), ("objective.penalty='equality-of-odds'",)])
def test_sums_of_shuffled_and_spread_records_are_the_same_bit_for_bit(overrides, monkeypatch):
    task, records = problem_and_records(*overrides)
    law = layout_of(task)
    whole = sums_of(task, law, records)
    monkeypatch.setattr("fedsw.learning.moments.moments_sum._CHUNK_NUMBERS", 100)
    shuffled = records.take(np.random.default_rng(0).permutation(len(records)))
    assert torch.equal(sums_of(task, law, shuffled), whole)
    parts = [records.take(np.arange(start, start + 100)) for start in (0, 100, 200)]
    assert torch.equal(sum(sums_of(task, law, part) for part in parts), whole)
    cells = task.objective.cell_of(records.sensitive, records.target)
    one_by_one = blocks(law, task.inputs(records), records.target, cells).sum(0).reshape(whole.shape)
    assert torch.equal(one_by_one, whole.double() * STEP)
    assert law.fits(whole, torch.bincount(cells, minlength=law.cells))


def test_sums_that_no_such_records_make_do_not_fit():
    task, records = problem_and_records()
    law, many = layout_of(task), torch.bincount(records.sensitive)
    right = sums_of(task, law, records)
    assert law.fits(right, many) and law.fits(torch.zeros_like(right), torch.zeros(2))
    assert not law.fits(right, many - 20) and not law.fits(-right, many) and not law.fits(right.double(), many)
    assert not law.fits(right[:1], many) and not law.fits(right + 1, many)
    wrong = right.clone()
    wrong[0, 1] = 181 * 4**GRID * 200
    assert not law.fits(wrong, many)
    heavy = torch.zeros_like(right)
    heavy[:, law.side] = 128 * 4**GRID * 3 * many // 2
    assert not law.fits(heavy, many) and law.fits(heavy, 2 * many)


def test_weights_leave_a_mean_of_targets_less_noise_than_a_square_of_inputs_and_cut_no_input():
    for classes in (True, False):
        law = Layout.weighted(2, 40, 2, classes=classes, centre=(0.5,) * 40, reach=10.0)
        assert law.radius == pytest.approx(math.sqrt(10.0))
        found = Moments(law, torch.zeros(2, law.width, dtype=torch.float64), 1.0, (50, 50))
        plain = dataclasses.replace(law, bound=math.sqrt(1 + 10 + law.reach), constant=1.0, emphasis=1.0)
        before = Moments(plain, found.values, 1.0, (50, 50))
        assert found.noise_of_targets < 0.5 * before.noise_of_targets
        assert found.noise < 1.7 * before.noise
        assert found.noise_of_products < before.noise_of_products


@pytest.mark.parametrize("classes", [True, False])
def test_what_is_said_of_the_noise_is_its_standard_deviation(classes):
    law = Layout.weighted(2, 3, 2, classes=classes, centre=(0.0,) * 3, reach=6.0)
    chance, found = np.random.default_rng(0), []
    for _ in range(4000):
        values = torch.from_numpy(chance.standard_normal((2, law.width)))
        found.append(Moments(law, values, 1.0, (70, 30)).products)
    spread = np.std(found, axis=0)
    moments = Moments(law, torch.zeros(2, law.width, dtype=torch.float64), 1.0, (70, 30))
    assert spread[1, 1] == pytest.approx(moments.noise, rel=0.05)
    assert spread[0, 1] == pytest.approx(moments.noise_of_inputs, rel=0.05)
    assert spread[1, 4] == pytest.approx(moments.noise_of_products, rel=0.05)
    assert spread[0, 4] == pytest.approx(moments.noise_of_targets, rel=0.05)
    assert spread[4, 4] == pytest.approx(moments.noise_of_squares, rel=0.05)


def test_moments_are_those_of_numpy():
    task, records = problem_and_records()
    found = released(task, records)
    x, y = records.features.double().numpy(), records.target.numpy()
    assert found.mean == pytest.approx(x.mean(0), abs=1e-3)
    assert found.covariance == pytest.approx(np.cov(x.T, bias=True), abs=1e-3)
    assert found.target_mean == pytest.approx([1 - y.mean(), y.mean()], abs=1e-3)
    for label in (0, 1):
        assert found.class_shifts[label] == pytest.approx(x[y == label].mean(0) - x.mean(0), abs=2e-3)
    within = sum(np.cov(x[y == label].T, bias=True) * (y == label).mean() for label in (0, 1))
    assert found.within == pytest.approx(within, abs=2e-3)
    for cell in (0, 1):
        assert found.shares_of(cell)[1] == pytest.approx(y[records.sensitive.numpy() == cell].mean(), abs=1e-3)


def test_moments_of_a_regression_are_those_of_numpy():
    task, records = problem_and_records("objective.task='regression'")
    found = released(task, records)
    x, y = records.features.double().numpy(), records.target.double().numpy()
    both = np.cov(np.hstack([x, y]).T, bias=True)
    assert found.target_mean == pytest.approx(y.mean(0), abs=1e-3)
    assert found.cross == pytest.approx(both[: x.shape[1], x.shape[1] :], abs=1e-3)
    assert found.target_covariance == pytest.approx(both[x.shape[1] :, x.shape[1] :], abs=1e-3)


def test_inputs_that_are_cut_leave_counts_and_targets_as_they_are():
    task, records = problem_and_records()
    law = dataclasses.replace(layout_of(task), bound=1.5, constant=1.0, emphasis=1.0)
    sizes = tuple(torch.bincount(records.sensitive).tolist())
    found = Moments.exact(law, sums_of(task, law, records), sizes)
    x, y = records.features.double().numpy(), records.target.numpy()
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    assert (norms > 0.5).mean() > 0.5
    assert found.mean == pytest.approx((x * np.minimum(1, 0.5 / norms)).mean(0), abs=1e-3)
    assert found.target_mean[1] == pytest.approx(y.mean(), abs=1e-6)


@pytest.mark.parametrize(
    "overrides",
    [
        ("objective.task='representation'", "model.kind='encoder-decoder'"),
        ("data.core_features=200", "data.spurious_features=57"),
    ],
)
def test_what_has_no_moments_has_no_layout(overrides):
    assert layout_of(Problem.from_experiment(small(*overrides))) is None
