"""One release of a sketch: what is charged, what noise is added, and clients' sketches added up."""

from __future__ import annotations

import math

import pytest
import torch

from fedsw.learning.sketches import sketch_law as law
from fedsw.learning.sketches.noised import (
    NoisedSketch,
    bits_per_number,
    bounded_sketch,
    bounded_sum,
    pooled,
    require_sum,
    sketch_sensitivity,
)
from fedsw.learning.sketches.sketch_law import STEP, Law
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Ledger
from fedsw.privacy.mechanisms import gaussian_sigma
from fedsw.privacy.release import release
from fedsw.runs.single.sketching import SketchPlan, plan_sketch, release_sketch
from tests.learning.sketches.samples import KERNEL, LAWS, cells_of, normal
from tests.noises import require_gaussian

LAW = LAWS["kernel, groups"]
N = 40
SKETCHER = LAW.drawn()
ROWS, CELLS = normal(N, 3).float(), cells_of(LAW, N)
SUM = SKETCHER.sums(ROWS, CELLS)


def ledger(tmp_path, plan: SketchPlan, name: str = "l") -> Ledger:
    return Ledger.create(tmp_path / f"{name}.sqlite", plan)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (10.0, 1e-5), (0.3, 1e-6)])
def test_the_noise_of_one_release_is_that_of_the_analytic_gaussian_mechanism_and_is_never_below_it(epsilon, delta):
    plan = plan_sketch(LAW, records=N, epsilon=epsilon, delta=delta)
    analytic = gaussian_sigma(epsilon, delta, sketch_sensitivity(LAW).value)
    assert analytic <= plan.sigma * (1 + 1e-9) and plan.sigma == pytest.approx(analytic, rel=2e-4)
    assert plan_sketch(LAW, records=N, noise_multiplier=plan.multiplier, delta=delta).epsilon <= epsilon


def test_the_noise_is_gaussian_of_the_stated_scale_in_every_number_counts_included(tmp_path):
    plan = plan_sketch(LAW, records=N, epsilon=5.0, delta=1e-5)
    added = []
    for turn in range(6):
        with ledger(tmp_path, plan, str(turn)) as account:
            found = release_sketch(SKETCHER, ROWS, CELLS, plan, account)
        assert found.sigma == plan.sigma == plan.multiplier * sketch_sensitivity(LAW).value
        added.append((found.value - SUM).reshape(-1))
    require_gaussian(torch.stack(added), plan.sigma)


def test_one_release_is_charged_whole_at_rate_one_and_a_second_does_not_fit(tmp_path):
    plan = plan_sketch(LAW, records=N, epsilon=2.0, delta=1e-5, seed=3)
    with ledger(tmp_path, plan) as account:
        release_sketch(SKETCHER, ROWS, CELLS, plan, account)
        (entry,) = account.entries()
        assert (entry.group, entry.sampling_rate) == ("records", 1.0)
        assert entry.sensitivity == sketch_sensitivity(LAW).value and entry.sigma == plan.sigma
        assert 0.999 * 2.0 < account.epsilon() <= 2.0
        with pytest.raises(AlreadySpent):
            release_sketch(SKETCHER, ROWS, CELLS, plan, account)
        with pytest.raises(BudgetExhausted):
            release_sketch(SKETCHER, ROWS, CELLS, plan, account, attempt=1)


def test_a_plan_for_other_records_or_another_law_charges_nothing(tmp_path):
    plan = plan_sketch(LAW, records=N + 1, epsilon=2.0, delta=1e-5)
    with ledger(tmp_path, plan) as account:
        with pytest.raises(ValueError, match="40 records, and the plan is for 41"):
            release_sketch(SKETCHER, ROWS, CELLS, plan, account)
        with pytest.raises(ValueError, match="another law"):
            release_sketch(LAWS["kernel"].drawn(), ROWS, CELLS, plan, account)
        assert account.entries() == []


