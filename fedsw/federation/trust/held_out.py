"""Records that were kept out of training, after the last round: exact sums for a trusted server, or noised ones."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context as Memory
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.budgets.moments import TALLY_PART, HeldOutBudget, held_out_budget, tally_of
from fedsw.federation.budgets.split import GROUP
from fedsw.federation.exchange.cohort import Member
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.sums import ExactTally, NoisyTally, NoisyTallyAsked, TallyAsked
from fedsw.federation.node import account
from fedsw.federation.node.answers import answered, each_pays, fresh, ledger_of, released
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.trust.context import Context, ExactSums, Once, SiteSums
from fedsw.federation.trust.local import LocalMethod, describe
from fedsw.federation.trust.model import served
from fedsw.privacy.release import Bounded, Paid, Released, pay, release, release_paid
from fedsw.randomness import KEY_BYTES, Stream
from fedsw.runs.observer import Outcome
from fedsw.settings import FederationError
from fedsw.sketches.law import STEP
from fedsw.tasks.measures import tally_of_records
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import Tally


def steps_of_kept(node: Node, theta: Tensor, asked: Tensor, lost: NDArray[np.int64], key: bytes) -> Tensor:
    """`central`: sums over the kept records of the clients that are asked and not lost, WITHOUT NOISE, in whole steps.

    They are for a server that is trusted, which noises the sum of all of them once. Where a unit is declared, one row
    of each unit is in it, drawn at random.

    Args:
        theta: the released model (r,), for features as they are: kept records go through no preparation.
        asked: (S,), 1 for each client that is asked.
        lost: positions of clients.
        key: decides on the rows; secret, but in a seeded run.

    Returns:
        (groups, t), int64; zeros if no client is left.
    """
    kept, tally = _kept_records(node)
    places = [int(place) for place in np.flatnonzero(asked.numpy()) if place not in lost]
    units = np.concatenate([kept.units_of(place) for place in places]) if places else np.empty(0, dtype=np.int64)
    records = kept.rows_of(np.sort(units), Stream(key))
    return tally_of_records(kept.task, tally, records, kept.task.prepared(node.model, theta))


def noised_tally(
    node: Node, place: Path, theta: Tensor, round_: int, attempt: int, federation: int, paid: Paid | None = None
) -> Released:
    """`local-gradient`: sums over this client's kept records, with noise of its own, once; of units, a row of each.

    Guarantee: the client's own (epsilon, delta), for the replacement of one of its kept records within its group,
    against everybody: charged on disk before the noise is drawn, and there is no budget for a second one. Records that
    it trains on are in no way in it.

    Args:
        place: of its ledger.
        theta: the released model (r,), for features as they are: kept records go through no preparation.
        federation: records of the whole federation, for a delta such as "0.1/n".
        paid: the payment, where the clients of a site paid together (`tally_due`).

    Returns:
        What is released, (groups, t) float64, and the epsilon that the client's ledger has spent then (public).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    kept, tally = _kept_records(node)
    if paid is None:
        due = tally_due(node, place, round_, attempt, federation)
        with account.opened(place, due.promise) as ledger:
            paid = pay(ledger, round_, attempt, due.charges, due.sigma, due.parts)
    records = kept.everybody(_stream(node, round_, attempt, "tally rows"))
    steps = tally_of_records(kept.task, tally, records, kept.task.prepared(node.model, theta))
    bounded = Bounded(steps.double() * STEP, _budget(node, tally, federation).sensitivity)
    return release_paid(bounded, paid, TALLY_PART, _stream(node, round_, attempt, "tally noise"))


def tally_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for it, for a payment together with others."""
    _, tally = _kept_records(node)
    budget = _budget(node, tally, federation)
    promised = served(node.task.experiment).promise(node, node.delta(federation))
    return account.Due(place, promised, round_, attempt, budget.charges((GROUP,)), budget.sigma, [budget.part])


def _kept_records(node: Node) -> tuple[Node, Tally]:
    """The node of the kept records, and what is summed over them.

    Raises:
        RuntimeError: in a run that releases nothing of them.
    """
    tally = tally_of(node.task)
    if node.kept is None or tally is None:
        raise RuntimeError(
            "sums over kept records were asked for, and this node agreed to a run that releases nothing of them "
            "(data.held_out_to)"
        )
    return node.kept, tally


def _budget(node: Node, tally: Tally, federation: int) -> HeldOutBudget:
    delta = node.delta(federation)
    epsilon = served(node.task.experiment).promise(node, delta).epsilon
    return held_out_budget(node.task.experiment, tally, epsilon, delta)


def _stream(node: Node, round_: int, attempt: int, purpose: str) -> Stream:
    """This client's secret randomness of one purpose; reproducible only in a seeded (nominal) run."""
    seed = node.task.experiment.seed
    if seed is None:
        return Stream(os.urandom(KEY_BYTES))
    return Stream.seeded(seed, purpose, int(node.clients[0]), round_, attempt)


