"""The two exchanges of one round: outputs up, cotangents down, contributions up; nothing is released here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsw.errors import FederationError
from fedsw.federation import wire
from fedsw.federation.exchange.availability import Attendance
from fedsw.federation.exchange.cohort import Member, too_few
from fedsw.federation.exchange.exchange import Fault, Request, Traffic, array_record, exchange
from fedsw.federation.exchange.replies import array_of, number_of
from fedsw.federation.trust.plan import Draw, Plan, draw, most_drawn, sensitivities
from fedsw.objectives import Objective, contribution_bound
from fedsw.privacy.sensitivity import SLACK, Sensitivity
from fedsw.runs.telemetry import event
from fedsw.tasks.public_side import counterpart_of
from fedsw.transport.sliced import project, spread

_log = logging.getLogger("fedsw.server")

_MOST = 1e100  # of an un-noised loss or count that a client tells: products and sums stay finite


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

    Availability is settled before counts are drawn (`Attendance`: a client that was lost takes part again once it has
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
        attendance: Attendance,
        traffic: Traffic,
        begin: Callable[[int], int],
    ) -> None:
        self._grid, self._plan, self._members, self._traffic, self._begin = grid, plan, members, traffic, begin
        settings, slicing = plan.task.experiment.federation, plan.task.experiment.slicing
        self._attendance = attendance
        self._counterpart = counterpart_of(plan.task)
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
            members = self._attendance.present(self._least, without=lost)
            self._require_enough(round_, members, {**self._attendance.away, **lost})
            aggregate = self._attempt(round_, self._begin(round_), theta, members, lost)
            if aggregate is not None:
                return aggregate
        told = f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded"
        raise FederationError(f"{told}. {_describe(lost)}", recorded=told)

    def _attempt(
        self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member], lost: dict[int, str]
    ) -> Aggregate | None:
        plan, task = self._plan, self._plan.task
        settled = draw(plan, members, round_=round_, attempt=attempt)
        rows = _most_rows(plan, settled, members)
        model = array_record("theta", theta.to(task.dtype))
        replies = self._exchange(
            wire.OUTPUTS,
            members,
            {
                # As floats, which take 8 bytes each whatever they are: integers would tell their magnitude.
                m.client: RecordDict(
                    {"model": model, "config": _config(round_, attempt, counts=[*map(float, counts)], rows=length)}
                )
                for m, counts, length in zip(members, settled.counts, rows, strict=True)
            },
        )
        outputs = self._read(members, replies, "outputs", [(length, task.dimension) for length in rows], lost)
        if len(outputs) < len(members):
            return None
        theta_directions = task.directions(round_, attempt)
        bounds = sensitivities(task, settled.batch, spread(theta_directions))
        stacked = _stack(settled, [outputs[m.client] for m in members], task.clip.output)
        total = torch.zeros(task.parameters, dtype=torch.float64)
        by_cell, other = self._matched(stacked, theta_directions, theta, round_, attempt)
        if other is not None:
            total += other
        if not task.private_parameters:
            return Aggregate(round_, attempt, total, settled, bounds, len(members), None)
        weight = task.objective.task_weight(settled.total)
        parts, loss = self._contributions(round_, attempt, model, members, _cut(settled, by_cell), rows, weight, lost)
        if len(parts) < self._least:
            return None
        for part in parts:
            total += part
        return Aggregate(round_, attempt, total, settled, bounds, len(parts), loss)

    def _matched(
        self, stacked: list[Tensor], directions: Tensor, theta: Tensor, round_: int, attempt: int
    ) -> tuple[list[Tensor], Tensor | None]:
        """Rank matching: cotangents by cell, and the contribution of the other side where it is not the clients'."""
        objective = self._plan.task.objective
        if isinstance(objective, Objective):
            found = objective.cotangents(stacked, directions, ties=self._ties, memory_limit=self._memory_limit)
            return found, None
        assert self._counterpart is not None
        sample = self._counterpart.sample(theta, len(stacked[0]), round_, attempt)
        own, other = objective.cotangents(
            stacked[0], sample, directions, ties=self._ties, memory_limit=self._memory_limit
        )
        return [own], self._counterpart.contribution(other)

    def _contributions(
        self,
        round_: int,
        attempt: int,
        model: ArrayRecord,
        members: Sequence[Member],
        cotangents: Sequence[Tensor],
        rows: Sequence[int],
        weight: float,
        lost: dict[int, str],
    ) -> tuple[list[Tensor], float | None]:
        """The second exchange: what the clients that answer within their bound contribute, in client order."""
        sent = [wire.padded(own, length) for own, length in zip(cotangents, rows, strict=True)]
        arrays = [array_record("cotangents", own) for own in sent]
        replies = self._exchange(
            wire.GRADIENTS,
            members,
            {
                m.client: RecordDict(
                    {"model": model, "arrays": own, "config": _config(round_, attempt, **{"task-weight": weight})}
                )
                for m, own in zip(members, arrays, strict=True)
            },
        )
        task = self._plan.task
        parts = self._read(members, replies, "contribution", [(task.parameters,)] * len(members), lost)
        for member, own in zip(members, cotangents, strict=True):
            if member.client in parts:
                most = SLACK * contribution_bound([own], task.clip, weight)
                weighs = float(torch.linalg.vector_norm(parts[member.client].double()))
                if not weighs <= most:  # neither number is told: both are un-noised functions of records
                    self._lose(member, Fault("its contribution weighs more than allowed, above its clip bound"), lost)
                    del parts[member.client]
        present = [member.client for member in members if member.client in parts]
        loss = _mean_loss([replies[client] for client in present]) if task.experiment.unsafe_metrics else None
        return [parts[client].double() for client in present], loss

    def _exchange(
        self, kind: str, members: Sequence[Member], contents: Mapping[int, RecordDict]
    ) -> dict[int, RecordDict | Fault]:
        requests = [Request(m.node, contents[m.client]) for m in members]
        replies = exchange(
            self._grid, kind, requests, group=kind, timeout=self._timeout, traffic=self._traffic
        )
        return {m.client: replies[m.node] for m in members}

    def _read(
        self,
        members: Sequence[Member],
        replies: Mapping[int, RecordDict | Fault],
        name: str,
        shapes: Sequence[tuple[int, ...]],
        lost: dict[int, str],
    ) -> dict[int, Tensor]:
        arrays = {}
        for member, shape in zip(members, shapes, strict=True):
            reply = replies[member.client]
            if isinstance(reply, RecordDict):
                try:
                    arrays[member.client] = array_of(reply, name, shape)
                    continue
                except ValueError as fault:
                    # The rows of outputs are a secret count; nothing is told of what came for them.
                    told = "not of the asked type and shape" if name == "outputs" else fault
                    reply = Fault(f"unreadable {name}: {told}")
            self._lose(member, reply, lost)
        return arrays

    def _lose(self, member: Member, fault: Fault, lost: dict[int, str]) -> None:
        lost[member.client] = fault.reason
        self._attendance.lose(member.client, fault.reason)
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


