"""One exchange: messages out, replies back, matched by message id, in client order, within a time limit."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsw._tools.text import shown
from fedsw.federation import wire
from fedsw.federation.messages import Fault, bytes_of

_log = logging.getLogger("fedsw.server")

_POLL_SECONDS = 0.02
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""Errors of Flower that mean a reply does not decode; none of them is an error of the connection."""
_ITS_OWN_WORDS = (wire.APP_RAISED, wire.BUDGET_EXHAUSTED)  # the app raised, or declined: the reason says all


@dataclass
class Traffic:
    """Bytes of arrays sent to clients and received from them; only the run's totals are ever published."""

    down: int = 0
    up: int = 0


def exchange(
    grid: Grid,
    kind: str,
    requests: Mapping[int, RecordDict],
    *,
    group: str,
    timeout: float,
    traffic: Traffic,
    arrived: Callable[[int, RecordDict | Fault], None] = lambda node, reply: None,
) -> Mapping[int, RecordDict | Fault]:
    """Send every node a message of its own, and wait for the replies.

    Replies are matched by the id of the message they answer (a reply the network made up for a dead node names
    another sender), and returned in the order of the requests whatever order they came in.

    The `group` is a label of round and attempt for the network's own logs; the server waits `timeout` seconds, as long
    as messages are valid. `arrived` is called with every reply as it comes. A node without one gets a `Fault`.
    """
    messages = [Message(content, node, kind, group_id=group, ttl=timeout) for node, content in requests.items()]
    traffic.down += sum(map(bytes_of, requests.values()))
    ids = list(grid.push_messages(messages))
    pending = {message_id: node for message_id, node in zip(ids, requests, strict=True) if message_id}
    replies = dict[int, RecordDict | Fault]()
    deadline = time.monotonic() + timeout
    while pending:
        for answered, reply in answers_to(grid, pending).items():
            node = pending.pop(answered)
            replies[node] = reply
            arrived(node, reply)
        if not pending or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    traffic.up += sum(bytes_of(reply) for reply in replies.values() if isinstance(reply, RecordDict))
    silence = Fault(f"no reply within {timeout:g} s (federation.timeout)")
    return {node: replies.get(node, silence) for node in requests}


def answers_to(grid: Grid, nodes: Mapping[str, int]) -> dict[str, RecordDict | Fault]:
    """Answers that have arrived, by request id: the content that its node sent, or the fault.

    A reply counts only as that of the node that the request went to. One of another node answers nothing, whatever it
    says of itself; the request stays open.
    """
    answers = dict[str, RecordDict | Fault]()
    for answered, message in _pulled(grid, list(nodes)):
        if isinstance(message, Fault):
            answers[answered] = message
        elif answered in nodes and answered not in answers:
            if _comes_from(message, nodes[answered]):
                answers[answered] = content_of(message)
            else:
                _log.warning("node %d answered in another node's name; it is not believed", _source(message))
    return answers


def _pulled(grid: Grid, ids: Sequence[str]) -> Iterable[tuple[str, Message | Fault]]:
    """The replies that are there, with the request that each says it answers; an unreadable one is a `Fault`."""
    carrier = getattr(grid, "carrier", grid)  # where another grid is around it
    if not type(carrier).pull_messages.__module__.startswith("flwr."):
        yield from ((message.metadata.reply_to_message_id, message) for message in grid.pull_messages(ids))
        return
    undecodable: Any = importlib.import_module("google.protobuf.message").DecodeError
    for message_id in ids:  # Flower reads all in one go: at the first reply that does not decode all others are lost
        try:
            replies = list(grid.pull_messages([message_id]))
            yield from [(message.metadata.reply_to_message_id, message) for message in replies]
        except (*_UNREADABLE, undecodable) as fault:
            yield message_id, Fault(f"its reply is unreadable: {type(fault).__name__}")


def _comes_from(message: Message, node: int) -> bool:
    """True if a reply is from this node, or an error that the network itself made for it."""
    source = _source(message)
    return source == node or (source == wire.SERVER_NODE and not message.has_content())


def _source(message: Message) -> int:
    return int(message.metadata.src_node_id)


def content_of(message: Message) -> RecordDict | Fault:
    """A reply's content, or the error that the client sent."""
    if message.has_content():
        content: object = message.content
        return content if isinstance(content, RecordDict) else Fault("its reply holds no records")
    code, reason = message.error.code, shown(message.error.reason)
    return Fault(reason if code in _ITS_OWN_WORDS else f"{reason} (Flower's error {code})", code)
