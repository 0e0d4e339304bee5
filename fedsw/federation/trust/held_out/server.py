"""Records that were kept out of training, at the server: the one exchange after the last round, and its release."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.errors import FederationError
from fedsw.federation import messages
from fedsw.federation.budgets.held_out import held_out_budget, tally_of
from fedsw.federation.exchange.cohort import Member
from fedsw.federation.messages import Broadcast, ExactTally, NoisyTally, NoisyTallyAsked, TallyAsked, Terms
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.exact_sums import ExactSums, Once, SiteSums
from fedsw.federation.trust.local import LocalMethod, describe
from fedsw.privacy.release import Bounded, release
from fedsw.runs.observer import Outcome
from fedsw.sketches.law import STEP
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import Tally


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
