"""Trust model `distributed` at a site: checked, charged, then a share of noise and a mask, whatever is summed.

Then the two sums of a round: a table of its batch, and the batch's contribution. `masked_rounds` is the server's side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.federation import messages
from fedsw.federation.messages import AnyExchange, Broadcast
from fedsw.federation.messages.table import (
    MaskedAsked,
    MaskedNumbers,
    MaskedSumAsked,
    MaskedTableAsked,
    Ready,
)
from fedsw.federation.node.limits import codes_of
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.replies import Due, answered, ledgers_of, node_of, note, paid_together, state_of_site
from fedsw.federation.node.roster import Keyring, keyring_of
from fedsw.federation.trust import most, promise
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.attempt_cost import Agreed, Attempt, attempt_of, delta_of
from fedsw.federation.trust.distributed.members import Cohort, assumed, party_of, require_alike, require_honest
from fedsw.privacy.masks import NONCE_BYTES, digest_of
from fedsw.privacy.release import Bounded, Paid, release_share

State = MutableMapping[str, Any]
A = TypeVar("A", bound=Agreed)
Request = MaskedTableAsked | MaskedSumAsked
Asked = Request | MaskedAsked


@dataclass(frozen=True)
class Answering(Generic[A]):
    """A site in an attempt: the cohort it has checked, its place there, what all sites agree on, what it has paid."""

    node: Node
    ring: Keyring
    cohort: Cohort
    attempt: A
    index: int
    paid: list[Paid]

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which of the node's clients are in the sum, (S,)."""
        return np.isin(self.node.clients, self.cohort.parties[self.index].clients)


def ready(message: Message, context: Context) -> Message:
    """Say that this site can be asked for an attempt's sums: its public key, and a nonce that it never had before."""
    node, request = node_of(messages.READY, message, context)
    ring, state = _ring(node, context), state_of_site(context)
    state.clear()
    state.update({"round": request.round, "attempt": request.attempt, "nonce": os.urandom(NONCE_BYTES)})
    return answered(Ready(ring.key.public.hex(), bytes(state["nonce"]).hex()), node, message)


def charged(node: Node, request: Asked, context: Context, state: State, agree: Callable[[Cohort], A]) -> Answering[A]:
    """Check what all sites are asked, and charge the attempt to every client of this one that is in the sum.

    BudgetExhausted, AlreadySpent by a client's ledger; RuntimeError, ValueError as `checked`: what has no grid is
    refused before it is charged, too.
    """
    here = checked(node, request, context, state, agree)
    for part in here.attempt.parts:  # a grid that could wrap around is refused while nothing is charged
        here.attempt.shares(part.name)
    delta, agreed = delta_of(node.task.experiment, here.cohort.records), here.attempt
    promised, planned = promise(node, delta), most(node, delta)
    dues = [
        Due(ledger, promised, request.round, request.attempt, agreed.charges, agreed.sigma, agreed.parts, planned)
        for ledger in ledgers_of(node, context, np.flatnonzero(here.there).tolist()).values()
    ]
    said = paid_together(dues)
    # A site's sum is of all of its clients that are asked: if one cannot pay, nothing leaves. The others stay charged.
    if faults := [outcome for outcome in said if isinstance(outcome, Exception)]:
        raise faults[0]
    here.paid.extend(outcome for outcome in said if isinstance(outcome, Paid))
    return here


def checked(node: Node, request: Asked, context: Context, state: State, agree: Callable[[Cohort], A]) -> Answering[A]:
    """A request that this site may answer, with what all sites of its cohort `agree` on; nothing is charged.

    RuntimeError if this site gave no nonce for the attempt, or has answered it; ValueError by `party_of` and `agree`.
    """
    if (state.get("round"), state.get("attempt")) != (request.round, request.attempt) or "nonce" not in state:
        raise RuntimeError(
            f"round {request.round}, attempt {request.attempt} was not made ready at this site, or was answered; the "
            "server must start a fresh attempt"
        )
    ring, cohort = _ring(node, context), Cohort.read(request.cohort)
    nonce, planned = bytes(state["nonce"]).hex(), assumed(node.task.experiment)
    party = party_of(cohort, ring, nonce, node.clients, node.held, *planned)
    return Answering(node, ring, cohort, agree(cohort), cohort.parties.index(party), [])


