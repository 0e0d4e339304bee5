"""Trust model `local-gradient` at the server: it adds up noised tables and noised contributions, and sees no others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsw import wire
from fedsw.accounting import BudgetExhausted
from fedsw.experiment import resolve_delta
from fedsw.local import shares, tables
from fedsw.objectives import Objective
from fedsw.sliced import orthogonal_spread
from fedsw.task import Task
from server.cohort import FederationError, Member, online
from server.exchange import Fault, Request, Traffic, exchange, read_array
from server.method import Outcome
from server.plan import Plan
from server.telemetry import event

_log = logging.getLogger("fedsw.server")


@dataclass(frozen=True)
class _Answer:
    """A client's noised values, their noise, and the epsilon that its ledger stands at."""

    values: Tensor
    sigma: float
    epsilon: float


def make_plan(task: Task, members: Sequence[Member]) -> Plan:
    """What is fixed before the first round, for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`fedsw.local.shares`); this one is what may be shown.

    Raises:
        ExperimentError: naming a setting under which the clients would give no guarantee.
    """
    experiment, training = task.experiment, task.experiment.training
    shares.require_local(experiment)
    rows = [shares.own_batch(member.sizes, training.batch_fraction) for member in members]
    sizes, batch = _column_sums(member.sizes for member in members), _column_sums(rows)
    rates = tuple(
        max(row[cell] / member.sizes[cell] for row, member in zip(rows, members, strict=True) if member.sizes[cell])
        for cell in range(len(sizes))
    )
    delta = resolve_delta(experiment.privacy.delta, records=sum(sizes))
    share = shares.shares(experiment, rate=max(rates), delta=delta)
    fixed = task.dimension > 1 and experiment.slicing.scheme == "orthogonal"
    k = task.directions(0, 0).shape[1]
    bounds = tuple(
        shares.noise(
            share,
            _objective(task),
            task.clip,
            sizes=batch,
            own=[int(cell == other) for other in range(len(sizes))],
            spread=orthogonal_spread(task.dimension, k) if fixed else 1.0,
            k=k,
        ).joint
        for cell in range(len(sizes))
    )
    return Plan(task, sizes, batch, rates, delta, share.epsilon, share.multiplier, bounds)


