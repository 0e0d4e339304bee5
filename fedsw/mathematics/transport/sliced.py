"""Sliced Wasserstein distances between samples of any two sizes: directions, ranks, cotangents, values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from fedsw._tools.randomness import Label, Stream
from fedsw._tools.settings import whole
from fedsw.mathematics.transport.given import matrix, positive, sample, samples, unit_columns
from fedsw.mathematics.transport.order import require_penalty_order
from fedsw.mathematics.transport.ranks import Ties as Ties
from fedsw.mathematics.transport.ranks import (
    means_by_rank,
    means_of_slots,
    powers_by_rank,
    ranked,
    share_out,
    sort_rows,
)

Scheme = Literal["orthogonal", "iid"]

DEFAULT_MEMORY_LIMIT = 256 * 2**20

# 8-byte arrays alive at the same time, of a direction that is worked on, per sample of either side (a measured bound).
_BYTES_PER_SAMPLE = 8 * 14

# Coordinates whose products are added one by one; of more, exact matrix products take less time.
_FEW = 8

# Numbers of one array that is worked on: some of them are in a core's second-level cache.
_IN_CACHE = 2**17

# Numbers of both sides in all directions from which threads gain more than it takes to wake them.
_WORTH_THREADS = 2**20


def direction_shape(d: int, k: int, scheme: Scheme = "orthogonal") -> tuple[int, int]:
    """Return the shape (d, k) of the standard normals that `directions` turns into k directions of R^d."""
    d, k = whole(d, "d", least=1), whole(k, "k", least=1)
    if scheme not in ("orthogonal", "iid"):
        raise ValueError(f"directions scheme {scheme!r} is unknown: choose 'orthogonal' or 'iid'.")
    return d, k


def directions(d: int, k: int, *, normals: Tensor | None = None, scheme: Scheme = "orthogonal") -> Tensor:
    """Turn standard normals into k unit directions of R^d, the columns of a (d, k) float64 tensor.

    "orthogonal" takes the Q of the QR decomposition of every block of d columns, with the signs that make the
    diagonal of R positive: each block is Haar-distributed, each column uniform on the sphere, and for k a
    multiple of d, directions @ directions.T / k is I/d. A last block of fewer columns is decomposed as it is: it has
    the law of as many columns of a whole one, at a cost that follows k, not d. "iid" normalises the columns. In
    dimension 1 there is one direction up to sign, and all are 1.

    Guarantee: the result depends on `normals` only. Sensitivities (docs/guarantees/sensitivity.md) need directions
    that are drawn independently of the data.

    The normals, finite, have the shape of `direction_shape`; None if d is 1.

    Source: Mezzadri 2007, "How to generate random matrices from the classical compact groups" (sign fix).
    """
    shape = d, k = direction_shape(d, k, scheme)
    normals = None if normals is None else sample(normals, "normals").to(torch.float64)
    if normals is not None and tuple(normals.shape) != shape:
        raise ValueError(
            f"normals have shape {tuple(normals.shape)}; {k} {scheme} directions of R^{d} take {shape}. "
            "Draw them with direction_shape(d, k, scheme)."
        )
    if d == 1:
        return torch.ones((1, k), dtype=torch.float64, device=None if normals is None else normals.device)
    if normals is None:
        raise ValueError(f"directions of R^{d} need standard normals of shape {shape}; only d = 1 does not.")
    if scheme == "iid":
        return normals.div(torch.linalg.vector_norm(normals, dim=0, keepdim=True))
    full = k - k % d
    blocks = _haar(normals[:, :full].reshape(d, full // d, d).transpose(0, 1)).transpose(0, 1).reshape(d, full)
    return torch.cat([blocks, _haar(normals[:, full:])], dim=1) if full < k else blocks.contiguous()


def _haar(normals: Tensor) -> Tensor:
    """Orthonormal columns of standard normals (..., d, r), r at most d: uniform on the Stiefel manifold."""
    q, r = torch.linalg.qr(normals)
    signs = torch.where(torch.diagonal(r, dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(torch.float64)
    rotations: Tensor = q * signs.unsqueeze(-2)
    return rotations


def spread(directions: Tensor) -> float:
    """Largest eigenvalue of directions @ directions.T / k for unit columns (d, k), from 1/d to 1: their unevenness."""
    theta = unit_columns(directions)
    if len(theta) == 1:
        return 1.0
    return float(torch.linalg.eigvalsh(theta @ theta.T / theta.shape[1])[-1])


def orthogonal_spread(d: int, k: int) -> float:
    """The spread of k orthogonal-block directions of R^d, known before they are drawn: 1/d if d divides k."""
    d, k = whole(d, "d", least=1), whole(k, "k", least=1)
    return math.ceil(k / d) / k


def project(outputs: Tensor, radius: float) -> Tensor:
    """Project the rows of `outputs` (n, d) onto the ball of radius M, in float64.

    A row that is not finite becomes 0, and saturated rows of dimension 1 are exactly +-M. Nothing branches on
    the values: they may be private. ValueError for another shape, or a radius that is not finite and above 0.
    """
    radius = positive(radius, "radius")
    rows = matrix(outputs, "outputs").detach().to(torch.float64)
    if rows.shape[-1] == 1:
        return torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0).clamp_(-radius, radius)
    rows = torch.where(torch.isfinite(rows).all(dim=-1, keepdim=True), rows, 0.0)
    scale = rows.abs().amax(dim=-1, keepdim=True)
    direction = rows / torch.where(scale > 0, scale, 1.0)  # squares of what is left neither overflow nor vanish
    length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    outside = scale * length > radius
    return torch.where(outside, direction / torch.where(outside, length, 1.0) * radius, rows)


def slot_means(
    sample: Tensor, other: Tensor, *, ties: Ties = "shared", memory_limit: int = DEFAULT_MEMORY_LIMIT
) -> Tensor:
    """Mean of the other sample's quantile function over the slot of every value of a sample, column by column.

    The i-th smallest of n values sees n times the integral over [(i-1)/n, i/n] of the other sample's
    quantile function. With equal sizes that is the other sample's i-th smallest value; with unequal sizes it
    is the mean of `other` under that row of the optimal one-dimensional plan, which is never formed.

    Values are (n, k), a column a direction, and so are the slot means, float64; the others are (m, k). "shared" gives
    tied values the mean of their slots; "stable" gives them slots in row order, which keeps the sensitivities only
    if that order does not depend on the data. Columns are treated in chunks that stay below ``memory_limit`` bytes.

    Cost: O((n + m) log(n + m)) a column. Source: RLL, Proposition 3.2, without its n x m weights.
    """
    memory_limit, (sample, other) = whole(memory_limit, "memory_limit", least=1), samples(sample=sample, other=other)
    left, right = _as_rows(sample.detach().T), _as_rows(other.detach().T)
    means, centres = torch.empty_like(left), right.mean(dim=-1, keepdim=True)

    def fill(part: slice) -> None:
        u, centre = ranked(left[part], ties), centres[part]
        slots = means_by_rank(u, sort_rows(right[part] - centre), ties)  # sums of what is common would lose its digits
        means[part].scatter_(-1, u.order, slots.add_(centre))

    share_out(fill, *_blocks(left.shape[0], left.shape[1] + right.shape[1], memory_limit, left.device))
    return means.T.contiguous()


def w2_squared_of_columns(sample: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """W2^2 of every column, (k,), of samples (n, k) and (m, k), and its derivative in the sample's values (n, k).

    Both are float64. A number that is common to all values of a column changes neither.
    """
    sample, other = samples(sample=sample, other=other)
    sample, other = sample.detach().to(torch.float64), other.detach().to(torch.float64)
    centre = other.mean(dim=0)
    sample, other = sample - centre, other - centre
    means = slot_means(sample, other)
    gaps = sample - means
    return _w2_squared(gaps, means, other, 0), gaps * (2 / len(sample))


def _w2_squared(gaps: Tensor, means: Tensor, other: Tensor, dim: int) -> Tensor:
    """W2^2 along a dimension, of gaps to slot means, of these, and of the other sample, which lies about 0."""
    # The variance of the other sample within its slots: what slot means leave out of the distance.
    within = other.square().mean(dim=dim) - means.square().mean(dim=dim)
    return gaps.square().mean(dim=dim) + within.clamp(min=0)


def cotangents(
    sample: Tensor,
    other: Tensor,
    directions: Tensor,
    *,
    order: float = 2.0,
    ties: Ties = "shared",
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> tuple[Tensor, Tensor]:
    """Gradients of the sliced W_p^p, p = order, between two samples with respect to each of their points.

    Row i of the first result is (1/k) sum_l (p/n) g_{l,i} theta_l, where g_{l,i} is the mean of x |x|^(p-2) over the
    slot of u_i in direction l, x = <theta_l, u_i> less the other sample's quantile function; for p = 2 it is
    <theta_l, u_i> less the slot mean. The second result is the same with the samples exchanged. The distance is not
    differentiable where values are tied; the formula is used there as it stands.

    Guarantee: pulled back through per-sample Jacobians of spectral norm at most L1 and L2, and summed, these
    move by at most `fedsw.privacy.sensitivity.swd_sensitivity` in l2 norm when one record is replaced at its
    position, for outputs in the ball of radius M, ties included.

    Outputs (n, d) and (m, d) are projected onto the ball already, so that they are finite; directions (d, k) are unit
    columns, independent of the data; ties and memory are as in `slot_means`. Cotangents are (n, d) and (m, d), float64.

    Raises:
        ValueError: for shapes that do not fit, a number that is not finite, directions that are not unit columns, or an
            order below 2.

    Source: RLL, equation (5) and Proposition 3.2; docs/guarantees/sensitivity.md and orders.md for the guarantee.
    """
    order = require_penalty_order(order)
    memory_limit, (sample, other) = whole(memory_limit, "memory_limit", least=1), samples(sample=sample, other=other)
    theta = unit_columns(directions, sample.shape[1])
    return cotangents_of_projected(sample, other, theta, order=order, ties=ties, memory_limit=memory_limit)


def cotangents_of_projected(
    sample: Tensor, other: Tensor, directions: Tensor, *, order: float = 2.0, ties: Ties, memory_limit: int
) -> tuple[Tensor, Tensor]:
    """`cotangents` of outputs (n, d) and (m, d) that `project` gave, along directions (d, k) as drawn: none is read.

    For a round: on an accelerator each read waits for it, and outputs are private. Guarantee and source are those of
    `cotangents`, as the two functions named make what it asks for.
    """
    theta = directions.detach().to(torch.float64)
    u_all, v_all = _as_rows(sample.detach().T), _as_rows(other.detach().T)
    n, m, k = u_all.shape[1], v_all.shape[1], theta.shape[1]
    q_own, q_other = torch.zeros_like(u_all), torch.zeros_like(v_all)
    for part in _parts(k, memory_limit // (2 * 8 * (n + m))):  # half of the limit is for what is kept of all blocks
        slab = theta[:, part]
        u_gaps, v_gaps = _slices(u_all, slab), _slices(v_all, slab)  # a block's slices make room for its gaps

        def fill(block: slice, u_gaps: Tensor = u_gaps, v_gaps: Tensor = v_gaps) -> None:
            u, v = ranked(u_gaps[block], ties), ranked(v_gaps[block], ties)
            if order == 2:  # a sum of each sample will do
                u_gap = u.values - means_by_rank(u, v.values, ties)
                v_gap = v.values - means_by_rank(v, u.values, ties)
            else:
                u_gap, v_gap = powers_by_rank(u, v, order, ties)
            u_gaps[block].scatter_(-1, u.order, u_gap)
            v_gaps[block].scatter_(-1, v.order, v_gap)

        blocks, at_once = _blocks(slab.shape[1], n + m, memory_limit, slab.device)
        share_out(fill, blocks, at_once)
        q_own += slab @ u_gaps
        q_other += slab @ v_gaps
    return q_own.mul_(order / (n * k)).T.contiguous(), q_other.mul_(order / (m * k)).T.contiguous()


def sliced_w2(
    sample: Tensor,
    other: Tensor,
    directions: Tensor,
    *,
    dtype: torch.dtype = torch.float64,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Tensor:
    """Mean over the directions of the squared 2-Wasserstein distance between the projected samples.

    Outputs are (n, d) and (m, d), directions (d, k) unit columns. The scalar, float64, is accurate to about 1e-15 times
    the largest squared distance from the other outputs' mean; projected and sorted in float32, which takes half the
    time, its root to 1e-7 of that distance.

    Raises:
        ValueError: for shapes that do not fit, a number that is not finite, or directions that are not unit columns.
    """
    memory_limit, (sample, other) = whole(memory_limit, "memory_limit", least=1), samples(sample=sample, other=other)
    theta = unit_columns(directions, sample.shape[1])
    n, m, k = len(sample), len(other), theta.shape[1]
    exact = torch.promote_types(torch.promote_types(sample.dtype, other.dtype), dtype)
    centre = other.detach().to(torch.float64).mean(dim=0).to(exact)  # the same number for both sides
    total = torch.zeros((), dtype=torch.float64, device=sample.device)
    for part in _parts(k, memory_limit // (_BYTES_PER_SAMPLE * (n + m))):
        turned = theta[:, part].T.to(dtype)  # ties do not matter to the value: a matrix product may untie points here
        u, v = (sort_rows(_turned(side.detach(), centre, turned)) for side in (sample, other))
        if n == m:
            total += u.sub_(v).square_().sum(dtype=torch.float64) / n
        else:
            u, v = u.to(torch.float64), v.to(torch.float64)
            means = means_of_slots(n, v)
            total += _w2_squared(u.sub_(means), means, v, -1).sum()
    return total / k


def _turned(points: Tensor, centre: Tensor, directions: Tensor) -> Tensor:
    """Projections (k, n) of points (n, d) about a centre on directions (k, d), in their type; a cacheful at a time."""
    slices = directions.new_empty((len(directions), len(points)))
    for rows in _parts(len(points), _most_numbers(points.device) // points.shape[1]):
        slices[:, rows] = directions @ (points[rows].to(centre.dtype) - centre).to(directions.dtype).T
    return slices


def _slices(points: Tensor, directions: Tensor) -> Tensor:
    """Projections (k, n) of points given as columns (d, n), a function of each point only, so that ties stay ties."""
    # A matrix product rounds differently at its edges: products of few coordinates are added one by one, and those of
    # many are taken of parts so short that they are exact, in whatever order they are added.
    d, k = directions.shape
    slices = points.new_empty((k, points.shape[1]))
    if d > _FEW:
        bits = (54 - math.ceil(math.log2(d))) // 2
        parts = torch.cat(_halves(directions.T, torch.ones_like(directions[:1].T), bits))
    for part in _parts(points.shape[1], _most_numbers(points.device) // (2 * k)):
        if d > _FEW:
            slices[:, part] = _exact(points[:, part], parts, bits)
        else:
            rows, columns = directions.T.unsqueeze(-1), points[:, part]
            total = rows[:, 0] * columns[0]
            product = torch.empty_like(total)
            for r in range(1, d):
                total += torch.mul(rows[:, r], columns[r], out=product)
            slices[:, part] = total
    return slices


def _exact(points: Tensor, parts: Tensor, bits: int) -> Tensor:
    """Projections (k, w) of points (d, w) on directions with the halves `parts` (2k, d); see docs/guarantees."""
    (k, w), largest = (len(parts) // 2, points.shape[1]), points.abs().amax(dim=0).clamp_(min=2.0**-900)
    top = largest / torch.frexp(largest).mantissa
    products = parts @ torch.cat(_halves(points, top, bits), dim=1)
    return products[k:, w:].add(products[k:, :w]).add_(products[:k, w:]).add_(products[:k, :w])


def _halves(values: Tensor, top: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Values as sums of two: whole multiples, of at most ``bits`` bits each, of top / 2^bits and of top / 4^bits."""
    coarse = top * (1.5 * 2.0 ** (52 - bits))  # adding and subtracting it rounds to a multiple of its last bit
    high = (values + coarse).sub_(coarse)
    fine = coarse * 2.0**-bits
    return high, (values - high).add_(fine).sub_(fine)


