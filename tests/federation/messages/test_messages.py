"""Nothing but what the trust model's table allows travels: every array, metric and setting of every message."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from fedsw._tools.settings import FederationError
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.trust import trust_model
from fedsw.federation import wire
from fedsw.federation.messages import EXCHANGES, SLICES, trusts_of
from fedsw.federation.messages.codec import Malformed, Seen, fields_of
from tests.federation.messages.inspector import LEAVES, Inspector, exchanges_of
from tests.federation.node.runs import NOISE, RUNS, SMALLEST, Watched, watched_run
from tests.federations import SMALL, Federation, digits_for_images
from tests.laws.runs.test_matching_runs import ADAPTATION

THROUGH_MODEL = ("privacy.trust=local-slices", NOISE, "training.rounds=1", "federation.clients=2")
"""With `ADAPTATION`, the only local run in which features pass through the model; it needs files of images."""


def watched(tmp_path, chosen: Experiment, leak=None) -> Inspector:
    inspector = Inspector(chosen)
    with contextlib.suppress(*([FederationError] if leak else [])):  # the server refuses what leaks
        Federation(tmp_path).run(chosen, app=Watched(inspector, leak=leak))
    return inspector


@pytest.mark.parametrize("name", RUNS)
def test_only_what_the_table_allows_travels(tmp_path, name):
    seen = watched_run(name, tmp_path)
    assert seen.inspector.faults == []
    assert seen.inspector.kinds == set(exchanges_of(seen.experiment))


def test_every_field_of_the_table_travels_in_some_run(tmp_path, monkeypatch):
    """A table that says more than what travels would hide what is new in it."""
    runs = [watched_run(name, tmp_path / name) for name in RUNS]
    digits_for_images(monkeypatch)
    through = watched(tmp_path / "through", parse_experiment(ADAPTATION, THROUGH_MODEL))
    assert through.faults == [] and (SLICES.down, "theta") in through.seen
    seen = through.seen.union(*(each.inspector.seen for each in runs))
    kinds = {kind for exchange in EXCHANGES for kind in (exchange.down, exchange.up)}
    assert {(kind, attribute) for kind in kinds for attribute in fields_of(kind)} == seen


def test_another_process_finds_every_exchange_of_the_table_as_it_is_here():
    """Ray sends the handlers of exchanges to its workers, which look a message's up among them."""
    for exchange in EXCHANGES:
        assert pickle.loads(pickle.dumps(exchange)) == exchange


def test_no_field_leaves_a_client_that_is_not_written_twice():
    found = {exchange.kind: {field.name for field in fields_of(exchange.up).values()} for exchange in EXCHANGES}
    assert found == LEAVES


def test_no_number_of_records_that_a_client_says_is_called_public_for_all_runs():
    """With additions and removals it is what is protected: only the server and this client may see it."""
    counted = [
        (exchange.kind, field)
        for exchange in EXCHANGES
        for field in fields_of(exchange.up).values()
        if field.seen is Seen.COUNTED
    ]
    own = {("query.hello", "sizes"), ("query.hello", "kept"), ("query.sizes", "by group")}
    assert {(kind, field.name) for kind, field in counted} == own
    for _, field in counted:
        with pytest.raises(Malformed) as refusal:
            field.refuse([1234], "something else")
        assert "1234" not in str(refusal.value) and refusal.value.value is None


def test_under_a_local_trust_model_nothing_secret_travels_in_either_direction():
    secret = set()
    for exchange in EXCHANGES:
        for kind in (exchange.down, exchange.up):
            names = {field.name for field in fields_of(kind).values() if field.seen is Seen.SECRET}
            assert not (names and any(trust_model(trust).hides_records() for trust in trusts_of(exchange))), (
                kind,
                names,
            )
            secret |= names
    assert secret == {"counts", "outputs", "cotangents", "contribution", "training-loss", "num-examples", "steps"}


def _records(reply) -> None:
    reply.content["arrays"]["features"] = Array(*wire.encode(torch.zeros(3, 16)))


def _more_records(reply) -> None:
    reply.content["labels"] = ArrayRecord({"labels": Array(*wire.encode(torch.zeros(3)))})


def _metric(reply) -> None:
    reply.content["metrics"] = MetricRecord({"accuracy": 0.5})


def _setting(reply) -> None:
    reply.content["config"] = ConfigRecord({"ids": [1, 2, 3]})


@pytest.mark.parametrize(
    ("leak", "reason"),
    [
        (_records, "arrays['features'] is not in the table"),
        (_more_records, "labels['labels'] is not in the table"),
        (_metric, "metrics['accuracy'] is not in the table"),
        (_setting, "config['ids'] is not in the table"),
    ],
)
def test_anything_else_is_noticed(tmp_path, leak, reason):
    chosen = parse_experiment(SMALL, (*SMALLEST, NOISE, "training.rounds=1"))
    assert any(reason in fault for fault in watched(tmp_path, chosen, leak).faults)


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
    assert seen and any("arrays['outputs'] is ('float32', (" in fault for fault in inspector.faults)
