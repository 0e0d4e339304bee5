"""The ClientApp: a greeting is answered here, all else by the trust model (`fedsw.federation.trust.Sides.handlers`)."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedsw._tools.text import shown
from fedsw.experiment import Experiment
from fedsw.experiment.preset_rules import left_open, require_settled, same_but_for_bins, same_but_for_chosen
from fedsw.experiment.trust import releasing_gradients
from fedsw.federation import SERVER_KEY, messages
from fedsw.federation.messages import AnyExchange, Terms
from fedsw.federation.messages.table import Here, Joined, Sizes
from fedsw.federation.node.limits import choice_of, require_code
from fedsw.federation.node.node import Node
from fedsw.federation.node.own_ledger import PlannedCost, account_of, require_same_records, reserve, spent_epsilon
from fedsw.federation.node.replies import (
    COUNTED,
    STATE,
    Handler,
    answered,
    answered_by,
    asked_of,
    greeted,
    join,
    ledger_of,
    refusing,
    require_charged,
    state_of_node,
)
from fedsw.federation.node.simulated import is_simulated, of_one_person
from fedsw.federation.origin import ORIGIN, require_server
from fedsw.federation.trust import promise
from fedsw.privacy.accounting.lifetime import NO_NOISE
from fedsw.runs import client_status


def noting(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer, and write down for the operator of a real node that it was greeted, or in which round it answered.

    So is a greeting that it refused, with the reason.
    """
    folder = None if is_simulated(context.node_config) else context.node_config.get("state-dir")
    greeting = message.metadata.message_type == messages.HELLO.kind
    try:
        reply = answering(message, context)
    except Exception as fault:
        if folder and greeting:
            _note_refusal(Path(str(folder)), message, context, shown(f"{type(fault).__name__}: {fault}"))
        raise
    asks = message.metadata.message_type not in (messages.ROLL.kind, messages.SIZES.kind)
    if folder and asks and reply.has_content() and STATE in context.state:
        state, config = state_of_node(context), message.content.get("config")
        node = join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)
        trained = message.metadata.message_type.startswith("train.")
        round_ = config.get("round") if isinstance(config, ConfigRecord) and trained else 0
        clients = tuple(int(client) for client in node.clients)
        with contextlib.suppress(OSError):  # a ledger that cannot be written stops the node; this need not
            chosen, server = _choice(context), str(state["server"])
            part = client_status.begun(node.task.experiment, str(state["run"]), clients, chosen, server=server)
            client_status.note(Path(str(folder)), part, None if greeting else int(cast(Any, round_)))
    return reply


def _note_refusal(folder: Path, message: Message, context: Context, why: str) -> None:
    """Write down that a greeting which can be read was refused."""
    try:
        request = asked_of(messages.HELLO, message.content, Terms())
        experiment = Experiment.model_validate_json(request.experiment)
        number, server = int(context.node_config.get("partition-id", 0)), request.code or ""
        part = client_status.begun(experiment, request.run, (number,), _choice(context), server=server, refused=why)
        client_status.note(folder, part, None)
    except (OSError, ValueError):  # it is the reason that the server is told, and the log, in any case
        return


def _choice(context: Context) -> str:
    return "" if of_one_person(context.node_config) else choice_of(context.node_config)


