"""Laws of the in-process grid: what Flower promises an app, without copies, without hanging."""

from __future__ import annotations

import copy
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsw.federation import messages, wire
from fedsw.federation.engines import inprocess
from fedsw.federation.engines.inprocess import InProcessGrid, delivered
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.messages import Broadcast, Fault, Terms
from fedsw.federation.messages.codec import Shared, bytes_in
from fedsw.federation.messages.table import OutputsAsked
from fedsw.learning.tasks.problem import Problem
from tests.federations import Federation, Saboteur, numbers, small


def _app(behaviour):
    app = ClientApp()
    app.train("work")(behaviour)
    return app


def _echo(message, context):
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


def _grid(behaviour, nodes=3):
    return InProcessGrid(_app(behaviour), [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)])


def _requests(grid, values):
    return {
        node: RecordDict({"arrays": ArrayRecord({"x": Array(np.array([value]))}), "config": ConfigRecord({})})
        for node, value in zip(grid.get_node_ids(), values, strict=True)
    }


def _messages(grid, values, ttl):
    found = _requests(grid, values).items()
    return [Message(content, node, "train.work", group_id="g", ttl=ttl) for node, content in found]


def _exchange(grid, requests, timeout=5.0, traffic=None):
    return exchange(grid, "train.work", requests, group="g", timeout=timeout, traffic=traffic or Traffic())


def test_replies_come_back_to_who_asked_in_request_order():
    grid = _grid(_echo)
    replies = _exchange(grid, dict(reversed(_requests(grid, [1.0, 2.0, 3.0]).items())))
    assert list(replies) == list(reversed(list(grid.get_node_ids())))
    assert [float(r["arrays"]["x"].numpy()[0]) for r in replies.values()] == [3.0, 2.0, 1.0]


def test_arrays_are_handed_over_without_a_copy():
    seen = []

    def keep(message, context):
        seen.append(message.content["arrays"]["x"].data)
        return _echo(message, context)

    grid = _grid(keep, nodes=1)
    requests = _requests(grid, [1.0])
    (reply,) = _exchange(grid, requests).values()
    assert seen[0] is next(iter(requests.values()))["arrays"]["x"].data is reply["arrays"]["x"].data


def test_who_changes_the_numbers_that_it_sent_or_got_changes_nobody_elses():
    sent = torch.arange(4.0)
    array = Shared(sent)
    sent += 1
    got = [Broadcast(array).tensor() for _ in range(2)]
    got[0] += 1
    array.data  # noqa: B018
    assert all(torch.equal(each, torch.arange(4.0)) for each in (got[1], Broadcast(array).tensor()))


@pytest.mark.parametrize("values", [torch.zeros(0, 2), torch.arange(6.0).reshape(3, 2), torch.arange(5)])
def test_an_array_of_this_process_is_counted_compared_and_stored_as_the_bytes_that_it_would_send(values):
    shared, plain = Shared(values), Array(*wire.encode(values))
    assert (shared.dtype, shared.shape, shared.stype, bytes_in(shared)) == (*wire.encode(values)[:3], bytes_in(plain))
    copies = [pickle.loads(pickle.dumps(shared)), copy.deepcopy(shared)]
    assert "data" in vars(shared), "the bytes were asked for"
    for each in (*copies, shared):
        assert type(each) is Array and each == shared and bytes_in(each) == bytes_in(plain) == len(plain.data)
        assert torch.equal(torch.from_numpy(numbers(each)), values)
    assert Shared(values).deflate().startswith(b"Array ")


def test_who_asks_for_the_bytes_while_another_one_makes_them_gets_the_same(monkeypatch):
    array, encode, others = Shared(torch.arange(3)), wire.encode, []

    def interrupted(tensor):
        if not others:
            others.append(b"")
            others[0] = array.data
        return encode(tensor)

    monkeypatch.setattr(wire, "encode", interrupted)
    assert array.data is others[0] is array.data and type(array) is Array


@pytest.mark.parametrize("change", [{"shape": (6,)}, {"dtype": "int64"}, {"data": wire.encode(torch.ones(2, 3))[3]}])
def test_an_array_that_was_changed_on_its_way_is_what_its_bytes_say(change):
    values = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    array, plain = Shared(values), Array(*wire.encode(values))
    for name, value in change.items():
        setattr(array, name, value)
        setattr(plain, name, value)
    if "data" in change:
        for each in (array, plain):
            with pytest.raises(ValueError, match="bytes"):
                Broadcast(each).tensor()
        return
    found = Broadcast(array).tensor()
    assert found.dtype == Broadcast(plain).tensor().dtype and torch.equal(found, Broadcast(plain).tensor())


