"""Laws of a deployment's processes: what is stopped and what is not, who is let in, what is shown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedsw._tools.settings import FederationError
from fedsw.federation import OFFLINE
from fedsw.federation.deploy import executor as warm_executor
from fedsw.federation.deploy import processes as deploy_processes
from fedsw.federation.deploy import superlink as warm_superlink
from fedsw.federation.deploy.processes import MARK, Processes, free_port
from fedsw.federation.deploy.watchdog import marked
from fedsw.federation.engines import deployed
from fedsw.federation.engines.driver import resume
from fedsw.federation.engines.following import Follower
from fedsw.runs.directory import RunDirectory
from fedsw.runs.recovery import RunBusy, held
from tests.federations import small
from tests.pretended_runs import Watcher

# SLEEPER starts a process in a session of its own, as Flower's do, and both sleep.
SLEEPER = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
)


def test_everything_started_is_stopped_and_nothing_else(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        with pytest.raises(ZeroDivisionError), Processes(tmp_path) as processes:
            processes.start("sleeper", [sys.executable, "-c", SLEEPER])
            started = _wait_for(lambda: processes.alive() if len(processes.alive()) == 2 else [])
            raise ZeroDivisionError
        assert len(started) == 2 and not any(_runs(process) for process in started)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_process_said_is_not_what_an_earlier_one_of_its_name_said(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        for word in ("first", "second"):
            processes.start("speaker", [sys.executable, "-c", f"print({word!r})"]).wait()
            assert processes.said("speaker") == word and processes.ended("speaker")
    assert (tmp_path / "speaker.log").read_text().split() == ["first", "second"]


def test_a_killed_server_app_is_found_out_while_its_submission_waits(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(deployed, "_LOCK_SECONDS", 0.2)
    run, held = tmp_path / "run", f"with held(Path({str(tmp_path / 'run')!r})): print('held', flush=True), sleep(600)"
    run.mkdir()
    with Processes(tmp_path) as processes:
        program = f"from pathlib import Path\nfrom time import sleep\nfrom fedsw.runs.recovery import held\n{held}"
        server = processes.start("server", [sys.executable, "-c", program])
        assert _wait_for(lambda: "held" in processes.said("server"))

        class Link:
            def submit(self, directory: Path, modules: Sequence[str], *, resume: bool) -> Any:
                threading.Timer(1.0, server.kill).start()
                return processes.start("run", ["sleep", "600"])

        link: Any = Link()
        link.process, link.processes = processes.start("superlink", ["sleep", "600"]), processes
        with pytest.raises(RuntimeError, match="ended without a word"):
            deployed.follow(link, run, small(), Watcher(), resume=False)
        assert not processes.ended("run")


@pytest.mark.parametrize("lock", ["run.lock", "deployment.lock"])
def test_going_on_with_a_run_that_is_going_on_touches_nothing_of_it(tmp_path: Path, lock: str) -> None:
    """Its server holds the run, or its processes are still starting."""
    RunDirectory(tmp_path).write_config(small(), "deployed")
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "node.key").write_text("secret")
    with held(tmp_path, lock):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(RunBusy, match="is being run by another process"):
            resume(tmp_path)
        with pytest.raises(RunBusy, match="is being run by another process"):
            deployed.run(tmp_path, small(), Watcher(), resume=True)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before.items() <= after.items()


class Refusing:
    """A SuperLink whose run ends at once; `leave` is what it leaves."""

    def __init__(self, processes: Processes, leave: Callable[[], object]) -> None:
        self.processes, self._leave = processes, leave
        self.process = processes.start("superlink", ["sleep", "600"])

    def submit(self, directory: Path, modules: Sequence[str], *, resume: bool) -> Any:
        self._leave()
        return self.processes.start("run", ["true"])


def test_a_refused_resumption_keeps_the_summary_and_does_not_take_it_for_its_own(tmp_path: Path) -> None:
    """The earlier summary also remembers where the ledger stood, which the run compares its ledger with."""
    directory, old = RunDirectory(tmp_path / "run"), {"status": "stopped before round 3: the budget", "ledger": None}
    directory.make()
    directory.write_summary(old)
    with Processes(tmp_path) as processes:
        link: Any = Refusing(processes, lambda: None)
        with pytest.raises(RuntimeError, match="never started"):
            deployed.follow(link, directory.path, small(), Watcher(), resume=True)
        assert json.loads(directory.summary.read_text()) == old

        link = Refusing(processes, lambda: directory.write_summary({"status": "completed"}))
        watcher = Watcher()
        deployed.follow(link, directory.path, small(), watcher, resume=True)
        assert watcher.summaries == [{"status": "completed"}]


def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(deploy_processes, "end", lambda name, mark: _end(name, mark, grace=0.3))
    with Processes(tmp_path) as processes:
        stubborn = processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        _wait_for(lambda: "ready" in processes.said("stubborn"))
    assert stubborn.returncode == -signal.SIGKILL


def test_the_watchdog_stops_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    parent = subprocess.Popen([sys.executable, "-c", _ORPHANS.format(logs=str(tmp_path), mark=str(mark))])
    _wait_for(lambda: mark.exists() and mark.read_text())
    assert _wait_for(lambda: len(marked(MARK, mark.read_text())) == 2)
    parent.kill()
    parent.wait()
    assert _wait_for(lambda: not marked(MARK, mark.read_text()))


_ORPHANS = f"""
import os, pathlib, sys, time
from fedsw.federation.deploy.processes import Processes
with Processes(pathlib.Path({{logs!r}})) as processes:
    processes.start("sleeper", [sys.executable, "-c", {SLEEPER!r}])
    part = pathlib.Path({{mark!r}} + ".part")
    part.write_text(processes.mark)
    os.replace(part, {{mark!r}})
    time.sleep(600)
