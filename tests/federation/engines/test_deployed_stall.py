"""A law of real processes: a client's node that stands still for longer than its lease ends no run."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedsw.federation.engines.driver import run

RAW = {
    "name": "stall",
    "data": {"records": 400, "test_records": 100},
    "training": {"rounds": 8, "batch_fraction": 0.2},
    "federation": {"clients": 2, "timeout": 120.0},
    "privacy": {"epsilon": 3.0, "delta": 1e-4},
}
SECONDS = 30.0
"""Longer than a lease of 20 s."""


def node_of(client: int) -> list[psutil.Process]:
    """The processes of a client's node that this test's run has started."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if f"partition-id={client} " in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
    return found


class Stops:
    """An observer that stops a client's node after the third round, for a while."""

    def __init__(self) -> None:
        self.stopped: list[psutil.Process] = []

    def started(self, plan: dict[str, Any]) -> None: ...
    def finished(self, summary: dict[str, Any]) -> None: ...
    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            self.stopped = node_of(1)
            for process in self.stopped:
                process.suspend()
            threading.Timer(SECONDS, self.resume).start()

    def resume(self) -> None:
        for process in self.stopped:
            with contextlib.suppress(psutil.Error):
                process.resume()


@pytest.mark.slow
def test_a_node_that_stands_still_for_half_a_minute_ends_no_run(tmp_path: Path) -> None:
    observer = Stops()
    result = run(RAW, engine="deployed", runs=tmp_path, observer=observer)
    assert len(observer.stopped) >= 2, "the node and its worker"
    assert result.summary["status"] == "completed" and result.summary["released_rounds"] == 8
    assert result.summary["clients"] == 2
