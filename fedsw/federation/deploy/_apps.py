"""Apps of Flower 1.41 and 1.42 in processes of their own, and the whole messages that come and go there.

    python -P _apps.py superexec|serverapp [the options of flower-superexec or flwr-serverapp]
    python -P _apps.py worker DESCRIPTOR FOLDER

The SuperLink of superlink.py starts the server app, which comes from the app bundle and is not changed: its grid is
Flower's HttpGrid with two methods replaced. The node of executor.py starts workers, each with one bundle's ClientApp.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TESTED = ("1.41", "1.42")
READY = "ready"
_LIBRARIES = ("flwr.clientapp", "torch")
_LONGEST = 200  # letters of what a sender wrote, in an error
_MOST_SAID = 500
"""Letters of a fault that are sent."""
_SAME = ("run_id", "src_node_id", "dst_node_id", "message_type", "reply_to_message_id")


def refusal(program: str) -> str | None:
    """Why this Flower is not used, with the way out; None for those that these files were tested with."""
    version = importlib.metadata.version("flwr")
    if ".".join(version.split(".")[:2]) in TESTED:
        return None
    return f"warm clients need Flower {' or '.join(TESTED)}, not {version}; --stock uses Flower's own {program}"


def call(client: Any, path: str, parts: list[bytes]) -> list[bytes]:
    """One request of several parts, signed where the client signs, and its answer's parts."""
    from flwr.proto.recorddict_pb2 import BytesList

    answer = client._unary_unary(path=path, rpc_method=path, request=BytesList(vals=parts), response_type=BytesList)
    return list(answer.vals)


def packed(messages: Iterable[Any]) -> tuple[list[Any], list[Any], list[bytes]]:
    """Messages as they travel: headers without content, trees of the names of their objects, and all objects."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    objects, headers, trees = dict[str, Any](), list[Any](), list[Any]()
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            headers.append(message_to_proto(remove_content_from_message(message) if message.has_content() else message))
            trees.append(get_object_tree(message))
            objects.update(get_all_nested_objects(message))
        return headers, trees, [item.deflate() for item in objects.values()]


def header_of(proto: Any, tree: Any) -> Any:
    """The metadata of a message, as the SuperLink has checked them."""
    from flwr.common.serde import message_from_proto

    metadata = message_from_proto(proto).metadata
    metadata.__dict__["_message_id"] = tree.object_id
    return metadata


def inflated(metadata: Any, contents: dict[str, bytes]) -> Any:
    """The message behind a header and its objects; raises any kind of error, since the sender wrote them."""
    from flwr.app import Message, RecordDict
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    message: Any = inflate_object_from_contents(metadata.message_id, contents, keep_object_contents=True)
    if not isinstance(message, Message) or not (message.has_error() or isinstance(message.content, RecordDict)):
        raise TypeError(f"it is a {type(message).__name__}, not a message of records")
    for name in _SAME:
        if getattr(metadata, name) != getattr(message.metadata, name):
            raise ValueError(f"its {name} is not that of its header")
    return message


def words_of(fault: Exception) -> str:
    """Describe the fault of a message that cannot be read."""
    return f"{type(fault).__name__}: {str(fault)[:_LONGEST]}"


def superexec(arguments: list[str]) -> None:
    """`flower-superexec` that starts server apps in the role below."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    class Launcher:
        DEVNULL = subprocess.DEVNULL

        @staticmethod
        def Popen(command: list[str], **options: Any) -> Any:
            replacement = (
                [sys.executable, "-P", __file__, "serverapp", *command[1:]]
                if command[0] == "flwr-serverapp"
                else command
            )
            return subprocess.Popen(replacement, **options)

    replaced: Any = subprocess_executor
    replaced.subprocess = Launcher
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()


def serverapp(arguments: list[str]) -> None:
    """`flwr-serverapp` whose grid offers and collects whole messages."""
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp
    from flwr.superlink.grid import HttpGrid

    grid: Any = HttpGrid
    grid.push_messages, grid.pull_messages = _push_messages, _pull_messages
    sys.argv = ["flwr-serverapp", *arguments]
    flwr_serverapp()


