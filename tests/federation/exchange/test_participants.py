"""Laws of who may take part: every client once, and before anything is spent."""

from __future__ import annotations

import json
import time

import pytest

from fedsw._tools.installed import code_digest
from fedsw._tools.settings import FederationError
from fedsw.federation import NODE_KEYS
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.exchange import roll as roll_module
from fedsw.federation.node.own_ledger import held_open
from fedsw.federation.server.federation import Job, federate
from fedsw.runs.roll_call import read_roll
from fedsw.runs.telemetry import FIELDS
from tests.federations import Saboteur, small


def test_two_nodes_with_one_partition_are_refused_before_anything_is_spent(tmp_path):
    """A record of theirs would be in the union twice, and move every sum twice as far."""
    configs = node_configs(2, tmp_path / "clients")
    grid = InProcessGrid(client_app, [{**config, "partition-id": 0} for config in configs])
    with held_open(tmp_path / "clients"), pytest.raises(FederationError, match=r"same partition-id: clients \[0\]"):
        try:
            federate(grid, Job(small("federation.clients=2"), tmp_path / "run"))
        finally:
            grid.close()
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


class Hospitals:
    """Clients of which some refuse at the greeting, in words of their own, and some say nothing."""

    def __init__(self, refusing: dict[int, str], silent: tuple[int, ...] = ()) -> None:
        self.refusing, self.silent = refusing, silent

    def __call__(self, message, context):
        client = context.node_config["partition-id"]
        if message.metadata.message_type in ("query.hello", "query.sizes"):
            if client in self.refusing:
                raise ValueError(self.refusing[client])
            if client in self.silent:
                time.sleep(1.5)
        return client_app(message, context)


TWO = {0: "not with these columns", 2: "not without noise"}
PRESET = ("training.preset=auto", "privacy.moments=0")


@pytest.mark.parametrize("settings", [(), PRESET], ids=["greeting", "sizes"])
def test_all_refusals_are_named_at_once_and_so_is_who_says_nothing(federation, settings):
    experiment = small("federation.clients=4", "federation.timeout=1.0", *settings)
    with pytest.raises(FederationError) as refused:
        federation.run(experiment, app=Hospitals(TWO, silent=(1,)))
    said = str(refused.value)
    for client, why in TWO.items():
        assert f"client {client} (node {1000 + client}) could not join: ValueError: {why}" in said
    assert "(node 1001) could not join: no reply within 1 s" in said
    assert "1 of 4 did not refuse" in said and "federation.refusals" in said
    assert not (federation.folder / "run1" / "ledger.sqlite").exists()


@pytest.mark.parametrize("settings", [(), PRESET], ids=["greeting", "sizes"])
def test_a_refusal_counts_as_lost_where_a_setting_says_so_and_enough_are_left(federation, settings, caplog):
    lost = ("federation.clients=4", "federation.refusals=lost", "privacy.epsilon=2.0", *settings)
    summary = federation.run(small(*lost, "federation.min_clients=2"), app=Hospitals(TWO))
    assert (summary["status"], summary["clients"]) == ("completed", 2)
    for client, why in TWO.items():
        assert (
            f"client {client} (node {1000 + client}) could not join: ValueError: {why}; the run begins" in caplog.text
        )
    for least, words in (((), "^client 0 "), (("federation.min_clients=3",), "^2 of 4 clients are left, fewer than")):
        with pytest.raises(FederationError, match=rf"{words}.*{TWO[0]}.*{TWO[2]}"):
            federation.run(small(*lost, *least), app=Hospitals(TWO))


def test_a_client_is_named_by_its_key_file_and_so_is_one_that_never_comes(federation, tmp_path, monkeypatch):
    keys = tmp_path / "node-keys.json"
    keys.write_text('{"1000": "north.pub", "1001": "south.pub", "7": "west.pub"}')
    monkeypatch.setenv(NODE_KEYS, str(keys))
    with pytest.raises(FederationError, match=r"client 1 \(node 1001, key south\.pub\) could not join: ValueError: no"):
        federation.run(small("federation.clients=2"), app=Hospitals({1: "no"}), engine="deployed")
    roll = {entry.client: entry for entry in read_roll(federation.folder / "run1")}
    assert [roll[client].state for client in (0, 1)] == ["connected", "refused"]
    assert roll[1].why == "ValueError: no" and roll[1].code == code_digest() and abs(roll[1].clock) < 5
    configs = node_configs(2, tmp_path / "clients")
    grid = InProcessGrid(client_app, configs)
    with pytest.raises(FederationError, match=r"2 of 3 clients are online.*\(not there: west\.pub\)"):
        try:
            federate(grid, Job(small("federation.timeout=0.3"), tmp_path / "few", "served"))
        finally:
            grid.close()


def test_the_log_and_the_run_s_folder_tell_who_is_there_and_no_client_s_words_are_logged(federation):
    with pytest.raises(FederationError):
        federation.run(small("federation.clients=2"), app=Hospitals({1: "row 7 is forty-one"}), engine="deployed")
    text = (federation.folder / "run1" / "log.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {(line["client"], line["state"]) for line in lines if line["software"] == code_digest()} == {
        (0, "connected"),
        (1, "connected"),
        (1, "refused"),
    }
    assert all(set(line) <= FIELDS | {"time", "level", "event"} for line in lines) and "forty" not in text


def test_a_simulation_tells_nobody_who_is_there(federation):
    federation.run(small())
    assert not (federation.folder / "run1" / "roll.json").exists()


def test_a_client_that_was_away_and_is_back_is_told_once_as_each(federation):
    gone = []

    def leave(message, context):
        if message.metadata.message_type == "train.outputs" and context.node_config["partition-id"] == 1 and not gone:
            gone.append(True)
            raise OSError("gone")

    settings = ("federation.min_clients=2", "privacy.epsilon=2.0", "training.rounds=6")
    federation.run(small(*settings), app=Saboteur(leave), engine="deployed")
    lines = [json.loads(line) for line in (federation.folder / "run1" / "log.jsonl").read_text().splitlines()]
    states = [line["state"] for line in lines if line["event"] == "roll call" and line["client"] == 1]
    assert states == ["connected", "greeted", "away", "back"]
    assert read_roll(federation.folder / "run1")[1].state == "back"


def test_a_node_that_says_nothing_of_itself_is_waited_for_once_and_may_take_part(federation, monkeypatch):
    """Its clients' greeting decides; a fedsw without a roll call would answer with an error."""
    monkeypatch.setattr(roll_module, "_PATIENCE_SECONDS", 0.5)
    called = []

    def mute(message, context):
        if message.metadata.message_type == "query.roll" and context.node_config["partition-id"] == 1:
            called.append(message)
            raise LookupError("no such query")

    assert federation.run(small(), app=Saboteur(mute), engine="deployed")["status"] == "completed"
    assert len(called) == 1
    entries = {entry.node: entry for entry in read_roll(federation.folder / "run1")}
    assert (entries[1001].client, entries[1001].code, entries[1001].state) == (None, "", "greeted")

    def hang(message, context):
        if message.metadata.message_type == "query.roll" and context.node_config["partition-id"] == 1:
            time.sleep(2.0)

    began = small("federation.min_clients=2", "training.preset=auto", "privacy.moments=0")
    assert federation.run(began, app=Saboteur(hang), engine="deployed")["status"] == "completed"
