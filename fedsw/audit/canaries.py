"""Canaries: pairs of records of which secret coins put one each into the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data import Records
from fedsw.federation.node.substitution import exchanged
from fedsw.objectives import Objective
from fedsw.randomness import Stream
from fedsw.tasks.problem import Problem

Kind = Literal["label", "features"]


@dataclass(frozen=True)
class Canaries:
    """m places in the training data, two records for each, and the coins that choose between them.

    Both records of a place have the id, the group and the stratum of the record that they take the place of: what is
    public stays as it was.

    Attributes:
        kind: what the two records of a place differ in: their labels, or their features.
        zero, one: m records each, row by row the two of a place.
        coins: (m,) bool, whether `one` is in the data; from the operating system, known to no attacker.
    """

    kind: Kind
    zero: Records
    one: Records
    coins: NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of places."""
        return len(self.coins)

    @property
    def placed(self) -> Records:
        """The records that the coins chose."""
        chosen = torch.from_numpy(self.coins)
        features = torch.where(chosen[:, None], self.one.features, self.zero.features)
        wide = chosen.reshape(-1, *[1] * (self.one.target.ndim - 1))
        target = torch.where(wide, self.one.target, self.zero.target)
        return Records(features, self.one.sensitive, target, self.one.ids)


def draw(task: Problem, records: Records, count: int) -> Canaries:
    """Canaries at places drawn from all records, and their coins, afresh each time.

    Raises:
        ValueError: if there are fewer records than canaries.
    """
    if count > len(records):
        raise ValueError(f"--one-run {count} asks for more canaries than there are records ({len(records)})")
    stream = Stream.secure()
    places = np.sort(np.argsort(stream.words(len(records)))[:count])
    coins = _coins(stream, count)
    return _pairs(task, records, records.take(places), coins)


def redrawn(task: Problem, records: Records, canaries: Canaries) -> Canaries:
    """Other pairs of records, at the same places, for the same coins."""
    return _pairs(task, records, records.take(torch.isin(records.ids, canaries.zero.ids)), canaries.coins)


def strongest(options: Sequence[Canaries], strengths: Tensor) -> Canaries:
    """At every place, the pair of the option that is strongest there; `strengths` is (options, m).

    Nothing is looked at but public things: the choice is made before the run.
    """
    best = strengths.argmax(dim=0)
    chosen = options[0]
    for index, option in enumerate(options[1:], start=1):
        rows = (best == index).nonzero().squeeze(1)
        zero, one = (
            exchanged(old, new.take(rows)) if len(rows) else old
            for old, new in ((chosen.zero, option.zero), (chosen.one, option.one))
        )
        chosen = Canaries(chosen.kind, zero, one, chosen.coins)
    return chosen


def _pairs(task: Problem, records: Records, kept: Records, coins: NDArray[np.bool_]) -> Canaries:
    """Extreme and random features: each at one of the two ends of the range of the whole table.

    So gradients are long enough for the clips to bite, and those of different canaries point in different directions.
    Where labels are no public stratum the two records of a place differ in the label, which turns the gradient of the
    loss round; elsewhere in all features, each moved to its other end.
    """
    stream, count = Stream.secure(), len(kept)
    low, high = float(records.features.min()), float(records.features.max())
    up = _coins(stream, kept.features.numel()).reshape(kept.features.shape)
    features = torch.from_numpy(np.where(up, high, low).astype(np.float32))
    if _labels_are_free(task):
        first = _below(stream, count, task.classes)
        second = (first + 1 + _below(stream, count, max(1, task.classes - 1))) % task.classes
        zero, one = (Records(features, kept.sensitive, labels, kept.ids) for labels in _ordered(first, second))
        return Canaries("label", zero, one, coins)
    other = (low + high) - features
    zero, one = (Records(side, kept.sensitive, kept.target, kept.ids) for side in (features, other))
    return Canaries("features", zero, one, coins)


def _labels_are_free(task: Problem) -> bool:
    """Whether a label may change without a public stratum changing, and a loss looks at it."""
    goal = task.objective
    free = isinstance(goal, Objective) and goal.penalty == "statistical-parity"
    return free and task.task.facts.target == "class"


def _ordered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.minimum(first, second), torch.maximum(first, second)


def _below(stream: Stream, count: int, limit: int) -> Tensor:
    return torch.from_numpy((stream.words(count) % np.uint64(limit)).astype(np.int64))


def _coins(stream: Stream, count: int) -> NDArray[np.bool_]:
    return (stream.words(count) >> np.uint64(63)).astype(np.bool_)
