"""An admitted member against the others, on real processes: nothing that it sends charges, answers or ends another."""

from __future__ import annotations

import importlib
import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node as NodeProto

from fedsw._tools.files import private_folder
from fedsw.federation import flower, messages
from fedsw.federation.deploy import executor
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.deploy.processes import Processes
from fedsw.federation.engines.deployed import LocalFederation, follow, node_name
from fedsw.federation.node.simulated import ONE_PERSON
from fedsw.federation.origin import ORIGIN
from fedsw.privacy.accounting import Ledger
from fedsw.runs.directory import RunDirectory
from fedsw.runs.observer import NoObserver
from fedsw.runs.run_files import RunFile, read_json, read_lines
from tests.federation.deploy.envelopes import KINDS, Envelope, broken
from tests.federations import small

HONEST, HOSTILE, ROUNDS = (0, 1, 2), 3, 5


class Member:
    """A node with a key of its own that answers greetings as it should, and everything else with attacks."""

    def __init__(self, federation: LocalFederation, place: Path, state: Path) -> None:
        self._place, self._others = place, list[int]()
        self.settings = NodeSettings(
            superlink=f"127.0.0.1:{federation._port}",
            authority=place / "certificates" / "ca.crt",
            key=place / "keys" / f"client{HOSTILE}",
            client=HOSTILE,
            clients=len(HONEST) + 1,
            state_dir=private_folder(state),
            modules=None,
        )
        self.sent, self._over = Counter[str](), threading.Event()
        self.failure: Exception | None = None
        self.online = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self, others: list[int]) -> None:
        self._others = others
        self._thread.start()
        assert self.online.wait(120), self.failure

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)

    def _guarded(self) -> None:
        try:
            self._serve()
        except Exception as fault:
            self.failure = fault

    def _serve(self) -> None:
        connection: Any = importlib.import_module("flwr.supernode.fleet_http_connection")
        enter, clients = connection.FleetHttpClient.__enter__, list[Any]()
        key: Any = load_ssh_private_key(self.settings.key.read_bytes(), None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                connection.FleetHttpClient, "__enter__", lambda client: (clients.append(client), enter(client))[1]
            )
            opened = connection.http_request_response(
                self.settings.superlink, False, str(self.settings.authority), (key, key.public_key())
            )
            with opened as (own, _, _, get_run, get_fab, *_):
                self._client, self._own = clients[-1], own
                config = dict(self.settings.node_config)
                node = executor.NodeLoop(self._client, own, config, get_run, get_fab, executor.Worker())
                self.online.set()
                try:
                    while not self._over.is_set():
                        if (message := node._take()) is None:
                            continue
                        if message.metadata.message_type == messages.HELLO.kind:
                            node._answer(message)
                        else:
                            self._attack(message)
                finally:
                    node.close()

    def _attack(self, message: Message) -> None:
        """Ten messages that are nobody's, and an answer that does not decode."""
        number = self.sent.total()
        for other in self._others:
            self._push("forged request", self._forged(message, SUPERLINK_NODE_ID, other, signed=False))
            self._push("cross-posted request", self._forged(message, SUPERLINK_NODE_ID, other, signed=True))
            self._push(
                "reply as another", self._forged(message, other, SUPERLINK_NODE_ID, to=message.metadata.message_id)
            )
        self._push("replayed request", self._forged(message, SUPERLINK_NODE_ID, self._own, signed=True))
        self._push("guessed id", self._forged(message, self._own, SUPERLINK_NODE_ID, to=f"{number:064x}"), lenient=True)
        self._post("taken as another", "/v1/fleet/take", PullMessagesRequest(node=NodeProto(node_id=self._others[0])))
        self._count("garbage", lambda: flower.call(self._client, "/v1/fleet/give", [b"\xff" * 50, b"\x00"]))
        kind = KINDS[number % len(KINDS)]
        reply = Message(RecordDict({"metrics": ConfigRecord({"epsilon": "much"})}), reply_to=message)
        self._push("malformed reply", broken(kind, reply), lenient=True)

    def _forged(self, message: Message, source: int, to_node: int, *, signed: bool = False, to: str = "") -> Envelope:
        content = RecordDict({name: record for name, record in message.content.items() if signed or name != ORIGIN})
        if to:
            content = RecordDict({"metrics": ConfigRecord({"epsilon": 0.0})})
        metadata = type(message.metadata)(**{**_fields(message.metadata), "reply_to_message_id": to, "message_id": ""})
        metadata.__dict__.update({"_src_node_id": source, "_dst_node_id": to_node})
        return Envelope(make_message(metadata, content=content))

    def _push(self, what: str, envelope: Envelope, *, lenient: bool = False) -> None:
        """By the warm endpoint and by Flower's own; `lenient` where the SuperLink may take what nobody will read."""
        push = PushMessagesRequest(
            node=NodeProto(node_id=self._own),
            messages_list=[envelope.header],
            message_object_trees=[envelope.tree],
            clientapp_runtime_list=[0.1],
        )
        parts = [push.SerializeToString(), *envelope.objects]
        self._count(what, lambda: flower.call(self._client, "/v1/fleet/give", parts), lenient=lenient)
        if not lenient:
            self._count(what, lambda: self._client.PushMessages(push))

    def _post(self, what: str, path: str, header: Any) -> None:
        self._count(what, lambda: flower.call(self._client, path, [header.SerializeToString()]))

    def _count(self, what: str, send: Any, *, lenient: bool = False) -> None:
        try:
            send()
        except httpx.HTTPStatusError as refused:
            assert refused.response.status_code in (400, 401, 403), (what, refused)
        else:
            assert lenient, f"the SuperLink took a {what}"
        self.sent[what] += 1


