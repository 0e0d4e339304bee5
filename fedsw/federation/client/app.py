"""The ClientApp: a handler per message, each a few lines over fedsw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedsw.accounting import BudgetExhausted
from fedsw.federation import wire
from fedsw.federation.budgets.split import asks_tables
from fedsw.federation.node.account import ledger_path, standing
from fedsw.federation.node.node import Node, batch_key, join
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_slices import client as local_slices
from fedsw.subnormal import flushing_to_zero

app = ClientApp()

_STATE = "fedsw"


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Load and validate this node's records; tell the public group sizes (and, in seeded runs, the record ids).

    A client with a ledger of its own also tells the epsilon that it stands at (public): what a server that goes on with
    a run remembers must not be more.
    """
    experiment, run = str(_config(message)["experiment"]), str(_config(message)["run"])
    if _STATE in context.state and (_state(context)["experiment"], _state(context)["run"]) != (experiment, run):
        raise RuntimeError("this node agreed to another experiment in this run; start a new run for this one")
    node = join(experiment, run, context.run_id, context.node_config)
    privacy = node.task.experiment.privacy
    told: dict[str, Any] = {"partition-id": int(context.node_config["partition-id"]), "sizes": node.sizes}
    if privacy.local:
        trusted = local_gradient if privacy.trust == "local-gradient" else local_slices
        if privacy.trust == "local-release":
            local_slices.require_ready(node)
        if privacy.noisy:
            most = node.delta(0)
            place = ledger_path(context.node_config)
            told["epsilon"] = standing(place, lambda delta: trusted.promise(node, min(delta, most)))
    context.state[_STATE] = ConfigRecord({"experiment": experiment, "run": run})
    content: dict[str, Any] = {"metrics": _metrics(told)}
    if node.task.experiment.seed is not None:
        ids = {str(cell): _array(torch.from_numpy(ids)) for cell, ids in enumerate(node.ids)}
        content["arrays"] = ArrayRecord(ids)
    return Message(RecordDict(content), reply_to=message)


@app.train("outputs")
def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, config = _node(context, "central", "none"), _config(message)
    round_, attempt, counts = int(config["round"]), int(config["attempt"]), [int(c) for c in config["counts"]]
    key = batch_key(node.task, round_, attempt)
    records = node.draw(key, counts)
    if not node.task.private_parameters:
        sent = wire.padded(flushing_to_zero(node.task.fixed_outputs)(records), int(config["rows"]))
        return Message(RecordDict({"arrays": _named("outputs", sent)}), reply_to=message)
    _, projected = node.forward(_theta(node, message), records, round_, attempt)
    state = _state(context)
    state["batch"], state["key"] = [round_, attempt, *counts], key
    sent = wire.padded(projected, int(config["rows"]))
    return Message(RecordDict({"arrays": _named("outputs", sent)}), reply_to=message)


@app.train("gradients")
def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A batch is answered for once and then forgotten."""
    node, config = _node(context, "central", "none"), _config(message)
    state = _state(context)
    asked = [int(config["round"]), int(config["attempt"])]
    held = [int(number) for number in state.get("batch", ())]
    if held[:2] != asked:
        raise RuntimeError(
            f"gradients asked for round {asked[0]}, attempt {asked[1]}, but this node holds no batch for it; "
            "the server must start a fresh attempt"
        )
    batch = node.batch
    if batch is None or [batch.round, batch.attempt] != asked:
        records = node.draw(bytes(state["key"]), held[2:])
        batch, _ = node.forward(_theta(node, message), records, *asked)
    cotangents = _read(message, "arrays", "cotangents", (None, node.task.dimension))
    if len(cotangents) < len(batch.records):
        raise ValueError(f"{len(cotangents)} cotangents came for a batch of {len(batch.records)} records")
    own = cotangents[: len(batch.records)]  # filler follows
    contribution, loss = node.contribution(batch, own, float(config["task-weight"]))
    node.batch = None
    for spent in ("batch", "key"):
        del state[spent]
    content: dict[str, Any] = {"arrays": _named("contribution", contribution)}
    if node.task.experiment.unsafe_metrics:
        content["metrics"] = _metrics({"training-loss": loss, "num-examples": float(len(batch.records))})
    return Message(RecordDict(content), reply_to=message)


@app.train("tables")
def noised_tables(message: Message, context: Context) -> Message:
    """`local-gradient`, first exchange: a fresh batch, charged to this client's ledger; its noised histograms."""
    return _protected(message, context, table=None, first=True)


