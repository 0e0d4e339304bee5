"""The ClientApp: a handler per message of `fedsw.federation.messages`, each a few lines over fedsw."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedsw.accounting.lifetime import NO_NOISE, Counts
from fedsw.federation import messages
from fedsw.federation.client import trusting, trustless
from fedsw.federation.client.answers import STATE, answered, asked_of, ledger_of, state_of_node
from fedsw.federation.messages import Terms
from fedsw.federation.node import participation
from fedsw.federation.node.account import Promise, spent_epsilon
from fedsw.federation.node.lifetime import account_of, reserve
from fedsw.federation.node.node import Node, join
from fedsw.federation.node.simulated import is_simulated
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_slices import client as local_slices
from fedsw.federation.trust.sketch import client as sketch


def noting(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer, and write down for the operator of a real node that it was greeted, or in which round it answered."""
    reply = answering(message, context)
    folder = None if is_simulated(context.node_config) else context.node_config.get("state-dir")
    if folder and reply.has_content() and STATE in context.state:
        state, asked = state_of_node(context), message.content.get("config")
        node = join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)
        trained = message.metadata.message_type.startswith("train.")
        round_ = asked.get("round") if isinstance(asked, ConfigRecord) and trained else None
        clients = tuple(int(client) for client in node.clients)
        with contextlib.suppress(OSError):  # a ledger that cannot be written stops the node; this need not
            part = participation.begun(node.task.experiment, str(state["run"]), clients)
            participation.note(Path(str(folder)), part, round_ if isinstance(round_, int) else None)
    return reply


app = ClientApp(mods=[noting])


@app.query(messages.HELLO.action)
def hello(message: Message, context: Context) -> Message:
    """Load and validate the records of this node's clients; report the public group sizes (in seeded runs, ids too).

    A client with a ledger of its own also reports the epsilon that the ledger has spent (public). A server that goes on
    with a run compares it with what the client reported before.
    """
    asked = asked_of(messages.HELLO, message.content, Terms())
    experiment, run = asked.experiment, asked.run
    agreed = (state_of_node(context)["experiment"], state_of_node(context)["run"]) if STATE in context.state else None
    if agreed not in (None, (experiment, run)):
        raise RuntimeError("this node agreed to another experiment in this run; start a new run for this one")
    node = join(experiment, run, context.run_id, context.node_config)
    privacy = node.task.experiment.privacy
    spent = None
    if privacy.local:
        alone = [node.alone(place) for place in range(len(node.clients))]
        if privacy.trust == "local-release":
            for each in alone:
                local_slices.require_ready(each)
        for each in alone:
            _reserve(each, context)
        if privacy.noisy:
            spent = torch.tensor([_spent(each, context) for each in alone], dtype=torch.float64)
    context.state[STATE] = ConfigRecord({"experiment": experiment, "run": run})
    seeded = node.task.experiment.seed is not None
    ids = tuple(torch.from_numpy(each) for each in node.ids) if seeded else None
    clients, sizes = torch.from_numpy(node.clients), torch.from_numpy(node.held)
    kept = None if node.kept is None else torch.from_numpy(node.kept.by_group)
    return answered(messages.Joined(clients, sizes, spent, ids, kept), node, message)


def _reserve(node: Node, context: Context) -> None:
    """Set aside in the account of a client's data set what this run will cost its records at most."""
    experiment, client = node.task.experiment, int(node.clients[0])
    account = account_of(experiment, context.node_config, client)
    if account is not None:
        steps = _planned_of(experiment.privacy.trust)(node, node.delta(0)) if experiment.privacy.noisy else NO_NOISE
        reserve(account, ledger_of(node, context), node.run, experiment, steps)


def _planned_of(trust: str) -> Callable[[Node, float], Counts]:
    """What a run costs a client's records at most under a local trust model."""
    if trust == "local-gradient":
        return local_gradient.planned
    return sketch.planned if trust == "sketch-local" else local_slices.planned


def _spent(node: Node, context: Context) -> float:
    """The epsilon that a client's own ledger has spent."""
    promise, most = _promise_of(node.task.experiment.privacy.trust), node.delta(0)
    return spent_epsilon(ledger_of(node, context), lambda delta: promise(node, min(delta, most)))


def _promise_of(trust: str) -> Callable[[Node, float], Promise]:
    """What a client's ledger accounts for under a local trust model."""
    if trust == "local-gradient":
        return local_gradient.promise
    return sketch.promise if trust == "sketch-local" else local_slices.promise


app.train(messages.OUTPUTS.action)(trusting.outputs)
app.train(messages.GRADIENTS.action)(trusting.gradients)
app.train(messages.SUM.action)(trusting.sums)
app.train(messages.RECORDS_SUM.action)(trusting.sum_of_records)
app.evaluate(messages.TALLY.action)(trusting.exact_tally)

app.train(messages.TABLES.action)(trustless.noised_tables)
app.train(messages.LOCAL_GRADIENTS.action)(trustless.local_gradients)
app.train(messages.SLICES.action)(trustless.noised_slices)
app.train(messages.RELEASE.action)(trustless.released_records)
app.train(messages.SKETCH.action)(trustless.noised_sketch)
app.evaluate(messages.NOISY_TALLY.action)(trustless.noised_tally)
