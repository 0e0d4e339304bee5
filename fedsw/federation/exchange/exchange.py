"""One exchange: messages out, replies back, matched by message id, in client order, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsw.federation import wire

_POLL_SECONDS = 0.02
_ITS_OWN_WORDS = (wire.APP_RAISED, wire.BUDGET_EXHAUSTED)  # the app raised, or declined: the reason says all


@dataclass
class Traffic:
    """Bytes of arrays sent to clients and received from them; only the run's totals are ever published."""

    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class Fault:
    """Why a client's reply is missing: in words, and by the code of the client's error if it sent one."""

    reason: str
    code: int | None = None


@dataclass(frozen=True)
class Request:
    """The request to one node."""

    node: int
    content: RecordDict


def exchange(
    grid: Grid,
    kind: str,
    requests: Sequence[Request],
    *,
    group: str,
    timeout: float,
    traffic: Traffic,
    arrived: Callable[[int, RecordDict | Fault], None] = lambda node, reply: None,
) -> Mapping[int, RecordDict | Fault]:
    """Send one message to every node and wait for the replies.

    Replies are matched by the id of the message they answer (a reply the network made up for a dead node names
    another sender), and returned in the order of the requests whatever order they came in.

    Args:
        group: label of the round and attempt, for the network's own logs.
        timeout: seconds, how long the server waits, and how long messages are valid.
        arrived: is called with every reply as it comes, while others may still be awaited.

    Returns:
        For every node, in request order, its reply or the fault.
    """
    messages = [Message(r.content, r.node, kind, group_id=group, ttl=timeout) for r in requests]
    traffic.down += sum(bytes_of(request.content) for request in requests)
    ids = list(grid.push_messages(messages))
    node_of = {message_id: r.node for message_id, r in zip(ids, requests, strict=True) if message_id}
    pending, replies = set(node_of), dict[int, RecordDict | Fault]()
    deadline = time.monotonic() + timeout
    while pending:
        for message in grid.pull_messages(list(pending)):
            answered = message.metadata.reply_to_message_id
            if answered in pending:
                pending.discard(answered)
                replies[node_of[answered]] = reply = content_of(message)
                arrived(node_of[answered], reply)
        if not pending or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    traffic.up += sum(bytes_of(reply) for reply in replies.values() if isinstance(reply, RecordDict))
    silence = Fault(f"no reply within {timeout:g} s (federation.timeout)")
    return {request.node: replies.get(request.node, silence) for request in requests}


def content_of(message: Message) -> RecordDict | Fault:
    """A reply's content, or the error that the client sent."""
    if message.has_content():
        return message.content
    code, reason = message.error.code, str(message.error.reason)
    return Fault(reason if code in _ITS_OWN_WORDS else f"{reason} (Flower's error {code})", code)


def bytes_of(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in arrays for array in record.values())
