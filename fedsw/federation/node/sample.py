"""Samples without replacement of many clients at once: a uniform one of the asked size from each client's records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsw.randomness import smallest_keys

Keys = Callable[[NDArray[np.int64]], NDArray[np.uint64]]
"""Independent uniform keys of the records at some places of the cell."""

_FEW = 16
"""Clients up to which each is drawn by itself; above, sorting the keys of all of them together is quicker."""


def sampled(starts: NDArray[np.int64], counts: NDArray[np.int64], keys: Keys) -> NDArray[np.int64]:
    """Places of a cell's records that are in the sample, client after client, ascending in each client.

    Of client i, whose records are at places starts[i] to starts[i + 1] - 1, the counts[i] with the smallest keys are
    taken. With independent uniform keys that is a uniform sample without replacement, independent of the others'. The
    cost follows the records of the clients that are asked for any.

    Args:
        starts: (S + 1,), ascending.
        counts: (S,), secret; that a sample is possible is for the caller to check.
        keys: asked once, for the places of all records of those clients, in ascending order.
    """
    taking = np.flatnonzero(counts)
    lengths = starts[taking + 1] - starts[taking]
    places = _ranges(starts[taking], lengths)
    found = keys(places)
    ends = np.cumsum(lengths)
    if len(taking) <= _FEW:
        parts = [
            places[begin:end][smallest_keys(found[begin:end], int(count))]
            for begin, end, count in zip(ends - lengths, ends, counts[taking], strict=True)
        ]
        return np.concatenate(parts) if parts else places
    client = np.repeat(np.arange(len(taking)), lengths)
    few = _candidates(found, client, lengths, counts[taking])
    order = few[np.lexsort((found[few], client[few]))]
    held = np.bincount(client[few], minlength=len(taking))
    rank = np.arange(len(few)) - np.repeat(np.cumsum(held) - held, held)
    return places[np.sort(order[rank < np.repeat(counts[taking], held)])]


def _candidates(
    keys: NDArray[np.uint64], client: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Positions of keys among which each client's smallest are: those below six standard deviations above the mean.

    All of them, should a client not have enough there: which happens by chance alone, whatever the records hold.
    """
    share = np.minimum((counts + 6.0 * np.sqrt(counts) + 1.0) / lengths, 1.0)
    limit = np.where(share < 1.0, share * 2.0**64, 2.0**64 - 2.0**11).astype(np.uint64)
    limit[share >= 1.0] = np.iinfo(np.uint64).max
    few = np.flatnonzero(keys <= limit[client])
    enough = np.bincount(client[few], minlength=len(lengths)) >= counts
    if not bool(enough.all()):
        few = np.arange(len(keys))
    return few


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The whole numbers from every start on, as many as its length says, one run after the other."""
    before = np.cumsum(lengths) - lengths
    places: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return places
