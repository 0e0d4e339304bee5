"""Laws of `fedsw show RUN progress`: its files show how far a run has come, whatever became of its process."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fedsw._tools.settings import FederationError
from fedsw.cli.app import main
from fedsw.runs import recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.status import read_status
from fedsw.runs.view import read_run
from tests.federations import Saboteur, small


def broken(federation, round_: int) -> Path:
    def hook(message, context):
        if message.metadata.message_type == "train.outputs" and message.content["config"]["round"] == round_:
            raise OSError("gone")

    with pytest.raises(FederationError):
        federation.run(small(), app=Saboteur(hook))
    return federation.folder / f"run{federation.runs}"


def test_while_it_runs_the_status_follows_every_round(federation):
    seen = []

    class Looker:
        def started(self, plan):
            seen.append(read_status(federation.folder / "run1"))

        def round_done(self, record):
            seen.append(read_status(federation.folder / "run1"))

        def finished(self, summary): ...

    summary = federation.run(small(), observer=Looker())
    assert [status.state for status in seen] == ["starting", *["running"] * 4]
    assert [status.round for status in seen] == [0, 1, 2, 3, 4]
    spent = [status.epsilon_spent for status in seen]
    assert spent == sorted(spent) and spent[0] == 0 and spent[-1] == summary["epsilon_spent"]
    assert seen[2].seconds_left == pytest.approx(2 * seen[2].seconds_per_round)
    assert seen[2].clients_alive == seen[2].clients == 3 and seen[2].snr is not None
    done = read_status(federation.folder / "run1")
    assert (done.state, done.why, done.seconds_left) == ("finished", "", None)
    assert (done.bytes_up, done.bytes_down) == (summary["bytes_up"], summary["bytes_down"])


def test_after_a_failure_it_says_why_and_after_a_kill_that_nobody_said(federation):
    directory = broken(federation, 3)
    status = read_status(directory)
    assert status.state == "stopped" and "0 of 3 clients are left" in status.why and status.round == 2
    assert "gone" not in status.why  # a client's own words are not written
    (directory / "summary.json").unlink()  # as SIGKILL leaves it
    status = read_status(directory)
    assert status.state == "stopped" and "without a word" in status.why and status.round == 2


def test_a_round_that_was_charged_but_not_finished_counts_as_spent(federation):
    federation.run(small())
    directory = federation.folder / "run1"
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    (directory / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n")
    status = read_status(directory)
    assert status.round == 2
    assert json.loads(lines[1])["epsilon"] < status.epsilon_spent == pytest.approx(json.loads(lines[3])["epsilon"])


def test_a_summary_of_an_earlier_process_is_not_shown_after_a_process_that_was_killed(federation, monkeypatch):
    """It knows nothing of what was spent since."""
    directory = broken(federation, 3)
    first = read_run(directory).summary
    assert first["released_rounds"] == 2

    def killed(*_):
        raise OSError("killed")

    monkeypatch.setattr(RunDirectory, "write_summary", killed)
    with pytest.raises(OSError, match="killed"):
        federation.run(small(), directory=directory, resume=True)
    assert json.loads((directory / "summary.json").read_text()) == first
    status = read_status(directory)
    assert read_run(directory).summary == {} and (status.state, status.round) == ("stopped", 4)
    assert "without a word" in status.why and status.epsilon_spent > first["epsilon_spent"]


def test_a_run_that_is_held_but_shows_no_sign_is_stalled(federation):
    directory = broken(federation, 3)
    with recovery.held(directory):
        assert read_status(directory).state == "running"
        for path in directory.iterdir():
            os.utime(path, (1, 1))
        assert read_status(directory).state == "stalled"


def test_under_local_trust_every_client_s_epsilon_is_shown(federation):
    directory = federation.folder / "run1"
    summary = federation.run(small("privacy.trust=local-gradient", "privacy.epsilon=5.0"))
    status = read_status(directory)
    reported = summary["epsilon_spent_by_client"]
    assert status.epsilon_by_client == {client: pytest.approx(value, rel=1e-9) for client, value in reported.items()}
    for path in (directory / "clients").iterdir():  # clients on other machines: what they reported is on record
        path.unlink()
    assert read_status(directory).epsilon_by_client == pytest.approx(reported)


def test_the_command_prints_json_and_a_table_and_watches_until_the_end(federation, capsys):
    federation.run(small())
    directory = str(federation.folder / "run1")
    assert main(["show", directory, "progress", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "finished" and found["round"] == found["rounds"] == 4
    assert main(["show", directory, "progress"]) == 0
    shown = capsys.readouterr().out
    assert "finished" in shown and "4 of 4" in shown
    assert main(["show", directory, "progress", "--watch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "finished"


def test_watching_ends_when_the_run_does(federation, capsys):
    directory = broken(federation, 3)
    watching = threading.Thread(
        target=main, args=(["show", str(directory), "progress", "--watch", "--every", "0.2", "--json"],)
    )
    with recovery.held(directory):
        watching.start()
        watching.join(1.0)
        assert watching.is_alive()
    watching.join(60)
    assert not watching.is_alive()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "stopped"


def test_the_roll_call_is_shown_with_the_progress_and_a_run_that_was_refused_did_not_begin(federation, capsys):
    def refuse(message, context):
        if message.metadata.message_type == "query.hello" and context.node_config["partition-id"] == 1:
            raise ValueError("not with these columns")

    experiment = small()
    RunDirectory(federation.folder / "run1").make()
    RunDirectory(federation.folder / "run1").write_config(experiment, "served")
    with pytest.raises(FederationError):
        federation.run(experiment, app=Saboteur(refuse), engine="served")
    directory = str(federation.folder / "run1")
    assert main(["show", directory, "progress"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "stopped it did not begin: refused by client 1 (node 1001)" in shown
    assert "refused, code" in shown and "not with these columns" in shown
    assert main(["show", directory, "progress", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [entry["state"] for entry in plain["operator_only"]["roll"]] == ["connected", "refused", "connected"]
    assert "roll" not in plain
    federation.run(experiment, engine="served")
    assert main(["show", str(federation.folder / "run2"), "progress", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["state"] == "finished"
    assert {entry["state"] for entry in plain["operator_only"]["roll"]} == {"greeted"}
