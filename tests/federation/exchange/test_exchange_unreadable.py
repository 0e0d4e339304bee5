"""Whoever sends what does not decode is lost alone: the other replies are read, and the node that got it goes on."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.runtime_pb2 import PullAppMessagesResponse

from fedsw.federation.deploy import apps, executor
from fedsw.federation.engines import inprocess
from fedsw.federation.exchange.exchange import Traffic, answers_to, exchange
from fedsw.federation.messages import Fault
from tests.federation.deploy.envelopes import KINDS, Carrier, Envelope, broken, grid_of

RUN, NODE, OTHER = 77, 1234, 4321


def request(node: int = NODE, what: str = "tell") -> Message:
    """A request of the server."""
    inprocess.identify(RUN)
    message = Message(RecordDict({"ask": ConfigRecord({"what": what})}), node, "query.tell", ttl=60.0)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def reply_of(node: int) -> Message:
    """A node's reply."""
    return Message(RecordDict({"answer": ConfigRecord({"node": node})}), reply_to=request(node))


def collected(*envelopes: Envelope) -> Carrier:
    """What the SuperLink hands to the server app."""
    answer = PullAppMessagesResponse(
        messages_list=[each.header for each in envelopes], message_object_trees=[each.tree for each in envelopes]
    )
    return Carrier(answer.SerializeToString(), *[item for each in envelopes for item in each.objects])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_is_none_is_its_sender_s_fault_and_the_others_are_read(kind: str) -> None:
    spoilt, whole = broken(kind, reply_of(OTHER)), Envelope(reply_of(NODE))
    try:
        first, second = apps._pull_messages(grid_of(collected(spoilt, whole)), [])
    except Exception as fault:
        pytest.fail(f"one reply ends them all: {fault!r}")
    assert first.has_error() and "unreadable" in first.error.reason
    assert first.metadata.src_node_id == OTHER and first.metadata.reply_to_message_id
    assert second.content["answer"]["node"] == NODE


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_answers_for_what_it_cannot_read_and_goes_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt = broken(kind, request())
    answer = PullMessagesResponse(messages_list=[spoilt.header], message_object_trees=[spoilt.tree])
    carrier = Carrier(answer.SerializeToString(), *spoilt.objects)
    node, taken = executor.NodeLoop(carrier, NODE, {}, None, None), [0]
    take = node._take

    def three_times() -> Any:
        taken[0] += 1
        if taken[0] > 3:
            raise KeyboardInterrupt
        return take()

    monkeypatch.setattr(node, "_take", three_times)
    with pytest.raises(KeyboardInterrupt):
        node.run()
    given = [PushMessagesRequest.FromString(parts[0]) for path, parts in carrier.sent if path == "/v1/fleet/give"]
    assert len(given) == 3 and all(each.messages_list[0].error.reason for each in given)


@pytest.mark.parametrize("parts", [(), (b"\xff" * 20,), (b"",)])
def test_five_answers_that_are_none_do_not_end_a_node(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, taken = executor.NodeLoop(Carrier(*parts), NODE, {}, None, None), [0]
    take = node._take

    def five_times() -> Any:
        taken[0] += 1
        if taken[0] > 5:
            raise KeyboardInterrupt
        return take()

    monkeypatch.setattr(node, "_take", five_times)
    monkeypatch.setattr(executor, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        node.run()


def test_a_request_that_is_not_the_server_s_is_not_answered() -> None:
    """Neither one that another node wrote, nor one to another node."""
    for source, to in ((OTHER, NODE), (1, OTHER)):
        message = request(to)
        message.metadata.__dict__["_src_node_id"] = source
        envelope = Envelope(message)
        answer = PullMessagesResponse(messages_list=[envelope.header], message_object_trees=[envelope.tree])
        carrier = Carrier(answer.SerializeToString(), *envelope.objects)
        with pytest.raises(executor.Unreadable, match="not the server's to this node") as found:
            executor.NodeLoop(carrier, NODE, {}, None, None)._take()
        assert found.value.header is None, "there is nobody to tell"


class Stock:
    """Flower's own grid, which reads all replies that are asked for at once, and fails at one that does not decode."""

    def __init__(self, replies: dict[str, Message | Exception]) -> None:
        self.replies = replies

    def push_messages(self, messages: Any) -> list[str]:
        return list(self.replies)

    def pull_messages(self, ids: Any) -> list[Message]:
        found = [self.replies.pop(each) for each in ids if each in self.replies]
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [each for each in found if isinstance(each, Message)]


Stock.pull_messages.__module__ = "flwr.superlink.grid.http_grid"


def test_with_flower_s_own_grid_one_unreadable_reply_costs_its_sender_only() -> None:
    asked = [request(NODE), request(OTHER, "else")]
    good = Message(RecordDict({"answer": ConfigRecord({"node": NODE})}), reply_to=asked[0])
    first, second = (each.metadata.message_id for each in asked)
    for spoilt in (AttributeError("metadata"), KeyError("Messages"), RecursionError(), ValueError("body")):
        grid: Any = Stock({second: spoilt, first: good})
        found = answers_to(grid, {second: OTHER, first: NODE})
        assert isinstance(found[second], Fault) and isinstance(found[first], RecordDict)


def test_what_flower_s_own_grid_says_of_the_connection_is_no_member_s_fault() -> None:
    grid: Any = Stock({"a": ConnectionError("gone")})
    with pytest.raises(ConnectionError, match="gone"):
        answers_to(grid, {"a": NODE})


def test_a_reply_is_that_of_the_node_that_was_asked_or_none() -> None:
    """A member that learns the id of another's request cannot answer it: the request stays open."""

    class Grid:
        def __init__(self) -> None:
            self.asked: list[Message] = []
            self.pulled = 0

        def push_messages(self, messages: Any) -> list[str]:
            self.asked = list(messages)
            for each in self.asked:
                each.metadata.__dict__["_message_id"] = each.object_id
            return [each.metadata.message_id for each in self.asked]

        def pull_messages(self, ids: Any) -> list[Message]:
            self.pulled += 1
            who = OTHER if self.pulled == 1 else NODE
            reply = Message(RecordDict({"answer": ConfigRecord({"node": who})}), reply_to=self.asked[0])
            reply.metadata.__dict__["_src_node_id"] = who
            return [reply]

    grid: Any = Grid()
    content = RecordDict({"ask": ConfigRecord({"what": "tell"})})
    replies = exchange(grid, "query.tell", {NODE: content}, group="g", timeout=5.0, traffic=Traffic())
    found = replies[NODE]
    assert isinstance(found, RecordDict) and found["answer"]["node"] == NODE and grid.pulled == 2
