"""Per-sample inner products, in float64 and in tiles of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Floats in one temporary; larger batches are cut into tiles, so that nothing of size n x d x r ever exists.
TILE = 2**20


def tiled(n: int, floats_per_record: int, part_gram: Callable[[slice], Tensor]) -> Tensor:
    """Concatenate `part_gram` over slices of the n records whose temporaries stay near TILE floats: (n, ...)."""
    grams = [part_gram(part) for part in tiles(n, floats_per_record)]
    return grams[0] if len(grams) == 1 else torch.cat(grams)


def tiles(n: int, floats_per_record: int) -> list[slice]:
    """The n records in slices whose temporaries stay near TILE floats: at least one."""
    rows = max(1, TILE // max(1, floats_per_record))
    return [slice(start, min(start + rows, n)) for start in range(0, max(n, 1), rows)]


def inner_products(rows: Sequence[Tensor]) -> Tensor:
    """Gram matrices (n, d, d) of d tensors whose leading dimension counts the records."""
    n, d = rows[0].shape[0], len(rows)
    flat = [row.reshape(n, -1 if n else 0) for row in rows]
    if d == 1:
        return squared_norms(flat[0]).reshape(n, 1, 1)

    if d == 2:
        return _pair(*flat)

    def part_gram(part: slice) -> Tensor:
        first = flat[0][part]
        stacked = torch.empty((first.shape[0], d, first.shape[1]), dtype=torch.float64, device=first.device)
        for r, row in enumerate(flat):
            stacked[:, r] = row[part]
        return torch.bmm(stacked, stacked.mT)

    return tiled(n, d * flat[0].shape[1], part_gram)


def _pair(first: Tensor, second: Tensor) -> Tensor:
    """Gram matrices (n, 2, 2) of two columns: bmm would take longer to stack them in float64 than all of this.

    Products across are rounded to the columns' precision before they are summed in float64: an error of half a unit of
    it relative to ||first|| ||second||, and so to the Gram matrix.
    """
    across = (first * second).sum(1, dtype=torch.float64)
    entries = [squared_norms(first), across, across, squared_norms(second)]
    return torch.stack(entries, 1).reshape(-1, 2, 2)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms (n,) of rows (n, width), each summed in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms.square_()


def total_squares(values: Tensor) -> Tensor:
    """Squared norms (n,) of everything that belongs to a record, summed in float64."""
    return squared_norms(values.reshape(values.shape[0], values.shape[1:].numel()))


def outer_gram(shared: Tensor, varying: Sequence[Tensor], *, kernel: bool) -> Tensor:
    """Gram matrices of J_r = sum_t v_r(t) s(t)^T, by the kernel s(t).s(t') or by forming the small J_r.

    Sums over sites can cancel, so both are in float64: their error stays far below eta times the Gram matrix.

    Args:
        shared: s, of shape (n, blocks, T, p).
        varying: d tensors v_r, of shape (n, blocks, T, o).
        kernel: which of the two ways to take.
    """
    d, (n, blocks, sites, wide) = len(varying), varying[0].shape
    s = shared.to(torch.float64)
    v = torch.stack([each.to(torch.float64) for each in varying], dim=3)
    if kernel:
        flat = v.reshape(n, blocks, sites, d * wide)
        weighted = ((s @ s.mT) @ flat).reshape(v.shape)
        left, right = _by_row(v), _by_row(weighted)
        gram = torch.bmm(left, right.mT)
        return (gram + gram.mT) / 2
    jacobian = v.reshape(n, blocks, sites, d * wide).mT @ s
    rows = _by_row(jacobian.reshape(n, blocks, 1, d, wide * s.shape[-1]))
    return torch.bmm(rows, rows.mT)


def _by_row(values: Tensor) -> Tensor:
    """(n, blocks, T, d, o) to (n, d, blocks T o)."""
    n, d = values.shape[0], values.shape[3]
    return values.permute(0, 3, 1, 2, 4).reshape(n, d, values.shape[1] * values.shape[2] * values.shape[4])