"""


def test_children_are_set_not_to_phone_home_and_where_flower_s_commands_are(tmp_path: Path) -> None:
    with Processes(tmp_path, {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_HOME": "here"}) as processes:
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        processes.start("child", [sys.executable, "-c", code], {"MINE": "too"}).wait()
        environment = json.loads(processes.said("child", 10**6))
    assert {name: environment[name] for name in OFFLINE} == OFFLINE
    assert (environment["MINE"], environment["FLWR_HOME"], environment[MARK]) == ("too", "here", processes.mark)
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_process_that_does_not_start_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        ends = [sys.executable, "-c", "raise SystemExit('port taken')"]
        with pytest.raises(RuntimeError, match="superlink ended; it said:\nport taken"):
            processes.start_listening("superlink", ends, free_port())


def test_every_released_round_is_shown_once_and_a_line_that_is_being_written_is_not(tmp_path: Path) -> None:
    watcher, metrics = Watcher(), tmp_path / "metrics.jsonl"
    follower = Follower(tmp_path, small("training.rounds=7", "federation.clients=4"), watcher)
    follower.look()
    assert not watcher.plans
    (tmp_path / "ledger.sqlite").touch()
    follower.look()
    assert [(plan["rounds"], plan["clients"]) for plan in watcher.plans] == [(7, 4)]
    metrics.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    follower.look()
    follower.look()
    with metrics.open("a") as file:
        file.write('nd": 3}\n')
    follower.look()
    assert [record["round"] for record in watcher.records] == [1, 2, 3] and len(watcher.plans) == 1


def test_a_resumed_run_that_dropped_rounds_is_shown_from_what_it_kept(tmp_path: Path) -> None:
    """It puts another file in the place: the old position would be in the middle of a line, or past the end."""
    watcher, metrics = Watcher(), tmp_path / "metrics.jsonl"
    follower = Follower(tmp_path, small("training.rounds=7"), watcher)
    metrics.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n')
    follower.look()
    (tmp_path / "new").write_text('{"round": 1, "kept": true}\n{"round": 2, "again": true}\n')
    (tmp_path / "new").replace(metrics)
    follower.look()
    with metrics.open("a") as file:
        file.write('{"round": 3, "again": true}\n')
    follower.look()
    assert [record["round"] for record in watcher.records] == [1, 2, 3, 1, 2, 3] and watcher.records[-1]["again"]


@pytest.mark.parametrize(
    ("peer", "path", "passes"),
    [
        (("10.0.0.9", 5), "/v1/control/register-node", False),
        (("10.0.0.9", 5), "/v1/control/start-run", False),
        (("10.0.0.9", 5), "/v1/runtime/acquire-task", False),
        (("10.0.0.9", 5), "/v1/runtime/collect", False),
        (("10.0.0.9", 5), "/docs", False),
        (None, "/v1/control/start-run", False),
        (("10.0.0.9", 5), "/v1/fleet/take", True),
        (("127.0.0.1", 5), "/v1/control/start-run", True),
        (("::1", 5), "/v1/runtime/collect", True),
        (("::ffff:127.0.0.1", 5), "/v1/control/start-run", True),
    ],
)
def test_other_machines_reach_the_nodes_interface_only(peer: Any, path: str, passes: bool) -> None:
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    asyncio.run(warm_superlink.LoopbackOnly(app)({"type": "http", "path": path, "client": peer}, None, send))
    assert bool(reached) == passes and (passes or sent[0]["status"] == 403)


@pytest.mark.parametrize("main", [warm_executor.main, warm_superlink.main])
def test_another_flower_is_refused_with_the_way_out(main: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.43.0")
    with pytest.raises(SystemExit, match=r"need Flower 1\.41 or 1\.42, not 1\.43\.0.*--stock"):
        main(["superlink"])


def test_warm_modules_import_none_of_the_app_s_code() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import {0}; print([m for m in sys.modules if m in {1}])"
    own = ("clients", "fedsw", "server")
    for name in ("executor", "superlink", "apps", "connections"):
        folder = str(Path(warm_executor.__file__).parent)
        command = [sys.executable, "-P", "-c", code.format(name, own), folder]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_mark_finds_living_processes_only(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("short", [sys.executable, "-c", "pass"])
        _wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not processes.alive()


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _end(name: str, mark: str, *, grace: float) -> None:
    from fedsw.federation.deploy.watchdog import end

    end(name, mark, grace=grace)


def _wait_for(condition: Any, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_a_server_without_its_clients_says_so_in_one_line_and_shows_no_traceback():
    output = (
        "Start `flwr-serverapp` process\nERROR : ServerApp raised an exception\nTraceback (most recent call last):\n"
        '  File "app.py", line 26, in main\n    federate(grid)\n'
        "fedsw._tools.settings.FederationError: 0 of 2 clients are online after 8 s; start the others\nExit Code: 201\n"
    )
    said = deployed._why("never started", output)
    assert isinstance(said, FederationError)
    assert str(said) == "the deployed run never started: 0 of 2 clients are online after 8 s; start the others"
    assert "killed" in str(deployed._why("never started", "killed"))
