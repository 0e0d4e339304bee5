"""Laws of who a request is from: the server, to this node, in this run, once; or nothing of it is read or charged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedsw.federation import SERVER_KEY, SIGNING_KEY
from fedsw.federation.client import app as client_app
from fedsw.federation.deploy import superlink
from fedsw.federation.deploy.certificates import ServerCertificates, read_signing_key, write_certificates
from fedsw.federation.engines import inprocess
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.node.own_ledger import held_open
from fedsw.federation.origin import ORIGIN, NotFromServer, SigningGrid, digest, require_server, signing
from fedsw.federation.server.federation import Job, federate
from fedsw.privacy.accounting import Ledger
from tests.federation.deploy.envelopes import Envelope
from tests.federations import small

NODE, RUN = 1234, "a" * 32


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificates:
    return write_certificates(tmp_path_factory.mktemp("keys"), ["localhost"])


class Caught:
    """A grid that keeps what is sent."""

    run = SimpleNamespace(run_id=5)

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def push_messages(self, messages: Any) -> list[str]:
        self.sent += messages
        return [str(len(self.sent)) for _ in messages]


def content(round_: int = 1) -> RecordDict:
    """Records of every kind."""
    array = Array("float32", (2,), "fedsw.mixed", b"x" * 40)
    plain = {"round": round_, "name": "é", "blob": b"\x00", "flags": [True], "many": [1, 2], "none": [], "x": 0.5}
    return RecordDict(
        {"model": ArrayRecord({"t": array}), "config": ConfigRecord(plain), "m": MetricRecord({"a": 1.5})}
    )


@pytest.fixture
def server(files: ServerCertificates, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Message]:
    """Makes requests as the server signs them, as they arrive."""
    monkeypatch.setenv(SIGNING_KEY, str(files.signing))
    caught: Any = Caught()
    grid = signing(caught, RUN)

    def request(node: int = NODE, kind: str = "train.sketch", run: int = 5, round_: int = 1) -> Message:
        inprocess.identify(run)
        grid.push_messages([Message(content(round_), node, kind, ttl=60.0)])
        return received(caught.sent[-1])

    return request


def received(message: Message) -> Message:
    """The message after its way over the wire."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
    found: Any = inflate_object_from_contents(message.object_id, objects)
    found.metadata.__dict__["_message_id"] = message.object_id
    return found


def test_what_the_server_signed_is_taken_and_reads_as_it_was_sent(server, files):
    message, key = server(), read_signing_key(files.signing_public)
    require_server(message, key, RUN, {})
    assert ORIGIN not in message.content and digest(message.content, {}) == digest(content(), {})


def changed(name: str, value: Any) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        message.content[ORIGIN][name] = value

    return change


def moved(name: str, value: Any) -> Callable[[Message], None]:
    def move(message: Message) -> None:
        message.metadata.__dict__[f"_{name}"] = value

    return move


def spoilt(record: str, name: str, value: Any) -> Callable[[Message], None]:
    def spoil(message: Message) -> None:
        message.content[record][name] = value

    return spoil


FORGERIES: dict[str, Callable[[Message], Any]] = {
    "another run's name": changed("run", "b" * 32),
    "another nonce": changed("nonce", "0" * 32),
    "a later count": changed("count", 2**40),
    "no signature": changed("signature", b""),
    "no number": changed("count", "1"),
    "another run of the network": moved("run_id", 6),
    "another node": moved("dst_node_id", NODE + 1),
    "another kind": moved("message_type", "train.release"),
    "another value": spoilt("config", "round", 2),
    "another type of it": spoilt("config", "round", 1.0),
    "another text": spoilt("config", "name", "e"),
    "one more value": spoilt("m", "b", 1.5),
    "another array": spoilt("model", "t", Array("float32", (2,), "fedsw.mixed", b"y" * 40)),
    "another shape": spoilt("model", "t", Array("float32", (1, 2), "fedsw.mixed", b"x" * 40)),
    "a record less": lambda message: message.content.pop("m"),
    "a record more": lambda message: message.content.update({"more": ConfigRecord({"a": 1})}),
    "no origin": lambda message: message.content.pop(ORIGIN),
    "an origin of another type": lambda message: message.content.update({ORIGIN: MetricRecord({"count": 1})}),
}


