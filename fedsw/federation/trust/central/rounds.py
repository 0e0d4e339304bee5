"""Rounds of `central` and `none`: outputs up, cotangents down, contributions up, and the release of one noised sum.

Ranks, checks and sums are computed on `training.device`. Messages are bytes, in the host's memory, so what crosses
between the two in an attempt is: all outputs in one piece, the directions of each penalty, all cotangents in one piece,
every site's contribution, one verdict a site on their norms (all together), and the sum. The sum ends on the host: its
noise comes from a key stream and exact arithmetic there, and checkpoint and messages take what is released from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.exchange.participants import Present, Site, clients_of, totals
from fedsw.federation.messages import Broadcast, Fault, Terms
from fedsw.federation.messages.table import Contribution, GradientsAsked, OutputsAsked, SumAsked
from fedsw.federation.trust import Once, Sides
from fedsw.federation.trust.central import unnoised as client
from fedsw.federation.trust.context import AtServer, Collector, Context, who_is_in
from fedsw.federation.trust.round_plan import Draw, FederationPlan, charges, draw, make_plan, most_drawn, prepared_by
from fedsw.federation.trust.sums_once import HistogramSum, MomentSum, ScoreSum, TallySum, TrustedSums, answer_exactly
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import public_side_of
from fedsw.mathematics.transport.sliced import spread
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.release import Bounded, Released
from fedsw.privacy.release import release as through_the_door
from fedsw.privacy.sensitivity import SLACK, Sensitivity, worst
from fedsw.runs.observer import Outcome


@dataclass(frozen=True)
class Aggregate:
    """The un-noised sum of one attempt, on the host, with what bounds it. It never leaves the server's memory.

    `sensitivities` and `draw` are those of the batch of the first exchange: clients lost later only take terms away.
    """

    round: int
    attempt: int
    vector: Tensor
    draw: Draw
    sensitivities: tuple[Sensitivity, ...]
    clients: int
    training_loss: float | None


class Rounds(AtServer):
    """Rounds in which the server sees the un-noised sum, charges its ledger, and releases.

    A client lost before its outputs came means a fresh attempt: new batch, new directions (nothing was released,
    nothing is charged). A client lost between the exchanges takes its terms with it: the bound is a sum of norms, and
    the sizes of the first exchange stay. What is checked of a site's contribution is the sum of its clients' bounds.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        plan = context.plan
        self._plan, self._prepared = plan, prepared_by(plan)
        self._public_side = public_side_of(plan.task)
        self._collector = Collector(context, remains="The checkpoint and the ledger are kept")

    def prepare(self, plan: FederationPlan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""
        self._plan, self._prepared = plan, prepared_by(plan)

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `fedsw.federation.trust.context.ServerSide`."""
        aggregate = self.run(round_, theta)
        released = release(aggregate, self._plan, self._ledger)
        return Outcome(
            released.value,
            released.sigma,
            released.spent,
            aggregate.attempt,
            aggregate.clients,
            aggregate.training_loss,
        )

    def run(self, round_: int, theta: Tensor) -> Aggregate:
        """The un-noised sum of one round at the model `theta` (flat, float64): of the first attempt that succeeds."""
        for attempt, present in self._collector.attempts(round_):
            aggregate = self._attempt(round_, attempt, theta, present)
            if aggregate is not None:
                return aggregate
        raise self._collector.gave_up(round_)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, present: Sequence[Present]) -> Aggregate | None:
        plan, task = self._plan, self._plan.task
        settled = draw(plan, present, round_=round_, attempt=attempt)
        if task.objective.alpha == 0 and self._public_side is None:
            return self._uncompared(settled, round_, attempt, theta, present)
        rows = most_rows(plan, settled, present)
        terms = [Terms.of(task, P=rows_, S=len(presence.here)) for rows_, presence in zip(rows, present, strict=True)]
        model = Broadcast.of(theta, terms[0])
        requests = [
            OutputsAsked(model, round_, attempt, torch.from_numpy(counts), length, self._prepared)
            for counts, length in zip(settled.counts, rows, strict=True)
        ]
        outputs = self._collector.ask(messages.OUTPUTS, present, requests, terms)
        if len(outputs) < len(present):
            return None
        theta_directions = task.clipped.directions(round_, attempt)
        bounds = task.clipped.sensitivities(settled.batch, [spread(block) for block in theta_directions])
        stacked = stacked_outputs(settled, [outputs[presence.site.node].outputs for presence in present], task)
        total = torch.zeros(task.parameters, dtype=torch.float64, device=task.device)
        by_cell, other = self._matched(stacked, theta_directions, theta, round_, attempt)
        if other is not None:
            total += other
        if not task.private_parameters:
            return Aggregate(round_, attempt, total.cpu(), settled, bounds, clients_of(present), None)
        weight, cotangents = task.objective.task_weight(settled.total), cut_by_site(settled, by_cell)
        asked_for = [GradientsAsked(model, round_, attempt, q, weight, self._prepared) for q in cotangents]
        answers = self._collector.ask(messages.GRADIENTS, present, asked_for, terms)
        parts = self._parts(present, settled, answers, cotangents, weight)
        return self._summed(round_, attempt, total, settled, bounds, parts)

    def _uncompared(
        self, settled: Draw, round_: int, attempt: int, theta: Tensor, present: Sequence[Present]
    ) -> Aggregate | None:
        """An attempt without a penalty: one exchange, and no outputs, which would not be used."""
        task = self._plan.task
        terms = [Terms.of(task, S=len(presence.here)) for presence in present]
        model, weight = Broadcast.of(theta, terms[0]), task.objective.task_weight(settled.total)
        requests = [
            SumAsked(model, round_, attempt, torch.from_numpy(counts), weight, self._prepared)
            for counts in settled.counts
        ]
        answers = self._collector.ask(messages.SUM, present, requests, terms)
        unused = [task.no_cotangents(int(counts.sum())) for counts in settled.counts]
        parts = self._parts(present, settled, answers, unused, weight)
        bounds = task.clipped.sensitivities(settled.batch, [1.0 for _ in task.clipped.compared])
        total = torch.zeros(task.parameters, dtype=torch.float64, device=task.device)
        return self._summed(round_, attempt, total, settled, bounds, parts)

    def _summed(
        self,
        round_: int,
        attempt: int,
        total: Tensor,
        settled: Draw,
        bounds: tuple[Sensitivity, ...],
        parts: Sequence[SiteContribution],
    ) -> Aggregate | None:
        """The sum of the sites' contributions on top of `total`; None if too few clients are in it."""
        if (answered := sum(part.clients for part in parts)) < self._collector.least:
            return None
        for part in parts:
            total += part.vector
        unsafe = self._plan.task.experiment.unsafe_metrics
        loss = mean_loss([part.answer for part in parts]) if unsafe else None
        return Aggregate(round_, attempt, total.cpu(), settled, bounds, answered, loss)

    def _matched(
        self, stacked: list[Tensor], directions: Sequence[Tensor], theta: Tensor, round_: int, attempt: int
    ) -> tuple[list[Tensor], Tensor | None]:
        """Cotangents by cell, all penalties' columns side by side, and the contribution of a public side."""
        task = self._plan.task

        def sample(number: int, count: int) -> Tensor:
            if self._public_side is None:
                return task.clipped.prior(round_, attempt, number, count)
            return self._public_side.sample(theta, count, round_, attempt)

        by_cell, other = task.clipped.cotangents(stacked, directions, sample)
        if self._public_side is None or other is None:
            return by_cell, None
        return by_cell, self._public_side.contribution(other)

    def _parts(
        self,
        present: Sequence[Present],
        settled: Draw,
        answers: Mapping[int, Contribution],
        cotangents: Sequence[Tensor],
        weight: float,
    ) -> list[SiteContribution]:
        """Contributions, in client order, of the sites that answered within their clients' bounds."""
        task, parts = self._plan.task, []
        for presence, counts, pulled in zip(present, settled.counts, cotangents, strict=True):
            if (answer := answers.get(presence.site.node)) is None:
                continue
            included = who_is_in(presence, answer)
            if included is None:
                self._collector.lose(
                    presence.site, Fault("unreadable answer: its lost clients are none of its clients")
                )
                continue
            if not bool(included.all()):
                rows = np.concatenate([np.repeat(included, column) for column in counts.T])
                pulled = pulled[torch.from_numpy(rows)]
            most = SLACK * task.most_pulled(pulled, weight)
            parts.append(
                SiteContribution(presence.site, answer, answer.vector.to(task.device), most, int(included.sum()))
            )
        accepted = []
        for part, within in zip(parts, within_bounds(parts), strict=True):
            if within:
                accepted.append(part)
            else:  # neither number is shown: both are un-noised functions of records
                self._collector.lose(
                    part.site, Fault("its contribution weighs more than allowed, above its clip bound")
                )
        return accepted


def release(aggregate: Aggregate, plan: FederationPlan, ledger: Ledger) -> Released:
    """Release one round's sum (r,), with sigma = multiplier * max over groups of Delta; without noise under `none`.

    Guarantee: `fedsw.privacy.release.release`, each group at its own sampling rate and sensitivity.

    BudgetExhausted before anything is released, when the round would exceed the ledger's epsilon; ValueError if no
    noise has that sigma: nothing is charged.
    """
    costs = charges(plan, aggregate.draw, aggregate.sensitivities)
    bounded = Bounded(
        aggregate.vector,
        worst(aggregate.sensitivities),
        round=aggregate.round,
        attempt=aggregate.attempt,
        charges=costs,
    )
    return through_the_door(bounded, plan, ledger)


@dataclass(frozen=True, eq=False)
class SiteContribution:
    """A site's contribution, its vector (r,) on the device, the most it may weigh, and how many clients are in it."""

    site: Site
    answer: Contribution
    vector: Tensor
    most: float
    clients: int


def within_bounds(parts: Sequence[SiteContribution]) -> list[bool]:
    """Which contributions weigh no more than they may: compared on the device, and read all together."""
    if not parts:
        return []
    verdicts = torch.stack([torch.linalg.vector_norm(part.vector) <= part.most for part in parts])
    within: list[bool] = verdicts.cpu().tolist()
    return within


def stacked_outputs(settled: Draw, outputs: Sequence[Tensor], task: Problem) -> list[Tensor]:
    """Outputs (n_j, d) by cell j, in client order, without filler, projected again: a client's word is not a bound.

    All of them go to the device in one piece.
    """
    rows = [counts.sum(axis=0).tolist() for counts in settled.counts]
    pieces = [torch.split(out[: sum(row)], row) for out, row in zip(outputs, rows, strict=True)]
    joined = torch.cat([piece for cell in zip(*pieces, strict=True) for piece in cell]).to(task.device)
    return [task.clipped.in_balls(cell) for cell in torch.split(joined, list(settled.batch))]


def most_rows(plan: FederationPlan, settled: Draw, present: Sequence[Present]) -> list[int]:
    """Rows of each site's messages: more than it is ever asked for, so that their size tells no count."""
    drawn = [int(counts.sum()) for counts in settled.counts]
    if plan.task.experiment.privacy.sampling == "stratified":
        return drawn  # fixed in advance, and public
    sizes = totals(present)
    held = [presence.sizes.sum(axis=0).tolist() for presence in present]
    room = [sum(map(most_drawn, settled.batch, sizes_, sizes)) for sizes_ in held]
    return [max(most, number) for most, number in zip(room, drawn, strict=True)]


def cut_by_site(settled: Draw, by_cell: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents (n_s, d) by site, by cell and then by client; on the host, brought there in one piece."""
    joined, sites = torch.cat(list(by_cell)).cpu(), len(settled.counts)
    rows = np.stack([counts.sum(axis=0) for counts in settled.counts], axis=1)  # (cells, sites)
    pieces = torch.split(joined, rows.reshape(-1).tolist())
    return [torch.cat(pieces[site::sites]) for site in range(sites)]


def mean_loss(parts: Sequence[Contribution]) -> float | None:
    """The mean of the batch's losses as clients report them; a client that reports no loss or no count is left out."""
    reported = [(part.training_loss, part.records) for part in parts]
    known = [(loss, count) for loss, count in reported if loss is not None and count is not None]
    total = sum(count for _, count in known)
    return sum(loss * count for loss, count in known) / total if total > 0 else None


ONCE = Once(
    TrustedSums,
    answer_exactly,
    {
        HistogramSum: messages.HISTOGRAMS,
        MomentSum: messages.MOMENTS,
        TallySum: messages.TALLY,
        ScoreSum: messages.SCORES,
    },
)
SIDES = Sides(
    make_plan,
    Rounds,
    {
        messages.OUTPUTS: client.outputs,
        messages.GRADIENTS: client.gradients,
        messages.SUM: client.sums,
        **ONCE.handlers,
    },
    ONCE,
)
