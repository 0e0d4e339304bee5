"""Laws of runs in which every client releases once: what arrived is kept and reported, whatever happens to the run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedsw._tools.settings import FederationError
from fedsw.federation import messages
from fedsw.federation.exchange.exchange import exchange
from fedsw.privacy.accounting import Ledger
from fedsw.runs.checkpoint import Checkpoints
from tests.federation.local_runs import attempts_in, client_of, kind_of
from tests.federation.test_local_slices import FLOW, RELEASE, SLICES, experiment
from tests.federations import Saboteur, array, numbers

ONCE = {
    "release": experiment(RELEASE),
    "flow": experiment(FLOW, "local.algorithm=flow-one-release", "slicing.directions=40"),
}


class Killed(BaseException):
    """What nothing catches."""


def _spent_in(directory) -> dict[str, float]:
    found = {}
    for client in range(3):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
            found[str(client)] = pytest.approx(ledger.replay(), rel=1e-9)
    return found


def _killed(*_):
    raise Killed


@pytest.mark.parametrize("kind", ONCE)
def test_a_release_is_shown_after_the_server_died_before_the_first_line_of_its_metrics(federation, monkeypatch, kind):
    directory = federation.folder / "run"
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Checkpoints, "take", _killed)
        federation.run(ONCE[kind], directory=directory)
    (directory / "summary.json").unlink()  # as if it had been killed
    summary = federation.run(ONCE[kind], directory=directory, resume=True)
    assert summary["status"] == "completed" and summary["released_rounds"] == 1
    assert summary["epsilon_spent_by_client"] == _spent_in(directory)
    assert summary["epsilon_spent"] == max(summary["epsilon_spent_by_client"].values()) > 0
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert all(record["epsilon"] == summary["epsilon_spent"] for record in records)
    assert [attempts_in(directory, client) for client in range(3)] == [[(1, 0)]] * 3


@pytest.mark.parametrize("kind", [*ONCE, "slices"])
def test_going_on_with_a_completed_run_reports_what_it_reported(federation, kind):
    chosen, directory = ONCE.get(kind, experiment(SLICES)), federation.folder / "run"
    first = federation.run(chosen, directory=directory)
    again = federation.run(chosen, directory=directory, resume=True)
    for key in ("epsilon_spent", "epsilon_spent_by_client", "released_rounds"):
        assert again[key] == pytest.approx(first[key], rel=1e-9), key


@pytest.mark.parametrize("kind", ONCE)
def test_a_client_lost_in_the_one_release_is_asked_again_and_nobody_else(federation, kind):
    directory, failed = federation.folder / "run", []

    def hook(message, context):
        if kind_of(message) != "query.hello" and client_of(context) == 2 and not failed:
            failed.append(2)
            raise OSError("gone")

    with pytest.raises(FederationError, match="Client 2: OSError: gone"):
        federation.run(ONCE[kind], directory=directory, app=Saboteur(hook))
    asked = []

    def note(message, context):
        if kind_of(message) != "query.hello":
            asked.append(client_of(context))

    summary = federation.run(ONCE[kind], directory=directory, app=Saboteur(note), resume=True)
    assert summary["status"] == "completed" and asked == [2] and set(summary["epsilon_spent_by_client"]) == set("012")
    assert [len(attempts_in(directory, client)) for client in range(3)] == [1] * 3


def test_where_enough_have_released_nobody_is_asked_later(federation):
    asked = []

    def hook(message, context):
        if kind_of(message) != "query.hello":
            asked.append(client_of(context))
            if client_of(context) == 1:
                raise OSError("gone")

    chosen, directory = experiment(RELEASE, "federation.min_clients=2"), federation.folder / "run"
    summary = federation.run(chosen, directory=directory, app=Saboteur(hook))
    assert summary["status"] == "completed" and asked == [0, 1, 2]
    federation.run(chosen, directory=directory, app=Saboteur(hook), resume=True)
    assert asked == [0, 1, 2]


def test_what_arrived_is_kept_although_the_server_died_while_others_were_awaited(federation, monkeypatch):
    directory, came = federation.folder / "run", []

    def dying(*given, arrived, **named):
        def second(node, reply):
            if came:
                raise Killed
            came.append(node)
            arrived(node, reply)

        return exchange(*given, arrived=second, **named)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("fedsw.federation.trust.context.exchange", dying)
        federation.run(ONCE["release"], directory=directory)
    assert [path.name for path in (directory / "releases").iterdir()] == [f"client-{came[0] - 1000}.safetensors"]


@pytest.mark.parametrize("kind", ["slices", "flow"])
def test_slices_of_another_number_of_rows_lose_their_sender(federation, kind):
    chosen = ONCE.get(kind, experiment(SLICES))

    def fewer(message, reply):
        if kind_of(message) == messages.SLICES.kind and message.metadata.dst_node_id == 1001:
            rows = numbers(reply.content["arrays"]["projections"])[:-1]
            reply.content["arrays"] = ArrayRecord({"projections": array(rows)})
        return reply

    with pytest.raises(FederationError, match="Client 1: unreadable release: projections came with shape"):
        federation.run(chosen, app=Saboteur(after=fewer))


@pytest.mark.parametrize("epsilon", [math.nan, -1.0, math.inf, 0.0])
def test_an_epsilon_that_no_ledger_stands_at_loses_its_sender(federation, epsilon):
    """Not a number, negative, infinite where noise was added, or less than it reported before."""

    def lie(message, reply):
        second = kind_of(message) == messages.SLICES.kind and message.content["config"]["round"] == 2
        if second and message.metadata.dst_node_id == 1001:
            reply.content["metrics"]["epsilon"] = epsilon
        return reply

    with pytest.raises(FederationError, match="Client 1: .*epsilon"):
        federation.run(experiment(SLICES), directory=federation.folder / "run", app=Saboteur(after=lie))
    reported = json.loads((federation.folder / "run" / "summary.json").read_text())["epsilon_spent_by_client"]
    assert 0 < reported["1"] < math.inf


def test_a_greeting_without_a_sound_epsilon_is_refused(federation):
    def lie(message, reply):
        if kind_of(message) == "query.hello":
            reply.content["arrays"]["epsilon"] = array(np.array([math.nan]))
        return reply

    with pytest.raises(FederationError, match="client 0 does not say what its ledger has spent"):
        federation.run(experiment(SLICES), app=Saboteur(after=lie))
