"""Laws of what clients send: whatever a reply holds, it is what was asked for or its sender is lost, never the run."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw._tools.settings import FederationError
from fedsw.experiment import parse_experiment
from fedsw.federation import messages, wire
from fedsw.federation.exchange import participants as cohort
from fedsw.federation.messages import Malformed, Terms
from fedsw.federation.messages.table import Joined, NoisedContribution, NoisedSlices
from fedsw.learning.tasks.problem import Problem
from tests.federation.node.runs import GENERATION
from tests.federations import Saboteur, array, numbers, small

LOST = "federation.min_clients=2"
LOCAL = (LOST, "privacy.trust=local-gradient", "privacy.epsilon=8.0", "data.records=1200", "training.rounds=2")
SLICES_WITHOUT_NOISE = ("privacy.trust=local-slices", "privacy.epsilon=inf", "data.records=300")
VALUES = np.ones((2, 3))
EXPERIMENT = small("privacy.trust=local-gradient", "privacy.epsilon=8.0")
TERMS = Terms.of(Problem.from_experiment(EXPERIMENT))
ROWS = TERMS.sizes["r"]


def release(**metrics) -> RecordDict:
    """A client's noised contribution; metrics that are None are missing."""
    reply = messages.encode(NoisedContribution(epsilon=1.0, values=torch.ones(ROWS), sigma=2.5), TERMS)
    kept = {**reply["metrics"], **metrics}
    reply["metrics"] = MetricRecord({name: value for name, value in kept.items() if value is not None})
    return reply


def noised(values: np.ndarray, name: str = "noised") -> RecordDict:
    reply = release()
    reply["arrays"] = ArrayRecord({name: array(values)})
    return reply


def with_record(name: str, record) -> RecordDict:
    reply = release()
    reply[name] = record
    return reply


def test_what_a_client_sends_is_what_the_server_reads():
    read = messages.decode(NoisedContribution, release(), TERMS)
    assert (read.epsilon, read.sigma) == (1.0, 2.5) and torch.equal(read.values, torch.ones(ROWS))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (RecordDict(), "no metric 'epsilon' came"),
        (RecordDict({"metrics": release()["metrics"]}), "no array 'noised' came"),
        (with_record("arrays", ConfigRecord({"noised": 3})), "no array 'noised' came"),
        (with_record("arrays", MetricRecord({"noised": 3})), "no array 'noised' came"),
        (noised(np.ones(ROWS, np.float32), "other"), r"arrays\['other'\] came"),
        (noised(np.ones(ROWS - 1, np.float32)), rf"noised came with shape \({ROWS - 1},\); expected \({ROWS},\)"),
        (noised(np.ones((ROWS, 1), np.float32)), "noised came with shape"),
        (noised(np.ones(ROWS)), "noised came as 'float64'; expected 'float32'"),
        (noised(np.ones(ROWS, np.int64)), "noised came as 'int64'; expected 'float32'"),
        (noised(np.ones(ROWS, bool)), "noised came as 'bool' in format"),
        (noised(np.full(ROWS, np.nan, np.float32)), "noised are not all finite"),
        (
            with_record("arrays", ArrayRecord({"noised": Array("float32", (ROWS,), wire.ARRAY_FORMAT, b"")})),
            "noised came with 0 bytes",
        ),
        (with_record("labels", ArrayRecord({"labels": array(VALUES)})), r"labels\['labels'\] came, which"),
        (release(accuracy=0.5), r"metrics\['accuracy'\] came, which NoisedContribution does not hold"),
        (release(sigma=None), "no metric 'sigma' came"),
        (release(nonce=None), "no metric 'nonce' came"),
        (release(nonce=[0.5]), "nonce came as"),
        (with_record("metrics", ConfigRecord({"epsilon": "1", "sigma": "1"})), "no metric 'epsilon' came"),
        (release(epsilon=1), "epsilon came as 1; expected a float from 0, finite"),
        (release(epsilon=math.inf), "epsilon came as inf"),
        (release(epsilon=-0.5), "epsilon came as -0.5"),
        (release(sigma=[1.0]), "sigma came as"),
    ]
    + [(release(sigma=value), "sigma came as") for value in (0.0, -1.0, math.nan, math.inf, 1e200, 1e-200, 10**400)],
)
def test_a_reply_with_anything_else_is_refused_by_the_name_of_its_field(reply, words):
    with pytest.raises(Malformed, match=words):
        messages.decode(NoisedContribution, reply, TERMS)


def test_without_noise_a_deviation_is_zero_and_nothing_else():
    open_terms = Terms.of(Problem.from_experiment(parse_experiment(GENERATION, SLICES_WITHOUT_NOISE)), k=4, n=3)
    sent = NoisedSlices(math.inf, torch.ones(3, 4), None, 0.0)
    reply = messages.encode(sent, open_terms)
    read = messages.decode(NoisedSlices, reply, open_terms)
    assert (read.sigma, read.epsilon) == (0.0, math.inf)
    reply["metrics"]["sigma"] = 1.0
    with pytest.raises(Malformed, match="sigma came as 1.0; expected a float 0$"):
        messages.decode(NoisedSlices, reply, open_terms)