def _push_messages(grid: Any, messages: Iterable[Any]) -> list[str]:
    """In place of HttpGrid.push_messages."""
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse

    headers, trees, contents = packed(messages)
    if not headers:
        return []
    request = PushAppMessagesRequest(messages_list=headers, message_object_trees=trees)
    (answer,) = call(grid._runtime_client, "/v1/runtime/offer", [request.SerializeToString(), *contents])
    return list(PushAppMessagesResponse.FromString(answer).message_ids)


def _pull_messages(grid: Any, message_ids: Iterable[str]) -> list[Any]:
    """In place of HttpGrid.pull_messages; what is no whole reply is an error of its sender alone."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    request = PullAppMessagesRequest(message_ids=message_ids)
    header, *objects = call(grid._runtime_client, "/v1/runtime/collect", [request.SerializeToString()])
    answer = PullAppMessagesResponse.FromString(header)
    contents = {get_object_id(content): content for content in objects}
    pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
    return [_reply(proto, tree, contents) for proto, tree in pairs]


def _reply(proto: Any, tree: Any, contents: dict[str, bytes]) -> Any:
    from flwr.app import Error
    from flwr.app.message import make_message
    from flwr.common.constant import ErrorCode
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    metadata = header_of(proto, tree)
    if not all(item.object_id in contents for item in iterate_object_tree(tree)):
        return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply's content never came"))
    try:
        reply = inflated(metadata, contents)
    except Exception as fault:  # of whatever kind the sender chose: the others' replies are read
        return make_message(metadata, error=Error(ErrorCode.UNKNOWN, f"the reply is unreadable: {words_of(fault)}"))
    return make_message(metadata, content=None if reply.has_error() else reply.content, error=reply.__dict__["_error"])


def work(descriptor: int, folder: str) -> None:
    """Load libraries, then the ClientApp of the bundle that comes first, then answer messages until the pipe closes."""
    from flwr.app import Error, Message  # noqa: F401  (unpickled below)
    from flwr.common.constant import ErrorCode
    from flwr.supercore.task_identity import TaskIdentity

    threading.Thread(target=_leave_with_parent, args=(os.getppid(), folder), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides
    pipe = Connection(descriptor)
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):  # what the app needs, it will miss itself
            importlib.import_module(library)
    pipe.send(READY)
    app, load_fault = None, (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "")
    try:
        app = load_client_app(folder, *pipe.recv())
    except (EOFError, ConnectionError):  # the node ended before there was a bundle
        return
    except Exception as fault:
        print(f"the bundle was not loaded: {type(fault).__name__}: {fault}", file=sys.stderr)
        reason = f"its bundle was not loaded ({type(fault).__name__}); the client's own log says more"  # a path may be
        load_fault = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason)
    with contextlib.suppress(EOFError, OSError):
        while True:
            message, context = pipe.recv()
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = context.run_id, context.node_id, 1
            reply, error = None, load_fault
            if app is not None:
                try:
                    reply = app(message=message, context=context)
                except Exception as raised:
                    error = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(raised)}:<'{raised}'>"[:_MOST_SAID])
            pipe.send((reply, error, context.state))


def load_client_app(destination: str, content: bytes, fab_hash: str) -> Callable[..., Any]:
    """Unpack a bundle into an empty folder that only this user can write to, and load its ClientApp.

    Flower's own folder would be reused for every bundle of the same name whose hash begins with the same 32 bits.

    Raises:
        RuntimeError: if a module of the bundle was imported from anywhere else: it may be another version's.
    """
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    folder = install_from_fab(content, Path(destination), skip_prompt=True).resolve()
    app = get_load_client_app_fn("", str(folder), True)(*get_fab_metadata(content), fab_hash)
    packages = {path.name for path in folder.iterdir() if path.is_dir()}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in packages and file and not Path(file).resolve().is_relative_to(folder):
            raise RuntimeError(f"{name} was loaded from {file}, not from the app bundle {folder.name}")
    return app


def _leave_with_parent(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "worker":
        work(int(arguments[0]), arguments[1])
    else:
        {"superexec": superexec, "serverapp": serverapp}[role](arguments)
