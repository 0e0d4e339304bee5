"""Trust model `local-gradient` at a site: what each of its clients would answer, from passes over all batches at once.

Sampling, ledger, bound and noise are each client's own, as in `client`. Charges of all clients wait for the disk
together, before any noise is drawn. A client that cannot pay, or has no batch, is missing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data import Records
from fedsw.experiment import resolve_delta
from fedsw.experiment.sections import TableSettings
from fedsw.federation import messages
from fedsw.federation.budgets import split
from fedsw.federation.budgets.moments import idle
from fedsw.federation.messages.local import LocalGradientAsked, NoisedContribution, NoisedTable, TableAsked
from fedsw.federation.node import account
from fedsw.federation.node.answers import Up, ledger_of, ledgers_of, released, state_of_client, state_of_site
from fedsw.federation.node.node import Batch, Node, batch_key
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_gradient.client import (
    Answer,
    Purpose,
    Request,
    believed,
    noise_of,
    noise_stream,
    objective_of,
    promised,
)
from fedsw.objectives import histograms as tables
from fedsw.privacy.release import Bounded, Paid, Part, Released, release_paid, release_paid_together
from fedsw.randomness import Stream
from fedsw.subnormal import flushing_to_zero

_T = TypeVar("_T")
Found = Mapping[int, _T | Exception]
"""By a client's position: what it has, or why it has nothing."""


@dataclass(frozen=True)
class _Member:
    """One client in an attempt: the batch sizes that it believes, its own by cell, its delta, budget and noise."""

    place: Path
    sizes: tuple[int, ...]
    own: tuple[int, ...]
    delta: float
    divided: split.BudgetSplit
    noise: split.Noise
    parts: Sequence[Part]


@dataclass(frozen=True)
class _Drawn:
    """The batches of some clients, client after client and cell after cell in each.

    Attributes:
        runs: (S,), how many records are each client's.
        owner: (n,), which of the clients each is of, from 0.
        cell: (n,), its cell.
    """

    records: Records
    runs: tuple[int, ...]
    owner: Tensor
    cell: Tensor


def noised_tables(
    node: Node, places: Mapping[int, Path], theta: Tensor, request: Request, state: MutableMapping[str, Any]
) -> Found[Answer]:
    """`client.noised_table` for many clients of a site at once: a table (cells, k, bins) of each.

    One forward pass, and all histograms in one call.

    Args:
        places: of the asked clients' ledgers, by position.
        state: what the site keeps between the two exchanges.

    Raises:
        ValueError: as `client.noised_table`, where it concerns all clients; nothing is charged.
    """
    if not split.asks_tables(node.task.experiment):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    members, paid, found = _begin(node, places, request, state)
    if not paid:
        return found
    task, cells = node.task, len(node.cells)
    drawn = _draw(node, members, list(paid), bytes(state["key"]))
    _, outputs = node.forward(theta, drawn.records, request.round, request.attempt)
    directions, holder = task.directions(request.round, request.attempt), drawn.owner * cells + drawn.cell
    bins, radius = task.experiment.own(TableSettings).bins, task.clip.output
    counts = tables.histograms_by(outputs, holder, len(paid) * cells, directions, radius, bins)
    by_client = counts.reshape(len(paid), cells, *counts.shape[1:])
    held = {position: torch.tensor([count > 0 for count in members[position].own]) for position in paid}
    bounded = {}
    for position, own in zip(paid, by_client, strict=True):
        of_table = members[position].noise.of_table
        assert of_table is not None
        bounded[position] = Bounded(own[held[position]], of_table)
    released = _released(node, members, bounded, paid, request, "table")
    _keep(state, members, paid, released, request)
    for position, own in zip(paid, by_client, strict=True):
        said = released[position]
        if not isinstance(said, Exception):
            own[held[position]] = said.value
        found[position] = said if isinstance(said, Exception) else Answer(own, said.sigma, said.spent)
    return found


def noised_contributions(
    node: Node,
    places: Mapping[int, Path],
    theta: Tensor,
    request: Request,
    table: Tensor | None,
    state: MutableMapping[str, Any],
) -> Found[Answer]:
    """`client.noised_contribution` for many clients of a site: one forward and one backward pass.

    Args:
        places: of the asked clients' ledgers, by position.
        table: slot means (cells, k, bins), the same for all clients.
        state: what the site kept of the first exchange; nothing of a client is left there once it has answered.
    """
    task = node.task
    if table is None:
        members, paid, found = _begin(node, places, request, state)
        positions = list(paid)
    else:
        members, paid, found = _kept(node, places, request, state)
        positions = [int(each) for each in state["drawn"]] if paid else []
    if not paid:
        return found
    drawn = _draw(node, members, positions, bytes(state["key"]))
    batch, outputs = _batch(node, theta, drawn, request)
    q = torch.zeros((len(drawn.records), task.dimension), dtype=torch.float64)
    if table is not None:
        sizes = torch.tensor([members[position].sizes for position in positions], dtype=torch.float64)
        directions = task.directions(request.round, request.attempt)
        for cell in range(len(node.cells)):
            rows = (drawn.cell == cell).nonzero()[:, 0]
            size = sizes[drawn.owner[rows], cell][:, None]
            q[rows] = tables.cotangents(
                outputs[rows],
                directions,
                table[cell],
                objective_of(node),
                cell=cell,
                size=size,
                radius=task.clip.output,
            )
    vectors = node.contributions(batch, q, _task_weights(node, members, positions, drawn), drawn.runs)
    node.batch = None
    _forget(state, paid)
    of = dict(zip(positions, vectors, strict=True))
    bounded = {position: Bounded(of[position], members[position].noise.of_contribution) for position in paid}
    released = _released(node, members, bounded, paid, request, "gradient")
    for position, said in released.items():
        found[position] = said if isinstance(said, Exception) else Answer(said.value, said.sigma, said.spent)
    return found


