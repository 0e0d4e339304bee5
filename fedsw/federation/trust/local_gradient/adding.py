"""Trust model `local-gradient` at the server: it adds up noised tables and noised contributions, and sees no others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsw._tools.settings import FederationError
from fedsw.experiment import resolve_delta
from fedsw.federation import messages
from fedsw.federation.exchange.participants import Member, Site
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.table import LocalGradientAsked, TableAsked
from fedsw.federation.trust import Once, Sides
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.context import LocalMethod, describe
from fedsw.federation.trust.local_gradient import noising as client
from fedsw.federation.trust.round_plan import FederationPlan, column_sums, prepared_by
from fedsw.federation.trust.sums_once import HistogramSum, LocalSums, MomentSum, ScoreSum, TallySum, answer_noised
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.sliced import orthogonal_spread
from fedsw.runs.observer import Outcome


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Plan for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`budget_split`); this one is what may be shown.
    """
    experiment, training = task.experiment, task.experiment.training
    members = [member for site in sites for member in site.members]
    rows = [split.own_batch(member.sizes, training.batch_fraction) for member in members]
    sizes, batch = column_sums(member.sizes for member in members), column_sums(rows)
    rates = tuple(
        max(row[cell] / member.sizes[cell] for row, member in zip(rows, members, strict=True) if member.sizes[cell])
        for cell in range(len(sizes))
    )
    delta = resolve_delta(experiment.privacy.delta, records=sum(sizes))
    divided = split.budget_split(experiment, rate=max(rates), delta=delta)
    fixed = task.dimension > 1 and experiment.slicing.scheme == "orthogonal"
    k = task.clipped.directions(0, 0)[0].shape[1]
    bounds = tuple(
        split.noise(
            divided,
            client.penalty_of(task),
            task.clip,
            sizes=batch,
            own_sizes=[int(cell == other) for other in range(len(sizes))],
            spread=orthogonal_spread(task.dimension, k) if fixed else 1.0,
            k=k,
        ).joint
        for cell in range(len(sizes))
    )
    return FederationPlan.of(
        task,
        sizes=sizes,
        batch=batch,
        rates=rates,
        delta=delta,
        epsilon=divided.epsilon,
        multiplier=divided.rounds,
        sensitivities=bounds,
        moments=divided.moments,
        scores=divided.scores,
        histograms=divided.histograms,
    )


class LocalGradient(LocalMethod):
    """Rounds in which every client noises its table and its contribution for its own guarantee."""

    _prepared: Broadcast | None = None

    def prepare(self, plan: FederationPlan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""
        self._plan, self._task, self._prepared = plan, plan.task, prepared_by(plan)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        task = self._task
        fraction = task.experiment.training.batch_fraction
        counts = {member: split.own_batch(member.sizes, fraction) for member in members}
        sizes, records = column_sums(counts.values()), self._plan.records
        terms = Terms.of(task, k=task.clipped.directions(round_, attempt)[0].shape[1])
        model, slot_means = Broadcast.of(theta, terms), None
        if split.asks_tables(task.experiment):
            self._require_groups(round_, sizes, self._away())  # before anybody is asked, and charged
            request = TableAsked(model, round_, attempt, sizes, records, self._prepared)
            noisy_tables = self._ask(messages.TABLES, round_, members, request, lambda member: terms)
            totals = column_sums(counts[member] for member in noisy_tables)
            self._require_groups(round_, totals, describe(self._lost))
            summed = torch.stack([answer.values.double() for answer in noisy_tables.values()]).sum(dim=0)
            slot_means = Broadcast.of(self._tables(summed, totals), terms)
            members = list(noisy_tables)
        last = LocalGradientAsked(model, round_, attempt, slot_means, sizes, records, self._prepared)
        answers = self._ask(messages.LOCAL_GRADIENTS, round_, members, last, lambda member: terms)
        vector = torch.zeros(task.parameters, dtype=torch.float64)
        for answer in answers.values():
            vector += answer.values
        sigma = math.hypot(*(answer.sigma for answer in answers.values()))
        return Outcome(vector, sigma, self.epsilon(), attempt, len(answers))

    def _tables(self, summed: Tensor, totals: Sequence[int]) -> Tensor:
        """Slot means (cells, k, bins) from the summed noisy histograms; nothing but post-processing."""
        counts = [tables.monotone(cell, total) for cell, total in zip(summed, totals, strict=True)]
        return torch.stack(tables.matched(counts, client.penalty_of(self._task), self._task.clip.output))

    def _require_groups(self, round_: int, totals: Sequence[int], missing: str) -> None:
        """Refuse distances without both of their groups, naming the clients that are missing."""
        if min(totals) == 0:
            name = self._task.objective.cells[totals.index(0)]
            raise FederationError(
                f"round {round_}: no client that answered holds a record of group {name}. {missing} Mend "
                "the clients, then resume the run"
            )


ONCE = Once(
    LocalSums,
    answer_noised,
    {
        HistogramSum: messages.NOISY_HISTOGRAMS,
        MomentSum: messages.NOISY_MOMENTS,
        TallySum: messages.NOISY_TALLY,
        ScoreSum: messages.NOISY_SCORES,
    },
)
SIDES = Sides(
    make_plan,
    LocalGradient,
    {messages.TABLES: client.answer_tables, messages.LOCAL_GRADIENTS: client.answer_gradients, **ONCE.handlers},
    ONCE,
    epsilon=lambda node, delta: split.budget_of(node.task.experiment, node.sizes, delta).epsilon,
    planned=client.planned,
)
