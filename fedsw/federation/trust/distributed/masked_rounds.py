"""Trust model `distributed` at the server: it adds up masked numbers, and learns nothing but their sum.

`site` is the site's side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fedsw._tools.settings import FederationError
from fedsw.federation import messages, wire
from fedsw.federation.exchange.availability import named
from fedsw.federation.exchange.participants import Present, Site, totals, whole
from fedsw.federation.messages import Broadcast, Exchange, Fault, Message, Terms
from fedsw.federation.messages.table import (
    MaskedNumbers,
    MaskedSumAsked,
    MaskedTableAsked,
    Ready,
    ReadyAsked,
)
from fedsw.federation.node.roster import site_declined
from fedsw.federation.trust.context import AtClients, Collector, Context
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.attempt_cost import (
    Agreed,
    Attempt,
    attempt_of,
    delta_of,
    failing,
    noise_of,
    planned_shares,
)
from fedsw.federation.trust.distributed.members import Cohort, Party, own_counts, rate_of
from fedsw.federation.trust.round_plan import FederationPlan, column_sums, prepared_by
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.privacy.masks import summed
from fedsw.runs.observer import Outcome


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Plan of rounds in which all clients take part; every client works out the same."""
    experiment, fraction = task.experiment, task.experiment.training.batch_fraction
    present = whole(sites)
    sizes = totals(present)
    batch = column_sums(own_counts(site.sizes, fraction) for site in sites)
    for cell, total in zip(task.objective.cells, batch, strict=True):
        if total == 0:
            raise FederationError(
                f"no record of group {cell} would be in a batch: {fraction:g} of every client's records rounds to 0. "
                "Raise training.batch_fraction"
            )
    delta = delta_of(experiment, sum(sizes))
    shared = planned_shares(experiment, delta)
    directions = task.clipped.directions(0, 0)
    noise = noise_of(task, batch, delta, spreads=task.clipped.planned_spreads(), directions=directions)
    return FederationPlan.of(
        task,
        sizes=sizes,
        batch=batch,
        rates=(rate_of(fraction),) * len(sizes),
        delta=delta,
        epsilon=shared.epsilon,
        multiplier=shared.rounds,
        sensitivities=(noise.joint,) * len(sizes),
        moments=shared.moments,
        scores=shared.scores,
        histograms=shared.histograms,
    )


Sums = Callable[[Exchange[Any, MaskedNumbers], Message, float, int], Tensor | None]
"""One masked sum of an attempt: of an exchange, its request, the step of the grid, and how many numbers."""


class _Asking(Collector):
    """Ask sites, and note if one was lost because its own ledger allows no more."""

    exhausted = False

    def __init__(self, context: Context, *, remains: str) -> None:
        super().__init__(context, remains=remains)
        self.declined: dict[int, int] = {}
        """Nodes that declined a sum because of another site, and that site, by its first client."""

    def lose(self, site: Site, fault: Fault) -> None:
        """Count a site as lost; of one that declines because of another site, write down which (see `_exclude`)."""
        if fault.code == wire.NOT_IN_ROSTER and (other := site_declined(fault.reason)) is not None:
            self.declined[site.node] = other
            return
        self.exhausted |= fault.code == wire.BUDGET_EXHAUSTED
        super().lose(site, fault)


