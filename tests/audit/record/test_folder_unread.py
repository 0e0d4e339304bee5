"""A folder that cannot be written to is read, and one that cannot be read is accused of nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import fedsw
from fedsw.audit.record import audit
from fedsw.cli.app import main


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {
        "name": "kept",
        "data": {"records": 200, "test_records": 60},
        "training": {"rounds": 2, "batch_fraction": 0.2},
        "federation": {"clients": 2},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
    }
    return Path(fedsw.run(settings, runs=tmp_path_factory.mktemp("kept")).directory)


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of a run on a medium that takes no writing: SQLite can make no index beside its ledger."""
    copied = shutil.copytree(finished, tmp_path / "run")
    for end in ("-wal", "-shm"):
        (copied / f"ledger.sqlite{end}").unlink(missing_ok=True)
    (copied / "ledger.sqlite-shm").mkdir()
    return copied


@pytest.fixture
def unread(run, monkeypatch) -> Path:
    """The same with rows in a log that nobody can read."""
    (run / "ledger.sqlite-wal").write_bytes(b"rows")

    def refused(where, options):
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("fedsw._tools.database._readable", refused)
    return run


def test_a_run_on_a_medium_that_takes_no_writing_passes_and_is_shown(run, tmp_path, capsys):
    assert audit(run).passed
    for command in (["show", str(run)], ["show", str(run), "ledger"], ["report", str(run), "-o", str(tmp_path / "r")]):
        assert main(command) == 0, capsys.readouterr().err


def test_a_ledger_that_cannot_be_read_is_a_verdict_of_its_own(unread, tmp_path, capsys):
    found = audit(unread)
    assert found.outcome == "could not be read" and not found.passed and found.details["failed"] == []
    assert "ledger chain" in found.details["not_read"]
    assert main(["audit", str(unread), "--json", "-o", str(tmp_path / "audits")]) == found.exit_code == 5
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "could not be read" and said["passed"] is False
    assert main(["audit", str(unread), "-o", str(tmp_path / "audits")]) == 5
    assert "COULD NOT BE READ" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [["show"], ["show", "ledger"], ["report"]])
def test_every_reader_says_why_it_cannot_read_and_what_helps(unread, capsys, verb):
    assert main([verb[0], str(unread), *verb[1:]]) == 1
    said = capsys.readouterr().err
    assert "ledger.sqlite cannot be read" in said and "Copy the whole folder" in said


def test_what_contradicts_the_claim_fails_though_the_rest_cannot_be_read(unread):
    (unread / "log.jsonl").write_text('{"event": "round released", "seconds": 3}\n')
    found = audit(unread)
    assert found.outcome == "failed" and found.exit_code == 1 and found.details["not_read"]
