"""A simulation over four workers on two Ray nodes of this machine, beside the same in one process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.performance.runs import synthetic
from benchmarks.performance.timing import in_turns, spread
from fedsw.federation.deploy.processes import free_port
from fedsw.federation.engines import Engine
from fedsw.federation.engines.driver import run
from fedsw.runs.observer import NoObserver
from fedsw.runs.run_files import round_seconds

PLACES = (2, 2)
"""Workers on each node."""
_RAY = str(Path(sys.executable).with_name("ray"))
_STARTS, _START_SECONDS = 3, 90.0


@contextlib.contextmanager
def ray_nodes(places: Sequence[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ray nodes of this machine with so many places for sites each, the head first; RAY_ADDRESS names their cluster.

    Each is a process group: a signal to all of it is a node that dies at once. Ray notes a cluster in a folder, here one
    that is removed: later runs would look for this cluster in the usual one. Its path is short, for sockets are in it.
    """
    nodes: list[subprocess.Popen[bytes]] = []
    folder, address = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), f"127.0.0.1:{free_port()}"
    before = {name: os.environ.get(name) for name in ("RAY_ADDRESS", "RAY_TMPDIR")}
    os.environ |= {"RAY_TMPDIR": str(folder)}
    try:
        for number, count in enumerate(places):
            head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard=false"]
            words = [*(["--address", address] if number else head), "--node-ip-address", "127.0.0.1"]
            nodes.append(_started([_RAY, "start", *words, f"--num-cpus={count}", "--block"], address, number + 1))
        os.environ |= {"RAY_ADDRESS": address}
        yield nodes
    finally:
        for node in nodes:
            kill(node)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def _started(command: list[str], address: str, nodes: int) -> subprocess.Popen[bytes]:
    """Start a node and wait until the cluster has it. Ray gives its helpers 15 seconds, which a busy machine may not."""
    for _ in range(_STARTS):
        node = subprocess.Popen(
            [*command, "--object-store-memory=200000000"],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _START_SECONDS
        while node.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(_split(address), 1):
                asked = [_RAY, "status", "--address", address]
                if subprocess.run(asked, capture_output=True, text=True).stdout.count(" node_") >= nodes:
                    return node
            time.sleep(3)  # `ray status` takes two seconds of a processor
        kill(node)
    raise RuntimeError(f"a Ray node did not start {_STARTS} times: {' '.join(command)}")


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)


def kill(node: subprocess.Popen[bytes]) -> None:
    """End all processes of a node at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def missing() -> str:
    """Reason why nothing can be measured here, or nothing."""
    return "" if Path(_RAY).exists() else "Ray is not installed"


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`: rows that only report."""
    clients, rounds, turns = (8, 2, 1) if quick else (10**5, 6, 3)
    jobs = {
        "logistic, 1000 records a round": {"training": {"batch_size": 500}},
        "perceptron of 3 × 256, 20 000 records a round": {
            "training": {"batch_size": 10_000},
            "model": {"kind": "mlp", "hidden": [256, 256, 256]},
        },
    }
    with ray_nodes(PLACES):
        for what, sections in jobs.items():
            settings = synthetic(clients=clients, records=max(2 * clients, 60_000), rounds=rounds, **sections)
            many = f"{clients:,}".replace(",", " ")
            yield _row(f"{many} clients, {what}", settings, turns)


def _row(what: str, settings: dict[str, Any], turns: int) -> dict[str, Any]:
    around: dict[str, list[float]] = {"inprocess": [], "ray": []}
    workers = _Workers()

    def once(engine: Engine) -> float:
        sites = {"sites": sum(PLACES)} if engine == "ray" else {}
        federation = {**settings["federation"], **sites, "timeout": 900.0}
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            result = run({**settings, "federation": federation}, engine=engine, runs=Path(folder), observer=workers)
            whole, rounds = time.perf_counter() - began, round_seconds(result.directory)
        around[engine].append(whole - sum(rounds[1:]))
        return sum(rounds[1:]) / len(rounds[1:])

    taken = in_turns({"ours": lambda: once("inprocess"), "cluster": lambda: once("ray")}, turns=turns, warm_up=0)
    ours, cluster = taken["ours"].median, taken["cluster"].median
    before = {engine: sorted(seconds)[len(seconds) // 2] for engine, seconds in around.items()}
    return {
        "what": f"a round, {what}, one process",
        "against": f"{sum(PLACES)} workers on {len(PLACES)} Ray nodes of this machine",
        "ours": ours,
        "other": cluster,
        "ratio": cluster / ours,
        "goal": "",
        "met": None,
        "spread": spread(**taken),
        "note": "",
        "job": what,
        "around": before,
        "worker_bytes": workers.peak,
    }


class _Workers(NoObserver):
    """Notes the largest resident memory of one of Ray's workers."""

    peak = 0

    def round_done(self, record: dict[str, Any]) -> None:
        for process in psutil.process_iter(["cmdline", "memory_info"]):
            if (process.info["cmdline"] or [""])[0].startswith("ray::ClientAppActor"):
                self.peak = max(self.peak, process.info["memory_info"].rss)
