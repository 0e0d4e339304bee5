"""Histograms of columns, then the moments of all records, before the first round: what is summed, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.experiment.compatibility import relation_of
from fedsw.federation.node.node import Node
from fedsw.federation.trust.budget_shares import HISTOGRAMS_PART, PART, Shares, SumBudget, sum_budget
from fedsw.federation.trust.sums_once import Sum, records_of, rows_in
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout
from fedsw.learning.moments.moments_sum import STEP, sums_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.sensitivity import SLACK


class MomentSum(Sum):
    """The moments of all records, by cell, in a run that releases them."""

    part, called, purpose, step = PART, "moments", "moment", STEP

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        layout = moments_layout(task)
        if layout is None:
            raise RuntimeError(
                "moments were asked for, and this node agreed to a run that releases none (privacy.moments)"
            )
        self._layout = layout

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task)

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._layout.cells, self._layout.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (blocks, width)."""
        return sums_of(node.task, self._layout, records_of(node, positions, stream))

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> SumBudget:
        """See `Sum`."""
        return sum_budget(self.part, self._layout, shared().moments, relation_of(self.task.experiment))

    def most(self, records: int) -> float:
        """See `Sum`."""
        return SLACK * records

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (blocks, width), records of every cell, (c,)."""
        records = records if self._layout.cells > 1 else records.sum(keepdims=True)
        return None if self._layout.fits(steps, torch.from_numpy(records)) else "its moments are none of its records"


class HistogramSum(Sum):
    """Counts of all records by public parts of every column of numbers; RuntimeError in a run that releases none."""

    part, called, purpose, step, stored = HISTOGRAMS_PART, "histograms", "histogram", 1.0, "histograms"

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        counts = histograms_of(task)
        if counts is None:
            raise RuntimeError(
                "histograms of columns were asked for, and this node agreed to a run that releases none "
                "(privacy.histograms)"
            )
        self._counts = counts

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task)

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`: columns, and parts of the widest."""
        return len(self._counts.columns), self._counts.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (columns, width)."""
        records = node.records.take(rows_in(node, positions, stream))  # as they are, before any code of columns
        return self._counts.counted(records.features)

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> SumBudget:
        """See `Sum`."""
        return sum_budget(self.part, self._counts, shared().histograms, relation_of(self.task.experiment))

    def most(self, records: int) -> float:
        """See `Sum`."""
        return float(records)

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (columns, width), records of every cell, (c,)."""
        return None if self._counts.fits(steps, int(records.sum())) else "its counts are none of its records"
