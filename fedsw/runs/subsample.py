"""A fixed public part of the held-out records, to measure on where all of them would cost more than the rounds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.randomness import Stream, smallest_keys


def subsample(records: Records, most: int) -> Records:
    """At most about `most` of the records: of every stratum its part, rounded up, so that none vanishes.

    A stratum is a group, and a class in it where targets are classes. Within a stratum the choice is uniform and looks
    at positions alone, never at features or targets of a regression; it comes from a public seed of its own, so it is
    the same in every round and every run, and no training reads it.

    Args:
        records: n held-out records.
        most: where n is no larger, all of them are returned as they are.

    Returns:
        Up to `most` and one for every stratum, in the order that they had.
    """
    n = len(records)
    if n <= most:
        return records
    strata = _strata(records)
    keys = Stream.seeded(0, "held-out subsample").words(n)
    rows = []
    for stratum in np.unique(strata):
        (members,) = np.nonzero(strata == stratum)
        rows.append(members[smallest_keys(keys[members], -(-len(members) * most // n))])
    return records.take(torch.from_numpy(np.sort(np.concatenate(rows))))


def _strata(records: Records) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The number of every record's stratum (n,)."""
    number: Tensor = records.sensitive
    if records.is_classification:
        number = number * (int(records.target.max()) + 1) + records.target
    strata: np.ndarray[tuple[int], np.dtype[np.int64]] = number.numpy()
    return strata