def from_server(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer the server only: every other request is refused before anything of it is decoded, drawn or charged."""
    key = context.node_config.get(SERVER_KEY)
    agreed = str(state_of_node(context)["run"]) if STATE in context.state else None
    counts = cast(dict[str, int], {} if key is None else context.state.setdefault(ORIGIN, ConfigRecord()))
    require_server(message, None if key is None else str(key), agreed, counts)
    return answering(message, context)


app = ClientApp(mods=[refusing, from_server, noting])


@app.query(messages.ROLL.action)
def roll(message: Message, context: Context) -> Message:
    """Say which node this is, with which code, Flower and clock; no experiment and no record is looked at for it."""
    asked_of(messages.ROLL, message.content, Terms())
    number, now = int(context.node_config.get("partition-id", 0)), int(1000 * time.time())
    here = Here(number, importlib.metadata.version("flwr"), now)
    return Message(messages.encode(here, Terms()), reply_to=message)


@app.query(messages.SIZES.action)
def sizes(message: Message, context: Context) -> Message:
    """Load and validate the records of this node's clients; report how many of every group they train on (public).

    The server asks when settings are left to `training.preset`. Refused before a file is opened where groups are not
    public. A run accepts one experiment; later messages may change only preset settings.
    """
    request = asked_of(messages.SIZES, message.content, Terms())
    require_same_run(request.experiment, request.run, context)
    experiment = Experiment.model_validate_json(request.experiment)
    _require_counted(experiment)
    require_code(experiment, request.code, context.node_config)
    node = join(request.experiment, request.run, context.run_id, context.node_config)
    context.state[COUNTED] = ConfigRecord({"experiment": request.experiment, "run": request.run})
    clients, by_group = torch.from_numpy(node.clients), torch.from_numpy(node.by_group)
    return answered(Sizes(clients, by_group), node, message, g=len(node.task.groups))


def _require_counted(experiment: Experiment) -> None:
    """Refuse to report sizes by group where they are protected, as in a sketch, or where no preset reads them."""
    trust = experiment.privacy.trust
    if trust not in (sized := releasing_gradients()) or not left_open(experiment):
        raise RuntimeError(
            f"sizes by group are reported where training.preset chooses by them, under trust "
            f"{' or '.join(sized)}; this experiment has trust {trust} and leaves "
            f"{'settings' if left_open(experiment) else 'nothing'} to choose"
        )


def require_same_run(experiment: str, run: str, context: Context) -> None:
    """Refuse an experiment that this node has not agreed to in its run, unless they differ in what a preset chooses.

    What has agreed may be greeted with the bins that released histograms gave: whatever they are, a record's code has
    norm 1 at most, and every sum costs what it did.
    """
    counted = cast(dict[str, Any], context.state.get(COUNTED, {}))
    agreed = state_of_node(context) if STATE in context.state else counted
    if not agreed:
        return
    same = agreed["experiment"] == experiment
    if not same:
        one, other = (Experiment.model_validate_json(settings) for settings in (str(agreed["experiment"]), experiment))
        same = same_but_for_chosen(one, other) if agreed is counted else same_but_for_bins(one, other)
    if not same or agreed["run"] != run:
        raise RuntimeError("this node agreed to another experiment in this run; start a new run for this one")


@app.query(messages.HELLO.action)
def hello(message: Message, context: Context) -> Message:
    """Load and validate the records of this node's clients; report the public group sizes (in seeded runs, ids too).

    A client with a ledger of its own also reports the epsilon that the ledger has spent (public). A server that resumes
    a run compares it with what the client reported before. Every node says which attempts it has answered.
    """
    request = asked_of(messages.HELLO, message.content, Terms())
    experiment, run = request.experiment, request.run
    require_same_run(experiment, run, context)
    require_code(Experiment.model_validate_json(experiment), request.code, context.node_config)
    node = join(experiment, run, context.run_id, context.node_config)
    require_settled(node.task.experiment)
    before = torch.from_numpy(answered_by(node, context).all())
    require_same_records(node, context.node_config, answered=len(before) > 0)
    privacy = node.task.experiment.privacy
    spent = None
    alone = [node.alone(position) for position in privacy.model.accounting(range(len(node.clients)))]
    for member in alone:
        privacy.model.sides.require_ready(member)
    if paying := privacy.paying(alone):  # of another run's ledger refused here, before anything is set aside
        spent = torch.tensor([_spent(member, context) for member in paying], dtype=torch.float64)
    _reserve(node, alone, context)
    context.state[STATE] = ConfigRecord({"experiment": experiment, "run": run, "server": request.code or ""})
    ids = tuple(torch.from_numpy(numbers) for numbers in node.ids) if node.seeded else None
    clients, sizes = torch.from_numpy(node.clients), torch.from_numpy(node.held)
    held_out = None if node.held_out is None else torch.from_numpy(node.held_out.by_group)
    return answered(Joined(clients, sizes, spent, ids, held_out, before), node, message)


def _reserve(node: Node, alone: Sequence[Node], context: Context) -> None:
    """Reserve the largest cost of this run to the clients' records, in the accounts of their data sets."""
    experiment, clients = node.task.experiment, list[PlannedCost]()
    for client in alone:
        account = account_of(experiment, context.node_config, int(client.clients[0]))
        if account is None:
            continue
        ledger = ledger_of(client, context)
        if experiment.privacy.paying(alone):  # its plan counts from its ledger's first row on
            steps = client.task.experiment.privacy.model.sides.planned(client, client.delta(0))
            clients.append(PlannedCost(account, ledger, steps, begins=ledger))
        else:  # a run without noise counts from the node's first answer on
            clients.append(PlannedCost(account, ledger, NO_NOISE, begins=answered_by(node, context).file))
    if clients:
        reserve(clients, node.run, experiment)


def _spent(node: Node, context: Context) -> float:
    """The epsilon that a client's own ledger has spent."""
    most = node.delta(0)
    return spent_epsilon(ledger_of(node, context), lambda delta: promise(node, min(delta, most)))


def _answer(exchange: AnyExchange) -> Handler:
    """Answer an exchange by the `handlers` of the agreed trust model's `Sides`, which its `serves` names."""

    def answer(message: Message, context: Context) -> Message:
        model = greeted(exchange, context).task.experiment.privacy.model
        reply: Message = model.sides.handlers[exchange](message, context)
        require_charged(exchange.kind, message, reply, context)
        return reply

    return answer


for _exchange in messages.EXCHANGES:
    if _exchange not in (messages.ROLL, messages.HELLO, messages.SIZES):
        getattr(app, _exchange.kind.partition(".")[0])(_exchange.action)(_answer(_exchange))