def _task_weights(node: Node, members: Mapping[int, _Member], positions: Sequence[int], drawn: _Drawn) -> Tensor | None:
    """Weight (n,) of every record's task loss; None where the penalty is everything."""
    weights = [objective_of(node).task_weight(sum(members[position].sizes)) for position in positions]
    return torch.tensor(weights, dtype=torch.float64)[drawn.owner] if any(weights) else None


def _begin(
    node: Node, places: Mapping[int, Path], request: Request, state: MutableMapping[str, Any]
) -> tuple[dict[int, _Member], dict[int, Paid], dict[int, Answer | Exception]]:
    """Charge an attempt, whole, to every asked client, and settle the key of their samples."""
    members, found = _members(node, places, request)
    dues = [
        account.Due(
            each.place,
            promised(node, each.divided, each.delta),
            request.round,
            request.attempt,
            [each.noise.charge(each.divided.rate), *idle(node.task.experiment)],
            each.noise.contribution,
            each.parts,
        )
        for each in members.values()
    ]
    paid = {}
    for position, said in zip(members, account.paid_together(dues), strict=True):
        if isinstance(said, Paid):
            paid[position] = said
        else:
            found[position] = said
    if paid:
        state.clear()
        state["key"] = batch_key(node.task, request.round, request.attempt)
    return members, paid, found


def _members(
    node: Node, places: Mapping[int, Path], request: Request
) -> tuple[dict[int, _Member], dict[int, Answer | Exception]]:
    """What every client makes of the request by itself, or why it refuses. Clients of the same sizes do the same."""
    experiment, directions = node.task.experiment, node.task.directions(request.round, request.attempt)
    known: dict[tuple[int, ...], tuple[Any, ...] | Exception] = {}
    members: dict[int, _Member] = {}
    refusals: dict[int, Answer | Exception] = {}
    for position, place in places.items():
        held = tuple(node.held[position].tolist())
        if held not in known:
            try:
                own = split.own_batch(held, experiment.training.batch_fraction)
                rate = split.sampling_rate(held, experiment.training.batch_fraction)
                delta = resolve_delta(experiment.privacy.delta, records=max(request.records, sum(held)))
                divided = split.budget_split(experiment, rate=rate, delta=delta)
                sizes = believed(request.sizes, own)
                noise = noise_of(node, directions, sizes, own, divided)
                known[held] = (sizes, own, delta, divided, noise, noise.parts)
            except Exception as fault:
                known[held] = fault
        found = known[held]
        if isinstance(found, Exception):
            refusals[position] = found
        else:
            members[position] = _Member(place, *found)
    return members, refusals


def _draw(node: Node, members: Mapping[int, _Member], positions: Sequence[int], key: bytes) -> _Drawn:
    """The batches of some clients, decided by the key alone: independent samples, one of each client."""
    counts: NDArray[np.int64] = np.zeros_like(node.held)
    counts[list(positions)] = [members[position].own for position in positions]
    drawn = node.draw(key, counts)
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    cell = np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0))
    order = np.argsort(owner, kind="stable")
    place = np.searchsorted(np.asarray(positions), owner[order])
    runs = tuple(int(total) for total in counts[list(positions)].sum(axis=1))
    return _Drawn(drawn.take(order), runs, torch.from_numpy(place), torch.from_numpy(cell[order]))


@flushing_to_zero
def _batch(node: Node, theta: Tensor, drawn: _Drawn, request: Request) -> tuple[Batch, Tensor]:
    """The attempt's batch and its projected outputs (n, d): at hand, or passed through the model again."""
    batch = node.batch
    if batch is not None and (batch.round, batch.attempt) == (request.round, request.attempt):
        at_hand = batch.tape is not None and torch.equal(batch.records.ids, drawn.records.ids)
        if at_hand and batch.tape is not None:
            return batch, node.task.projected(batch.tape.raw, node.task.given(batch.records))
    return node.forward(theta, drawn.records, request.round, request.attempt)


