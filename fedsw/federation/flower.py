"""All private parts of Flower that fedsw uses: where each name is, what it is for, and what would replace it.

Public are `flwr.app`, `flwr.clientapp` and `flwr.serverapp`, which any file may import. Every other name of Flower is
an attribute of this module, imported when it is asked for; hidden fields of Flower's objects are read and set only
here. An upgrade that moves one fails in tests/federation/test_flower.py.

The programs of deploy/ load this file by path, since they import no package: it imports nothing of fedsw.
"""

from __future__ import annotations

import binascii
import contextlib
import datetime
import importlib
import importlib.metadata
import logging
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

TESTED = ("1.41", "1.42")
"""Versions of Flower that deploy/ was tested with."""


class Needed(NamedTuple):
    """Names inside Flower that fedsw uses to one end, and what would take their place if Flower changed them."""

    use: str
    instead: str
    names: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, str] = {}
    """Whole modules, for names that are called or replaced in place."""
    fields: tuple[str, ...] = ()
    """Hidden fields and methods of Flower's objects, and names of its classes."""


PARTS = (
    Needed(
        "messages that are made in this process belong to a run and a node, and have a number",
        "`Grid.create_message` and a public way to number a message; in process, a message class of our own",
        {"flwr.supercore.run": ("Run",), "flwr.supercore.task_identity": ("TaskIdentity",)},
        fields=("_message_id",),
    ),
    Needed(
        "a receiver in process has its own record tree over the same arrays, filled without a second check",
        "`copy.copy` and the constructors of `flwr.app`: the same, slower",
        {},
        fields=("_error", "_data", "_content"),
    ),
    Needed(
        "a message travels whole in one request, and is checked against its header",
        "`--stock`: Flower's own requests, one for each object of a message",
        {
            "flwr.app.message": ("make_message", "remove_content_from_message"),
            "flwr.common.constant": ("SUPERLINK_NODE_ID",),
            "flwr.common.serde": ("message_from_proto", "message_to_proto"),
            "flwr.proto.fleet_pb2": ("PullMessagesRequest", "PullMessagesResponse", "PushMessagesRequest"),
            "flwr.proto.message_pb2": ("ConfirmMessageReceivedRequest", "PullObjectRequest", "PushObjectRequest"),
            "flwr.proto.node_pb2": ("Node",),
            "flwr.proto.recorddict_pb2": ("BytesList",),
            "flwr.proto.runtime_pb2": (
                "PullAppMessagesRequest",
                "PullAppMessagesResponse",
                "PushAppMessagesRequest",
                "PushAppMessagesResponse",
            ),
            "flwr.supercore.inflatable.inflatable_object": (
                "get_all_nested_objects",
                "get_object_id",
                "get_object_tree",
                "iterate_object_tree",
                "no_object_id_recompute",
            ),
            "flwr.supercore.inflatable.inflatable_utils": ("inflate_object_from_contents",),
        },
        fields=("_unary_unary", "_runtime_client"),
    ),
    Needed(
        "one process of a node answers all messages",
        "`--stock`: `flower-supernode`, which starts a process for every message",
        {
            "flwr.cli.config_utils": ("get_fab_metadata",),
            "flwr.cli.install": ("install_from_fab",),
            "flwr.clientapp.utils": ("get_load_client_app_fn",),
            "flwr.common.config": ("get_fused_config_from_fab", "parse_config_args"),
            "flwr.common.constant": ("HEARTBEAT_PATIENCE", "ErrorCode"),
        },
        {"heartbeat": "flwr.supercore.heartbeat", "node_requests": "flwr.supernode.fleet_http_connection"},
    ),
    Needed(
        "the server bounds requests, refuses nodes by name and checks signatures before it reads a body",
        "`flower-superlink` behind a TCP proxy that limits sizes and rates; refusals then come at the greeting",
        {
            "flwr.common.constant": ("SYSTEM_TIME_TOLERANCE", "TIMESTAMP_HEADER", "TIMESTAMP_TOLERANCE"),
            "flwr.supercore.constant": (
                "FLEET_HTTP_PUBLIC_KEY_HEADER",
                "FLEET_HTTP_SIGNATURE_HEADER",
                "TASK_TOKEN_HEADER",
            ),
            "flwr.supercore.dependencies.task": ("authenticate_task",),
            "flwr.supercore.error": ("FlowerError",),
            "flwr.supercore.error.catalog": ("API_ERROR_MAP",),
            "flwr.supercore.primitives.asymmetric": ("bytes_to_public_key", "verify_signature"),
            "flwr.superlink.dependencies.linkstate": ("get_linkstate",),
            "flwr.superlink.routers.fleet.node_auth": ("authenticate_node",),
        },
        {
            "extensions": "flwr.superlink.extensions",
            "fleet_handlers": "flwr.superlink.servicer.fleet.fleet_handlers",
            "runtime_handlers": "flwr.superlink.servicer.runtime.runtime_handlers",
            "superlink_program": "flwr.superlink.cli.flower_superlink",
        },
    ),
    Needed(
        "the server's app starts with its libraries loaded",
        "`--stock`: `flower-superexec` and `flwr-serverapp` as they are, some seconds later",
        {
            "flwr.supercore.cli.flower_superexec": ("flower_superexec",),
            "flwr.superlink.cli.flwr_serverapp": ("flwr_serverapp",),
            "flwr.superlink.grid": ("HttpGrid",),
        },
        {"subprocess_executor": "flwr.supercore.superexec.executor.subprocess_executor"},
        fields=("_get_superexec_command",),
    ),
    Needed(
        "keys are admitted and revoked while the server runs",
        "`flwr supernode register`, `list` and `unregister`, a process each",
        {
            "flwr.cli.supernode.register": ("try_load_public_key",),
            "flwr.proto.control_pb2": ("ListNodesRequest", "RegisterNodeRequest", "UnregisterNodeRequest"),
            "flwr.supercore.control": ("ControlHttpClient",),
            "flwr.supercore.interceptors": ("RuntimeVersionHttpInterceptor",),
        },
    ),
    Needed(
        "a node can demand a bundle by its hash",
        "`flwr build`, and the hash of its file",
        {"flwr.cli.build": ("build_fab_from_files",)},
    ),
    Needed(
        "the engine `ray`, with observers and Python objects in this process; Flower documents it, as deprecated",
        "`flwr run`, the one simulation that Flower promises: the engine `flwr`",
        {"flwr.simulation": ("run_simulation",)},
        fields=("InMemoryGrid",),
    ),
)
SIMULATED = "InMemoryGrid"
"""The class name of Flower's grid to simulated clients. Under another name clients count as real: that is safe."""

