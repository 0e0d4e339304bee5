"""Laws of noised tables: how far a record moves them, what they turn into, and what the cotangents then are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsw.federation.trust import budget_shares as split
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.objectives.distances import BetweenGroups
from fedsw.mathematics.transport import sliced
from fedsw.privacy.accounting import Step, epsilon
from fedsw.privacy.sensitivity import SLACK
from tests.federations import small

PARITY = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=0.75)
THREE_GROUPS = BetweenGroups("statistical-parity", groups=3, classes=1, alpha=0.5)
ODDS = BetweenGroups("equality-of-odds", groups=2, classes=3, alpha=0.6)
CLIP = Clip(output=1.5, jacobian=2.0, loss=5.0)


def draw(d: int, k: int, seed: int = 0, scheme: sliced.Scheme = "orthogonal") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(sliced.direction_shape(d, k, scheme), generator=generator, dtype=torch.float64)
    return sliced.directions(d, k, normals=normals, scheme=scheme)


def outputs(n: int, d: int, seed: int = 0, radius: float = CLIP.output) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sliced.project(torch.randn((n, d), generator=generator, dtype=torch.float64), radius)


@pytest.mark.parametrize(("d", "k", "bins"), [(1, 1, 2), (2, 6, 8), (5, 40, 32)])
def test_replacing_one_record_moves_a_table_by_at_most_its_sensitivity(d, k, bins):
    theta = draw(d, k)
    largest = 0.0
    for seed in range(60):
        before = outputs(9, d, seed)
        after = before.clone()
        after[3] = outputs(1, d, 1000 + seed)[0]
        if seed == 0:
            after[3] = -before[3]
        moved = tables.histograms(before, theta, 1.5, bins) - tables.histograms(after, theta, 1.5, bins)
        largest = max(largest, float(moved.norm()))
    assert 0.5 * math.sqrt(2 * k) < largest <= tables.table_sensitivity(k).value


def test_the_tables_sensitivity_is_attained_by_a_record_that_changes_bins_in_every_direction():
    theta = draw(3, 12)
    before = outputs(5, 3)
    before[0], after = torch.tensor([1.0, 0.5, 0.3], dtype=torch.float64), before.clone()
    after[0] = -before[0]
    moved = tables.histograms(before, theta, 1.5, 1000) - tables.histograms(after, theta, 1.5, 1000)
    assert float(moved.norm()) == pytest.approx(tables.table_sensitivity(12).value, rel=1e-12)


def test_every_record_is_counted_once_in_every_direction_also_on_the_edge_of_the_ball():
    theta = draw(2, 4)
    edge = torch.tensor([[1.5, 0.0], [-1.5, 0.0], [0.0, 1.5], [0.0, -1.5]], dtype=torch.float64)
    counts = tables.histograms(torch.cat([edge, outputs(20, 2)]), theta, 1.5, 7)
    assert torch.equal(counts.sum(dim=1), torch.full((4,), 24.0, dtype=torch.float64))
    assert tables.bin_of(torch.tensor([-1.5, -0.001, 0.0, 1.5]), 1.5, 4).tolist() == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.floats(0.01, 300.0))
def test_making_a_noisy_table_monotone_never_enlarges_the_largest_error_of_its_ranks(seed, sigma):
    generator = torch.Generator().manual_seed(seed)
    true = torch.randint(0, 30, (4, 16), generator=generator).to(torch.float64)
    true[:, 0] += 500 - true.sum(dim=1)
    noisy = true + sigma * torch.randn((4, 16), generator=generator, dtype=torch.float64)
    found = tables.monotone(noisy, 500.0)
    assert float(found.min()) >= 0 and torch.allclose(found.sum(dim=1), torch.full((4,), 500.0, dtype=torch.float64))
    even = noisy + (500 - noisy.sum(dim=1, keepdim=True)) / 16
    error = (even.cumsum(1) - true.cumsum(1)).abs().amax(dim=1)
    assert ((found.cumsum(1) - true.cumsum(1)).abs().amax(dim=1) <= error * (1 + 1e-12) + 1e-9).all()


def test_a_table_without_noise_stays_as_it_is():
    counts = tables.histograms(outputs(40, 3), draw(3, 6), 1.5, 8)
    assert torch.allclose(tables.monotone(counts, 40.0), counts, atol=1e-12)


def _quantile_means(own: list[float], other: list[float], radius: float) -> list[float]:
    """Slot means of one direction by brute force: the other's quantile function sampled at a million ranks."""
    bins = len(own)
    centres = [(b + 0.5) * 2 * radius / bins - radius for b in range(bins)]
    grid = (torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000
    other_ranks = torch.tensor(other, dtype=torch.float64).cumsum(0) / sum(other)
    quantile = torch.tensor(centres, dtype=torch.float64)[torch.searchsorted(other_ranks, grid).clamp(max=bins - 1)]
    edges = [0.0]
    for count in own:
        edges.append(edges[-1] + count / sum(own))
    means = []
    for low, high in zip(edges, edges[1:], strict=False):
        inside = (grid > low) & (grid < high)
        means.append(float(quantile[inside].mean()) if inside.any() else math.nan)
    return means


def test_slot_means_are_means_of_the_others_quantiles_over_the_bins_ranks():
    generator = torch.Generator().manual_seed(3)
    own = torch.randint(0, 6, (3, 9), generator=generator).to(torch.float64)
    other = torch.randint(0, 4, (3, 9), generator=generator).to(torch.float64)
    own[:, 4], other[:, 0], other[:, 8] = 0.0, 0.0, 0.0
    other[:, 3] = 7.5
    found = tables.slot_means(own, other, 2.0)
    compared = 0
    for row in range(3):
        expected = _quantile_means(own[row].tolist(), other[row].tolist(), 2.0)
        for mine, naive, count in zip(found[row].tolist(), expected, own[row].tolist(), strict=True):
            assert math.isnan(naive) == (count == 0), "an empty bin has no rank between its edges, and no other"
            if count:
                assert mine == pytest.approx(naive, abs=1e-4)
                compared += 1
    assert compared == int((own > 0).sum()) > 15


def test_equal_distributions_see_themselves_and_empty_bins_see_the_quantile_at_their_rank():
    counts = torch.tensor([[0.0, 4.0, 0.0, 2.0, 0.0]], dtype=torch.float64)
    found = tables.slot_means(counts, counts, 1.0)[0]
    centres = torch.linspace(-0.8, 0.8, 5, dtype=torch.float64)
    assert torch.allclose(found[[1, 3]], centres[[1, 3]])
    assert found[[0, 4]].tolist() == pytest.approx(centres[[1, 3]].tolist())
    assert (found.diff() >= -1e-12).all()


@pytest.mark.parametrize("objective", [PARITY, THREE_GROUPS, ODDS])
def test_without_noise_cotangents_converge_to_exact_rank_matching_as_bins_grow(objective):
    theta = draw(2, 4)
    cells = [outputs(30 + 7 * cell, 2, seed=cell) for cell in range(len(objective.cells))]
    exact = torch.cat(objective.cotangents(cells, theta))
    errors = []
    for bins in (16, 256, 4096, 2**16):
        counts = [tables.histograms(cell, theta, 1.5, bins) for cell in cells]
        found = tables.matched(counts, objective, 1.5)
        q = torch.cat(
            [
                tables.cotangents(cell, theta, found[c], objective, cell=c, size=len(cell), radius=1.5)
                for c, cell in enumerate(cells)
            ]
        )
        errors.append(float((q - exact).norm() / exact.norm()))
    assert errors[0] > errors[1] > errors[2] and errors[0] < 0.5
    assert errors[3] < 1e-3


@pytest.mark.parametrize("objective", [PARITY, THREE_GROUPS, ODDS])
@pytest.mark.parametrize(("d", "k", "scheme"), [(1, 1, "iid"), (2, 3, "iid"), (3, 12, "orthogonal")])
def test_whatever_table_the_server_sends_no_cotangent_exceeds_its_bound(objective, d, k, scheme):
    theta = draw(d, k, scheme=scheme)
    covered = 1.0 if d == 1 else sliced.spread(theta)
    generator = torch.Generator().manual_seed(1)
    bound = tables.cotangent_bound(objective, cell=1, size=10, radius=1.5, spread=covered)
    largest = 0.0
    for trial in range(200):
        points = outputs(6, d, trial) if trial % 2 else 1.5 * torch.nn.functional.normalize(outputs(6, d, trial))
        table = 1.5 * torch.sign(torch.randn((k, 8), generator=generator, dtype=torch.float64))
        if trial % 3 == 0:
            slices = points[:1] @ theta
            table[:] = -1.5 * torch.sign(slices).T
        if trial == 5:
            table[:] = torch.tensor(float("nan"))
        if trial == 6:
            table *= 1e9
        q = tables.cotangents(points, theta, table, objective, cell=1, size=10, radius=1.5)
        assert torch.isfinite(q).all()
        largest = max(largest, float(q.norm(dim=1).max()))
    assert 0.5 * bound < largest <= bound * (1 + 1e-12)


def test_in_one_dimension_the_cotangents_bound_is_attained():
    theta = torch.ones((1, 1), dtype=torch.float64)
    table = torch.full((1, 4), -1.5, dtype=torch.float64)
    q = tables.cotangents(torch.tensor([[1.5]], dtype=torch.float64), theta, table, PARITY, cell=0, size=10, radius=1.5)
    assert float(q) == pytest.approx(tables.cotangent_bound(PARITY, cell=0, size=10, radius=1.5, spread=1.0))


def _contribution(points: Tensor, jacobians: Tensor, losses: Tensor, table: Tensor, theta: Tensor) -> Tensor:
    """Sum of clipped Jacobians on table cotangents, and clipped loss gradients: explicit, (r,)."""
    q = tables.cotangents(points, theta, table, PARITY, cell=0, size=12, radius=CLIP.output)
    return torch.einsum("nd,ndr->r", q, jacobians) + (1 - PARITY.alpha) / 20 * losses.sum(dim=0)


@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 2), (3, 9)])
def test_given_the_tables_replacing_one_record_never_moves_a_contribution_beyond_its_sensitivity(d, k):
    """Random and adversarial: tables, outputs, Jacobians of norm L and loss gradients of norm C."""
    theta, r, n = draw(d, k), 4, 5
    covered = 1.0 if d == 1 else sliced.spread(theta)
    claimed = tables.contribution_sensitivity(PARITY, [12, 8], CLIP, cell=0, spread=covered).value
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    largest = 0.0
    for trial in range(400):
        points = CLIP.output * torch.nn.functional.normalize(normal(n, d))
        table = CLIP.output * (2 * torch.rand((k, 6), generator=generator, dtype=torch.float64) - 1)
        if trial % 2:
            table = -CLIP.output * torch.sign(points[:1] @ theta).T.expand(k, 6)
        isometries = torch.linalg.svd(normal(n, d, r), full_matrices=False)
        jacobians = CLIP.jacobian * isometries.U @ isometries.Vh
        losses = CLIP.loss * torch.nn.functional.normalize(normal(n, r))
        replaced = [points.clone(), jacobians.clone(), losses.clone()]
        if trial % 4 < 2:
            q = tables.cotangents(points[:1], theta, table, PARITY, cell=0, size=12, radius=CLIP.output)
            along = torch.nn.functional.normalize(q)[0]
            e = torch.nn.functional.one_hot(torch.tensor(0), r).to(torch.float64)
            jacobians[0], losses[0] = CLIP.jacobian * along[:, None] * e, CLIP.loss * e
            replaced = [points.clone(), jacobians.clone(), losses.clone()]
            replaced[1][0], replaced[2][0] = -jacobians[0], -losses[0]
        else:
            replaced[0][0] = sliced.project(normal(1, d), CLIP.output)[0]
            replaced[1][0], replaced[2][0] = -jacobians[1], losses[1]
        moved = _contribution(points, jacobians, losses, table, theta) - _contribution(*replaced, table, theta)
        largest = max(largest, float(moved.norm()))
    assert 0.75 * claimed < largest <= claimed * (1 + 1e-12)
    if d == 1:
        assert largest == pytest.approx(claimed, rel=1e-9)


