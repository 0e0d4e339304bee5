"""Messages as they lie on the wire, whole and broken, and who carries them, without a network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import BytesList
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree

MODIFIED = ("run_id", "src_node_id", "dst_node_id", "message_type", "reply_to_message_id")


class Envelope:
    """A message with its header, its tree of objects and their bytes, each of which can be another's."""

    def __init__(self, message: Message) -> None:
        from flwr.app.message import remove_content_from_message

        message.metadata.__dict__["_message_id"] = message.object_id
        self.header = message_to_proto(remove_content_from_message(message))
        self.tree = get_object_tree(message)
        self.objects = [item.deflate() for item in get_all_nested_objects(message).values()]

    def with_root(self, content: bytes) -> Envelope:
        """The same header over another root object."""
        self.tree = ObjectTree(object_id=get_object_id(content), children=self.tree.children)
        self.objects = [*self.objects[:-1], content]
        return self


class Carrier:
    """In place of Flower's HTTP client: answers every call with the same parts, and remembers what was sent."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.sent = list(parts), list[tuple[str, list[bytes]]]()

    def _unary_unary(self, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        self.sent.append((path, list(request.vals)))
        return BytesList(vals=self.parts)


def grid_of(carrier: Carrier) -> Any:
    """What the server app's replaced methods look for on Flower's grid."""
    return SimpleNamespace(_runtime_client=carrier)


def broken(kind: str, message: Message) -> Envelope:
    """A message that its sender has spoilt."""
    envelope = Envelope(message)
    if kind == "another type":
        record = message.content
        return Envelope(message).with_root(record.deflate())
    if kind == "no object":
        return envelope.with_root(b"no object of Flower's")
    if kind == "no child":
        return envelope.with_root(envelope.objects[-1].replace(message.content.object_id.encode(), b"0" * 64))
    if kind == "no protobuf":
        body = b"\xff" * 9
        return envelope.with_root(b"Message " + message.content.object_id.encode() + b" 9\x00" + body)
    if kind == "a content of another type":
        child = next(iter(get_all_nested_objects(message).values()))
        return envelope.with_root(
            envelope.objects[-1].replace(message.content.object_id.encode(), child.object_id.encode())
        )
    if kind == "unheard-of class":
        return envelope.with_root(envelope.objects[-1].replace(b"Message", b"Messages", 1))
    name = kind.removeprefix("another ")
    other = {"run_id": 78, "message_type": "query.other", "reply_to_message_id": "f" * 64}.get(name, 99)
    own = message.metadata.__dict__[f"_{name}"]
    message.metadata.__dict__[f"_{name}"] = other
    inside = message.deflate()
    message.metadata.__dict__[f"_{name}"] = own
    return envelope.with_root(inside)


KINDS = ["another type", "no object", "no child", "no protobuf", "a content of another type", "unheard-of class"]
KINDS += [f"another {name}" for name in MODIFIED]
