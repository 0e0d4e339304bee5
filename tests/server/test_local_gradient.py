"""Laws of a run in which nobody is trusted: what leaves the clients, what is charged where, what failures cost."""

from __future__ import annotations

import json
import math

import pytest
import torch
from flwr.app import Array, ArrayRecord
from safetensors.torch import load_file
from scipy.stats import binom, chi2

from clients import account
from clients import local_gradient as client_side
from fedsw import wire
from fedsw.accounting import Ledger
from fedsw.experiment import Experiment
from server.cohort import FederationError
from simulations.accounts import read_ledger
from tests.federations import Saboteur, small

TRUST = ("privacy.trust=local-gradient", "privacy.epsilon=inf", "privacy.noise_multiplier=1.5")


class Runs:
    """Runs with the clients' ledgers in the run's folder, as the driver does it."""

    def __init__(self, federation) -> None:
        self._federation = federation

    def __call__(self, experiment: Experiment, name: str = "run", **settings):
        directory = self._federation.folder / name
        with account.ledgers_in(directory / "clients", alone=True):
            return self._federation.run(experiment, directory=directory, **settings), directory


@pytest.fixture
def run(federation):
    return Runs(federation)


def _kind(message) -> str:
    return message.metadata.message_type


def _client(context) -> int:
    return int(context.node_config["partition-id"])