def _as_rows(columns: Tensor) -> Tensor:
    return columns.to(torch.float64).contiguous()


def _blocks(k: int, samples: int, memory_limit: int, device: torch.device) -> tuple[list[slice], int]:
    """Directions that are worked on together, where that can be in the cache, and how many blocks at a time."""
    room = memory_limit // (2 * _BYTES_PER_SAMPLE * samples)
    shared = device.type == "cpu" and k * samples >= _WORTH_THREADS
    size = max(1, min(room, _most_numbers(device) // (2 * samples if shared else samples)))
    return list(_parts(k, size)), max(1, room // size) if shared else 1


def _most_numbers(device: torch.device) -> int:
    """Numbers of one array that is worked on: a cacheful on a processor; elsewhere, few large kernels are quicker."""
    return _IN_CACHE if device.type == "cpu" else sys.maxsize


def _parts(k: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, k)) for start in range(0, k, size))


def public_directions(d: int, k: int, scheme: Scheme, seed: int, *purpose: Label) -> Tensor:
    """Unit columns (d, k), float64, the same in every process with the seed; the single direction 1 where d is 1."""
    rows, columns = direction_shape(d, k, scheme)
    if rows == 1:
        return directions(1, 1)
    normals = Stream.seeded(seed, *purpose).normals(rows * columns).reshape(rows, columns)
    return directions(d, k, normals=torch.from_numpy(normals), scheme=scheme)
