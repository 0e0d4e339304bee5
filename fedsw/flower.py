"""Flower apps: any stock one in this process, and private updates for any of them.

`simulate` runs a ServerApp and a ClientApp without Ray. `private_updates` is a mod that makes a ClientApp's replies
private for the client as a whole: each update, or under masks the sum of all updates, which `MaskedUpdates` passes to
any strategy. For privacy of single records train with `fedsw.PrivateTrainer` inside the ClientApp,
`fit(records, rounds=k)` a message.
"""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw.federation.engines.inprocess import InProcessGrid, context, delivered
from fedsw.federation.trust.distributed import updates as masked
from fedsw.federation.trust.distributed.members import Party
from fedsw.federation.wire import SERVER_NODE
from fedsw.privacy.accounting import Head, Ledger
from fedsw.privacy.bounded_sums import SumPlan
from fedsw.privacy.release import release

__all__ = ["MaskedUpdates", "private_updates", "simulate"]

_LOG = logging.getLogger("fedsw")
SHARE = "share"
"""The array of a masked reply."""

STATE = "state-dir"
"""The key of a node's configuration with the folder in which its ledger is."""
_HEAD = "fedsw-ledger"  # the record of a run's state with the last row of its ledger

NodeConfig = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]
"""As in `flwr.clientapp.typing`, which Flower does not promise."""


def simulate(
    server_app: ServerApp,
    client_app: ClientApp,
    *,
    nodes: int,
    node_config: NodeConfig | None = None,
    run_config: Mapping[str, Any] | Path | str | None = None,
) -> Context:
    """Run any Flower app in this process, its nodes one after the other, in their order.

    Strategies, mods, the state of a node's context, and errors of a failing node are Flower's; replies come in the
    order of the nodes, so that deterministic apps end at the same bits each time. Nodes share this process: its
    globals, and global random numbers.

    Args:
        nodes: their number; node i has `partition-id` i, and `num-partitions` nodes.
        node_config: more of every node's configuration, or a function from a node's number to that.
        run_config: the run's configuration, or the folder of an app with one in its pyproject.toml.

    Returns:
        The server's context, with the ServerApp's state. Errors of the ServerApp are raised here.
    """
    if run_config is None or isinstance(run_config, Mapping):
        settings = dict(run_config or {})
    else:
        stored = tomllib.loads((Path(run_config) / "pyproject.toml").read_text(encoding="utf-8"))
        settings = dict(_flat(stored["tool"]["flwr"]["app"].get("config", {})))
    config_of = node_config if callable(node_config) else (lambda number: node_config or {})
    configs = [{"partition-id": i, "num-partitions": nodes, **config_of(i)} for i in range(nodes)]
    grid = _AppGrid(client_app, configs, settings)
    server = context(grid.run_id, SERVER_NODE, {}, settings)
    try:
        server_app(grid=grid, context=server)
    finally:
        grid.close()
    return server