class MaskedSums(AtClients, ABC):
    """Ask for masked sums; a `ServerSide`. There is no ledger here: every client has its own.

    An attempt needs every site that it began with: masks cancel in the sum of all of them. One that fails was charged
    by every site that had answered; so the site that it fails on is suspended afterwards (`Suspensions`).
    """

    _charged = False
    """True once sites have answered a sum of the current attempt, and so were charged for it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._collector = _Asking(context, remains="The checkpoint and the clients' ledgers are kept")

    @abstractmethod
    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        """Outcome of an attempt of a cohort; None if one of its sites was lost."""

    def attempts_planned(self, rounds: int) -> int:
        """See `ServerSide`: local.failing says how many may fail."""
        return rounds + failing(self._task.experiment)

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `ServerSide`."""
        for attempt, present in self._collector.attempts(round_):
            outcome = self._attempt(round_, attempt, theta, [presence for presence in present if presence.count])
            if outcome is not None:
                self._rounds.add(round_)
                return outcome
            if self._collector.exhausted:
                raise BudgetExhausted(
                    "a client's ledger allows no further attempt. Attempts that failed were charged, too: "
                    "local.failing says how many the budget is for"
                )
        raise self._collector.gave_up(round_)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, present: Sequence[Present]) -> Outcome | None:
        self._charged = False
        # everybody in the attempt gives a fresh nonce; where somebody is not there, nothing was charged
        terms = [Terms.of(self._task, S=len(presence.here)) for presence in present]
        answers: Mapping[int, Ready] = self._collector.ask(
            messages.READY, present, [ReadyAsked(round_, attempt)] * len(present), terms
        )
        if len(answers) < len(present):
            return None
        parties = []
        for presence in present:
            answer, here = answers[presence.site.node], np.flatnonzero(presence.here)
            parties.append(
                Party(
                    site=int(presence.site.clients[0]),
                    key=answer.key,
                    nonce=answer.fresh,
                    clients=presence.site.clients[here].tolist(),
                    sizes=presence.site.sizes[here].tolist(),
                    code=answer.code or "",
                )
            )
        cohort = Cohort(records=self._plan.records, parties=parties)
        return self._released(round_, attempt, theta, cohort, partial(self._sum, present, round_))

    def _sum(
        self,
        present: Sequence[Present],
        round_: int,
        kind: Exchange[Any, MaskedNumbers],
        request: Message,
        step: float,
        length: int,
    ) -> Tensor | None:
        """One masked sum (length,), float64; None if a site is missing, and what the others sent is then noise."""
        self._collector.declined.clear()
        terms = [Terms.of(self._task, S=len(presence.here), y=length) for presence in present]
        answers = self._collector.ask(kind, present, [request] * len(present), terms, self._heard)
        self._charged |= bool(answers)
        if len(answers) < len(present):
            declined = self._collector.declined
            missing = [presence.site for presence in present if presence.site.node not in answers]
            self._suspend(round_, [site for site in missing if site.node not in declined])
            self._exclude([presence.site for presence in present], declined)
            return None
        return summed((answers[presence.site.node].values.numpy().view(np.uint64) for presence in present), step)

    def _suspend(self, round_: int, failed: Sequence[Site]) -> None:
        """Suspend the sites that an attempt failed on, if others were charged for it."""
        if not self._charged or self._collector.exhausted:
            return
        planned, sites = failing(self._task.experiment), len(self._context.sites)
        for site in failed:
            self._context.suspensions.fail(site, round_, planned=planned, sites=sites)

    def _exclude(self, sites: Sequence[Site], declined: Mapping[int, int]) -> None:
        """Leave out a site that most rosters lack, or else the sites with rosters that lack it."""
        excluded: dict[int, str] = {}
        for stranger in sorted(set(declined.values())):
            by = [site for site in sites if declined.get(site.node) == stranger]
            strangers = [site for site in sites if int(site.clients[0]) == stranger]
            if strangers and 2 * len(by) > len(sites) - 1:
                who = ", ".join(named(site)[0].lower() + named(site)[1:] for site in by)
                excluded[strangers[0].node] = f"the rosters of {who} have not its key for masks, or other clients"
            else:
                for site in by:
                    excluded[site.node] = f"its roster has not the site of client {stranger}, which others' have"
        for site in sites:
            if (why := excluded.get(site.node)) is not None:
                self._context.suspensions.exclude(site, f"{why}. Operators compare the digests of their rosters")

    def _heard(self, presence: Present, answer: MaskedNumbers) -> str | None:
        """Record what a site's ledgers have spent; returns why its answer does not count, or None."""
        assert answer.epsilon is not None
        try:
            for client, epsilon, here in zip(
                presence.site.clients, answer.epsilon.tolist(), presence.here, strict=True
            ):
                if here:
                    self._spending.hear(int(client), epsilon)
        except FederationError as fault:
            return str(fault)
        return None


class MaskedRounds(MaskedSums):
    """Rounds of one or two masked sums."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._ranks = ranked.Ranks(context.plan.task)

    def prepare(self, plan: FederationPlan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""
        self._plan, self._task = plan, plan.task

    def _released(self, round_: int, attempt: int, theta: Tensor, cohort: Cohort, sites: Sums) -> Outcome | None:
        task = self._task
        directions = task.clipped.directions(round_, attempt)
        agreed, text = attempt_of(task, cohort, directions), cohort.model_dump_json()
        clients, model, means, moved = sum(agreed.clients), Broadcast.of(theta, Terms.of(task)), None, None
        if ranked.compares(task):
            table = MaskedTableAsked(model, round_, attempt, text, prepared_by(self._plan))
            length = ranked.length_of(task, directions, agreed.bins)
            counts = sites(messages.MASKED_TABLES, table, agreed.shares("table")[0].step, length)
            if counts is None:
                return None
            slot_means, moved = self._slot_means(counts, agreed, theta, round_, attempt)
            means = Broadcast.of(slot_means, Terms.of(task))
        if not task.private_parameters:
            assert moved is not None
            return Outcome(moved, None, self.epsilon(), attempt, clients)
        last = MaskedSumAsked(model, round_, attempt, means, text, prepared_by(self._plan))
        step = agreed.shares("contribution")[0].step
        vector = sites(messages.MASKED_SUM, last, step, task.parameters)
        if vector is None:
            return None
        vector = vector if moved is None else vector + moved
        return Outcome(vector, summed_scale(agreed), self.epsilon(), attempt, clients)

    def _slot_means(
        self, counts: Tensor, agreed: Attempt, theta: Tensor, round_: int, attempt: int
    ) -> tuple[Tensor, Tensor | None]:
        """Slot means and a public side's gradient from all noised histograms, see `Ranks`; only post-processing.

        A server may answer anything here: the audit's attack does (`fedsw.audit.canary_masked`).
        """
        return self._ranks.of(counts, agreed.batch, agreed.directions, agreed.bins, theta, round_, attempt)


def summed_scale(agreed: Agreed) -> float:
    """Standard deviation of the noise in the sum that a charge is read with: that of all clients, honest or not."""
    return agreed.sigma * math.sqrt(sum(agreed.clients) / agreed.honest)
