"""The ClientApp: a handler per message of `fedsw.federation.messages`, each a few lines over fedsw."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting import BudgetExhausted
from fedsw.accounting.lifetime import NO_NOISE, Counts
from fedsw.federation import messages, wire
from fedsw.federation.messages import Exchange, Terms
from fedsw.federation.node import participation
from fedsw.federation.node.account import Due, Promise, ledger_path, paid_together, spent_epsilon
from fedsw.federation.node.lifetime import account_of, reserve
from fedsw.federation.node.node import Batch, Node, batch_key, join
from fedsw.federation.node.simulated import is_simulated
from fedsw.federation.trust.held_out import client as held_out
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_gradient import site as local_gradient_site
from fedsw.federation.trust.local_slices import client as local_slices
from fedsw.federation.trust.sketch import client as sketch
from fedsw.privacy.release import Paid
from fedsw.subnormal import flushing_to_zero

_STATE = "fedsw"
_Down = TypeVar("_Down", bound=messages.Message)
_Up = TypeVar("_Up", bound=messages.Message)


def noting(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer, and write down for the operator of a real node that it was greeted, or in which round it answered."""
    reply = answering(message, context)
    folder = None if is_simulated(context.node_config) else context.node_config.get("state-dir")
    if folder and reply.has_content() and _STATE in context.state:
        state, asked = _state(context), message.content.get("config")
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
    asked = _asked(messages.HELLO, message.content, Terms())
    experiment, run = asked.experiment, asked.run
    if _STATE in context.state and (_state(context)["experiment"], _state(context)["run"]) != (experiment, run):
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
    context.state[_STATE] = ConfigRecord({"experiment": experiment, "run": run})
    seeded = node.task.experiment.seed is not None
    ids = tuple(torch.from_numpy(each) for each in node.ids) if seeded else None
    clients, sizes = torch.from_numpy(node.clients), torch.from_numpy(node.held)
    kept = None if node.kept is None else torch.from_numpy(node.kept.by_group)
    return _answer(messages.Joined(clients, sizes, spent, ids, kept), node, message)


def _reserve(node: Node, context: Context) -> None:
    """Set aside in the account of a client's data set what this run will cost its records at most."""
    experiment, client = node.task.experiment, int(node.clients[0])
    account = account_of(experiment, context.node_config, client)
    if account is not None:
        steps = _planned_of(experiment.privacy.trust)(node, node.delta(0)) if experiment.privacy.noisy else NO_NOISE
        reserve(account, _ledger(node, context), node.run, experiment, steps)


def _planned_of(trust: str) -> Callable[[Node, float], Counts]:
    """What a run costs a client's records at most under a local trust model."""
    if trust == "local-gradient":
        return local_gradient.planned
    return sketch.planned if trust == "sketch-local" else local_slices.planned


def _spent(node: Node, context: Context) -> float:
    """The epsilon that a client's own ledger has spent."""
    promise, most = _promise_of(node.task.experiment.privacy.trust), node.delta(0)
    return spent_epsilon(_ledger(node, context), lambda delta: promise(node, min(delta, most)))


def _promise_of(trust: str) -> Callable[[Node, float], Promise]:
    """What a client's ledger accounts for under a local trust model."""
    if trust == "local-gradient":
        return local_gradient.promise
    return sketch.promise if trust == "sketch-local" else local_slices.promise


@app.train(messages.OUTPUTS.action)
def outputs(message: Message, context: Context) -> Message:
    """First exchange: a fresh batch for this attempt, its projected outputs by group."""
    node, asked = _node(messages.OUTPUTS, message, context)
    key, counts = batch_key(node.task, asked.round, asked.attempt), asked.counts.numpy()
    records = node.draw(key, counts)
    if not node.task.private_parameters:
        projected = flushing_to_zero(node.task.fixed_outputs)(records)
    else:
        _, projected = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
        state = _state(context)
        state["batch"], state["key"], state["counts"] = [asked.round, asked.attempt], key, _sparse(counts)
    return _answer(messages.Outputs(projected), node, message, P=asked.rows)


