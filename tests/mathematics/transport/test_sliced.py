"""Laws of directions, rank matching, cotangents and sliced distances."""

from __future__ import annotations

import functools
import math
import weakref

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedsw.mathematics.transport import ranks, sliced

ONE = torch.ones((1, 1), dtype=torch.float64)
SIZES = [(1, 1), (5, 5), (7, 3), (3, 7), (12, 8), (40, 31)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(d: int, k: int, *, scheme: sliced.Scheme = "orthogonal", seed: int = 1) -> Tensor:
    shape = sliced.direction_shape(d, k, scheme)
    return sliced.directions(d, k, normals=normal(*shape, seed=seed), scheme=scheme)


def naive_slot_means(own: list[float], other: list[float]) -> list[float]:
    """Means of the other quantile function over the slots, by loops over overlaps; tied values share."""
    n, m = len(own), len(other)
    ranked = sorted(other)
    slots = [
        sum(n * max(0.0, min((i + 1) / n, (j + 1) / m) - max(i / n, j / m)) * ranked[j] for j in range(m))
        for i in range(n)
    ]
    order = sorted(own)
    return [math.fsum(slots[i] for i in range(n) if order[i] == value) / order.count(value) for value in own]


@pytest.mark.parametrize(("d", "k"), [(2, 2), (2, 50), (3, 9), (6, 6), (64, 64)])
def test_orthogonal_blocks_cover_every_axis_equally(d: int, k: int) -> None:
    theta = draw(d, k)
    torch.testing.assert_close(theta @ theta.T / k, torch.eye(d, dtype=torch.float64) / d, rtol=0, atol=1e-12)
    assert sliced.spread(theta) == pytest.approx(1 / d, abs=1e-12)
    assert sliced.orthogonal_spread(d, k) == 1 / d


@pytest.mark.parametrize(("d", "k"), [(3, 1), (3, 2), (3, 7), (6, 50)])
def test_partial_blocks_have_the_announced_spread_and_unit_columns(d: int, k: int) -> None:
    theta = draw(d, k)
    assert theta.shape == (d, k)
    assert sliced.spread(theta) == pytest.approx(sliced.orthogonal_spread(d, k), abs=1e-12)
    torch.testing.assert_close(theta.norm(dim=0), torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-12)


def test_orthogonal_blocks_are_haar_by_the_sign_fix() -> None:
    normals = normal(4, 12)
    theta = sliced.directions(4, 12, normals=normals)
    for block in range(3):
        columns = slice(4 * block, 4 * block + 4)
        r = theta[:, columns].T @ normals[:, columns]
        torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), rtol=0, atol=1e-12)
        assert (torch.diagonal(r) > 0).all()
    first = normals[:, 0] / normals[:, 0].norm()
    torch.testing.assert_close(theta[:, 0], first, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("d", "k", "whole"), [(5, 2, 0), (5, 8, 5)])
def test_a_partial_block_is_the_first_columns_of_a_whole_one(d: int, k: int, whole: int) -> None:
    normals = normal(d, d + whole)
    assert sliced.direction_shape(d, k) == (d, k)
    theta = sliced.directions(d, k, normals=normals[:, :k])
    torch.testing.assert_close(theta, sliced.directions(d, d + whole, normals=normals)[:, :k], rtol=0, atol=1e-12)


def test_independent_directions_are_normalised_normals_and_one_dimension_needs_no_draw() -> None:
    normals = normal(3, 5)
    theta = sliced.directions(3, 5, normals=normals, scheme="iid")
    torch.testing.assert_close(theta, normals / normals.norm(dim=0))
    assert torch.equal(sliced.directions(1, 3), torch.ones((1, 3), dtype=torch.float64))
    assert torch.equal(sliced.directions(1, 2, normals=normal(1, 2)), torch.ones((1, 2), dtype=torch.float64))