MODULES = {name: module for part in PARTS for name, module in part.modules.items()}
MODULE_OF = {name: module for part in PARTS for module, names in part.names.items() for name in names}
"""The module that each function, class and constant is in."""

log = logging.getLogger("flwr").log
_LONGEST = 200  # letters of what a sender wrote, in an error
_SAME = ("run_id", "src_node_id", "dst_node_id", "message_type", "reply_to_message_id")
_Any = TypeVar("_Any")


class _Names:
    """The names by attribute, each looked up where it is now, so that a replaced one is seen."""

    def __getattr__(self, name: str) -> Any:
        if name in MODULES:
            return importlib.import_module(MODULES[name])
        if name in MODULE_OF:
            return getattr(importlib.import_module(MODULE_OF[name]), name)
        raise AttributeError(f"fedsw does not use {name!r} of Flower; add it to PARTS in {__file__}")


_names = _Names()


def __getattr__(name: str) -> Any:
    """Look up a name of `PARTS`."""
    return getattr(_names, name)


def refusal(program: str) -> str | None:
    """Reason why the installed Flower is not used, with the remedy; None for those that deploy/ was tested with."""
    version = importlib.metadata.version("flwr")
    if ".".join(version.split(".")[:2]) in TESTED:
        return None
    return f"warm clients need Flower {' or '.join(TESTED)}, not {version}; --stock uses Flower's own {program}"


def identify(run_id: int, node_id: int) -> None:
    """Say which run and node messages made in this process belong to."""
    task = _names.TaskIdentity
    task.run_id, task.node_id, task.task_id = run_id, node_id, 1


def number(message: Any, message_id: str) -> None:
    """Give a message its id, as Flower's own grids do."""
    message.metadata.__dict__["_message_id"] = message_id


