"""Trust model `distributed` at the server of a run on a sketch: one masked sum a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.budgets.sketches import PART
from fedsw.federation.exchange.cohort import Site
from fedsw.federation.messages import MaskedSketchAsked
from fedsw.federation.trust.distributed import sketch_client
from fedsw.federation.trust.distributed.budget import attempts_at_one
from fedsw.federation.trust.distributed.cohort import Cohort
from fedsw.federation.trust.distributed.server import MaskedSums, Sums, summed_scale
from fedsw.federation.trust.plan import Plan
from fedsw.federation.trust.sketch import server as trusted
from fedsw.runs.observer import Outcome
from fedsw.tasks.measures import sketcher_of
from fedsw.tasks.problem import Problem


def make_plan(task: Problem, sites: Sequence[Site]) -> Plan:
    """What is fixed before the first stage: that of a trusted server, for as many attempts as are planned."""
    return trusted.make_plan(task, sites, attempts=attempts_at_one(task.experiment))


class MaskedSketch(MaskedSums):
    """One masked sum of all records a stage; a `OneRelease`. A stage that is released is not asked for again."""

    grows = False
    records = 0

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Empty: their sum alone is known."""
        return {}

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        task, stage = self._task, trusted.stage_with(round_, theta)
        agreed, sketcher = sketch_client.sum_of(task, cohort, stage), sketcher_of(task, stage)
        asked = MaskedSketchAsked(round_, attempt, trusted.broadcast(task, theta), cohort.model_dump_json())
        length = sketcher.law.cells * (sketcher.coordinates + 1)
        vector = sites(messages.MASKED_SKETCH, asked, agreed.shares(PART)[0].step, length)
        if vector is None:
            return None
        self.records = sum(sum(map(sum, party.sizes)) for party in cohort.parties)
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, sum(agreed.clients))