def test_bad_requests_for_directions_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 6\).*take \(3, 4\)"):
        sliced.directions(3, 4, normals=normal(3, 6))
    with pytest.raises(ValueError, match="need standard normals"):
        sliced.directions(2, 2)
    with pytest.raises(ValueError, match="k = 0"):
        sliced.direction_shape(2, 0)
    with pytest.raises(ValueError, match="'haar' is unknown"):
        sliced.direction_shape(2, 2, "haar")  # type: ignore[arg-type]


def test_projection_lands_in_the_ball_and_keeps_what_is_inside() -> None:
    outputs = torch.cat([normal(50, 3) * 2, torch.zeros(1, 3, dtype=torch.float64)])
    inside = outputs.norm(dim=1) <= 1.5
    projected = sliced.project(outputs, 1.5)
    assert torch.equal(projected[inside], outputs[inside])
    expected = outputs[~inside] * 1.5 / outputs[~inside].norm(dim=1, keepdim=True)
    torch.testing.assert_close(projected[~inside], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(sliced.project(projected, 1.5), projected, rtol=1e-15, atol=0)


def test_projection_ties_saturated_values_and_zeroes_rows_that_are_not_finite() -> None:
    saturated = sliced.project(torch.tensor([[7.3], [-0.9], [1e30], [1.1]]), 0.7)
    assert saturated.flatten().tolist() == [0.7, -0.7, 0.7, 0.7]
    odd = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [1e200, 1e200], [0.1, 0.0]], dtype=torch.float64)
    projected = sliced.project(odd, 1.0)
    assert torch.equal(projected[:2], torch.zeros(2, 2, dtype=torch.float64))
    assert projected[2].norm().item() == pytest.approx(1.0)
    assert projected[3].tolist() == [0.1, 0.0]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.3, 0.31, 1.0]), min_size=1, max_size=9),
    st.lists(st.sampled_from([-1.0, -0.7, 0.0, 0.2, 0.4, 1.0]), min_size=1, max_size=9),
)
def test_slot_means_equal_a_loop_over_overlapping_slots(own: list[float], other: list[float]) -> None:
    means = sliced.slot_means(torch.tensor(own)[:, None], torch.tensor(other)[:, None])
    exact = [float(x) for x in torch.tensor(own)], [float(x) for x in torch.tensor(other)]
    torch.testing.assert_close(
        means.flatten(), torch.tensor(naive_slot_means(*exact), dtype=torch.float64), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("ties", ["shared", "stable"])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_slot_means_keep_the_mean_and_the_order(n: int, m: int, ties: sliced.Ties) -> None:
    own, other = normal(n, 4).round(decimals=1), normal(m, 4, seed=3)
    means = sliced.slot_means(own, other, ties=ties)
    torch.testing.assert_close(means.mean(dim=0), other.mean(dim=0), rtol=0, atol=1e-13)
    ranked = means.gather(0, torch.sort(own, dim=0, stable=True).indices)
    assert (ranked.diff(dim=0) >= -1e-13).all()


def test_equal_sizes_match_sorted_values() -> None:
    own, other = normal(30, 2), normal(30, 2, seed=5)
    means = sliced.slot_means(own, other).gather(0, own.argsort(dim=0))
    torch.testing.assert_close(means, other.sort(dim=0).values, rtol=0, atol=1e-13)


def test_stable_ties_take_their_slots_in_row_order() -> None:
    own = torch.zeros((5000, 1), dtype=torch.float64)
    own[::2] = 1.0
    other = torch.arange(5000, dtype=torch.float64)[:, None]
    means = sliced.slot_means(own, other, ties="stable")
    expected = torch.empty_like(own)
    expected[1::2], expected[::2] = other[:2500], other[2500:]
    assert torch.equal(means, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 33, 50_000])
