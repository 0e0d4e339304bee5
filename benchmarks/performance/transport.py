"""Sliced distances and their cotangents, against POT and against one sort of the same numbers.

Cotangents are compared with `torch.sort` of one side's (k, n) array, though both sides' are sorted, and with POT's
distance and autograd. Distances of pictures are compared with POT on the same tensors, and on the same numpy arrays.
Before anything is timed the two sides' results are compared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.performance.comparing import Row, at_most, faster, sides
from fedsw.mathematics.transport import sliced

_DIRECTIONS = 100
_RANKS = "both sides are sorted with their order, which takes longer than values alone, and their ties are looked for"
_PROJECTION = "projections are four exact matrix products, which keep equal points tied, and the sort is of both sides"


def measure(quick: bool) -> list[Row]:
    """Rows of the cotangents by n and d, and of one distance of pictures."""
    rows = []
    cases = [(1_000, 2), (10_000, 2), (10_000, 10), (100_000, 2), (1_000, 10), (1_000, 100), (10_000, 100)]
    for n, d in [case for case in cases if case[0] == 1_000] if quick else [*cases, (100_000, 10), (1_000_000, 2)]:
        rows += _cotangents(n, d, turns=1 if quick else 2 if n >= 100_000 else 7)
    return [*rows, *_distance(200 if quick else 10_000, 784, turns=1 if quick else 5)]


def points(n: int, d: int, seed: int) -> Tensor:
    """n standard normal points of R^d, a third of their coordinates cut to one value: ties as clipped outputs have."""
    drawn = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.clamp_(max=0.4)


def directions(d: int, k: int = _DIRECTIONS) -> Tensor:
    """k orthogonal directions of R^d."""
    shape = sliced.direction_shape(d, k)
    normals = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return sliced.directions(d, k, normals=normals)


def _cotangents(n: int, d: int, *, turns: int) -> list[Row]:
    own, other, theta = points(n, d, 0), points(n, d, 2) + 0.1, directions(d)
    slices = (own @ theta).T.contiguous()
    ours = {"ours": lambda: sliced.cotangents(own, other, theta)}
    what = f"cotangents of both sides, n = {n} each, d = {d}, k = {_DIRECTIONS}"
    note = _RANKS if d <= 10 else _PROJECTION
    times = sides({**ours, "other": lambda: torch.sort(slices, dim=-1)}, turns=turns)
    goal = 2.2 if n == 1_000 and d <= 10 else 2.5
    rows = [at_most(what, f"torch.sort of one ({_DIRECTIONS}, {n}) array", times, goal=goal, note=note)]
    if n <= 100_000:
        smooth = torch.randn(n, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        _require_near(sliced.cotangents(smooth, other, theta)[0], _by_autograd(smooth, other, theta)[0])
        times = sides({**ours, "other": lambda: _by_autograd(own, other, theta)}, turns=turns)
        rows.append(faster(what, "POT's distance and autograd", times, goal=3.0, note=note))
    return rows


def _by_autograd(own: Tensor, other: Tensor, theta: Tensor) -> tuple[Tensor, ...]:
    import ot

    own, other = own.detach().requires_grad_(), other.detach().requires_grad_()
    distance = ot.sliced_wasserstein_distance(own, other, projections=theta, p=2)
    return torch.autograd.grad(distance**2, (own, other))


def _distance(n: int, d: int, *, turns: int) -> list[Row]:
    import ot

    own, other, theta = points(n, d, 0), points(n, d, 2) + 0.1, directions(d)[:, :_DIRECTIONS]
    arrays = own.numpy(), other.numpy()
    ways = {
        "ours": lambda: float(sliced.sliced_w2(own, other, theta, dtype=torch.float32)) ** 0.5,
        "tensors": lambda: float(ot.sliced_wasserstein_distance(own, other, projections=theta, p=2)),
        "arrays": lambda: float(ot.sliced_wasserstein_distance(*arrays, projections=theta.numpy(), p=2)),
    }
    values = [side() for side in ways.values()]
    if max(values) - min(values) > 1e-6:
        raise AssertionError(f"distances {values} differ by more than 1e-6")
    times = sides(ways, turns=turns)
    what = f"SW2 of {n} x {d}, k = {theta.shape[1]}, {torch.get_num_threads()} thread(s)"
    note = "two products of (n, d) with the directions, in float32, take most of ours, and the sorts the rest"
    return [
        faster(what, f"POT on {kind}", {"ours": times["ours"], "other": times[kind]}, goal=10.0, note=note)
        for kind in ("tensors", "arrays")
    ]


def _require_near(ours: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-9 * float(other.abs().max()))
