"""Trust models `sketch` and `sketch-local` at the server: the one exchange, and what it releases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import Ledger
from fedsw.errors import FederationError
from fedsw.experiment import resolve_delta
from fedsw.federation import messages
from fedsw.federation.budgets.sketches import sketch_budget
from fedsw.federation.exchange.availability import Availability, Away
from fedsw.federation.exchange.cohort import Member, Present, Site, too_few
from fedsw.federation.exchange.exchange import Fault, Request, Traffic, exchange
from fedsw.federation.messages import NoisySketch, SketchAsked, SumOfRecords, SumOfRecordsAsked, Terms
from fedsw.federation.trust.local import LocalMethod
from fedsw.federation.trust.method import AtServer, Method
from fedsw.federation.trust.plan import Plan, clients_of
from fedsw.privacy.release import release
from fedsw.privacy.sketches import bounded_sum, require_sum
from fedsw.runs.outcome import Outcome
from fedsw.runs.releases import Releases
from fedsw.runs.telemetry import event
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketch_sums import law_of_problem
from fedsw.transport.noised_sketches import NoisedSketch, pooled
from fedsw.transport.sketches import STEP

_log = logging.getLogger("fedsw.server")


class SketchMethod(Method, Protocol):
    """A trust model whose one round releases a sketch: an `Outcome` with its numbers, flat."""

    @property
    def records(self) -> int:
        """How many records are in the released sketch; public. Known after `round`."""

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """The same of every client whose own sketch is there; empty where the server has their sum alone."""


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
        sensitivities=(budget.sensitivity,),
    )


class TrustedSketch(AtServer):
    """`sketch`: clients send exact sums; the server adds them in whole steps, charges its ledger, and noises once.

    Who does not answer is not in the sum: nothing was released or charged for an attempt before all that answer are
    enough, so an attempt with too few is made again. After the release nobody is asked any more: a second one would
    cost every record again.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        sites: Sequence[Site],
        availability: Availability,
        traffic: Traffic,
        begin: Callable[[int], int],
        ledger: Ledger,
    ) -> None:
        self._grid, self._plan, self._sites, self._traffic, self._begin = grid, plan, sites, traffic, begin
        super().__init__(ledger)
        self._availability = availability
        settings = plan.task.experiment.federation
        self._least = settings.min_clients or settings.clients
        self._timeout, self._max_attempts = settings.timeout, settings.max_attempts
        self._law = law_of_problem(plan.task)
        self.records = 0
        self.records_by_client: Mapping[int, int] = {}

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange; the model `theta` (r,) is not looked at.

        Raises:
            BudgetExhausted: if a sketch was charged before; nothing is then released.
            FederationError: when fewer clients than `federation.min_clients` answer.
        """
        lost = Away()
        for _ in range(self._max_attempts):
            present = self._availability.present(self._least, without=lost)
            self._require_enough(round_, clients_of(present), self._availability.away.joined(lost))
            attempt = self._begin(round_)
            found = self._sums(round_, attempt, present, lost)
            clients = sum(count for _, _, count in found)
            if clients >= self._least:
                return self._released(round_, attempt, found, clients)
        reason = f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded"
        raise FederationError(f"{reason}. {lost.describe(self._sites)}", recorded=reason)

    def _released(self, round_: int, attempt: int, found: Sequence[tuple[Tensor, int, int]], clients: int) -> Outcome:
        sums, records = [total for total, _, _ in found], [held for _, held, _ in found]
        (stratum,) = self._plan.strata
        bounded = bounded_sum(self._law, sums, records, round=round_, attempt=attempt, stratum=stratum)
        released = release(bounded, self._plan, self._ledger)
        self.records = sum(records)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, clients)

    def _sums(self, round_: int, attempt: int, present: Sequence[Present], lost: Away) -> list[tuple[Tensor, int, int]]:
        """Sums (cells, F + 1), with their numbers of records and of clients, of the sites that answered as they may."""
        asked = [each for each in present if each.count]
        terms = [Terms.of(self._plan.task, S=len(each.here)) for each in asked]
        requests = [
            Request(
                each.site.node,
                messages.encode(
                    SumOfRecordsAsked(round_, attempt, torch.from_numpy(each.here.astype(np.int64))), known
                ),
            )
            for each, known in zip(asked, terms, strict=True)
        ]
        kind = messages.RECORDS_SUM
        replies = exchange(
            self._grid, kind.kind, requests, group=kind.kind, timeout=self._timeout, traffic=self._traffic
        )
        found = []
        for each, known in zip(asked, terms, strict=True):
            answer = self._answer(each, replies[each.site.node], known)
            if isinstance(answer, Fault):
                self._lose(each.site, answer, lost)
            elif answer[2]:
                found.append(answer)
        return found

    def _answer(self, each: Present, reply: RecordDict | Fault, terms: Terms) -> tuple[Tensor, int, int] | Fault:
        """A site's sum, its records and its clients; what no such records make is refused, and never quoted."""
        if isinstance(reply, Fault):
            return reply
        try:
            answer = messages.decode(SumOfRecords, reply, terms)
        except messages.Malformed as fault:
            return Fault(f"unreadable answer: {fault}")
        there = _who_is_in(each, answer)
        if there is None:
            return Fault("unreadable answer: its lost clients are none of its clients")
        records, total = int(each.site.sizes[there].sum()), answer.steps.to(torch.float64) * STEP
        try:
            require_sum(self._law, total, records)
        except ValueError:  # its words hold numbers of the sum, which is no release
            return Fault(f"its sum is none of {records} records")
        return total, records, int(there.sum())

    def _lose(self, site: Site, fault: Fault, lost: Away) -> None:
        lost.lose(site, fault.reason)
        self._availability.away.lose(site, fault.reason)
        first = int(site.clients[0])
        _log.warning(
            "site of client %d lost: %s", first, fault.reason, extra=event("client lost", client=first, code=fault.code)
        )

    def _require_enough(self, round_: int, count: int, away: Away) -> None:
        if count < self._least:
            left = too_few(round_, count, sum(len(site.clients) for site in self._sites), self._least)
            raise FederationError(
                f"{left}. {away.describe(self._sites)} The ledger is kept: mend the clients, then resume the run",
                recorded=left,
            )


class LocalSketches(LocalMethod):
    """`sketch-local`: every client sends one sketch that it has noised itself; those that came are added up.

    Args:
        releases: the clients' sketches, "noised" (cells, F + 1) with "sigma"; who is among them is not asked again.
            Whoever is missing is asked whenever the run goes on, so that late clients can be added.
    """

    def __init__(self, releases: Releases, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._releases = releases
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


def _who_is_in(each: Present, answer: SumOfRecords) -> NDArray[np.bool_] | None:
    """Which of the site's clients are in its sum, (S,); None if it names lost ones that it does not have."""
    there, lost = each.here.copy(), answer.lost.numpy()
    if len(lost) and (int(lost.max()) >= len(there) or bool((np.diff(lost) <= 0).any())):
        return None
    there[lost] = False
    return there
