"""Nothing but what the trust model's table allows travels: every array, metric and setting of every message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import wire
from fedsw.federation.client.app import app as client_app
from tests.clients.messages import TABLE, Inspector
from tests.federations import SMALL, Federation

GENERATION: dict[str, Any] = {
    **SMALL,
    "data": {"source": "gaussians", "records": 300, "test_records": 100},
    "model": {"kind": "generator", "latent": 2, "hidden": [4]},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "slicing": {"directions": 4},
}
SMALLEST = ("training.rounds=2", "data.records=300", "federation.clients=2")
NOISE = "privacy.noise_multiplier=2"
RUNS = {
    "central": (SMALL, ("privacy.trust=central", NOISE)),
    "central, seeded": (SMALL, ("privacy.trust=central", NOISE, "seed=3")),
    "central, unsafe metrics": (SMALL, ("privacy.trust=central", NOISE, "unsafe_metrics=true")),
    "central, equality of odds": (SMALL, ("privacy.trust=central", NOISE, "objective.penalty=equality-of-odds")),
    "none": (SMALL, ("privacy.trust=none",)),
    "local-gradient": (SMALL, ("privacy.trust=local-gradient", NOISE)),
    "local-slices": (GENERATION, ("privacy.trust=local-slices", NOISE)),
    "local-slices, own directions": (GENERATION, ("privacy.trust=local-slices", NOISE, "slicing.scheme=iid")),
    "local-release": (GENERATION, ("privacy.trust=local-release", "privacy.epsilon=10")),
}


class Watched:
    """The ClientApp with an inspector at its door; `leak` may spoil what leaves."""

    def __init__(self, inspector: Inspector, leak=None) -> None:
        self._inspector, self._leak = inspector, leak

    def __call__(self, message, context):
        self._inspector.request(message, context)
        reply = client_app(message, context)
        if self._leak is not None and message.metadata.message_type != "query.hello":
            self._leak(reply)
        self._inspector.reply(message, reply, context)
        return reply


def watched(tmp_path, chosen: Experiment, leak=None) -> Inspector:
    inspector = Inspector(chosen)
    Federation(tmp_path).run(chosen, app=Watched(inspector, leak))
    return inspector


@pytest.mark.parametrize("name", RUNS)
def test_only_what_the_table_allows_travels(tmp_path, name):
    raw, overrides = RUNS[name]
    chosen = parse_experiment(raw, (*SMALLEST, *overrides))
    inspector = watched(tmp_path, chosen)
    assert inspector.faults == []
    assert inspector.kinds == set(TABLE[chosen.privacy.trust])


def _records(reply) -> None:
    reply.content["arrays"]["features"] = Array(*wire.encode(torch.zeros(3, 16)))


def _more_records(reply) -> None:
    reply.content["labels"] = ArrayRecord({"labels": Array(*wire.encode(torch.zeros(3)))})


def _metric(reply) -> None:
    reply.content["metrics"] = MetricRecord({"accuracy": 0.5})


def _setting(reply) -> None:
    reply.content["config"] = ConfigRecord({"ids": [1, 2, 3]})


@pytest.mark.parametrize(
    ("leak", "told"),
    [
        (_records, "arrays['features'] is not in the table"),
        (_more_records, "labels['labels'] is not in the table"),
        (_metric, "metrics['accuracy'] is not in the table"),
        (_setting, "config['ids'] is not in the table"),
    ],
)
def test_anything_else_is_noticed(tmp_path, leak, told):
    chosen = parse_experiment(SMALL, (*SMALLEST, NOISE, "training.rounds=1"))
    assert any(told in fault for fault in watched(tmp_path, chosen, leak).faults)


def test_an_array_of_another_size_is_noticed(tmp_path):
    """One row more than the batch has would be a record more than the guarantee counts."""
    seen: list[Any] = []

    class Longer(Inspector):
        def reply(self, message, reply, context):
            if message.metadata.message_type == "train.outputs":
                seen.append(reply.content["arrays"].pop("outputs"))
                longer = torch.zeros(seen[-1].shape[0] + 1, 1)
                reply.content["arrays"]["outputs"] = Array(*wire.encode(longer))
            super().reply(message, reply, context)
            if message.metadata.message_type == "train.outputs":
                reply.content["arrays"]["outputs"] = seen[-1]

    chosen = parse_experiment(SMALL, (*SMALLEST, NOISE, "training.rounds=1"))
    inspector = Longer(chosen)
    Federation(tmp_path).run(chosen, app=Watched(inspector))
    assert seen and any("arrays['outputs'] has shape" in fault for fault in inspector.faults)
