"""A run that is broken on purpose: 200 rounds, 5 clients, a fault in every ten rounds, 3 seeds.

    python -m benchmarks.chaos [--rounds 200] [--seeds 3]

Faults are drawn from those of `simulations.chaos.faults`: at clients, on the wire, at the server's process (SIGKILL at
seven places of a round) and on its disk. A server that died is started again; the ledger is compared with its replay
and with a list of charges that a witness kept apart from it. Writes benchmarks/results/chaos.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe

RESULT = Path(__file__).parent / "results" / "chaos.json"
COLUMNS = (
    "seed", "seconds", "lives", "charges", "releases", "charged_but_not_released", "abandoned_attempts", "epsilon",
    "epsilon_replayed", "epsilon_of_the_witness", "processes_left",
)  # fmt: skip


def one(seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: lives are forked from one that has trained nothing."""
    command = [sys.executable, "-m", "simulations.chaos", "--seed", str(seed), "--rounds", str(rounds)]
    done = subprocess.run([*command, "--out", str(folder)], text=True, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [one(seed, given.rounds, Path(folder) / str(seed)) for seed in range(given.seeds)]
    RESULT.write_text(json.dumps({"machine": describe(), "runs": runs}, indent=1) + "\n")
    table = Table(*(name.replace("_", " ") for name in COLUMNS))
    for run in runs:
        table.add_row(*(f"{run[name]:.4g}" if isinstance(run[name], float) else str(run[name]) for name in COLUMNS))
    Console().print(table)


if __name__ == "__main__":
    main()