def test_the_order_is_that_of_a_stable_sort_whatever_is_tied(n: int, threads: int) -> None:
    before, smooth = torch.get_num_threads(), normal(4, n)
    torch.set_num_threads(threads)
    try:
        tied = (smooth.round(decimals=1), smooth.clamp(-0.5, 0.5), torch.zeros_like(smooth), smooth.sign())
        for rows in (smooth, *tied):
            found, expected = ranks.ranked(rows, "stable"), torch.sort(rows, dim=-1, stable=True)
            assert torch.equal(found.values, expected.values) and torch.equal(found.order, expected.indices)
            assert torch.equal(ranks.sort_rows(rows), expected.values)
            first, end = ranks.blocks(found.values)
            assert torch.equal(first, torch.searchsorted(found.values, found.values))
            assert torch.equal(end, torch.searchsorted(found.values, found.values, right=True))
            anyhow = ranks.ranked(rows, "shared")
            assert torch.equal(anyhow.values, expected.values) and torch.equal(
                rows.gather(-1, anyhow.order), found.values
            )
            assert torch.equal(anyhow.order.sort(dim=-1).values, torch.arange(n).expand(4, n))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("d", "k"), [(2, 4), (5, 30), (10, 33), (100, 100)])
def test_equal_points_are_tied_in_every_direction_wherever_they_stand(d: int, k: int) -> None:
    own = normal(1, d).expand(37, d)
    other = normal(37, d, seed=2)
    theta = draw(d, k)
    for limit in (1, 10_000, 2**28):
        q_own, _ = sliced.cotangents(own, other, theta, memory_limit=limit)
        expected = 2 / 37 * theta @ (theta.T @ own[0] - theta.T @ other.mean(dim=0)) / k
        torch.testing.assert_close(q_own, expected.expand(37, d), rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [9, 16, 100, 784])
def test_projections_of_many_coordinates_are_the_same_in_whatever_order_they_are_added(d: int) -> None:
    """The parts of points and directions at their longest, all of one sign: what would be rounded first."""
    bits = (54 - math.ceil(math.log2(d))) // 2
    theta = ((draw(d, 40).abs() * 2.0**bits).floor() + 0.4999) / 2.0**bits
    points = 1 - normal(d, 61).abs().clamp(max=1) * 1e-3
    points *= 2.0 ** torch.arange(-300, 310, 10, dtype=torch.float64)
    slices, order = sliced._slices(points, theta), torch.randperm(d, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sliced._slices(points[order], theta[order]), slices)
    assert torch.equal(sliced._slices(points[:, 3:4], theta), slices[:, 3:4])
    exact = torch.from_numpy((theta.T.numpy().astype(np.longdouble) @ points.numpy()).astype(np.float64))
    assert float(((slices - exact) / points.amax(dim=0)).abs().max()) <= d * 4.0**-bits


