"""Laws of a run whose preset is settled by the sizes that its clients report: all train the same, and go on with it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from fedsw._tools.settings import FederationError
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.preset_rules import left_open
from fedsw.federation import flower, messages
from fedsw.federation.client import app as client_app
from fedsw.federation.engines import inprocess
from fedsw.federation.messages import Terms
from fedsw.federation.node import replies as nodes
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from tests.federation.node.runs import GENERATION
from tests.federation.sketch_runs import SKETCH
from tests.federations import SMALL, Federation, Saboteur

PRESET = {**SMALL, "training": {"preset": "auto", "rounds": 2}, "privacy": {"epsilon": 2.0, "delta": "1/n^2"}}
TRUSTS = ("central", "local-gradient")


def asked(*overrides: str) -> Experiment:
    return parse_experiment(PRESET, overrides)


class Heard:
    """The experiment of every message that carries one, by kind, as clients receive it."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self.app = Saboteur(self._hear)

    def _hear(self, message, context) -> None:
        config = message.content.get("config", {})
        if "experiment" in config:
            self.said.setdefault(message.metadata.message_type, []).append(str(config["experiment"]))


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_and_server_train_the_same_experiment_settled_by_the_sizes_that_clients_report(tmp_path, trust):
    experiment, heard = asked(f"privacy.trust={trust}"), Heard()
    summary = Federation(tmp_path).run(experiment, app=heard.app)
    (greeted,) = set(heard.said[messages.HELLO.kind])
    (open_,) = set(heard.said[messages.SIZES.kind])
    assert summary["status"] == "completed" and len(heard.said[messages.SIZES.kind]) == 3 == len(
        heard.said[messages.HELLO.kind]
    )
    assert left_open(Experiment.model_validate_json(open_)) == left_open(experiment) != {}
    plan = json.loads((tmp_path / "run1" / "plan.json").read_text())
    sizes = {name: plan["groups"][name] for name in Problem.from_experiment(experiment).groups}
    trained = Experiment.model_validate_json(greeted)
    assert not left_open(trained) and trained == settled(experiment, numbers_of(experiment, sizes))
    assert RunDirectory(tmp_path / "run1").read_config()[0] == trained


def test_a_run_that_goes_on_has_the_settings_it_began_with_and_asks_for_no_sizes(tmp_path):
    federation, heard = Federation(tmp_path), Heard()
    calls = iter(range(1000))

    def die(message, context):
        if message.metadata.message_type.startswith("train.") and next(calls) > 8:
            raise RuntimeError("gone")

    place = tmp_path / "run"
    with pytest.raises(FederationError):
        federation.run(
            asked("training.rounds=4", "federation.max_attempts=1", "federation.timeout=1.0"),
            directory=place,
            app=Saboteur(die),
        )
    begun = RunDirectory(place).read_config()[0]
    assert not left_open(begun)
    summary = federation.run(begun, directory=place, resume=True, app=heard.app)
    assert summary["status"] == "completed" and messages.SIZES.kind not in heard.said
    assert RunDirectory(place).read_config()[0] == begun


def test_a_prepared_run_that_was_stopped_before_its_sizes_came_is_settled_when_it_goes_on(tmp_path):
    place = tmp_path / "run"
    RunDirectory(place).write_config(asked(), "served")
    prepared = RunDirectory(place).read_config()[0]
    assert left_open(prepared) == left_open(asked())
    assert Federation(tmp_path).run(prepared, directory=place, resume=True)["status"] == "completed"
    assert not left_open(RunDirectory(place).read_config()[0])


def test_records_are_read_once_for_sizes_and_training(tmp_path, monkeypatch):
    read, held_records = [], nodes.held_records
    monkeypatch.setattr(nodes, "held_records", lambda *a, **k: read.append(1) or held_records(*a, **k))
    Federation(tmp_path).run(asked())
    assert len(read) == 3


def test_whoever_cannot_tell_its_sizes_stops_a_run_before_it_begins(tmp_path):
    def refuse(message, context):
        if context.node_config["partition-id"] == 1:
            raise ExperimentError("no records here")

    with pytest.raises(FederationError, match=r"\(node 1001\) could not join: ExperimentError: no records here"):
        Federation(tmp_path).run(asked(), app=Saboteur(refuse))
    assert not (tmp_path / "run1" / "ledger.sqlite").exists()