def _ledger(directory, client: int) -> list[tuple[int, int]]:
    with Ledger.open(directory / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
        return [(entry.round, entry.attempt) for entry in ledger.entries()]


def _parameters(directory) -> torch.Tensor:
    return torch.cat([t.reshape(-1).double() for t in load_file(directory / "model.safetensors").values()])


@pytest.mark.parametrize("overrides", [(), ("objective.penalty=equality-of-odds",), ("objective.alpha=0.0",)])
def test_no_message_carries_an_un_noised_output_count_or_contribution(run, monkeypatch, overrides):
    """Every reply of a run is read; what was noised is known from a spy, and must not be in it."""
    noised, hidden, replies = client_side.noised, [], []

    def spy(values, sigma, stream):
        released = noised(values, sigma, stream)
        hidden.append((values.clone(), released, sigma))
        return released

    def keep(message, reply):
        replies.append((_kind(message), reply.content))
        return reply

    monkeypatch.setattr(client_side, "noised", spy)
    run(small(*TRUST, *overrides), app=Saboteur(after=keep))
    asked = [kind for kind, _ in replies]
    exchanges = 1 if "objective.alpha=0.0" in overrides else 2
    assert len(asked) == 3 + 3 * 4 * exchanges and len(hidden) == 3 * 4 * exchanges
    assert set(asked) <= {wire.HELLO, wire.TABLES, wire.LOCAL_GRADIENTS}
    for kind, content in replies:
        if kind == wire.HELLO:
            assert set(content) == {"metrics"} and set(content["metrics"]) == {"partition-id", "sizes"}
            continue
        assert set(content) == {"arrays", "metrics"} and set(content["arrays"]) == {"noised"}
        assert set(content["metrics"]) == {"epsilon", "sigma"}
    sent = [content["arrays"]["noised"].numpy() for kind, content in replies if kind != wire.HELLO]
    units = []
    for array, (values, released, sigma) in zip(sent, hidden, strict=True):
        assert array.reshape(-1).tolist() == released.float().reshape(-1).tolist()
        units.append((torch.from_numpy(array).double().reshape(-1) - values.reshape(-1)) / sigma)
    # Most coordinates are far from what was hidden: no rounding, no mask, no share of the noise left out.
    close, squares = torch.cat(units).abs() < 0.01, torch.cat(units).square()
    assert close.sum() <= binom.isf(1e-9, len(close), 0.01)
    assert 1e-9 < chi2.cdf(float(squares.sum()), len(squares)) < 1 - 1e-9
    tables = [array for array in sent if array.ndim == 3]
    assert all((abs(table - table.round()) > 1e-3).mean() > 0.9 for table in tables)
    assert len(tables) == (12 if exchanges == 2 else 0)


def test_the_clients_ledgers_hold_exactly_the_attempts_and_the_server_has_none(run):
    summary, directory = run(small("privacy.trust=local-gradient", "privacy.epsilon=2.0"))
    assert all(_ledger(directory, client) == [(1, 0), (2, 0), (3, 0), (4, 0)] for client in range(3))
    assert not (directory / "ledger.sqlite").exists()
    told = {int(client): value for client, value in summary["epsilon_spent_by_client"].items()}
    for client in range(3):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite") as ledger:
            assert ledger.replay() == pytest.approx(told[client], rel=1e-9)
    assert 1.9 < summary["epsilon_spent"] == max(told.values()) <= summary["epsilon"] == 2.0
    assert summary["released_rounds"] == 4


def test_the_summary_says_that_everyone_is_kept_from_the_records(run):
    guarantee = run(small(*TRUST))[0]["guarantee"]
    assert guarantee["trust"] == "local-gradient" and guarantee["relation"] == "replace-one"
    assert guarantee["against"] == "everyone, including the server and the other clients"
    assert guarantee["sampling"] == "each client's own" and "each record's sensitive group" in guarantee["public"]


def test_the_ledger_command_reads_the_clients_ledgers(run):
    summary, directory = run(small(*TRUST))
    found = read_ledger(directory)
    assert set(found["epsilon_by_group"]) == {"client 0", "client 1", "client 2"}
    assert found["epsilon"] == pytest.approx(summary["epsilon_spent"], rel=1e-9)
    assert len(found["entries"]) == 12 and found["budget"] == pytest.approx(summary["epsilon"], rel=1e-9)


@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
def test_with_little_noise_and_many_bins_a_round_is_the_trusted_servers(run, penalty):
    """All records in the batch, so that both trust models look at the same ones."""
    same = (f"objective.penalty={penalty}", "training.rounds=1", "training.batch_fraction=1.0", "data.correlation=0.6")
    _, trusted = run(small("privacy.trust=none", *same), "trusted")
    little = ("privacy.trust=local-gradient", "privacy.epsilon=inf", "privacy.noise_multiplier=0.002")
    _, local = run(small(*little, *same, "local.bins=4096", "objective.alpha=0.5"), "local")
    start = _parameters_at_start(same)
    step = _parameters(trusted) - start
    assert float((_parameters(local) - _parameters(trusted)).norm()) < 0.03 * float(step.norm())


def _parameters_at_start(overrides) -> torch.Tensor:
    from fedsw.models import flatten
    from fedsw.task import Task

    return flatten(Task.from_experiment(small(*overrides)).build_model()).double()


def test_the_same_seed_gives_the_same_model_bit_for_bit_and_a_nominal_epsilon(run):
    models = []
    for name in ("one", "two"):
        summary, directory = run(small(*TRUST, "seed=5"), name)
        models.append(_parameters(directory))
        assert summary["nominal"] is True
    assert torch.equal(*models)


def test_without_a_seed_nothing_repeats(run):
    models = [_parameters(run(small(*TRUST), name)[1]) for name in ("one", "two")]
    assert not torch.equal(*models)


def test_the_released_noise_is_the_sum_of_the_clients(run):
    told = []

    def keep(message, reply):
        if _kind(message) == wire.LOCAL_GRADIENTS:
            told.append(reply.content["metrics"]["sigma"])
        return reply

    _, directory = run(small(*TRUST), app=Saboteur(after=keep))
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert rounds[0]["sigma"] == pytest.approx(math.hypot(*told[:3]), rel=1e-12)


@pytest.mark.parametrize("kind", [wire.TABLES, wire.LOCAL_GRADIENTS])
def test_a_client_lost_in_either_exchange_is_missing_and_what_it_noised_stays_charged(run, kind):
    def hook(message, context):
        lost = _kind(message) == kind and _client(context) == 1
        if lost and message.content["config"]["round"] == 2:
            raise OSError("gone")

    summary, directory = run(small(*TRUST, "federation.min_clients=2"), app=Saboteur(hook))
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["clients"] for record in rounds] == [3, 2, 3, 3]
    assert [record["attempt"] for record in rounds] == [0, 0, 0, 0]
    noised = [1, 2, 3, 4] if kind == wire.LOCAL_GRADIENTS else [1, 3, 4]
    assert _ledger(directory, 1) == [(round_, 0) for round_ in noised]
    assert summary["released_rounds"] == 4


