"""Laws of time: no file that may be published says how long a round took; the log does, to the run's operator."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time

import pytest

from fedsw.runs.run_files import RunFile, round_seconds, total_seconds
from fedsw.runs.status import read_status
from tests.federations import small

DATE = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d")
OVERALL = {"config.json": 1, "summary.json": 2}
"""When a run began (in both) and when it ended: times of the whole."""


@pytest.mark.parametrize("overrides", [(), ("privacy.trust=local-gradient", "privacy.epsilon=8.0")])
def test_nothing_but_the_log_tells_when_a_round_was_released(federation, overrides):
    began = time.time()
    federation.run(small(*overrides))
    directory = federation.folder / "run1"
    texts = {path.name: path.read_text() for path in directory.iterdir() if path.suffix in (".json", ".jsonl", ".log")}
    for path in directory.rglob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            texts[path.name] = "\n".join(ledger.iterdump())
    assert len(texts) >= 6 and len(DATE.findall(texts.pop(RunFile.LOG))) == 6  # it begins, four rounds, it ends
    assert {name: len(found) for name, text in texts.items() if (found := DATE.findall(text))} == OVERALL
    for name, text in texts.items():
        moments = [float(number) for number in re.findall(r"\b\d{9,}\.?\d*\b", text)]
        assert not [moment for moment in moments if began - 3600 < moment < time.time() + 3600], name
    rounds = [json.loads(line) for line in texts["metrics.jsonl"].splitlines()]
    assert not [key for record in rounds for key in record if "second" in key or "time" in key]


def test_no_observer_sees_how_long_a_round_took_and_the_log_has_it(federation):
    slow = [0.0, 0.3, 0.0, 0.0]
    records = []

    class Watcher:
        def started(self, plan): ...

        def round_done(self, record):
            records.append(record)
            time.sleep(slow[len(records) % 4])  # part of the next round, by the log

        def finished(self, summary): ...

    summary = federation.run(small(), observer=Watcher())
    directory = federation.folder / "run1"
    found = round_seconds(directory)
    assert len(found) == len(records) == 4 and not any("seconds" in record for record in records)
    assert max(found) == found[1] >= 0.3
    assert sum(found) <= total_seconds(directory) <= summary["seconds"]


def test_every_process_counts_from_its_beginning_and_lines_cut_short_do_not(tmp_path):
    events = [("run begins", 0), ("round released", 2), ("client lost", 3), ("round released", 7), ("other", 9)]
    later = [("run begins", 30), ("round released", 31), ("run ended", 35)]
    events = [{"time": f"2026-01-01T00:00:{at:02d}.000+00:00", "event": event} for event, at in events + later]
    lines = [json.dumps(event) for event in events]
    (tmp_path / RunFile.LOG).write_text("\n".join([*lines[:5], lines[0][:20], *lines[5:]]) + "\n")
    assert round_seconds(tmp_path) == [2.0, 5.0, 1.0]
    assert total_seconds(tmp_path) == 9.0 + 5.0
    assert round_seconds(tmp_path / "none") == [] and total_seconds(tmp_path / "none") == 0.0


def test_a_status_says_that_its_times_are_the_operators(federation, capsys):
    from fedsw.cli.app import main

    federation.run(small())
    directory = federation.folder / "run1"
    found = read_status(directory).as_dict()
    assert set(found["operator_only"]) == {"seconds_per_round", "seconds_left", "seconds_since", "roll"}
    assert not [name for name in found if "second" in name]
    assert main(["show", str(directory), "progress"]) == 0
    assert "not for publication" in " ".join(capsys.readouterr().out.split())
