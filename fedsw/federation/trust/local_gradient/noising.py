"""Trust model `local-gradient` at a node: every number is noised here, and charged here before it is.

One client or many, the passes through the network are over the batches of all of them at once. Sampling, ledger, bound
and noise are each client's own. Charges of all clients wait for the disk together, before any noise is drawn. A client
that cannot pay, or has no batch, is missing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.data import Records
from fedsw.experiment.sections import TableSettings
from fedsw.federation import messages
from fedsw.federation.messages.table import LocalGradientAsked, NoisedContribution, NoisedTable, TableAsked
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.own_ledger import Promise
from fedsw.federation.node.replies import Due, Up, answer_together, ledgers_of, paid_together, state_of_site
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.budget_shares import covering, idle, with_once
from fedsw.learning.objectives import WeightedPenalty
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.sliced import spread
from fedsw.privacy.accounting import Step, lifetime
from fedsw.privacy.accounting.lifetime import Cost, Counts
from fedsw.privacy.release import Bounded, Paid, Part, Released, release_paid, release_paid_together

State = MutableMapping[str, Any]
Purpose = Literal["table", "gradient"]
Found = dict[int, Released | Exception]
"""By a client's position: what it releases, or why it releases nothing."""

_OF_PAYMENTS = ("positions", "epsilons", "sensitivities", "scales")


@dataclass(frozen=True)
class Request:
    """Public numbers of an attempt in the whole federation: records of every cell in its batch, and all records.

    All of it is public, and none of it weakens a client's guarantee: the noise follows the sizes.
    """

    round: int
    attempt: int
    sizes: tuple[int, ...]
    records: int


Asked = Request | TableAsked | LocalGradientAsked


@dataclass(frozen=True)
class _Member:
    """One client in an attempt: sizes of the federation's batch and its own, by cell; its guarantee, budget and noise.

    In a run with releases of several kinds, `most` is all that it plans to release.
    """

    ledger: Path
    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    promise: Promise
    divided: split.BudgetSplit
    noise: split.Noise
    parts: Sequence[Part]
    most: Counts | Cost | None


@dataclass(frozen=True)
class _Drawn:
    """The batches of some clients, client after client and cell after cell, with the client and the cell of each."""

    records: Records
    runs: tuple[int, ...]
    owner: Tensor
    cell: Tensor


def noised_tables(node: Node, places: Mapping[int, Path], theta: Tensor, request: Asked, state: State) -> Found:
    """First exchange: fresh secret batches, charged; of each its histograms (cells, k, bins) with Gaussian noise.

    Guarantee: with the contribution that the same attempt may be asked for, one step C_p(G_mu) of each client's own
    (epsilon, delta), against everyone who sees both; charged on disk before the noise is drawn. Cells of which a client
    holds no record (public) are 0.

    Nothing is computed for a client that releases nothing: the server's sizes, or the noise that follows from them, are
    out of range (ValueError); BudgetExhausted, AlreadySpent. `state` is what the node keeps between the two exchanges.
    """
    if not split.asks_tables(node.task.experiment):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    members, paid, outcomes = _begin(node, places, request, state)
    if not paid:
        return outcomes
    task, cells = node.task, len(node.cells)
    drawn = _draw(node, members, list(paid), bytes(state["key"]))
    _, outputs = node.forward(theta, drawn.records, request.round, request.attempt)
    directions, holder = task.clipped.directions(request.round, request.attempt)[0], drawn.owner * cells + drawn.cell
    bins, radius = task.experiment.own(TableSettings).bins, task.clip.output
    counts = tables.histograms_by(outputs, holder, len(paid) * cells, directions, radius, bins)
    by_client = dict(zip(paid, counts.reshape(len(paid), cells, *counts.shape[1:]), strict=True))
    held = {position: torch.tensor([count > 0 for count in members[position].batch]) for position in paid}
    bounded = {}
    for position, histograms in by_client.items():
        of_table = members[position].noise.of_table
        assert of_table is not None
        bounded[position] = Bounded(histograms[held[position]], of_table)
    released = _released(node, members, bounded, paid, request, "table")
    _keep(state, paid, released, request)
    for position, histograms in by_client.items():
        said = outcomes[position] = released[position]
        if isinstance(said, Released):
            histograms[held[position]] = said.value
            outcomes[position] = replace(said, value=histograms)
    return outcomes


