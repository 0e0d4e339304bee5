"""Laws of a run in which nobody is trusted: what leaves the clients, what is charged where."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import torch
from scipy.stats import binom, chi2

from fedsw._tools.installed import code_digest
from fedsw.federation import messages, wire
from fedsw.privacy import release as door
from fedsw.privacy.accounting import Ledger
from fedsw.runs.accounts import read_ledger
from tests import federations
from tests.federation.local_runs import TRUST, attempts_in, kind_of, parameters_of
from tests.federations import Saboteur, numbers, small
from tests.noises import replace_noise


@pytest.mark.parametrize("overrides", [(), ("objective.penalty=equality-of-odds",), ("objective.alpha=0.0",)])
def test_no_message_carries_an_un_noised_output_count_or_contribution(run, monkeypatch, overrides):
    """Every reply of a run is read; what was noised is known from a spy, and must not be in it."""
    noised, hidden, replies = door.noised, [], []

    def spy(values, sigma, stream):
        released = noised(values, sigma, stream)
        hidden.append((values.clone(), released, sigma))
        return released

    def keep(message, reply):
        replies.append((kind_of(message), reply.content))
        return reply

    replace_noise(monkeypatch, spy)
    run(small(*TRUST, *overrides), app=Saboteur(after=keep))
    asked = [kind for kind, _ in replies]
    exchanges = 1 if "objective.alpha=0.0" in overrides else 2
    assert len(asked) == 3 + 3 * 4 * exchanges and len(hidden) == 3 * 4 * exchanges
    assert set(asked) <= {messages.HELLO.kind, messages.TABLES.kind, messages.LOCAL_GRADIENTS.kind}
    for kind, content in replies:
        if kind == messages.HELLO.kind:
            assert set(content) == {"arrays", "config"} and numbers(content["arrays"]["epsilon"]).tolist() == [0.0]
            assert set(content["arrays"]) == {"clients", "sizes", "epsilon", "answered"}
            assert set(content["config"]) == {"code", wire.NONCE} and content["config"]["code"] == code_digest()
            continue
        assert set(content) == {"arrays", "metrics"} and set(content["arrays"]) == {"noised"}
        assert set(content["metrics"]) == {"epsilon", "sigma", wire.NONCE}
    sent = [numbers(content["arrays"]["noised"]) for kind, content in replies if kind != messages.HELLO.kind]
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
    assert all(attempts_in(directory, client) == [(1, 0), (2, 0), (3, 0), (4, 0)] for client in range(3))
    assert not (directory / "ledger.sqlite").exists()
    reported = {int(client): value for client, value in summary["epsilon_spent_by_client"].items()}
    for client in range(3):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite") as ledger:
            assert ledger.replay() == pytest.approx(reported[client], rel=1e-9)
    assert 1.9 < summary["epsilon_spent"] == max(reported.values()) <= summary["epsilon"] == 2.0
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
    step = parameters_of(trusted) - start
    assert float((parameters_of(local) - parameters_of(trusted)).norm()) < 0.03 * float(step.norm())


def _parameters_at_start(overrides) -> torch.Tensor:
    from fedsw.learning.models import flatten
    from fedsw.learning.tasks.problem import Problem

    return flatten(Problem.from_experiment(small(*overrides)).build_model()).double()


def test_the_same_seed_gives_the_same_model_bit_for_bit_and_a_nominal_epsilon(run):
    models = []
    for name in ("one", "two"):
        summary, directory = run(small(*TRUST, "seed=5"), name)
        models.append(parameters_of(directory))
        assert summary["nominal"] is True
    assert torch.equal(*models)


def test_without_a_seed_nothing_repeats(run):
    models = [parameters_of(run(small(*TRUST), name)[1]) for name in ("one", "two")]
    assert not torch.equal(*models)


def test_the_released_noise_is_the_sum_of_the_clients(run):
    sigmas = []

    def keep(message, reply):
        if kind_of(message) == messages.LOCAL_GRADIENTS.kind:
            sigmas.append(reply.content["metrics"]["sigma"])
        return reply

    _, directory = run(small(*TRUST), app=Saboteur(after=keep))
    rounds = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert rounds[0]["sigma"] == pytest.approx(math.hypot(*sigmas[:3]), rel=1e-12)


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
        if kind_of(message) == messages.TABLES.kind:
            shapes.append(tuple(reply.content["arrays"]["noised"].shape))
        return reply

    summary, _ = run(small(*TRUST, *overrides), app=Saboteur(after=keep))
    assert summary["status"] == "completed" and set(shapes) == {(2, 6, 8)}


def test_clients_that_are_rebuilt_before_every_message_give_the_same_model_and_ledgers(federation, run, monkeypatch):
    """As on engines where another process answers the next message: no node and no ledger is kept in memory."""
    from fedsw.federation.node import replies as nodes

    _, warm = run(small(*TRUST, "seed=5"), "warm")
    cold = federation.folder / "cold"
    monkeypatch.setattr(federations, "held_open", contextlib.nullcontext)
    federation.run(small(*TRUST, "seed=5"), directory=cold, app=Saboteur(lambda message, context: nodes._nodes.clear()))
    assert torch.equal(parameters_of(warm), parameters_of(cold))
    assert all(attempts_in(cold, client) == attempts_in(warm, client) for client in range(3))
