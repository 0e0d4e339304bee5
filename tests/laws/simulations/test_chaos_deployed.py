"""Injections into real processes: the script, what is recorded of them, and an audit that finds what it must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from fedsw.experiment import Experiment
from fedsw.privacy.accounting import Ledger
from tests.federations import Federation
from tests.laws.chaos import injections
from tests.laws.chaos.campaign import POLLED, _effect, audit
from tests.laws.chaos.conductor import ChaosFailed, experiment_of
from tests.laws.chaos.faults import EVERY
from tests.laws.chaos.injections import INJECTIONS, SERVER_INJECTIONS, script
from tests.laws.chaos.injector import INJECTED, position

ROOT = Path(__file__).resolve().parents[3]
SEED = 72  # its first four injections are the four of the slow test below
ROUNDS = 10


def test_every_kind_of_injection_comes_before_any_comes_again():
    planned = script(7, 900)
    assert [(each.round - 1) // EVERY for each in planned] == list(range(90))
    assert set(Counter(each.kind for each in planned[: 3 * len(INJECTIONS)]).values()) == {3}
    assert {each.moment for each in planned if each.kind in SERVER_INJECTIONS} == {"attempt", "charge", "checkpoint"}
    assert {each.moment for each in planned if each.kind not in SERVER_INJECTIONS} == {"attempt"}
    assert script(7, 900) == planned != script(8, 900)


def quick() -> Experiment:
    """The campaign's experiment, evaluated at the end only."""
    return experiment_of(ROUNDS, "federation.timeout=10.0")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a campaign of ten rounds leaves, but for its injection; the run itself was in process."""
    place = tmp_path_factory.mktemp("campaign")
    polled = []

    class Watcher:
        def started(self, plan):
            pass

        def round_done(self, record):
            with Ledger.open(place / "run" / "ledger.sqlite", read_only=True) as ledger:
                polled.append({"epsilon": ledger.epsilon(), **asdict(ledger.head())})

        def finished(self, summary):
            pass

    Federation(place).run(quick(), directory=place / "run", observer=Watcher())
    _write(place / POLLED, polled)
    _write(
        place / INJECTED,
        [{**asdict(each), "position": "round 1, attempt 0: released", "clients": []} for each in script(SEED, ROUNDS)],
    )
    for client in range(5):
        (place / "nodes" / str(client)).mkdir(parents=True)
    return place


@pytest.fixture
def left(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "campaign"))


def test_the_audit_passes_a_run_that_is_right(left):
    found = audit(left, script(SEED, ROUNDS), [], [])
    assert found["epsilon"] == found["epsilon_replayed"] == found["epsilon_recomputed"] <= found["budget"]
    assert found["charges"] == ROUNDS and found["polls"] == ROUNDS and found["rounds_with_all_clients"] == ROUNDS


def _change_line(path: Path, line: int, **fields) -> None:
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    lines[line].update(fields)
    _write(path, lines)


def _write(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _change_summary(left: Path, **fields) -> None:
    path = left / "run" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


WRONG = {
    "a status": (lambda left: _change_summary(left, status="failed: by an injection"), "failed"),
    "a round that was not released": (lambda left: _change_summary(left, released_rounds=9), "9 rounds"),
    "an epsilon that misses a digit": (
        lambda left: _change_summary(left, epsilon_spent=_spent(left) * (1 - 2**-52)),
        "the summary says",
    ),
    "a charge of another attempt": (
        lambda left: _change_line(left / "run" / "metrics.jsonl", 3, attempt=1),
        "released and never charged",
    ),
    "another noise than was charged": (
        lambda left: _change_line(left / "run" / "metrics.jsonl", 3, sigma=1.0),
        "is not its charge",
    ),
    "another epsilon than was charged": (
        lambda left: _change_line(left / "run" / "metrics.jsonl", 3, epsilon=0.1),
        "is not its charge",
    ),
    "a round that is shown twice": (
        lambda left: _append(left / "run" / "metrics.jsonl", _lines(left / "run" / "metrics.jsonl")[-1]),
        "is twice",
    ),
    "an attempt number that was used twice": (
        lambda left: _append(left / "run" / "attempts.log", "4 0"),
        "used twice",
    ),
    "a charge without an attempt": (
        lambda left: (left / "run" / "attempts.log").write_text("1 0\n"),
        "has no attempt",
    ),
    "epsilon fell while it was polled": (lambda left: _change_line(left / POLLED, 2, epsilon=9.0), "epsilon fell"),
    "a polled epsilon of other rows": (
        lambda left: _change_line(left / POLLED, 9, epsilon=_spent(left) * (1 + 2**-52)),
        "epsilon of 20 rows was",
    ),
    "a row that was polled is gone": (lambda left: _change_line(left / POLLED, 9, digest="0" * 64), "older copy"),
    "an injection that never happened": (lambda left: (left / INJECTED).write_text(""), "never happened"),
    "a client's folder is gone": (lambda left: (left / "nodes" / "3").rmdir(), "clients' folders"),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_audit_finds(left, what):
    spoil, reason = WRONG[what]
    spoil(left)
    with pytest.raises((ChaosFailed, ValueError), match=reason):
        audit(left, script(SEED, ROUNDS), [], [])


def test_the_audit_finds_processes_and_a_stop_that_was_not_explained(left):
    with pytest.raises(ChaosFailed, match="processes are left"):
        audit(left, script(SEED, ROUNDS), [], [psutil.Process()])
    _change_line(left / INJECTED, 0, kind=injections.TOO_MANY_DIE)
    planned = [type(each)(**{**asdict(each), "kind": injections.TOO_MANY_DIE}) for each in script(SEED, ROUNDS)]
    with pytest.raises(ChaosFailed, match="0 times the run said so"):
        audit(left, planned, ["the SuperLink ended"], [])
    why = "failed: round 3: 2 of 5 clients are left, fewer than the 3 of federation.min_clients"
    assert audit(left, planned, [why], [])["ends"] == {"too few clients, said so": 1}


@pytest.mark.parametrize(
    ("stage", "begun", "clients", "reason"),
    [
        ("attempt begun, not charged", ["4 0", "4 1"], [5, 5, 5, 4, 4], "a fresh attempt"),
        ("attempt begun, not charged", ["4 0", "5 0"], [5, 5, 5, 4, 4], "fewer clients"),
        ("attempt begun, not charged", ["4 0", "5 0", "5 1"], [5, 5, 5, 5, 5], "by nobody"),
        ("released, on record", ["4 0", "5 0", "5 1"], [5, 5, 5, 5, 4], "a fresh attempt"),
        ("charged, no checkpoint", ["4 0", "5 0"], [5, 5, 5, 5, 4], "fewer clients"),
    ],
)
def test_what_an_injection_on_nodes_did_is_recorded_of_the_attempt_it_met(stage, begun, clients, reason):
    metrics = [{"round": round_, "clients": count} for round_, count in enumerate(clients, start=1)]
    assert reason in _effect({"position": f"round 4, attempt 0: {stage}"}, begun, metrics)


def test_how_far_a_run_had_come_is_read_from_its_files(left):
    run = left / "run"
    assert position(run) == "round 10, attempt 0: released, on record"
    lines = _lines(run / "metrics.jsonl")
    (run / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert position(run) == "round 10, attempt 0: released, checkpoint written"
    for checkpoint in run.glob("checkpoint*"):
        checkpoint.unlink()
    assert position(run) == "round 10, attempt 0: charged, no checkpoint"
    _append(run / "attempts.log", "10 1")
    assert position(run) == "round 10, attempt 1: attempt begun, not charged"


def _spent(left: Path) -> float:
    return float(json.loads((left / "run" / "summary.json").read_text())["epsilon_spent"])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


@pytest.mark.slow
def test_forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink(tmp_path):
    planned = script(SEED, 40)
    assert {injections.SERVER_DIES, injections.LINK_DIES} < {each.kind for each in planned} and len(planned) == 4
    command = [sys.executable, "-m", "tests.laws.chaos", "--deployed", "--seed", str(SEED), "--rounds", "40"]
    place = tmp_path / "campaign"
    done = subprocess.run([*command, "--out", str(place)], cwd=ROOT, text=True, capture_output=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "completed" and found["processes_left"] == 0 and sum(found["blows"].values()) == 4
    assert found["epsilon"] == found["epsilon_replayed"] == found["epsilon_recomputed"] <= found["budget"]
    assert {"the SuperLink ended", "the ServerApp ended without a word"} <= set(found["ends"])
    assert not list(place.glob("place/keys*")) and not list(place.glob("place/certificates*")), "secrets are removed"
    _append(place / "run" / "attempts.log", "1 0")
    with pytest.raises(ChaosFailed, match="used twice"):
        audit(place, planned, json.loads((place / "ends.json").read_text()), [])


@pytest.mark.slow
def test_a_run_of_masked_sums_ends_though_sites_are_killed_and_every_ledger_says_the_same(tmp_path):
    """Ten rounds of what `python -m tests.laws.chaos --masked` does in 200: a site and its worker are killed in one."""
    command = [sys.executable, "-m", "tests.laws.chaos", "--masked", "--seed", "1", "--rounds", "12"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "masked")], cwd=ROOT, text=True, capture_output=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "completed" and found["blows"] == 1
    assert 0 < found["epsilon"] <= found["budget"] and found["attempts"] >= found["rounds"]