def test_a_label_that_the_law_does_not_have_is_refused_and_never_counted_as_another_one(tmp_path):
    """Labels 1 to 3 under three classes: 2 and 3 had become one."""
    plan = plan_sketch(LAW, records=N, epsilon=2.0, delta=1e-5)
    with ledger(tmp_path, plan) as account:
        for cells, said in (
            (CELLS + 1, f"the law has {LAW.cells}, numbered 0 to {LAW.cells - 1}: number them from 0"),
            (CELLS - 1, "is -1"),
            (CELLS.float(), "int64"),
            (CELLS[:, None], r"shape \(40, 1\)"),
        ):
            with pytest.raises(ValueError, match=said):
                release_sketch(SKETCHER, ROWS, cells, plan, account)
        assert account.entries() == []
    for labels, groups in (([LAW.classes], [0]), ([-1], [0]), ([0], [LAW.groups])):
        with pytest.raises(ValueError, match="numbered 0 to"):
            LAW.cell_of(torch.tensor(labels), torch.tensor(groups))


def test_the_guarantee_names_label_and_group_and_a_seed_makes_it_nominal():
    plan = plan_sketch(LAW, records=N, epsilon=2.0, delta=1e-5)
    assert plan.guarantee.startswith("(2, 1e-05)-differential privacy") and "label and group included" in plan.guarantee
    assert plan_sketch(LAW, records=N, epsilon=2.0, delta=1e-5, seed=1).guarantee.startswith("nominal ")
    assert plan_sketch(LAW, records=N, epsilon=math.inf, delta=1e-5).guarantee.startswith("None")
    assert "noise multiplier" in str(plan)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"records": 0, "epsilon": 1.0}, "records = 0; it is a whole number, 1 to 67108864"),
        ({"records": 2**26 + 1, "epsilon": 1.0}, "1 to 67108864"),
        ({"records": N, "noise_multiplier": 0}, "noise_multiplier = 0.0"),
        ({"records": N}, "give epsilon"),
        ({"records": N, "epsilon": 1.0, "noise_multiplier": 1.0}, "give epsilon"),
    ],
)
def test_a_plan_out_of_range_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        plan_sketch(LAW, delta=1e-5, **given)


def test_what_a_bounded_sketch_states_is_the_laws_bound_and_its_value_is_hidden():
    bounded = bounded_sketch(SKETCHER, ROWS, CELLS)
    assert bounded.sensitivity == sketch_sensitivity(LAW) and bounded.shape == tuple(SUM.shape)
    assert bounded.sensitivity.relation == "replace-one, label and group included"
    assert [charge.sensitivity for charge in bounded.charges] == [sketch_sensitivity(LAW).value]
    assert "hidden" in repr(bounded)


def parts(count: int) -> list[slice]:
    return [slice(start, None, count) for start in range(count)]


def test_a_trusted_server_noises_the_sum_of_all_clients_once_for_one_records_bound(tmp_path):
    sums = [SKETCHER.sums(ROWS[part], CELLS[part], chunk=1) for part in parts(4)]
    bounded = bounded_sum(LAW, sums, [10] * 4)
    assert bounded.sensitivity == sketch_sensitivity(LAW)
    plan = plan_sketch(LAW, records=N, epsilon=math.inf, delta=1e-5)
    with ledger(tmp_path, plan) as account:
        found = release(bounded, plan, account)
    assert torch.equal(found.value, SKETCHER.sums(ROWS, CELLS, chunk=1)) and found.sigma == 0.0


def test_clients_that_noise_their_own_have_the_root_of_their_number_times_the_noise(tmp_path):
    released = []
    for number, part in enumerate(parts(4)):
        plan = plan_sketch(LAW, records=10, epsilon=2.0, delta=1e-5)
        with ledger(tmp_path, plan, str(number)) as account:
            released.append(release_sketch(SKETCHER, ROWS[part], CELLS[part], plan, account))
    pool = pooled(released)
    assert pool.sigma == pytest.approx(2 * released[0].sigma) and pool.records == N
    torch.testing.assert_close(pool.value, sum(each.value for each in released), rtol=0, atol=1e-9)
    require_gaussian((pool.value - SUM).reshape(1, -1), pool.sigma)
    late = pooled([pooled(released[:3]), released[3]])
    torch.testing.assert_close(late.value, pool.value)
    assert late.sigma == pytest.approx(pool.sigma) and late.records == N


