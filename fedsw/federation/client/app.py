"""The ClientApp: a handler per message of `fedsw.federation.messages`, each a few lines over fedsw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp

from fedsw.accounting import BudgetExhausted
from fedsw.federation import messages, wire
from fedsw.federation.messages import Exchange, Terms
from fedsw.federation.node.account import ledger_path, spent_epsilon
from fedsw.federation.node.node import Node, batch_key, join
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_slices import client as local_slices
from fedsw.subnormal import flushing_to_zero

app = ClientApp()

_STATE = "fedsw"
_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=messages.Message)


@app.query(messages.HELLO.action)
def hello(message: Message, context: Context) -> Message:
    """Load and validate this node's records; report the public group sizes (and, in seeded runs, the record ids).

    A client with a ledger of its own also reports the epsilon that the ledger has spent (public). A server that goes on
    with a run compares it with what the client reported before.
    """
    asked = _asked(messages.HELLO, message, Terms())
    experiment, run = asked.experiment, asked.run
    if _STATE in context.state and (_state(context)["experiment"], _state(context)["run"]) != (experiment, run):
        raise RuntimeError("this node agreed to another experiment in this run; start a new run for this one")
    node = join(experiment, run, context.run_id, context.node_config)
    privacy = node.task.experiment.privacy
    spent = None
    if privacy.local:
        trusted = local_gradient if privacy.trust == "local-gradient" else local_slices
        if privacy.trust == "local-release":
            local_slices.require_ready(node)
        if privacy.noisy:
            most = node.delta(0)
            place = ledger_path(context.node_config)
            spent = spent_epsilon(place, lambda delta: trusted.promise(node, min(delta, most)))
    context.state[_STATE] = ConfigRecord({"experiment": experiment, "run": run})
    seeded = node.task.experiment.seed is not None
    ids = tuple(torch.from_numpy(each) for each in node.ids) if seeded else None
    client = int(context.node_config["partition-id"])
    return _answer(messages.Joined(client, tuple(node.sizes), spent, ids), node, message)


@app.train(messages.OUTPUTS.action)
def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, asked = _node(messages.OUTPUTS, message, context)
    key = batch_key(node.task, asked.round, asked.attempt)
    records = node.draw(key, asked.counts)
    if not node.task.private_parameters:
        projected = flushing_to_zero(node.task.fixed_outputs)(records)
    else:
        _, projected = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
        state = _state(context)
        state["batch"], state["key"] = [asked.round, asked.attempt, *asked.counts], key
    return _answer(messages.Outputs(projected), node, message, P=asked.rows)


@app.train(messages.GRADIENTS.action)
def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A node answers for a batch once and then forgets it."""
    node, asked = _node(messages.GRADIENTS, message, context)
    state = _state(context)
    attempt = [asked.round, asked.attempt]
    held = [int(number) for number in state.get("batch", ())]
    if held[:2] != attempt:
        raise RuntimeError(
            f"gradients asked for round {asked.round}, attempt {asked.attempt}, but this node holds no batch for it; "
            "the server must start a fresh attempt"
        )
    batch = node.batch
    if batch is None or [batch.round, batch.attempt] != attempt:
        records = node.draw(bytes(state["key"]), held[2:])
        batch, _ = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
    if len(asked.cotangents) < len(batch.records):
        raise ValueError("fewer rows of cotangents came than the batch has records")
    own = asked.cotangents[: len(batch.records)]  # filler follows
    vector, loss = node.contribution(batch, own, asked.task_weight)
    node.batch = None
    for spent in ("batch", "key"):
        del state[spent]
    contribution = messages.Contribution(vector, None, None)
    if node.task.experiment.unsafe_metrics:
        contribution = messages.Contribution(vector, loss, float(len(batch.records)))
    return _answer(contribution, node, message)


