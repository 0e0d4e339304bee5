"""Laws of a whole run: reproducible without noise, private with it, and honest about which."""

from __future__ import annotations

import datetime
import io
import json
import math

import numpy as np
import pytest
import torch

from fedsw._tools.settings import FederationError
from fedsw.privacy.accounting import Ledger
from fedsw.runs import checkpoint
from fedsw.runs.observer import NoObserver
from tests.federation.local_runs import parameters_of
from tests.federations import Saboteur, small

NO_NOISE = ("seed=5", "privacy.trust=none")


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
def test_without_noise_the_model_does_not_depend_on_how_records_are_spread(federation, penalty):
    models = []
    for clients, scheme in [(1, "iid"), (2, "iid"), (10, "iid"), (2, "group"), (4, "dirichlet")]:
        experiment = small(
            *NO_NOISE,
            f"federation.clients={clients}",
            f"partition.scheme={scheme}",
            f"objective.penalty={penalty}",
            "training.rounds=10",
        )
        federation.run(experiment)
        models.append(parameters_of(federation.folder / f"run{federation.runs}"))
    for model in models[1:]:
        assert torch.linalg.vector_norm(model - models[0]) <= 1e-6 * torch.linalg.vector_norm(models[0])


def test_the_same_seed_gives_the_same_model_bit_for_bit_with_noise_too(federation):
    for _ in range(2):
        federation.run(small("seed=5"))
    first, second = (parameters_of(federation.folder / f"run{i}") for i in (1, 2))
    assert torch.equal(first, second)


def test_without_a_seed_nothing_repeats(federation):
    for _ in range(2):
        federation.run(small("privacy.trust=none"))
    first, second = (parameters_of(federation.folder / f"run{i}") for i in (1, 2))
    assert not torch.equal(first, second)


def test_a_seeded_run_says_its_epsilon_is_nominal(federation):
    assert federation.run(small("seed=5"))["nominal"] is True
    assert "nominal" in federation.run(small("seed=5"))["guarantee"]["statement"]
    assert federation.run(small())["nominal"] is False


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
@pytest.mark.parametrize("seed", [(), ("seed=5",)], ids=["secret", "seeded"])
def test_a_ledger_says_whether_its_run_could_be_repeated(federation, trust, seed):
    federation.run(small(f"privacy.trust={trust}", "training.rounds=1", *seed))
    directory = federation.folder / "run1"
    paths = [directory / "ledger.sqlite"] if trust == "central" else sorted((directory / "clients").glob("*.sqlite"))
    for path in paths:
        with Ledger.open(path, read_only=True) as ledger:
            assert ledger.nominal is bool(seed)
    assert len(paths) == (1 if trust == "central" else 3)


def test_the_ledger_charges_every_round_and_stays_within_the_asked_epsilon(federation):
    summary = federation.run(small("privacy.epsilon=2.0"))
    assert summary["released_rounds"] == 4
    assert 1.9 < summary["epsilon_spent"] <= summary["epsilon"] == 2.0
    with Ledger.open(federation.folder / "run1" / "ledger.sqlite") as ledger:
        assert ledger.replay() == pytest.approx(summary["epsilon_spent"], rel=1e-9)


def test_a_given_noise_multiplier_gets_its_own_epsilon(federation):
    given = json.loads((_run(federation, "privacy.epsilon=2.0") / "summary.json").read_text())
    multiplier = given["guarantee"]["noise_multiplier"]
    experiment = small(f"privacy.noise_multiplier={multiplier}", "privacy.epsilon=inf")
    assert federation.run(experiment)["epsilon"] == pytest.approx(2.0, rel=1e-3)


def test_no_noise_is_recorded_as_no_privacy(federation):
    for overrides in (("privacy.trust=none",), ("privacy.epsilon=inf",)):
        summary = federation.run(small(*overrides))
        assert summary["epsilon"] == math.inf and "No privacy" in summary["guarantee"]["statement"]


def test_an_accountant_that_is_no_guarantee_is_not_stated_as_one(federation):
    guarantee = federation.run(small("privacy.accountant=gdp-clt-uniform"))["guarantee"]
    assert guarantee["accountant_is_guarantee"] is False
    assert guarantee["statement"].startswith("No guarantee: what the accountant gdp-clt-uniform says")
    assert federation.run(small())["guarantee"]["statement"].startswith("(1, ")


def test_unsafe_metrics_make_the_readers_epsilon_infinite(federation):
    summary = federation.run(small("unsafe_metrics=true"))
    assert summary["epsilon_of_reader"] == math.inf and math.isfinite(summary["epsilon"])
    lines = (federation.folder / "run1" / "metrics.jsonl").read_text().splitlines()
    assert all("training_loss" in json.loads(line) for line in lines)


RELEASABLE = {
    "round", "attempt", "epsilon", "sigma", "snr", "gradient_norm", "clients", "held_out",
    "bytes_up", "bytes_down",
}  # fmt: skip


def test_only_releasable_numbers_are_stored_or_shown(federation):
    shown = []

    class Watcher:
        def started(self, plan):
            shown.append(plan)

        def round_done(self, record):
            assert set(record) <= RELEASABLE

        def finished(self, summary):
            shown.append(summary)

    federation.run(small(), observer=Watcher())
    for line in (federation.folder / "run1" / "metrics.jsonl").read_text().splitlines():
        assert set(json.loads(line)) <= RELEASABLE
    assert len(shown) == 2 and not {"counts", "draw", "outputs", "seed_key"} & _keys(shown)


