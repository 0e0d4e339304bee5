"""Laws of a client's ledger among several runs: it is for one run and one guarantee, and nothing of it is forgotten."""

from __future__ import annotations

import json
import threading
import time

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsw._tools.settings import FederationError
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.messages import Fault
from fedsw.federation.server.federation import Job, federate
from fedsw.privacy.accounting import Ledger
from tests.federation.local_runs import TRUST, attempts_in, kind_of
from tests.federations import Saboteur, small

ONE = ("privacy.trust=local-gradient", "privacy.epsilon=8.0", "privacy.delta=1e-3", "federation.clients=1")
NAME = "0123456789abcdef" * 2
STRICT = ("privacy.trust=local-gradient", "privacy.epsilon=1.0", "privacy.delta=1e-6", "federation.clients=1")


def _lost_in(round_: int) -> Saboteur:
    def hook(message, context):
        if message.content["config"].get("round") == round_:
            raise OSError("gone")

    return Saboteur(hook)


def _left(folder) -> tuple[float, float, float]:
    with Ledger.open(folder / "client-0.sqlite", read_only=True) as ledger:
        return ledger.replay(), ledger.budget, ledger.delta


def _renamed(name: str) -> Saboteur:
    """A network on which every run has one name: a server's word."""

    def hook(message, context):
        if kind_of(message) == "query.hello":
            message.content["config"]["run"] = name

    return Saboteur(hook)


@pytest.mark.parametrize("settings", [ONE, STRICT], ids=["the same guarantee", "another guarantee"])
def test_a_ledger_of_another_run_is_refused_at_the_greeting(federation, settings):
    ledgers = federation.folder / "state"
    federation.run(small(*ONE, "training.rounds=1"), ledgers=ledgers)
    spent = _left(ledgers)
    with pytest.raises(FederationError, match=r"accounts for another run.*\(8, 0\.001\).*this is .*state-dir"):
        federation.run(small(*settings), ledgers=ledgers)
    assert _left(ledgers) == spent


@pytest.mark.parametrize(
    "change",
    (
        *("privacy.epsilon=1.0", "privacy.delta=1e-6", "privacy.accountant=gdp-clt-poisson", "seed=3"),
        *("training.rounds=7", "training.batch_fraction=0.3", "local.table_share=0.4", "privacy.moments=0.2"),
    ),
)
def test_a_client_ledger_of_another_budget_is_refused_whatever_the_server_calls_the_run(federation, change):
    ledgers = federation.folder / "state"
    with pytest.raises(FederationError, match="gone"):
        federation.run(small(*ONE), ledgers=ledgers, app=Saboteur(_renamed(NAME).hook, _gone_after_tables()))
    spent = _left(ledgers)
    with pytest.raises(FederationError, match="accounts for another run"):
        federation.run(small(*ONE, change), ledgers=ledgers, app=_renamed(NAME))
    assert spent[0] > 0 and _left(ledgers) == spent


def _gone_after_tables():
    def after(message, reply):
        if kind_of(message) == "train.tables":
            raise OSError("gone")
        return reply

    return after


def test_a_run_of_another_delta_is_not_charged_to_a_ledger(federation):
    """Where delta depends on n it is known with the first request; a server that then tells another n is refused."""
    ledgers, answers = federation.folder / "state", []

    def hook(message, context):
        if kind_of(message) == "train.tables" and message.content["config"]["round"] == 2:
            message.content["config"]["records"] = 10**6

    def after(message, reply):
        answers.append(str(reply.error.reason) if reply.has_error() else kind_of(message))
        return reply

    with pytest.raises(FederationError, match="accounts for another run"):
        federation.run(small(*TRUST, "federation.clients=1"), ledgers=ledgers, app=Saboteur(hook, after))
    assert _left(ledgers)[2] == 0.1 / 600 and len(answers) == 4 and "accounts for another run" in answers[-1]


