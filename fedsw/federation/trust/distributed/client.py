"""Trust model `distributed` at a site: checked, charged, then a share of noise and a mask on every number."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Context, Error, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import BudgetExhausted, Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.federation import messages, wire
from fedsw.federation.messages import Broadcast, MaskedNumbers, MaskedSumAsked, MaskedTableAsked
from fedsw.federation.node.account import Due, paid_together
from fedsw.federation.node.answers import answered, ledgers_of, node_of, note, state_of_site
from fedsw.federation.node.node import Batch, Node, batch_key
from fedsw.federation.node.roster import Keyring, keyring_of
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.budget import (
    Attempt,
    Name,
    attempt_of,
    attempts,
    delta_of,
    multiplier_of,
    promise_of,
)
from fedsw.federation.trust.distributed.cohort import (
    Cohort,
    Own,
    own_party,
    rate_of,
    require_alike,
    require_honest,
)
from fedsw.privacy.masks import NONCE_BYTES, digest_of
from fedsw.privacy.release import Bounded, Paid, release_share
from fedsw.subnormal import flushing_to_zero

State = MutableMapping[str, Any]


@dataclass(frozen=True)
class _Answering:
    """A site in an attempt: the cohort it has checked, its place there, and what it draws.

    Attributes:
        counts: records of each of the node's clients and cells, (S, c); 0 for a client that is not in the sum.
        paid: by every client of the site in the sum.
    """

    node: Node
    ring: Keyring
    cohort: Cohort
    attempt: Attempt
    directions: Sequence[Tensor]
    place: int
    counts: NDArray[np.int64]
    paid: list[Paid]


def ready(message: Message, context: Context) -> Message:
    """Say that this site can be asked for an attempt's sums: its public key, and a nonce that it never had before."""
    node, asked = node_of(messages.READY, message, context)
    ring, state = _ring(node, context), state_of_site(context)
    state.clear()
    state.update({"round": asked.round, "attempt": asked.attempt, "nonce": os.urandom(NONCE_BYTES)})
    return answered(messages.Ready(ring.key.public.hex(), bytes(state["nonce"]).hex()), node, message)


def masked_tables(message: Message, context: Context) -> Message:
    """First masked sum of an attempt: a fresh secret batch, charged; histograms of its outputs."""
    node, asked = node_of(messages.MASKED_TABLES, message, context)
    if not ranked.compares(node.task):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    state = state_of_site(context)
    try:
        here = _charged(node, asked, context, state)
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    note(messages.MASKED_TABLES, asked, node, context)
    bound = here.attempt.noise.of_table
    assert bound is not None
    bounded = Bounded(_tables(here, asked.theta.tensor(), asked.round, asked.attempt, state), bound)
    numbers = _masked(here, bounded, "table", asked, None)
    state.update({"epsilons": [each.spent for each in here.paid], "cohort": asked.cohort})
    return _masked_reply(here, numbers, node, message)


def masked_sum(message: Message, context: Context) -> Message:
    """Second masked sum of an attempt, or the only one: the clipped contribution of the batch."""
    node, asked = node_of(messages.MASKED_SUM, message, context)
    if not ranked.contributes(node.task):
        raise ValueError("a contribution was asked for, and private records move no parameter; nothing was charged")
    state = state_of_site(context)
    try:
        begin = _charged if asked.tables is None else _charged_before
        here = begin(node, asked, context, state)
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    note(messages.MASKED_SUM, asked, node, context)
    table = None if asked.tables is None else asked.tables.tensor()
    vector = _contribution_of(here, asked.theta.tensor(), asked.round, asked.attempt, table, state)
    state.clear()
    bounded = Bounded(vector, here.attempt.noise.of_contribution)
    return _masked_reply(here, _masked(here, bounded, "contribution", asked, asked.tables), node, message)


def planned(node: Node, delta: float) -> Counts:
    """What all planned attempts cost a client's records."""
    experiment = node.task.experiment
    multiplier, _ = multiplier_of(experiment, delta)
    return lifetime.planned(Step(rate_of(experiment.training.batch_fraction), 1 / multiplier), attempts(experiment))


def _charged(node: Node, asked: MaskedTableAsked | MaskedSumAsked, context: Context, state: State) -> _Answering:
    """Check what all sites are asked, charge the attempt to every client, and settle the key of the sample."""
    here = _checked(node, asked, context, state)
    experiment, attempt = node.task.experiment, here.attempt
    for part in attempt.parts:
        attempt.shares(cast(Name, part.name))  # what has no grid is refused before it is charged
    positions = np.flatnonzero(np.isin(node.clients, here.cohort.parties[here.place].clients)).tolist()
    promise = promise_of(experiment, node.run, delta_of(experiment, here.cohort.records))
    dues = [
        Due(place, promise, asked.round, asked.attempt, [attempt.charge], attempt.sigma, attempt.parts)
        for place in ledgers_of(node, context, positions).values()
    ]
    said = paid_together(dues)
    if faults := [each for each in said if isinstance(each, Exception)]:
        raise faults[0]
    here.paid.extend(each for each in said if isinstance(each, Paid))
    state["key"] = batch_key(node.task, asked.round, asked.attempt)
    return here