@pytest.mark.parametrize("value", [[-1], [2**41], [1.0], [math.nan], [[3]], []])
def test_a_count_is_a_whole_number_from_0(value):
    def joined(**arrays) -> RecordDict:
        whole = torch.tensor([3]), torch.tensor([[3, 0]])
        reply = messages.encode(Joined(*whole, torch.zeros(1, dtype=torch.float64), None), TERMS)
        reply["arrays"] = ArrayRecord({**reply["arrays"], **arrays})
        return reply

    read = messages.decode(Joined, joined(), TERMS)
    assert (read.clients.tolist(), read.sizes.tolist()) == ([3], [[3, 0]])
    with pytest.raises(Malformed, match="^(clients|sizes) came (as|with) .*; expected "):
        messages.decode(Joined, joined(clients=array(np.array(value))), TERMS)
    if value != [2**41]:  # more than any federation has is for the server to refuse by name
        with pytest.raises(Malformed, match="^sizes (came (as|with) .*; expected |did not come as whole numbers)"):
            messages.decode(Joined, joined(sizes=array(np.array([value * 2]))), TERMS)


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
                reply.content["arrays"]["clients"] = array(np.array([math.inf]))
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
    app = stating(lambda content: content["arrays"].__setitem__("sizes", array(np.array([[size, 3]]))))
    words = rf"client 1 states {size} records of group A=0; .* at most {cohort.MOST_RECORDS} .*Remove this client"
    with pytest.raises(FederationError, match=words):
        federation.run(small(f"privacy.trust={trust}", "privacy.epsilon=8.0", "privacy.delta=1e-5"), app=app)


def test_sizes_that_no_memory_holds_together_are_refused(federation):
    size = cohort.MOST_RECORDS - 1
    sizes = np.array([[3, size]])
    app = stating(lambda content: content["arrays"].__setitem__("sizes", array(sizes)), clients=(1000, 1001))
    with pytest.raises(FederationError, match=rf"3 clients state \d+ records of group A=1 together, .*\({size}\)"):
        federation.run(small("privacy.epsilon=8.0"), app=app)


@pytest.mark.parametrize("largest", [cohort.MOST_RECORDS, 2**62, -1])
def test_ids_of_a_seeded_run_that_no_memory_holds_are_refused_by_name(federation, largest):
    def change(content):
        ids = numbers(content["arrays"]["0"]).copy()
        ids[0] = largest
        content["arrays"]["0"] = array(ids)

    words = rf"client 1 has a record id {largest}; .* 0 to {cohort.MOST_RECORDS - 1}"
    with pytest.raises(FederationError, match=words):
        federation.run(small("seed=3", "privacy.epsilon=8.0"), app=stating(change))


@pytest.mark.parametrize("asked", ["query.hello", "query.sizes"])
@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_an_unreadable_greeting_costs_its_sender_alone_where_the_others_are_enough(federation, asked, trust, caplog):
    def spoil(message, reply):
        if message.metadata.message_type in (asked, "query.hello") and message.metadata.dst_node_id == 1001:
            del reply.content["arrays"]["sizes" if message.metadata.message_type == "query.hello" else "by group"]
        return reply

    preset = ["training.preset=auto", "privacy.moments=0"] if asked == "query.sizes" else []
    settings = [f"privacy.trust={trust}", "privacy.epsilon=8.0", "privacy.delta=1e-5", *preset]
    summary = federation.run(small(*settings, "federation.min_clients=2"), app=Saboteur(after=spoil))
    assert summary["status"] == "completed" and summary["clients"] == 2
    assert "client 1's greeting is unreadable" in caplog.text and "the run begins without it" in caplog.text
    planned = json.loads((federation.folder / "run1" / "plan.json").read_text())["groups"]
    assert sum(planned.values()) == 400, "rates and noise are planned for those who are there"
    what = "sizes are" if asked == "query.sizes" else "greeting is"
    with pytest.raises(FederationError, match=rf"^client 1's {what} unreadable"):
        federation.run(small(*settings), app=Saboteur(after=spoil))
    few = r"^2 of 3 clients are left, fewer than the 3 of federation.min_clients: client 1's .* unreadable"
    with pytest.raises(FederationError, match=few):
        federation.run(small(*settings, "federation.min_clients=3"), app=Saboteur(after=spoil))


def test_a_client_that_says_nothing_to_the_greeting_is_lost_and_one_that_refuses_stops_the_start(federation):
    def hang(message, context):
        if context.node_config["partition-id"] == 1:
            time.sleep(1.5)

    def refuse(message, context):
        if context.node_config["partition-id"] == 1:
            raise RuntimeError("not with these columns")

    few = ("federation.min_clients=2", "federation.timeout=1.0", "privacy.epsilon=2.0")
    summary = federation.run(small(*few), app=Saboteur(hang))
    assert summary["status"] == "completed" and summary["clients"] == 2
    with pytest.raises(FederationError, match=r"\(node 1001\) could not join: RuntimeError: not with these columns"):
        federation.run(small(*few), app=Saboteur(refuse))