@app.train(messages.GRADIENTS.action)
def gradients(message: Message, context: Context) -> Message:
    """Second exchange: the same batch's clipped contribution. A node answers for a batch once and then forgets it."""
    node, asked = _node(messages.GRADIENTS, message, context)
    state = _state(context)
    attempt = [asked.round, asked.attempt]
    if [int(number) for number in state.get("batch", ())] != attempt:
        raise RuntimeError(
            f"gradients asked for round {asked.round}, attempt {asked.attempt}, but this node holds no batch for it; "
            "the server must start a fresh attempt"
        )
    counts = _dense(bytes(state["counts"]), node.held.shape)
    batch = node.batch
    if batch is None or [batch.round, batch.attempt] != attempt:
        records = node.draw(bytes(state["key"]), counts)
        batch, _ = node.forward(asked.theta.tensor(), records, asked.round, asked.attempt)
    if len(asked.cotangents) < len(batch.records):
        raise ValueError("fewer rows of cotangents came than the batch has records")
    own = asked.cotangents[: len(batch.records)]  # filler follows
    answer = _answer(_contribution(node, batch, counts, own, asked.task_weight), node, message)
    for spent in ("batch", "key", "counts"):
        del state[spent]
    return answer


@app.train(messages.SUM.action)
def sums(message: Message, context: Context) -> Message:
    """The only exchange where nothing is compared: a fresh batch's clipped contribution."""
    node, asked = _node(messages.SUM, message, context)
    counts = asked.counts.numpy()
    records = node.draw(batch_key(node.task, asked.round, asked.attempt), counts)
    batch = node.meet(asked.theta.tensor(), records, asked.round, asked.attempt)
    unused = node.task.no_cotangents(len(records))
    return _answer(_contribution(node, batch, counts, unused, asked.task_weight), node, message)


def _contribution(
    node: Node, batch: Batch, counts: NDArray[np.int64], cotangents: Tensor, task_weight: float
) -> messages.Contribution:
    """What the clients that are not lost contribute; the node forgets the batch."""
    lost = node.lost(batch.round, batch.attempt)
    batch, own = node.without(batch, counts, cotangents, lost)
    vector, loss = node.contribution(batch, own, task_weight)
    node.batch = None
    if node.task.experiment.unsafe_metrics:
        return messages.Contribution(vector, torch.from_numpy(lost), loss, float(len(batch.records)))
    return messages.Contribution(vector, torch.from_numpy(lost), None, None)


