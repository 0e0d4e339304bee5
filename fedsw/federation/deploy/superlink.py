"""The SuperLink of Flower 1.41 and 1.42 for warm clients: whole messages in one request, answered when there is news.

    python -P superlink.py superlink [the options of flower-superlink]
    python -P superlink.py stock [the options of flower-superlink]
    python -P superlink.py register ADDRESS CA PUBLIC_KEY...
    python -P superlink.py revoke ADDRESS CA PUBLIC_KEY...     all but these

Optional: `flower-superlink` serves the same apps and keys, and this one serves `flower-supernode` too. Flower moves a
message in ten to twenty requests, one for each of its objects, each through six layers of middleware, and asks again
after a pause. Here a request carries all objects, waits for what it asks for, and runs Flower's own handlers: what is
checked, stored and counted is the same. The requests of nodes are signed and checked as Flower's are.

The role `stock` is Flower's SuperLink as it is, but for its guards.

From other machines it answers SuperNodes only, and of them it takes replies in their own names only. Flower asks no one
who registers a key or starts a run for a proof of who is asking; here those requests must come from the machine the
SuperLink runs on.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from logging import ERROR
from pathlib import Path
from typing import Any

WAIT_SECONDS = 5.0
_COLLECT_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_OBJECT_SECONDS = 10.0
_FROM_OUTSIDE = ("/v1/fleet/", "/health")


@functools.cache
def _beside(name: str) -> Any:
    """Load a module from its file beside this one, which is not a part of an imported package."""
    spec = importlib.util.spec_from_file_location(f"warm_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_APPS = _beside("apps")
_FLOWER = _APPS.FLOWER


def superlink(arguments: list[str]) -> None:
    """`flower-superlink` with the requests below, and its control interface for this machine only."""
    _serve(arguments, Express, superexec=[sys.executable, "-P", _APPS.__file__, "superexec"])


def stock(arguments: list[str]) -> None:
    """`flower-superlink` as it is, for Flower's own executors, behind the same guards."""
    _serve(arguments)


def _serve(arguments: list[str], *inner: Callable[..., Any], superexec: list[str] | None = None) -> None:
    from starlette.middleware import Middleware

    limits = _beside("connections")
    bounded = Middleware(limits.BoundedRequests, known=_FLOWER.signed_by_a_node)
    _FLOWER.run_superlink(
        arguments,
        guards=[Middleware(LoopbackOnly), bounded, *map(Middleware, inner)],
        require_own=_own,
        activate=_activated,
        server=limits.serve,
        superexec=superexec,
    )


def _activated(activate: Callable[[Any, Any], Any], request: Any, state: Any) -> Any:
    """Admit a node with a known key that is not in use; otherwise refuse it (403 unknown, 409 in use)."""
    from fastapi import HTTPException

    if state.get_node_id_by_public_key(request.public_key) is None:
        raise HTTPException(
            403,
            "it does not know this key. Its operator puts node.key.pub into the folder nodes beside the server's "
            "certificate; then the client is taken within seconds",
        )
    try:
        return activate(request, state)
    except _FLOWER.FlowerError:
        raise HTTPException(
            409,
            "its key is in use: a client that started with it before is connected, or died and is waited for up to "
            "20 s (a minute with --stock). Two clients need two keys",
        ) from None


def _own(request: Any) -> Any:
    """Return a node's request if it holds one reply in that node's own name; refuse (403) anything else.

    Flower checks the connection's signature against the node that the request names, but not against the sender stated
    in the message: an admitted node could otherwise send requests as the server, and replies as another node.
    """
    from fastapi import HTTPException

    (message,), (_,) = request.messages_list, request.message_object_trees
    sent, node = message.metadata, request.node.node_id
    if sent.src_node_id != node or sent.dst_node_id != _FLOWER.SUPERLINK_NODE_ID or not sent.reply_to_message_id:
        raise HTTPException(403, f"node {node} may bring replies of its own, and nothing else")
    return request


class LoopbackOnly:
    """Refuses (403) every request of another machine that is not a SuperNode's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, or refuse."""
        connections, passed = _beside("connections"), scope["type"] != "http" or scope["path"].startswith(_FROM_OUTSIDE)
        if passed or connections.is_local(scope.get("client")):
            await self._app(scope, receive, send)
        else:
            await connections.respond(send, 403, b"only from the machine the SuperLink runs on")