def _stack(settled: Draw, outputs: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Outputs by cell, in client order, without filler, projected again: a client's word is not a bound."""
    pieces = [torch.split(out[: sum(row)], list(row)) for out, row in zip(outputs, settled.counts, strict=True)]
    return [project(torch.cat(cell), radius) for cell in zip(*pieces, strict=True)]


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


def _config(round_: int, attempt: int, **extra: list[float] | float) -> ConfigRecord:
    """Settings of one request, in a record that equals no other: equal counts would be stored once."""
    return ConfigRecord({"round": round_, "attempt": attempt, **extra, wire.NONCE: wire.nonce()})


def _mean_loss(replies: Sequence[RecordDict | Fault]) -> float | None:
    """The mean over the batch of what the clients tell; a client that tells something else is left out."""
    losses, counts = [], []
    for reply in replies:
        if isinstance(reply, Fault):
            continue
        with contextlib.suppress(ValueError):
            loss = number_of(reply, "training-loss", least=-_MOST, most=_MOST)
            count = number_of(reply, "num-examples", least=0, most=_MOST)
            losses.append(loss * count)
            counts.append(count)
    return sum(losses) / sum(counts) if sum(counts) > 0 else None


def _describe(lost: Mapping[int, str]) -> str:
    return " ".join(f"Client {client}: {reason}." for client, reason in lost.items())
