"""Trust models `central` and `none` at a client: the outputs and the contribution of a fresh batch, WITHOUT NOISE."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.federation import messages
from fedsw.federation.messages._trusted import Contribution, Outputs
from fedsw.federation.node._replies import answered, fresh, node_of, note, state_of_node
from fedsw.federation.node.node import Batch, Node, batch_key


def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, asked = node_of(messages.OUTPUTS, message, context)
    key, counts = batch_key(node.task, asked.round, asked.attempt), asked.counts.numpy()
    if asked.rows > len(node.units):
        raise ValueError(f"outputs filled up to {asked.rows} rows were asked for; this node holds {len(node.units)}")
    note(messages.OUTPUTS, asked, node, context)
    records = node.draw(key, counts)
    if not node.task.private_parameters:
        projected = flushing_to_zero(node.task.fixed_outputs)(records)
    else:
        _, projected = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
        state = state_of_node(context)
        state["batch"], state["key"], state["counts"] = [asked.round, asked.attempt], key, _sparse(counts)
    return answered(Outputs(projected), node, message, P=asked.rows)


def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A node answers for a batch once and then forgets it."""
    node, asked = node_of(messages.GRADIENTS, message, context)
    state = state_of_node(context)
    attempt = [asked.round, asked.attempt]
    if [int(number) for number in state.get("batch", ())] != attempt:
        raise RuntimeError(
            f"gradients asked for round {asked.round}, attempt {asked.attempt}, but this node holds no batch for it; "
            "the server must start a fresh attempt"
        )
    note(messages.GRADIENTS, asked, node, context)
    counts = _dense(bytes(state["counts"]), node.held.shape)
    batch = node.batch
    if batch is None or [batch.round, batch.attempt] != attempt:
        records = node.draw(bytes(state["key"]), counts)
        batch, _ = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
    if len(asked.cotangents) < len(batch.records):
        raise ValueError("fewer rows of cotangents came than the batch has records")
    own = asked.cotangents[: len(batch.records)]  # filler follows
    answer = answered(_contribution(node, batch, counts, own, asked.task_weight), node, message)
    for spent in ("batch", "key", "counts"):
        del state[spent]
    return answer


def sums(message: Message, context: Context) -> Message:
    """The only exchange where nothing is compared: a fresh batch's clipped contribution."""
    node, asked = fresh(messages.SUM, message, context)
    counts = asked.counts.numpy()
    records = node.draw(batch_key(node.task, asked.round, asked.attempt), counts)
    batch = node.meet(asked.theta.tensor(), records, asked.round, asked.attempt)
    unused = node.task.no_cotangents(len(records))
    return answered(_contribution(node, batch, counts, unused, asked.task_weight), node, message)


def _contribution(
    node: Node, batch: Batch, counts: NDArray[np.int64], cotangents: Tensor, task_weight: float
) -> Contribution:
    """What the clients that are not lost contribute; the node forgets the batch."""
    lost = node.lost(batch.round, batch.attempt)
    batch, own = node.without(batch, counts, cotangents, lost)
    vector, loss = node.contribution(batch, own, task_weight)
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
    found = np.zeros(shape, dtype=np.int64)
    found.reshape(-1)[places] = values
    return found