def error_of(message: Any) -> Any:
    """The error that a message carries; None if it has none."""
    return message.__dict__["_error"]


def records_in(content: Any) -> Any:
    """The mapping that holds a record tree's records."""
    return vars(content)["_data"]


def put_records(content: Any, records: Any) -> None:
    """Give a record tree another mapping of records, unchecked."""
    vars(content)["_data"] = records


def copied(message: Any) -> Any:
    """A copy of the message with another record tree over the same arrays."""
    body = _twin(message.content)
    put_records(body, {key: _shallow(record) for key, record in message.content.items()})
    letter = _twin(message)
    letter.__dict__["_content"] = body
    return letter


def _shallow(record: Any) -> Any:
    """A record of the same items; they were checked when the original took them."""
    twin = _twin(record)
    put_records(twin, records_in(record).copy())
    return twin


def _twin(original: _Any) -> _Any:
    """Another object of the same fields (`copy.copy` takes the long way of pickling)."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin


def call(client: Any, path: str, parts: list[bytes]) -> list[bytes]:
    """One request of several parts, signed where the client signs, and its answer's parts."""
    request, kind = _names.BytesList(vals=parts), _names.BytesList
    return list(client._unary_unary(path=path, rpc_method=path, request=request, response_type=kind).vals)


def client_of(grid: Any) -> Any:
    """The client by which a server app's grid asks its SuperLink."""
    return grid._runtime_client


def packed(messages: Iterable[Any]) -> tuple[list[Any], list[Any], list[bytes]]:
    """Messages as they travel: headers without content, trees of the names of their objects, and all objects."""
    objects, headers, trees = dict[str, Any](), list[Any](), list[Any]()
    proto_of, without_content = _names.message_to_proto, _names.remove_content_from_message
    with _names.no_object_id_recompute():
        for message in messages:
            number(message, message.object_id)
            headers.append(proto_of(without_content(message) if message.has_content() else message))
            trees.append(_names.get_object_tree(message))
            objects.update(_names.get_all_nested_objects(message))
        return headers, trees, [item.deflate() for item in objects.values()]


def header_of(proto: Any, tree: Any) -> Any:
    """The metadata of a message, as the SuperLink has checked them."""
    message = _names.message_from_proto(proto)
    number(message, tree.object_id)
    return message.metadata


def inflated(metadata: Any, contents: dict[str, bytes]) -> Any:
    """The message behind a header and its objects; raises any kind of error, since the sender wrote them."""
    from flwr.app import Message, RecordDict

    message: Any = _names.inflate_object_from_contents(metadata.message_id, contents, keep_object_contents=True)
    if not isinstance(message, Message) or not (message.has_error() or isinstance(message.content, RecordDict)):
        raise TypeError(f"it is a {type(message).__name__}, not a message of records")
    for name in _SAME:
        if getattr(metadata, name) != getattr(message.metadata, name):
            raise ValueError(f"its {name} is not that of its header")
    return message


def words_of(fault: Exception) -> str:
    """Describe the fault of a message that cannot be read."""
    return f"{type(fault).__name__}: {str(fault)[:_LONGEST]}"


