"""The ClientApp: a handler per message, each a few lines over fedsw."""

from __future__ import annotations

from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from clients.node import Node, batch_key, join
from fedsw import wire

app = ClientApp()

_STATE = "fedsw"


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Load and validate this node's records; tell the public group sizes (and, in seeded runs, the record ids)."""
    experiment = str(_config(message)["experiment"])
    node = join(experiment, context.run_id, context.node_config)
    context.state[_STATE] = ConfigRecord({"experiment": experiment})
    content: dict[str, Any] = {
        "metrics": MetricRecord({"partition-id": int(context.node_config["partition-id"]), "sizes": node.sizes}),
    }
    if node.task.experiment.seed is not None:
        ids = {str(cell): _array(torch.from_numpy(ids)) for cell, ids in enumerate(node.ids)}
        content["arrays"] = ArrayRecord(ids)
    return Message(RecordDict(content), reply_to=message)


@app.train("outputs")
def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, config = _node(context), _config(message)
    round_, attempt, counts = int(config["round"]), int(config["attempt"]), [int(c) for c in config["counts"]]
    key = batch_key(node.task, round_, attempt)
    records = node.draw(key, counts)
    if not node.task.private_parameters:
        projected = node.task.fixed_outputs(records)
        return Message(RecordDict({"arrays": ArrayRecord({"outputs": _array(projected)})}), reply_to=message)
    _, projected = node.forward(_theta(node, message), records, round_, attempt)
    state = cast(dict[str, Any], context.state[_STATE])
    state.update({"round": round_, "attempt": attempt, "counts": counts, "key": key})
    return Message(RecordDict({"arrays": ArrayRecord({"outputs": _array(projected)})}), reply_to=message)


@app.train("gradients")
def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A batch is answered for once and then forgotten."""
    node, config, state = _node(context), _config(message), cast(dict[str, Any], context.state[_STATE])
    asked = (int(config["round"]), int(config["attempt"]))
    if (state.get("round"), state.get("attempt")) != asked or "key" not in state:
        raise RuntimeError(
            f"gradients asked for round {asked[0]}, attempt {asked[1]}, but this node holds no batch for it; "
            "the server must start a fresh attempt"
        )
    batch = node.batch
    if batch is None or (batch.round, batch.attempt) != asked:
        records = node.draw(bytes(state["key"]), [int(c) for c in state["counts"]])
        batch, _ = node.forward(_theta(node, message), records, *asked)
    cotangents = _read(message, "arrays", "cotangents", (len(batch.records), node.task.dimension))
    contribution, loss = node.contribution(batch, cotangents, float(config["task-weight"]))
    node.batch = None
    for spent in ("key", "counts", "round", "attempt"):
        del state[spent]
    content: dict[str, Any] = {"arrays": ArrayRecord({"contribution": _array(contribution)})}
    if node.task.experiment.unsafe_metrics:
        content["metrics"] = MetricRecord({"training-loss": loss, "num-examples": len(batch.records)})
    return Message(RecordDict(content), reply_to=message)


def _node(context: Context) -> Node:
    if _STATE not in context.state:
        raise RuntimeError("this node was never greeted in this run (query.hello); the server must start with it")
    return join(str(cast(dict[str, Any], context.state[_STATE])["experiment"]), context.run_id, context.node_config)


def _config(message: Message) -> dict[str, Any]:
    """The settings of a request; Flower's record behaves like a dict of them."""
    return cast(dict[str, Any], message.content["config"])


def _theta(node: Node, message: Message) -> Tensor:
    return _read(message, "model", "theta", (node.task.parameters,))


def _read(message: Message, record: str, name: str, expected: tuple[int | None, ...]) -> Tensor:
    array = cast(ArrayRecord, message.content[record])[name]
    return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=expected, name=name)


def _array(tensor: Tensor) -> Array:
    return Array(*wire.encode(tensor))
