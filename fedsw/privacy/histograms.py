"""Histograms of scores by group, released once with Laplace noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.accounting import Charge
from fedsw.privacy.mechanisms import laplace_scale
from fedsw.privacy.release import Bounded, Part, Spends, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.randomness import Stream
from fedsw.transport.barycentre import bins_of

GROUP = "records"
"""The one group of records that a ledger of this release accounts for."""

SENSITIVITY = 2.0
"""l1: a replaced record leaves one bin of its group and enters another of the same group."""


def bounded_histograms(
    scores: NDArray[np.float64], groups: NDArray[np.int64], edges: NDArray[np.float64], *, count: int
) -> Bounded:
    """Counts (groups, b) of private scores (n,) in the bins of public edges (b + 1,), not to be read before a release.

    Guarantee: replacing one record by another of its group moves the counts by at most 2 in l1 norm, whatever the
    model that made the scores, if it was released before or does not depend on these records. Public: the sizes of the
    groups. Proof: docs/guarantees/slices.md.

    Args:
        scores: any numbers; those outside the edges count in the first or the last bin.
        groups: (n,), of 0 .. count - 1.
        edges: public; chosen without looking at the scores.
        count: number of groups, public.

    Raises:
        ValueError: if scores and groups differ in length, or a group is outside its range.
    """
    if scores.shape != groups.shape or scores.ndim != 1:
        raise ValueError(f"scores {scores.shape} and groups {groups.shape}: one of each for every record, shape (n,)")
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < count:
        raise ValueError(f"groups are {int(groups.min())} .. {int(groups.max())}; they must be in 0 .. {count - 1}")
    bins = len(edges) - 1
    counts = np.bincount(groups * bins + bins_of(scores, edges), minlength=count * bins).reshape(count, bins)
    moved = Sensitivity(SENSITIVITY, "histogram", public=("the sizes of the groups",))
    return Bounded(torch.from_numpy(counts.astype(np.float64)), moved, charges=(Charge(GROUP, 1.0, SENSITIVITY),))


def release_histograms(
    bounded: Bounded, epsilon: float, ledger: Spends, *, stream: Stream | None = None
) -> NDArray[np.float64]:
    """Noised counts (groups, b): charged to a ledger, then Laplace noise of scale 2 / epsilon on every count.

    Guarantee: (epsilon, 0)-differential privacy of every record, for its replacement by another of its group, against
    everybody who sees the counts and what is computed from them. What else was released of the same records composes:
    a model trained under (epsilon', delta) and this are (epsilon + epsilon', delta) together.

    Args:
        bounded: of `bounded_histograms`.
        ledger: with accountant "laplace" and the group "records"; it takes the release once.
        stream: where the noise comes from; the operating system's entropy if not given.

    Raises:
        BudgetExhausted, AlreadySpent: by the ledger; nothing leaves.
        ValueError: if epsilon is not positive and finite.
    """
    scale = laplace_scale(epsilon, bounded.sensitivity.value)
    part = Part("histograms", bounded.sensitivity.value, scale, "laplace")
    paid = pay(ledger, bounded.round, bounded.attempt, bounded.charges, scale, [part])
    return release_paid(bounded, paid, part.name, stream or Stream.secure()).value.numpy()