def masked(here: Answering[A], bounded: Bounded, name: str, request: Asked, sent: Mapping[str, bytes]) -> Tensor:
    """The site's numbers (y,): its share of noise, rounded to the common grid, and its mask for this very request.

    Noise and mask are added at the door (`release_share`), for what `charged` has paid. What else all
    sites are sent alike is in the mask: masks cancel only where it is the same.
    """
    node = here.node
    digested: dict[str, bytes | str | int] = {
        "run": node.run,
        "experiment": node.settings,
        "round": request.round,
        "attempt": request.attempt,
        "sum": name,
        "cohort": request.cohort,
        **sent,
    }
    length = int(np.prod(bounded.shape))
    # The cohort has every site's nonce: no two attempts share a mask, and the two sums of one differ in their name.
    mask = here.ring.key.mask(here.cohort.others(here.ring.key.public.hex()), digest_of(digested), length)
    stream = node.own_stream(request.round, request.attempt, f"share of {name}")
    share = here.attempt.shares(name)[here.index]
    numbers = release_share(bounded, here.paid, name, share, mask, stream)
    return torch.from_numpy(numbers.view(np.int64))


def masked_reply(here: Answering[A], numbers: Tensor, message: Message) -> Message:
    """The masked numbers (y,), and what every client's ledger of the site in the sum has spent; 0 of others."""
    spent = torch.zeros(len(here.node.clients), dtype=torch.float64)
    spent[torch.from_numpy(here.there)] = torch.tensor([payment.spent for payment in here.paid], dtype=torch.float64)
    return answered(MaskedNumbers(numbers, spent), here.node, message, S=len(here.node.clients))


def _ring(node: Node, context: Context) -> Keyring:
    """Return this site's key and roster; refuse noise too small for the colluding clients its operator assumes."""
    codes = codes_of(node.task.experiment, context.node_config)
    ring = replace(keyring_of(context.node_config, node.run, int(node.clients[0])), codes=codes)
    require_honest(*assumed(node.task.experiment), ring.colluding)
    return ring


def masked_tables(message: Message, context: Context) -> Message:
    """First masked sum of an attempt: a fresh secret batch, charged; histograms of its outputs."""
    node, request = node_of(messages.MASKED_TABLES, message, context)
    if not ranked.compares(node.task):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    state = state_of_site(context)
    here = _first_sum(messages.MASKED_TABLES, node, request, context, state)
    bound = here.attempt.noise.of_table
    assert bound is not None
    bounded = Bounded(_tables(here, request.theta.tensor(), request.round, request.attempt, state), bound)
    numbers = masked(here, bounded, "table", request, _sent(request))
    state.update(
        {"epsilons": [payment.spent for payment in here.paid], "cohort": request.cohort, "prepared": _prepared(request)}
    )
    state["parts"] = _costs(here.attempt)
    return masked_reply(here, numbers, message)


def masked_sum(message: Message, context: Context) -> Message:
    """Second masked sum of an attempt, or the only one: the clipped contribution of the batch."""
    node, request = node_of(messages.MASKED_SUM, message, context)
    if not node.task.private_parameters:
        raise ValueError("a contribution was asked for, and private records move no parameter; nothing was charged")
    state = state_of_site(context)
    first = request.tables is None
    here = (_first_sum if first else _second_sum)(messages.MASKED_SUM, node, request, context, state)
    table = None if request.tables is None else request.tables.tensor()
    vector = _contribution_of(here, request.theta.tensor(), request.round, request.attempt, table, state)
    state.clear()  # sample and nonce are used up before noise is drawn, whatever comes
    bounded = Bounded(vector, here.attempt.noise.of_contribution)
    return masked_reply(here, masked(here, bounded, "contribution", request, _sent(request)), message)


def _first_sum(
    exchange: AnyExchange, node: Node, request: Request, context: Context, state: State
) -> Answering[Attempt]:
    """Check and charge an attempt's first sum, and settle the key of the sample: once, for any of the site's clients.

    A request that was answered leaves the key as it is: both sums of an attempt are of one sample.
    """
    here = charged(node, request, context, state, _agree(node, request))
    note(exchange, request, node, context)
    state["key"], node.batch = batch_key(node.task, request.round, request.attempt), None
    return here