def test_what_a_receiver_changes_of_a_message_changes_nobody_elses():
    task = Problem.from_experiment(small())
    terms, counts = Terms.of(task, P=4, S=1), torch.tensor([[1, 2]])
    model = Broadcast.of(torch.arange(float(task.parameters)), terms)
    inprocess.identify(1)
    content = messages.encode(OutputsAsked(model, 1, 0, counts, 4, None), terms)
    sent = Message(content, 5, "train.outputs")
    changes = [
        lambda got: got["config"].update(round=-1),
        lambda got: got["model"].update(theta=Shared(torch.zeros(2))),
        lambda got: got["arrays"].update(counts=Shared(torch.tensor([[-1, 2]]))),
        lambda got: got.pop("arrays"),
        lambda got: got.update(metrics=MetricRecord({"more": 1.0})),
    ]
    for change in changes:
        got = delivered(sent).content
        messages.decode(OutputsAsked, got, terms).counts.add_(1)
        change(got)
        with pytest.raises(messages.Malformed):
            messages.decode(OutputsAsked, got, terms)
    elsewhere = pickle.loads(pickle.dumps(content))
    assert [list(each) for each in (elsewhere, content)] == [["model", "arrays", "config"]] * 2
    assert elsewhere["config"] == content["config"] and "nonce" in content["config"]
    for each in (elsewhere, content):
        found = messages.decode(OutputsAsked, each, terms)
        assert (found.round, found.attempt, found.rows) == (1, 0, 4) and torch.equal(found.counts, counts)
        assert torch.equal(found.theta.tensor(), model.tensor())


def test_a_run_in_process_makes_no_bytes_and_ends_with_the_bits_and_the_traffic_of_one_that_does(tmp_path, monkeypatch):
    def opened(message, context=None):
        for record in message.content.values():
            for array in record.values() if isinstance(record, ArrayRecord) else ():
                array.data  # noqa: B018
        return message

    federation, settings = Federation(tmp_path), small("seed=3", "federation.sites=2")
    bytewise = federation.run(settings, app=Saboteur(opened, after=lambda message, reply: opened(reply)))
    monkeypatch.setattr(wire, "encode", lambda tensor: pytest.fail("bytes were made"))
    shared = federation.run(settings)
    for name in ("bytes_up", "bytes_down", "epsilon_spent", "held_out"):
        assert shared[name] == bytewise[name]
    models = [(federation.folder / run / "model.safetensors").read_bytes() for run in ("run1", "run2")]
    assert models[0] == models[1]


def test_a_client_that_changes_its_message_does_not_change_the_servers():
    def vandal(message, context):
        message.content["arrays"]["x"] = Array(np.array([-1.0]))
        del message.content["config"]
        return Message(RecordDict({}), reply_to=message)

    grid = _grid(vandal)
    requests = _requests(grid, [1.0, 2.0, 3.0])
    _exchange(grid, requests)
    assert [float(content["arrays"]["x"].numpy()[0]) for content in requests.values()] == [1.0, 2.0, 3.0]
    assert all("config" in content for content in requests.values())


def test_state_survives_between_messages_of_one_node_only():
    def count(message, context):
        calls = int(context.state["n"]["calls"]) if "n" in context.state else 0
        context.state["n"] = ConfigRecord({"calls": calls + 1})
        return Message(RecordDict({"config": ConfigRecord({"calls": calls + 1})}), reply_to=message)

    grid = _grid(count)
    for turn in (1, 2):
        replies = _exchange(grid, _requests(grid, [0.0] * 3))
        assert [int(r["config"]["calls"]) for r in replies.values()] == [turn] * 3


def test_a_client_that_raises_is_a_fault_with_its_reason_and_the_others_answer():
    def moody(message, context):
        if context.node_config["partition-id"] == 1:
            raise OSError("disk on fire")
        return _echo(message, context)

    grid = _grid(moody)
    replies = list(_exchange(grid, _requests(grid, [1.0, 2.0, 3.0])).values())
    assert replies[1] == Fault("OSError: disk on fire", 2)
    assert not isinstance(replies[0], Fault) and not isinstance(replies[2], Fault)


def test_the_thread_of_a_grid_that_is_not_closed_ends_and_the_next_message_is_answered(monkeypatch):
    monkeypatch.setattr(inprocess, "_IDLE_SECONDS", 0.05)
    grid, before = _grid(_echo), set(threading.enumerate())
    for _ in range(2):
        replies = _exchange(grid, _requests(grid, [1.0, 2.0, 3.0])).values()
        assert [float(reply["arrays"]["x"].numpy()[0]) for reply in replies] == [1.0, 2.0, 3.0]
        deadline = time.monotonic() + 5
        while left := set(threading.enumerate()) - before:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)


