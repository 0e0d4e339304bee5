"""Records that were kept out of training, after the last round: what is summed, and what its release costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.federation.exchange.participants import Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.node.node import Node
from fedsw.federation.trust.budget_shares import TALLY_PART, HeldOutBudget, Shares, held_out_budget
from fedsw.federation.trust.sums_once import Sum, records_of
from fedsw.learning.moments.beside_rounds import tally_of
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.measures import tally_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Cut, RegressionSums

_MOST_KEPT = 2.0**28
"""Records that a site keeps out of training, at most; how many they are is not in a cohort."""


class TallySum(Sum):
    """Sums over the records that were kept out of training, by group, under the released model `theta` (r,).

    It is the model for features as they are: kept records go through no preparation. Numbers to predict are cut, where
    the server says (`fedsw.learning.tasks.tally.Cut`). RuntimeError in a run that releases nothing of them.

    Guarantee: `fedsw.learning.tasks.tally`, for the replacement of one kept record, whatever the model and the cut are.
    """

    part, called, purpose, step, weights = TALLY_PART, "kept records", "tally", STEP, "theta"
    stored, anybody = "tally", True

    def __init__(self, task: Problem, theta: Tensor, cut: Cut | None = None) -> None:
        super().__init__(task)
        tally = tally_of(task)
        if tally is None:
            raise RuntimeError(
                "sums over kept records were asked for, and this node agreed to a run that releases nothing of them "
                "(data.held_out_to)"
            )
        if isinstance(tally, RegressionSums):
            tally = dataclasses.replace(tally, cut=cut)
        self._tally, self._theta = tally, theta

    @classmethod
    def asked(cls, task: Problem, request: Any) -> Self:
        """See `Sum`."""
        return cls(task, request.theta.tensor(), None if request.cut is None else Cut.of_flat(request.cut.tensor()))

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`; behind the model the weights have the cut of numbers to predict, if any (`Cut.flat`)."""
        theta, cut = weights[: task.parameters], weights[task.parameters :]
        return cls(task, theta, Cut.of_flat(cut) if len(cut) else None)

    @property
    def sent(self) -> Mapping[str, Any]:
        """See `Sum`."""
        terms, cut = Terms.of(self.task), self._cut
        return {
            "theta": Broadcast.of(self._theta, terms),
            "cut": None if cut is None else Broadcast.exact(cut),
        }

    @property
    def _cut(self) -> Tensor | None:
        return self._tally.cut_at.flat() if isinstance(self._tally, RegressionSums) else None

    @property
    def known(self) -> Mapping[str, bytes]:  # type: ignore[override]
        """See `Sum`."""
        cut = self._cut
        return {"model": self._theta.numpy().tobytes()} | ({} if cut is None else {"cut": cut.numpy().tobytes()})

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._tally.groups, self._tally.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (blocks, width)."""
        held_out = node.held_out
        assert held_out is not None
        records = records_of(held_out, positions, stream)
        model = held_out.task.prepared(held_out.model, self._theta)  # of records as they are: the node's may be mapped
        return tally_of_records(held_out.task, self._tally, records, model)

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> HeldOutBudget:
        """See `Sum`."""
        return held_out_budget(self.task.experiment, self._tally, shared().epsilon, delta, attempts)

    def most(self, records: int) -> float:
        """See `Sum`."""
        return _MOST_KEPT

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (blocks, width), records (blocks,)."""
        if self._tally.fits(steps, torch.from_numpy(records)):
            return None
        return f"its sums are none of {int(records.sum())} kept records"

    def counted(self, site: Site) -> NDArray[np.int64]:
        """See `Sum`."""
        assert site.held_out is not None
        return site.held_out

    def records(self, sites: Sequence[Site], clients: Collection[int]) -> NDArray[np.int64]:
        """See `Sum`; the declared number is that of kept ones."""
        declared = self.task.experiment.declared
        return super().records(sites, clients) if declared is None else np.array([declared[1]])
