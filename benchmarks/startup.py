"""How long a command takes from the shell: a fresh process each time, wall clock and processor time.

    python -m benchmarks.startup [--repeats 7]

`list`, `--help` and `--version` start without torch; `budget` computes with it. Commands take turns, so that whoever else
uses the cores disturbs all of them alike; `python` is an interpreter that does nothing, `import torch` one that imports
torch and ends, which no `budget` can go below. A run is timed from the shell to where its first round begins. Writes benchmarks/results/startup.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "startup.json"
BUDGET = "budget --sampling-rate 0.01 --steps 1000 --delta 1e-5 --noise-multiplier 1.0"
FIRST_ROUND = "run fair-classification, to its first round"
LIMITS = {"--help": 0.4, "list": 0.6, BUDGET: 2.5, FIRST_ROUND: 2.0}
"""Seconds of wall clock that the least of the times is to stay below."""

_TO_FIRST_ROUND = """
import os, pathlib, tempfile
import fedsw.cli.app, fedsw.cli._options
from fedsw.federation.engines.driver import run
from fedsw.runs.observer import NoObserver
class First(NoObserver):
    def started(self, plan):
        os._exit(0)
with tempfile.TemporaryDirectory() as folder:
    run("fair-classification", "training.rounds=1", runs=pathlib.Path(folder), observer=First())
"""
"""Imports, data, calibration, the greeting of clients and the first evaluation; then the process ends at once."""
_MAIN = "from fedsw.cli.app import program; program()"


def commands() -> dict[str, list[str]]:
    """What is timed, by name."""
    lines = [line for line in ("--version", *LIMITS) if line != FIRST_ROUND]
    fedsw = {line: [sys.executable, "-c", _MAIN, *line.split()] for line in lines}
    fedsw[FIRST_ROUND] = [sys.executable, "-c", _TO_FIRST_ROUND]
    plain = {"python": "pass", "import torch": "import torch"}
    return {**{name: [sys.executable, "-c", code] for name, code in plain.items()}, **fedsw}


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds of one process: wall clock, and processor time of user and system."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before, began = _used(), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, _used() - before


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    machine = describe()
    turns = [{name: measure(command) for name, command in commands().items()} for _ in range(repeats + 1)]
    turns = turns[1:]  # the first filled the cache of files
    times = {name: [turn[name] for turn in turns] for name in commands()}
    rows = [_row(name, found) for name, found in times.items()]
    RESULT.write_text(json.dumps({"repeats": repeats, "rows": rows, "machine": machine}, indent=1) + "\n")
    _print(rows)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _row(name: str, times: list[tuple[float, float]]) -> dict[str, Any]:
    wall, processor = zip(*times, strict=True)
    return {
        "command": name if name in ("python", "import torch") else f"fedsw {name}",
        "wall": {"least": min(wall), "median": statistics.median(wall)},
        "processor": {"least": min(processor), "median": statistics.median(processor)},
        "limit": LIMITS.get(name),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="start-up, seconds of a fresh process")
    table.add_column("command")
    for column in ("wall, least", "median", "processor, least", "median", "limit"):
        table.add_column(column, justify="right")
    for row in rows:
        found = [row[kind][what] for kind in ("wall", "processor") for what in ("least", "median")]
        table.add_row(row["command"], *(f"{value:.2f}" for value in found), f"{row['limit'] or '–'}")
    Console().print(table)


if __name__ == "__main__":
    main()