def signed_by_a_node(scope: Any) -> bool:
    """True if a request's headers carry a fresh signature by an admitted node's key; its body is not read."""
    from fastapi import Request

    request, tolerance = Request(scope), _names.SYSTEM_TIME_TOLERANCE
    try:
        key = b64decode(request.headers[_names.FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(request.headers[_names.FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        stamp = request.headers[_names.TIMESTAMP_HEADER]
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)).total_seconds()
        if not -tolerance < age < _names.TIMESTAMP_TOLERANCE + tolerance:
            return False
        if _names.get_linkstate(request).get_node_id_by_public_key(key) is None:
            return False
        return bool(_names.verify_signature(_names.bytes_to_public_key(key), stamp.encode("ascii"), signature))
    except (KeyError, ValueError, TypeError, binascii.Error):
        return False


def run_superlink(
    arguments: Sequence[str],
    *,
    guards: Sequence[Any],
    require_own: Callable[[Any], Any],
    activate: Callable[[Callable[[Any, Any], Any], Any, Any], Any],
    server: Callable[..., None],
    superexec: Sequence[str] | None = None,
) -> None:
    """Run `flower-superlink` with some of its functions replaced.

    Args:
        guards: middleware around all of its requests, the outermost first.
        require_own: called with what a node brings, before it is taken.
        activate: called with Flower's own function, a node's greeting and the state, in place of that function.
        server: called in place of `uvicorn.run`.
        superexec: the command that starts server apps in place of `flower-superexec`; None for Flower's own.
    """
    import uvicorn

    program, handlers = _names.superlink_program, _names.fleet_handlers
    if superexec is not None:
        stock = program._get_superexec_command
        program._get_superexec_command = lambda *a, **k: [*superexec, *stock(*a, **k)[1:]]
    push, greet = handlers.push_messages, handlers.activate_node
    _names.extensions.get_middleware = lambda: tuple(guards)
    handlers.push_messages = lambda request, state: push(require_own(request), state)
    handlers.activate_node = lambda request, state: activate(greet, request, state)
    uvicorn.run = server
    sys.argv = ["flower-superlink", *arguments]
    program.flower_superlink()


def run_superexec(arguments: Sequence[str], launcher: Any) -> None:
    """Run `flower-superexec` with a `launcher` in place of the module `subprocess`."""
    _names.subprocess_executor.subprocess = launcher
    sys.argv = ["flower-superexec", *arguments]
    _names.flower_superexec()


def run_serverapp(
    arguments: Sequence[str],
    push: Callable[[Any, Iterable[Any]], list[str]],
    pull: Callable[[Any, Iterable[str]], list[Any]],
) -> None:
    """Run `flwr-serverapp` with these methods of its grid."""
    grid = _names.HttpGrid
    grid.push_messages, grid.pull_messages = push, pull
    sys.argv = ["flwr-serverapp", *arguments]
    _names.flwr_serverapp()


@contextlib.contextmanager
def node_connection(
    superlink: str,
    authority: str,
    key: Any,
    *,
    lease: float,
    activate: Callable[[Callable[[Any, Any], Any], Any, Any], Any],
    beat: Callable[[Callable[[Any, Any], Any], Any, Any], Any],
) -> Iterator[tuple[Any, int, Any, Any]]:
    """Connect a node to its SuperLink; yields its client, its number, and functions that get a run and a bundle.

    Args:
        key: the node's private key.
        lease: seconds after which a node that died may be taken back.
        activate, beat: called with Flower's own method, its client and a request, in place of greeting and heartbeat.
    """
    requests, clients = _names.node_requests, list[Any]()
    stock = requests.FleetHttpClient
    greet, pulse, enter = stock.ActivateNode, stock.SendNodeHeartbeat, stock.__enter__

    def remembered(client: Any) -> Any:
        clients.append(client)  # the connection below keeps its client to itself
        return enter(client)

    stock.ActivateNode = lambda client, request: activate(greet, client, request)
    stock.SendNodeHeartbeat = lambda client, request: beat(pulse, client, request)
    stock.__enter__ = remembered
    seconds = lease / _names.HEARTBEAT_PATIENCE
    _names.heartbeat.HEARTBEAT_DEFAULT_INTERVAL = requests.HEARTBEAT_DEFAULT_INTERVAL = seconds
    with requests.http_request_response(superlink, False, authority, (key, key.public_key())) as (number_, *calls):
        _, _, get_run, get_fab, *_ = calls
        yield clients[-1], number_, get_run, get_fab


def simulate(server_app: Any, client_app: Any, nodes: int, backend: dict[str, Any]) -> None:
    """Run both apps on Flower's simulation engine, without its advice to use `flwr run`."""
    logger, advised = logging.getLogger("flwr"), "DEPRECATED FEATURE"

    def other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(advised)

    logger.addFilter(other)
    try:
        _names.run_simulation(server_app, client_app, nodes, backend_config=backend)
    finally:
        logger.removeFilter(other)


def control_of(address: str, authority: str) -> Any:
    """A connection to a SuperLink's interface for its operator."""
    version = _names.RuntimeVersionHttpInterceptor(component_name="flwr")
    return _names.ControlHttpClient.from_server_address(address, False, authority, [version])