@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_request_that_differs_in_anything_from_what_the_server_signed_is_refused(forgery, server, files):
    message, counts = server(), dict[str, int]()
    FORGERIES[forgery](message)
    with pytest.raises(NotFromServer, match="nothing of it was read, and nothing charged"):
        require_server(message, read_signing_key(files.signing_public), None, counts)
    assert not counts, "what was refused moves no count"


def test_a_request_that_came_before_is_refused(server, files):
    key, counts, first, second = read_signing_key(files.signing_public), dict[str, int](), server(), server()
    again = received(Message(metadata=second.metadata, content=RecordDict(dict(second.content))))  # type: ignore[call-overload]
    require_server(second, key, RUN, counts)
    for old in (again, first):
        with pytest.raises(NotFromServer, match="it came before"):
            require_server(old, key, RUN, counts)
    require_server(server(run=6), key, RUN, counts)  # in another run of the network, requests are counted anew


def test_a_request_of_another_run_than_the_greeted_one_is_refused(server, files):
    with pytest.raises(NotFromServer, match="another run than the one"):
        require_server(server(), read_signing_key(files.signing_public), "c" * 32, {})


def test_another_server_s_signature_is_refused(server, tmp_path):
    stranger = write_certificates(tmp_path / "other", ["localhost"])
    with pytest.raises(NotFromServer, match=r"not that of the server's key \(--server-key\)"):
        require_server(server(), read_signing_key(stranger.signing_public), None, {})


@pytest.mark.parametrize("key", [None, "given"])
def test_a_request_of_another_member_is_refused_whoever_signed_it(key, server, files):
    message = server()
    message.metadata.__dict__["_src_node_id"] = NODE + 1
    with pytest.raises(NotFromServer, match=f"from node {NODE + 1}, not from the server"):
        require_server(message, key and read_signing_key(files.signing_public), None, {})


def test_equal_requests_have_ids_that_nobody_can_guess(server):
    """All of a message is known to another member, but for 128 random bits."""
    messages = [server() for _ in range(20)]
    nonces = [str(message.content[ORIGIN]["nonce"]) for message in messages]
    assert len(set(nonces)) == 20 and all(re.fullmatch("[0-9a-f]{32}", nonce) for nonce in nonces)
    for message in messages[1:]:  # all else alike
        message.metadata.__dict__.update(messages[0].metadata.__dict__)
        message.content[ORIGIN]["count"], message.content[ORIGIN]["signature"] = 1, b""
    assert len({message.object_id for message in messages}) == 20
    grid = InProcessGrid(client_app, [{"partition-id": 0, "num-partitions": 1}])
    try:
        asked = [Message(RecordDict(), node, "query.hello") for node in grid.get_node_ids()]
        assert all(re.fullmatch("[0-9a-f]{32}", name) for name in grid.push_messages(asked))
    finally:
        grid.close()


def test_the_server_s_key_is_its_own_and_a_broken_one_stops_the_server(files, tmp_path, monkeypatch):
    assert files.signing.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="no public Ed25519 key"):
        read_signing_key(files.authority)
    with pytest.raises(FileNotFoundError, match=r"made by `fedsw certs`"):
        read_signing_key(tmp_path / "none")
    monkeypatch.setenv(SIGNING_KEY, str(files.key))
    grid: Any = Caught()
    with pytest.raises(ValueError, match="no Ed25519 key"):
        signing(grid, RUN)
    monkeypatch.delenv(SIGNING_KEY)
    assert signing(grid, RUN) is grid


def push(**changes: Any) -> PushMessagesRequest:
    """What node NODE brings: a reply of its own, but for the changes of its header."""
    inprocess.identify(5)
    request = Message(RecordDict(), NODE, "query.tell", ttl=60.0)
    request.metadata.__dict__["_message_id"] = "r" * 64
    envelope = Envelope(Message(RecordDict(), reply_to=request))
    for name, value in changes.items():
        setattr(envelope.header.metadata, name, value)
    return PushMessagesRequest(
        node=Node(node_id=NODE), messages_list=[envelope.header], message_object_trees=[envelope.tree]
    )


