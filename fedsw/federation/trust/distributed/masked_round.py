"""Trust model `distributed` in rounds at a site: a table of its batch, and the batch's contribution.

`masked_rounds` is the server's side; `site` charges and masks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.federation import messages
from fedsw.federation.messages import AnyExchange, Broadcast
from fedsw.federation.messages.table import MaskedSumAsked, MaskedTableAsked
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.replies import node_of, note, state_of_site
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.attempt_cost import Attempt, attempt_of
from fedsw.federation.trust.distributed.members import Cohort, require_alike
from fedsw.federation.trust.distributed.site import Answering, State, charged, checked, masked, masked_reply
from fedsw.privacy.release import Bounded, Paid

Request = MaskedTableAsked | MaskedSumAsked


def masked_tables(message: Message, context: Context) -> Message:
    """First masked sum of an attempt: a fresh secret batch, charged; histograms of its outputs."""
    node, request = node_of(messages.MASKED_TABLES, message, context)
    if not ranked.compares(node.task):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    state = state_of_site(context)
    here = _charged(messages.MASKED_TABLES, node, request, context, state)
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
    here = (_charged if first else _charged_before)(messages.MASKED_SUM, node, request, context, state)
    table = None if request.tables is None else request.tables.tensor()
    vector = _contribution_of(here, request.theta.tensor(), request.round, request.attempt, table, state)
    state.clear()  # sample and nonce are used up before noise is drawn, whatever comes
    bounded = Bounded(vector, here.attempt.noise.of_contribution)
    return masked_reply(here, masked(here, bounded, "contribution", request, _sent(request)), message)


def _charged(exchange: AnyExchange, node: Node, request: Request, context: Context, state: State) -> Answering[Attempt]:
    """Check and charge an attempt's first sum, and settle the key of the sample: once, for any of the site's clients.

    A request that was answered leaves the key as it is: both sums of an attempt are of one sample.
    """
    here = charged(node, request, context, state, _agree(node, request))
    note(exchange, request, node, context)
    state["key"], node.batch = batch_key(node.task, request.round, request.attempt), None
    return here


def _charged_before(
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
