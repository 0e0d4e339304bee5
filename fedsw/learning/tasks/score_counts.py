"""Counts of records by group, label and bin of a classifier's probability: what thresholds by group are read off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.learning.tasks.measures import Measuring
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import unchanged

BINS = 32
"""Equal parts of [0, 1] that probabilities are counted in: their edges are public, whatever the model is.

More of them follow scores more closely and add more noise to a group's share above a threshold, which is a sum of
bins: between edges a bin's records are taken to lie evenly.
"""


@dataclass(frozen=True)
class ScoreCounts:
    """Counts of a classifier's records: by group, bin of the probability of the class ``positive``, and label.

    A group's numbers are bin by bin, of the other class and of the positive one: ``width`` is 2 BINS.

    Guarantee: `moved` is sqrt(2). *Proof.* Whatever the model, a record is counted in one place, so the counts of a
    data set are a sum of unit vectors e_i. Replacing a record changes one of them to e_j, and ||e_i - e_j|| is 0 or
    sqrt(2). That holds if the replacement has another group or label, too.
    """

    groups: int
    positive: int

    @property
    def width(self) -> int:
        """Numbers of a group."""
        return 2 * BINS

    @property
    def moved(self) -> float:
        """One count less in one place, and one more in another."""
        return math.sqrt(2.0)

    def places(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Place (n,) int64 of every record in its group, from outputs (n, 1), of class 1, and targets (n,).

        An output that is no number counts as 0; a probability on an edge is in the bin above it.
        """
        scores = outputs[:, 0].detach().double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
        scores = scores if self.positive == 1 else 1 - scores
        bins = (scores * BINS).floor().clamp(max=BINS - 1).long()
        return 2 * bins + (target.long() == self.positive).long()

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if totals (groups, width) are counts of so many records (groups,)."""
        if tuple(totals.shape) != (self.groups, self.width) or totals.dtype != torch.int64:
            return False
        return bool((totals >= 0).all()) and torch.equal(totals.sum(dim=1), records)


@flushing_to_zero
def counts_of_scores(problem: Problem, counts: ScoreCounts, records: Records, model: nn.Module) -> Tensor:
    """The counts of all records under a model, WITHOUT NOISE: (groups, width) int64, exact however they are spread."""
    total = torch.zeros(counts.groups * counts.width, dtype=torch.int64)
    if not len(records):
        return total.reshape(counts.groups, counts.width)
    with torch.no_grad(), unchanged(model, problem.task):
        outputs = Measuring(problem, records, model).outputs.cpu()
    places = records.sensitive.long() * counts.width + counts.places(outputs, records.target)
    return total.index_add_(0, places, torch.ones_like(places)).reshape(counts.groups, counts.width)
