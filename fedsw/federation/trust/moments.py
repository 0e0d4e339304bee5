"""The moments of all records, before the first round: exact sums for a trusted server, or sums noised by clients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context as Memory
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.budgets.moments import FIRST, PART, MomentsBudget, idle, moments_budget, moments_layout
from fedsw.federation.budgets.split import GROUP, budget_of
from fedsw.federation.exchange.cohort import Member
from fedsw.federation.messages import Terms
from fedsw.federation.messages.sums import ExactMoments, MomentsAsked, NoisyMoments, NoisyMomentsAsked
from fedsw.federation.node import account
from fedsw.federation.node.answers import answered, each_pays, fresh, ledger_of, released
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.trust.context import Context, ExactSums, Once, SiteSums
from fedsw.federation.trust.local import LocalMethod, column_sums
from fedsw.federation.trust.model import served
from fedsw.privacy.release import Bounded, Paid, Released, pay, release, release_paid
from fedsw.randomness import KEY_BYTES, Stream
from fedsw.runs.observer import Outcome
from fedsw.tasks.moments import STEP, Layout, sums_of
from fedsw.tasks.problem import Problem


def steps_of_moments(node: Node, asked: Tensor, lost: NDArray[np.int64], key: bytes) -> Tensor:
    """`central`: the moments of all records of the clients that are asked and not lost, WITHOUT NOISE, in whole steps.

    They are for a server that is trusted, which noises the sum of all of them once. Where a unit is declared, one row
    of each unit is in it, drawn at random.

    Args:
        asked: (S,), 1 for each client that is asked.
        lost: positions of clients.
        key: decides on the rows; secret, but in a seeded run.

    Returns:
        (cells, u), int64; zeros if no client is left.
    """
    places = [int(place) for place in np.flatnonzero(asked.numpy()) if place not in lost]
    stream = Stream(key)
    if len(places) == len(node.clients):
        records = node.everybody(stream)
    else:
        units = np.concatenate([node.units_of(place) for place in places]) if places else np.empty(0, dtype=np.int64)
        records = node.rows_of(np.sort(units), stream)
    return sums_of(node.task, _layout_at(node), records)


def noised_moments(node: Node, place: Path, attempt: int, federation: int, paid: Paid | None = None) -> Released:
    """`local-gradient`: the moments of all of this client's records, with noise of its own, once.

    Guarantee: with the rounds that follow, the client's own (epsilon, delta), for the replacement of one of its
    records, label and group included, against everybody: charged on disk before the noise is drawn.

    Args:
        place: of its ledger.
        federation: records of the whole federation, for a delta such as "0.1/n".
        paid: the payment, where the clients of a site paid together (`moments_due`).

    Returns:
        What is released, (cells, u) float64, and the epsilon that the client's ledger has spent then (public).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    if paid is None:
        due = moments_due(node, place, attempt, federation)
        with account.opened(place, due.promise) as ledger:
            paid = pay(ledger, FIRST, attempt, due.charges, due.sigma, due.parts)
    records = node.everybody(_stream(node, attempt, "moment rows"))
    steps = sums_of(node.task, _layout_at(node), records)
    bounded = Bounded(steps.double() * STEP, _budget(node, federation).sensitivity)
    return release_paid(bounded, paid, PART, _stream(node, attempt, "moment noise"))


def moments_due(node: Node, place: Path, attempt: int, federation: int) -> account.Due:
    """What this client pays for its moments, for a payment together with others."""
    budget = _budget(node, federation)
    promised = served(node.task.experiment).promise(node, node.delta(federation))
    charges = [*budget.charges((GROUP,)), *idle(node.task.experiment)]
    return account.Due(place, promised, FIRST, attempt, charges, budget.sigma, [budget.part])


def _layout_at(node: Node) -> Layout:
    """What is summed.

    Raises:
        RuntimeError: in a run that releases no moments.
    """
    layout = moments_layout(node.task)
    if layout is None:
        raise RuntimeError("moments were asked for, and this node agreed to a run that releases none (privacy.moments)")
    return layout


def _budget(node: Node, federation: int) -> MomentsBudget:
    _layout_at(node)
    budget = moments_budget(node.task, budget_of(node.task.experiment, node.sizes, node.delta(federation)).moments)
    assert budget is not None
    return budget


