"""Trust model `local-gradient` at a client: every number is noised here, and charged here before it is."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Cost, Counts
from fedsw.experiment.sections import TableSettings
from fedsw.federation.budgets import split
from fedsw.federation.budgets.moments import (
    covering,
    held_out_budget,
    idle,
    planned_moments,
    run_with_split,
    tally_of,
    with_held_out,
)
from fedsw.federation.node import account
from fedsw.federation.node.node import Batch, Node, batch_key
from fedsw.objectives import Objective
from fedsw.objectives import histograms as tables
from fedsw.privacy.release import Bounded, Paid, pay, release_paid
from fedsw.randomness import Stream
from fedsw.subnormal import flushing_to_zero
from fedsw.transport.sliced import spread

Purpose = Literal["table", "gradient"]


@dataclass(frozen=True)
class Request:
    """The server's request for an attempt. All of it is public, and none of it weakens the client's guarantee.

    It came by `fedsw.federation.messages`, which believes no number beyond any federation's.

    Attributes:
        sizes: records of every cell in the batch of the whole federation; the noise follows them.
        records: of the whole federation, for a delta such as "0.1/n".
    """

    round: int
    attempt: int
    sizes: tuple[int, ...]
    records: int


@dataclass(frozen=True)
class Answer:
    """What leaves the client: noised values, their noise, and the epsilon its ledger has spent then (public)."""

    values: Tensor
    sigma: float
    epsilon: float


def noised_table(node: Node, place: Path, theta: Tensor, request: Request, state: MutableMapping[str, Any]) -> Answer:
    """First exchange: a fresh secret batch, charged; its histograms (cells, k, bins) with Gaussian noise.

    Guarantee: with the contribution that the same attempt may be asked for, one step C_p(G_mu) of the client's own
    (epsilon, delta), against everyone who sees both; charged on disk before the noise is drawn. Cells of which this
    client holds no record (public) are 0.

    Raises:
        ValueError: if the server's sizes, or the noise that follows from them, are out of range; nothing is charged.
        BudgetExhausted, AlreadySpent: before anything is computed.
    """
    if not split.asks_tables(node.task.experiment):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    noise, paid = _begin(node, place, request, state)
    assert noise.of_table is not None
    task, settings = node.task, node.task.experiment
    own = _own(node)
    records = node.draw(bytes(state["key"]), own)
    _, outputs = node.forward(theta, records, request.round, request.attempt)
    directions = task.directions(request.round, request.attempt)
    counts = torch.stack(
        [
            tables.histograms(cell, directions, task.clip.output, settings.own(TableSettings).bins)
            for cell in torch.split(outputs, list(own))
        ]
    )
    held = torch.tensor([count > 0 for count in own])
    bounded = Bounded(counts[held], noise.of_table)
    released = release_paid(bounded, paid, "table", noise_stream(node, place, request, "table"))
    state.update(paid.kept())
    counts[held] = released.value
    return Answer(counts, released.sigma, released.spent)


def noised_contribution(
    node: Node, place: Path, theta: Tensor, request: Request, table: Tensor | None, state: MutableMapping[str, Any]
) -> Answer:
    """Second exchange: the same batch's clipped contribution (r,) for the broadcast tables, with Gaussian noise.

    Where no ranks are needed (alpha = 0) this is the only exchange and has the whole budget. A batch is answered for
    once and then forgotten.

    Args:
        table: slot means (cells, k, bins); a function of noised tables if the server is honest, anything if not.

    Raises:
        RuntimeError: if this node holds no batch for the attempt.
        BudgetExhausted, AlreadySpent: as `noised_table`, where this is the only exchange.
    """
    task = node.task
    objective = objective_of(node)
    if table is None:
        noise, paid = _begin(node, place, request, state)
    else:
        asked = (request.round, request.attempt)
        if (state.get("round"), state.get("attempt")) != asked or "key" not in state:
            raise RuntimeError(
                f"a contribution was asked for round {asked[0]}, attempt {asked[1]}, but this node holds no batch for "
                "it; the server must start a fresh attempt"
            )
        request = Request(*asked, tuple(int(size) for size in state["sizes"]), request.records)
        noise, paid = _noise(node, request, budget_of(node, float(state["delta"]))), Paid.from_kept(state)
    batch, outputs = _batch(node, theta, request, state)
    q = torch.zeros((len(batch.records), task.dimension), dtype=torch.float64)
    if table is not None:
        directions = task.directions(request.round, request.attempt)
        cells = torch.split(outputs, list(_own(node)))
        q = torch.cat(
            [
                tables.cotangents(
                    cell, directions, table[index], objective, cell=index, size=size, radius=task.clip.output
                )
                for index, (cell, size) in enumerate(zip(cells, request.sizes, strict=True))
            ]
        )
    vector, _ = node.contribution(batch, q, objective.task_weight(sum(request.sizes)))
    node.batch = None
    for used in ("key", "sizes", "delta", *paid.kept()):
        del state[used]
    bounded = Bounded(vector, noise.of_contribution)
    released = release_paid(bounded, paid, "contribution", noise_stream(node, place, request, "gradient"))
    return Answer(released.value, released.sigma, released.spent)


def _begin(node: Node, place: Path, request: Request, state: MutableMapping[str, Any]) -> tuple[split.Noise, Paid]:
    """Charge an attempt, whole, and settle the key of its sample; what the server says is bounded before that."""
    sizes = believed(request.sizes, _own(node))
    request = Request(request.round, request.attempt, sizes, request.records)
    delta = node.delta(request.records)
    divided = budget_of(node, delta)
    noise = _noise(node, request, divided)
    asked = (request.round, request.attempt)
    with account.opened(place, promise(node, delta)) as ledger:
        charges = [noise.charge(divided.rate), *idle(node.task.experiment)]
        paid = pay(ledger, *asked, charges, noise.contribution, noise.parts)
    key = batch_key(node.task, *asked)
    state.update({"key": key, "sizes": list(request.sizes), "delta": delta, **paid.kept()})
    return noise, paid


def believed(sizes: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the federation's batch as far as a server can be believed: its own records are in it.

    Raises:
        ValueError: if there is not one for each cell.
    """
    if len(sizes) != len(own):
        raise ValueError(f"the server sent {len(sizes)} batch sizes for {len(own)} groups")
    return tuple(max(size, count) for size, count in zip(sizes, own, strict=True))


