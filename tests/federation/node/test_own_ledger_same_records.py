"""Laws of a client that comes back to a run: with the records that it has answered with, or it says that it is not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from fedsw.data import Records
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.trust import trust_models
from fedsw.federation import flower, messages
from fedsw.federation.client import app as client_app
from fedsw.federation.engines import inprocess
from fedsw.federation.messages import Terms
from fedsw.federation.messages.table import Greeting
from fedsw.federation.node import replies
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.own_ledger import KEY_FILE, Answered
from fedsw.federation.node.simulated import ANY_MODULE, ONE_PERSON
from fedsw.federation.server.federation import Job, federate
from fedsw.runs.client_status import read_client_status, state_of
from fedsw.runs.roll_call import read_roll
from tests.federation.node.runs import RUNS, SMALLEST
from tests.federations import small

RUN = "5a3e" * 8
WORDS = "this file is not the one that this run began with"
_PROCESSES = itertools.count(70_000)


def _rows(change: Callable[[Records], torch.Tensor]) -> Callable[[Held], Held]:
    return lambda held: Held(held.records.take(rows := change(held.records)), held.owner[: len(rows)], held.clients)


def _other_values(held: Held) -> Held:
    """Other persons, as many in every group."""
    records = held.records
    features = records.features.clone()
    features[0, 0] = features[0, 0] / 2 + 0.1
    return Held(Records(features, records.sensitive, records.target, records.ids), held.owner, held.clients)


OTHERS = {
    "one value": _other_values,
    "a row fewer": _rows(lambda records: torch.arange(1, len(records))),
    "another order": _rows(lambda records: torch.arange(len(records)).flip(0)),
}


@pytest.fixture(autouse=True)
def started_by_one_person(monkeypatch):
    monkeypatch.setenv(ONE_PERSON, "1")


def experiment_of(trust: str) -> Experiment:
    raw, overrides = next(
        RUNS[name] for name in RUNS if parse_experiment(RUNS[name][0], RUNS[name][1]).privacy.trust == trust
    )
    return parse_experiment(raw, (*SMALLEST, *overrides))


class Client:
    """A real node, started again for every greeting; `held` changes what it reads."""

    def __init__(self, folder: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes = experiment.federation.clients
        state = {"state-dir": str(folder), "modules": ANY_MODULE}
        self.config = {"partition-id": 0, "num-partitions": nodes, **state}
        self.experiment, self.folder, self.reply = experiment, folder, RecordDict()
        read = replies.held_records
        self.change: Callable[[Held], Held] = lambda held: held
        monkeypatch.setattr(replies, "held_records", lambda *about: self.change(read(*about)))

    def greet(self, run: str = RUN) -> str:
        """Why it refuses; empty if it takes part."""
        process = next(_PROCESSES)
        inprocess.identify(process)
        greeting = Greeting(self.experiment.model_dump_json(exclude={"metrics"}), run)
        message = Message(messages.encode(greeting, Terms()), 1000, messages.HELLO.kind, ttl=60.0)
        flower.number(message, "m")
        reply = client_app(message, Context(process, 1000, self.config, RecordDict(), {}))
        self.reply = reply.content if reply.has_content() else RecordDict()
        return "" if reply.has_content() else str(reply.error.reason)

    def answer(self, run: str = RUN) -> None:
        Answered.of(self.config, 0, run, {}).note(messages.SUM, 1, 0)


@pytest.mark.parametrize("trust", list(trust_models()))
def test_a_client_comes_back_with_the_records_that_it_answered_with_or_says_that_it_does_not(
    trust, tmp_path, monkeypatch
):
    client = Client(tmp_path, experiment_of(trust), monkeypatch)
    assert client.greet() == ""
    client.answer()
    assert client.greet() == ""
    for name, other in OTHERS.items():
        client.change = other
        assert WORDS in client.greet(), name
        (part,) = read_client_status(tmp_path).runs
        assert state_of(part) == "greeted, not taken" and WORDS in part.refused
    client.change = lambda held: held
    assert client.greet() == ""
    (part,) = read_client_status(tmp_path).runs
    assert state_of(part) == "greeted" and part.refused == ""


def test_before_its_first_answer_a_client_may_mend_its_records(tmp_path, monkeypatch):
    client = Client(tmp_path, experiment_of("central"), monkeypatch)
    for change in (lambda held: held, *OTHERS.values()):
        client.change = change
        assert client.greet() == ""
    client.answer()
    assert client.greet() == ""
    assert client.greet("ab12" * 8) == "", "another run may have other records"
    client.change = OTHERS["one value"]
    assert WORDS in client.greet() and client.greet("ab12" * 8) == ""


def test_a_kept_record_that_has_changed_is_told_too(tmp_path, monkeypatch):
    raw, overrides = RUNS["central, kept records released"]
    client = Client(tmp_path, parse_experiment(raw, (*SMALLEST, *overrides)), monkeypatch)
    assert client.greet() == ""
    client.answer()
    monkeypatch.setattr(
        replies, "held_out_records", lambda *about, read=replies.held_out_records: _other_values(read(*about))
    )
    assert WORDS in client.greet()


def test_neither_key_nor_digest_leaves_and_nobody_without_the_key_makes_the_digest(tmp_path, monkeypatch):
    digests = []
    for place in ("one", "other"):
        client = Client(tmp_path / place, experiment_of("central"), monkeypatch)
        client.change = lambda held: held
        assert client.greet() == ""
        (path,) = (tmp_path / place).glob("records-*.digest")
        secrets = [path.read_bytes(), (tmp_path / place / KEY_FILE).read_bytes()]
        digests += secrets
        sent = recorddict_to_proto(client.reply).SerializeToString()
        client.answer()
        client.change = OTHERS["one value"]
        refused = client.greet()
        for secret in secrets:
            assert len(secret) == 32 and secret not in sent and secret.hex() not in sent.decode("latin-1") + refused
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / place).glob("records*"))
        monkeypatch.undo()
        monkeypatch.setenv(ONE_PERSON, "1")
    assert len(set(digests)) == 4, "the same records under another key have another digest"


def test_a_disk_that_takes_no_digest_refuses_the_greeting(tmp_path, monkeypatch):
    client = Client(tmp_path / "state", experiment_of("central"), monkeypatch)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / KEY_FILE).mkdir()
    assert "its operator must make its state folder writable" in client.greet()


def test_a_run_goes_on_without_a_client_whose_file_was_replaced_and_both_sides_say_why(tmp_path, monkeypatch):
    """It is greeted again and again: a log that said so each time would hide all else."""
    made, read, gone = inprocess.node_configs(3, tmp_path / "unused"), replies.held_records, []
    configs = [
        {**config, "state-dir": str(tmp_path / f"state{number}"), "modules": ANY_MODULE}
        for number, config in enumerate(made)
    ]

    def held(task, config):
        records = read(task, config)
        return _other_values(records) if gone and config["partition-id"] == 1 else records

    def app(message, context):
        third = message.metadata.message_type == "train.outputs" and message.content["config"]["round"] == 3
        if third and context.node_config["partition-id"] == 1 and not gone:
            gone.append(True)
            replies._nodes.clear()  # its process is another one now
            raise OSError("its file was replaced")
        return client_app(message, context)

    monkeypatch.setattr(replies, "held_records", held)
    grid = inprocess.InProcessGrid(app, configs)
    try:
        summary = federate(
            grid, Job(small("federation.min_clients=2", "training.rounds=8"), tmp_path / "run", "deployed")
        )
    finally:
        grid.close()
    assert summary["status"] == "completed"
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    states = [line["state"] for line in lines if line["event"] == "roll call" and line["client"] == 1]
    assert states == ["connected", "greeted", "away", "not taken"]
    assert WORDS in read_roll(tmp_path / "run")[1].why
    (part,) = read_client_status(tmp_path / "state1").runs
    assert state_of(part) == "greeted, not taken" and part.answered == 2 and WORDS in part.refused
    (other,) = read_client_status(tmp_path / "state0").runs
    assert state_of(other) == "over"