@app.train(messages.TABLES.action)
def noised_tables(message: Message, context: Context) -> Message:
    """`local-gradient`, first exchange: a fresh batch, charged to this client's ledger; its noised histograms."""
    node, asked = _node(messages.TABLES, message, context)
    request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
    place, theta = ledger_path(context.node_config), asked.theta.tensor()
    try:
        answer = local_gradient.noised_table(node, place, theta, request, _state(context))
    except BudgetExhausted as exhausted:
        return _declined(exhausted, message)
    return _answer(messages.NoisedTable(answer.epsilon, answer.values, answer.sigma), node, message)


@app.train(messages.LOCAL_GRADIENTS.action)
def local_gradients(message: Message, context: Context) -> Message:
    """`local-gradient`, second exchange: the same batch's clipped contribution, noised for this client's guarantee."""
    node, asked = _node(messages.LOCAL_GRADIENTS, message, context)
    request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
    place, theta = ledger_path(context.node_config), asked.theta.tensor()
    table = None if asked.tables is None else asked.tables.tensor()
    try:
        answer = local_gradient.noised_contribution(node, place, theta, request, table, _state(context))
    except BudgetExhausted as exhausted:
        return _declined(exhausted, message)
    return _answer(messages.NoisedContribution(answer.epsilon, answer.values, answer.sigma), node, message)


@app.train(messages.SLICES.action)
def noised_slices(message: Message, context: Context) -> Message:
    """`local-slices`: random slices of a fresh secret batch's features, charged to this client's ledger."""
    node, asked = _node(messages.SLICES, message, context)
    theta = torch.zeros(0) if asked.theta is None else asked.theta.tensor()
    request = (asked.round, asked.attempt, asked.records)
    try:
        slices, spent = local_slices.noised_slices(node, _place(node, context), theta, *request)
    except BudgetExhausted as exhausted:
        return _declined(exhausted, message)
    public = torch.equal(slices.directions, node.task.directions(asked.round, asked.attempt))
    directions = None if public else slices.directions
    return _answer(messages.NoisedSlices(spent, slices.projections, directions, slices.sigma), node, message)


@app.train(messages.RELEASE.action)
def released_records(message: Message, context: Context) -> Message:
    """`local-release`: all of this client's records, privatised once, charged to its ledger."""
    node, asked = _node(messages.RELEASE, message, context)
    request = (asked.round, asked.attempt, asked.records)
    try:
        released, spent = local_slices.released_records(node, ledger_path(context.node_config), *request)
    except BudgetExhausted as exhausted:
        return _declined(exhausted, message)
    return _answer(messages.ReleasedRecords(spent, released), node, message)


def _node(exchange: Exchange[_Down, _Up], message: Message, context: Context) -> tuple[Node, _Down]:
    """This node and the request, decoded; a message of another trust model than the agreed one is refused."""
    if _STATE not in context.state:
        raise RuntimeError("this node was never greeted in this run (query.hello); the server must start with it")
    state = _state(context)
    node = join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)
    if (agreed := node.task.experiment.privacy.trust) not in exchange.trusts:
        trusts = " or ".join(exchange.trusts)
        raise RuntimeError(f"this message belongs to trust {trusts}; this node agreed to {agreed}")
    return node, _asked(exchange, message, Terms.of(node.task))


def _asked(exchange: Exchange[_Down, _Up], message: Message, terms: Terms) -> _Down:
    """The server's request, decoded and checked.

    Raises:
        ValueError: naming the field that does not match the table; nothing private was read, and nothing charged.
    """
    try:
        return messages.decode(exchange.down, message.content, terms)
    except messages.Malformed as fault:
        raise ValueError(f"{fault}. This client refuses {exchange.kind} and charged nothing") from None


def _answer(answer: messages.Message, node: Node, message: Message, **sizes: int) -> Message:
    return Message(messages.encode(answer, Terms.of(node.task, **sizes)), reply_to=message)


def _declined(exhausted: BudgetExhausted, message: Message) -> Message:
    return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)


def _place(node: Node, context: Context) -> Path | None:
    """The file of this node's ledger; None where the node adds no noise."""
    return ledger_path(context.node_config) if node.task.experiment.privacy.noisy else None


def _state(context: Context) -> dict[str, Any]:
    """What this node keeps between messages; Flower's record behaves like a dict of it."""
    return cast(dict[str, Any], context.state[_STATE])
