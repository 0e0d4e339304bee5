"""One client sends garbage in every exchange of every trust model: it is lost, by name, and the others end the run."""

from __future__ import annotations

import random

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsw.experiment import Experiment
from fedsw.experiment.trust import trust_models
from fedsw.federation import messages, wire
from fedsw.runs.run_files import RunFile, read_lines
from tests.federation.local_runs import client_of, kind_of
from tests.federation.sketch_runs import sketched
from tests.federation.test_local_slices import FLOW, RELEASE, SLICES, experiment
from tests.federations import Saboteur, small

FEWER = ("federation.min_clients=2", "federation.timeout=5.0")
LOCAL = ("privacy.epsilon=8.0", "data.records=1200", "training.rounds=2", *FEWER)
RUNS: dict[str, Experiment] = {
    "central": small("training.rounds=3", *FEWER),
    "none": small("privacy.trust=none", "training.rounds=3", *FEWER),
    "no penalty": small("objective.alpha=0", "training.rounds=3", *FEWER),
    "distributed": small("privacy.trust=distributed", *LOCAL),
    "distributed, a sketch": sketched("privacy.trust=distributed", "local.failing=2", *FEWER),
    "local-gradient": small("privacy.trust=local-gradient", *LOCAL),
    "local-slices": experiment(SLICES, *FEWER),
    "flow": experiment(FLOW, *FEWER),
    "flow of one release": experiment(FLOW, "local.algorithm=flow-one-release", *FEWER),
    "local-release": experiment(RELEASE, *FEWER),
    "moments first": small("privacy.moments=0.2", "training.rounds=2", *FEWER),
    "sketch": sketched(*FEWER),
    "sketch-local": sketched("privacy.trust=sketch-local", *FEWER),
}


def garbage(seed: int, message: Message) -> object:
    """What no client of this run would send; of every kind in turn."""
    dice = random.Random(seed)
    blob = Array("float32", (3,), wire.ARRAY_FORMAT, dice.randbytes(44))
    records = {
        "arrays": dice.choice([ArrayRecord({"noised": blob}), ConfigRecord({"a": "b"}), ArrayRecord()]),
        "metrics": dice.choice([MetricRecord({"epsilon": float("nan")}), ConfigRecord({"epsilon": "much"})]),
        "0/arrays": ArrayRecord({"steps": Array("int64", (2**62, 2), wire.ARRAY_FORMAT, b"")}),
    }
    chosen = dice.sample(sorted(records), dice.randint(0, 3))
    content = RecordDict({name: records[name] for name in chosen})
    return dice.choice([Message(content, reply_to=message)] * 3 + [None, "no message", content])


def test_every_trust_model_is_here():
    assert {name for name, each in RUNS.items() if name == each.privacy.trust} == set(trust_models())


@pytest.mark.parametrize("name", list(RUNS))
def test_a_client_that_sends_garbage_is_lost_by_name_and_the_others_go_on(name, federation):
    sent = []

    class Spoiler(Saboteur):
        def __call__(self, message, context):
            if client_of(context) != 1 or kind_of(message) == messages.HELLO.kind:
                return super().__call__(message, context)
            sent.append(garbage(len(sent), message))
            return sent[-1]

    summary = federation.run(RUNS[name], app=Spoiler(), directory=federation.folder / "run")
    assert summary["status"] == "completed" and sent
    lost = [each for each in read_lines(federation.folder / "run" / RunFile.LOG) if each["event"] == "client lost"]
    assert {each["client"] for each in lost} == {1}


@pytest.mark.parametrize("name", [name for name, each in RUNS.items() if name == each.privacy.trust])
def test_a_greeting_that_is_answered_with_garbage_costs_its_sender_alone(name, federation, caplog):
    """It is planned without it; what is no message at all is a client that refuses (`test_replies`)."""
    sent = []

    class Spoiler(Saboteur):
        def __call__(self, message, context):
            if client_of(context) != 1 or kind_of(message) not in (messages.HELLO.kind, messages.SIZES.kind):
                return super().__call__(message, context)
            tried = (garbage(seed, message) for seed in range(len(sent) + len(name), 1000))
            sent.append(next(each for each in tried if isinstance(each, Message)))
            return sent[-1]

    summary = federation.run(RUNS[name], app=Spoiler(), directory=federation.folder / "run")
    assert sent and (summary["status"], summary["clients"]) == ("completed", 2)
    assert "greeting is unreadable" in caplog.text and "the run begins without it" in caplog.text
