"""Ranks of many one-dimensional samples at once: stable orders, and the slot means that each rank sees.

Samples are the rows of float64 arrays. Every row is treated by itself, so how rows are grouped changes no number.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ties = Literal["shared", "stable"]

_WORTH_A_THREAD = 2**15  # numbers


@dataclass(frozen=True)
class Ranked:
    """Sorted rows (k, n): their values, increasing, and the column (k, n) that each rank's value had."""

    values: Tensor
    order: Tensor


def ranked(rows: Tensor, ties: Ties) -> Ranked:
    """Sort rows (k, n); equal values keep the order of their columns if ties are "stable", and have any if "shared".

    On a processor numpy's vectorised sort finds an order, several times faster than a stable sort does. Where ties are
    shared, equal values of a row get the same slot mean whatever their order is; where they are stable, their ranks are
    put right. The steps are the same whatever the values are.
    """
    if ties not in ("shared", "stable"):
        raise ValueError(f"ties {ties!r} is unknown: choose 'shared' or 'stable'.")
    if rows.device.type != "cpu":
        return Ranked(*torch.sort(rows, dim=-1, stable=True))
    order = _by_rows(functools.partial(np.argsort, axis=-1), rows)
    values = rows.gather(-1, order)
    return Ranked(values, order if ties == "shared" else _by_column(order, values))


def _by_column(order: Tensor, values: Tensor) -> Tensor:
    """The order (k, n) of sorted values, every block of equal ones by its columns: that of a stable sort."""
    # A value whose block begins at rank f gets the key f n + column: these integers all differ.
    n = values.shape[-1]
    start = blocks(values)[0] * n
    short = n * n <= torch.iinfo(torch.int32).max  # such keys are sorted in a third of the time
    key = (order + start).to(torch.int32 if short else torch.int64)
    return _by_rows(functools.partial(np.sort, axis=-1), key).to(torch.int64).sub_(start)


def sort_rows(rows: Tensor) -> Tensor:
    """Sorted rows (k, n), of the same type, where no order is asked for."""
    if rows.device.type != "cpu":
        return torch.sort(rows, dim=-1).values
    return _by_rows(functools.partial(np.sort, axis=-1), rows)


def means_by_rank(sample: Ranked, other: Tensor, ties: Ties) -> Tensor:
    """Slot means (k, n) that the ranks of a sample (k, n) see in the sorted rows of the other one (k, m)."""
    n, m = sample.values.shape[-1], other.shape[-1]
    if ties == "stable":
        return means_of_slots(n, other)
    # Equal values share the slots of their block, so that no order among them matters.
    integral, (first, end) = _integral_at_slots(other, n), blocks(sample.values)
    block = integral.gather(-1, end).sub_(integral.gather(-1, first))
    return block.mul_(n / m).div_(end.sub_(first))


def powers_by_rank(sample: Ranked, other: Ranked, order: float, ties: Ties) -> tuple[Tensor, Tensor]:
    """Means (k, n) of x |x|^(order - 2) over the slot of every rank of a sample, and (k, m) the same of the other one.

    x is the rank's value less the other sample's quantile function. For order 2 these are a value less its slot mean;
    for another one they do not follow from it, so that the two quantile functions are laid over each other: at most
    n + m - 1 pieces of [0, 1], on which both are constant. No rounding decides where a piece ends.
    """
    n, m = sample.values.shape[-1], other.values.shape[-1]
    length, mine, its, my_ends, its_ends = _pieces(n, m, sample.values.device)
    gaps = sample.values[:, mine] - other.values[:, its]
    powers = gaps.abs().pow_(order - 2).mul_(gaps).mul_(length)
    sums = powers.new_zeros((len(powers), len(length) + 1))
    torch.cumsum(powers, dim=-1, out=sums[:, 1:])
    return _slot_means(sums[:, my_ends], sample, m, ties), _slot_means(sums[:, its_ends], other, n, ties).neg_()


def _slot_means(integral: Tensor, sample: Ranked, width: int, ties: Ties) -> Tensor:
    """Means over slots of one width, or over the blocks of equal values where these share, of an integral at edges."""
    if ties == "stable":
        return integral.diff(dim=-1).div_(width)
    first, end = blocks(sample.values)
    return integral.gather(-1, end).sub_(integral.gather(-1, first)).div_(end.sub_(first).mul_(width))


