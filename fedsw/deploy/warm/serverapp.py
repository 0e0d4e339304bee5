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
    """In place of HttpGrid.pull_messages; a reply whose objects never came is an error, as there."""
    from flwr.app import Error
    from flwr.app.message import make_message
    from flwr.common.constant import ErrorCode
    from flwr.common.serde import message_from_proto
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
    from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    request = PullAppMessagesRequest(message_ids=message_ids)
    header, *objects = _call(grid, "/v1/runtime/collect", [request.SerializeToString()])
    answer = PullAppMessagesResponse.FromString(header)
    contents = {get_object_id(content): content for content in objects}
    replies = list[Any]()
    for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        if all(item.object_id in contents for item in iterate_object_tree(tree)):
            reply: Any = inflate_object_from_contents(tree.object_id, contents, keep_object_contents=True)
        else:
            missing = Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply's content never came")
            reply = make_message(metadata=message_from_proto(proto).metadata, error=missing)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        replies.append(reply)
    return replies


def _call(grid: Any, path: str, parts: list[bytes]) -> list[bytes]:
    from flwr.proto.recorddict_pb2 import BytesList

    client = grid._runtime_client
    answer = client._unary_unary(path=path, rpc_method=path, request=BytesList(vals=parts), response_type=BytesList)
    return list(answer.vals)


if __name__ == "__main__":
    {"superexec": superexec, "serverapp": serverapp}[sys.argv[1]](sys.argv[2:])