def _flat(nested: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names, as Flower passes them to an app."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


class _AppGrid(InProcessGrid):
    """The in-process grid with the methods that a strategy of Flower calls."""

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message, by the method that older apps call."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies before the time-out, or within the messages' lifetime, in the order of the nodes.

        A strategy draws nodes at random, and adds up floats in the order of replies, which decides the last bits.
        """
        sent = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        lives = max((message.metadata.ttl for message in sent), default=0.0)
        until = time.monotonic() + (lives if timeout is None else min(timeout, lives))
        ids = list(self.push_messages(sent))
        replies: dict[str, Message] = {}
        while len(replies) < len(ids) and time.monotonic() < until:
            for reply in self.pull_messages([i for i in ids if i not in replies]):
                replies[reply.metadata.reply_to_message_id] = delivered(reply) if reply.has_content() else reply
        return [replies[i] for i in ids if i in replies]


def private_updates(plan: SumPlan, *, public: Collection[str] = (), weight: str = "num-examples") -> Mod:
    """A mod that makes the updates of any ClientApp private for the client as a whole: `ClientApp(mods=[...])`.

    An update is the app's arrays after training less those that it was sent, as one vector of float64. It is clipped
    to the plan's norm, charged to a ledger in the node's folder, and noised, before it leaves; the server adds no
    noise, and need not be trusted. With `colluding` in the plan it leaves with a share of the noise under masks that
    cancel in the sum of all clients, which needs `MaskedUpdates` at the server.

    Guarantee: `plan.guarantee`: whatever the server and all other clients do (under masks: any `colluding` of them),
    all replies of a node together are (epsilon, delta)-differentially private for the replacement of all data that its
    app reads. A reply has the noised update, under the name that was sent, a weight of 1, and metrics that are declared
    `public`, which the guarantee does not cover; everything else is removed, also from replies to `evaluate` and
    `query`, and an app's error stays in the node's log. That a node answers, and when, is not hidden. A record's
    epsilon is at most its client's.

    Args:
        plan: `fedsw.plan_sum(norm=..., rounds=..., epsilon=..., delta=..., who="each client's update")`; a further
            round is refused at the node (BudgetExhausted) for as long as its folder has its ledger, which a run in
            progress remembers (LedgerReplaced). For masks also `vectors` and `colluding`.
        public: names of metrics that leave unchanged: numbers that are public, or that you publish.
        weight: the metric that a strategy weighs replies by; 1 for every client unless it is declared public.

    The node's configuration names a folder, `state-dir`, which outlives the process: without it the node refuses. For
    masks it also has `partition-id`, the files `roster` and `mask-key` of `fedsw certs roster`, and `colluding`, the
    number of colluding clients that its operator assumes. Simulated nodes need only `state-dir`, if their configuration
    has nothing else.

    Source: docs/guarantees/units.md, Theorems U4 and U5.
    """

    if isinstance(public, str):
        raise ValueError(f"public = {public!r} is one name; give a list of names, public=[{public!r}]")

    def mod(message: Message, context: Context, call: ClientAppCallable) -> Message:
        with _updates_ledger(plan, context) as ledger:  # refuses before anything is computed
            if plan.colluding is not None and masked.READY in message.content:
                return Message(masked.ready(plan, ledger, context), reply_to=message)
            trains = message.metadata.message_type.split(".")[0] == "train"
            summed = masked.asked(plan, message.content, context) if trains and plan.colluding is not None else None
            # Copies: an app may put what it has trained into the very message that it got, and answer with that.
            sent = {name: _numbers(arrays) for name, arrays in message.content.array_records.items()}
            reply = _answered(message, context, call)
            records = reply.content.metric_records.values()
            published = {name: value for record in records for name, value in record.items() if name in public}
            content = RecordDict({"metrics": MetricRecord({weight: 1, **published})})
            if trains:
                ((name, before),) = sent.items()  # the app's own name for its arrays could tell what it read
                after = _updated(reply, before)
                moved = [after[key].astype(np.float64) - before[key] for key in before]
                vector = torch.from_numpy(np.concatenate([part.reshape(-1) for part in moved]))
                bounded = plan.bounded(vector, round=len(ledger.entries()) + 1)
                content[name] = (
                    _moved(before, release(bounded, plan, ledger).value.numpy())
                    if summed is None
                    else ArrayRecord({SHARE: Array(masked.share(summed, plan, bounded, ledger, context))})
                )
            context.state[_HEAD] = ConfigRecord(asdict(ledger.head()))
        return Message(content, reply_to=message)

    return mod


class MaskedUpdates(strategies.Strategy):
    """Any strategy over the noised sum of masked updates: the mod of clients is `private_updates` with the same plan.

    Every round asks the nodes that the strategy chose for their keys; those that answer are the round's cohort. Each
    reply that the strategy receives has the sent arrays plus the mean of all updates: an average of them is the same.
    A round in which a node of the cohort is lost, or too few are ready, changes nothing, and is logged with the
    reasons; shares that left are charged at their nodes.

    Args:
        strategy: chooses nodes, and aggregates the mean as any arrays; all nodes get the same content.
        plan: that of the nodes, with `colluding`.
        timeout: seconds that nodes have to be ready.

    Raises:
        ValueError: if the plan has no masks, or the strategy sends different content to two nodes.
    """

    def __init__(self, strategy: strategies.Strategy, plan: SumPlan, *, timeout: float = 600.0) -> None:
        if plan.colluding is None:
            raise ValueError("the plan is one without masks: plan_sum(..., vectors=T, colluding=C) makes one with them")
        self.strategy, self.plan, self.timeout = strategy, plan, timeout
        self._before: ArrayRecord | None = None
        self._clients = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all nodes for keys, then send the strategy's messages, with the cohort, to those that gave them."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        contents = {id(message.content): message.content for message in messages}
        if len(set(map(masked.digest, contents.values()))) > 1:
            raise ValueError(f"round {server_round} sends different content to two nodes: their masks would not cancel")
        to = [(message.metadata.dst_node_id, message.metadata.message_type) for message in messages]
        questions = [Message(masked.question(), node, kind) for node, kind in to]
        parties = dict[int, Party]()
        for reply in grid.send_and_receive(questions, timeout=self.timeout):
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                parties[reply.metadata.src_node_id] = masked.party_in(reply.content)
            except ValueError as fault:
                _LOG.warning("round %s: node %s is not ready: %s", server_round, reply.metadata.src_node_id, fault)
        self._before, self._clients = None, len(parties)
        if self._clients < self.plan.sizes[0]:
            _LOG.warning(
                "round %s: %s clients are ready, fewer than the %s that the noise is for; nothing is trained",
                *(server_round, self._clients, self.plan.sizes[0]),
            )
            return []
        sent = [message for message in messages if message.metadata.dst_node_id in parties]
        (self._before,) = sent[0].content.array_records.values()
        for content in contents.values():
            content[masked.COHORT] = masked.cohort_of(list(parties.values()))
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up all shares, and let the strategy aggregate replies with the mean; (None, None) if one is missing."""
        answered = list(replies)
        if self._before is None:
            return None, None
        for fault in (reply for reply in answered if reply.has_error()):
            reason = fault.error.reason
            _LOG.warning("round %s: node %s has no share: %s", server_round, fault.metadata.src_node_id, reason)
        if any(reply.has_error() for reply in answered) or len(answered) != self._clients:
            _LOG.warning("round %s: without the shares of all %s clients there is no sum", server_round, self._clients)
            return None, None
        records = [next(iter(reply.content.array_records.items())) for reply in answered]
        mean = masked.total(self.plan, [record[SHARE].numpy() for _, record in records]) / self._clients
        before = _numbers(self._before)
        for reply, (name, _) in zip(answered, records, strict=True):
            reply.content[name] = _moved(before, mean.numpy())
        return self.strategy.aggregate_train(server_round, answered)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the guarantee, and what the strategy logs."""
        _LOG.info("%s", self.plan.guarantee)
        self.strategy.summary()


def _answered(message: Message, context: Context, call: ClientAppCallable) -> Message:
    """The app's reply; its error, which may quote records, stays in this node's log."""
    try:
        reply = call(message, context)
    except Exception:
        _LOG.exception("the app of node %s failed", context.node_id)
        raise RuntimeError("the client's app failed; the reason is in the log of its node") from None
    if reply.has_error():
        _LOG.error("the app of node %s failed: %s", context.node_id, reply.error.reason)
        raise RuntimeError("the client's app answered with an error; the reason is in the log of its node")
    return reply


Arrays = Mapping[str, NDArray[Any]]


def _numbers(arrays: ArrayRecord) -> Arrays:
    """Copies of arrays, by name."""
    return {key: array.numpy() for key, array in arrays.items()}


def _updated(reply: Message, before: Arrays) -> Arrays:
    """The arrays of the record in a reply that has the names and shapes of the sent arrays."""
    shapes = {key: array.shape for key, array in before.items()}
    for record in reply.content.array_records.values():
        if {key: tuple(array.shape) for key, array in record.items()} == shapes:
            after = _numbers(record)
            # Numbers only: an error about a text that is no number would quote it to the server.
            if all(array.dtype.kind in "biuf" for array in after.values()):
                return after
    raise ValueError("the app's reply lacks arrays with the names and shapes that it was sent; return these, trained")


def _moved(before: Arrays, by: Any) -> ArrayRecord:
    """Arrays plus the parts of a vector, each in its own type; whole numbers are rounded."""
    moved, start = ArrayRecord(), 0
    for key, old in before.items():
        new = old + by[start : start + old.size].reshape(old.shape)
        start += old.size
        moved[key] = Array((np.rint(new) if np.issubdtype(old.dtype, np.integer) else new).astype(old.dtype))
    return moved


def _updates_ledger(plan: SumPlan, context: Context) -> Ledger:
    """The node's ledger of this plan, made at the first message."""
    if STATE not in context.node_config:
        raise ValueError(f"this node's configuration names no {STATE!r}: a folder for its ledger, which is kept")
    folder = files.private_folder(files.kept_folder(context.node_config[STATE], STATE))
    path = folder / f"updates-{context.node_config.get('partition-id', 'own')}.sqlite"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, plan)
    try:
        promised = (ledger.groups, ledger.budget, ledger.delta, ledger.accountant, ledger.nominal)
        if promised != (plan.strata, plan.epsilon, plan.delta, plan.accountant, plan.nominal):
            raise ValueError(f"{path} is the ledger of another plan; what both spend adds up. Nothing was charged")
        if _HEAD in context.state.config_records:
            ledger.require(Head.of(context.state.config_records[_HEAD]), "this node's state")
    except BaseException:
        ledger.close()
        raise
    return ledger
