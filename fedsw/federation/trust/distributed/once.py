"""Trust model `distributed` before and after the rounds: masked sums of moments of all records, and over kept ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Context as Memory
from flwr.app import Error, Message
from torch import Tensor

from fedsw.accounting import BudgetExhausted
from fedsw.federation import messages, wire
from fedsw.federation.budgets.moments import PART as MOMENTS
from fedsw.federation.budgets.moments import TALLY_PART as TALLY
from fedsw.federation.budgets.moments import moments_budget, moments_layout, tally_of
from fedsw.federation.budgets.split import GROUP
from fedsw.federation.messages import Broadcast, Exchange, Terms
from fedsw.federation.messages.masked import MaskedMomentsAsked, MaskedNumbers, MaskedTallyAsked
from fedsw.federation.node.answers import node_of, note, state_of_site
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.distributed.budget import WholeSum, delta_of, planned_shares, tally_budget
from fedsw.federation.trust.distributed.client import bytes_of
from fedsw.federation.trust.distributed.cohort import Cohort, honest
from fedsw.federation.trust.distributed.server import MaskedSums, Sums, summed_scale
from fedsw.federation.trust.distributed.site import Answering, charged, masked, masked_reply
from fedsw.federation.trust.local import column_sums
from fedsw.federation.trust.sketch.sides import records_of
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK, Sensitivity
from fedsw.runs.observer import Outcome
from fedsw.sketches.law import STEP
from fedsw.tasks import moments
from fedsw.tasks.measures import tally_of_records
from fedsw.tasks.problem import Problem

_MOST_KEPT = 2.0**28
"""Records that a site keeps out of training, at most; how many they are is not in a cohort."""


def masked_moments(message: Message, context: Memory) -> Message:
    """Before the first round: the moments of all records of the site's clients in the sum, of units a row each."""

    def vector(here: Answering[WholeSum], asked: MaskedMomentsAsked) -> Tensor:
        node, layout = here.node, moments_layout(here.node.task)
        assert layout is not None
        stream = node.own_stream(asked.round, asked.attempt, "moment rows")
        records = records_of(node, np.flatnonzero(here.there).tolist(), stream)
        return moments.sums_of(node.task, layout, records).double() * moments.STEP

    return _answer(messages.MASKED_MOMENTS, message, context, moments_sum, vector, lambda asked: {})


def masked_tally(message: Message, context: Memory) -> Message:
    """After the last round: sums over the kept records of the site's clients in the sum, of units a row each."""

    def vector(here: Answering[WholeSum], asked: MaskedTallyAsked) -> Tensor:
        node, kept, tally = here.node, here.node.kept, tally_of(here.node.task)
        assert kept is not None and tally is not None
        stream = node.own_stream(asked.round, asked.attempt, "tally rows")
        records = records_of(kept, np.flatnonzero(here.there).tolist(), stream)
        model = kept.task.prepared(node.model, asked.theta.tensor())  # features as they are: kept ones go unprepared
        return tally_of_records(kept.task, tally, records, model).double() * STEP

    def sent(asked: MaskedTallyAsked) -> Mapping[str, bytes]:
        return {"model": bytes_of(asked.theta)}

    return _answer(messages.MASKED_TALLY, message, context, tally_sum, vector, sent)


def moments_sum(task: Problem, cohort: Cohort) -> WholeSum:
    """The noise and the cost of an attempt at moments, whose cohort a site has checked.

    Guarantee: any H = T - C clients of the cohort add the noise that a trusted server would, at the moments' share of
    the budget and for the attempts that are planned (docs/guarantees/distributed-tasks.md, Theorem D3).

    Raises:
        RuntimeError: in a run that releases no moments.
    """
    budget = moments_budget(task, planned_shares(task.experiment, delta_of(task.experiment, cohort.records)).moments)
    if budget is None:
        raise RuntimeError("moments were asked for, and this node agreed to a run that releases none (privacy.moments)")
    most = tuple(SLACK * sum(map(sum, party.sizes)) for party in cohort.parties)
    (charge,) = budget.charges((GROUP,))
    return WholeSum(charge, budget.part, honest(task.experiment), cohort.clients_by_site, most)


def tally_sum(task: Problem, cohort: Cohort) -> WholeSum:
    """The same of an attempt at sums over kept records, which no round meets.

    Raises:
        RuntimeError: in a run that releases nothing of them.
    """
    tally = tally_of(task)
    if tally is None:
        raise RuntimeError(
            "sums over kept records were asked for, and this node agreed to a run that releases nothing of them "
            "(data.held_out_to)"
        )
    budget = tally_budget(task, tally, delta_of(task.experiment, cohort.records))
    (charge,) = budget.charges(())
    clients = cohort.clients_by_site
    return WholeSum(charge, budget.part, honest(task.experiment), clients, (_MOST_KEPT,) * len(clients))


def _answer(
    exchange: Exchange[Any, MaskedNumbers],
    message: Message,
    context: Memory,
    agree: Callable[[Problem, Cohort], WholeSum],
    vector: Callable[[Answering[WholeSum], Any], Tensor],
    sent: Callable[[Any], Mapping[str, bytes]],
) -> Message:
    """A site's part of a sum over records that are all in it, charged before it is computed.

    Args:
        agree: what all sites of a cohort work out alike; vector: the site's exact sum; sent: what its mask knows of the
            request.
    """
    node, asked = node_of(exchange, message, context)
    state = state_of_site(context)
    try:
        here = charged(node, asked, context, state, lambda cohort: agree(node.task, cohort))
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    state.clear()  # the nonce is used up, whatever comes
    note(exchange, asked, node, context)
    part = here.attempt.part
    bounded = Bounded(vector(here, asked), Sensitivity(part.sensitivity, part.name))
    return masked_reply(here, masked(here, bounded, part.name, asked, sent(asked)), message)


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