def test_a_run_short_of_clients_stops_at_once_and_charges_nobody_for_another_attempt(run):
    def hook(message, context):
        if _kind(message) == wire.LOCAL_GRADIENTS and _client(context) in (1, 2):
            raise OSError("gone")

    with pytest.raises(FederationError, match=r"Client 1: .*gone.*Client 2: .*gone.*resume"):
        run(small(*TRUST, "federation.min_clients=2"), app=Saboteur(hook))
    directory = run._federation.folder / "run"
    assert all(_ledger(directory, client) == [(1, 0)] for client in range(3))


def test_a_group_that_is_lost_with_its_only_holder_stops_the_run(run):
    def hook(message, context):
        if _kind(message) == wire.TABLES and _client(context) == 1:
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
            if _kind(message) == wire.TABLES and _client(context) == 0 and message.content["config"]["round"] == 2:
                super().__call__(message, context)
                message.content["config"]["attempt"] = 7
                reply = super().__call__(message, context)
                message.content["config"]["attempt"] = 0
                context.state["fedsw"]["attempt"] = 0
                return reply
            return super().__call__(message, context)

    summary, directory = run(experiment, app=Spent())
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert _ledger(directory, 0) == [(1, 0), (2, 0), (2, 7), (3, 0)]
    if least == 2:
        assert summary["status"] == "completed" and [r["clients"] for r in rounds] == [3, 3, 3, 2]
    else:
        assert summary["status"].startswith("stopped before round 4") and "the budget is" in summary["status"]
        assert len(rounds) == 3
    assert summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["held_out"] and (directory / "model.safetensors").exists()


def test_a_stopped_run_goes_on_with_the_clients_ledgers_and_fresh_attempts(run):
    def hook(message, context):
        if _kind(message) == wire.TABLES and message.content["config"]["round"] == 3 and _client(context) == 0:
            raise OSError("disk on fire")

    with pytest.raises(FederationError, match=r"Client 0: .*disk on fire.*fedsw resume"):
        run(small(*TRUST), app=Saboteur(hook))
    summary, directory = run(small(*TRUST), resume=True)
    # Clients 1 and 2 noised a table for the attempt that failed; their budgets end a round early.
    assert summary["status"].startswith("stopped before round 4")
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 3
    assert _ledger(directory, 0) == [(1, 0), (2, 0), (3, 1), (4, 0)]
    assert _ledger(directory, 1) == [(1, 0), (2, 0), (3, 0), (3, 1)]
    assert summary["epsilon_spent"] <= summary["epsilon"]


@pytest.mark.parametrize("kind", [wire.TABLES, wire.LOCAL_GRADIENTS])
def test_a_replayed_request_is_refused_and_nothing_more_is_released(run, kind):
    refused = []

    class Replayer(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if _kind(message) == kind:
                with pytest.raises((RuntimeError, ValueError), match="holds no batch|is charged"):
                    super().__call__(message, context)
                refused.append(True)
            return reply

    _, directory = run(small(*TRUST), app=Replayer())
    assert len(refused) == 12 and len(_ledger(directory, 0)) == 4


@pytest.mark.parametrize("asked", [wire.OUTPUTS, wire.GRADIENTS])
def test_a_server_that_asks_for_un_noised_outputs_is_refused(run, asked):
    from clients.app import app as client_app

    seen = []

    class Curious(Saboteur):
        def __call__(self, message, context):
            if _kind(message) == wire.TABLES:
                message.metadata.__dict__["_message_type"] = asked
                message.content["config"]["counts"] = [5, 5]
                try:
                    return client_app(message, context)
                except RuntimeError as refusal:
                    seen.append(str(refusal))
                    raise
            return super().__call__(message, context)

    with pytest.raises(FederationError, match="agreed to local-gradient"):
        run(small(*TRUST), app=Curious())
    assert seen


def test_a_second_greeting_with_another_experiment_is_refused(run):
    from clients.app import app as client_app

    refused = []

    class Greeted(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if _kind(message) == wire.HELLO:
                message.content["config"]["experiment"] = small("privacy.trust=none").model_dump_json()
                with pytest.raises(RuntimeError, match="agreed to another experiment"):
                    client_app(message, context)
                refused.append(True)
            return reply

    run(small(*TRUST), app=Greeted())
    assert len(refused) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda v: v[:-1], "came with shape"),
        (lambda v: v * float("nan"), "not all finite"),
    ],
)
def test_an_answer_of_another_shape_or_without_finite_values_is_dropped_and_its_sender_named(run, change, told):
    def spoil(message, reply):
        if _kind(message) == wire.LOCAL_GRADIENTS:
            reply.content["arrays"] = ArrayRecord({"noised": Array(change(reply.content["arrays"]["noised"].numpy()))})
        return reply

    with pytest.raises(FederationError, match=rf"Client \d.*{told}"):
        run(small(*TRUST), app=Saboteur(after=spoil))


