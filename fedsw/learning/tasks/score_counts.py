"""Counts of records by class and bin of a classifier's probabilities: calibration and thresholds are read off them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.data.sources import Shape
from fedsw.learning.tasks.measures import Measuring
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Inputs
from fedsw.mathematics.clipping import unchanged
from fedsw.privacy.sensitivity import VectorSum

BINS = 32
"""Equal parts of [0, 1] that probabilities are counted in for thresholds: their edges are public, whatever the model.

More of them follow scores more closely and add more noise to a group's share above a threshold, which is a sum of
bins: between edges a bin's records are taken to lie evenly.
"""

EDGES = tuple(number / BINS for number in range(BINS + 1))
"""Edges of these bins."""

TAIL = 2.0**-13
"""The probability at which the outermost bins of calibration end."""

COARSE = (0.0, TAIL, *(number / BINS for number in (2, 10, 22, 30)), 1 - TAIL, 1.0)
"""Edges of the seven bins that calibration takes: fewer have less noise, and the outermost, beyond logits of -9 and 9,
tell of a model that is surer than any should be. With edges at 1/32 and 7/32 log loss was .002 (two classes) and .004
(more) higher on 18 sets that judge nothing, and a model that could gain two points answered one class only: nearly all
of its probabilities were in one bin."""

BOTH = tuple(sorted({*EDGES, *COARSE}))
"""Edges of bins that serve thresholds and calibration."""


@dataclass(frozen=True)
class ScoreCounts(VectorSum):
    """Counts of a classifier's records: by group, class, bin of that class's probability, and whether it is the label.

    Of two classes only the ``positive`` one's probability is counted, of more (``positive`` is None) each class's
    against the rest. A group's numbers are class by class and bin by bin, of the other records and of those of the
    class. Where nothing is read by group, all records make one, and ``groups`` is 1. The ``edges`` are public.

    Guarantee: `moved` is sqrt(2 k), k = 1 for two classes and their number for more. *Proof.* Whatever the model, a
    record is counted in one of the places of each counted class, so the counts of a data set are a sum of vectors with
    k ones. Replacing a record takes at most k ones away and brings at most k elsewhere: a move of squared length 2 k
    at most, also if the replacement has another group or label. Adding or removing it moves them by sqrt(k).
    """

    groups: int
    positive: int | None
    edges: tuple[float, ...] = EDGES
    classes: int = 2

    @property
    def counted(self) -> int:
        """k, the number of classes with a counted probability."""
        return 1 if self.classes == 2 else self.classes

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    @property
    def width(self) -> int:
        """Numbers of a group."""
        return 2 * self.bins * self.counted

    @property
    def squared(self) -> float:
        """See `VectorSum`: k ones."""
        return float(self.counted)

    def places(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Places (n, k) int64 of every record in its group, from outputs (n, d) and targets (n,).

        An output that is not a number counts as 0; a probability on an edge is in the bin above it.
        """
        scores = outputs.detach().double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
        wanted = torch.arange(self.counted)
        if self.counted == 1:
            scores, wanted = scores[:, :1], torch.tensor([1 if self.positive is None else self.positive])
            scores = scores if int(wanted) == 1 else 1 - scores
        inner = torch.tensor(self.edges[1:-1], dtype=torch.float64)
        bins = torch.bucketize(scores.contiguous(), inner, right=True)
        offsets = 2 * self.bins * torch.arange(self.counted)
        return offsets + 2 * bins + (target[:, None].long() == wanted).long()

    def of(self, outputs: Tensor, target: Tensor, groups: Tensor) -> Tensor:
        """The counts of records, WITHOUT NOISE, from outputs (n, d), targets and groups (n,): (groups, width) int64."""
        total = torch.zeros(self.groups * self.width, dtype=torch.int64)
        places = (groups[:, None] * self.width + self.places(outputs, target)).reshape(-1)
        return total.index_add_(0, places, torch.ones_like(places)).reshape(self.groups, self.width)

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if totals (groups, width) can be counts of ``records`` (groups,), or (1,) of all groups together."""
        if tuple(totals.shape) != (self.groups, self.width) or totals.dtype != torch.int64:
            return False
        by_class = totals.reshape(self.groups, self.counted, -1).sum(dim=2)
        by_class = by_class.sum(dim=0, keepdim=True) if len(records) == 1 else by_class
        return bool((totals >= 0).all()) and torch.equal(by_class, records[:, None].expand_as(by_class))


@flushing_to_zero
def counts_of_scores(problem: Problem, counts: ScoreCounts, records: Records, model: nn.Module) -> Tensor:
    """The counts of all records under a model, WITHOUT NOISE: (groups, width) int64, exact however they are spread."""
    if not len(records):
        return torch.zeros(counts.groups, counts.width, dtype=torch.int64)
    with torch.no_grad(), unchanged(model, problem.task):
        outputs = Measuring(problem, records, model).outputs.cpu()
    groups = records.sensitive.long() if counts.groups > 1 else torch.zeros(len(records), dtype=torch.int64)
    return counts.of(outputs, records.target, groups)


def usual(outputs: Callable[[Any, Inputs], Tensor], shape: Shape) -> bool:
    """True if a task's outputs are the usual probabilities of raw outputs (n, d), one logit for two classes."""
    width = 1 if shape.classes == 2 else shape.classes
    logits = torch.linspace(-3.0, 3.0, 4 * width).reshape(4, width)
    wanted = torch.sigmoid(logits) if width == 1 else torch.softmax(logits, dim=1)
    batch = Inputs(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), shape)
    returned = outputs(logits, batch)
    return returned.shape == wanted.shape and torch.allclose(returned.to(wanted), wanted)