@app.train(messages.TABLES.action)
def noised_tables(message: Message, context: Context) -> Message:
    """`local-gradient`, first exchange: a fresh batch, charged to each client's ledger; its noised histograms."""

    def release(node: Node, asked: messages.TableAsked) -> messages.NoisedTable:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = _ledger(node, context), asked.theta.tensor()
        answer = local_gradient.noised_table(node, place, theta, request, _state_of(node, context))
        return messages.NoisedTable(answer.epsilon, answer.values, answer.sigma)

    def together(
        site: Node, asked: messages.TableAsked, positions: Sequence[int]
    ) -> Mapping[int, messages.NoisedTable | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = _ledgers(site, context, positions), asked.theta.tensor()
        found = local_gradient_site.noised_tables(site, places, theta, request, _state_of_site(context))
        return {
            position: each
            if isinstance(each, Exception)
            else messages.NoisedTable(each.epsilon, each.values, each.sigma)
            for position, each in found.items()
        }

    return _released(messages.TABLES, message, context, release, together)


@app.train(messages.LOCAL_GRADIENTS.action)
def local_gradients(message: Message, context: Context) -> Message:
    """`local-gradient`, second exchange: the same batch's clipped contribution, noised for the client's guarantee."""

    def release(node: Node, asked: messages.LocalGradientAsked) -> messages.NoisedContribution:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = _ledger(node, context), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        answer = local_gradient.noised_contribution(node, place, theta, request, table, _state_of(node, context))
        return messages.NoisedContribution(answer.epsilon, answer.values, answer.sigma)

    def together(
        site: Node, asked: messages.LocalGradientAsked, positions: Sequence[int]
    ) -> Mapping[int, messages.NoisedContribution | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = _ledgers(site, context, positions), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        state = _state_of_site(context)
        found = local_gradient_site.noised_contributions(site, places, theta, request, table, state)
        return {
            position: each
            if isinstance(each, Exception)
            else messages.NoisedContribution(each.epsilon, each.values, each.sigma)
            for position, each in found.items()
        }

    return _released(messages.LOCAL_GRADIENTS, message, context, release, together)


@app.train(messages.SLICES.action)
def noised_slices(message: Message, context: Context) -> Message:
    """`local-slices`: random slices of a fresh secret batch's features, charged to each client's ledger."""

    def release(node: Node, asked: messages.SlicesAsked, paid: Paid | None = None) -> messages.NoisedSlices:
        theta = torch.zeros(0) if asked.theta is None else asked.theta.tensor()
        place = _ledger(node, context) if node.task.experiment.privacy.noisy else None
        request = (asked.round, asked.attempt, asked.records)
        slices, spent = local_slices.noised_slices(node, place, theta, *request, paid)
        public = torch.equal(slices.directions, node.task.directions(asked.round, asked.attempt))
        directions = None if public else slices.directions
        return messages.NoisedSlices(spent, slices.projections, directions, slices.sigma)

    def due(node: Node, asked: messages.SlicesAsked) -> Due | None:
        if not node.task.experiment.privacy.noisy:
            return None
        return local_slices.slices_due(node, _ledger(node, context), asked.round, asked.attempt, asked.records)

    return _released(messages.SLICES, message, context, release, _each(due, release))


@app.train(messages.RELEASE.action)
def released_records(message: Message, context: Context) -> Message:
    """`local-release`: all of a client's records, privatised once, charged to its ledger."""

    def release(node: Node, asked: messages.ReleaseAsked, paid: Paid | None = None) -> messages.ReleasedRecords:
        request = (asked.round, asked.attempt, asked.records)
        released, spent = local_slices.released_records(node, _ledger(node, context), *request, paid)
        return messages.ReleasedRecords(spent, released)

    def due(node: Node, asked: messages.ReleaseAsked) -> Due:
        return local_slices.release_due(node, _ledger(node, context), asked.round, asked.attempt, asked.records)

    return _released(messages.RELEASE, message, context, release, _each(due, release))


@app.train(messages.RECORDS_SUM.action)
def sum_of_records(message: Message, context: Context) -> Message:
    """`sketch`: the exact sum over all records of the clients that are asked."""
    node, asked = _node(messages.RECORDS_SUM, message, context)
    lost = node.lost(asked.round, asked.attempt)
    steps = sketch.steps_of_records(node, asked.asked, lost, batch_key(node.task, asked.round, asked.attempt))
    return _answer(messages.SumOfRecords(steps, torch.from_numpy(lost)), node, message)


@app.train(messages.SKETCH.action)
def noised_sketch(message: Message, context: Context) -> Message:
    """`sketch-local`: the sketch of all of a client's records, noised by itself, charged to its ledger."""

    def release(node: Node, asked: messages.SketchAsked, paid: Paid | None = None) -> messages.NoisySketch:
        place = _ledger(node, context)
        found = sketch.noised_sketch(node, place, asked.round, asked.attempt, asked.records, paid)
        return messages.NoisySketch(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.SketchAsked) -> Due:
        return sketch.sketch_due(node, _ledger(node, context), asked.round, asked.attempt, asked.records)

    return _released(messages.SKETCH, message, context, release, _each(due, release))


@app.evaluate(messages.TALLY.action)
def exact_tally(message: Message, context: Context) -> Message:
    """After the last round: exact sums over the kept records of the clients that are asked."""
    node, asked = _node(messages.TALLY, message, context)
    lost = node.lost(asked.round, asked.attempt)
    key = batch_key(node.task, asked.round, asked.attempt)
    steps = held_out.steps_of_kept(node, asked.theta.tensor(), asked.asked, lost, key)
    return _answer(messages.ExactTally(steps, torch.from_numpy(lost)), node, message)


@app.evaluate(messages.NOISY_TALLY.action)
def noised_tally(message: Message, context: Context) -> Message:
    """`local-gradient`, after the last round: sums over a client's kept records, noised by itself, charged to it."""

    def release(node: Node, asked: messages.NoisyTallyAsked, paid: Paid | None = None) -> messages.NoisyTally:
        place, theta = _ledger(node, context), asked.theta.tensor()
        found = held_out.noised_tally(node, place, theta, asked.round, asked.attempt, asked.records, paid)
        return messages.NoisyTally(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.NoisyTallyAsked) -> Due:
        return held_out.tally_due(node, _ledger(node, context), asked.round, asked.attempt, asked.records)

    return _released(messages.NOISY_TALLY, message, context, release, _each(due, release))


def _each(
    due: Callable[[Node, _Down], Due | None], release: Callable[[Node, _Down, Paid | None], _Up]
) -> Callable[[Node, _Down, Sequence[int]], Mapping[int, _Up | Exception]]:
    """Of a site: its clients pay together, and then release one after the other.

    Args:
        due: what a client pays; None where nothing is accounted for.
        release: what it releases for that.
    """

    def together(site: Node, asked: _Down, positions: Sequence[int]) -> Mapping[int, _Up | Exception]:
        found: dict[int, _Up | Exception] = {}
        dues: dict[int, Due] = {}
        for position in positions:
            try:
                if (own := due(site.alone(position), asked)) is not None:
                    dues[position] = own
            except Exception as fault:  # of this client alone: the others answer
                found[position] = fault
        paid = dict(zip(dues, paid_together(list(dues.values())), strict=True))
        for position in [each for each in positions if each not in found]:
            said = paid.get(position)
            try:
                found[position] = said if isinstance(said, Exception) else release(site.alone(position), asked, said)
            except Exception as fault:
                found[position] = fault
        return found

    return together


def _released(
    exchange: Exchange[_Down, _Up],
    message: Message,
    context: Context,
    release: Callable[[Node, _Down], _Up],
    together: Callable[[Node, _Down, Sequence[int]], Mapping[int, _Up | Exception]],
) -> Message:
    """What the asked clients of this node release, each by its own ledger and noise; or why one releases nothing.

    A node of one client answers as that client. A site packs what each of its clients would have answered.

    Args:
        release: for a node of one client.
        together: for a site: what its clients at some positions release, or why one releases nothing.
    """
    node = _joined(exchange, context)
    if len(node.clients) == 1:
        try:
            return _answer(release(node, _asked(exchange, message.content, Terms.of(node.task))), node, message)
        except BudgetExhausted as exhausted:
            return Message(Error(wire.BUDGET_EXHAUSTED, str(exhausted)), reply_to=message)
    content, positions = messages.opened(message.content, len(node.clients))
    asked = _asked(exchange, content, Terms.of(node.task))
    terms, found = Terms.of(node.task), together(node, asked, positions)
    answers = {position: _packable(found[position], terms) for position in positions}
    return Message(messages.packed(answers), reply_to=message)


def _packable(answer: messages.Message | Exception, terms: Terms) -> RecordDict | messages.Refusal:
    """A client's answer, or why it has none."""
    if isinstance(answer, BudgetExhausted):
        return messages.Refusal(str(answer), wire.BUDGET_EXHAUSTED)
    if isinstance(answer, Exception):
        return messages.Refusal(f"{type(answer).__name__}: {answer}", wire.APP_RAISED)
    return messages.encode(answer, terms)


def _node(exchange: Exchange[_Down, _Up], message: Message, context: Context) -> tuple[Node, _Down]:
    """This node and the request, decoded."""
    node = _joined(exchange, context)
    return node, _asked(exchange, message.content, Terms.of(node.task, S=len(node.clients)))


def _joined(exchange: Exchange[_Down, _Up], context: Context) -> Node:
    """This node, as it was greeted; a message of another trust model than the agreed one is refused."""
    if _STATE not in context.state:
        raise RuntimeError("this node was never greeted in this run (query.hello); the server must start with it")
    state = _state(context)
    node = join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)
    if (agreed := node.task.experiment.privacy.trust) not in exchange.trusts:
        trusts = " or ".join(exchange.trusts)
        raise RuntimeError(f"this message belongs to trust {trusts}; this node agreed to {agreed}")
    return node


def _asked(exchange: Exchange[_Down, _Up], content: RecordDict, terms: Terms) -> _Down:
    """The server's request, decoded and checked.

    Raises:
        ValueError: naming the field that does not match the table; nothing private was read, and nothing charged.
    """
    try:
        return messages.decode(exchange.down, content, terms)
    except messages.Malformed as fault:
        raise ValueError(f"{fault}. This client refuses {exchange.kind} and charged nothing") from None


def _answer(answer: messages.Message, node: Node, message: Message, **sizes: int) -> Message:
    return Message(messages.encode(answer, Terms.of(node.task, **sizes)), reply_to=message)


def _ledger(node: Node, context: Context) -> Path:
    """The file of the ledger of the client that a node is alone with."""
    return ledger_path(context.node_config, int(node.clients[0]))


def _state(context: Context) -> dict[str, Any]:
    """What this node keeps between messages; Flower's record behaves like a dict of it."""
    return cast(dict[str, Any], context.state[_STATE])


def _state_of(node: Node, context: Context) -> dict[str, Any]:
    """What one client keeps between messages."""
    name = f"{_STATE}-{int(node.clients[0])}"
    if name not in context.state:
        context.state[name] = ConfigRecord()
    return cast(dict[str, Any], context.state[name])


def _state_of_site(context: Context) -> dict[str, Any]:
    """What a site keeps of all of its clients between messages."""
    name = f"{_STATE}-site"
    if name not in context.state:
        context.state[name] = ConfigRecord()
    return cast(dict[str, Any], context.state[name])


def _ledgers(site: Node, context: Context, positions: Sequence[int]) -> dict[int, Path]:
    """The files of the ledgers of some of a site's clients, by position."""
    return {each: ledger_path(context.node_config, int(site.clients[each])) for each in positions}


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