def _second_sum(
    exchange: AnyExchange, node: Node, request: Request, context: Context, state: State
) -> Answering[Attempt]:
    """An attempt's second sum, which was checked and paid for with the first."""
    here = checked(node, request, context, state, _agree(node, request))
    if "key" not in state or "epsilons" not in state:
        raise RuntimeError(
            f"a contribution was asked for round {request.round}, attempt {request.attempt}, but this node holds no "
            "batch for it; the server must start a fresh attempt"
        )
    require_alike(request.cohort, str(state["cohort"]))
    if _prepared(request) != bytes(state["prepared"]):
        raise RuntimeError("features were prepared otherwise than for the attempt's first sum; start a fresh attempt")
    # Both sums share an attempt's budget, by a split that is worked out from public numbers each time. Had these
    # changed in between (bins may, by another greeting), each sum could have the larger part of a split, and more leave
    # than was paid for. Relative 1e-9, as at the door.
    if not np.allclose(_costs(here.attempt), state["parts"], rtol=1e-9, atol=0.0):
        raise RuntimeError("the contribution would leave with other noise than was paid for; start a fresh attempt")
    part = next(part for part in here.attempt.parts if part.name == "contribution")
    here.paid.extend(
        Paid(request.round, request.attempt, float(spent), {part.name: part}) for spent in state["epsilons"]
    )
    note(exchange, request, node, context)
    return here


def _costs(attempt: Attempt) -> list[float]:
    return [number for part in attempt.parts for number in (part.sensitivity, part.scale)]


def _agree(node: Node, request: Request) -> Callable[[Cohort], Attempt]:
    """Function that works out a round's attempt of a cohort, alike at all of its sites."""
    return lambda cohort: attempt_of(node.task, cohort, node.task.clipped.directions(request.round, request.attempt))


def _counts(here: Answering[Attempt]) -> NDArray[np.int64]:
    """Records of each of the node's clients and cells in the batch, (S, c); 0 for a client that is not in the sum."""
    counts = np.zeros_like(here.node.held)
    counts[here.there] = here.cohort.counts(here.node.task.experiment.training.batch_fraction)[here.index]
    return counts


@flushing_to_zero
def _tables(here: Answering[Attempt], theta: Tensor, round_: int, attempt: int, state: State) -> Tensor:
    """All histograms of a fresh batch, over all clients of the site in the sum, flat; float64."""
    node, task, counts = here.node, here.node.task, _counts(here)
    records = node.draw(bytes(state["key"]), counts)
    if task.private_parameters:
        _, outputs = node.forward(theta, records, round_, attempt)
    else:
        outputs = task.fixed_outputs(records)
    return ranked.counted(task, outputs, counts.sum(axis=0).tolist(), here.attempt.directions, here.attempt.bins)


@flushing_to_zero
def _contribution_of(
    here: Answering[Attempt], theta: Tensor, round_: int, attempt: int, means: Tensor | None, state: State
) -> Tensor:
    """The clipped contribution (r,) of the attempt's batch, over all clients of the site in the sum; float64."""
    node, task, agreed = here.node, here.node.task, here.attempt
    records = node.draw(bytes(state["key"]), _counts(here))
    batch, outputs = node.at_hand(theta, records, round_, attempt)
    q = task.no_cotangents(len(batch.records))
    if means is not None:
        drawn = _counts(here).sum(axis=0).tolist()
        q = ranked.cotangents(task, outputs, drawn, agreed.batch, agreed.directions, agreed.bins, means)
    vector, _ = task.clipped.contribution(batch, q, task.objective.task_weight(sum(agreed.batch)))
    node.batch = None
    return vector


def _sent(request: Request) -> dict[str, bytes]:
    tables = request.tables if isinstance(request, MaskedSumAsked) else None
    table = b"" if tables is None else bytes_of(tables)
    return {"model": bytes_of(request.theta), "table": table, "prepared": _prepared(request)}


def _prepared(request: Request) -> bytes:
    return b"" if request.prepared is None else bytes_of(request.prepared)


def bytes_of(sent: Broadcast) -> bytes:
    """Bytes by which a mask depends on an array (n,) that all sites are sent."""
    return sent.tensor().numpy().tobytes()