@flushing_to_zero
def _batch(node: Node, theta: Tensor, request: Request, state: MutableMapping[str, Any]) -> tuple[Batch, Tensor]:
    """The attempt's batch and its projected outputs (n_c, d): at hand, or drawn again from its key."""
    batch = node.batch
    if batch is not None and (batch.round, batch.attempt) == (request.round, request.attempt):
        if batch.tape is not None:
            return batch, node.task.projected(batch.tape.raw, node.task.given(batch.records))
        records = batch.records
    else:
        records = node.draw(bytes(state["key"]), _own(node))
    return node.forward(theta, records, request.round, request.attempt)


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta."""
    return promised(node, budget_of(node, delta), delta)


def planned(node: Node, delta: float) -> Counts | Cost:
    """What all planned rounds cost this client's records at that delta, or a smaller one."""
    experiment, divided = node.task.experiment, budget_of(node, delta)
    rounds = lifetime.planned(Step(divided.rate, 1 / divided.multiplier), experiment.training.rounds)
    training = lifetime.added(rounds, planned_moments(divided.moments))
    tally = tally_of(node.task)
    if tally is None:
        return training
    return covering(training, held_out_budget(experiment, tally, divided.epsilon, delta))


def promised(node: Node, divided: split.BudgetSplit, delta: float) -> account.Promise:
    """What the ledger of a client with that split of its budget accounts for in this run."""
    experiment = node.task.experiment
    groups = with_held_out((split.GROUP,), experiment)
    nominal = experiment.seed is not None
    run = run_with_split(node.run, experiment)
    return account.Promise(run, divided.epsilon, delta, experiment.privacy.accountant, nominal, groups)


def _own(node: Node) -> tuple[int, ...]:
    return split.own_batch(node.sizes, node.task.experiment.training.batch_fraction)


def budget_of(node: Node, delta: float) -> split.BudgetSplit:
    """How this client's budget is split at that delta."""
    return split.budget_of(node.task.experiment, node.sizes, delta)


def _noise(node: Node, request: Request, divided: split.BudgetSplit) -> split.Noise:
    return noise_of(node, node.task.directions(request.round, request.attempt), request.sizes, _own(node), divided)


def noise_of(
    node: Node, directions: Tensor, sizes: Sequence[int], own: Sequence[int], divided: split.BudgetSplit
) -> split.Noise:
    """The noise of a client that holds `own` records by cell, on an attempt's directions (d, k).

    Args:
        sizes: of the whole federation's batch, as this client believes them.
    """
    task = node.task
    covered = 1.0 if task.dimension == 1 else spread(directions)
    return split.noise(
        divided, objective_of(node), task.clip, sizes=sizes, own=own, spread=covered, k=directions.shape[1]
    )


def objective_of(node: Node) -> Objective:
    """What the run minimises: under local trust a comparison of groups."""
    objective = node.task.objective
    assert isinstance(objective, Objective)
    return objective


def noise_stream(node: Node, place: Path, request: Request, purpose: Purpose) -> Stream:
    """A client's secret stream of noise; reproducible only in a seeded (nominal) run."""
    seed = node.task.experiment.seed
    if seed is None:
        return Stream.secure()
    return Stream.seeded(seed, "noise", place.stem, request.round, request.attempt, purpose)
