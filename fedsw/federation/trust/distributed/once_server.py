"""Trust model `distributed` at the server, before and after the rounds: one masked sum of moments, one of a tally."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.budgets.held_out import PART as TALLY
from fedsw.federation.budgets.held_out import tally_of
from fedsw.federation.budgets.moments import PART as MOMENTS
from fedsw.federation.budgets.moments import moments_layout
from fedsw.federation.messages import Broadcast, MaskedMomentsAsked, MaskedTallyAsked, Terms
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.distributed.cohort import Cohort
from fedsw.federation.trust.distributed.once_client import moments_sum, tally_sum
from fedsw.federation.trust.distributed.server import MaskedSums, Sums, summed_scale
from fedsw.federation.trust.local import column_sums
from fedsw.runs.observer import Outcome


class MaskedMoments(MaskedSums):
    """The masked sum of the moments of all records; a `MomentsSide`."""

    records: tuple[int, ...] = ()

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        layout, agreed = moments_layout(self._task), moments_sum(self._task, cohort)
        assert layout is not None
        asked = MaskedMomentsAsked(round_, attempt, cohort.model_dump_json())
        step, length = agreed.shares(MOMENTS)[0].step, layout.cells * layout.width
        vector = sites(messages.MASKED_MOMENTS, asked, step, length)
        if vector is None:
            return None
        self.records = column_sums(row for party in cohort.parties for row in party.sizes)
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, sum(agreed.clients))


class MaskedTally(MaskedSums):
    """The masked sum over the records that clients kept out of training; a `TallySide`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        tally = tally_of(self._task)
        assert tally is not None
        self._tally, self.records = tally, np.zeros(tally.groups, dtype=np.int64)

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        agreed, model = tally_sum(self._task, cohort), Broadcast.of(theta, Terms.of(self._task))
        asked = MaskedTallyAsked(model, round_, attempt, cohort.model_dump_json())
        step, length = agreed.shares(TALLY)[0].step, self._tally.groups * self._tally.width
        vector = sites(messages.MASKED_TALLY, asked, step, length)
        if vector is None:
            return None
        for site in self._context.sites:
            assert site.kept is not None
            self.records = self.records + site.kept[np.isin(site.clients, cohort.clients)].sum(axis=0)
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, sum(agreed.clients))
