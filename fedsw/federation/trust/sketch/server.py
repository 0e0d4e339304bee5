"""Trust models `sketch` and `sketch-local` at the server: the one exchange, and what it releases."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedsw.experiment import resolve_delta
from fedsw.federation import messages
from fedsw.federation.budgets.sketches import sketch_budget
from fedsw.federation.exchange.cohort import Member, Site
from fedsw.federation.messages import NoisySketch, SketchAsked, SumOfRecordsAsked, Terms
from fedsw.federation.trust.context import AtServer, Context
from fedsw.federation.trust.exact_sums import ExactSums, SiteSums
from fedsw.federation.trust.local import LocalMethod
from fedsw.federation.trust.plan import Plan
from fedsw.privacy.release import release
from fedsw.runs.observer import Outcome
from fedsw.sketches.law import STEP
from fedsw.sketches.noised import NoisedSketch, bounded_sum, pooled, require_sum
from fedsw.tasks.measures import law_of_problem
from fedsw.tasks.problem import Problem

_log = logging.getLogger("fedsw.server")


def make_plan(task: Problem, sites: Sequence[Site]) -> Plan:
    """What is fixed before the exchange: every record, once. The noise is the same under both trust models."""
    experiment, law = task.experiment, law_of_problem(task)
    size = sum(int(site.sizes.sum()) for site in sites)
    delta = resolve_delta(experiment.privacy.delta, records=size)
    budget = sketch_budget(experiment, law, delta)
    return Plan.of(
        task,
        sizes=(size,),
        batch=(size,),
        rates=(1.0,),
        delta=delta,
        epsilon=budget.epsilon,
        multiplier=budget.multiplier,
        sensitivities=(replace(budget.sensitivity, public=("the number of every client's records",)),),
    )


class TrustedSketch(AtServer):
    """`sketch`: clients send exact sums; the server adds them in whole steps, charges its ledger, and noises once.

    Who does not answer is not in the sum: nothing was released or charged for an attempt before all that answer are
    enough, so an attempt with too few is made again. After the release nobody is asked any more: a second one would
    cost every record again.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._plan = context.plan
        self._law = law_of_problem(context.plan.task)
        self._sums = ExactSums(context, kind=messages.RECORDS_SUM, request=SumOfRecordsAsked, fault=self._fault)
        self.records = 0
        self.records_by_client: Mapping[int, int] = {}

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange; the model `theta` (r,) is not looked at.

        Raises:
            BudgetExhausted: if a sketch was charged before; nothing is then released.
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        attempt, found = self._sums.collect(round_)
        sums, records = [_total(answer) for answer in found], [_records(answer) for answer in found]
        (stratum,) = self._plan.strata
        bounded = bounded_sum(self._law, sums, records, round=round_, attempt=attempt, stratum=stratum)
        released = release(bounded, self._plan, self._ledger)
        self.records = sum(records)
        clients = sum(int(answer.there.sum()) for answer in found)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, clients)

    def _fault(self, answer: SiteSums) -> str | None:
        try:
            require_sum(self._law, _total(answer), _records(answer))
        except ValueError:  # its words hold numbers of the sum, which is no release
            return f"its sum is none of {_records(answer)} records"
        return None


class LocalSketches(LocalMethod):
    """`sketch-local`: every client sends one sketch that it has noised itself; those that came are added up.

    The clients' sketches are stored, "noised" (cells, F + 1) with "sigma"; who is among them is not asked again.
    Whoever is missing is asked whenever the run goes on, so that late clients can be added.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._law = law_of_problem(self._task)

    @property
    def records(self) -> int:
        """Records of all clients whose sketches are there."""
        return sum(sum(member.sizes) for member in self._there())

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client whose sketch is there."""
        return {member.client: sum(member.sizes) for member in self._there()}

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        asked = SketchAsked(round_, attempt, self._plan.records)

        def terms(member: Member) -> Terms:
            return Terms.of(self._task)

        def arrays(answer: NoisySketch) -> Mapping[str, Tensor]:
            return {"noised": answer.values, "sigma": torch.tensor(answer.sigma, dtype=torch.float64)}

        self._collect(messages.SKETCH, round_, members, asked, terms, arrays, self._releases, late=True)
        there = self._there()
        pairs = zip(there, self._releases.read(), strict=True)
        sketch = pooled(
            [NoisedSketch(self._law, own["noised"], float(own["sigma"]), sum(member.sizes)) for member, own in pairs]
        )
        return Outcome(sketch.value.reshape(-1), sketch.sigma, self.epsilon(), attempt, len(there))

    def _there(self) -> list[Member]:
        """The clients whose sketches are there, in client order."""
        return sorted(
            (member for member in self._members if member.client in self._releases.clients),
            key=lambda member: member.client,
        )


def _total(answer: SiteSums) -> Tensor:
    """A site's sum, (cells, F + 1) float64."""
    return answer.steps.to(torch.float64) * STEP


def _records(answer: SiteSums) -> int:
    """How many records are in it."""
    return int(answer.site.sizes[answer.there].sum())