class LocalGradient:
    """Runs rounds in which every client noises its table and its contribution for its own guarantee.

    There is no ledger here: what a client spent is in the client's own, and `spent` repeats what they say. A client
    lost in either exchange is missing from the sums; what it noised was charged. With fewer than
    `federation.min_clients` left the run stops: a fresh attempt would charge everybody who answered again, so that is
    for the operator to decide (`fedsw resume` makes one), and `federation.max_attempts` is not used here.

    Args:
        begin: the next unused attempt number of a round.
        history: round records of the run before it was resumed.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        members: Sequence[Member],
        traffic: Traffic,
        begin: Callable[[int], int],
        history: Sequence[Mapping[str, Any]],
    ) -> None:
        self._grid, self._task, self._members, self._traffic, self._begin = grid, plan.task, members, traffic, begin
        self._records = plan.records
        settings = plan.task.experiment.federation
        self._least = settings.min_clients or settings.clients
        self._timeout = settings.timeout
        self._rounds = {int(record["round"]) for record in history}
        self._before = max((float(record["epsilon"]) for record in history), default=0.0)
        self._spent: dict[int, float] = {}
        self._exhausted: dict[int, str] = {}

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """One round at the model `theta` (flat, float64).

        Raises:
            BudgetExhausted: when too few clients are left because the others' budgets are used up.
            FederationError: when fewer clients than `federation.min_clients` answer, or a group is lost with those
                that held it.
        """
        members = [m for m in online(self._grid, self._members) if m.client not in self._exhausted]
        self._require_enough(round_, members, {})
        return self._attempt(round_, self._begin(round_), theta, members)

    def epsilon(self) -> float:
        """Epsilon spent so far by the worst client, as the clients tell."""
        return max((self._before, *self._spent.values()))

    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon that each client last told."""
        return dict(sorted(self._spent.items()))

    def released_rounds(self) -> int:
        """Rounds of which noised values arrived."""
        return len(self._rounds)

    def __enter__(self) -> LocalGradient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held: the ledgers are the clients'."""

    def _attempt(
        self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]
    ) -> Outcome:
        task, lost = self._task, dict[int, str]()
        fraction = task.experiment.training.batch_fraction
        counts = {member.client: shares.own_batch(member.sizes, fraction) for member in members}
        sizes = _column_sums(counts.values())
        content: dict[str, ArrayRecord | ConfigRecord] = {
            "model": ArrayRecord({"theta": Array(*wire.encode(theta.to(task.dtype)))}),
            "config": ConfigRecord(
                {"round": round_, "attempt": attempt, "sizes": list(sizes), "records": self._records}
            ),
        }
        if shares.asks_tables(task.experiment):
            k, bins = task.directions(round_, attempt).shape[1], task.experiment.local.bins
            answers = self._ask(wire.TABLES, round_, members, content, (len(sizes), k, bins), lost)
            members = [member for member in members if member.client in answers]
            self._require_enough(round_, members, lost)
            totals = _column_sums(counts[member.client] for member in members)
            self._require_groups(round_, totals, lost)
            summed = torch.stack([answers[member.client].values for member in members]).sum(dim=0)
            found = self._tables(summed, totals)
            content["arrays"] = ArrayRecord({"tables": Array(*wire.encode(found.to(task.dtype)))})
        answers = self._ask(wire.LOCAL_GRADIENTS, round_, members, content, (task.parameters,), lost)
        members = [member for member in members if member.client in answers]
        self._require_enough(round_, members, lost)
        vector = torch.zeros(task.parameters, dtype=torch.float64)
        for member in members:
            vector += answers[member.client].values
        sigma = math.hypot(*(answer.sigma for answer in answers.values()))
        return Outcome(vector, sigma, self.epsilon(), attempt, len(answers))

    def _tables(self, summed: Tensor, totals: Sequence[int]) -> Tensor:
        """Slot means (cells, k, bins) from the summed noisy histograms; nothing but post-processing."""
        counts = [tables.monotone(cell, total) for cell, total in zip(summed, totals, strict=True)]
        return torch.stack(tables.matched(counts, _objective(self._task), self._task.clip.output))

    def _ask(
        self,
        kind: str,
        round_: int,
        members: Sequence[Member],
        content: Mapping[str, ArrayRecord | ConfigRecord],
        shape: tuple[int, ...],
        lost: dict[int, str],
    ) -> dict[int, _Answer]:
        """One exchange: the noised values of the clients that answer, by client."""
        requests = [Request(member.node, RecordDict(dict(content))) for member in members]
        replies = exchange(
            self._grid, kind, requests, group=kind, timeout=self._timeout, traffic=self._traffic
        )
        answers: dict[int, _Answer] = {}
        for member in members:
            answer = _read(replies[member.node], shape)
            if isinstance(answer, Fault):
                lost[member.client] = answer.reason
                if answer.code == wire.BUDGET_EXHAUSTED:
                    self._exhausted[member.client] = answer.reason
                lines = event("client lost", client=member.client, code=answer.code)
                _log.warning("client %d lost: %s", member.client, answer.reason, extra=lines)
            else:
                answers[member.client] = answer
                self._spent[member.client] = answer.epsilon
                self._rounds.add(round_)
        return answers

    def _require_enough(self, round_: int, members: Sequence[Member], lost: Mapping[int, str]) -> None:
        if len(members) >= self._least:
            return
        if self._exhausted:
            raise BudgetExhausted(
                f"{len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
                f"federation.min_clients. {_describe(self._exhausted)}"
            )
        raise FederationError(
            f"round {round_}: {len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
            f"federation.min_clients. {_describe(lost)} The checkpoint and the clients' ledgers are kept: mend the "
            "clients, then `fedsw resume` the run"
        )


    def _require_groups(self, round_: int, totals: Sequence[int], lost: Mapping[int, str]) -> None:
        if min(totals) == 0:
            name = self._task.objective.cells[totals.index(0)]
            raise FederationError(
                f"round {round_}: no client that answered holds a record of group {name}. {_describe(lost)} Mend the "
                "clients, then `fedsw resume` the run"
            )


def _read(reply: RecordDict | Fault, shape: tuple[int, ...]) -> _Answer | Fault:
    values = read_array(reply, "noised", shape)
    if isinstance(values, Fault) or isinstance(reply, Fault):
        return cast(Fault, values)
    if not bool(torch.isfinite(values).all()):
        return Fault("its noised values are not all finite")
    try:
        told = cast(dict[str, Any], reply["metrics"])
        return _Answer(values.double(), float(told["sigma"]), float(told["epsilon"]))
    except (KeyError, TypeError, ValueError) as fault:
        return Fault(f"unreadable account of its noise: {fault}")


def _objective(task: Task) -> Objective:
    objective = task.objective
    assert isinstance(objective, Objective)
    return objective


def _column_sums(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _describe(reasons: Mapping[int, str]) -> str:
    return " ".join(f"Client {client}: {reason}." for client, reason in reasons.items())
