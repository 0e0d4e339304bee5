"""Counts of all records by class and score, after the last round: what is summed, and what its release costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.experiment.compatibility import relation_of
from fedsw.federation.exchange.participants import Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.node.node import Node
from fedsw.federation.trust.budget_shares import SCORES_PART, Shares, SumBudget, sum_budget
from fedsw.federation.trust.sums_once import Sum, records_of
from fedsw.learning.moments.beside_rounds import scores_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores


class ScoreSum(Sum):
    """Counts of all records by group, class and score, under the released model `theta` (r,).

    It is the model for features as they are. RuntimeError in a run that releases none.
    """

    part, called, purpose, step, weights, stored = SCORES_PART, "scores", "scores", 1.0, "theta", "scores"
    charged_before = "scores were counted and charged once, and are not on file: they are not released again"

    def __init__(self, task: Problem, theta: Tensor) -> None:
        super().__init__(task)
        counts = scores_of(task)
        if counts is None:
            raise RuntimeError(
                "counts of scores were asked for, and this node agreed to a run that releases none (calibration.share, "
                "thresholds.share)"
            )
        self._counts, self._theta = counts, theta

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task, weights)

    @property
    def sent(self) -> Mapping[str, Broadcast]:
        """See `Sum`."""
        return {"theta": Broadcast.of(self._theta, Terms.of(self.task))}

    @property
    def known(self) -> Mapping[str, bytes]:  # type: ignore[override]
        """See `Sum`."""
        return {"model": self._theta.numpy().tobytes()}

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._counts.groups, self._counts.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (groups, width)."""
        plain = node.under(node.task.unprepared())  # which prepares no records either that were coded once
        model = plain.task.prepared(plain.model, self._theta)
        return counts_of_scores(plain.task, self._counts, records_of(plain, positions, stream), model)

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> SumBudget:
        """See `Sum`."""
        return sum_budget(self.part, self._counts, shared().scores, relation_of(self.task.experiment))

    def most(self, records: int) -> float:
        """See `Sum`."""
        return float(records)

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (groups, width), records (groups,)."""
        return None if self._counts.fits(steps, torch.from_numpy(records)) else "its counts are none of its records"

    def counted(self, site: Site) -> NDArray[np.int64]:
        """See `Sum`: by group, or of all together, (S, groups); strata are groups, or classes of them.

        Where nothing is compared all groups are one stratum, (S, 1).
        """
        groups = min(self._counts.groups, len(self.task.objective.cells))
        by_group: NDArray[np.int64] = site.sizes.reshape(len(site.sizes), -1, groups).sum(axis=1)
        return by_group