def test_a_client_that_cannot_keep_a_ledger_refuses_before_anything_is_spent(federation, tmp_path, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    monkeypatch.setenv("FEDSW_STATE", str(blocked))
    with pytest.raises(FederationError, match=r"could not join.*cannot keep its privacy ledger"):
        federation.run(small(*TRUST))


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (("privacy.noise_multiplier=1.5", "unsafe_metrics=true"), "unsafe_metrics"),
        (("privacy.noise_multiplier=1.5", "training.batch_size=20"), "batch_fraction"),
        ((), "trust 'none'"),
    ],
)
def test_what_would_void_the_guarantee_stops_the_run_before_anything_is_spent(run, override, told):
    with pytest.raises((FederationError, ValueError), match=told):
        run(small("privacy.trust=local-gradient", "privacy.epsilon=inf", *override))
    assert not list((run._federation.folder / "run" / "clients").glob("*.sqlite"))


def test_more_clients_with_few_records_each_are_protected_by_their_own_rates(run):
    summary, directory = run(small(*TRUST, "federation.clients=5", "partition.scheme=dirichlet", "training.rounds=2"))
    for client in range(5):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite") as ledger:
            (entry, *_), spent = ledger.entries(), ledger.epsilon()
        assert 0.15 < entry.sampling_rate <= max(summary["guarantee"]["sampling_rates"].values())
        assert spent <= summary["epsilon"] * (1 + 1e-9)
        assert entry.sensitivity / entry.sigma == pytest.approx(1 / 1.5, rel=1e-9)


def test_several_outputs_go_through_sliced_tables(run):
    overrides = (
        "objective.task=representation", "model.kind=encoder-decoder", "model.hidden=[8]", "model.latent=3",
        "slicing.directions=6", "training.rounds=2", "local.bins=8",
    )  # fmt: skip
    shapes = []

    def keep(message, reply):
        if _kind(message) == wire.TABLES:
            shapes.append(tuple(reply.content["arrays"]["noised"].shape))
        return reply

    summary, _ = run(small(*TRUST, *overrides), app=Saboteur(after=keep))
    assert summary["status"] == "completed" and set(shapes) == {(2, 6, 8)}


def test_clients_that_are_rebuilt_before_every_message_give_the_same_model_and_ledgers(federation, run, monkeypatch):
    """As on engines where another process answers the next message: no node and no ledger is kept in memory."""
    from clients import node as nodes

    _, warm = run(small(*TRUST, "seed=5"), "warm")
    cold = federation.folder / "cold"
    with account.ledgers_in(cold / "clients", alone=False):
        federation.run(
            small(*TRUST, "seed=5"), directory=cold, app=Saboteur(lambda message, context: nodes._nodes.clear())
        )
    assert torch.equal(_parameters(warm), _parameters(cold))
    assert all(_ledger(cold, client) == _ledger(warm, client) for client in range(3))


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_every_client_keeps_its_ledger_in_the_runs_folder(tmp_path):
    from simulations.driver import run as drive

    experiment = small(*TRUST, "training.rounds=3", "federation.timeout=600.0", "seed=5")
    ours, theirs = drive(experiment, runs=tmp_path / "ours"), drive(experiment, engine="ray", runs=tmp_path / "ray")
    assert torch.equal(_parameters(ours.directory), _parameters(theirs.directory))
    assert all(_ledger(theirs.directory, client) == [(1, 0), (2, 0), (3, 0)] for client in range(3))