def _fields(metadata: Any) -> dict[str, Any]:
    names = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at")
    return {name: getattr(metadata, name) for name in (*names, "ttl", "message_type")}


@pytest.mark.slow
def test_forged_replayed_cross_posted_and_malformed_messages_of_a_member_are_survived_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Over a hundred of them: the others' ledgers hold their own charges, and the run ends as without them."""
    monkeypatch.setenv(ONE_PERSON, "1")  # this process is a node of the federation, too
    experiment = small(
        "privacy.trust=local-gradient",
        "privacy.epsilon=8.0",
        "data.records=1200",
        f"training.rounds={ROUNDS}",
        f"federation.clients={len(HONEST) + 1}",
        f"federation.min_clients={len(HONEST)}",
        "federation.timeout=40.0",
    )
    directory, place = tmp_path / "run", tmp_path / "run" / "deployment"
    directory.mkdir()
    RunDirectory(directory).write_config(experiment, "deployed")
    with Processes(private_folder(private_folder(place) / "logs")) as processes:
        federation = LocalFederation(processes, place, directory / "nodes", experiment)
        member = Member(federation, place, directory / "nodes" / str(HOSTILE))
        link = federation.start_link()
        for client in HONEST:
            federation.start_node(client)
        federation.wait_until_online(HONEST)
        said = [processes.said(node_name(client), 2**20) for client in HONEST]
        member.start([int(found) for text in said for found in re.findall(r"SuperNode ID: (\d+)", text)])
        try:
            follow(link, directory, experiment, NoObserver(), resume=False)
        finally:
            member.end()
        assert not [client for client in HONEST if processes.ended(node_name(client))], "nobody's node ended"
    assert member.failure is None
    assert member.sent.total() >= 30 and len(member.sent) == 7 + 1, json.dumps(member.sent)
    summary: Any = read_json(directory / RunFile.SUMMARY)
    assert (summary["status"], summary["released_rounds"]) == ("completed", ROUNDS)
    lost = [each["client"] for each in read_lines(directory / RunFile.LOG) if each["event"] == "client lost"]
    assert set(lost) == {HOSTILE}, "it is lost, by name, and nobody else"
    for client in HONEST:
        with Ledger.open(directory / "nodes" / str(client) / f"client-{client}.sqlite", read_only=True) as ledger:
            assert [(entry.round, entry.attempt) for entry in ledger.entries()] == [
                (r, 0) for r in range(1, ROUNDS + 1)
            ]
            spent = ledger.epsilon()
        assert summary["epsilon_spent_by_client"][str(client)] == pytest.approx(spent)
