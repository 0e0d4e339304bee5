"""Secret batches of fixed size, without replacement, by stratum: what amplification by sampling rests on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsw.data import Records
from fedsw.data.units import Units
from fedsw.randomness import KEY_BYTES, Stream, smallest_keys


@dataclass(frozen=True, eq=False)
class Batch:
    """One attempt's records, stratum by stratum. Which they are is secret; their numbers are public.

    Attributes:
        round, attempt: together they name the batch; a ledger takes each pair once.
        records: (n,) in the order of the strata.
        sizes: records of every stratum in the batch.
        rates: sampling rate of every stratum.
    """

    round: int
    attempt: int
    records: Records
    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    def __len__(self) -> int:
        """Number of records."""
        return len(self.records)


def draw_batch(
    records: Records,
    strata: Sequence[NDArray[np.int64]],
    sizes: Sequence[int],
    *,
    seed: int | None,
    round_: int,
    attempt: int,
) -> Batch:
    """A uniform sample without replacement of the asked size of every stratum: units, and one row of each.

    The sample comes from the operating system's entropy, and nothing of it is kept; with a seed it is that of a seeded
    federation of the same records, whatever the number of its clients.

    Args:
        strata: numbers (n_s,) of the units of every stratum s; where none is declared, rows of the records.
        sizes: how many of each to take.
    """
    units = Units.of(records)
    if seed is None:
        stream = Stream(os.urandom(KEY_BYTES))
        keys = [stream.words(len(numbers)) for numbers in strata]
    else:
        stream = Stream(Stream.seeded(seed, "batch", round_, attempt).words(4).tobytes())
        words = stream.words(int(units.ids.max()) + 1)
        keys = [words[units.ids[numbers]] for numbers in strata]
    chosen = [numbers[smallest_keys(own, size)] for numbers, own, size in zip(strata, keys, sizes, strict=True)]
    rows = units.one_row_each(np.concatenate(chosen), stream.child("rows"), seeded=seed is not None)
    rates = tuple(size / len(numbers) for numbers, size in zip(strata, sizes, strict=True))
    return Batch(round_, attempt, records.take(rows), tuple(sizes), rates)
