"""Flower 1.41 without a new Python process for every message: warm SuperNodes, and a SuperLink to go with them.

    python -P warm_executor.py superlink|supernode [the options of flower-superlink or flower-supernode]

Optional: `flower-superlink` and `flower-supernode` carry the same apps with the same keys and certificates, at 6 to 18
seconds an exchange. This is the only module that uses Flower's private interfaces; it refuses any other Flower.
It runs by path and imports neither clients, server, fedsw nor simulations: code comes from the app bundle alone.

A SuperNode here is two processes. The *node* holds the key and talks to the SuperLink. The *worker* holds the ClientApp
and answers message after message; it never sees the key. A worker belongs to one bundle: for a bundle with another
hash it is ended and a fresh process is started, so that code of an old version can't answer for a new one. A worker
that outlives its message's time to live is killed; the node goes on. The state of a run stays with the node.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from logging import ERROR, INFO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

PINNED = "1.41."
POLL_SECONDS = 0.02
IDLE_POLL_SECONDS = 0.5
_RUNS_KEPT = 16
_FASTER = {"initial_backoff": 0.02, "backoff_cap": 0.5}
_LOAD_SECONDS = 120.0
_FROM_OUTSIDE = ("/v1/fleet/", "/health")


def supernode(arguments: list[str]) -> None:
    """Connect, and answer messages until a signal comes or the SuperLink no longer knows this node."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.common.config import parse_config_args
    from flwr.supercore import log
    from flwr.supernode.fleet_http_connection import http_request_response

    parser = argparse.ArgumentParser("warm_executor.py supernode")
    for name in ("--superlink", "--root-certificates", "--auth-supernode-private-key", "--node-config"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-wait-time", type=float)
    asked = parser.parse_args(arguments)
    key: Any = load_ssh_private_key(Path(asked.auth_supernode_private_key).read_bytes(), None)
    signal.signal(signal.SIGTERM, _end)
    with http_request_response(
        asked.superlink, False, asked.root_certificates, (key, key.public_key()), None, asked.max_wait_time
    ) as connection:
        log(INFO, "SuperNode ID: %s", connection[0])
        node = _Node(connection, parse_config_args([asked.node_config]))
        try:
            node.serve()
        finally:
            node.close()


class _Node:
    """The node's loop: pull a message, have the worker answer it, push the reply."""

    def __init__(self, connection: Any, config: dict[str, Any]) -> None:
        self._id, self._receive, self._send, self._get_run, self._get_fab, *rest = connection
        self._pull, self._push, self._confirm = rest
        self._config = config
        self._runs: OrderedDict[int, tuple[Any, Any, dict[str, Any]]] = OrderedDict()
        self._states: OrderedDict[int, Any] = OrderedDict()
        self._worker: _Worker | None = None

    def serve(self) -> None:
        import httpx
        from flwr.supercore import log

        pause = POLL_SECONDS
        while True:
            try:
                received = self._receive()
            except httpx.HTTPStatusError as refused:
                if refused.response.status_code in (401, 403):
                    raise SystemExit(f"the SuperLink no longer knows this node: {refused}") from refused
                received = None
            if received is None:
                time.sleep(pause)
                pause = min(IDLE_POLL_SECONDS, pause * 1.1)
                continue
            pause = POLL_SECONDS
            try:
                self._answer(*received)
            except Exception as fault:  # a reply that came too late, a run that has ended: the node goes on
                log(ERROR, "message %s: %s: %s", received[0].metadata.message_id, type(fault).__name__, fault)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()

    def _answer(self, header: Any, tree: Any) -> None:
        from flwr.app import Context, RecordDict
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        began, run_id = time.monotonic(), header.metadata.run_id
        run, fab, run_config = self._run(run_id)
        message: Any = pull_and_inflate_object_from_tree(
            tree,
            lambda object_id: self._pull(run_id, object_id),
            lambda object_id: self._confirm(run_id, object_id),
            **_FASTER,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        state = self._states.get(run.series_id)
        context = Context(
            run_id=run_id,
            node_id=self._id,
            node_config=self._config,
            state=RecordDict() if state is None else state,
            run_config=dict(run_config),
            series_id=run.series_id,
        )
        worker = self._worker_for(fab)
        reply, state = worker.answer(message, context, began + header.metadata.ttl)
        self._states[run.series_id] = state
        _forget_oldest(self._states)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = self._send(reply, get_object_tree(reply), time.monotonic() - began)
        for object_id, item in get_all_nested_objects(reply).items():
            if object_id in wanted:
                self._push(run_id, session, object_id, item.deflate())

    def _run(self, run_id: int) -> tuple[Any, Any, dict[str, Any]]:
        from flwr.common.config import get_fused_config_from_fab

        if run_id not in self._runs:
            run = self._get_run(run_id)
            fab = self._get_fab(run.fab_hash, run_id)
            self._runs[run_id] = (run, fab, get_fused_config_from_fab(fab.content, run))
            _forget_oldest(self._runs)
        return self._runs[run_id]

    def _worker_for(self, fab: Any) -> _Worker:
        if self._worker is None or not self._worker.serves(fab.hash_str):
            self.close()
            self._worker = _Worker(fab)
        return self._worker


class _Worker:
    """A process that holds the ClientApp of one bundle."""

    def __init__(self, fab: Any) -> None:
        self._hash = fab.hash_str
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, "worker", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._pipe = Connection(ours.detach())
        self._pipe.send((fab.content, fab.hash_str))

    def serves(self, fab_hash: str) -> bool:
        """Whether this process is alive and holds the bundle with this hash."""
        return self._hash == fab_hash and self._process.poll() is None and not self._pipe.closed

    def answer(self, message: Any, context: Any, deadline: float) -> tuple[Any, Any]:
        """The app's reply, or an error reply, with the state to keep; a worker that takes too long is killed."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode

        why = f"the client's process died (message {message.metadata.message_type})"
        try:
            self._pipe.send((message, context))
            if self._pipe.poll(max(0.0, deadline - time.monotonic())):
                reply, fault, state = self._pipe.recv()
                if reply is not None:
                    return reply, state
                return Message(Error(*fault), reply_to=message), state
            why = f"no answer to {message.metadata.message_type} within its time to live; the process was ended"
        except (EOFError, OSError):
            pass
        self.end()
        return Message(Error(ErrorCode.CLIENT_APP_CRASHED, why), reply_to=message), context.state

    def end(self) -> None:
        """Kill the process, whatever it does, and wait for it."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()


def worker(arguments: list[str]) -> None:
    """Load the ClientApp of the bundle that comes first, then answer messages until the pipe closes."""
    from flwr.app import Error, Message  # noqa: F401  (unpickled below)
    from flwr.common.constant import ErrorCode
    from flwr.supercore.task_identity import TaskIdentity

    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides
    pipe = Connection(int(arguments[0]))
    app, load_fault = None, (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "")
    try:
        app = load_client_app(*pipe.recv())
    except EOFError:
        return
    except Exception as fault:
        load_fault = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"{type(fault).__name__}: {fault}")
    with contextlib.suppress(EOFError, OSError):
        while True:
            message, context = pipe.recv()
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = context.run_id, context.node_id, 1
            reply, fault = None, load_fault
            if app is not None:
                try:
                    reply = app(message=message, context=context)
                except Exception as raised:
                    fault = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(raised)}:<'{raised}'>")
            pipe.send((reply, fault, context.state))