def test_the_operators_limit_bounds_what_a_ledger_ever_allows(tmp_path):
    state = {"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / "state")}

    def go(name, experiment, **limits):
        grid = InProcessGrid(client_app, [{**state, **limits}])
        try:
            return federate(grid, Job(experiment, tmp_path / name))
        finally:
            grid.close()

    go("generous", small(*ONE, "training.rounds=1"))
    with pytest.raises(FederationError, match="accounts for another run"):
        go("strict", small(*STRICT), **{"max-epsilon": "1.0"})


def test_a_node_serves_one_run_in_one_run_of_flower(tmp_path):
    grid = InProcessGrid(client_app, [{"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path)}])
    settings = {"experiment": small(*ONE).model_dump_json()}

    def greet(name):
        (node,) = grid.get_node_ids()
        content = RecordDict({"config": ConfigRecord({**settings, "run": name})})
        return exchange(grid, "query.hello", {node: content}, group="g", timeout=10, traffic=Traffic())[node]

    try:
        assert not isinstance(greet(NAME), Fault)
        again = greet(NAME[::-1])
        assert isinstance(again, Fault) and "another experiment" in again.reason
    finally:
        grid.close()


def test_without_a_place_for_its_ledger_a_client_refuses_at_the_greeting(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSW_STATE", raising=False)
    for settings, refused in ((ONE, True), (("privacy.trust=central", "federation.clients=1"), False)):
        grid = InProcessGrid(client_app, [{"partition-id": 0, "num-partitions": 1}])
        try:
            if refused:
                with pytest.raises(FederationError, match="no folder for its privacy ledger"):
                    federate(grid, Job(small(*settings), tmp_path / "refused"))
            else:
                assert federate(grid, Job(small(*settings), tmp_path / "central"))["status"] == "completed"
        finally:
            grid.close()


def test_a_resumed_run_is_refused_where_a_client_forgot_what_it_spent(federation):
    directory, experiment = federation.folder / "run", small(*TRUST)
    with pytest.raises(FederationError, match="gone"):
        federation.run(experiment, directory=directory, app=_lost_in(3))
    reported = json.loads((directory / "summary.json").read_text())["epsilon_spent_by_client"]
    with pytest.raises(FederationError, match=r"client 0's privacy ledger has spent epsilon 0, but it reported"):
        federation.run(experiment, directory=directory, resume=True, ledgers=federation.folder / "elsewhere")
    assert not (federation.folder / "elsewhere" / "client-0.sqlite").exists()
    summary = federation.run(experiment, directory=directory, resume=True)
    assert summary["status"] == "completed" and attempts_in(directory, 0) == [(1, 0), (2, 0), (3, 1), (4, 0)]
    assert all(summary["epsilon_spent_by_client"][client] > epsilon for client, epsilon in reported.items())


def test_a_client_that_comes_back_without_its_ledger_stays_away(federation):
    directory, elsewhere = federation.folder / "run", federation.folder / "elsewhere"

    def hook(message, context):
        if context.node_config["partition-id"] == 1 and message.content["config"].get("round") == 2:
            context.node_config["state-dir"] = str(elsewhere)
            raise OSError("gone")

    federation.run(small(*TRUST, "federation.min_clients=2"), directory=directory, app=Saboteur(hook))
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["clients"] for record in records] == [3, 2, 2, 2]
    assert attempts_in(directory, 1) == [(1, 0)] and not (elsewhere / "client-1.sqlite").exists()


def test_a_client_that_hangs_into_the_next_run_charges_nothing_there(federation):
    """Neither what it was at work on nor what waited behind it reaches a ledger of another run."""
    begun, release = threading.Event(), threading.Event()

    def hang(message, context):
        if kind_of(message) == "train.tables" and context.node_config["partition-id"] == 0:
            begun.set()
            release.wait(20)

    first, second = federation.folder / "first", federation.folder / "second"
    with pytest.raises(FederationError, match="no reply within"):
        federation.run(small(*TRUST, "federation.timeout=1.5"), directory=first, app=Saboteur(hang))

    def go_on(message, context):
        if kind_of(message) == "train.tables" and message.content["config"]["round"] == 2:
            release.set()
            time.sleep(0.1)

    assert begun.is_set() and not (first / "clients" / "client-0.sqlite").exists()
    federation.run(small(*TRUST), directory=second, app=Saboteur(go_on))
    for client in range(3):
        assert attempts_in(second, client) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert all(attempts_in(first, client) == [(1, 0)] for client in range(3))
