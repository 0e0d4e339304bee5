"""Trust models `central` and `none` at a client: handlers of its messages, WITHOUT NOISE, which `rounds` adds."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.federation import messages
from fedsw.federation.messages.table import Contribution, Outputs
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.replies import answered, fresh, node_of, note, state_of_node
from fedsw.learning.tasks.objective import ForwardPass


def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, request = node_of(messages.OUTPUTS, message, context)
    key, counts = batch_key(node.task, request.round, request.attempt), request.counts.numpy()
    if request.rows > len(node.units):
        raise ValueError(f"outputs filled up to {request.rows} rows were asked for; this node holds {len(node.units)}")
    note(messages.OUTPUTS, request, node, context)
    records = node.draw(key, counts)
    if not node.task.private_parameters:
        projected = flushing_to_zero(node.task.fixed_outputs)(records)
    else:
        _, projected = node.forward(request.theta.tensor(), records, request.round, request.attempt)
        state = state_of_node(context)
        state["batch"], state["key"], state["counts"] = [request.round, request.attempt], key, _sparse(counts)
    return answered(Outputs(projected), node, message, P=request.rows)


def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A node answers for a batch once and then forgets it."""
    node, request = node_of(messages.GRADIENTS, message, context)
    state = state_of_node(context)
    attempt = [request.round, request.attempt]
    if [int(number) for number in state.get("batch", ())] != attempt:
        raise RuntimeError(
            f"gradients asked for round {request.round}, attempt {request.attempt}, but this node holds no batch for "
            "it; the server must start a fresh attempt"
        )
    note(messages.GRADIENTS, request, node, context)
    counts = _dense(bytes(state["counts"]), node.held.shape)
    batch = node.batch
    if batch is None or [batch.round, batch.attempt] != attempt:
        records = node.draw(bytes(state["key"]), counts)
        batch, _ = node.forward(request.theta.tensor(), records, request.round, request.attempt)
    if len(request.cotangents) < len(batch.records):
        raise ValueError("fewer rows of cotangents came than the batch has records")
    cotangents = request.cotangents[: len(batch.records)]  # filler follows
    answer = answered(_contribution(node, batch, counts, cotangents, request.task_weight), node, message)
    for spent in ("batch", "key", "counts"):
        del state[spent]
    return answer


def sums(message: Message, context: Context) -> Message:
    """The only exchange where nothing is compared: a fresh batch's clipped contribution."""
    node, request = fresh(messages.SUM, message, context)
    counts = request.counts.numpy()
    records = node.draw(batch_key(node.task, request.round, request.attempt), counts)
    model = node.task.prepared(node.model, request.theta.tensor())
    batch = node.task.clipped.forward(model, records, request.round, request.attempt, compare=False)
    unused = node.task.no_cotangents(len(records))
    return answered(_contribution(node, batch, counts, unused, request.task_weight), node, message)


def _contribution(
    node: Node, batch: ForwardPass, counts: NDArray[np.int64], cotangents: Tensor, task_weight: float
) -> Contribution:
    """Contribution of the clients that are not lost; the node forgets the batch."""
    lost = node.lost(batch.round, batch.attempt)
    batch, remaining = node.without(batch, counts, cotangents, lost)
    vector, loss = node.task.clipped.contribution(batch, remaining, task_weight)
    node.batch = None
    if node.task.experiment.unsafe_metrics:
        return Contribution(vector, torch.from_numpy(lost), loss, float(len(batch.records)))
    return Contribution(vector, torch.from_numpy(lost), None, None)


def _sparse(counts: NDArray[np.int64]) -> bytes:
    """Counts by client and cell as bytes, by the number of those above 0."""
    places = np.flatnonzero(counts)
    return np.stack([places, counts.reshape(-1)[places]]).astype("<i8").tobytes()


def _dense(counts: bytes, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The counts (S, c) behind the bytes of `_sparse`."""
    places, values = np.frombuffer(counts, dtype="<i8").reshape(2, -1)
    dense = np.zeros(shape, dtype=np.int64)
    dense.reshape(-1)[places] = values
    return dense