def load_client_app(content: bytes, fab_hash: str) -> Callable[..., Any]:
    """Unpack a bundle and load its ClientApp.

    Raises:
        RuntimeError: if a module of the bundle was imported from anywhere else: it may be another version's.
    """
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    folder = install_from_fab(content, skip_prompt=True).resolve()
    app = get_load_client_app_fn("", None, True)(*get_fab_metadata(content), fab_hash)
    own = {path.name for path in folder.iterdir() if path.is_dir()}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in own and file and not Path(file).resolve().is_relative_to(folder):
            raise RuntimeError(f"{name} was loaded from {file}, not from the app bundle {folder.name}")
    return app


def superlink(arguments: list[str]) -> None:
    """`flower-superlink` whose server apps collect replies without long pauses.

    From other machines it answers SuperNodes only: registering keys and starting runs, for which Flower asks for no
    proof of who is asking, is left to this machine.
    """
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")  # hidden by a function of its name
    stock_superexec, serve = command._get_superexec_command, uvicorn.run
    command._get_superexec_command = lambda *a, **k: [*_role("superexec"), *stock_superexec(*a, **k)[1:]]
    extensions.get_middleware = lambda: (Middleware(LoopbackOnly),)
    uvicorn.run = lambda *a, **k: serve(*a, **{**k, "access_log": False})  # a line for every object of every message
    sys.argv = ["flower-superlink", *arguments]
    command.flower_superlink()


class LoopbackOnly:
    """Refuses (403) every request of another machine that is not a SuperNode's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_FROM_OUTSIDE) or _is_local(scope.get("client")):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"only from the machine the SuperLink runs on"})


def superexec(arguments: list[str]) -> None:
    """`flower-superexec` that starts server apps in the role below."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    class Launcher:
        DEVNULL = subprocess.DEVNULL

        @staticmethod
        def Popen(command: list[str], **options: Any) -> Any:  # noqa: N802  (the name that is replaced)
            if command[0] == "flwr-serverapp":
                command = [*_role("serverapp"), *command[1:]]
            return subprocess.Popen(command, **options)

    subprocess_executor.subprocess = Launcher
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()


def serverapp(arguments: list[str]) -> None:
    """`flwr-serverapp` that looks again after 20 ms, not 1 s, for a reply whose objects are still on their way."""
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    inflatable_utils.pull_objects.__kwdefaults__.update(_FASTER)
    sys.argv = ["flwr-serverapp", *arguments]
    flwr_serverapp()


def register(arguments: list[str]) -> None:
    """Admit node keys at a SuperLink in one process: register ADDRESS CA PUBLIC_KEY..."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    address, authority, *keys = arguments
    client = ControlHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor(component_name="flwr")]
    )
    for key in keys:
        response = client.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(Path(key))))
        print(f"node {response.node_id}: {key}")


def _role(name: str) -> list[str]:
    return [sys.executable, "-P", __file__, name]


def _is_local(peer: Any) -> bool:
    return peer is not None and (peer[0] == "::1" or peer[0].startswith(("127.", "::ffff:127.")))


def _forget_oldest(kept: OrderedDict[int, Any]) -> None:
    while len(kept) > _RUNS_KEPT:
        kept.popitem(last=False)


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)


ROLES: dict[str, Callable[[list[str]], None]] = {
    role.__name__: role for role in (superlink, superexec, serverapp, supernode, worker, register)
}


def main(arguments: list[str]) -> None:
    """Play the role the first argument names.

    Raises:
        SystemExit: for an unknown role, or another Flower than the one this module was written for.
    """
    version = importlib.metadata.version("flwr")
    if not version.startswith(PINNED):
        raise SystemExit(
            f"warm_executor.py works with Flower {PINNED}x, not {version}; use --stock, which starts Flower's own"
        )
    if not arguments or arguments[0] not in ROLES:
        raise SystemExit(f"choose a role: {', '.join(ROLES)}")
    ROLES[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