def _stream(node: Node, attempt: int, purpose: str) -> Stream:
    """This client's secret randomness of one purpose; reproducible only in a seeded (nominal) run."""
    seed = node.task.experiment.seed
    if seed is None:
        return Stream(os.urandom(KEY_BYTES))
    return Stream.seeded(seed, purpose, int(node.clients[0]), FIRST, attempt)


def answer_exactly(message: Message, context: Memory) -> Message:
    """Before the first round: exact sums over all records of the clients that are asked."""
    node, asked = fresh(messages.MOMENTS, message, context)
    lost = node.lost(asked.round, asked.attempt)
    key = batch_key(node.task, asked.round, asked.attempt)
    steps = steps_of_moments(node, asked.asked, lost, key)
    return answered(ExactMoments(steps, torch.from_numpy(lost)), node, message)


def answer_noised(message: Message, context: Memory) -> Message:
    """`local-gradient`, before the first round: sums over a client's records, noised by itself, charged to it."""

    def release(node: Node, asked: NoisyMomentsAsked, paid: Paid | None = None) -> NoisyMoments:
        found = noised_moments(node, ledger_of(node, context), asked.attempt, asked.records, paid)
        return NoisyMoments(found.spent, found.value, found.sigma)

    def due(node: Node, asked: NoisyMomentsAsked) -> account.Due:
        return moments_due(node, ledger_of(node, context), asked.attempt, asked.records)

    return released(messages.NOISY_MOMENTS, message, context, release, each_pays(due, release))


class TrustedMoments:
    """`central` and `none`: sites send exact sums, and the server adds them, charges its ledger, and noises once.

    Who does not answer is not in the sums; attempts with too few are made again, and cost nothing.
    """

    def __init__(self, context: Context) -> None:
        self._plan, self._context, self._layout = context.plan, context, _layout(context.plan.task)
        self._sums: ExactSums[MomentsAsked, ExactMoments] = ExactSums(
            context, kind=messages.MOMENTS, request=MomentsAsked, fault=self._fault
        )
        self.records: tuple[int, ...] = ()

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `fedsw.federation.trust.model.MomentsSide`.

        Raises:
            BudgetExhausted: if moments were charged for before; nothing is then released.
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        plan, experiment = self._plan, self._plan.task.experiment
        attempt, found = self._sums.collect(round_)
        steps = torch.stack([answer.steps for answer in found]).sum(dim=0)
        budget = moments_budget(plan.task, plan.moments)
        assert budget is not None
        charges = [*budget.charges(plan.task.objective.cells), *idle(experiment)]
        bounded = Bounded(steps.double() * STEP, budget.sensitivity, round=round_, attempt=attempt, charges=charges)
        released = release(bounded, Once(plan.moments, plan), self._context.charged)
        self.records = column_sums(_sizes(answer).tolist() for answer in found)
        clients = sum(int(answer.there.sum()) for answer in found)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, clients)

    def _fault(self, answer: SiteSums) -> str | None:
        if self._layout.fits(answer.steps, _sizes(answer)):
            return None
        return "its moments are none of its records"


class LocalMoments(LocalMethod):
    """`local-gradient`: every client sends moments that it has noised itself, once; those that came are added up.

    The clients' moments are stored, "noised" (cells, u) with "sigma"; who is among them is not asked again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.records: tuple[int, ...] = ()

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        terms = Terms.of(self._task)
        asked = NoisyMomentsAsked(round_, attempt, self._plan.records)

        def arrays(answer: NoisyMoments) -> Mapping[str, Tensor]:
            return {"noised": answer.values, "sigma": torch.tensor(answer.sigma, dtype=torch.float64)}

        self._collect(messages.NOISY_MOMENTS, round_, members, asked, lambda member: terms, arrays, self._releases)
        there = [member for member in self._members if member.client in self._releases.clients]
        found = self._releases.read()
        total = torch.stack([own["noised"] for own in found]).sum(dim=0)
        self.records = column_sums(member.sizes for member in there)
        sigma = math.hypot(*(float(own["sigma"]) for own in found))
        return Outcome(total.reshape(-1), sigma, self.epsilon(), attempt, len(there))


def _layout(task: Problem) -> Layout:
    layout = moments_layout(task)
    assert layout is not None
    return layout


def _sizes(answer: SiteSums) -> Tensor:
    """Records of each cell of the clients that are in an answer, (c,)."""
    return torch.from_numpy(answer.site.sizes[answer.there].sum(axis=0))