class Express:
    """Four requests of several parts: take and give for nodes, offer and collect for the server app.

    The first part is Flower's own request or response without objects, the others are the objects. A message is
    shown to its receiver only with all its objects.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._for_nodes, self._for_server = Signal(), Signal()
        self._requests = {
            "/v1/fleet/take": self._take,
            "/v1/fleet/give": self._give,
            "/v1/runtime/offer": self._offer,
            "/v1/runtime/collect": self._collect,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one of the four, pass on any other; Flower's errors keep their status and form."""
        if scope["type"] != "http" or scope["path"] not in self._requests:
            await self._app(scope, receive, send)
            return
        from fastapi import HTTPException, Request

        request, respond = Request(scope, receive), _beside("connections").respond
        try:
            parts = list(_FLOWER.BytesList.FromString(await request.body()).vals)
            answer = await self._requests[scope["path"]](request, parts[0], parts[1:])
        except _FLOWER.FlowerError as fault:
            known = _FLOWER.API_ERROR_MAP[fault.code]
            await respond(send, known.http_status_code, _json(fault.to_json(known.public_message)), "application/json")
        except HTTPException as fault:
            await respond(send, fault.status_code, _json({"detail": fault.detail}), "application/json")
        except Exception as fault:  # whatever a sender wrote: this request is refused, and nothing else ends
            _FLOWER.log(ERROR, "%s: %s: %s", scope["path"], type(fault).__name__, fault)
            await respond(send, 400, f"not a readable request: {type(fault).__name__}".encode())
        else:
            await respond(send, 200, _FLOWER.BytesList(vals=answer).SerializeToString(), "application/protobuf")

    async def _take(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """A node asks for its next message; waits for one."""
        pull = _FLOWER.PullMessagesRequest.FromString(header)
        state = _authenticated(request, pull)
        gone, until = asyncio.ensure_future(_disconnected(request)), _now() + WAIT_SECONDS
        try:
            while True:
                news = self._for_nodes.next()
                answer = _FLOWER.fleet_handlers.pull_messages(pull, state, state.object_store)
                if answer.messages_list or gone.done() or _now() >= until:
                    break
                await _first((news.wait(), gone), _LOOK_SECONDS)
        finally:
            gone.cancel()
        contents = list[bytes]()
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            run_id = message.metadata.run_id

            def one(name: str, run_id: int = run_id) -> Any:
                item = _FLOWER.PullObjectRequest(node=pull.node, run_id=run_id, object_id=name)
                return _FLOWER.fleet_handlers.pull_object(item, state)

            contents += await _contents([tree], one)
            confirm = _FLOWER.ConfirmMessageReceivedRequest(
                node=pull.node, run_id=run_id, message_object_id=message.metadata.message_id
            )
            _FLOWER.fleet_handlers.confirm_message_received(confirm, state, state.object_store)
        return [answer.SerializeToString(), *contents]

    async def _give(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """A node brings a reply."""
        push = _FLOWER.PushMessagesRequest.FromString(header)
        state = _authenticated(request, push)
        answer = _FLOWER.fleet_handlers.push_messages(push, state)
        for item in _pushed(objects, answer, push.node, push.messages_list[0].metadata.run_id):
            _FLOWER.fleet_handlers.push_object(item, state)
        self._for_server.happen()
        return [answer.SerializeToString()]

    async def _offer(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """The server app sends messages."""
        state, task = _task(request)
        answer = _FLOWER.runtime_handlers.push_messages(_FLOWER.PushAppMessagesRequest.FromString(header), state, task)
        for item in _pushed(objects, answer, _FLOWER.Node(node_id=1), task.run_id):
            _FLOWER.runtime_handlers.push_object(item, state, task)
        self._for_nodes.happen()
        return [answer.SerializeToString()]

    async def _collect(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """The server app asks for replies; waits a moment for all of them."""
        state, task = _task(request)
        missing = set(_FLOWER.PullAppMessagesRequest.FromString(header).message_ids)
        answer, until = _FLOWER.PullAppMessagesResponse(), _now() + _COLLECT_SECONDS
        while True:
            news = self._for_server.next()
            pull = _FLOWER.PullAppMessagesRequest(message_ids=sorted(missing))
            arrived = _FLOWER.runtime_handlers.pull_messages(pull, state, task)
            answer.MergeFrom(arrived)
            missing -= {message.metadata.reply_to_message_id for message in arrived.messages_list}
            if not missing or _now() >= until:
                break
            await _first((news.wait(),), _LOOK_SECONDS)
        server = _FLOWER.Node(node_id=1)
        contents = await _contents(
            answer.message_object_trees,
            lambda name: _FLOWER.runtime_handlers.pull_object(
                _FLOWER.PullObjectRequest(node=server, run_id=task.run_id, object_id=name), state, task
            ),
        )
        for message in answer.messages_list:
            confirm = _FLOWER.ConfirmMessageReceivedRequest(
                node=server, run_id=task.run_id, message_object_id=message.metadata.message_id
            )
            _FLOWER.runtime_handlers.confirm_message_received(confirm, state, task)
        return [answer.SerializeToString(), *contents]


class Signal:
    """A repeated event that coroutines can wait for."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def next(self) -> asyncio.Event:
        """Return the next occurrence to wait for; take it before looking, so that none between is missed."""
        if self._event is None:
            self._event = asyncio.Event()
        return self._event

    def happen(self) -> None:
        """Wake all who wait for the event."""
        if self._event is not None:
            self._event.set()
            self._event = None


def register(arguments: list[str]) -> None:
    """Admit node keys, all in one process; a key that is admitted already stays so."""
    address, authority, *keys = arguments
    with _FLOWER.control_of(address, authority) as client:
        for key in keys:
            request = _FLOWER.RegisterNodeRequest(public_key=_FLOWER.try_load_public_key(Path(key)))
            response = client.RegisterNode(request)
            print(f"node {response.node_id}: {key}")


def revoke(arguments: list[str]) -> None:
    """Refuse every node from now on with a public key that is not among those given; the SuperLink goes on."""
    address, authority, *keys = arguments
    admitted = {_FLOWER.try_load_public_key(Path(key)) for key in keys}
    with _FLOWER.control_of(address, authority) as client:
        for node in client.ListNodes(_FLOWER.ListNodesRequest()).nodes_info:
            if node.public_key not in admitted and node.status != "unregistered":
                client.UnregisterNode(_FLOWER.UnregisterNodeRequest(node_id=node.node_id))
                print(f"node {node.node_id} is refused from now on")


def _authenticated(request: Any, message: Any) -> Any:
    """The SuperLink's state, for a request that is signed with the key of the node it names."""
    request.state.protobuf_request = message
    _FLOWER.authenticate_node(request)
    return _FLOWER.get_linkstate(request)


def _task(request: Any) -> tuple[Any, Any]:
    state = _FLOWER.get_linkstate(request)
    return state, _FLOWER.authenticate_task(request, request.headers.get(_FLOWER.TASK_TOKEN_HEADER), state)


async def _contents(trees: Iterable[Any], pull: Callable[[str], Any]) -> list[bytes]:
    """All objects of these trees, each once; waits for those still on their way, leaves out what never comes."""
    names = dict.fromkeys(item.object_id for tree in trees for item in _FLOWER.iterate_object_tree(tree))
    contents, until = list[bytes](), _now() + _OBJECT_SECONDS
    for name in names:
        while (item := pull(name)).object_found and not item.object_available and _now() < until:
            await asyncio.sleep(_LOOK_SECONDS / 10)
        if item.object_found and item.object_available:
            contents.append(item.object_content)
    return contents


def _pushed(objects: list[bytes], answer: Any, node: Any, run_id: int) -> Iterator[Any]:
    """A request for each object that is wanted and came with a message."""
    named, of = {_FLOWER.get_object_id(content): content for content in objects}, {"node": node, "run_id": run_id}
    for name in [name for name in answer.objects_to_push if name in named]:
        yield _FLOWER.PushObjectRequest(**of, session_id=answer.session_id, object_id=name, object_content=named[name])


async def _disconnected(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(events: Iterable[Any], seconds: float) -> None:
    """Wait until one of these happens, or some seconds."""
    waiting = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting[0].cancel()


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


def _now() -> float:
    return asyncio.get_running_loop().time()


ROLES: dict[str, Callable[[list[str]], None]] = {role.__name__: role for role in (superlink, stock, register, revoke)}


def main(arguments: list[str]) -> None:
    """Play the role the first argument names."""
    if why := _FLOWER.refusal("SuperLink"):
        if arguments[:1] == ["stock"]:  # of a Flower whose insides nobody has looked at: as it is, without guards
            os.execv(Path(sys.executable).with_name("flower-superlink"), ["flower-superlink", *arguments[1:]])
        raise SystemExit(why)
    if arguments[:1] == [] or arguments[0] not in ROLES:
        raise SystemExit(f"choose a role: {', '.join(ROLES)}")
    ROLES[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
