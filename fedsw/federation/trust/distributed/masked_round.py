"""Trust model `distributed` in rounds at a site: a table of its batch, and the batch's contribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.federation import messages
from fedsw.federation.messages import AnyExchange, Broadcast
from fedsw.federation.messages._masked_sums import MaskedSumAsked, MaskedTableAsked
from fedsw.federation.node._replies import node_of, note, state_of_site
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.trust.distributed import _ranked as ranked
from fedsw.federation.trust.distributed.attempt_cost import Attempt, attempt_of
from fedsw.federation.trust.distributed.members import Cohort, require_alike
from fedsw.federation.trust.distributed.site import Answering, State, charged, checked, masked, masked_reply
from fedsw.privacy.release import Bounded, Paid

Request = MaskedTableAsked | MaskedSumAsked


def masked_tables(message: Message, context: Context) -> Message:
    """First masked sum of an attempt: a fresh secret batch, charged; histograms of its outputs."""
    node, asked = node_of(messages.MASKED_TABLES, message, context)
    if not ranked.compares(node.task):
        raise ValueError("a table was asked for, and objective.alpha = 0 compares nothing; nothing was charged")
    state = state_of_site(context)
    here = _charged(messages.MASKED_TABLES, node, asked, context, state)
    bound = here.attempt.noise.of_table
    assert bound is not None
    bounded = Bounded(_tables(here, asked.theta.tensor(), asked.round, asked.attempt, state), bound)
    numbers = masked(here, bounded, "table", asked, _sent(asked))
    state.update({"epsilons": [each.spent for each in here.paid], "cohort": asked.cohort, "prepared": _prepared(asked)})
    return masked_reply(here, numbers, message)


def masked_sum(message: Message, context: Context) -> Message:
    """Second masked sum of an attempt, or the only one: the clipped contribution of the batch."""
    node, asked = node_of(messages.MASKED_SUM, message, context)
    if not node.task.private_parameters:
        raise ValueError("a contribution was asked for, and private records move no parameter; nothing was charged")
    state = state_of_site(context)
    first = asked.tables is None
    here = (_charged if first else _charged_before)(messages.MASKED_SUM, node, asked, context, state)
    table = None if asked.tables is None else asked.tables.tensor()
    vector = _contribution_of(here, asked.theta.tensor(), asked.round, asked.attempt, table, state)
    state.clear()
    bounded = Bounded(vector, here.attempt.noise.of_contribution)
    return masked_reply(here, masked(here, bounded, "contribution", asked, _sent(asked)), message)


def _charged(exchange: AnyExchange, node: Node, asked: Request, context: Context, state: State) -> Answering[Attempt]:
    """Check and charge an attempt's first sum, and settle the key of the sample: once, whoever of the site is in it.

    A request that was answered leaves the key as it is: both sums of an attempt are of one sample.
    """
    here = charged(node, asked, context, state, _agree(node, asked))
    note(exchange, asked, node, context)
    state["key"], node.batch = batch_key(node.task, asked.round, asked.attempt), None
    return here


def _charged_before(
    exchange: AnyExchange, node: Node, asked: Request, context: Context, state: State
) -> Answering[Attempt]:
    """The same attempt's second sum: what was checked and paid for with the first."""
    here = checked(node, asked, context, state, _agree(node, asked))
    if "key" not in state or "epsilons" not in state:
        raise RuntimeError(
            f"a contribution was asked for round {asked.round}, attempt {asked.attempt}, but this node holds no batch "
            "for it; the server must start a fresh attempt"
        )
    require_alike(asked.cohort, str(state["cohort"]))
    if _prepared(asked) != bytes(state["prepared"]):
        raise RuntimeError("features were prepared otherwise than for the attempt's first sum; start a fresh attempt")
    part = next(each for each in here.attempt.parts if each.name == "contribution")
    here.paid.extend(Paid(asked.round, asked.attempt, float(each), {part.name: part}) for each in state["epsilons"])
    note(exchange, asked, node, context)
    return here


def _agree(node: Node, asked: Request) -> Callable[[Cohort], Attempt]:
    """What all sites of a cohort work out alike of a round's attempt."""
    return lambda cohort: attempt_of(node.task, cohort, node.task.all_directions(asked.round, asked.attempt))


def _counts(here: Answering[Attempt]) -> NDArray[np.int64]:
    """Records of each of the node's clients and cells in the batch, (S, c); 0 for a client that is not in the sum."""
    counts = np.zeros_like(here.node.held)
    counts[here.there] = here.cohort.counts(here.node.task.experiment.training.batch_fraction)[here.place]
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
    vector, _ = node.contribution(batch, q, task.objective.task_weight(sum(agreed.batch)))
    node.batch = None
    return vector


def _sent(asked: Request) -> dict[str, bytes]:
    tables = asked.tables if isinstance(asked, MaskedSumAsked) else None
    table = b"" if tables is None else bytes_of(tables)
    return {"model": bytes_of(asked.theta), "table": table, "prepared": _prepared(asked)}


def _prepared(asked: Request) -> bytes:
    return b"" if asked.prepared is None else bytes_of(asked.prepared)


def bytes_of(sent: Broadcast) -> bytes:
    """What a mask knows of an array (n,) that all sites are sent."""
    return sent.tensor().numpy().tobytes()
