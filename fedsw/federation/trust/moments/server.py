"""The moments of all records, at the server: the one exchange before the first round, and its release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.budgets.held_out import idle
from fedsw.federation.budgets.moments import moments_budget, moments_layout
from fedsw.federation.exchange.cohort import Member
from fedsw.federation.messages import ExactMoments, MomentsAsked, NoisyMoments, NoisyMomentsAsked, Terms
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.exact_sums import ExactSums, Once, SiteSums
from fedsw.federation.trust.local import LocalMethod, column_sums
from fedsw.privacy.release import Bounded, release
from fedsw.runs.observer import Outcome
from fedsw.tasks.moments import STEP, Layout
from fedsw.tasks.problem import Problem


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