def _charged_before(node: Node, asked: MaskedTableAsked | MaskedSumAsked, context: Context, state: State) -> _Answering:
    """The same attempt's second sum: what was checked and paid for with the first."""
    here = _checked(node, asked, context, state)
    if "key" not in state or "epsilons" not in state:
        raise RuntimeError(
            f"a contribution was asked for round {asked.round}, attempt {asked.attempt}, but this node holds no batch "
            "for it; the server must start a fresh attempt"
        )
    require_alike(asked.cohort, str(state["cohort"]))
    part = next(each for each in here.attempt.parts if each.name == "contribution")
    here.paid.extend(Paid(asked.round, asked.attempt, float(each), {part.name: part}) for each in state["epsilons"])
    return here


def _checked(node: Node, asked: MaskedTableAsked | MaskedSumAsked, context: Context, state: State) -> _Answering:
    """A request that this site may answer.

    Raises:
        RuntimeError: if this site gave no nonce for the attempt, or has answered it.
        ValueError: by `own_party` and `attempt_of`; nothing is charged.
    """
    if (state.get("round"), state.get("attempt")) != (asked.round, asked.attempt) or "nonce" not in state:
        raise RuntimeError(
            f"round {asked.round}, attempt {asked.attempt} was not made ready at this site, or was answered; the "
            "server must start a fresh attempt"
        )
    ring, cohort = _ring(node, context), Cohort.read(asked.cohort)
    own = Own(int(node.clients[0]), node.clients.tolist(), node.held, bytes(state["nonce"]).hex())
    party = own_party(cohort, node.task.experiment, ring, own)
    directions = node.task.all_directions(asked.round, asked.attempt)
    attempt = attempt_of(node.task, cohort, directions)
    place = cohort.parties.index(party)
    counts = np.zeros_like(node.held)
    counts[np.isin(node.clients, party.clients)] = cohort.counts(node.task.experiment.training.batch_fraction)[place]
    return _Answering(node, ring, cohort, attempt, directions, place, counts, [])


def _masked(
    here: _Answering,
    bounded: Bounded,
    name: Name,
    asked: MaskedTableAsked | MaskedSumAsked,
    table: Broadcast | None,
) -> Tensor:
    """The site's numbers: its share of noise, rounded to the common grid, and its mask for this very request."""
    node = here.node
    request: dict[str, bytes | str | int] = {
        "run": node.run,
        "experiment": node.settings,
        "round": asked.round,
        "attempt": asked.attempt,
        "sum": name,
        "cohort": asked.cohort,
        "model": _bytes_of(asked.theta),
        "table": b"" if table is None else _bytes_of(table),
    }
    length = int(np.prod(bounded.shape))
    mask = here.ring.key.mask(here.cohort.others(here.ring.key.public.hex()), digest_of(request), length)
    stream = node.own_stream(asked.round, asked.attempt, f"share of {name}")
    share = here.attempt.shares(name)[here.place]
    numbers = release_share(bounded, here.paid, name, share, mask, stream)
    return torch.from_numpy(numbers.view(np.int64))


@flushing_to_zero
def _tables(here: _Answering, theta: Tensor, round_: int, attempt: int, state: State) -> Tensor:
    """All histograms of a fresh batch, over all clients of the site in the sum, flat; float64."""
    node, task = here.node, here.node.task
    records = node.draw(bytes(state["key"]), here.counts)
    if ranked.contributes(task):
        _, outputs = node.forward(theta, records, round_, attempt)
    else:
        outputs = task.fixed_outputs(records)
    return ranked.counted(task, outputs, here.counts.sum(axis=0).tolist(), here.directions)


@flushing_to_zero
def _contribution_of(
    here: _Answering, theta: Tensor, round_: int, attempt: int, means: Tensor | None, state: State
) -> Tensor:
    """The clipped contribution (r,) of the attempt's batch, over all clients of the site in the sum; float64."""
    node, task = here.node, here.node.task
    batch, outputs = _batch(here, theta, round_, attempt, state)
    q = task.no_cotangents(len(batch.records))
    if means is not None:
        drawn = here.counts.sum(axis=0).tolist()
        q = ranked.cotangents(task, outputs, drawn, here.attempt.batch, here.directions, means)
    vector, _ = node.contribution(batch, q, task.objective.task_weight(sum(here.attempt.batch)))
    node.batch = None
    return vector


def _batch(here: _Answering, theta: Tensor, round_: int, attempt: int, state: State) -> tuple[Batch, Tensor]:
    """The attempt's batch and its projected outputs (n, d): at hand, or drawn again from its key."""
    node, batch = here.node, here.node.batch
    if batch is not None and (batch.round, batch.attempt) == (round_, attempt):
        if batch.tape is not None:
            return batch, node.task.projected(batch.tape.raw, node.task.given(batch.records))
        return node.forward(theta, batch.records, round_, attempt)
    return node.forward(theta, node.draw(bytes(state["key"]), here.counts), round_, attempt)


def _masked_reply(here: _Answering, numbers: Tensor, node: Node, message: Message) -> Message:
    """The masked numbers, and what every client's ledger of the site in the sum has spent; 0 of others."""
    spent = torch.zeros(len(node.clients), dtype=torch.float64)
    there = np.isin(node.clients, here.cohort.parties[here.place].clients)
    spent[torch.from_numpy(there)] = torch.tensor([each.spent for each in here.paid], dtype=torch.float64)
    return answered(MaskedNumbers(numbers, spent), node, message, S=len(node.clients))


def _ring(node: Node, context: Context) -> Keyring:
    """What this site has for masked sums, if the run's noise is enough for what its operator takes into account."""
    ring = keyring_of(context.node_config, node.run, int(node.clients[0]))
    require_honest(node.task.experiment, ring.colluding)
    return ring


def _bytes_of(sent: Broadcast) -> bytes:
    return sent.tensor().numpy().tobytes()