def test_a_hanging_client_costs_one_timeout_and_never_the_run():
    release = threading.Event()

    def sleepy(message, context):
        if context.node_config["partition-id"] == 0:
            release.wait(30)
        return _echo(message, context)

    grid = _grid(sleepy)
    began = time.monotonic()
    replies = _exchange(grid, _requests(grid, [1.0, 2.0, 3.0]), timeout=0.5)
    assert isinstance(next(iter(replies.values())), Fault)
    assert time.monotonic() - began < 5
    others = dict(list(_requests(grid, [1.0, 2.0, 3.0]).items())[1:])
    assert not any(isinstance(reply, Fault) for reply in _exchange(grid, others, timeout=3.0).values())
    release.set()


def test_clients_behind_hanging_ones_answer_in_the_same_exchange():
    release = threading.Event()

    def sleepy(message, context):
        if context.node_config["partition-id"] in (0, 2):
            release.wait(30)
        return _echo(message, context)

    grid = _grid(sleepy, nodes=5)
    replies = _exchange(grid, _requests(grid, [0.0] * 5), timeout=1.0)
    release.set()
    assert [isinstance(reply, Fault) for reply in replies.values()] == [True, False, True, False, False]


def test_a_slow_client_that_answers_in_time_is_heard_although_others_did_not_wait_for_it():
    def slow(message, context):
        time.sleep(0.7 if context.node_config["partition-id"] == 0 else 0.2)
        return _echo(message, context)

    grid = _grid(slow)
    replies = _exchange(grid, _requests(grid, [0.0] * 3), timeout=1.0)
    assert not any(isinstance(reply, Fault) for reply in replies.values())


def test_where_nothing_hangs_one_thread_answers_in_order():
    seen = []

    def note(message, context):
        seen.append((threading.get_ident(), context.node_config["partition-id"]))
        return _echo(message, context)

    grid = _grid(note, nodes=20)
    for _ in range(3):
        _exchange(grid, _requests(grid, [0.0] * 20))
    assert len({thread for thread, _ in seen}) == 1 and [client for _, client in seen] == [*range(20)] * 3


@pytest.mark.parametrize("close", [False, True], ids=["its time is over", "the grid is closed"])
def test_a_message_that_nobody_waits_for_is_never_answered(close):
    release, begun, seen = threading.Event(), threading.Event(), []

    def note(message, context):
        seen.append(context.node_config["partition-id"])
        begun.set()
        release.wait(10)
        return _echo(message, context)

    grid = _grid(note)
    grid.push_messages(_messages(grid, [0.0] * 3, ttl=0.2))
    assert begun.wait(5)
    if close:
        grid.close()
    else:
        time.sleep(0.3)
    release.set()
    time.sleep(0.1)
    assert seen == [0] and not grid._replies


def test_replies_that_nobody_fetched_are_not_kept():
    grid = _grid(_echo)

    def push(ttl):
        return grid.push_messages(_messages(grid, [0.0] * 3, ttl))

    push(0.1)
    time.sleep(0.2)
    ids = list(push(5.0))
    assert len(grid.pull_messages(ids)) == 3 and not grid._replies


def test_traffic_counts_the_bytes_of_every_array_both_ways():
    grid, traffic = _grid(_echo), Traffic()
    requests = _requests(grid, [1.0, 2.0, 3.0])
    _exchange(grid, requests, traffic=traffic)
    sent = sum(len(content["arrays"]["x"].data) for content in requests.values())
    assert traffic.down == traffic.up == sent


def test_an_unknown_message_is_answered_with_an_error_not_silence():
    grid = _grid(_echo, nodes=1)
    (node,) = grid.get_node_ids()
    replies = exchange(grid, "train.other", {node: RecordDict({})}, group="g", timeout=5, traffic=Traffic())
    assert isinstance(replies[node], Fault)


def test_an_error_of_the_network_keeps_its_number(monkeypatch):
    grid = _grid(_echo, nodes=1)
    monkeypatch.setattr(grid, "_answer", lambda message: Message(Error(3, "Message Unavailable"), reply_to=message))
    (reply,) = _exchange(grid, _requests(grid, [1.0])).values()
    assert reply == Fault("Message Unavailable (Flower's error 3)", 3)


def test_no_worker_is_left_when_the_grid_closes():
    grid = _grid(_echo)
    _exchange(grid, _requests(grid, [1.0, 2.0, 3.0]))
    before = threading.active_count()
    grid.close()  # nothing is waited for afterwards: a process may end at once
    assert threading.active_count() < before
