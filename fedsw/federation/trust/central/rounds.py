"""The two exchanges of one round: outputs up, cotangents down, contributions up; nothing is released here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsw.errors import FederationError
from fedsw.federation import messages
from fedsw.federation.exchange.availability import Availability
from fedsw.federation.exchange.cohort import Member, too_few
from fedsw.federation.exchange.exchange import Fault, Request, Traffic, exchange
from fedsw.federation.messages import Broadcast, Contribution, Exchange, GradientsAsked, OutputsAsked, Terms
from fedsw.federation.trust.plan import Draw, Plan, draw, most_drawn, sensitivities
from fedsw.objectives import Objective
from fedsw.objectives.composite import Composite
from fedsw.privacy.sensitivity import SLACK, Sensitivity
from fedsw.runs.telemetry import event
from fedsw.tasks.problem import Problem
from fedsw.tasks.public_side import public_side_of
from fedsw.transport.sliced import spread

_log = logging.getLogger("fedsw.server")

_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=messages.Message)


@dataclass(frozen=True)
class Aggregate:
    """The un-noised sum of one attempt with what bounds it. It never leaves the server's memory.

    `sensitivities` and `draw` are those of the batch the first exchange settled: clients lost later only take
    terms away.
    """

    round: int
    attempt: int
    vector: Tensor
    draw: Draw
    sensitivities: tuple[Sensitivity, ...]
    clients: int
    training_loss: float | None


class Rounds:
    """Runs rounds over a grid; keeps the rules for attempts and drop-outs.

    Availability is settled before counts are drawn (`Availability`: a client that was lost takes part again once it has
    answered another greeting). A client lost before its outputs came means a fresh attempt:
    new batch, new directions (nothing was released, nothing is charged). A client lost between the exchanges takes
    its terms with it: the bound is a sum of norms, and the sizes of the first exchange stay. Every attempt has a
    number no other attempt of its round ever had.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        members: Sequence[Member],
        availability: Availability,
        traffic: Traffic,
        begin: Callable[[int], int],
    ) -> None:
        self._grid, self._plan, self._members, self._traffic, self._begin = grid, plan, members, traffic, begin
        settings, slicing = plan.task.experiment.federation, plan.task.experiment.slicing
        self._availability = availability
        self._public_side = public_side_of(plan.task)
        self._ties, self._memory_limit = slicing.ties, slicing.memory_limit_mb * 2**20
        self._least = settings.min_clients or settings.clients
        self._timeout, self._max_attempts = settings.timeout, settings.max_attempts

    def run(self, round_: int, theta: Tensor) -> Aggregate:
        """One round at the model `theta` (flat, float64).

        Raises:
            FederationError: when fewer clients than `federation.min_clients` answer, or no attempt succeeds.
        """
        lost: dict[int, str] = {}
        for _ in range(self._max_attempts):
            members = self._availability.present(self._least, without=lost)
            self._require_enough(round_, members, {**self._availability.away, **lost})
            aggregate = self._attempt(round_, self._begin(round_), theta, members, lost)
            if aggregate is not None:
                return aggregate
        reason = f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded"
        raise FederationError(f"{reason}. {_describe(lost)}", recorded=reason)

    def _attempt(
        self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member], lost: dict[int, str]
    ) -> Aggregate | None:
        plan, task = self._plan, self._plan.task
        settled = draw(plan, members, round_=round_, attempt=attempt)
        rows = _most_rows(plan, settled, members)
        terms = [Terms.of(task, P=length) for length in rows]
        model = Broadcast.of(theta, terms[0])
        asked = [
            OutputsAsked(model, round_, attempt, counts, length)
            for counts, length in zip(settled.counts, rows, strict=True)
        ]
        outputs = self._exchange(messages.OUTPUTS, members, asked, terms, lost)
        if len(outputs) < len(members):
            return None
        theta_directions = task.all_directions(round_, attempt)
        bounds = sensitivities(task, settled.batch, [spread(each) for each in theta_directions])
        stacked = _stack(settled, [outputs[m.client].outputs for m in members], task)
        total = torch.zeros(task.parameters, dtype=torch.float64)
        by_cell, other = self._matched(stacked, theta_directions, theta, round_, attempt)
        if other is not None:
            total += other
        if not task.private_parameters:
            return Aggregate(round_, attempt, total, settled, bounds, len(members), None)
        weight = task.objective.task_weight(settled.total)
        parts, loss = self._contributions(round_, attempt, model, members, _cut(settled, by_cell), terms, weight, lost)
        if len(parts) < self._least:
            return None
        for part in parts:
            total += part
        return Aggregate(round_, attempt, total, settled, bounds, len(parts), loss)

    def _matched(
        self, stacked: list[Tensor], directions: Sequence[Tensor], theta: Tensor, round_: int, attempt: int
    ) -> tuple[list[Tensor], Tensor | None]:
        """Rank matching: cotangents by cell, and the contribution of the other side where it is not the clients'."""
        objective = self._plan.task.objective
        if isinstance(objective, Objective):
            found = objective.cotangents(stacked, directions[0], ties=self._ties, memory_limit=self._memory_limit)
            return found, None
        if isinstance(objective, Composite):
            return self._composed(objective, stacked, directions, round_, attempt), None
        assert self._public_side is not None
        sample = self._public_side.sample(theta, len(stacked[0]), round_, attempt)
        own, other = objective.cotangents(
            stacked[0], sample, directions[0], ties=self._ties, memory_limit=self._memory_limit
        )
        return [own], self._public_side.contribution(other)

    def _composed(
        self, objective: Composite, stacked: list[Tensor], directions: Sequence[Tensor], round_: int, attempt: int
    ) -> list[Tensor]:
        """Cotangents by cell, the columns of all penalties side by side."""
        task = self._plan.task
        by_penalty = objective.cotangents(
            [[cell[:, each.columns] for cell in stacked] for each in task.compared],
            directions,
            lambda number, count: task.prior_sample(number, count, round_, attempt),
            ties=self._ties,
            memory_limit=self._memory_limit,
        )
        return [torch.cat(list(parts), dim=1) for parts in zip(*by_penalty, strict=True)]

    def _contributions(
        self,
        round_: int,
        attempt: int,
        model: Broadcast,
        members: Sequence[Member],
        cotangents: Sequence[Tensor],
        terms: Sequence[Terms],
        weight: float,
        lost: dict[int, str],
    ) -> tuple[list[Tensor], float | None]:
        """The second exchange: what the clients that answer within their bound contribute, in client order."""
        task = self._plan.task
        asked = [GradientsAsked(model, own, round_, attempt, weight) for own in cotangents]
        parts = self._exchange(messages.GRADIENTS, members, asked, terms, lost)
        for member, own in zip(members, cotangents, strict=True):
            if member.client in parts:
                most = SLACK * task.most_pulled(own, weight)
                weighs = float(torch.linalg.vector_norm(parts[member.client].vector))
                if not weighs <= most:  # neither number is shown: both are un-noised functions of records
                    self._lose(member, Fault("its contribution weighs more than allowed, above its clip bound"), lost)
                    del parts[member.client]
        present = [parts[member.client] for member in members if member.client in parts]
        loss = _mean_loss(present) if task.experiment.unsafe_metrics else None
        return [part.vector for part in present], loss

    def _exchange(
        self,
        kind: Exchange[_Down, _Up],
        members: Sequence[Member],
        asked: Sequence[_Down],
        terms: Sequence[Terms],
        lost: dict[int, str],
    ) -> dict[int, _Up]:
        """Ask every member, and read the answers, by client; who does not answer, or not what was asked, is lost."""
        requests = [
            Request(member.node, messages.encode(own, known))
            for member, own, known in zip(members, asked, terms, strict=True)
        ]
        replies = exchange(
            self._grid, kind.kind, requests, group=kind.kind, timeout=self._timeout, traffic=self._traffic
        )
        answers = {}
        for member, known in zip(members, terms, strict=True):
            reply = replies[member.node]
            if isinstance(reply, RecordDict):
                try:
                    answers[member.client] = messages.decode(kind.up, reply, known)
                    continue
                except messages.Malformed as fault:
                    reply = Fault(f"unreadable answer: {fault}")
            self._lose(member, reply, lost)
        return answers

    def _lose(self, member: Member, fault: Fault, lost: dict[int, str]) -> None:
        lost[member.client] = fault.reason
        self._availability.lose(member.client, fault.reason)
        lines = event("client lost", client=member.client, code=fault.code)
        _log.warning("client %d lost: %s", member.client, fault.reason, extra=lines)

    def _require_enough(self, round_: int, members: Sequence[Member], lost: Mapping[int, str]) -> None:
        if len(members) < self._least:
            left = too_few(round_, len(members), len(self._members), self._least)
            raise FederationError(
                f"{left}. {_describe(lost)} The checkpoint and the ledger are kept: mend the clients, then "
                "resume the run",
                recorded=left,
            )