@functools.lru_cache(maxsize=8)
def _pieces(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The pieces of n slots laid over m, in units of 1/(n m).

    Their lengths, the slot of n and the slot of m that each lies in, and before how many pieces each edge is.
    """
    # Whole numbers: an edge of both samples is one edge, which rounding i/n and j/m could set apart.
    of_mine = torch.arange(n + 1, device=device) * m
    of_its = torch.arange(m + 1, device=device) * n
    edges = torch.unique(torch.cat([of_mine, of_its]))
    begins = edges[:-1]
    ends = torch.searchsorted(edges, of_mine), torch.searchsorted(edges, of_its)
    return edges.diff().to(torch.float64), begins // m, begins // n, *ends


def means_of_slots(n: int, other: Tensor) -> Tensor:
    """Means of the quantile functions of sorted rows (k, m) over n slots: (k, n)."""
    return _integral_at_slots(other, n).diff(dim=-1).mul_(n / other.shape[-1])


def _by_rows(function: Callable[[NDArray[Any]], NDArray[Any]], rows: Tensor) -> Tensor:
    """Apply a numpy function to rows (k, n), some of them on each thread; numpy holds no lock meanwhile."""
    array = rows.detach().numpy()
    made = np.empty(array.shape, function(array[:0]).dtype)
    parts = max(1, min(_threads(), len(array), array.size // _WORTH_A_THREAD))
    edges = [len(array) * part // parts for part in range(parts + 1)]

    def fill(part: slice) -> None:
        made[part] = function(array[part])

    share_out(fill, [slice(begin, end) for begin, end in itertools.pairwise(edges)])
    return torch.from_numpy(made)


def _threads() -> int:
    """Number of threads for new work: as many as torch has, but one inside work that several threads do already."""
    return 1 if getattr(_SHARED, "out", False) else torch.get_num_threads()


def share_out(work: Callable[[slice], None], parts: Sequence[slice], most: int = sys.maxsize) -> None:
    """Do all parts of the work on up to `most` threads, each taking the next part; errors are raised at the end."""
    waiting = iter(parts)

    def some() -> None:
        _SHARED.out = True
        try:
            for part in waiting:  # a list's iterator gives each thread another part
                work(part)
        finally:
            _SHARED.out = False

    at_once = min(_threads(), len(parts), most)
    if at_once < 2:
        for part in waiting:
            work(part)
        return
    helping = [_helpers(torch.get_num_threads()).submit(some) for _ in range(at_once - 1)]
    try:
        some()
    finally:
        for fault in [helper.exception() for helper in helping]:
            if fault is not None:
                raise fault


_SHARED = threading.local()


@functools.lru_cache(maxsize=1)
def _helpers(threads: int) -> ThreadPoolExecutor:
    """Return the pool of threads that stay: starting them takes as long as sorting ten thousand numbers.

    A forked child makes a pool of its own.
    """
    return ThreadPoolExecutor(threads, thread_name_prefix="ranks")


os.register_at_fork(after_in_child=_helpers.cache_clear)


def _integral_at_slots(values: Tensor, n: int) -> Tensor:
    """Integrals from 0 to i/n of the quantile function of sorted rows (k, m), times m, i = 0..n: (k, n+1)."""
    m = values.shape[-1]
    sums = values.new_zeros((*values.shape[:-1], m + 1))
    torch.cumsum(values, dim=-1, out=sums[..., 1:])
    if n == m:  # the slots are those of the values
        return sums
    whole, part, below = _slot_edges(n, m, values.device)
    return sums[:, whole] + part * values[:, below]


@functools.lru_cache(maxsize=8)
def _slot_edges(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every edge i/n of n slots: whole values of m before it, the part of the next one, and that one's index."""
    position = torch.arange(n + 1, device=device) * m
    whole = position // n
    return whole, (position % n).to(torch.float64) / n, whole.clamp(max=m - 1)


def blocks(values: Tensor) -> tuple[Tensor, Tensor]:
    """First rank, and last rank plus 1, of the block of equal values around each rank of sorted rows (k, n)."""
    k, n = values.shape
    if values.device.type == "cpu":
        return _blocks_by_numpy(values.detach().numpy())
    begins, ranks = (values[:, 1:] != values[:, :-1]).to(torch.int64), torch.arange(1, n, device=values.device)
    last = torch.zeros((2, k, n), dtype=torch.int64, device=values.device)
    torch.mul(begins, ranks, out=last[0, :, 1:])
    torch.mul(begins.flip(-1), ranks, out=last[1, :, 1:])  # counted from the other end, a block begins where it ends
    first, back = last.cummax(dim=-1).values
    return first, back.flip(-1).neg_().add_(n)


def _blocks_by_numpy(values: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """As `blocks`, in a third of the time: numpy's running maxima keep no index, and run backwards without a copy."""
    n = values.shape[-1]
    begins, ranks = values[:, 1:] != values[:, :-1], np.arange(1, n)
    first, end = np.zeros(values.shape, dtype=np.int64), np.full(values.shape, n, dtype=np.int64)
    np.multiply(begins, ranks, out=first[:, 1:])
    np.copyto(end[:, :-1], ranks, where=begins)
    np.maximum.accumulate(first, axis=1, out=first)
    np.minimum.accumulate(end[:, ::-1], axis=1, out=end[:, ::-1])
    return torch.from_numpy(first), torch.from_numpy(end)
