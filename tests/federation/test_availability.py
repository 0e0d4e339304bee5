"""Laws of coming back: who was lost is greeted again, the others do not wait for it, and it is the client it was."""

from __future__ import annotations

import time

import pytest
from flwr.app import ConfigRecord

from fedsw._tools.settings import FederationError
from fedsw.federation.engines.inprocess import InProcessGrid
from tests.federations import Saboteur, array, numbers, small

STATE = "fedsw"


def _kind(message) -> str:
    return message.metadata.message_type


def _client(context) -> int:
    return int(context.node_config["partition-id"])


class Asked(Saboteur):
    """Remembers which clients were asked for outputs in which round, and how often each was greeted."""

    def __init__(self, hook=None, after=None) -> None:
        super().__init__(hook, after)
        self.rounds: dict[int, list[int]] = {}
        self.greeted: dict[int, int] = {}

    def __call__(self, message, context):
        client = _client(context)
        if _kind(message) == "train.outputs":
            self.rounds.setdefault(message.content["config"]["round"], []).append(client)
        if _kind(message) == "query.hello":
            self.greeted[client] = self.greeted.get(client, 0) + 1
        return super().__call__(message, context)


def forgetful(client: int, round_: int):
    """A client whose process is started again in a round: what it kept in memory is gone."""
    forgotten = []

    def hook(message, context):
        here = _kind(message) == "train.outputs" and _client(context) == client
        if here and message.content["config"]["round"] == round_ and not forgotten:
            forgotten.append(True)
            del context.state[STATE]

    return hook


def test_a_client_that_was_started_again_is_greeted_and_takes_part_again(federation):
    app = Asked(forgetful(client=1, round_=2))
    summary = federation.run(small("federation.min_clients=2", "privacy.epsilon=2.0"), app=app)
    assert app.rounds == {1: [0, 1, 2], 2: [0, 1, 2, 0, 2], 3: [0, 1, 2], 4: [0, 1, 2]}
    assert app.greeted == {0: 1, 1: 2, 2: 1} and summary["released_rounds"] == 4


def test_under_local_trust_too(federation):
    def hook(message, context):
        if _kind(message) == "train.local_gradients" and _client(context) == 1 and not hook.done:
            hook.done = True
            del context.state[STATE]

    hook.done = False
    app = Asked(hook)
    settings = ("privacy.trust=local-gradient", "privacy.epsilon=8.0", "federation.min_clients=2", "data.records=1200")
    summary = federation.run(small(*settings), app=app)
    assert app.greeted == {0: 1, 1: 2, 2: 1} and summary["status"] == "completed"


def test_a_client_that_is_dead_costs_one_time_limit_not_one_a_round(federation, monkeypatch):
    """From round 2 on no message reaches client 1, which stays online for the network."""
    push, lost = InProcessGrid.push_messages, []

    def pushed(grid, messages):
        messages = list(messages)
        dead = [m for m in messages if m.metadata.dst_node_id == 1001 and (lost or _in_round_two(m))]
        lost.extend(map(_kind, dead))
        names = iter(push(grid, [m for m in messages if m not in dead]))
        return [f"lost{len(lost)}" if m in dead else next(names) for m in messages]

    def _in_round_two(message) -> bool:
        return _kind(message) == "train.outputs" and message.content["config"]["round"] == 2

    monkeypatch.setattr(InProcessGrid, "push_messages", pushed)
    settings = ("federation.min_clients=2", "federation.timeout=2.0", "training.rounds=10")
    assert federation.run(small(*settings))["released_rounds"] == 10
    assert lost.count("train.outputs") == 1 and set(lost) == {"train.outputs", "query.hello"}


def test_who_comes_back_with_other_records_stays_out(federation):
    def after(message, reply):
        if _kind(message) == "query.hello" and message.metadata.dst_node_id == 1001:
            after.seen += 1
            if after.seen > 1:
                sizes = numbers(reply.content["arrays"]["sizes"])
                sizes[0, 0] += 1
                reply.content["arrays"]["sizes"] = array(sizes)
        return reply

    after.seen = 0
    app = Asked(forgetful(client=1, round_=2), after)
    federation.run(small("federation.min_clients=2", "privacy.epsilon=2.0"), app=app)
    assert app.rounds == {1: [0, 1, 2], 2: [0, 1, 2, 0, 2], 3: [0, 2], 4: [0, 2]}


@pytest.mark.parametrize("late", [0.7, 2.6])
def test_a_round_with_too_few_clients_waits_a_time_limit_for_those_greeted(federation, monkeypatch, late):
    """Client 1 answers its second greeting late; in round 3 client 2 is offline, and without client 1 one is left."""
    nodes, greeted = InProcessGrid.get_node_ids, []
    forget = forgetful(client=1, round_=2)

    def hook(message, context):
        forget(message, context)
        if _kind(message) == "query.hello" and _client(context) == 1:
            greeted.append(True)
            time.sleep(late if len(greeted) > 1 else 0.0)

    app = Asked(hook)

    def online(grid):
        return [node for node in nodes(grid) if node != 1002 or len(app.rounds.get(2, [])) < 5]

    monkeypatch.setattr(InProcessGrid, "get_node_ids", online)
    settings = ("federation.min_clients=2", "federation.timeout=2.0", "privacy.epsilon=2.0", "training.rounds=3")
    if late > 2.0:
        with pytest.raises(FederationError, match=r"1 of 3 clients are left.*Client 1: .*Client 2: it is offline"):
            federation.run(small(*settings), app=app)
    else:
        assert federation.run(small(*settings), app=app)["released_rounds"] == 3
        assert app.rounds[3] == [0, 1]


def test_a_greeting_that_is_no_client_s_counts_for_nothing(federation):
    def after(message, reply):
        if _kind(message) == "query.hello" and message.metadata.dst_node_id == 1001:
            after.seen += 1
            if after.seen > 1:
                reply.content["arrays"] = ConfigRecord({})
        return reply

    after.seen = 0
    app = Asked(forgetful(client=1, round_=2), after)
    federation.run(small("federation.min_clients=2", "privacy.epsilon=2.0"), app=app)
    assert app.rounds[3] == app.rounds[4] == [0, 2]
