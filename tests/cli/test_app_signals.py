"""A signal that ends a command comes to its own process alone, and ends in order all that the command started."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsw.cli.app import main
from fedsw.federation.deploy.processes import free_port, script
from tests.laws.tables.test_every_verb import drafted
from tests.processes import interruptible, left_of_this_test, mark

pytestmark = pytest.mark.slow
OWN = ["own.toml", "--data-dir", "DATA"]


def waited(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def compare_has_begun() -> object:
    return [path for path in Path("runs").glob("**/metrics.jsonl") if path.stat().st_size]


def tune_has_begun() -> object:
    return [path for path in Path("folders").glob("*/own*/**/metrics.jsonl")]  # of its twins


def server_has_begun() -> object:
    return Path("superlink/logs/superlink.log").exists() and Path("runs/own").is_dir()


@pytest.mark.parametrize(
    ("words", "begun", "said"),
    [
        (
            ["compare", *OWN, "--jobs", "2", "--seeds", "8"],
            compare_has_begun,
            "compare --resume runs/compare/own",
        ),
        (["tune", *OWN], tune_has_begun, "interrupted"),
        (["server", "own.toml", "--certs", "fed/server", "--port", "PORT"], server_has_begun, "interrupted"),
    ],
    ids=["compare", "tune", "server"],
)
def test_sigterm_to_the_command_alone_ends_it_in_order(tmp_path, monkeypatch, words, begun, said):
    monkeypatch.chdir(tmp_path)
    mark(monkeypatch)
    Path("folders").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "folders"))
    drafted("bought")
    assert main(["certs", "--host", "localhost", "--clients", "3", "--out", "fed"]) == 0
    line = [str(free_port()) if word == "PORT" else word for word in words]
    command = subprocess.Popen(
        [script("fedsw"), *line],
        start_new_session=True,
        preexec_fn=interruptible,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert waited(lambda: command.poll() is not None or begun()) and command.poll() is None
        command.send_signal(signal.SIGTERM)
        _, shown = command.communicate(timeout=90)
    finally:
        command.kill()  # it has ended, or the test has failed
    assert command.returncode == 128 + signal.SIGTERM and said in shown and "Traceback" not in shown
    assert not left_of_this_test()
