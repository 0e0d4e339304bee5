"""A round of real clients that are 100 ms away, beside the same on this machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.performance.runs import EXPERIMENT
from benchmarks.performance.timing import in_turns, spread
from fedsw.experiment import load_experiment
from fedsw.federation.deploy.processes import Processes, free_port
from fedsw.federation.engines.deployed import LocalFederation
from fedsw.federation.engines.driver import prepare_served, run_served
from fedsw.runs.observer import NoObserver
from fedsw.runs.run_files import round_seconds

RELAY = Path(__file__).parents[2] / "tests" / "federation" / "engines" / "relay.py"
CLIENTS, SECONDS_EACH_WAY = 3, 0.05
NEEDED = 2
"""Round trips of a round: a request and its reply in each of two exchanges."""


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`: a row that only reports."""
    rounds, turns = (3, 1) if quick else (30, 2)
    taken = in_turns(
        {"away": lambda: _round(rounds, away=True), "here": lambda: _round(rounds, away=False)}, turns=turns, warm_up=0
    )
    away, here = taken["away"].median, taken["here"].median
    trips = (away - here) / (2 * SECONDS_EACH_WAY)
    yield {
        "what": f"a quick round of {CLIENTS} real clients, {2000 * SECONDS_EACH_WAY:g} ms and a loss of 2 % away",
        "against": "the same on this machine",
        "ours": away,
        "other": here,
        "ratio": away / here,
        "goal": "",
        "met": None,
        "spread": spread(**taken),
        "note": f"the difference is {trips:.1f} round trips, where {NEEDED} are needed",
    }


def _round(rounds: int, *, away: bool) -> float:
    """Seconds that a tenth of a run's rounds stay below."""
    settings = {"training.rounds": rounds, "federation.clients": CLIENTS, "federation.timeout": 600.0}
    experiment = load_experiment(EXPERIMENT, [f"{name}={value}" for name, value in settings.items()])
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        directory = prepare_served(experiment, Path(folder) / "runs")
        federation = LocalFederation(processes, Path(folder) / "deployment", directory / "nodes", experiment)
        link = federation.start_link()
        ways = [f"127.0.0.1:{free_port()}", link.address, str(SECONDS_EACH_WAY)]
        with subprocess.Popen([sys.executable, str(RELAY), *ways]) as relay:
            try:
                for client in federation.clients:
                    federation.start_node(client, through=ways[0] if away else None)
                federation.wait_until_online(federation.clients)
                run_served(link, directory, NoObserver(), resume=False)
            finally:
                relay.kill()
        return statistics.quantiles(round_seconds(directory)[1:], n=10)[0]
