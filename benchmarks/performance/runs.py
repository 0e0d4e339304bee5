"""Whole runs as benchmarks time them: their rounds apart from what comes before and after, here or in a process of its own.

    python -m benchmarks.performance.runs SETTINGS.json

runs the experiment whose sections the file holds, and prints what `Run` holds as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsw.experiment import load_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.runs.run_files import round_seconds

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "fedsw" / "shipped" / "experiments" / "fair-classification.toml"


@dataclass(frozen=True)
class Run:
    """Seconds and memory of a run.

    Attributes:
        rounds: seconds of every round.
        around: seconds of all that comes before the first round and after the last: data, greetings, files, held-out metrics.
        peak: largest resident memory of the process so far, in bytes.
        bytes_down, bytes_up: of arrays in messages, all rounds together.
    """

    rounds: tuple[float, ...]
    around: float
    peak: int
    bytes_down: int
    bytes_up: int

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return sum(self.rounds) + self.around


def timed_run(settings: Mapping[str, Any]) -> Run:
    """Run an experiment in process, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = run(settings, runs=Path(folder))
        seconds = time.perf_counter() - began
        rounds = tuple(round_seconds(result.directory))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    summary = result.summary
    return Run(rounds, seconds - sum(rounds), peak, int(summary["bytes_down"]), int(summary["bytes_up"]))


def run_apart(settings: Mapping[str, Any], *, timeout: float) -> Run:
    """The same in a fresh process, whose memory is its own.

    Raises:
        RuntimeError: with the last line of what the process wrote, if it failed, or with the time limit it went past.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.performance.runs", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not finished after {timeout:g} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"ended with status {done.returncode}: {last[0]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Run(**{**found, "rounds": tuple(found["rounds"])})


def synthetic(*, clients: int, records: int, rounds: int, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of fair classification on the synthetic law, measured once, at the end.

    Args:
        sections: settings that take the place of these, section by section.
    """
    settings: dict[str, Any] = {
        "name": "performance",
        "evaluate_every": rounds,
        "data": {"source": "synthetic", "records": records, "correlation": 0.7},
        "model": {"kind": "logistic"},
        "objective": {"alpha": 0.5},
        "clip": {"output": 0.5, "centre": 0.5, "jacobian": 1.0, "loss": 2.0},
        "training": {"rounds": rounds, "learning_rate": 0.5},
        "privacy": {"epsilon": 1.0, "delta": "0.1/n"},
        "federation": {"clients": clients, "timeout": 600.0},
    }
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    return settings


def overhead(clients: int, exchanges: int = 400) -> dict[str, float]:
    """Milliseconds per client message of an exchange whose clients do nothing."""
    app = ClientApp()

    @app.train("echo")
    def _echo(message: Message, context: Any) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(app, [{"partition-id": i, "num-partitions": clients} for i in range(clients)])
    arrays = ArrayRecord({"theta": Array(np.zeros(17, dtype=np.float32))})
    times = []
    for turn in range(exchanges):
        config = ConfigRecord({"round": turn, "attempt": 0})
        requests = {n: RecordDict({"arrays": arrays, "config": config}) for n in grid.get_node_ids()}
        began = time.perf_counter()
        exchange(grid, "train.echo", requests, group="g", timeout=60, traffic=Traffic())
        times.append((time.perf_counter() - began) * 1e3 / clients)
    grid.close()
    return {"median_ms": statistics.median(times), "p90_ms": statistics.quantiles(times, n=10)[-1]}


def whole_run(engine: str, rounds: int, clients: int, *, sites: int | None = None) -> None:
    """One private run of the shipped fair classification.

    On Ray every client is a node of its own, as Flower has it, unless `sites` says otherwise.
    """
    nodes = (clients if engine == "ray" else 1) if sites is None else sites
    settings = {"training.rounds": rounds, "federation.clients": clients, "federation.sites": nodes}
    settings["evaluate_every"] = rounds
    experiment = load_experiment(EXPERIMENT, [f"{name}={value}" for name, value in settings.items()])
    with tempfile.TemporaryDirectory() as folder:
        run(experiment, engine="ray" if engine == "ray" else "inprocess", runs=Path(folder))


if __name__ == "__main__":
    measured = timed_run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    print(json.dumps(dataclasses.asdict(measured)))
