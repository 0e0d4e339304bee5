"""Trust model `local-gradient` at the server: it adds up noised tables and noised contributions, and sees no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedsw.errors import FederationError
from fedsw.experiment import resolve_delta
from fedsw.federation import wire
from fedsw.federation.budgets import split as shares
from fedsw.federation.exchange.cohort import Member
from fedsw.federation.exchange.exchange import array_record
from fedsw.federation.exchange.replies import deviation_of
from fedsw.federation.trust.local import LocalMethod, column_sums, describe, require_array
from fedsw.federation.trust.plan import Plan
from fedsw.objectives import Objective
from fedsw.objectives import histograms as tables
from fedsw.runs.outcome import Outcome
from fedsw.tasks.problem import Problem
from fedsw.transport.sliced import orthogonal_spread


def make_plan(task: Problem, members: Sequence[Member]) -> Plan:
    """What is fixed before the first round, for the client with the largest sampling rate; the others add less noise.

    Every client makes its own plan from its own sizes (`budgets.split`); this one is what may be shown.
    """
    experiment, training = task.experiment, task.experiment.training
    rows = [shares.own_batch(member.sizes, training.batch_fraction) for member in members]
    sizes, batch = column_sums(member.sizes for member in members), column_sums(rows)
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


class LocalGradient(LocalMethod):
    """Rounds in which every client noises its table and its contribution for its own guarantee."""

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        task = self._task
        fraction, noisy = task.experiment.training.batch_fraction, task.experiment.privacy.noisy
        counts = {member: shares.own_batch(member.sizes, fraction) for member in members}
        sizes = column_sums(counts.values())
        content: dict[str, ArrayRecord | ConfigRecord] = {
            "model": array_record("theta", theta.to(task.dtype)),
            "config": ConfigRecord(
                {"round": round_, "attempt": attempt, "sizes": list(sizes), "records": self._plan.records}
            ),
        }
        if shares.asks_tables(task.experiment):
            self._require_groups(round_, sizes, self._attendance.away)  # before anybody is asked, and charged
            k, bins = task.directions(round_, attempt).shape[1], task.experiment.local.bins
            answers = self._ask(wire.TABLES, round_, members, content, _reader((len(sizes), k, bins), noisy=noisy))
            totals = column_sums(counts[member] for member in answers)
            self._require_groups(round_, totals, self._lost)
            summed = torch.stack([values for values, _ in answers.values()]).sum(dim=0)
            found = self._tables(summed, totals)
            content["arrays"] = array_record("tables", found.to(task.dtype))
            members = list(answers)
        answers = self._ask(wire.LOCAL_GRADIENTS, round_, members, content, _reader((task.parameters,), noisy=noisy))
        vector = torch.zeros(task.parameters, dtype=torch.float64)
        for values, _ in answers.values():
            vector += values
        sigma = math.hypot(*(noise for _, noise in answers.values()))
        return Outcome(vector, sigma, self.epsilon(), attempt, len(answers))

    def _tables(self, summed: Tensor, totals: Sequence[int]) -> Tensor:
        """Slot means (cells, k, bins) from the summed noisy histograms; nothing but post-processing."""
        counts = [tables.monotone(cell, total) for cell, total in zip(summed, totals, strict=True)]
        return torch.stack(tables.matched(counts, _objective(self._task), self._task.clip.output))

    def _require_groups(self, round_: int, totals: Sequence[int], missing: Mapping[int, str]) -> None:
        """Every distance has both of its groups.

        Raises:
            FederationError: naming the group without a record, and the clients that are missing.
        """
        if min(totals) == 0:
            name = self._task.objective.cells[totals.index(0)]
            raise FederationError(
                f"round {round_}: no client that answered holds a record of group {name}. {describe(missing)} Mend "
                "the clients, then resume the run"
            )


def _reader(shape: tuple[int, ...], *, noisy: bool) -> Callable[[Member, RecordDict], tuple[Tensor, float]]:
    """Reads noised values of that shape and the deviation of their noise."""

    def read(member: Member, reply: RecordDict) -> tuple[Tensor, float]:
        values = require_array(reply, "noised", shape)
        return values.double(), deviation_of(reply, noisy=noisy)

    return read


def _objective(task: Problem) -> Objective:
    objective = task.objective
    assert isinstance(objective, Objective)
    return objective