def noised_contributions(
    node: Node, places: Mapping[int, Path], theta: Tensor, request: Asked, table: Tensor | None, state: State
) -> Found:
    """Second exchange: the same batches' clipped contributions (r,) for the broadcast tables, with Gaussian noise.

    Where no ranks are needed (alpha = 0) this is the only exchange and has the whole budget. A batch is answered for
    once and then forgotten.

    Slot means (cells, k, bins) are a function of noised tables if the server is honest, anything if not. A client that
    holds no batch for the attempt releases a RuntimeError.
    """
    task, penalty = node.task, penalty_of(node.task)
    if table is None:
        members, paid, outcomes = _begin(node, places, request, state)
        positions = list(paid)
    else:
        members, paid, outcomes = _kept(node, places, request, state)
        positions = [int(number) for number in state["drawn"]] if paid else []
    if not paid:
        return outcomes
    drawn = _draw(node, members, positions, bytes(state["key"]))
    batch, outputs = node.at_hand(theta, drawn.records, request.round, request.attempt)
    q = torch.zeros((len(drawn.records), task.dimension), dtype=torch.float64)
    if table is not None:
        sizes = torch.tensor([members[position].sizes for position in positions], dtype=torch.float64)
        directions, radius = task.clipped.directions(request.round, request.attempt)[0], task.clip.output
        for cell in range(len(node.cells)):
            rows = (drawn.cell == cell).nonzero()[:, 0]
            size, points = sizes[drawn.owner[rows], cell][:, None], outputs[rows]
            q[rows] = tables.cotangents(points, directions, table[cell], penalty, cell=cell, size=size, radius=radius)
    weights = [task.objective.task_weight(sum(members[position].sizes)) for position in positions]
    of_loss = torch.tensor(weights, dtype=torch.float64)[drawn.owner] if any(weights) else None
    vectors, _ = task.clipped.contributions(batch, q, of_loss, drawn.runs)
    node.batch = None
    _forget(state, paid)  # before noise is drawn: a batch is answered for once, whatever comes
    of = dict(zip(positions, vectors, strict=True))
    bounded = {position: Bounded(of[position], members[position].noise.of_contribution) for position in paid}
    return outcomes | _released(node, members, bounded, paid, request, "gradient")


def _begin(
    node: Node, places: Mapping[int, Path], request: Asked, state: State
) -> tuple[dict[int, _Member], dict[int, Paid], Found]:
    """Charge an attempt, whole, to every asked client, and settle the key of their samples."""
    members, outcomes = _members(node, places, request)
    dues = [
        Due(
            member.ledger,
            member.promise,
            request.round,
            request.attempt,
            [member.noise.charge(member.divided.rate), *idle(node.task.experiment)],
            member.noise.contribution,
            member.parts,
            member.most,
        )
        for member in members.values()
    ]
    paid = {}
    for position, said in zip(members, paid_together(dues), strict=True):
        if isinstance(said, Paid):
            paid[position] = said
        else:
            outcomes[position] = said
    if paid:
        # A fresh sample for a fresh payment. Clients of an earlier request for this attempt lose theirs: they have paid
        # for a sample that is gone, and release nothing more of it.
        state.clear()
        state["key"] = batch_key(node.task, request.round, request.attempt)
    return members, paid, outcomes


def _members(node: Node, places: Mapping[int, Path], request: Asked) -> tuple[dict[int, _Member], Found]:
    """Batch, budget and noise of every client, or its reason to refuse; one object for clients of equal sizes."""
    task, experiment = node.task, node.task.experiment
    directions = task.clipped.directions(request.round, request.attempt)[0]
    covered, k = 1.0 if task.dimension == 1 else spread(directions), directions.shape[1]
    known: dict[tuple[int, ...], tuple[Any, ...] | Exception] = {}
    members: dict[int, _Member] = {}
    refusals: Found = {}
    for position, ledger in places.items():
        held = tuple(node.held[position].tolist())
        if held not in known:
            try:
                batch = split.own_batch(held, experiment.training.batch_fraction)
                delta = node.delta(request.records, sum(held))
                divided = split.budget_of(experiment, held, delta)
                sizes = split.believed(request.sizes, batch)
                noise = split.noise(
                    divided, penalty_of(task), task.clip, sizes=sizes, own_sizes=batch, spread=covered, k=k
                )
                promise = Promise.of(experiment, node.run, divided.epsilon, delta)
                most = _cost_of(node, divided, delta) if any(divided.once) else None
                known[held] = (sizes, batch, promise, divided, noise, noise.parts, most)
            except Exception as fault:
                known[held] = fault
        plan = known[held]
        if isinstance(plan, Exception):
            refusals[position] = plan
        else:
            members[position] = _Member(ledger, *plan)
    return members, refusals


def _draw(node: Node, members: Mapping[int, _Member], positions: Sequence[int], key: bytes) -> _Drawn:
    """The batches of some clients, decided by the key only: independent samples, one of each client."""
    counts: NDArray[np.int64] = np.zeros_like(node.held)
    counts[list(positions)] = [members[position].batch for position in positions]
    drawn = node.draw(key, counts)
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    cell = np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0))
    order = np.argsort(owner, kind="stable")
    index = np.searchsorted(np.asarray(positions), owner[order])
    runs = tuple(int(total) for total in counts[list(positions)].sum(axis=1))
    return _Drawn(drawn.take(order), runs, torch.from_numpy(index), torch.from_numpy(cell[order]))


