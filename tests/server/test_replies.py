"""Laws of what clients send: whatever a reply holds, it is what was asked for or its sender is lost, never the run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw.errors import FederationError
from fedsw.federation import wire
from fedsw.federation.exchange import cohort, replies
from tests.federations import Saboteur, array, numbers, small

LOST = "federation.min_clients=2"
LOCAL = (LOST, "privacy.trust=local-gradient", "privacy.epsilon=8.0", "data.records=1200", "training.rounds=2")
VALUES = np.ones((2, 3))


def arrays(**values) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({name: array(np.asarray(value)) for name, value in values.items()})})


def metrics(**values) -> RecordDict:
    return RecordDict({"metrics": MetricRecord(values)})


@pytest.mark.parametrize(
    "reply",
    [
        RecordDict(),
        RecordDict({"arrays": ConfigRecord({"noised": 3})}),
        RecordDict({"arrays": MetricRecord({"noised": 3})}),
        arrays(other=VALUES),
        arrays(noised=VALUES[:1]),
        arrays(noised=VALUES.astype(np.int64)),
        arrays(noised=VALUES.astype(bool)),
        RecordDict({"arrays": ArrayRecord({"noised": Array("float64", (2, 3), wire.ARRAY_FORMAT, b"")})}),
    ],
)
def test_an_array_that_is_not_there_or_another_one_is_a_value_error(reply):
    assert replies.array_of(arrays(noised=VALUES), "noised", (2, None)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"noised|expected"):
        replies.array_of(reply, "noised", (2, 3))


@pytest.mark.parametrize(
    "reply",
    [RecordDict(), arrays(sigma=VALUES), RecordDict({"metrics": ConfigRecord({"sigma": "1"})}), metrics(sigma=[1.0])]
    + [metrics(sigma=value) for value in (0.0, -1.0, math.nan, math.inf, 1e200, 1e-200, 10**400)],
)
def test_a_deviation_that_no_noise_has_is_a_value_error(reply):
    assert replies.deviation_of(metrics(sigma=2.5), noisy=True) == 2.5
    assert replies.deviation_of(metrics(sigma=0.0), noisy=False) == 0.0
    with pytest.raises(ValueError, match="sigma"):
        replies.deviation_of(reply, noisy=True)


@pytest.mark.parametrize("value", [-1, 1.0, math.inf, math.nan, [3]])
def test_a_count_is_a_whole_number_from_0(value):
    assert replies.count_of(metrics(count=3), "count") == 3
    assert replies.counts_of(metrics(counts=[3, 0]), "counts") == (3, 0)
    with pytest.raises(ValueError, match="count came as"):
        replies.count_of(metrics(count=value), "count")
    with pytest.raises(ValueError, match="counts came as"):
        replies.counts_of(metrics(counts=[value] if not isinstance(value, list) else 3), "counts")


def once(kind: str, change) -> Saboteur:
    """Client 1 answers one message of that kind with something else."""
    done = []

    def after(message, reply):
        if message.metadata.message_type == kind and message.metadata.dst_node_id == 1001 and not done:
            done.append(change(reply.content))
        return reply

    return Saboteur(after=after)


def setting(record: str, value):
    return lambda content: content.__setitem__(record, value)


@pytest.mark.parametrize(
    ("settings", "kind", "change"),
    [
        ((LOST,), "train.outputs", setting("arrays", ConfigRecord({"outputs": 3}))),
        ((LOST,), "train.gradients", setting("arrays", ConfigRecord({"contribution": 3}))),
        (("unsafe_metrics=true",), "train.gradients", lambda c: c["metrics"].__setitem__("num-examples", math.inf)),
        (LOCAL, "train.tables", setting("arrays", ConfigRecord({"noised": 3}))),
        (LOCAL, "train.tables", setting("metrics", ArrayRecord({"epsilon": array(VALUES)}))),
        (LOCAL, "train.local_gradients", lambda content: content["metrics"].__setitem__("sigma", 1e200)),
        (LOCAL, "train.local_gradients", lambda content: content["metrics"].__setitem__("sigma", 1e-200)),
        (LOCAL, "train.local_gradients", lambda content: content["metrics"].__setitem__("epsilon", math.nan)),
    ],
)
def test_a_malformed_reply_loses_its_sender_and_never_the_run(federation, settings, kind, change):
    directory = federation.folder / "run1"
    summary = federation.run(small(*settings), app=once(kind, change))
    assert summary["status"] == "completed"
    if LOST in settings:
        lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
        assert [line["client"] for line in lines if line["event"] == "client lost"] == [1]


def test_a_client_that_comes_back_with_a_malformed_greeting_stays_out(federation):
    greeted, gone = [], []

    def hook(message, context):
        if message.metadata.message_type == "train.outputs" and context.node_config["partition-id"] == 1 and not gone:
            gone.append(True)
            raise OSError("gone")

    def after(message, reply):
        if message.metadata.message_type == "query.hello" and message.metadata.dst_node_id == 1001:
            greeted.append(True)
            if len(greeted) > 1:
                reply.content["metrics"]["partition-id"] = math.inf
        return reply

    summary = federation.run(small(LOST, "privacy.epsilon=2.0"), app=Saboteur(hook, after))
    assert summary["status"] == "completed" and len(greeted) > 1


def stating(change, clients=(1001,)) -> Saboteur:
    """Clients whose greeting states something else."""

    def after(message, reply):
        if message.metadata.message_type == "query.hello" and message.metadata.dst_node_id in clients:
            change(reply.content)
        return reply

    return Saboteur(after=after)


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
@pytest.mark.parametrize("size", [cohort.MOST_RECORDS + 1, 10**13, 2**62])
def test_a_greeting_with_sizes_that_no_memory_holds_is_refused_by_name(federation, size, trust):
    app = stating(lambda content: content["metrics"].__setitem__("sizes", [size, 3]))
    words = rf"client 1 states {size} records of group A=0; .* at most {cohort.MOST_RECORDS} .*Remove this client"
    with pytest.raises(FederationError, match=words):
        federation.run(small(f"privacy.trust={trust}", "privacy.epsilon=8.0", "privacy.delta=1e-5"), app=app)


def test_sizes_that_no_memory_holds_together_are_refused(federation):
    size = cohort.MOST_RECORDS - 1
    app = stating(lambda content: content["metrics"].__setitem__("sizes", [3, size]), clients=(1000, 1001))
    with pytest.raises(FederationError, match=rf"3 clients state \d+ records of group A=1 together, .*\({size}\)"):
        federation.run(small("privacy.epsilon=8.0"), app=app)


@pytest.mark.parametrize("largest", [cohort.MOST_RECORDS, 2**62, -1])
def test_ids_of_a_seeded_run_that_no_memory_holds_are_refused_by_name(federation, largest):
    def change(content):
        ids = numbers(content["arrays"]["0"]).copy()
        ids[0] = largest
        content["arrays"]["0"] = array(ids)

    with pytest.raises(FederationError, match=rf"client 1 has record ids .*{largest}.* 0 to {cohort.MOST_RECORDS - 1}"):
        federation.run(small("seed=3", "privacy.epsilon=8.0"), app=stating(change))