@pytest.mark.parametrize(
    ("total", "records", "words"),
    [
        (SUM, N - 1, "counts 40 records.*of 39 records"),
        (SUM * 3, N, "counts 120"),
        (SUM + STEP / 3, N, "whole multiples"),
        (SUM[:1], N, "expected float64 of"),
        (SUM.float(), N, "torch.float32"),
        (torch.cat([SUM[:, :-1] * 8, SUM[:, -1:]], dim=1), N, "weighs at most"),
        (SUM * math.nan, N, "whole multiples"),
    ],
)
def test_a_sum_that_no_such_records_make_is_refused_before_anything_is_charged(total, records, words):
    require_sum(LAW, SUM, N)
    with pytest.raises(ValueError, match=words):
        bounded_sum(LAW, [total], [records])


def test_sums_of_other_lengths_of_nobody_or_of_too_many_are_refused(monkeypatch):
    short = Law(3, (LAWS["cramer"].parts[0],), classes=2, groups=2, counts=0.5).drawn().sums(ROWS, CELLS)
    for sums, records, words in (
        ([SUM, short], [N, N], "one law has one shape"),
        ([], [], "0 sums"),
        ([SUM], [N, N], "1 sums and 2 numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            bounded_sum(LAW, sums, records)
    monkeypatch.setattr("fedsw.learning.sketches.noised.MOST_RECORDS", 2 * N - 1)
    with pytest.raises(ValueError, match="80 records"):
        bounded_sum(LAW, [SUM, SUM], [N, N])


def test_the_bits_of_a_number_hold_every_sum_that_is_allowed_with_its_sign():
    for records in (1, 40, 10**6, law.MOST_RECORDS):
        for counts in (0.5, 4.0):
            bits = bits_per_number(Law(3, (KERNEL,), counts=counts), records)
            assert 2 ** (bits - 1) > records * max(1.0, math.sqrt(counts)) / STEP >= 2 ** (bits - 3)
    assert bits_per_number(LAW, 60_000) == 43


def test_a_noised_sketch_reads_back_counts_proportions_and_means():
    sketch = NoisedSketch(LAW, SUM, 0.0, N)
    counted = torch.bincount(CELLS, minlength=4).double()
    torch.testing.assert_close(sketch.counts, counted)
    torch.testing.assert_close(sketch.proportions, counted / N)
    torch.testing.assert_close(sketch.blocks, SUM[:, :-1] / N)
    noisy = NoisedSketch(LAW, torch.cat([SUM[:, :-1], torch.tensor([[-1.0], [1.0], [0.0], [3.0]])], dim=1), 2.0, N)
    assert noisy.proportions.tolist() == [0.0, 0.25, 0.0, 0.75] and noisy.deviation == 0.05
    nobody = NoisedSketch(LAW, torch.cat([SUM[:, :-1], -torch.ones(4, 1)], dim=1), 2.0, N)
    assert nobody.proportions.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("value", "sigma", "records", "words"),
    [
        (SUM[:2], 1.0, N, "4 cells"),
        (SUM, -1.0, N, "sigma = -1"),
        (SUM, 1.0, 0, "records = 0"),
        (SUM * math.inf, 1.0, N, "not finite"),
    ],
)
def test_a_noised_sketch_that_was_damaged_is_refused(value, sigma, records, words):
    with pytest.raises(ValueError, match=words):
        NoisedSketch(LAW, value, sigma, records)


def test_sketches_of_different_laws_are_not_added_up():
    other = NoisedSketch(Law(3, LAW.parts, classes=2, groups=2, counts=0.5, seed=1), SUM, 1.0, N)
    with pytest.raises(ValueError, match="seed included"):
        pooled([NoisedSketch(LAW, SUM, 1.0, N), other])
    with pytest.raises(ValueError, match="no sketch"):
        pooled([])
