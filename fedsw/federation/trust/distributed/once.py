"""Trust model `distributed` where a sum leaves once: masked sums of moments, sketches, scores and kept records.

At its end `ROUNDS` and `SKETCHED` say which function answers which message, those of rounds among them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from flwr.app import Context as Memory
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.messages import AnyExchange
from fedsw.federation.node.own_ledger import GROUP
from fedsw.federation.node.replies import Handler, node_of, note, state_of_site
from fedsw.federation.node.roster import require_keys
from fedsw.federation.trust import Once, Sides
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.distributed import attempt_cost as budget
from fedsw.federation.trust.distributed import site
from fedsw.federation.trust.distributed.attempt_cost import Agreed, attempts_at_one, delta_of, planned_shares
from fedsw.federation.trust.distributed.masked_rounds import MaskedRounds, MaskedSums, Sums, make_plan, summed_scale
from fedsw.federation.trust.distributed.members import Cohort, honest
from fedsw.federation.trust.distributed.site import Answering, charged, masked, masked_reply
from fedsw.federation.trust.sketch import sketch_once as sketched
from fedsw.federation.trust.sketch.sketch_once import SketchSum
from fedsw.federation.trust.sums_once import HistogramSum, MomentSum, ScoreSum, Sum, TallySum
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.runs.observer import Outcome


def agreed_sum(total: Sum, cohort: Cohort) -> Agreed:
    """The noise and the cost of an attempt at a sum, with a cohort that a site has checked.

    Guarantee: any H = T - C clients of the cohort add the noise that a trusted server would, at the sum's share of the
    budget and for the attempts that are planned (docs/guarantees/distributed-tasks.md, Theorem D3).
    """
    experiment = total.task.experiment
    delta = delta_of(experiment, cohort.records)
    cost = total.budget(delta, lambda: planned_shares(experiment, delta), attempts_at_one(experiment))
    charges, part = cost.charges((GROUP,), experiment), cost.part
    most = {part.name: [total.most(sum(map(sum, party.sizes))) for party in cohort.parties]}
    return Agreed(charges, part.scale, [part], most, honest(experiment), cohort.clients_by_site)


def answer_masked(exchange: AnyExchange, kind: type[Sum]) -> Handler:
    """Handler that answers with a site's part of a masked sum over all records, charged before it is computed."""

    def answer(message: Message, context: Memory) -> Message:
        node, request = node_of(exchange, message, context)
        total, state = kind.asked(node.task, request), state_of_site(context)
        here = charged(node, request, context, state, lambda cohort: agreed_sum(total, cohort))
        state.clear()  # the nonce is used up, whatever comes
        note(exchange, request, node, context)
        bounded = bounded_of(total, here, request.round, request.attempt)
        return masked_reply(here, masked(here, bounded, total.part, request, total.known), message)

    return answer


def bounded_of(total: Sum, here: Answering[Agreed], round_: int, attempt: int) -> Bounded:
    """A site's exact sum over its clients that are in the attempt; of units, a row each, drawn at random."""
    stream = here.node.own_stream(round_, attempt, f"{total.purpose} rows")
    steps, (part,) = total.steps(here.node, np.flatnonzero(here.there).tolist(), stream), here.attempt.parts
    return Bounded(steps.double() * total.step, Sensitivity(part.sensitivity, part.name, part.relation))


class MaskedOnce(MaskedSums):
    """One masked sum over all records, or all kept ones. What is released is not asked for again."""

    def __init__(self, context: Context, exchange: AnyExchange, kind: type[Sum]) -> None:
        super().__init__(context)
        self._exchange, self._kind = exchange, kind
        self.records: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        total = self._kind.at(self._task, round_, theta)
        agreed, text = agreed_sum(total, cohort), cohort.model_dump_json()
        request = self._exchange.down(round=round_, attempt=attempt, cohort=text, **total.sent)
        vector = sites(self._exchange, request, agreed.shares(total.part)[0].step, math.prod(total.shape))
        if vector is None:
            return None
        self.records = total.records(self._context.sites, cohort.clients)
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, sum(agreed.clients))


ONCE = Once(
    MaskedOnce,
    answer_masked,
    {
        HistogramSum: messages.MASKED_HISTOGRAMS,
        MomentSum: messages.MASKED_MOMENTS,
        TallySum: messages.MASKED_TALLY,
        ScoreSum: messages.MASKED_SCORES,
    },
)
SKETCH = replace(ONCE, sums={SketchSum: messages.MASKED_SKETCH})
ROUNDS = Sides(
    make_plan,
    MaskedRounds,
    {
        messages.READY: site.ready,
        messages.MASKED_TABLES: site.masked_tables,
        messages.MASKED_SUM: site.masked_sum,
        **ONCE.handlers,
    },
    ONCE,
    epsilon=lambda node, delta: planned_shares(node.task.experiment, delta).epsilon,
    planned=budget.planned,
    require_node=require_keys,
)
SKETCHED = replace(
    sketched.LOCAL,
    server=SKETCH.only,
    handlers={messages.READY: site.ready, **SKETCH.handlers},
    once=SKETCH,
    require_node=require_keys,
)