def _released(
    node: Node,
    members: Mapping[int, _Member],
    bounded: Mapping[int, Bounded],
    paid: Mapping[int, Paid],
    request: Request,
    purpose: Purpose,
) -> dict[int, Released | Exception]:
    """Every client's own noise: of its own stream in a seeded run, else all of one stream that nobody can reproduce."""
    name = "table" if purpose == "table" else "contribution"
    if node.task.experiment.seed is None:
        said = release_paid_together(list(bounded.values()), [paid[each] for each in bounded], name, Stream.secure())
        return dict(zip(bounded, said, strict=True))
    found: dict[int, Released | Exception] = {}
    for position, value in bounded.items():
        stream = noise_stream(node, members[position].place, request, purpose)
        try:
            found[position] = release_paid(value, paid[position], name, stream)
        except ValueError as fault:
            found[position] = fault
    return found


def _keep(
    state: MutableMapping[str, Any],
    members: Mapping[int, _Member],
    paid: Mapping[int, Paid],
    released: Mapping[int, Released | Exception],
    request: Request,
) -> None:
    """Keep what the second exchange needs of the clients whose tables left: their payments, and the sizes asked."""
    there = [position for position in paid if not isinstance(released[position], Exception)]
    parts = [paid[position].parts["contribution"] for position in there]
    state.update(
        {
            "round": request.round,
            "attempt": request.attempt,
            "sizes": list(request.sizes),
            "records": request.records,
            "drawn": list(paid),
            "positions": there,
            "epsilons": [paid[position].spent for position in there],
            "sensitivities": [part.sensitivity for part in parts],
            "scales": [part.scale for part in parts],
        }
    )


def _kept(
    node: Node, places: Mapping[int, Path], request: Request, state: MutableMapping[str, Any]
) -> tuple[dict[int, _Member], dict[int, Paid], dict[int, Answer | Exception]]:
    """The clients of an attempt, with the payments of those that are asked and have not answered yet."""
    asked = (request.round, request.attempt)
    here = (state.get("round"), state.get("attempt")) == asked
    columns = (state[name] if here else [] for name in ("positions", "epsilons", "sensitivities", "scales"))
    kept = {int(position): numbers for position, *numbers in zip(*columns, strict=True)}
    found: dict[int, Answer | Exception] = {
        position: RuntimeError(
            f"a contribution was asked for round {asked[0]}, attempt {asked[1]}, but this client holds no batch for "
            "it; the server must start a fresh attempt"
        )
        for position in places
        if position not in kept
    }
    paid = {}
    for position in places:
        if position in kept:
            spent, sensitivity, scale = kept[position]
            part = Part("contribution", float(sensitivity), float(scale))
            paid[position] = Paid(*asked, float(spent), {part.name: part})
    if not paid:
        return {}, paid, found
    first = Request(*asked, tuple(int(size) for size in state["sizes"]), int(state["records"]))
    drawn = {int(position): places.get(int(position), Path()) for position in state["drawn"]}
    return _members(node, drawn, first)[0], paid, found


def _forget(state: MutableMapping[str, Any], answered: Mapping[int, Paid]) -> None:
    """Forget the clients that answer now; with the last of them, the batch."""
    rest = [place for place, position in enumerate(state.get("positions", ())) if int(position) not in answered]
    if not rest:
        state.clear()
        return
    for name in ("positions", "epsilons", "sensitivities", "scales"):
        state[name] = [state[name][place] for place in rest]


def answer_tables(message: Message, context: Context) -> Message:
    """`local-gradient`, first exchange: a fresh batch, charged to each client's ledger; its noised histograms."""

    def release(node: Node, asked: TableAsked) -> NoisedTable:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = ledger_of(node, context), asked.theta.tensor()
        answer = local_gradient.noised_table(node, place, theta, request, state_of_client(node, context))
        return NoisedTable(answer.epsilon, answer.values, answer.sigma)

    def together(site: Node, asked: TableAsked, positions: Sequence[int]) -> Mapping[int, NoisedTable | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = ledgers_of(site, context, positions), asked.theta.tensor()
        found = noised_tables(site, places, theta, request, state_of_site(context))
        return _as(NoisedTable, found)

    return released(messages.TABLES, message, context, release, together)


def answer_gradients(message: Message, context: Context) -> Message:
    """`local-gradient`, second exchange: the same batch's clipped contribution, noised for the client's guarantee."""

    def release(node: Node, asked: LocalGradientAsked) -> NoisedContribution:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = ledger_of(node, context), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        answer = local_gradient.noised_contribution(node, place, theta, request, table, state_of_client(node, context))
        return NoisedContribution(answer.epsilon, answer.values, answer.sigma)

    def together(
        site: Node, asked: LocalGradientAsked, positions: Sequence[int]
    ) -> Mapping[int, NoisedContribution | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = ledgers_of(site, context, positions), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        state = state_of_site(context)
        found = noised_contributions(site, places, theta, request, table, state)
        return _as(NoisedContribution, found)

    return released(messages.LOCAL_GRADIENTS, message, context, release, together)


def _as(
    kind: Callable[[float, Tensor, float], Up], found: Mapping[int, local_gradient.Answer | Exception]
) -> dict[int, Up | Exception]:
    """What clients of a site noised, as messages."""
    return {
        position: each if isinstance(each, Exception) else kind(each.epsilon, each.values, each.sigma)
        for position, each in found.items()
    }
