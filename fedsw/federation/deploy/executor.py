"""Flower 1.41 and 1.42 without a new Python process for every message: a SuperNode with a long-lived ClientApp.

    python -P executor.py --superlink HOST:PORT --root-certificates CA --auth-supernode-private-key KEY
                               --node-config "partition-id=0 num-partitions=5"

Optional: `flower-supernode` runs the same app with the same key at 6 to 18 seconds an exchange. What it uses of
Flower's private interfaces is in ../flower.py; it refuses any other Flower. It runs by path and imports neither the
apps nor fedsw: both come with the bundle's entries, in a process of their own.

The SuperLink's claims about a bundle are not trusted: the node computes the SHA-256 of the bytes it received. A node
with `bundle`, a hash, in its configuration refuses every other bundle before it unpacks anything.

Two processes are at work. The *node* has the key and talks to the SuperLink: one request that waits for a message and
brings it whole, one that takes the reply whole. The *worker* has the ClientApp and answers message after message. A
worker belongs to one bundle: for a bundle with another hash it is ended and a fresh process is started, so code of an
old version can't answer for a new one. A worker that outlives its message's time to live is killed, and the node goes
on. The state of a run stays with the node, as in Flower's SuperNode.

The first worker has loaded the libraries before the node connects: the start of Python would otherwise be part of the
first message's time to live, and with a short one, killed and started again for every message, it would never be over.
A node says every few seconds that it is alive, so that one that was killed is taken back after LEASE_SECONDS.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from logging import ERROR, INFO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

LEASE_SECONDS = 20.0
_RUNS_KEPT = 16
_PAUSE_SECONDS = 1.0
_BUNDLE = "bundle"
_REFUSALS = 3
"""Requests that were refused one after the other, after which the node connects again: a stall makes signatures old."""
_MOST_AHEAD, _MOST_BEHIND = 4.0, 280.0
"""Seconds by which the clock of a node may be ahead of the server's, and behind it, before requests are refused."""
REFUSAL = "FEDSW_REFUSAL"
"""The environment variable with the file to which a node writes why it stops, for its starter to print."""