def _keys(tree) -> set[str]:
    if isinstance(tree, dict):
        return set(tree).union(*map(_keys, tree.values()))
    return set().union(*map(_keys, tree)) if isinstance(tree, list) else set()


def test_nothing_un_noised_and_no_secret_is_on_disk(federation, monkeypatch):
    """The un-noised sums, the outputs and the batch keys of a run are searched for in every file it leaves."""
    from fedsw.federation.trust.central import rounds as central
    from fedsw.federation.trust.round_plan import Draw

    hidden: list[bytes] = []
    release = central.release

    def spy(aggregate, plan, ledger):
        hidden.extend((aggregate.vector.numpy().tobytes(), aggregate.vector.float().numpy().tobytes()))
        assert isinstance(aggregate.draw, Draw)
        return release(aggregate, plan, ledger)

    def keep(message, reply):
        if message.metadata.message_type == "train.outputs":
            hidden.append(reply.content["arrays"]["outputs"].data[128:192])  # after the header
        return reply

    monkeypatch.setattr(central, "release", spy)
    keys = []
    from fedsw.federation.trust.central import unnoised as client

    draw_key = client.batch_key
    monkeypatch.setattr(client, "batch_key", lambda *a: keys.append(draw_key(*a)) or keys[-1])
    directory, on_the_way = federation.folder / "run1", list[bytes]()

    class Looking(NoObserver):
        def round_done(self, record):
            on_the_way.append((directory / checkpoint.RELEASED).read_bytes())

    federation.run(small(), app=Saboteur(after=keep), observer=Looking())
    assert len(keys) == 12 and len(hidden) == 8 + 12
    assert [len(content) > 0 for content in on_the_way] == [True] * 4
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    for name, content in [*left.items(), *((checkpoint.RELEASED, content) for content in on_the_way)]:
        for secret in hidden + keys:
            assert secret not in content and secret.hex().encode() not in content, name


def test_the_checkpoint_holds_released_vectors_only(federation):
    directory = _run(federation)
    state = checkpoint.load(directory)
    assert state is not None
    assert [name for name in checkpoint.NAMES if (directory / name).exists()] == [checkpoint.NAME]
    _, _, content = (directory / checkpoint.NAME).read_bytes().partition(b"\n")
    stored = torch.load(io.BytesIO(content), weights_only=True)
    assert set(stored) == {"round", "theta", "average", "optimizer", "ledger"}
    assert set(stored["ledger"]) == {"sequence", "digest"}
    assert state.round == 4 and torch.equal(state.theta.float().sort()[0], parameters_of(directory).float().sort()[0])


def test_a_record_whose_model_output_overflows_weighs_nothing_and_stops_nobody(federation, monkeypatch):
    import fedsw.federation.node.replies as node

    genuine = node.held_records

    def poisoned(task, node_config):
        held = genuine(task, node_config)
        held.records.features[:5] = torch.finfo(torch.float32).max
        return held

    monkeypatch.setattr(node, "held_records", poisoned)
    experiment = small(*NO_NOISE, "model.kind=mlp", "model.hidden=[4]", "model.activation=relu", "training.rounds=6")
    summary = federation.run(experiment)
    assert summary["released_rounds"] == 6 and bool(torch.isfinite(parameters_of(federation.folder / "run1")).all())


def test_a_held_out_metric_is_there_at_the_asked_rounds_and_at_the_end(federation):
    directory = _run(federation)
    with_metrics = [
        json.loads(line)["round"]
        for line in (directory / "metrics.jsonl").read_text().splitlines()
        if "held_out" in json.loads(line)
    ]
    assert with_metrics == [2, 4]
    stored = np.load(directory / "outputs.npz")
    assert stored["outputs"].shape == (200, 1)


def test_a_resumed_run_reports_the_time_of_all_its_processes_and_when_it_began(federation):
    """As it does of its bytes; a process that was killed, and left no summary, counts by its log."""

    def hook(message, context):
        if message.metadata.message_type == "train.outputs" and message.content["config"]["round"] == 3:
            raise OSError("gone")

    with pytest.raises(FederationError):
        federation.run(small(), app=Saboteur(hook))
    directory = federation.folder / "run1"
    stored = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(stored | {"seconds": 1000.0}))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"begun": "2020-01-01T00:00:00+00:00"}))
    resumed = federation.run(small(), directory=directory, resume=True)
    assert 1000 < resumed["seconds"] < 1100 and stored["begun"] == config["begun"]
    assert resumed["begun"] == "2020-01-01T00:00:00+00:00" < stored["date"] <= resumed["date"]

    first, *lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    began = datetime.datetime.fromisoformat(first["time"]) - datetime.timedelta(seconds=2000)
    lines = [first | {"time": began.isoformat(timespec="milliseconds")}, *lines]
    (directory / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "summary.json").unlink()
    assert 2000 < federation.run(small(), directory=directory, resume=True)["seconds"] < 2100


def test_stratified_sampling_charges_the_worst_clients_rate(federation):
    summary = federation.run(small("privacy.sampling=stratified", "partition.scheme=dirichlet", "privacy.epsilon=5.0"))
    rates = summary["guarantee"]["sampling_rates"]
    assert all(0 < rate <= 0.2 for rate in rates.values())
    assert summary["epsilon_spent"] <= 5.0


def _run(federation, *overrides):
    federation.run(small(*overrides))
    return federation.folder / f"run{federation.runs}"