@pytest.mark.parametrize(("n", "m"), [(300, 300), (300, 211)])
def test_a_distance_in_single_precision_is_pots_to_a_millionth(n: int, m: int) -> None:
    own, other, theta = normal(n, 50) + 1, normal(m, 50, seed=7) * 1.1 + 1.2, draw(50, 100)
    reference = ot.sliced_wasserstein_distance(own, other, projections=theta, p=2)
    for points in (own, own.float()):
        found = sliced.sliced_w2(points, other, theta, dtype=torch.float32)
        assert found.dtype == torch.float64 and float(found.sqrt()) == pytest.approx(float(reference), rel=1e-6)
    assert float(sliced.sliced_w2(own, own.flip(0), theta, dtype=torch.float32).sqrt()) < 1e-6


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize(("d", "k", "scheme"), [(1, 1, "iid"), (2, 6, "orthogonal"), (4, 7, "iid")])
def test_cotangents_and_values_equal_autograd_through_pot(
    n: int, m: int, d: int, k: int, scheme: sliced.Scheme
) -> None:
    own, other = normal(n, d).requires_grad_(), (normal(m, d, seed=7) * 1.7 + 0.3).requires_grad_()
    theta = draw(d, k, scheme=scheme)
    reference = ot.sliced_wasserstein_distance(own, other, projections=theta, p=2) ** 2
    reference.backward()
    q_own, q_other = sliced.cotangents(own, other, theta)
    torch.testing.assert_close(q_own, own.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(q_other, other.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sliced.sliced_w2(own, other, theta), reference.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("order", [2.0, 2.5, 3.0, 6.0])
def test_cotangents_of_every_order_equal_autograd_through_pot(n: int, m: int, order: float) -> None:
    own, other = normal(n, 2).requires_grad_(), (normal(m, 2, seed=7) * 1.7 + 0.3).requires_grad_()
    theta = draw(2, 6)
    (ot.sliced_wasserstein_distance(own, other, projections=theta, p=order) ** order).backward()
    q_own, q_other = sliced.cotangents(own, other, theta, order=order)
    torch.testing.assert_close(q_own, own.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(q_other, other.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_one_dimensional_distance_equals_pot(n: int, m: int) -> None:
    own, other = normal(n), normal(m, seed=4) - 0.5
    reference = ot.wasserstein_1d(own, other, p=2)
    torch.testing.assert_close(sliced.sliced_w2(own[:, None], other[:, None], ONE), reference, rtol=1e-12, atol=1e-14)


def test_a_translation_costs_its_squared_length_over_the_dimension() -> None:
    own, shift = normal(25, 3), torch.tensor([0.3, -1.0, 0.2], dtype=torch.float64)
    theta = draw(3, 9)
    assert float(sliced.sliced_w2(own, own + shift, theta)) == pytest.approx(float(shift @ shift) / 3, abs=1e-14)
    q_own, q_other = sliced.cotangents(own, own + shift, theta)
    torch.testing.assert_close(q_own, (-2 / 75 * shift).expand(25, 3), rtol=0, atol=1e-14)
    torch.testing.assert_close(q_other, -q_own, rtol=0, atol=1e-14)


def test_a_permutation_costs_nothing_and_diracs_cost_their_spread() -> None:
    points, theta = normal(20, 2), draw(2, 10)
    assert float(sliced.sliced_w2(points, points.flip(0), theta)) == pytest.approx(0, abs=1e-14)
    dirac = torch.zeros((1, 2), dtype=torch.float64)
    expected = float(points.square().sum()) / 20 / 2
    assert float(sliced.sliced_w2(points, dirac, theta)) == pytest.approx(expected, rel=1e-13)
    assert float(sliced.sliced_w2(dirac, dirac, theta)) == 0


def test_gaussians_of_one_covariance_shape_differ_by_their_standard_deviations() -> None:
    quantiles = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    assert float(sliced.sliced_w2(quantiles[:, None], 3 * quantiles[:, None] + 1, ONE)) == pytest.approx(5.0, rel=2e-3)


@pytest.mark.parametrize("order", [2.0, 3.0])
@pytest.mark.parametrize("ties", ["shared", "stable"])
def test_cotangents_sum_to_zero_and_do_not_see_a_common_translation(ties: sliced.Ties, order: float) -> None:
    own, other, theta = normal(9, 2).round(), normal(14, 2, seed=8).round(), torch.eye(2).double()
    q_own, q_other = sliced.cotangents(own, other, theta, ties=ties, order=order)
    total = q_own.sum(dim=0) + q_other.sum(dim=0)
    torch.testing.assert_close(total, torch.zeros(2).double(), rtol=0, atol=1e-14)
    p_own, p_other = sliced.cotangents(own + 0.25, other + 0.25, theta, ties=ties, order=order)
    torch.testing.assert_close(p_own, q_own, rtol=0, atol=1e-14)
    torch.testing.assert_close(p_other, q_other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("order", [2.0, 3.0])
def test_permuting_the_records_permutes_the_cotangents(order: float) -> None:
    own, other, theta = normal(16, 2).round(), normal(11, 2, seed=8).round(), draw(2, 4)
    rows = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    q_own, q_other = sliced.cotangents(own, other, theta, order=order)
    p_own, p_other = sliced.cotangents(own[rows], other, theta, order=order)
    torch.testing.assert_close(p_own, q_own[rows], rtol=0, atol=1e-14)
    torch.testing.assert_close(p_other, q_other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("limit", [1, 3000, 20_000])
def test_chunks_of_directions_change_nothing(limit: int) -> None:
    own, other, theta = normal(23, 3), normal(17, 3, seed=9), draw(3, 21)
    whole, chunked = (sliced.cotangents(own, other, theta, memory_limit=size) for size in (2**28, limit))
    for q, p in zip(whole, chunked, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-15)
    means, parts = (sliced.slot_means(own @ theta, other @ theta, memory_limit=s) for s in (2**28, limit))
    assert torch.equal(means, parts)
    values = [float(sliced.sliced_w2(own, other, theta, memory_limit=size)) for size in (2**28, limit)]
    assert values[0] == pytest.approx(values[1], abs=1e-15)


class _LiveBytes(TorchDispatchMode):
    """Peak of the bytes held by the storages that operations create while the mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if key and key not in self.seen:
            self.seen[key] = storage.nbytes()
            self.live += self.seen[key]
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live -= self.seen.pop(key, 0)


@pytest.mark.parametrize(("n", "m"), [(2000, 2000), (2000, 1999), (3000, 20), (20, 3000)])
def test_working_memory_stays_below_its_limit(n: int, m: int) -> None:
    own, other, theta = normal(n, 2), normal(m, 2, seed=9), draw(2, 64)
    limit = 4_000_000
    with _LiveBytes() as unlimited:
        sliced.cotangents(own, other, theta)
    for call in (sliced.cotangents, functools.partial(sliced.cotangents, order=3.0), sliced.sliced_w2):
        with _LiveBytes() as memory:
            call(own, other, theta, memory_limit=limit)
        assert memory.peak < limit < unlimited.peak


def test_single_precision_samples_are_matched_in_double_precision() -> None:
    own, other, theta = normal(9, 2).float(), normal(7, 2, seed=3).float(), draw(2, 4)
    for q, p in zip(
        sliced.cotangents(own, other, theta),
        sliced.cotangents(own.double(), other.double(), theta),
        strict=True,
    ):
        assert q.dtype == torch.float64
        assert torch.equal(q, p)


def test_samples_that_cannot_be_compared_are_refused() -> None:
    theta = draw(2, 4)
    with pytest.raises(ValueError, match="sample is empty"):
        sliced.cotangents(normal(0, 2), normal(3, 2), theta)
    with pytest.raises(ValueError, match=r"shapes sample \(4, 3\) and other \(3, 2\)"):
        sliced.cotangents(normal(4, 3), normal(3, 2), theta)
    with pytest.raises(ValueError, match=r"directions have shape \(2, 4\) for outputs of dimension 3"):
        sliced.sliced_w2(normal(4, 3), normal(3, 3), theta)
    with pytest.raises(ValueError, match="ties 'random' is unknown"):
        sliced.slot_means(normal(2, 1), normal(2, 1), ties="random")  # type: ignore[arg-type]


def test_results_are_the_same_bits_on_however_many_threads(monkeypatch) -> None:
    monkeypatch.setattr(sliced, "_IN_CACHE", 2**13)
    monkeypatch.setattr(sliced, "_WORTH_THREADS", 0)
    own, other = (torch.randint(0, 300, (n, 3)).double() / 7 for n in (1000, 800))
    theta = sliced.directions(3, 40, normals=torch.randn(3, 40, dtype=torch.float64))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append((*sliced.cotangents(own, other, theta), sliced.slot_means(own, other)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, first) for each in found[1:] for one, first in zip(each, found[0], strict=True))


def test_every_part_is_worked_on_once_and_what_a_thread_raises_is_raised(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    parts, done = [slice(i, i + 1) for i in range(50)], []
    ranks.share_out(
        lambda part: ranks.share_out(lambda inner: done.append((part.start, inner.start)), parts[:2]), parts
    )
    assert sorted(done) == [(i, j) for i in range(50) for j in range(2)]

    def fails(part: slice) -> None:
        if part.start == 40:
            raise ArithmeticError("part 40")

    with pytest.raises(ArithmeticError, match="part 40"):
        ranks.share_out(fails, parts)
