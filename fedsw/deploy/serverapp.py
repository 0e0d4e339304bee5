"""The server app of Flower 1.41 and 1.42, sending and collecting whole messages through superlink.py.

    python -P serverapp.py superexec|serverapp [the options of flower-superexec or flwr-serverapp]

Started by that SuperLink only. The server app itself comes from the app bundle and is not changed: its grid is
Flower's HttpGrid with two methods replaced.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

_LONGEST = 200  # letters of what a sender wrote, in an error


def superexec(arguments: list[str]) -> None:
    """`flower-superexec` that starts server apps in the role below."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    class Launcher:
        DEVNULL = subprocess.DEVNULL

        @staticmethod
        def Popen(command: list[str], **options: Any) -> Any:
            own = (
                [sys.executable, "-P", __file__, "serverapp", *command[1:]]
                if command[0] == "flwr-serverapp"
                else command
            )
            return subprocess.Popen(own, **options)

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
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    objects, headers, trees = dict[str, Any](), list[Any](), list[Any]()
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            headers.append(message_to_proto(remove_content_from_message(message)))
            trees.append(get_object_tree(message))
            objects.update(get_all_nested_objects(message))
        contents = [item.deflate() for item in objects.values()]
    if not headers:
        return []
    request = PushAppMessagesRequest(messages_list=headers, message_object_trees=trees)
    (answer,) = _call(grid, "/v1/runtime/offer", [request.SerializeToString(), *contents])
    return list(PushAppMessagesResponse.FromString(answer).message_ids)


def _pull_messages(grid: Any, message_ids: Iterable[str]) -> list[Any]:
    """In place of HttpGrid.pull_messages; what is no whole reply is an error of its sender alone."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    request = PullAppMessagesRequest(message_ids=message_ids)
    header, *objects = _call(grid, "/v1/runtime/collect", [request.SerializeToString()])
    answer = PullAppMessagesResponse.FromString(header)
    contents = {get_object_id(content): content for content in objects}
    pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
    return [_reply(proto, tree, contents) for proto, tree in pairs]


def _reply(proto: Any, tree: Any, contents: dict[str, bytes]) -> Any:
    """The reply behind a header and its objects, which anybody may have written: as the header says, or an error."""
    from flwr.app import Error, Message, RecordDict
    from flwr.app.message import make_message
    from flwr.common.constant import ErrorCode
    from flwr.common.serde import message_from_proto
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    metadata = message_from_proto(proto).metadata
    metadata.__dict__["_message_id"] = tree.object_id
    if not all(item.object_id in contents for item in iterate_object_tree(tree)):
        return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply's content never came"))
    try:
        reply: Any = inflate_object_from_contents(tree.object_id, contents, keep_object_contents=True)
        if not isinstance(reply, Message) or not (reply.has_error() or isinstance(reply.content, RecordDict)):
            raise TypeError(f"it is a {type(reply).__name__}, not a message of records")
        _require_same(metadata, reply.metadata)
    except Exception as fault:  # of whatever kind the sender chose: the others' replies are read
        why = f"the reply is unreadable: {type(fault).__name__}: {str(fault)[:_LONGEST]}"
        return make_message(metadata, error=Error(ErrorCode.UNKNOWN, why))
    return make_message(metadata, content=None if reply.has_error() else reply.content, error=reply.__dict__["_error"])


def _require_same(header: Any, inside: Any) -> None:
    """Refuse a reply whose body names another sender or request than its header, which the SuperLink checked."""
    for name in ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "message_type"):
        if getattr(header, name) != getattr(inside, name):
            raise ValueError(f"{name} is not that of its header")


def _call(grid: Any, path: str, parts: list[bytes]) -> list[bytes]:
    from flwr.proto.recorddict_pb2 import BytesList

    client = grid._runtime_client
    answer = client._unary_unary(path=path, rpc_method=path, request=BytesList(vals=parts), response_type=BytesList)
    return list(answer.vals)


if __name__ == "__main__":
    {"superexec": superexec, "serverapp": serverapp}[sys.argv[1]](sys.argv[2:])
