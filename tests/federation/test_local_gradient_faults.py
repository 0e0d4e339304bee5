"""What failures and refusals cost in a run in which nobody is trusted."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedsw._tools.settings import FederationError
from fedsw.federation import messages
from fedsw.privacy.accounting import Ledger
from tests.federation.local_runs import TRUST, attempts_in, client_of, kind_of
from tests.federations import Saboteur, array, numbers, small


@pytest.mark.parametrize("kind", [messages.TABLES.kind, messages.LOCAL_GRADIENTS.kind])
def test_a_client_lost_in_either_exchange_is_missing_and_what_it_noised_stays_charged(run, kind):
    def hook(message, context):
        lost = kind_of(message) == kind and client_of(context) == 1
        if lost and message.content["config"]["round"] == 2:
            raise OSError("gone")

    summary, directory = run(small(*TRUST, "federation.min_clients=2"), app=Saboteur(hook))
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["clients"] for record in rounds] == [3, 2, 3, 3]
    assert [record["attempt"] for record in rounds] == [0, 0, 0, 0]
    noised = [1, 2, 3, 4] if kind == messages.LOCAL_GRADIENTS.kind else [1, 3, 4]
    assert attempts_in(directory, 1) == [(round_, 0) for round_ in noised]
    assert summary["released_rounds"] == 4


def test_a_run_short_of_clients_stops_at_once_and_charges_nobody_for_another_attempt(run):
    def hook(message, context):
        if kind_of(message) == messages.LOCAL_GRADIENTS.kind and client_of(context) in (1, 2):
            raise OSError("gone")

    with pytest.raises(FederationError, match=r"Client 1: .*gone.*Client 2: .*gone.*resume"):
        run(small(*TRUST, "federation.min_clients=2"), app=Saboteur(hook))
    directory = run._federation.folder / "run"
    assert all(attempts_in(directory, client) == [(1, 0)] for client in range(3))


def test_a_group_that_is_lost_with_its_only_holder_stops_the_run(run):
    def hook(message, context):
        if kind_of(message) == messages.TABLES.kind and client_of(context) == 1:
            raise OSError("gone")

    overrides = ("partition.scheme=group", "federation.clients=2", "federation.min_clients=1")
    with pytest.raises(FederationError, match=r"group A=\d\. Client 1: .*gone"):
        run(small(*TRUST, *overrides), app=Saboteur(hook))


@pytest.mark.parametrize("least", [2, 3])
def test_a_client_whose_budget_is_used_up_is_missing_and_too_few_left_stop_the_run_with_what_it_had(run, least):
    experiment = small(*TRUST, f"federation.min_clients={least}")

    class Spent(Saboteur):
        """Client 0 is asked for a table twice in round 2: an attempt that the server never saw."""

        def __call__(self, message, context):
            if (
                kind_of(message) == messages.TABLES.kind
                and client_of(context) == 0
                and message.content["config"]["round"] == 2
            ):
                super().__call__(message, context)
                message.content["config"]["attempt"] = 7
                reply = super().__call__(message, context)
                message.content["config"]["attempt"] = 0
                context.state["fedsw-site"]["attempt"] = 0
                return reply
            return super().__call__(message, context)

    summary, directory = run(experiment, app=Spent())
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert attempts_in(directory, 0) == [(1, 0), (2, 0), (2, 7), (3, 0)]
    if least == 2:
        assert summary["status"] == "completed" and [r["clients"] for r in rounds] == [3, 3, 3, 2]
    else:
        assert summary["status"].startswith("stopped before round 4")
        assert summary["status"].endswith("Budgets that are used up: client 0")
        assert len(rounds) == 3
    assert summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["held_out"] and (directory / "model.safetensors").exists()


def test_a_stopped_run_goes_on_with_the_clients_ledgers_and_fresh_attempts(run):
    def hook(message, context):
        if (
            kind_of(message) == messages.TABLES.kind
            and message.content["config"]["round"] == 3
            and client_of(context) == 0
        ):
            raise OSError("disk on fire")

    with pytest.raises(FederationError, match=r"Client 0: .*disk on fire.*resume the run"):
        run(small(*TRUST), app=Saboteur(hook))
    summary, directory = run(small(*TRUST), resume=True)
    # Clients 1 and 2 noised a table for the attempt that failed; their budgets end a round early.
    assert summary["status"].startswith("stopped before round 4")
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 3
    assert attempts_in(directory, 0) == [(1, 0), (2, 0), (3, 1), (4, 0)]
    assert attempts_in(directory, 1) == [(1, 0), (2, 0), (3, 0), (3, 1)]
    assert summary["epsilon_spent"] <= summary["epsilon"]


def test_a_round_without_a_record_of_a_group_asks_and_charges_nobody_and_names_who_is_away(run):
    """Client 1, the only one with records of a group, is lost in round 2 and does not come back."""
    gone = []

    def hook(message, context):
        if client_of(context) != 1:
            return
        if kind_of(message) == messages.LOCAL_GRADIENTS.kind and message.content["config"]["round"] == 2:
            gone.append(True)
        if gone:
            raise OSError("unplugged")

    apart = ("federation.clients=2", "federation.min_clients=1", "partition.scheme=group")
    reason = r"round 3: no client that answered holds a record of group A=0\. Client 1: .*unplugged.*resume the run"
    with pytest.raises(FederationError, match=reason):
        run(small(*TRUST, *apart), app=Saboteur(hook))
    assert attempts_in(run._federation.folder / "run", 0) == [(1, 0), (2, 0)]


@pytest.mark.parametrize("kind", [messages.TABLES.kind, messages.LOCAL_GRADIENTS.kind])
def test_a_replayed_request_is_refused_and_nothing_more_is_released(run, kind):
    refused = []

    class Replayer(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if kind_of(message) == kind:
                again = super().__call__(message, context).error.reason
                assert "holds no batch" in again or "is charged" in again
                refused.append(True)
            return reply

    _, directory = run(small(*TRUST), app=Replayer())
    assert len(refused) == 12 and len(attempts_in(directory, 0)) == 4


@pytest.mark.parametrize("asked", [messages.OUTPUTS.kind, messages.GRADIENTS.kind])
def test_a_server_that_asks_for_un_noised_outputs_is_refused(run, asked):
    from fedsw.federation.client import app as client_app

    seen = []

    class Curious(Saboteur):
        def __call__(self, message, context):
            if kind_of(message) == messages.TABLES.kind:
                message.metadata.__dict__["_message_type"] = asked
                message.content["arrays"] = ArrayRecord({"counts": array(np.array([[5, 5]]))})
                reply = client_app(message, context)
                seen.append(reply.error.reason)
                return reply
            return super().__call__(message, context)

    with pytest.raises(FederationError, match="agreed to local-gradient"):
        run(small(*TRUST), app=Curious())
    assert seen


def test_a_second_greeting_with_another_experiment_is_refused(run):
    from fedsw.federation.client import app as client_app

    refused = []

    class Greeted(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if kind_of(message) == messages.HELLO.kind:
                message.content["config"]["experiment"] = small("privacy.trust=none").model_dump_json()
                assert "agreed to another experiment" in client_app(message, context).error.reason
                refused.append(True)
            return reply

    run(small(*TRUST), app=Greeted())
    assert len(refused) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v[:-1], "came with shape"),
        (lambda v: v * float("nan"), "not all finite"),
    ],
)
def test_an_answer_of_another_shape_or_without_finite_values_is_dropped_and_its_sender_named(run, change, reason):
    def spoil(message, reply):
        if kind_of(message) == messages.LOCAL_GRADIENTS.kind:
            reply.content["arrays"] = ArrayRecord({"noised": array(change(numbers(reply.content["arrays"]["noised"])))})
        return reply

    with pytest.raises(FederationError, match=rf"Client \d.*{reason}"):
        run(small(*TRUST), app=Saboteur(after=spoil))


def test_a_client_that_cannot_keep_a_ledger_refuses_before_anything_is_spent(federation, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    with pytest.raises(FederationError, match=r"could not join.*cannot keep its privacy ledger"):
        federation.run(small(*TRUST), ledgers=blocked)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (("privacy.noise_multiplier=1.5", "unsafe_metrics=true"), "unsafe_metrics"),
        (("privacy.noise_multiplier=1.5", "training.batch_size=20"), "batch_fraction"),
        ((), "trust 'none'"),
    ],
)
def test_what_would_void_the_guarantee_stops_the_run_before_anything_is_spent(run, override, reason):
    with pytest.raises((FederationError, ValueError), match=reason):
        run(small("privacy.trust=local-gradient", "privacy.epsilon=inf", *override))
    assert not list((run._federation.folder / "run" / "clients").glob("*.sqlite"))


@pytest.mark.parametrize("sigma", [math.nan, -1.0, 0.0, math.inf, 1e200, 1e-200])
def test_a_deviation_that_no_noise_has_loses_its_sender(federation, sigma):
    def lie(message, reply):
        if kind_of(message) == "train.local_gradients" and message.metadata.dst_node_id == 1001:
            reply.content["metrics"]["sigma"] = sigma
        return reply

    with pytest.raises(FederationError, match="Client 1: unreadable release: sigma came as"):
        federation.run(small(*TRUST), app=Saboteur(after=lie))


def test_what_an_unreadable_release_cost_is_heard(federation):
    """Client 1 charges its last release, and what arrives of it is no array of numbers: the charge counts."""

    def spoil(message, reply):
        last = kind_of(message) == messages.LOCAL_GRADIENTS.kind and message.content["config"]["round"] == 4
        if last and message.metadata.dst_node_id == 1001:
            reply.content["arrays"] = ArrayRecord({"noised": array(np.full(17, np.nan, np.float32))})
        return reply

    summary = federation.run(
        small(*TRUST, "objective.alpha=0.0", "federation.min_clients=2"), app=Saboteur(after=spoil)
    )
    spent = summary["epsilon_spent_by_client"]
    assert spent["1"] == pytest.approx(spent["0"], rel=0.05) and len(spent) == 3
    with Ledger.open(federation.folder / "run1" / "clients" / "client-1.sqlite", read_only=True) as ledger:
        assert spent["1"] == pytest.approx(ledger.epsilon(), rel=1e-9)
