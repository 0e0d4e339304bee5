"""Engines of one machine: in process, and Flower's simulation engine on Ray."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsw.federation import flower, wire
from fedsw.federation.node.simulated import simulating
from fedsw.federation.origin import Carrier
from fedsw.federation.wire import SERVER_NODE


def identify(run_id: int) -> None:
    """Say which run the server's messages made in this process belong to."""
    flower.identify(run_id, SERVER_NODE)


def context(
    run_id: int, node_id: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any] | None = None
) -> Context:
    """A fresh app context."""
    settings = dict(run_config or {})
    return Context(
        run_id=run_id, node_id=node_id, node_config=dict(node_config), state=RecordDict(), run_config=settings
    )


def delivered(message: Message) -> Message:
    """The message as its receiver gets it: its own record tree over the same arrays, with copied numbers."""
    letter: Message = flower.copied(message)
    return letter


_FIRST_NODE = 1000
_PULL_SECONDS = 0.5
_PROBE_SECONDS = 10.0
_IDLE_SECONDS = 10.0
"""After which an idle thread ends, so that a grid that was forgotten leaves none behind."""


class InProcessGrid(Carrier):
    """Drives an unmodified ClientApp for every node of a simulated federation.

    One worker thread answers messages in the order they were sent: deterministic, as fast as a call. A message is valid
    for its time to live, from when it was sent: afterwards it is neither answered nor delivered. When a client takes
    half of the time that the next message has left, the messages behind it go to a new worker: a hanging client costs
    one time-out, never the run. Its thread is left to end when it does (a Python thread cannot be stopped).
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = secrets.randbits(62)
        self._app, self.run = client_app, flower.Run.create_empty(run_id=self.run_id)
        identify(self.run_id)
        self._contexts = {
            _FIRST_NODE + i: context(self.run_id, _FIRST_NODE + i, config, run_config)
            for i, config in enumerate(node_configs)
        }
        self._state = threading.Condition()
        self._queue: deque[_Sent] = deque()
        self._replies: dict[str, _Sent] = {}
        self._worker: _Worker | None = None
        self._closed = False

    def get_node_ids(self) -> Iterable[int]:
        """All nodes; they are always online."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; returns their ids in order."""
        ids = []
        with self._state:
            now = time.monotonic()
            self._replies = {i: reply for i, reply in self._replies.items() if now < reply.until}
            for message in messages:
                ids.append(secrets.token_hex(16))
                flower.number(message, ids[-1])
                self._queue.append(_Sent(message, now + message.metadata.ttl))
            if self._worker is None:
                self._worker = _Worker(self)
            self._state.notify_all()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are there; waits a moment for all of them, so that callers need not poll hard."""
        wanted, deadline = list(message_ids), time.monotonic() + _PULL_SECONDS
        with self._state:
            while not all(i in self._replies for i in wanted) and (now := time.monotonic()) < deadline:
                if self._worker is not None and now >= self._relief():
                    self._worker.relieved = True
                    self._worker = _Worker(self)
                self._state.wait(max(0.0, min(deadline, self._relief()) - now))
            return [self._replies.pop(i).message for i in wanted if i in self._replies]

    def close(self) -> None:
        """End the worker, whatever waits; one that hangs at a message is left behind as a daemon.

        An idle one has ended when this returns: a thread that ends while the interpreter does takes the process down.
        """
        with self._state:
            self._closed = True
            self._state.notify_all()
            idle = self._worker if self._worker is not None and self._worker.since is None else None
        if idle is not None:
            idle.thread.join(_IDLE_SECONDS)

    def _relief(self) -> float:
        """Time at which waiting messages go to another worker, if this one is still busy; infinite if none waits."""
        if self._worker is None or not self._queue:
            return math.inf
        since = self._worker.since or time.monotonic()
        return (since + self._queue[0].until) / 2

    def _answer(self, message: Message) -> Message:
        try:
            with simulating():
                reply: object = self._app(delivered(message), self._contexts[message.metadata.dst_node_id])
            if not isinstance(reply, Message):
                raise TypeError(f"the client's app answered with a {type(reply).__name__}, not a message")
            return reply
        except Exception as failure:
            return Message(Error(wire.APP_RAISED, f"{type(failure).__name__}: {failure}"), reply_to=message)


@dataclass(frozen=True)
class _Sent:
    """A message on its way, and the moment after which it is not waited for."""

    message: Message
    until: float


class _Worker:
    """A daemon thread that answers queued messages one by one until it is relieved or the grid closes.

    `since` is when it began with the message at hand; None while there is none.
    """

    def __init__(self, grid: InProcessGrid) -> None:
        self.relieved = False
        self.since: float | None = None
        self._grid = grid
        self.thread = threading.Thread(target=self._work, name="fedsw-clients", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        grid = self._grid
        while (sent := self._next()) is not None:
            reply = grid._answer(sent.message)
            with grid._state:
                self.since = None
                if grid._closed or time.monotonic() >= sent.until:
                    continue
                flower.number(reply, "r" + sent.message.metadata.message_id)
                grid._replies[sent.message.metadata.message_id] = _Sent(reply, sent.until)
                if not grid._queue:
                    grid._state.notify_all()

    def _next(self) -> _Sent | None:
        """The next message that is waited for; None when there is nothing more to do here."""
        grid = self._grid
        with grid._state:
            while True:
                woken = grid._state.wait_for(lambda: grid._queue or grid._closed or self.relieved, _IDLE_SECONDS)
                if self.relieved or grid._closed:
                    return None
                if not woken:
                    grid._worker = None
                    return None
                sent, now = grid._queue.popleft(), time.monotonic()
                if now < sent.until:
                    self.since = now
                    return sent


def run(server_app: ServerApp, client_app: ClientApp, nodes: int, ledgers: Path) -> None:
    """Run both apps in this process, with `nodes` simulated nodes; their clients keep ledgers in a folder."""
    grid = InProcessGrid(client_app, node_configs(nodes, ledgers))
    try:
        server_app(grid=grid, context=context(grid.run_id, SERVER_NODE, {}))
    finally:
        grid.close()


def node_configs(nodes: int, ledgers: Path) -> list[dict[str, int | str]]:
    """The configuration of each simulated node: with fewer of them than clients, each holds several."""
    state = str(ledgers.resolve())
    return [{"partition-id": node, "num-partitions": nodes, "state-dir": state} for node in range(nodes)]


def run_on_ray(server_app: ServerApp, client_app: ClientApp, nodes: int, *, device: str = "cpu") -> None:
    """Run both apps on Flower's simulation engine (Ray actors), one CPU a node and its share of a GPU.

    The server app runs in this process; a failure in it is raised here.

    Ray's workers import the apps anew: they inherit this process' environment, and Flower puts the app's folder on
    their import path. With RAY_ADDRESS in the environment they are those of a cluster that runs already, with as many
    CPUs as its nodes were started with (`ray start --num-cpus`); every machine needs the same fedsw at the same place.
    """
    own_machine: Any = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": os.cpu_count() or 1}
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": _share(nodes, device)}, "init_args": own_machine}
    with _ray():
        flower.simulate(server_app, client_app, nodes, backend)


@contextlib.contextmanager
def _ray() -> Iterator[Any]:
    """Ray, which takes seconds to import; shut down on the way out, whatever started it."""
    import ray

    try:
        yield ray
    finally:
        ray.shutdown()


def places() -> int:
    """Sites that Ray runs side by side: the cores of this machine, or of the cluster that RAY_ADDRESS names.

    Raises:
        ConnectionError: if that cluster is out of reach.
    """
    if not (address := os.environ.get("RAY_ADDRESS")):
        return os.cpu_count() or 1
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), _PROBE_SECONDS).close()
    except OSError as fault:
        raise ConnectionError(
            f"the Ray cluster at {address} (RAY_ADDRESS) is out of reach: {fault}. Start it (`ray start --head`), or "
            "unset RAY_ADDRESS to use this machine only"
        ) from None
    with _ray() as ray:
        ray.init(log_to_driver=False, logging_level="ERROR")
        return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _share(nodes: int, device: str) -> float:
    """The part of a GPU that each node has: all of this machine's together, or one each in a cluster of machines."""
    if device != "cuda":
        return 0.0
    if os.environ.get("RAY_ADDRESS"):
        return 1.0
    return min(1.0, torch.cuda.device_count() / nodes)
