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

From other machines it answers SuperNodes only, and of them it takes replies in their own names only. Flower asks nobody
who registers a key or starts a run for a proof of who is asking; here those requests must come from the machine the
SuperLink runs on.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
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
    """A file beside this one: none of them is imported as a part of a package."""
    spec = importlib.util.spec_from_file_location(f"warm_{name}", Path(__file__).with_name(f"_{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_APPS = _beside("apps")


def superlink(arguments: list[str]) -> None:
    """`flower-superlink` with the requests below, and its control interface for this machine only."""
    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")  # hidden by a function of its name
    stock_superexec = command._get_superexec_command
    server_apps = [sys.executable, "-P", _APPS.__file__, "superexec"]
    command._get_superexec_command = lambda *a, **k: [*server_apps, *stock_superexec(*a, **k)[1:]]
    _serve(command, arguments, Express)


def stock(arguments: list[str]) -> None:
    """`flower-superlink` as it is, for Flower's own executors, behind the same guards."""
    _serve(importlib.import_module("flwr.superlink.cli.flower_superlink"), arguments)


def _serve(command: Any, arguments: list[str], *guards: Callable[..., Any]) -> None:
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.servicer.fleet import fleet_handlers
    from starlette.middleware import Middleware

    replaced: Any = extensions
    push, limits = fleet_handlers.push_messages, _beside("connections")
    every = (LoopbackOnly, limits.BoundedRequests, *guards)
    replaced.get_middleware = lambda: tuple(Middleware(guard) for guard in every)
    fleet_handlers.push_messages = lambda request, state: push(_own(request), state)
    activate = fleet_handlers.activate_node
    fleet_handlers.activate_node = lambda request, state: _activated(activate, request, state)
    uvicorn.run = limits.serve
    sys.argv = ["flower-superlink", *arguments]
    command.flower_superlink()


def _activated(activate: Callable[[Any, Any], Any], request: Any, state: Any) -> Any:
    """Admit a node whose key is known and not in use; otherwise refuse it (403 unknown, 409 in use)."""
    from fastapi import HTTPException
    from flwr.supercore.error import FlowerError

    if state.get_node_id_by_public_key(request.public_key) is None:
        raise HTTPException(
            403,
            "it does not know this key. Its operator puts node.key.pub into the folder nodes beside the server's "
            "certificate; then the client is taken within seconds",
        )
    try:
        return activate(request, state)
    except FlowerError:
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
    from flwr.common.constant import SUPERLINK_NODE_ID

    (message,), (_,) = request.messages_list, request.message_object_trees
    sent, node = message.metadata, request.node.node_id
    if sent.src_node_id != node or sent.dst_node_id != SUPERLINK_NODE_ID or not sent.reply_to_message_id:
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
        from flwr.proto.recorddict_pb2 import BytesList
        from flwr.supercore import log
        from flwr.supercore.error import FlowerError
        from flwr.supercore.error.catalog import API_ERROR_MAP

        request, respond = Request(scope, receive), _beside("connections").respond
        try:
            parts = list(BytesList.FromString(await request.body()).vals)
            answer = await self._requests[scope["path"]](request, parts[0], parts[1:])
        except FlowerError as fault:
            known = API_ERROR_MAP[fault.code]
            await respond(send, known.http_status_code, _json(fault.to_json(known.public_message)), "application/json")
        except HTTPException as fault:
            await respond(send, fault.status_code, _json({"detail": fault.detail}), "application/json")
        except Exception as fault:  # whatever a sender wrote: this request is refused, and nothing else ends
            log(ERROR, "%s: %s: %s", scope["path"], type(fault).__name__, fault)
            await respond(send, 400, f"not a readable request: {type(fault).__name__}".encode())
        else:
            await respond(send, 200, BytesList(vals=answer).SerializeToString(), "application/protobuf")

    async def _take(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """A node asks for its next message; waits for one."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
        from flwr.superlink.servicer.fleet import fleet_handlers

        pull = PullMessagesRequest.FromString(header)
        state = _authenticated(request, pull)
        gone, until = asyncio.ensure_future(_disconnected(request)), _now() + WAIT_SECONDS
        try:
            while True:
                news = self._for_nodes.next()
                answer = fleet_handlers.pull_messages(pull, state, state.object_store)
                if answer.messages_list or gone.done() or _now() >= until:
                    break
                await _first((news.wait(), gone), _LOOK_SECONDS)
        finally:
            gone.cancel()
        contents = list[bytes]()
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            run_id = message.metadata.run_id

            def one(name: str, run_id: int = run_id) -> Any:
                item = PullObjectRequest(node=pull.node, run_id=run_id, object_id=name)
                return fleet_handlers.pull_object(item, state)

            contents += await _contents([tree], one)
            confirm = ConfirmMessageReceivedRequest(
                node=pull.node, run_id=run_id, message_object_id=message.metadata.message_id
            )
            fleet_handlers.confirm_message_received(confirm, state, state.object_store)
        return [answer.SerializeToString(), *contents]

    async def _give(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """A node brings a reply."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.superlink.servicer.fleet import fleet_handlers

        push = PushMessagesRequest.FromString(header)
        state = _authenticated(request, push)
        answer = fleet_handlers.push_messages(push, state)
        for item in _pushed(objects, answer, push.node, push.messages_list[0].metadata.run_id):
            fleet_handlers.push_object(item, state)
        self._for_server.happen()
        return [answer.SerializeToString()]

    async def _offer(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """The server app sends messages."""
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest
        from flwr.superlink.servicer.runtime import runtime_handlers

        state, task = _task(request)
        answer = runtime_handlers.push_messages(PushAppMessagesRequest.FromString(header), state, task)
        for item in _pushed(objects, answer, Node(node_id=1), task.run_id):
            runtime_handlers.push_object(item, state, task)
        self._for_nodes.happen()
        return [answer.SerializeToString()]

    async def _collect(self, request: Any, header: bytes, objects: list[bytes]) -> list[bytes]:
        """The server app asks for replies; waits a moment for all of them."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
        from flwr.superlink.servicer.runtime import runtime_handlers

        state, task = _task(request)
        missing = set(PullAppMessagesRequest.FromString(header).message_ids)
        answer, until = PullAppMessagesResponse(), _now() + _COLLECT_SECONDS
        while True:
            news = self._for_server.next()
            arrived = runtime_handlers.pull_messages(PullAppMessagesRequest(message_ids=sorted(missing)), state, task)
            answer.MergeFrom(arrived)
            missing -= {message.metadata.reply_to_message_id for message in arrived.messages_list}
            if not missing or _now() >= until:
                break
            await _first((news.wait(),), _LOOK_SECONDS)
        server = Node(node_id=1)
        contents = await _contents(
            answer.message_object_trees,
            lambda name: runtime_handlers.pull_object(
                PullObjectRequest(node=server, run_id=task.run_id, object_id=name), state, task
            ),
        )
        for message in answer.messages_list:
            confirm = ConfirmMessageReceivedRequest(
                node=server, run_id=task.run_id, message_object_id=message.metadata.message_id
            )
            runtime_handlers.confirm_message_received(confirm, state, task)
        return [answer.SerializeToString(), *contents]


class Signal:
    """A repeated event that coroutines can wait for."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def next(self) -> asyncio.Event:
        """The event of the next time; take it before looking, so that nothing is missed in between."""
        if self._event is None:
            self._event = asyncio.Event()
        return self._event

    def happen(self) -> None:
        """It happened: wake who waits."""
        if self._event is not None:
            self._event.set()
            self._event = None


def register(arguments: list[str]) -> None:
    """Admit node keys, all in one process; a key that is admitted already stays so."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest

    address, authority, *keys = arguments
    with _control(address, authority) as client:
        for key in keys:
            response = client.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(Path(key))))
            print(f"node {response.node_id}: {key}")


def revoke(arguments: list[str]) -> None:
    """Refuse every node from now on whose public key is not among those given; the SuperLink goes on."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

    address, authority, *keys = arguments
    admitted = {try_load_public_key(Path(key)) for key in keys}
    with _control(address, authority) as client:
        for node in client.ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key not in admitted and node.status != "unregistered":
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                print(f"node {node.node_id} is refused from now on")


def _control(address: str, authority: str) -> Any:
    """A connection to a SuperLink's interface for its operator."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    version = RuntimeVersionHttpInterceptor(component_name="flwr")
    return ControlHttpClient.from_server_address(address, False, authority, [version])


def _authenticated(request: Any, message: Any) -> Any:
    """The SuperLink's state, for a request that is signed with the key of the node it names."""
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node

    request.state.protobuf_request = message
    authenticate_node(request)
    return get_linkstate(request)


def _task(request: Any) -> tuple[Any, Any]:
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.dependencies.task import authenticate_task
    from flwr.superlink.dependencies.linkstate import get_linkstate

    state = get_linkstate(request)
    return state, authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)


async def _contents(trees: Iterable[Any], pull: Callable[[str], Any]) -> list[bytes]:
    """All objects of these trees, each once; waits for those still on their way, leaves out what never comes."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    names = dict.fromkeys(item.object_id for tree in trees for item in iterate_object_tree(tree))
    contents, until = list[bytes](), _now() + _OBJECT_SECONDS
    for name in names:
        while (item := pull(name)).object_found and not item.object_available and _now() < until:
            await asyncio.sleep(_LOOK_SECONDS / 10)
        if item.object_found and item.object_available:
            contents.append(item.object_content)
    return contents


def _pushed(objects: list[bytes], answer: Any, node: Any, run_id: int) -> Iterator[Any]:
    """A request for each object that is wanted and came with a message."""
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    named, of = {get_object_id(content): content for content in objects}, {"node": node, "run_id": run_id}
    for name in [name for name in answer.objects_to_push if name in named]:
        yield PushObjectRequest(**of, session_id=answer.session_id, object_id=name, object_content=named[name])


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
    if why := _APPS.refusal("SuperLink"):
        if arguments[:1] == ["stock"]:  # of a Flower whose insides nobody has looked at: as it is, without guards
            os.execv(Path(sys.executable).with_name("flower-superlink"), ["flower-superlink", *arguments[1:]])
        raise SystemExit(why)
    if arguments[:1] == [] or arguments[0] not in ROLES:
        raise SystemExit(f"choose a role: {', '.join(ROLES)}")
    ROLES[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
