"""An adversary against sensitivities: data sets, replaced records and Jacobians that move a gradient far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsw.mathematics.transport import sliced


@dataclass(frozen=True)
class Attack:
    """Two samples, and a record of the first that is replaced by another one, in its row or in a row that is given.

    `order` is that of the distance between the samples.
    """

    own: Tensor
    other: Tensor
    index: int
    record: Tensor
    directions: Tensor
    row: int | None = None
    order: float = 2.0

    def replaced(self) -> Attack:
        """The neighbouring data set: the records that stay keep their order."""
        own = torch.empty_like(self.own)
        stay, new = self.staying()
        own[new] = self.own[stay]
        own[~new] = self.record
        return replace(self, own=own)

    def staying(self) -> tuple[Tensor, Tensor]:
        """Which rows are those of the records that stay, before and after."""
        rows = torch.arange(len(self.own))
        return rows != self.index, rows != (self.index if self.row is None else self.row)


def movement(attack: Attack, own_l: float, other_l: float, *, ties: sliced.Ties = "shared") -> float:
    """How far the clipped gradient moves under the worst Jacobians of spectral norms at most L1 and L2.

    By the triangle inequality it moves by at most the sum of the norms below; Jacobians L q e^T/||q|| that
    pull every vector q back to the same parameter direction e attain it (`aligned_jacobians`).
    """
    moved, before, after, other = _cotangent_changes(attack, ties)
    norms = [torch.linalg.vector_norm(q, dim=-1).sum() for q in (moved, before, after, other)]
    return float(own_l * (norms[0] + norms[1] + norms[2]) + other_l * norms[3])


@dataclass(frozen=True)
class Jacobians:
    """Per-sample Jacobians: own (n, d, r), of the replacing record (d, r), other (m, d, r)."""

    own: Tensor
    record: Tensor
    other: Tensor


def aligned_jacobians(attack: Attack, own_l: float, other_l: float, r: int = 3) -> Jacobians:
    """Rank-one Jacobians of norms L1 and L2 that add up everything the replacement changes."""
    moved, before, after, other = _cotangent_changes(attack, "shared")
    e = torch.nn.functional.one_hot(torch.tensor(0), r).to(torch.float64)
    own = own_l * _unit(moved).unsqueeze(-1) * e
    own[attack.index] = own_l * _unit(before[0]).unsqueeze(-1) * e
    record = -own_l * _unit(after[0]).unsqueeze(-1) * e
    return Jacobians(own, record, other_l * _unit(other).unsqueeze(-1) * e)


def random_jacobians(attack: Attack, own_l: float, other_l: float, r: int, generator: torch.Generator) -> Jacobians:
    """Jacobians with Haar singular vectors and all singular values L1 (own and replacing) or L2 (other)."""
    n, d = attack.own.shape
    shapes = ((n, own_l), (1, own_l), (attack.other.shape[0], other_l))
    own, record, other = (bound * _isometries(count, d, r, generator) for count, bound in shapes)
    return Jacobians(own, record[0], other)


def gradient(attack: Attack, own: Tensor, other: Tensor) -> Tensor:
    """Sum of J^T q over both samples, with explicit Jacobians (n, d, r) and (m, d, r): (r,)."""
    q_own, q_other = sliced.cotangents(attack.own, attack.other, attack.directions, order=attack.order)
    return torch.einsum("nd,ndr->r", q_own, own) + torch.einsum("md,mdr->r", q_other, other)


def explicit_movement(attack: Attack, jacobians: Jacobians) -> float:
    """How far the gradient moves under the given Jacobians; the replacing record brings its own."""
    after = jacobians.own.clone()
    after[attack.index] = jacobians.record
    return float(
        torch.linalg.vector_norm(
            gradient(attack, jacobians.own, jacobians.other) - gradient(attack.replaced(), after, jacobians.other)
        )
    )


def ascend(
    directions: Tensor,
    *,
    sizes: tuple[int, int],
    radii: tuple[float, float],
    norms: tuple[float, float],
    steps: int,
    restarts: int,
    generator: torch.Generator,
) -> Attack:
    """Search by projected gradient ascent on all outputs and the replacing record, from many random starts.

    The worst Jacobians of given outputs are known (`movement`), so they need no search of their own.
    """
    d = directions.shape[0]
    (n, m), (own_radius, other_radius) = sizes, radii
    unit_points = [_scattered((restarts, count, d), generator).requires_grad_() for count in (n, m, 1)]
    optimiser = torch.optim.Adam(unit_points, lr=0.1)
    best, best_value = None, -1.0
    for _ in range(steps):
        optimiser.zero_grad()
        own, other, record = (
            points * radius for points, radius in zip(unit_points, (own_radius, other_radius, own_radius), strict=True)
        )
        moved = _differentiable_movement(own, other, record, directions, norms)
        where = int(moved.argmax())
        if moved[where].item() > best_value:
            best_value = moved[where].item()
            best = Attack(own[where].detach(), other[where].detach(), 0, record[where, 0].detach(), directions)
        torch.autograd.backward(-moved.sum())
        optimiser.step()
        with torch.no_grad():
            for points in unit_points:
                points.div_(torch.linalg.vector_norm(points, dim=-1, keepdim=True).clamp(min=1))
    assert best is not None
    return best


def _differentiable_movement(
    own: Tensor, other: Tensor, record: Tensor, directions: Tensor, norms: tuple[float, float]
) -> Tensor:
    """`movement` for a batch of attacks on record 0, differentiable, from explicit transport plans."""
    q_own, q_other = _plan_cotangents(own, other, directions)
    p_own, p_other = _plan_cotangents(torch.cat([record, own[:, 1:]], dim=1), other, directions)

    def length(q: Tensor) -> Tensor:
        return (q.square().sum(dim=-1) + 1e-24).sqrt().sum(dim=-1)

    own_moves = length(q_own[:, :1]) + length(p_own[:, :1]) + length(q_own[:, 1:] - p_own[:, 1:])
    return norms[0] * own_moves + norms[1] * length(q_other - p_other)


def _plan_cotangents(own: Tensor, other: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    n, m, k = own.shape[-2], other.shape[-2], directions.shape[-1]
    u, u_order = torch.sort((own @ directions).transpose(-1, -2), dim=-1, stable=True)
    v, v_order = torch.sort((other @ directions).transpose(-1, -2), dim=-1, stable=True)
    plan = transport_plan(n, m)
    u_gap, v_gap = u - n * v @ plan.T, v - m * u @ plan
    q_own = 2 / (n * k) * directions @ u_gap.gather(-1, u_order.argsort(dim=-1))
    q_other = 2 / (m * k) * directions @ v_gap.gather(-1, v_order.argsort(dim=-1))
    return q_own.transpose(-1, -2), q_other.transpose(-1, -2)


def transport_plan(n: int, m: int) -> Tensor:
    """Optimal plan between sorted samples of sizes n and m: overlaps of the intervals of rank (n, m)."""
    rows = torch.arange(n + 1, dtype=torch.float64) / n
    columns = torch.arange(m + 1, dtype=torch.float64) / m
    low = torch.maximum(rows[:-1, None], columns[None, :-1])
    high = torch.minimum(rows[1:, None], columns[None, 1:])
    return (high - low).clamp(min=0)


def _cotangent_changes(attack: Attack, ties: sliced.Ties) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Changes of the own rows that stay, the replaced row before and after (1, d), changes of the others."""
    about = {"ties": ties, "order": attack.order}
    own, other = sliced.cotangents(attack.own, attack.other, attack.directions, **about)
    new_own, new_other = sliced.cotangents(attack.replaced().own, attack.other, attack.directions, **about)
    stay, new = attack.staying()
    moved = torch.zeros_like(own)
    moved[stay] = own[stay] - new_own[new]
    return moved, own[~stay], new_own[~new], other - new_other


def _unit(rows: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0)


def _isometries(count: int, d: int, r: int, generator: torch.Generator) -> Tensor:
    """Random (d, r) matrices with orthonormal rows (columns, if r < d): all singular values are 1."""
    u, _, vh = torch.linalg.svd(
        torch.randn((count, d, r), generator=generator, dtype=torch.float64), full_matrices=False
    )
    return u @ vh


def _scattered(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Points of the unit ball, most of them near its boundary."""
    normals = torch.randn(shape, generator=generator, dtype=torch.float64)
    radii = torch.rand((*shape[:-1], 1), generator=generator, dtype=torch.float64) ** 0.2
    return radii * _unit(normals)