class Asked:
    """A client of its own, asked by whoever says that it is the server."""

    def __init__(self, place: Path, **config) -> None:
        self.run = secrets.randbits(60)
        own = {"partition-id": 0, "num-partitions": 3, "state-dir": str(place), **config}
        self.context = Context(self.run, 1234, own, RecordDict(), {})

    def ask(self, exchange, experiment: Experiment, run: str = "ab" * 16) -> str:
        """Why it answers nothing; empty if it answers."""
        inprocess.identify(self.run)
        content = messages.encode(exchange.down(experiment.model_dump_json(exclude={"metrics"}), run), Terms())
        message = Message(content, 1234, exchange.kind, ttl=60.0)
        flower.number(message, "m")
        reply = client_app(message, self.context)
        return "" if reply.has_content() else str(reply.error.reason)


SETTLED = settled(asked(), numbers_of(asked(), {"male": 300, "female": 300}))


def test_after_its_sizes_a_client_takes_only_what_a_preset_chose(tmp_path):
    """Another guarantee, other groups or another network are other experiments, whatever the preset."""
    node = Asked(tmp_path)
    assert node.ask(messages.SIZES, asked()) == ""
    other = [SETTLED.model_copy(update={"privacy": SETTLED.privacy.model_copy(update={"epsilon": 9.0})})]
    other += [SETTLED.model_copy(update={"model": SETTLED.model.model_copy(update={"kind": "logistic", "seed": 9})})]
    other += [SETTLED.model_copy(update={"seed": 5})]
    for each in other:
        assert "agreed to another experiment" in node.ask(messages.HELLO, each)
        assert "agreed to another experiment" in node.ask(messages.SIZES, each)
    assert "agreed to another experiment" in node.ask(messages.HELLO, SETTLED, run="cd" * 16)
    assert node.ask(messages.HELLO, SETTLED) == ""
    slower = SETTLED.model_copy(update={"training": SETTLED.training.model_copy(update={"learning_rate": 9.0})})
    assert "agreed to another experiment" in node.ask(messages.HELLO, slower), "what it was greeted with is for good"


@pytest.mark.parametrize("trust", ["sketch", "sketch-local", "local-slices", "settled"])
def test_sizes_by_group_are_reported_to_nobody_where_the_guarantee_covers_groups_or_no_preset_reads_them(
    tmp_path, trust, monkeypatch
):
    """A replaced record of another group moves them: under a sketch they are as secret as labels."""
    monkeypatch.setattr(nodes, "held_records", lambda *a, **k: pytest.fail("a file was opened"))
    of_trust = {
        "sketch": parse_experiment(SKETCH),
        "sketch-local": parse_experiment(SKETCH, ["privacy.trust=sketch-local"]),
        "local-slices": parse_experiment(GENERATION, ["privacy.trust=local-slices", "privacy.noise_multiplier=2"]),
        "settled": SETTLED,
    }
    assert "sizes by group are reported where training.preset" in Asked(tmp_path).ask(messages.SIZES, of_trust[trust])


def test_a_client_trains_nothing_with_settings_left_open(tmp_path):
    said = Asked(tmp_path).ask(messages.HELLO, asked())
    models = "model.kind, model.knots, model.inputs"
    assert (
        f"nothing chose {models}, privacy.moments, privacy.histograms, calibration.share, training.batch_fraction"
        in said
    )


@pytest.mark.parametrize("exchange", [messages.SIZES, messages.HELLO])
def test_a_clients_limits_hold_before_it_reads_a_record_for_its_sizes(tmp_path, exchange, monkeypatch):
    monkeypatch.setattr(nodes, "held_records", lambda *a, **k: pytest.fail("a file was opened"))
    node = Asked(tmp_path, **{"max-epsilon": 1.0})
    experiment = asked() if exchange is messages.SIZES else SETTLED
    assert "takes part up to a guaranteed epsilon of 1 only" in node.ask(exchange, experiment)