def test_a_node_brings_replies_of_its_own():
    assert superlink._own(push())


@pytest.mark.parametrize(
    "changes",
    [
        {"src_node_id": NODE + 1},
        {"src_node_id": 1},
        {"src_node_id": 1, "dst_node_id": NODE + 1, "reply_to_message_id": ""},
        {"reply_to_message_id": ""},
        {"dst_node_id": NODE + 1},
    ],
)
def test_the_superlink_takes_nothing_from_a_node_in_another_s_name(changes):
    with pytest.raises(HTTPException, match="may bring replies of its own, and nothing else"):
        superlink._own(push(**changes))


class Forger:
    """A grid over clients with keys, to whom a member sends requests of its own before every one of the server."""

    def __init__(self, carrier: InProcessGrid, forge: Callable[[Message], Message]) -> None:
        self.carrier, self.forge, self.forged = carrier, forge, list[Message]()
        self.refused = list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.carrier, name)

    def pull_messages(self, ids: Any) -> Any:
        return self.carrier.pull_messages(ids)

    def push_messages(self, messages: Any) -> Any:
        asked = list(messages)
        forged = [self.forge(each) for each in asked for _ in range(3)]
        for _ in self.carrier.push_messages(forged):
            self.forged.append(forged[0])
        return self.carrier.push_messages(asked)


def test_forged_requests_put_no_charge_into_a_ledger(files, tmp_path, monkeypatch):
    """Three for every request of the server, unsigned, spoilt or to another node: the others' run ends as it would."""
    monkeypatch.setenv(SIGNING_KEY, str(files.signing))
    experiment = small("privacy.trust=local-gradient", "privacy.epsilon=8.0", "data.records=1200", "training.rounds=2")
    key, kinds = read_signing_key(files.signing_public), iter(range(10**6))

    def forge(message: Message) -> Message:
        held = RecordDict(dict(message.content))
        forged = Message(held, message.metadata.dst_node_id, message.metadata.message_type, ttl=60.0)
        which = next(kinds) % 3
        if which == 0:
            del held[ORIGIN]
        elif which == 1:
            held["config"] = ConfigRecord({**held["config"], "attempt": 99})
        else:
            forged.metadata.__dict__["_dst_node_id"] = next(each for each in grid.get_node_ids())
            held[ORIGIN] = ConfigRecord({**held[ORIGIN], "count": 10**6})
        return forged

    configs = [{**config, SERVER_KEY: key} for config in node_configs(3, tmp_path / "clients")]
    grid: Any = Forger(InProcessGrid(client_app, configs), forge)
    with held_open(tmp_path / "clients"):
        try:
            summary = federate(grid, Job(experiment, tmp_path / "run"))
        finally:
            grid.carrier.close()
    assert summary["status"] == "completed" and len(grid.forged) >= 30
    for client in range(3):
        with Ledger.open(tmp_path / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
            assert [(entry.round, entry.attempt) for entry in ledger.entries()] == [(1, 0), (2, 0)]


def test_a_context_keeps_the_count_between_messages(server, files):
    """A request that was refused for what it asks counts as one that came."""
    context = Context(5, NODE, {SERVER_KEY: read_signing_key(files.signing_public)}, RecordDict(), {})
    message = server()
    again = received(Message(metadata=message.metadata, content=RecordDict(dict(message.content))))  # type: ignore[call-overload]
    assert "never greeted" in client_app(message, context).error.reason
    refused = client_app(again, context).error.reason
    assert refused.startswith(NotFromServer.__name__) and "it came before" in refused


def test_only_one_grid_carries_messages(files, monkeypatch):
    monkeypatch.setenv(SIGNING_KEY, str(files.signing))
    caught: Any = Caught()
    grid = signing(caught, RUN)
    assert isinstance(grid, SigningGrid) and grid.run.run_id == 5
    with pytest.raises(NotImplementedError):
        grid.send_and_receive([])


def test_a_signing_key_is_never_replaced(tmp_path: Path):
    write_certificates(tmp_path, ["localhost"])
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(FileExistsError):
        write_certificates(tmp_path, ["localhost"])
