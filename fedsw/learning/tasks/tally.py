"""Tallies of records that were kept out of training: a short vector each under a model, whose sum may be released.

A tally is made so that one replaced record moves the sum little, whatever the record and the model are: counts, and
numbers that are cut to [0, 1]. `vectors` are what each record adds to its group, of outputs (n, d), finite or not, and
targets (n,) or (n, t): (n, width) float64. `moved` is the most, in l2 norm, that the sums move when one record is
replaced by another of its group. What a sum says of the model is read in `fedsw.runs.evaluation.held_out_metrics`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.metrics import predictions

BINS = 10
"""Equal parts that predictions of one number are counted in."""

ONE = round(1 / STEP)
"""The number of whole steps in 1."""


@dataclass(frozen=True)
class Counts:
    """A classifier's confusion counts: records by group, class and predicted class.

    Guarantee: `moved` is sqrt(2): a record is counted in one place.
    """

    groups: int
    classes: int

    @property
    def width(self) -> int:
        """A place for each class and answer."""
        return self.classes**2

    @property
    def moved(self) -> float:
        """One count less in one place, and one more in another."""
        return math.sqrt(2.0)

    def vectors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return one count per record, from outputs (n, d) and targets (n,); an output that is no number is class 0."""
        answers = predictions(outputs.detach().double().nan_to_num(0.0, 0.0, 0.0)).clamp(max=self.classes - 1)
        return F.one_hot(target.long() * self.classes + answers, self.width).double()

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if sums (groups, t) are whole counts, together as many as the records (groups,)."""
        counts = bool((totals >= 0).all()) and bool((totals % ONE == 0).all())
        return counts and torch.equal(totals.sum(dim=1), records * ONE)


@dataclass(frozen=True)
class RegressionSums:
    """Sums of a regression of `targets` numbers in [0, 1]: squared errors, first and second moments of targets.

    With one target the predictions are counted in ten bins as well. The order of a group's numbers is: squared error
    over all targets divided by their number, squared target likewise, targets divided by the root of it, counts.

    Guarantee: `moved` is sqrt(3), or sqrt(5) with counts: the first two numbers are in [0, 1], the scaled targets of
    two records are at most 1 apart, and two counts at most sqrt(2).
    """

    groups: int
    targets: int

    @property
    def width(self) -> int:
        """Two sums, one for each target, and the bins of a single one."""
        return 2 + self.targets + (BINS if self.targets == 1 else 0)

    @property
    def moved(self) -> float:
        """See the class."""
        return math.sqrt(5.0 if self.targets == 1 else 3.0)

    def vectors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the vectors of outputs and targets (n, t), cut to [0, 1]; a value that is no number counts as 0."""
        answers, wanted = (
            numbers.detach().double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0).reshape(len(target), self.targets)
            for numbers in (outputs, target)
        )
        parts = [
            (answers - wanted).square().mean(dim=1, keepdim=True),
            wanted.square().mean(dim=1, keepdim=True),
            wanted / math.sqrt(self.targets),
        ]
        if self.targets == 1:
            bins = (answers[:, 0] * BINS).floor().clamp(max=BINS - 1).long()
            parts.append(F.one_hot(bins, BINS).double())
        return torch.cat(parts, dim=1)

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if sums (groups, t) are between 0 and the records (groups,), with as many counts as records."""
        most = records[:, None] * ONE
        between = bool((totals >= 0).all()) and bool((totals <= most).all())
        if self.targets != 1:
            return between
        return between and torch.equal(totals[:, -BINS:].sum(dim=1), records * ONE)


Tally = Counts | RegressionSums
"""A sum over kept records, group by group, that may be released."""