def _beside(name: str) -> Any:
    """Load a module from its file beside this one, which is not a part of an imported package."""
    spec = importlib.util.spec_from_file_location(f"warm_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_APPS = _beside("apps")
_FLOWER = _APPS.FLOWER


def main(arguments: list[str]) -> None:
    """Be a node, of the Flower that this module was tested with."""
    if why := _FLOWER.refusal("SuperNode"):
        raise SystemExit(why)
    serve(arguments)


def serve(arguments: list[str]) -> None:
    """Connect, and answer messages until a signal comes or the SuperLink no longer knows this node."""
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    parser = argparse.ArgumentParser("executor.py")
    for name in ("--superlink", "--root-certificates", "--auth-supernode-private-key", "--node-config"):
        parser.add_argument(name, required=True)
    options = parser.parse_args(arguments)
    key: Any = load_ssh_private_key(Path(options.auth_supernode_private_key).read_bytes(), None)
    signal.signal(signal.SIGTERM, _end)

    def activated(activate: Any, client: Any, request: Any) -> Any:
        try:
            return activate(client, request)
        except httpx.HTTPStatusError as refused:
            leave(words_of_refusal(refused.response))

    worker = Worker()
    worker.wait_until_ready()
    with _FLOWER.node_connection(
        options.superlink, options.root_certificates, key, lease=LEASE_SECONDS, activate=activated, beat=beaten
    ) as (client, node_id, get_run, get_fab):
        _FLOWER.log(INFO, "SuperNode ID: %s", node_id)
        config = _FLOWER.parse_config_args([options.node_config])
        node = NodeLoop(client, node_id, config, get_run, get_fab, worker)
        try:
            node.run()
        finally:
            node.close()


def beaten(beat: Any, client: Any, request: Any) -> Any:
    """Send a heartbeat; again if its signature is refused, which may have aged while this process stood still.

    One that is refused again, as by a server that was started anew, is a failure that Flower repeats: the node's own
    loop says why it goes, and a thread's traceback would say it before.
    """
    import httpx

    for pause in (_PAUSE_SECONDS, 0.0):
        try:
            answer = beat(client, request)
        except httpx.HTTPStatusError as refused:
            if refused.response.status_code != httpx.codes.UNAUTHORIZED:
                raise
            time.sleep(pause)
            continue
        if answer.success:
            return answer
        break
    raise httpx.TransportError("the SuperLink does not know this node")


class NodeLoop:
    """A node's loop: take a message, let the worker answer it, send the reply."""

    def __init__(
        self,
        client: Any,
        node_id: int,
        config: dict[str, Any],
        get_run: Any,
        get_fab: Any,
        worker: Worker | None = None,
    ) -> None:
        self._client, self._id = client, node_id
        self._config = {key: value for key, value in config.items() if key != _BUNDLE}
        self._demanded = str(config[_BUNDLE]) if _BUNDLE in config else None
        self._get_run, self._get_fab = get_run, get_fab
        self._runs: OrderedDict[int, tuple[Any, Any, dict[str, Any]]] = OrderedDict()
        self._states: OrderedDict[int, Any] = OrderedDict()
        self._worker = worker

    def run(self) -> None:
        """Serve without end; SystemExit if the SuperLink does not know this node any more, or is not a warm one."""
        import httpx

        log, codes = _FLOWER.log, _FLOWER.ErrorCode
        refused_before = 0
        away = ""  # what the SuperLink's absence was last said to be: a server that stays away is said once
        while True:
            received, why = None, ""
            try:
                received = self._take()
                refused_before = 0
            except httpx.HTTPStatusError as refused:
                if refused.response.status_code == httpx.codes.UNAUTHORIZED:
                    refused_before += 1
                    why = words_about_clocks(refused.response)
                    if not why and refused_before >= _REFUSALS:
                        leave("the SuperLink no longer knows this node")
                    if not why:
                        time.sleep(_PAUSE_SECONDS)
                        continue
                elif refused.response.status_code == httpx.codes.NOT_FOUND:
                    raise SystemExit("this SuperLink has no warm clients; start the node with --stock") from refused
                why = why or f"the SuperLink refuses to give messages: {refused}"
            except httpx.TransportError as fault:
                why = f"the SuperLink is out of reach: {fault}"
            except Unreadable as fault:
                log(ERROR, "%s", fault)
                if fault.header is not None:
                    self._decline(fault.header, codes.UNKNOWN, str(fault))
            except Exception as fault:  # no answer of a SuperLink: a server that is mended serves this node again
                why = f"the SuperLink's answer is unreadable: {type(fault).__name__}"
            if why and why != away:
                log(ERROR, "%s; this node goes on trying, every %g s, without another word", why, _PAUSE_SECONDS)
            if away and not why:
                log(INFO, "the SuperLink is back")
            away = why
            if why:
                time.sleep(_PAUSE_SECONDS)
            if received is not None:
                try:
                    self._answer(received)
                except Exception as fault:  # a reply that came too late, a run that has ended: the node goes on
                    log(ERROR, "%s: %s: %s", received.metadata.message_type, type(fault).__name__, fault)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()

    def _take(self) -> Any | None:
        """The next message, whole; None if there is none for a while."""
        request = _FLOWER.PullMessagesRequest(node=_FLOWER.Node(node_id=self._id))
        header, *objects = _FLOWER.call(self._client, "/v1/fleet/take", [request.SerializeToString()])
        response = _FLOWER.PullMessagesResponse.FromString(header)
        if not response.messages_list:
            return None
        return self._opened(response, {_FLOWER.get_object_id(content): content for content in objects})

    def _opened(self, response: Any, contents: dict[str, bytes]) -> Any:
        """The message that came, if it is the server's to this node, as its header says."""
        from flwr.app import RecordDict

        header, make = None, _FLOWER.make_message
        try:
            metadata = _FLOWER.header_of(response.messages_list[0], response.message_object_trees[0])
            if (metadata.src_node_id, metadata.dst_node_id) != (_FLOWER.SUPERLINK_NODE_ID, self._id):
                raise ValueError("it is not the server's to this node")
            header = make(metadata, content=RecordDict())
            return make(metadata, content=_FLOWER.inflated(metadata, contents).content)
        except Exception as fault:
            raise Unreadable(f"a request that came is not answered: {_FLOWER.words_of(fault)}", header) from fault

    def _give(self, reply: Any, seconds: float) -> None:
        headers, trees, objects = _FLOWER.packed([reply])
        request = _FLOWER.PushMessagesRequest(
            node=_FLOWER.Node(node_id=self._id),
            messages_list=headers,
            message_object_trees=trees,
            clientapp_runtime_list=[seconds],
        )
        _FLOWER.call(self._client, "/v1/fleet/give", [request.SerializeToString(), *objects])

    def _answer(self, message: Any) -> None:
        from flwr.app import Context, RecordDict

        began, run_id = time.monotonic(), message.metadata.run_id
        try:
            run, fab, run_config = self._run(run_id)
        except BundleRefused as refused:
            _FLOWER.log(ERROR, "%s", refused)
            self._decline(message, _FLOWER.ErrorCode.LOAD_CLIENT_APP_EXCEPTION, str(refused), time.monotonic() - began)
            return
        context = Context(
            run_id=run_id,
            node_id=self._id,
            node_config=dict(self._config),
            state=self._states.get(run.series_id) or RecordDict(),
            run_config=dict(run_config),
            series_id=run.series_id,
        )
        if self._worker is None or not self._worker.serves(fab.hash_str):
            self.close()
            self._worker = Worker()
        self._worker.load(fab.content, fab.hash_str)
        reply, self._states[run.series_id] = self._worker.answer(message, context, began + message.metadata.ttl)
        _forget_oldest(self._states)
        self._give(reply, time.monotonic() - began)

    def _decline(self, message: Any, code: int, why: str, seconds: float = 0.0) -> None:
        """Send the server the reason why its request is not answered; a failure to send is logged."""
        from flwr.app import Error, Message

        try:
            self._give(Message(Error(code, why), reply_to=message), seconds)
        except Exception as fault:
            _FLOWER.log(ERROR, "%s: %s", type(fault).__name__, fault)

    def _run(self, run_id: int) -> tuple[Any, Any, dict[str, Any]]:
        """A run with its bundle and settings."""
        if run_id not in self._runs:
            run = self._get_run(run_id)
            fab = self._get_fab(run.fab_hash, run_id)
            require_bundle(fab.content, fab.hash_str, self._demanded)
            self._runs[run_id] = (run, fab, _FLOWER.get_fused_config_from_fab(fab.content, run))
            _forget_oldest(self._runs)
        return self._runs[run_id]


def words_about_clocks(response: Any) -> str:
    """Describe by how much this machine's clock differs from the time in the server's answer; empty if it fits."""
    try:
        server_time = email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return ""
    ahead = time.time() - server_time
    if -_MOST_BEHIND < ahead < _MOST_AHEAD:
        return ""
    differs = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return (
        f"this machine's clock is {differs} the server's, and requests are signed with the time: set the clocks of both"
    )


def words_of_refusal(response: Any) -> str:
    """Reason why a server refuses this node: in the server's words, or that the two clocks differ."""
    try:
        said = str(response.json()["detail"])
    except (ValueError, LookupError, TypeError):
        said = f"HTTP {response.status_code}"
    return words_about_clocks(response) or f"the server does not take this node: {said}"


def leave(why: str) -> NoReturn:
    """End this process with the reason: in a file for its parent, or on the terminal."""
    if path := os.environ.get(REFUSAL):
        Path(path).write_text(why, encoding="utf-8")
        raise SystemExit(1)
    raise SystemExit(why)


class Unreadable(Exception):
    """A request that cannot be read; `header` is the message to answer, where there is one."""

    def __init__(self, why: str, header: Any = None) -> None:
        super().__init__(why)
        self.header = header


class BundleRefused(Exception):
    """A bundle that this node takes nothing from; the message names the hashes."""


def require_bundle(content: bytes, announced: str, demanded: str | None) -> None:
    """Settle from the bytes alone whether a bundle may be unpacked: the announced hash is not believed.

    Raises:
        BundleRefused: naming the hash that the bytes have, and the one that they must have.
    """
    digest = hashlib.sha256(content).hexdigest()
    if demanded is not None and digest != demanded.lower():
        raise BundleRefused(
            f"this node demands the bundle {demanded.lower()} and was sent {digest}; nothing of it was loaded. Serve "
            "the version of fedsw that the node's operator installed; or the operator reviews this bundle, and starts "
            "the node with --bundle and its hash (`fedsw bundle` prints it)"
        )
    if digest != announced:
        raise BundleRefused(f"the bundle announced as {announced} has the hash {digest}; nothing of it was loaded")


class Worker:
    """A process that holds the ClientApp of one bundle, or none yet."""

    def __init__(self) -> None:
        self._hash = ""
        home = os.environ.get("FLWR_HOME")
        self._folder = tempfile.TemporaryDirectory(prefix="bundle-", dir=home, ignore_cleanup_errors=True)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _APPS.__file__, "worker", str(theirs.fileno()), self._folder.name],
                pass_fds=[theirs.fileno()],
            )
        self._pipe = Connection(ours.detach())

    def wait_until_ready(self) -> None:
        """Return when it has loaded the libraries, or ended."""
        with contextlib.suppress(EOFError, OSError):
            self._pipe.poll(None)

    def serves(self, fab_hash: str) -> bool:
        """True if this process is alive and holds the bundle with this hash, or none yet."""
        return self._hash in ("", fab_hash) and self._process.poll() is None and not self._pipe.closed

    def load(self, content: bytes, fab_hash: str) -> None:
        """Give it this bundle, if it has none; it never gets another."""
        if not self._hash:
            self._hash = fab_hash
            with contextlib.suppress(OSError):  # it died: that is found out by who asks it something
                self._pipe.send((content, fab_hash))

    def answer(self, message: Any, context: Any, deadline: float) -> tuple[Any, Any]:
        """The app's reply, or an error reply, with the state to keep; a worker that takes too long is killed."""
        from flwr.app import Error, Message

        why = f"the client's process died (message {message.metadata.message_type})"
        try:
            self._pipe.send((message, context))
            while self._pipe.poll(max(0.0, deadline - time.monotonic())):
                answer = self._pipe.recv()
                if answer == _APPS.READY:
                    continue
                reply, fault, state = answer
                if reply is not None:
                    return reply, state
                return Message(Error(*fault), reply_to=message), state
            why = f"no answer to {message.metadata.message_type} within its time to live; the process was ended"
        except (EOFError, OSError):
            pass
        self.end()
        return Message(Error(_FLOWER.ErrorCode.CLIENT_APP_CRASHED, why), reply_to=message), context.state

    def end(self) -> None:
        """Kill the process, whatever it does, wait for it, and remove what it unpacked."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _forget_oldest(entries: OrderedDict[int, Any]) -> None:
    while len(entries) > _RUNS_KEPT:
        entries.popitem(last=False)


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