def test_table_and_contribution_on_one_batch_are_one_step_where_two_steps_would_claim_too_little():
    """mu = 1 each, p = 0.01, 1000 rounds: compose on the batch first, amplify by its sampling after."""
    joint = epsilon({Step(0.01, math.hypot(1.0, 1.0)): 1000}, 1e-5)
    separate = epsilon({Step(0.01, 1.0): 2000}, 1e-5)
    assert joint == pytest.approx(5.14, abs=0.01) and separate == pytest.approx(3.20, abs=0.01)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_an_attempt_is_charged_as_one_step_of_the_calibrated_multiplier(share):
    experiment = small("privacy.trust=local-gradient", "privacy.noise_multiplier=2.0", f"local.table_share={share}")
    found = split.budget_split(experiment, rate=0.2, delta=1e-4)
    noise = split.noise(found, PARITY, CLIP, sizes=[30, 20], own_sizes=[3, 4], spread=0.5, k=6)
    charge = noise.charge(found.rate)
    assert charge.sensitivity / noise.contribution == pytest.approx(1 / 2.0, rel=1e-12)
    worst = SLACK * tables.contribution_sensitivity(PARITY, [30, 20], CLIP, cell=1, spread=0.5).value
    mu = math.hypot(worst / noise.contribution, tables.table_sensitivity(6).value / noise.table)
    assert mu == pytest.approx(1 / 2.0, rel=1e-12)
    assert found.epsilon == epsilon({Step(0.2, 0.5): experiment.training.rounds}, 1e-4)