def _released(
    node: Node,
    members: Mapping[int, _Member],
    bounded: Mapping[int, Bounded],
    paid: Mapping[int, Paid],
    request: Asked,
    purpose: Purpose,
) -> Found:
    """Every client's own noise: of its own stream in a seeded run, else all of one irreproducible stream."""
    name = "table" if purpose == "table" else "contribution"
    if (seed := node.task.experiment.seed) is None:
        payments = [paid[client] for client in bounded]
        said = release_paid_together(list(bounded.values()), payments, name, Stream.secure())
        return dict(zip(bounded, said, strict=True))
    outcomes: Found = {}
    for position, value in bounded.items():
        ledger = members[position].ledger
        stream = Stream.seeded(seed, "noise", ledger.stem, request.round, request.attempt, purpose)
        try:
            outcomes[position] = release_paid(value, paid[position], name, stream)
        except ValueError as fault:
            outcomes[position] = fault
    return outcomes


def _keep(state: State, paid: Mapping[int, Paid], released: Found, request: Asked) -> None:
    """Keep what the second exchange needs of the clients that sent tables: their payments, and the sizes asked."""
    answered = [position for position in paid if not isinstance(released[position], Exception)]
    parts = [paid[position].parts["contribution"] for position in answered]
    columns = (
        answered,
        [paid[client].spent for client in answered],
        [p.sensitivity for p in parts],
        [p.scale for p in parts],
    )
    state.update(zip(_OF_PAYMENTS, columns, strict=True))
    state.update({"round": request.round, "attempt": request.attempt, "drawn": list(paid)})
    state.update({"sizes": list(request.sizes), "records": request.records})


def _kept(
    node: Node, places: Mapping[int, Path], request: Asked, state: State
) -> tuple[dict[int, _Member], dict[int, Paid], Found]:
    """The clients of an attempt, with the payments of those that are asked and have not answered yet."""
    numbered = (request.round, request.attempt)
    here = (state.get("round"), state.get("attempt")) == numbered
    columns = (state[name] if here else [] for name in _OF_PAYMENTS)
    payments = {int(position): numbers for position, *numbers in zip(*columns, strict=True)}
    outcomes: Found = {
        position: RuntimeError(
            f"a contribution was asked for round {numbered[0]}, attempt {numbered[1]}, but this client holds no batch "
            "for it; the server must start a fresh attempt"
        )
        for position in places
        if position not in payments
    }
    paid = {}
    for position in places:
        if position in payments:
            spent, sensitivity, scale = payments[position]
            part = Part("contribution", float(sensitivity), float(scale))
            paid[position] = Paid(*numbered, float(spent), {part.name: part})
    if not paid:
        return {}, paid, outcomes
    first = Request(*numbered, tuple(int(size) for size in state["sizes"]), int(state["records"]))
    drawn = {int(position): places.get(int(position), Path()) for position in state["drawn"]}
    # A server may have prepared features otherwise since: clips then differ, and the door refuses a larger bound than
    # was paid for.
    return _members(node, drawn, first)[0], paid, outcomes


def _forget(state: State, answered: Mapping[int, Paid]) -> None:
    """Forget the clients that answer now; with the last of them, the batch."""
    rest = [index for index, position in enumerate(state.get("positions", ())) if int(position) not in answered]
    if not rest:
        state.clear()
        return
    for name in _OF_PAYMENTS:
        state[name] = [state[name][index] for index in rest]


def _tables(
    node: Node, request: TableAsked, positions: Sequence[int], context: Context
) -> dict[int, NoisedTable | Exception]:
    places, theta = ledgers_of(node, context, positions), request.theta.tensor()
    return _as(NoisedTable, noised_tables(node, places, theta, request, state_of_site(context)))


def _contributions(
    node: Node, request: LocalGradientAsked, positions: Sequence[int], context: Context
) -> dict[int, NoisedContribution | Exception]:
    places, theta = ledgers_of(node, context, positions), request.theta.tensor()
    table = None if request.tables is None else request.tables.tensor()
    return _as(NoisedContribution, noised_contributions(node, places, theta, request, table, state_of_site(context)))


def _as(kind: Callable[[float, Tensor, float], Up], outcomes: Found) -> dict[int, Up | Exception]:
    return {
        position: outcome if isinstance(outcome, Exception) else kind(outcome.spent, outcome.value, outcome.sigma)
        for position, outcome in outcomes.items()
    }


answer_tables = answer_together(messages.TABLES, _tables)
answer_gradients = answer_together(messages.LOCAL_GRADIENTS, _contributions)


def planned(node: Node, delta: float) -> Counts | Cost:
    """Cost of all planned rounds to this client's records, at that delta or a smaller one."""
    return _cost_of(node, split.budget_of(node.task.experiment, node.sizes, delta), delta)


def _cost_of(node: Node, divided: split.BudgetSplit, delta: float) -> Counts | Cost:
    rounds = lifetime.planned(Step(divided.rate, 1 / divided.rounds), node.task.experiment.training.rounds)
    return covering(node.task, with_once(rounds, divided), divided.epsilon, delta)


def penalty_of(task: Problem) -> WeightedPenalty:
    """Return the run's one penalty, a comparison of groups; TypeError for another objective."""
    return task.objective.between_groups()
