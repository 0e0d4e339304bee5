"""Laws of following a run that another process makes: what is in its folder is shown once, from the first second."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsw._tools.installed import code_digest
from fedsw.cli import deploy as verbs
from fedsw.cli.app import main
from fedsw.federation.deploy import serving
from fedsw.federation.engines import driver
from fedsw.federation.engines.following import Follower, ServiceFollower
from fedsw.runs import telemetry
from fedsw.runs.observer import NoObserver
from fedsw.runs.progress import RollLines
from fedsw.runs.roll_call import Called, keep_roll, read_roll
from fedsw.runs.run_files import RUNS_REPORTED, report_run, reported_runs
from tests.federations import small

ONE = Called(11, 0, "north.pub", "ab" * 32, "1.41.0", 0.0)
OTHER = Called(12, key="south.pub")


class Attendant(NoObserver):
    def __init__(self) -> None:
        self.called, self.lines, self.plans, self.summaries = [], [], [], []
        self._lines = RollLines(self.lines.append)

    def roll_called(self, called):
        self.called.append(called)
        self._lines.roll_called(called)

    def started(self, plan):
        self.plans.append(plan)

    def finished(self, summary):
        self.summaries.append(summary)


def test_who_is_there_is_shown_before_the_run_begins_and_each_line_once(tmp_path):
    attendant = Attendant()
    keep_roll(tmp_path, [replace(ONE, state="away")])
    follower = Follower(tmp_path, small(), attendant)
    follower.look()
    assert not attendant.called, "of an earlier process"
    for called in ([ONE], [ONE, OTHER], [ONE, replace(OTHER, client=1, state="refused", why="no\x1b[2J more")]):
        keep_roll(tmp_path, called)
        follower.look()
        follower.look()
    assert [len(called) for called in attendant.called] == [1, 2, 2] and not attendant.plans
    assert attendant.lines == [
        "client 0 (node 11, key north.pub): connected, "
        f"code abababababab (here {code_digest()[:12]}), Flower 1.41.0, clock +0.0 s",
        "a client (node 12, key south.pub): connected",
        "client 1 (node 12, key south.pub): refused: no [2J more",
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"clients": 3}', '{"clients": [{"node": 1}]}', '{"clients": ["a"]}'])
def test_a_damaged_roll_call_is_none(tmp_path, text):
    (tmp_path / "roll.json").write_text(text)
    assert read_roll(tmp_path) == ()


def test_the_run_that_was_submitted_last_to_a_service_is_shown_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_REPORTED, str(tmp_path / "runs.jsonl"))
    attendant = Attendant()
    service = ServiceFollower(_Link(tmp_path / "runs.jsonl"), attendant)
    service.look()
    for name in ("first", 'second "run"'):
        folder = tmp_path / name
        folder.mkdir()
        report_run(folder)
        service.look()
        keep_roll(folder, [ONE])
        service.look()
        (folder / "config.json").write_text(json.dumps({"experiment": {"name": name, "training": {"rounds": 5}}}))
        (folder / "metrics.jsonl").write_text('{"round": 1}\n')
        service.look()
        (folder / "summary.json").write_text('{"status": "completed"}')
        service.look()
        service.look()
    assert [(plan["name"], plan["rounds"]) for plan in attendant.plans] == [("first", 5), ('second "run"', 5)]
    assert attendant.summaries == [{"status": "completed"}] * 2 and len(attendant.called) == 2


class _Link:
    """A SuperLink that serves until somebody has looked twice."""

    def __init__(self, told: Path) -> None:
        self._told, self._left = told, 2
        self.process, self.processes = self, SimpleNamespace(said=lambda name: "stopped by the test")

    @property
    def runs(self) -> list[Path]:
        return reported_runs(self._told)

    def poll(self) -> int | None:
        self._left -= 1
        return None if self._left > 0 else 0


@pytest.mark.parametrize("verb", ["deploy local", "server", "service"])
def test_every_verb_of_real_processes_serves_metrics_from_before_anything_is_started(verb, tmp_path, monkeypatch):
    opened: list[int] = []

    class Endpoint(Attendant):
        port, token = 0, "its token"

        def __init__(self, port: int) -> None:
            super().__init__()
            opened.append(port)

        def __enter__(self):
            return self

        def __exit__(self, *ended) -> None: ...

    def begins(*about, **more):
        assert opened == [9555], "before anything is started"
        raise RuntimeError("as far as that")

    @contextlib.contextmanager
    def serves(*about, **more):
        with contextlib.suppress(RuntimeError):
            begins()
        yield _Link(tmp_path / "runs.jsonl")

    monkeypatch.setattr(telemetry, "MetricsEndpoint", Endpoint)
    monkeypatch.setattr(serving, "serving", serves)
    monkeypatch.setattr(driver, "run", begins)
    monkeypatch.setattr(driver, "run_served", begins)
    monkeypatch.setattr(verbs, "_LOOK_SECONDS", 0.0)
    words = {
        "deploy local": ["deploy", "local", "fair-classification", "training.rounds=1", "--clients", "2"],
        "server": ["server", "--certs", "certs", "fair-classification", "federation.clients=2"],
        "service": ["server", "--certs", "certs"],
    }[verb]
    runs = [] if verb == "service" else ["--runs", str(tmp_path)]
    assert main([*words, *runs, "--metrics-port", "9555"]) != 0 and opened == [9555]
