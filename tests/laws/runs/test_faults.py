"""Laws of failure: drop-outs, attempts, replays, crashes; what is lost, charged and kept."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedsw._tools.settings import FederationError
from fedsw.federation.client import app as client_app
from fedsw.federation.node import replies as node
from fedsw.federation.trust.central import rounds as central
from fedsw.privacy import release as door
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.runs import checkpoint
from tests.federation.local_runs import parameters_of
from tests.federations import Saboteur, array, counts_of, numbers, small
from tests.noises import replace_noise


def _kind(message) -> str:
    return message.metadata.message_type


def _client(context) -> int:
    return int(context.node_config["partition-id"])


def _attempts(directory) -> list[tuple[int, int]]:
    return [tuple(map(int, line.split())) for line in (directory / "attempts.log").read_text().splitlines()]


def _metrics(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_client_lost_before_its_outputs_means_a_fresh_attempt_with_other_records(federation):
    batches: dict[tuple[int, int], list[bytes]] = {}
    failed = []

    def hook(message, context):
        if _kind(message) == "train.outputs" and _client(context) == 2 and not failed:
            failed.append(True)
            raise OSError("gone")

    def after(message, reply):
        if _kind(message) == "train.outputs":
            config = message.content["config"]
            rows = numbers(reply.content["arrays"]["outputs"])[: sum(counts_of(message))]  # without filler
            batches.setdefault((config["round"], config["attempt"]), []).append(rows.tobytes())
        return reply

    federation.run(small("federation.min_clients=2"), app=Saboteur(hook, after))
    directory = federation.folder / "run1"
    assert _attempts(directory)[:3] == [(1, 0), (1, 1), (2, 0)]
    assert len(batches[(1, 0)]) == 2 and len(batches[(1, 1)]) == 2
    assert not set(batches[(1, 0)]) & set(batches[(1, 1)])
    with Ledger.open(directory / "ledger.sqlite") as ledger:
        assert ledger.released_rounds() == 4


def test_fewer_clients_never_sample_a_group_at_a_higher_rate_than_was_calibrated(federation):
    def hook(message, context):
        if _kind(message) == "train.outputs" and _client(context) == 0:
            raise OSError("gone")

    summary = federation.run(small("federation.min_clients=2", "privacy.epsilon=2.0"), app=Saboteur(hook))
    assert summary["released_rounds"] == 4 and summary["epsilon_spent"] <= 2.0


def test_who_is_offline_when_a_round_begins_is_not_sampled_and_takes_part_again_later(federation, monkeypatch):
    seen = []
    release = central.release
    monkeypatch.setattr(central, "release", lambda a, p, ledger: seen.append((a, p)) or release(a, p, ledger))
    asked: dict[int, set[int]] = {}

    def hook(message, context):
        if _kind(message) == "train.outputs":
            asked.setdefault(message.content["config"]["round"], set()).add(_client(context))

    from fedsw.federation.engines.inprocess import InProcessGrid

    nodes = InProcessGrid.get_node_ids
    monkeypatch.setattr(
        InProcessGrid, "get_node_ids", lambda self: [n for n in nodes(self) if not (len(seen) == 1 and n == 1001)]
    )
    federation.run(small("federation.min_clients=2", "privacy.epsilon=2.0"), app=Saboteur(hook))
    assert asked == {1: {0, 1, 2}, 2: {0, 2}, 3: {0, 1, 2}, 4: {0, 1, 2}}
    (whole, plan), (partial, _) = seen[:2]
    assert sum(partial.draw.batch) < sum(whole.draw.batch)
    assert all(rate <= 0.2 for rate in partial.draw.rates)
    # A smaller batch moves more: its own sensitivity is what is charged, not the planned one.
    assert all(s.value > t.value for s, t in zip(partial.sensitivities, whole.sensitivities, strict=True))


def test_a_client_lost_between_the_exchanges_takes_its_terms_only(federation, monkeypatch):
    seen = []
    release = central.release
    monkeypatch.setattr(central, "release", lambda a, p, ledger: seen.append(a) or release(a, p, ledger))

    def hook(message, context):
        lost = _kind(message) == "train.gradients" and _client(context) == 1
        if lost and message.content["config"]["round"] == 2:
            raise OSError("gone")

    federation.run(small("federation.min_clients=2"), app=Saboteur(hook))
    whole, partial = seen[0], seen[1]
    assert (whole.clients, partial.clients) == (3, 2)
    assert whole.draw.batch == partial.draw.batch
    assert [s.value for s in whole.sensitivities] == [s.value for s in partial.sensitivities]
    assert _attempts(federation.folder / "run1") == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_a_batch_is_answered_for_once(federation):
    captured = []

    def after(message, reply):
        if _kind(message) == "train.gradients":
            captured.append(message)
        return reply

    class Replayer(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if _kind(message) == "train.gradients":
                assert "RuntimeError: gradients asked" in client_app(message, context).error.reason
            return reply

    federation.run(small(), app=Replayer(after=after))
    assert len(captured) == 12


def test_clients_that_are_rebuilt_before_every_message_give_the_same_model(federation):
    """As on engines where another process answers the next message: a batch is drawn again from what state keeps."""
    overrides = ("seed=5", "partition.scheme=dirichlet")  # so that a client's counts differ between the groups
    warm, cold = federation.folder / "warm", federation.folder / "cold"
    federation.run(small(*overrides), directory=warm)
    rebuild = Saboteur(lambda message, context: node._nodes.clear())
    federation.run(small(*overrides), directory=cold, app=rebuild)
    assert torch.equal(parameters_of(warm), parameters_of(cold))


def test_gradients_for_another_attempt_are_refused(federation):
    class Confused(Saboteur):
        def __call__(self, message, context):
            if _kind(message) == "train.gradients":
                message.content["config"]["attempt"] += 1
            return super().__call__(message, context)

    with pytest.raises(FederationError, match="fresh attempt"):
        federation.run(small(), app=Confused())


def test_nothing_is_released_if_the_ledger_cannot_be_written(federation, monkeypatch):
    monkeypatch.setattr(Ledger, "spend", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        federation.run(small())
    directory = federation.folder / "run1"
    assert checkpoint.load(directory) is None and not (directory / "metrics.jsonl").exists()
    assert json.loads((directory / "summary.json").read_text())["released_rounds"] == 0


def test_the_charge_is_on_disk_before_the_noise_is_drawn(federation, monkeypatch):
    order = []
    spend, noise = Ledger.spend, door.noised
    monkeypatch.setattr(Ledger, "spend", lambda *a, **k: (spend(*a, **k), order.append("charge"))[0])
    replace_noise(monkeypatch, lambda *a: (order.append("noise"), noise(*a))[1])
    federation.run(small())
    assert order == ["charge", "noise"] * 4


def test_a_client_that_raises_in_the_middle_stops_the_run_with_its_reason_and_keeps_everything(federation):
    def hook(message, context):
        if _kind(message) == "train.outputs" and message.content["config"]["round"] == 3 and _client(context) == 1:
            raise OSError("disk on fire")

    with pytest.raises(FederationError, match=r"Client 1: .*disk on fire.*resume the run"):
        federation.run(small(), app=Saboteur(hook))
    directory = federation.folder / "run1"
    state = checkpoint.load(directory)
    assert state is not None and state.last.round == 2
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"].startswith("failed") and summary["released_rounds"] == 2
    spent = summary["epsilon_spent"]

    resumed = federation.run(small(), directory=directory, resume=True)
    assert resumed["status"] == "completed" and resumed["released_rounds"] == 4
    assert _attempts(directory) == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 0)]
    uninterrupted = federation.run(small())
    assert resumed["epsilon_spent"] >= uninterrupted["epsilon_spent"] - 1e-12 > spent
    assert [record["round"] for record in _metrics(directory)] == [1, 2, 3, 4]


def test_a_run_that_stopped_early_reports_the_epsilon_of_all_planned_rounds(federation):
    def hook(message, context):
        if _kind(message) == "train.outputs" and message.content["config"]["round"] == 2:
            raise OSError("gone")

    with pytest.raises(FederationError):
        federation.run(small(), app=Saboteur(hook))
    summary = json.loads((federation.folder / "run1" / "summary.json").read_text())
    whole = federation.run(small())
    assert summary["released_rounds"] == 1 and summary["epsilon_spent"] < 0.9 * summary["epsilon"]
    assert summary["epsilon"] == whole["epsilon"] and summary["delta"] == whole["delta"]


def test_a_run_that_stopped_between_rounds_resumes_bit_for_bit_in_seeded_mode(federation):
    from safetensors.torch import load_file

    federation.run(small("seed=3"))

    def hook(message, context):
        if _kind(message) == "train.outputs" and message.content["config"]["round"] == 3:
            raise OSError("gone")

    with pytest.raises(FederationError):
        federation.run(small("seed=3"), app=Saboteur(hook))
    directory = federation.folder / "run2"
    lines = (directory / "attempts.log").read_text().splitlines()
    (directory / "attempts.log").write_text("\n".join(lines[:2]) + "\n")  # as if it had stopped before round 3
    federation.run(small("seed=3"), directory=directory, resume=True)
    first, second = (load_file(federation.folder / run / "model.safetensors") for run in ("run1", "run2"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_crash_between_charge_and_checkpoint_is_charged_twice_never_forgotten(federation, monkeypatch):
    take = checkpoint.Checkpoints.take

    def crash(self, round_, released):
        if round_ == 3:
            raise KeyboardInterrupt
        take(self, round_, released)

    monkeypatch.setattr(checkpoint.Checkpoints, "take", crash)
    with pytest.raises(KeyboardInterrupt):
        federation.run(small())
    monkeypatch.setattr(checkpoint.Checkpoints, "take", take)
    directory = federation.folder / "run1"
    resumed = federation.run(small(), directory=directory, resume=True)
    with Ledger.open(directory / "ledger.sqlite") as ledger:
        rounds = [entry.round for entry in ledger.entries() if entry.group == "A=0"]
    assert rounds.count(3) == 2
    assert resumed["epsilon_spent"] <= 1.0 and "stopped before round 4" in resumed["status"]


def test_an_exhausted_budget_refuses_the_next_round(federation):
    federation.run(small())
    directory = federation.folder / "run1"
    with Ledger.open(directory / "ledger.sqlite") as ledger, pytest.raises(BudgetExhausted):
        entries = [entry for entry in ledger.entries() if entry.round == 4]
        from fedsw.privacy.accounting import Charge

        ledger.spend(5, 0, [Charge(e.group, e.sampling_rate, e.sensitivity) for e in entries], entries[0].sigma)


def _spoiling(change):
    def after(message, reply):
        if _kind(message) == "train.gradients" and reply.content["arrays"]:
            found = numbers(reply.content["arrays"]["contribution"])
            reply.content["arrays"]["contribution"] = array(change(found))
        return reply

    return after


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v * np.float32(1e6), "above its clip bound"),
        (lambda v: v * np.float32(np.nan), "above its clip bound"),
        (lambda v: v[:-1], "came with shape"),
        (lambda v: v.astype(np.int32), "came as 'int32'"),
    ],
)
def test_a_contribution_outside_its_bound_or_shape_is_refused_and_its_sender_named(federation, change, reason):
    with pytest.raises(FederationError, match=rf"Client \d.*{reason}"):
        federation.run(small(), app=Saboteur(after=_spoiling(change)))
    with Ledger.open(federation.folder / "run1" / "ledger.sqlite") as ledger:
        assert ledger.released_rounds() == 0


def test_outputs_outside_the_ball_are_projected_again_by_the_server(federation, monkeypatch):
    """A client that sends outputs of norm 1e3 gets cotangents as if they had norm M."""
    largest = []

    def hook(message, context):
        if _kind(message) == "train.gradients":
            largest.append(float(np.abs(numbers(message.content["arrays"]["cotangents"])).max()))

    def after(message, reply):
        if _kind(message) == "train.outputs":
            outputs = numbers(reply.content["arrays"]["outputs"]) * np.float32(1e3)
            reply.content["arrays"] = ArrayRecord({"outputs": array(outputs)})
        return reply

    federation.run(small(), app=Saboteur(hook, after))
    assert max(largest) <= 0.5 * (2 / 50) * 2  # alpha * (2/n) * 2M at the least batch of about 60 a group


@pytest.mark.parametrize("client", [0, 2])
def test_a_hanging_client_is_missing_and_the_run_goes_on_where_enough_are_left(federation, client):
    release = threading.Event()

    def hook(message, context):
        first = message.metadata.message_type == "train.outputs" and message.content["config"]["round"] == 2
        if first and context.node_config["partition-id"] == client and message.content["config"]["attempt"] == 0:
            release.wait(20)

    settings = ("federation.min_clients=2", "federation.timeout=1.0")
    summary = federation.run(small(*settings), app=Saboteur(hook))
    release.set()
    assert summary["status"] == "completed" and _attempts(federation.folder / "run1")[:3] == [(1, 0), (2, 0), (2, 1)]


def test_a_hanging_client_ends_the_run_with_its_name_not_in_a_hang(federation):
    import threading

    release = threading.Event()

    def hook(message, context):
        if _kind(message) == "train.outputs" and _client(context) == 2:
            release.wait(60)

    with pytest.raises(FederationError, match=r"Client 2: no reply within 2 s"):
        federation.run(small("federation.timeout=2.0"), app=Saboteur(hook))
    release.set()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda r: r.features.__setitem__((3, 1), float("nan")), r"client 1.*row 3.*"),
        (lambda r: r.features.__setitem__((0, 0), float("inf")), r"client 1.*"),
        (lambda r: r.sensitive.__setitem__(0, 7), r"client 1.*sensitive.*7"),
    ],
)
def test_bad_records_are_refused_at_load_time_and_nothing_is_spent(federation, monkeypatch, spoil, reason):
    import fedsw.federation.node.held_records as partition

    genuine, loaded = partition.with_substitutes, []

    def spoilt(records):
        """The second client that loads is client 1."""
        loaded.append(True)
        found = genuine(records)
        if len(loaded) == 2:
            spoil(found)
        return found

    monkeypatch.setattr(partition, "with_substitutes", spoilt)
    with pytest.raises(FederationError, match=reason):
        federation.run(small())
    assert not (federation.folder / "run1" / "ledger.sqlite").exists()


def test_a_public_data_set_that_is_missing_is_found_out_before_there_is_a_ledger(federation, monkeypatch):
    def missing(task):
        raise FileNotFoundError("no data set 'mnist'")

    monkeypatch.setattr("fedsw.federation.trust.central.rounds.public_side_of", missing)
    with pytest.raises(FileNotFoundError, match="mnist"):
        federation.run(small())
    assert not list((federation.folder / "run1").iterdir())


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("data.correlation=1.0", "objective.penalty=equality-of-odds"), r"group Y=0,A=1 is empty"),
        (("training.batch_size=500",), r"batch of 500 records asked from group A=0, which has \d+ across 3 clients"),
        (("privacy.sampling=stratified", "training.batch_fraction=0.001"), "rounds to 0"),
        (("privacy.delta=1e-12",), "delta"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_is_spent(federation, overrides, reason):
    with pytest.raises((FederationError, ValueError), match=reason):
        federation.run(small(*overrides))
    assert not (federation.folder / "run1" / "ledger.sqlite").exists()