@app.train("local_gradients")
def local_gradients(message: Message, context: Context) -> Message:
    """`local-gradient`, second exchange: the same batch's clipped contribution, noised for this client's guarantee."""
    node = _node(context, "local-gradient")
    table = None
    if asks_tables(node.task.experiment):
        cells, bins = len(node.cells), node.task.experiment.local.bins
        table = _read(message, "arrays", "tables", (cells, None, bins))
    return _protected(message, context, table=table, first=False)


@app.train("slices")
def noised_slices(message: Message, context: Context) -> Message:
    """`local-slices`: random slices of a fresh secret batch's features, charged to this client's ledger."""
    node, config = _node(context, "local-slices"), _config(message)
    theta = _theta(node, message) if node.task.private_parameters else torch.zeros(0)
    asked = (int(config["round"]), int(config["attempt"]), int(config["records"]))
    try:
        slices, spent = local_slices.noised_slices(node, _place(node, context), theta, *asked)
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    arrays = {"projections": _array(slices.projections.to(node.task.dtype))}
    if not torch.equal(slices.directions, node.task.directions(*asked[:2])):
        arrays["directions"] = _array(slices.directions)
    told = _metrics({"epsilon": spent, "sigma": slices.sigma})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": told}), reply_to=message)


@app.train("release")
def released_records(message: Message, context: Context) -> Message:
    """`local-release`: all of this client's records, privatised once, charged to its ledger."""
    node, config = _node(context, "local-release"), _config(message)
    asked = (int(config["round"]), int(config["attempt"]), int(config["records"]))
    try:
        released, spent = local_slices.released_records(node, ledger_path(context.node_config), *asked)
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    arrays = _named("released", released.to(node.task.dtype))
    return Message(RecordDict({"arrays": arrays, "metrics": _metrics({"epsilon": spent})}), reply_to=message)


def _protected(message: Message, context: Context, *, table: Tensor | None, first: bool) -> Message:
    node, config = _node(context, "local-gradient"), _config(message)
    request = local_gradient.Request(
        int(config["round"]), int(config["attempt"]), tuple(int(n) for n in config["sizes"]), int(config["records"])
    )
    place = ledger_path(context.node_config)
    state, theta = _state(context), _theta(node, message)
    try:
        if first:
            answer = local_gradient.noised_table(node, place, theta, request, state)
        else:
            answer = local_gradient.noised_contribution(node, place, theta, request, table, state)
    except BudgetExhausted as exhausted:
        return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    content: dict[str, Any] = {
        "arrays": _named("noised", answer.values.to(node.task.dtype)),
        "metrics": _metrics({"epsilon": answer.epsilon, "sigma": answer.sigma}),
    }
    return Message(RecordDict(content), reply_to=message)


def _node(context: Context, *trusts: str) -> Node:
    """This node, which answers only the messages of the trust model that it agreed to."""
    if _STATE not in context.state:
        raise RuntimeError("this node was never greeted in this run (query.hello); the server must start with it")
    state = _state(context)
    node = join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)
    if (agreed := node.task.experiment.privacy.trust) not in trusts:
        raise RuntimeError(f"this message belongs to trust {' or '.join(trusts)}; this node agreed to {agreed}")
    return node


def _place(node: Node, context: Context) -> Path | None:
    """Where this node accounts, if it has anything to account for."""
    return ledger_path(context.node_config) if node.task.experiment.privacy.noisy else None


def _state(context: Context) -> dict[str, Any]:
    """What this node keeps between messages; Flower's record behaves like a dict of it."""
    return cast(dict[str, Any], context.state[_STATE])


def _config(message: Message) -> dict[str, Any]:
    """The settings of a request; Flower's record behaves like a dict of them."""
    return cast(dict[str, Any], message.content["config"])


def _theta(node: Node, message: Message) -> Tensor:
    return _read(message, "model", "theta", (node.task.parameters,))


def _read(message: Message, record: str, name: str, expected: tuple[int | None, ...]) -> Tensor:
    array = cast(ArrayRecord, message.content[record])[name]
    return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=expected, name=name)


def _metrics(told: dict[str, Any]) -> MetricRecord:
    """A record of metrics that equals no other; numbers that follow from records must be floats, of one size each."""
    return MetricRecord({**told, wire.NONCE: wire.nonce()})


def _array(tensor: Tensor) -> Array:
    return Array(*wire.encode(tensor))


def _named(name: str, tensor: Tensor) -> ArrayRecord:
    """A record of one array. Filled afterwards: its constructor looks at what kind of thing it got, at some length."""
    record = ArrayRecord()
    record[name] = _array(tensor)
    return record