def _stack(settled: Draw, outputs: Sequence[Tensor], task: Problem) -> list[Tensor]:
    """Outputs by cell, in client order, without filler, projected again: a client's word is not a bound."""
    pieces = [torch.split(out[: sum(row)], list(row)) for out, row in zip(outputs, settled.counts, strict=True)]
    return [task.in_balls(torch.cat(cell)) for cell in zip(*pieces, strict=True)]


def _most_rows(plan: Plan, settled: Draw, members: Sequence[Member]) -> list[int]:
    """Rows of each member's messages: more than it is ever asked for, so that their size tells no count."""
    if plan.task.experiment.privacy.sampling == "stratified":
        return [sum(own) for own in settled.counts]  # fixed in advance, and public
    sizes = [sum(column) for column in zip(*(member.sizes for member in members), strict=True)]
    room = [sum(map(most_drawn, settled.batch, member.sizes, sizes)) for member in members]
    return [max(most, sum(own)) for most, own in zip(room, settled.counts, strict=True)]


def _cut(settled: Draw, by_cell: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents by client, in the order of the cells."""
    cells = range(len(settled.batch))
    pieces = [torch.split(q, [row[c] for row in settled.counts]) for c, q in zip(cells, by_cell, strict=True)]
    return [torch.cat([pieces[c][client] for c in cells]) for client in range(len(settled.counts))]


def _mean_loss(parts: Sequence[Contribution]) -> float | None:
    """The mean of the batch's losses as clients report them; a client that reports no loss or no count is left out."""
    reported = [(part.training_loss, part.records) for part in parts]
    known = [(loss, count) for loss, count in reported if loss is not None and count is not None]
    total = sum(count for _, count in known)
    return sum(loss * count for loss, count in known) / total if total > 0 else None


def _describe(lost: Mapping[int, str]) -> str:
    return " ".join(f"Client {client}: {reason}." for client, reason in lost.items())
