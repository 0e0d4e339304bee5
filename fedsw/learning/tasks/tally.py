"""Tallies of records that were kept out of training: a short vector each under a model; their sum may be released.

A tally is made so that one replaced record moves the sum little, whatever the record and the model are: counts, and
numbers that are cut to [0, 1]. `vectors` are what each record adds to its group, of outputs (n, d), finite or not, and
targets (n,) or (n, t): (n, width) float64. `moved` is the most, in l2 norm, that the sums move when one record is
replaced by another of its group. What a sum says of the model is read in `fedsw.runs.evaluation.held_out_metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.metrics import predictions
from fedsw.privacy.relations import REPLACE_ANY, REPLACE_ONE
from fedsw.privacy.sensitivity import VectorSum

BINS = 10
"""Equal parts that predictions of one number are counted in."""

ONE = round(1 / STEP)
"""The number of whole steps in 1."""


CHANCES = (0.0, *(number / 32 for number in (1, 4, 8, 12, 16, 20, 24, 28, 31)), 1.0)
"""Edges of the bins that a kept record's probability of its own class is counted in: 1 less each is an edge, too."""

SCORED = 0.5
"""Weight of a count by probability beside one by answer: accuracy has an eighth more noise for it."""


@dataclass(frozen=True)
class Counts(VectorSum):
    """A classifier's kept records: by group, class and predicted class; and by the probabilities of classes.

    Of each group come confusion counts first, then, class by class, half a count in the bin of `CHANCES` where the
    record's own class has its probability. Of more than two classes, ROC curves of each against the rest need the
    others' probabilities, too: then comes, class by class, `of_rest` of a count for each record of another class.

    Guarantee: `VectorSum`, as no number that a record adds is below 0; two records may share no place.
    """

    groups: int
    classes: int

    @property
    def lengths(self) -> list[int]:
        """Numbers of each part: by class and answer, by class and bin, and of more than two by the rest of each."""
        by_bins = self.classes * (len(CHANCES) - 1)
        return [self.classes**2, by_bins] + ([by_bins] if self.of_rest else [])

    @property
    def width(self) -> int:
        """Numbers of a group."""
        return sum(self.lengths)

    @property
    def of_rest(self) -> float:
        """Weight of a count in the bin of another class, a whole number of steps; 0 for two classes.

        All of a record together weigh half of what its own class does: of three classes the rest, twice as many
        records, then has the curve's noise of its own class, and all other counts have a twentieth more.
        """
        if self.classes == 2:
            return 0.0
        return math.floor(ONE * SCORED / math.sqrt(2 * (self.classes - 1))) / ONE

    @property
    def squared(self) -> float:
        """Of what a record adds: one answer, its own class's bin, and every other class's."""
        return 1.0 + SCORED**2 + (self.classes - 1) * self.of_rest**2

    def vectors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the counts of records, from outputs (n, d) and targets (n,); an output that is not a number is 0."""
        outputs, labels = outputs.detach().double().nan_to_num(0.0, 0.0, 0.0), target.long()
        answers = predictions(outputs).clamp(max=self.classes - 1)
        chances = torch.cat([1 - outputs, outputs], dim=1) if outputs.shape[1] == 1 else outputs
        inner = torch.tensor(CHANCES[1:-1], dtype=torch.float64)
        in_bins = F.one_hot(torch.bucketize(chances.contiguous(), inner, right=True), len(inner) + 1).double()
        true = F.one_hot(labels, chances.shape[1]).double()[:, :, None]
        parts = [F.one_hot(labels * self.classes + answers, self.classes**2).double(), SCORED * true * in_bins]
        if self.of_rest:
            parts.append(self.of_rest * (1 - true) * in_bins)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if sums (groups, t) can be counts of these ``records`` (groups,), as many of each class in all parts."""
        if not bool((totals >= 0).all()):
            return False
        answered, *by_bins = torch.split(totals, self.lengths, dim=1)
        by_class = answered.reshape(len(totals), self.classes, -1).sum(dim=2)
        wanted = [by_class, records[:, None] * ONE - by_class]
        whole = torch.equal(by_class.sum(dim=1), records * ONE) and bool((answered % ONE == 0).all())
        for part, weight, counts in zip(by_bins, (SCORED, self.of_rest), wanted, strict=False):
            step = round(ONE * weight)
            alike = torch.equal(part.reshape(len(totals), self.classes, -1).sum(dim=2), counts // ONE * step)
            whole = whole and alike and bool((part % step == 0).all())
        return whole


@dataclass(frozen=True)
class Cut:
    """Where targets and answers are cut before errors are summed: within a reach of a centre, target by target.

    Three tuples (t,): the ``centre``, which is a constant's answer, and how far from it targets and answers may be;
    answers at most as far as targets. Whatever is sent as a cut, a record's numbers are bounded.
    """

    centre: tuple[float, ...]
    targets: tuple[float, ...]
    answers: tuple[float, ...]

    @classmethod
    def whole(cls, targets: int) -> Cut:
        """No cut of numbers in [0, 1]."""
        middle = (0.5,) * targets
        return cls(middle, middle, middle)

    @classmethod
    def about(cls, means: Sequence[float], variances: Sequence[float]) -> Cut:
        """The cut at `REACH` deviations for targets, and at `ANSWERED` for answers, at most where [0, 1] ends."""
        centre = [min(max(mean, 0.0), 1.0) for mean in means]
        deviations = [math.sqrt(max(variance, LEAST_VARIANCE)) for variance in variances]
        ends = [max(mean, 1 - mean) for mean in centre]
        targets = [min(REACH * deviation, end) for deviation, end in zip(deviations, ends, strict=True)]
        answers = [min(ANSWERED * deviation, reach) for deviation, reach in zip(deviations, targets, strict=True)]
        return cls(tuple(centre), tuple(targets), tuple(answers))

    @classmethod
    def of_flat(cls, vector: Tensor) -> Cut:
        """The cut behind `flat` (3t,); a reach below a millionth counts as that, and answers reach no further."""
        centre, targets, answers = vector.double().reshape(3, -1).nan_to_num(0.5, 0.5, 0.5).clamp(-4.0, 4.0)
        targets = targets.clamp(min=_LEAST_REACH)
        answers = answers.clamp(min=_LEAST_REACH).minimum(targets)
        return cls(tuple(centre.tolist()), tuple(targets.tolist()), tuple(answers.tolist()))

    def flat(self) -> Tensor:
        """One vector (3t,) float64."""
        return torch.tensor([*self.centre, *self.targets, *self.answers], dtype=torch.float64)

    def ends(self, target: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where a target, and an answer to it, is cut: from and to, each within [0, 1]."""
        centre = self.centre[target]
        low, *rest = (
            (max(0.0, centre - reach), min(1.0, centre + reach))
            for reach in (self.targets[target], self.answers[target])
        )
        return low, rest[0]

    @property
    def least(self) -> float:
        """The least difference of squared errors, a constant's less the model's, summed over targets."""
        return -sum(2 * a * b + b * b for a, b in zip(self.targets, self.answers, strict=True))

    @property
    def width(self) -> float:
        """Largest distance of two such differences."""
        return sum(4 * a * b for a, b in zip(self.targets, self.answers, strict=True))

    @property
    def square(self) -> float:
        """The largest square of a target about the centre, summed over targets."""
        return sum(a * a for a in self.targets)


REACH, ANSWERED = 2.0, 1.25
"""Deviations of the released targets at which targets and answers are cut. The noise in a difference of squared errors
is as large as what a difference can be, 4 * 2 * 1.25 variances; nearer cuts change the errors of more records."""
LEAST_VARIANCE = 1e-4
_LEAST_REACH = 1e-6

_OTHER, _SPREAD, _COUNTED = 0.5, 0.25, 0.25
"""Weights of what is summed beside the difference of squared errors, its square, and counts: less noise for it."""


@dataclass(frozen=True)
class RegressionSums:
    """Sums of a regression of `targets` numbers in [0, 1], each cut: what a constant is further off than the model.

    A group's numbers are, in [0, 1]: a record's difference of squared errors, the constant's at the cut's centre less
    the model's, summed over targets; a quarter of its square; half its squared target about the centre; half its
    targets, divided by the root of their number; and, of one target, a quarter of a count in ten bins of predictions
    that are not cut. A difference is the mean of a product, so it says more of a model, at the same noise, than two
    errors do that are summed apart.

    Guarantee: `moved` is sqrt(1 + 1/16 + 1/4 + 1/4), and with counts 1/8 more under the root: the first number is in
    [0, 1], the second in [0, 1/4], the third in [0, 1/2], the scaled targets of two records are at most 1/2 apart, and
    two counts at most sqrt(2)/4; whatever the cut, the model and the records are.
    """

    groups: int
    targets: int
    cut: Cut | None = None

    @property
    def cut_at(self) -> Cut:
        """Clipping bounds; by default no clipping of numbers in [0, 1]."""
        return Cut.whole(self.targets) if self.cut is None else self.cut

    @property
    def width(self) -> int:
        """Three sums, one for each target, and the bins of a single one."""
        return 3 + self.targets + (BINS if self.targets == 1 else 0)

    @property
    def weights(self) -> Tensor:
        """Factors (t,) of a record's numbers, each a number in [0, 1] or a count."""
        counted = [_COUNTED] * BINS if self.targets == 1 else []
        return torch.tensor([1.0, _SPREAD, *[_OTHER] * (1 + self.targets), *counted], dtype=torch.float64)

    @property
    def moved(self) -> float:
        """Root of the squares by which the numbers move: one after the other those of the guarantee above."""
        return math.sqrt(1.0 + _SPREAD**2 + 2 * _OTHER**2 + (2 * _COUNTED**2 if self.targets == 1 else 0.0))

    def moved_for(self, relation: str) -> float:
        """Most that the sums move when a record is replaced; KeyError for another relation."""
        return {REPLACE_ONE: self.moved, REPLACE_ANY: self.moved}[relation]

    def vectors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the vectors of outputs and targets (n, t), each cut; a value that is not a number counts as 0."""
        answers, wanted = (
            numbers.detach().double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0).reshape(len(target), self.targets)
            for numbers in (outputs, target)
        )
        cut = self.cut_at
        centre, far, near = (torch.tensor(part, dtype=torch.float64) for part in (cut.centre, cut.targets, cut.answers))
        seen, said = (wanted - centre).clamp(-far, far), (answers - centre).clamp(-near, near)
        difference = ((2 * seen - said) * said).sum(dim=1, keepdim=True)
        parts = [
            (difference - cut.least) / cut.width,
            (difference / cut.least).square(),
            seen.square().sum(dim=1, keepdim=True) / cut.square,
            (1 + seen / far) / 2 / math.sqrt(self.targets),
        ]
        parts = [part.clamp(0.0, 1.0) for part in parts]
        if self.targets == 1:
            bins = (answers[:, 0] * BINS).floor().clamp(max=BINS - 1).long()
            parts.append(F.one_hot(bins, BINS).double())
        return torch.cat(parts, dim=1) * self.weights

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if sums (groups, t) are between 0 and the records (groups,), weighed, with as many counts as records."""
        most = records[:, None] * (ONE * self.weights).long()
        between = bool((totals >= 0).all()) and bool((totals <= most).all())
        if self.targets != 1:
            return between
        return between and torch.equal(totals[:, -BINS:].sum(dim=1), records * round(ONE * _COUNTED))


Tally = Counts | RegressionSums
"""A sum over kept records, group by group, that may be released."""
