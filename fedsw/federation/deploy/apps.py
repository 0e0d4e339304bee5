"""Apps of Flower 1.41 and 1.42 in processes of their own, and the whole messages that come and go there.

    python -P apps.py superexec|serverapp [the options of flower-superexec or flwr-serverapp]
    python -P apps.py worker DESCRIPTOR FOLDER

The SuperLink of superlink.py starts the server app, which comes from the app bundle and is not changed: its grid is
Flower's HttpGrid with two methods replaced. The node of executor.py starts workers, each with one bundle's ClientApp.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
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

READY = "ready"
_LIBRARIES = ("flwr.clientapp", "torch")
_MOST_SAID = 500
"""Letters of a fault that are sent."""

# Flower's insides are loaded by their path, for this program imports no package.
_SPEC = importlib.util.spec_from_file_location("warm_flower", Path(__file__).parents[1] / "flower.py")
assert _SPEC is not None and _SPEC.loader is not None
FLOWER: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(FLOWER)


def superexec(arguments: list[str]) -> None:
    """`flower-superexec` that starts server apps in the role below."""

    class Launcher:
        DEVNULL = subprocess.DEVNULL

        @staticmethod
        def Popen(command: list[str], **options: Any) -> Any:
            if command[0] == "flwr-serverapp":
                command = [sys.executable, "-P", __file__, "serverapp", *command[1:]]
            return subprocess.Popen(command, **options)

    FLOWER.run_superexec(arguments, Launcher)


def serverapp(arguments: list[str]) -> None:
    """`flwr-serverapp` with a grid that offers and collects whole messages."""
    FLOWER.run_serverapp(arguments, _push_messages, _pull_messages)


def _push_messages(grid: Any, messages: Iterable[Any]) -> list[str]:
    """In place of HttpGrid.push_messages."""
    headers, trees, contents = FLOWER.packed(messages)
    if not headers:
        return []
    request = FLOWER.PushAppMessagesRequest(messages_list=headers, message_object_trees=trees)
    parts = [request.SerializeToString(), *contents]
    (answer,) = FLOWER.call(FLOWER.client_of(grid), "/v1/runtime/offer", parts)
    return list(FLOWER.PushAppMessagesResponse.FromString(answer).message_ids)


def _pull_messages(grid: Any, message_ids: Iterable[str]) -> list[Any]:
    """In place of HttpGrid.pull_messages; what is no whole reply is an error of its sender only."""
    request = FLOWER.PullAppMessagesRequest(message_ids=message_ids)
    parts = [request.SerializeToString()]
    header, *objects = FLOWER.call(FLOWER.client_of(grid), "/v1/runtime/collect", parts)
    answer = FLOWER.PullAppMessagesResponse.FromString(header)
    contents = {FLOWER.get_object_id(content): content for content in objects}
    pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
    return [_reply(proto, tree, contents) for proto, tree in pairs]


def _reply(proto: Any, tree: Any, contents: dict[str, bytes]) -> Any:
    from flwr.app import Error

    metadata, codes, make = FLOWER.header_of(proto, tree), FLOWER.ErrorCode, FLOWER.make_message
    if not all(item.object_id in contents for item in FLOWER.iterate_object_tree(tree)):
        return make(metadata, error=Error(codes.MESSAGE_UNAVAILABLE, "the reply's content never came"))
    try:
        reply = FLOWER.inflated(metadata, contents)
    except Exception as fault:  # of whatever kind the sender chose: the others' replies are read
        return make(metadata, error=Error(codes.UNKNOWN, f"the reply is unreadable: {FLOWER.words_of(fault)}"))
    return make(metadata, content=None if reply.has_error() else reply.content, error=FLOWER.error_of(reply))


def work(descriptor: int, folder: str) -> None:
    """Load libraries, then the ClientApp of the bundle that comes first, then answer messages until the pipe closes."""
    from flwr.app import Error, Message  # noqa: F401  (unpickled below)

    codes = FLOWER.ErrorCode
    threading.Thread(target=_leave_with_parent, args=(os.getppid(), folder), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides
    pipe = Connection(descriptor)
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):  # what the app needs, it will miss itself
            importlib.import_module(library)
    pipe.send(READY)
    app, load_fault = None, (codes.LOAD_CLIENT_APP_EXCEPTION, "")
    try:
        app = load_client_app(folder, *pipe.recv())
    except (EOFError, ConnectionError):  # the node ended before there was a bundle
        return
    except Exception as fault:
        print(f"the bundle was not loaded: {type(fault).__name__}: {fault}", file=sys.stderr)
        reason = f"its bundle was not loaded ({type(fault).__name__}); the client's own log says more"  # a path may be
        load_fault = (codes.LOAD_CLIENT_APP_EXCEPTION, reason)
    with contextlib.suppress(EOFError, OSError):
        while True:
            message, context = pipe.recv()
            FLOWER.identify(context.run_id, context.node_id)
            reply, error = None, load_fault
            if app is not None:
                try:
                    reply = app(message=message, context=context)
                except Exception as raised:
                    error = (codes.CLIENT_APP_RAISED_EXCEPTION, f"{type(raised)}:<'{raised}'>"[:_MOST_SAID])
            pipe.send((reply, error, context.state))


def load_client_app(destination: str, content: bytes, fab_hash: str) -> Callable[..., Any]:
    """Unpack a bundle into an empty folder that only this user can write to, and load its ClientApp.

    Flower's own folder would be reused for every bundle of the same name and the same first 32 bits of its hash.

    Raises:
        RuntimeError: if a module of the bundle was imported from anywhere else: it may be another version's.
    """
    folder = FLOWER.install_from_fab(content, Path(destination), skip_prompt=True).resolve()
    load = FLOWER.get_load_client_app_fn("", str(folder), True)
    app: Callable[..., Any] = load(*FLOWER.get_fab_metadata(content), fab_hash)
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