def test_the_noise_is_for_the_cell_whose_records_move_a_contribution_most_however_few_the_client_holds():
    """Of a batch of 60 and 10 records: one of the ten moves six times as much."""
    experiment = small("privacy.trust=local-gradient", "privacy.noise_multiplier=2.0")
    found = split.budget_split(experiment, rate=0.2, delta=1e-4)
    few, many, only = (
        split.noise(found, PARITY, CLIP, sizes=[60, 10], own_sizes=own, spread=1.0, k=1)
        for own in ([30, 1], [1, 9], [30, 0])
    )
    worst = SLACK * tables.contribution_sensitivity(PARITY, [60, 10], CLIP, cell=1, spread=1.0).value
    for noise in (few, many):
        assert noise.contribution == pytest.approx(worst / found.contribution, rel=1e-12)
    assert only.contribution < few.contribution


def test_the_parts_of_a_round_s_budget_add_up_to_the_calibrated_step():
    experiment = small("privacy.trust=local-gradient", "privacy.epsilon=2.0", "local.table_share=0.25")
    share = split.budget_split(experiment, rate=0.2, delta=1e-4)
    assert share.table**2 + share.contribution**2 == pytest.approx(share.rounds**-2, rel=1e-12)
    assert share.table**2 == pytest.approx(0.25 * share.rounds**-2)
    assert share.epsilon == 2.0


def test_histograms_of_many_holders_are_those_of_each_alone():
    outputs, directions = torch.randn(200, 3, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    owner = torch.randint(0, 6, (200,))
    owner[owner == 2] = 3  # who holds nothing has counts of 0
    found = tables.histograms_by(outputs, owner, 6, directions, 1.5, 8)
    for holder in range(6):
        own = tables.histograms(outputs[owner == holder], directions, 1.5, 8)
        assert torch.equal(found[holder], own) and own.sum() == 5 * (owner == holder).sum()