def answer_exactly(message: Message, context: Memory) -> Message:
    """After the last round: exact sums over the kept records of the clients that are asked."""
    node, asked = fresh(messages.TALLY, message, context)
    lost = node.lost(asked.round, asked.attempt)
    key = batch_key(node.task, asked.round, asked.attempt)
    steps = steps_of_kept(node, asked.theta.tensor(), asked.asked, lost, key)
    return answered(ExactTally(steps, torch.from_numpy(lost)), node, message)


def answer_noised(message: Message, context: Memory) -> Message:
    """`local-gradient`, after the last round: sums over a client's kept records, noised by itself, charged to it."""

    def release(node: Node, asked: NoisyTallyAsked, paid: Paid | None = None) -> NoisyTally:
        place, theta = ledger_of(node, context), asked.theta.tensor()
        found = noised_tally(node, place, theta, asked.round, asked.attempt, asked.records, paid)
        return NoisyTally(found.spent, found.value, found.sigma)

    def due(node: Node, asked: NoisyTallyAsked) -> account.Due:
        return tally_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.NOISY_TALLY, message, context, release, each_pays(due, release))


class TrustedTally:
    """`central` and `none`: sites send exact sums, and the server adds them, charges its ledger, and noises once.

    Who does not answer is not in the sums; attempts with too few are made again, and cost nothing.
    """

    def __init__(self, context: Context) -> None:
        self._plan, self._context, self._tally = context.plan, context, _tally(context.plan.task)
        self.records = np.zeros(self._tally.groups, dtype=np.int64)

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `fedsw.federation.trust.model.TallySide`.

        Raises:
            BudgetExhausted: if kept records were charged for before; nothing is then released.
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        plan = self._plan
        model = Broadcast.of(theta, Terms.of(plan.task))

        def request(number: int, attempt: int, asked: Tensor) -> TallyAsked:
            return TallyAsked(model, number, attempt, asked)

        sums: ExactSums[TallyAsked, ExactTally] = ExactSums(
            self._context, kind=messages.TALLY, request=request, fault=self._fault
        )
        attempt, found = sums.collect(round_)
        steps = torch.stack([answer.steps for answer in found]).sum(dim=0)
        epsilon = plan.epsilon if plan.multiplier else math.inf
        budget = held_out_budget(plan.task.experiment, self._tally, epsilon, plan.delta)
        charges = budget.charges(plan.task.objective.cells)
        bounded = Bounded(steps.double() * STEP, budget.sensitivity, round=round_, attempt=attempt, charges=charges)
        released = release(bounded, Once(budget.multiplier, plan), self._context.charged)
        self.records = np.sum([_kept(answer) for answer in found], axis=0)
        clients = sum(int(answer.there.sum()) for answer in found)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, clients)

    def _fault(self, answer: SiteSums) -> str | None:
        records = torch.from_numpy(_kept(answer))
        if self._tally.fits(answer.steps, records):
            return None
        return f"its sums are none of {int(records.sum())} kept records"


class LocalTallies(LocalMethod):
    """`local-gradient`: every client sends sums over its kept records that it has noised itself; they are added up."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.records = np.zeros(_tally(self._task).groups, dtype=np.int64)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        terms = Terms.of(self._task)
        asked = NoisyTallyAsked(Broadcast.of(theta, terms), round_, attempt, self._plan.records)
        answers: dict[Member, NoisyTally] = {}
        holders = [member for member in members if self._kept(member).any()]
        self._exchange(messages.NOISY_TALLY, round_, holders, asked, lambda member: terms, answers.__setitem__)
        if not answers:
            raise FederationError(
                f"no client released anything of its kept records. {describe(self._lost)}",
                recorded="no client released anything of its kept records",
            )
        total = torch.zeros(len(self.records), _tally(self._task).width, dtype=torch.float64)
        for member in holders:
            if member in answers:
                total += answers[member].values
                self.records = self.records + self._kept(member)
        sigma = math.hypot(*(answer.sigma for answer in answers.values()))
        return Outcome(total.reshape(-1), sigma, self.epsilon(), attempt, len(answers))

    def _kept(self, member: Member) -> NDArray[np.int64]:
        kept = self._of_node[member.node].kept
        assert kept is not None
        own: NDArray[np.int64] = kept[member.position]
        return own


def _tally(task: Problem) -> Tally:
    tally = tally_of(task)
    assert tally is not None
    return tally


def _kept(answer: SiteSums) -> NDArray[np.int64]:
    """Kept records of each group of the clients that are in an answer, (groups,)."""
    kept = answer.site.kept
    assert kept is not None
    found: NDArray[np.int64] = kept[answer.there].sum(axis=0)
    return found
