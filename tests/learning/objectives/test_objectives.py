"""Laws of objectives: cells, gradients of the penalty, and what one record can change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsw.learning.objectives import Clip, WeightedPenalty, WeightedSum, contribution_bound
from fedsw.learning.objectives.distances import BetweenGroups, Matching
from fedsw.learning.objectives.penalties import Parity
from fedsw.mathematics.transport import sliced
from fedsw.privacy.sensitivity import Side, swd_sensitivity

PARITY = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=0.75)
THREE_GROUPS = BetweenGroups("statistical-parity", groups=3, classes=1, alpha=0.5)
ODDS = BetweenGroups("equality-of-odds", groups=2, classes=3, alpha=0.6)
CLIP = Clip(output=1.0, jacobian=2.0, loss=5.0)


def draw(d: int, k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(sliced.direction_shape(d, k), generator=generator, dtype=torch.float64)
    return sliced.directions(d, k, normals=normals)


def outputs_of(sizes: list[int], d: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [sliced.project(torch.randn((n, d), generator=generator, dtype=torch.float64), CLIP.output) for n in sizes]


def naive_penalty(objective: BetweenGroups, outputs: list[Tensor], theta: Tensor) -> float:
    """A double loop over classes and groups, a loop over directions, equal sizes only."""
    total = 0.0
    for y in range(objective.classes):
        cells = outputs[y * objective.groups : (y + 1) * objective.groups]
        for i, own in enumerate(cells):
            for other in cells[i + 1 :]:
                gaps = (own @ theta).sort(dim=0).values - (other @ theta).sort(dim=0).values
                total += float(gaps.square().mean()) / objective.classes
    return total


def penalty(objective: BetweenGroups, outputs: list[Tensor], theta: Tensor) -> float:
    """By the pairs that are compared, with their weights; of any sizes."""
    return sum(weight * float(sliced.sliced_w2(outputs[i], outputs[j], theta)) for i, j, weight in objective.pairs)


def test_cells_are_groups_or_pairs_of_class_and_group() -> None:
    assert THREE_GROUPS.cells == ("A=0", "A=1", "A=2")
    assert ODDS.cells == ("Y=0,A=0", "Y=0,A=1", "Y=1,A=0", "Y=1,A=1", "Y=2,A=0", "Y=2,A=1")
    sensitive, target = torch.tensor([0, 1, 1, 0]), torch.tensor([2, 0, 1, 0])
    assert ODDS.cell_of(sensitive, target).tolist() == [4, 1, 3, 0]
    assert [ODDS.cells[c] for c in ODDS.cell_of(sensitive, target)][:2] == ["Y=2,A=0", "Y=0,A=1"]
    cells = PARITY.cell_of(sensitive.to(torch.int32), torch.rand(4, 2))
    assert cells.dtype == torch.int64
    assert cells.tolist() == [0, 1, 1, 0]


def test_pairs_compare_groups_within_a_class_only() -> None:
    assert THREE_GROUPS.pairs == ((0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0))
    assert ODDS.pairs == ((0, 1, 1 / 3), (2, 3, 1 / 3), (4, 5, 1 / 3))


@pytest.mark.parametrize("objective", [PARITY, THREE_GROUPS, ODDS])
@pytest.mark.parametrize("d", [1, 2])
def test_penalty_is_the_weighted_sum_over_pairs(objective: BetweenGroups, d: int) -> None:
    outputs, theta = outputs_of([8] * len(objective.cells), d), draw(d, 4)
    assert penalty(objective, outputs, theta) == pytest.approx(naive_penalty(objective, outputs, theta), rel=1e-12)


@pytest.mark.parametrize("objective", [PARITY, THREE_GROUPS, ODDS])
def test_cotangents_are_the_gradient_of_alpha_times_the_penalty(objective: BetweenGroups) -> None:
    sizes = [5 + 2 * i for i in range(len(objective.cells))]
    outputs, theta = outputs_of(sizes, 3), draw(3, 6)
    step = 1e-6
    for cell, q in enumerate(objective.cotangents(outputs, theta)):
        assert q.shape == outputs[cell].shape
        for row, column in ((0, 0), (2, 1), (4, 2)):
            values = []
            for sign in (1, -1):
                moved = [o.clone() for o in outputs]
                moved[cell][row, column] += sign * step
                values.append(penalty(objective, moved, theta))
            slope = objective.alpha * (values[0] - values[1]) / (2 * step)
            assert float(q[row, column]) == pytest.approx(slope, abs=1e-8)


def test_chunked_cotangents_agree() -> None:
    outputs, theta = outputs_of([9, 7, 5], 2), draw(2, 20)
    whole, parts = (THREE_GROUPS.cotangents(outputs, theta, memory_limit=limit) for limit in (2**28, 1))
    for q, p in zip(whole, parts, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-15)


def test_without_penalty_nothing_is_compared_and_cells_may_be_empty() -> None:
    task_only = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=0.0)
    cotangents = task_only.cotangents([torch.zeros(0, 1), torch.ones(4, 1)], draw(1, 1))
    assert [q.abs().sum().item() for q in cotangents] == [0, 0]
    assert [s.value for s in task_only.sensitivities([0, 4], CLIP, d=1)] == [2 * 5 / 4] * 2


def test_sensitivity_adds_the_task_and_every_pair_at_the_records_own_cell_size() -> None:
    parity = PARITY.sensitivities([100, 50], CLIP, d=1, bound="slice")
    task = 0.25 * 2 * 5 / 150
    assert [s.value for s in parity] == pytest.approx([task + 0.75 * 8 * 2 / 100, task + 0.75 * 8 * 2 / 50])
    three = THREE_GROUPS.sensitivities([10, 20, 40], CLIP, d=2, spread=0.5)
    assert [s.value for s in three] == pytest.approx([0.5 * 10 / 70 + 0.5 * 2 * 8 * 2 / n for n in (10, 20, 40)])
    odds = ODDS.sensitivities([10, 20, 30, 40, 50, 60], CLIP, d=1)
    expected = [0.4 * 10 / 210 + 0.6 / 3 * 8 * 2 / n for n in (10, 20, 30, 40, 50, 60)]
    assert [s.value for s in odds] == pytest.approx(expected)


def test_sensitivity_of_paper_settings_and_of_well_spread_directions() -> None:
    only = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=1.0)
    assert only.sensitivities([10, 10], CLIP, d=6, bound="paper")[0].value == pytest.approx(16 * 2 / 10)
    spread = sliced.orthogonal_spread(6, 30)
    vector = swd_sensitivity(Side(10, 1, 2), Side(10, 1, 2), bound="vector", spread=spread).value
    assert only.sensitivities([10, 10], CLIP, d=6, spread=spread)[0].value == pytest.approx(vector)
    assert vector == pytest.approx(6.599 * 2 / 10, rel=1e-4)


def test_one_dimensional_outputs_have_spread_one() -> None:
    only = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=1.0)
    vector = only.sensitivities([4, 4], CLIP, d=1, bound="vector")[0].value
    assert vector == pytest.approx(10 * 2 / 4)


def test_sensitivities_say_what_is_public() -> None:
    parity, odds = PARITY.sensitivities([5, 5], CLIP, d=1)[0], ODDS.sensitivities([5] * 6, CLIP, d=1)[0]
    assert parity.public[0] == "each record's sensitive group"
    assert odds.public[0] == "each record's sensitive group and label"
    assert parity.public[1] == odds.public[1] == "the sizes of the groups and of their batches"
    assert parity.relation == "replace-one"
    assert parity.bound == "loss clip + slice"


def test_task_weight_is_the_mean_over_the_batch() -> None:
    whole = WeightedSum((Parity(0.75),))
    assert whole.task_weight(50) == pytest.approx(0.25 / 50)
    with pytest.raises(ValueError, match="batch = 0"):
        whole.task_weight(0)


def worst_movement(objective: BetweenGroups, outputs: list[Tensor], theta: Tensor, cell: int, record: Tensor) -> float:
    """Movement of the whole gradient under the worst Jacobians and task gradients when row 0 is replaced."""
    replaced = [o.clone() for o in outputs]
    replaced[cell][0] = record
    before, after = objective.cotangents(outputs, theta), objective.cotangents(replaced, theta)
    total = 2 * CLIP.loss * (1 - objective.alpha) / sum(len(o) for o in outputs)
    for index, (q, p) in enumerate(zip(before, after, strict=True)):
        lengths = torch.linalg.vector_norm(q - p, dim=1)
        if index == cell:
            lengths[0] = q[0].norm() + p[0].norm()
        total += CLIP.jacobian * float(lengths.sum())
    return total


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    objective=st.sampled_from([PARITY, THREE_GROUPS, ODDS]),
    size=st.integers(1, 4),
    d=st.integers(1, 3),
    cell=st.integers(0, 1),
    saturated=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_replacing_one_record_never_exceeds_its_cells_sensitivity(
    objective: BetweenGroups, size: int, d: int, cell: int, saturated: bool, seed: int
) -> None:
    sizes = [size + i % 2 for i in range(len(objective.cells))]
    outputs = outputs_of(sizes, d, seed)
    if saturated:
        outputs = [o[:1].expand_as(o) / o[0].norm() * (-1) ** i for i, o in enumerate(outputs)]
    theta = draw(d, 2 * d, seed)
    record = -outputs[cell][0]
    moved = worst_movement(objective, outputs, theta, cell, record)
    bound = objective.sensitivities(sizes, CLIP, d=d, spread=sliced.spread(theta))[cell].value
    assert moved <= bound * (1 + 1e-9)


@pytest.mark.parametrize("objective", [PARITY, THREE_GROUPS])
def test_sensitivity_with_any_number_of_groups_is_attained(objective: BetweenGroups) -> None:
    ends = torch.ones((3, 1), dtype=torch.float64)
    outputs = [ends] + [-ends] * (objective.groups - 1)
    moved = worst_movement(objective, outputs, draw(1, 1), 0, ends[0])
    assert moved == pytest.approx(objective.sensitivities([3] * objective.groups, CLIP, d=1)[0].value, rel=1e-12)


@pytest.mark.parametrize("aligned", [False, True])
def test_a_client_that_clips_never_exceeds_its_contribution_bound(aligned: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, theta = outputs_of([6, 8], 2), draw(2, 4)
    q = torch.cat(PARITY.cotangents(outputs, theta))
    jacobians = torch.randn((14, 2, 5), generator=generator, dtype=torch.float64)
    gradients = torch.randn((14, 5), generator=generator, dtype=torch.float64)
    if aligned:
        gradients = torch.eye(5, dtype=torch.float64)[:1].expand(14, 5)
        jacobians = (q / q.norm(dim=1, keepdim=True)).unsqueeze(-1) * gradients.unsqueeze(1)
    jacobians = CLIP.jacobian * jacobians / torch.linalg.matrix_norm(jacobians, ord=2, keepdim=True)
    gradients = CLIP.loss * gradients / gradients.norm(dim=1, keepdim=True)
    weight = (1 - PARITY.alpha) / 40
    contribution = torch.einsum("nd,ndr->r", q, jacobians) + weight * gradients.sum(dim=0)
    bound = contribution_bound([q[:6], q[6:].float()], CLIP, weight)
    assert float(contribution.norm()) <= bound * (1 + 1e-6)
    if aligned:
        assert float(contribution.norm()) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BetweenGroups("parity", 2, 1, 0.5), "'parity' is unknown"),  # type: ignore[arg-type]
        (lambda: BetweenGroups("statistical-parity", 1, 1, 0.5), "groups = 1"),
        (lambda: BetweenGroups("equality-of-odds", 2, 0, 0.5), "classes = 0"),
        (lambda: BetweenGroups("statistical-parity", 2, 3, 0.5), "classes = 3"),
        (lambda: BetweenGroups("equality-of-odds", 2, 2, 1.5), "alpha = 1.5"),
        (lambda: BetweenGroups("equality-of-odds", 2, 2, float("nan")), "alpha = nan"),
        (lambda: BetweenGroups("statistical-parity", 2, 1, 0.5, order=1.5), r"order is 1\.5; a penalty's order"),
        (lambda: Matching("generator", 0.5, 1.0, order=3.0), "a generator's outputs has order 2, not 3: bounds of"),
        (lambda: Clip(0.0, 1.0, 1.0), r"clip\.output = 0\.0"),
        (lambda: Clip(1.0, float("inf"), 1.0), r"clip\.jacobian = inf"),
        (lambda: Clip(1.0, 1.0, -1.0), r"clip\.loss = -1"),
        (lambda: PARITY.cell_of(torch.tensor([0, 2]), torch.zeros(2)), "2 at record 1: .*from 0 to 1"),
        (lambda: PARITY.cell_of(torch.tensor([0.5, 1]), torch.zeros(2)), "0.5 at record 0"),
        (lambda: PARITY.cell_of(torch.zeros(2, 1), torch.zeros(2)), r"shape \(2, 1\)"),
        (lambda: ODDS.cell_of(torch.tensor([1]), torch.tensor([-1])), "label -1 at record 0"),
        (lambda: PARITY.sensitivities([5], CLIP, d=1), "1 sizes for 2 cells"),
        (lambda: PARITY.sensitivities([5, 0], CLIP, d=1), "cell A=1 has 0 records"),
        (lambda: PARITY.sensitivities([5, 5], CLIP, d=2, spread=0.3), "spread = 0.3 in dimension d = 2"),
        (lambda: PARITY.cotangents([torch.ones(2, 1)], draw(1, 1)), "1 output tensors for 2 cells"),
    ],
)
def test_impossible_arguments_are_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("part", [replace(PARITY, order=3.0), Matching("prior", 0.5, 1.0, order=3.0)])
def test_tables_have_no_slot_means_for_other_orders(part: WeightedPenalty) -> None:
    with pytest.raises(TypeError, match=r"of order 3 has no slot means: noised tables serve order 2 alone"):
        part.slot_means([torch.ones(1, 4)] * len(part.cells), draw(1, 1), 1.0, torch.zeros(3, 1))


def test_the_order_of_a_penalty_is_that_of_its_derivative_and_of_its_bound() -> None:
    cubic = replace(PARITY, order=3.0)
    outputs = [torch.tensor([[-1.0], [0.5]]).double(), torch.tensor([[0.25], [1.0], [1.0]]).double()]
    pulled, _ = cubic.pulled(outputs, draw(1, 1), lambda size: torch.zeros(0, 1))
    alone, _ = sliced.cotangents(*outputs, draw(1, 1), order=3.0)
    torch.testing.assert_close(pulled[0], cubic.alpha * alone)
    sides = (Side(2, CLIP.output, CLIP.jacobian), Side(3, CLIP.output, CLIP.jacobian))
    (first, _) = cubic.sensitivities([2, 3], CLIP, d=1, alone=True)
    assert first.value == pytest.approx(cubic.alpha * swd_sensitivity(*sides, order=3.0, spread=1.0).value)
