"""A run that is broken on purpose: 200 rounds, 5 clients, a fault in every ten rounds, 3 seeds.

    python -m benchmarks.chaos [--only deployed|masked] [--rounds 200] [--seeds 3] [--keep DIR]

Real processes (a SuperLink with TLS, five SuperNodes with keys, a ServerApp) are killed, stopped and interrupted as
`tests.laws.chaos.injections` says. A server that died is started again; the ledger is compared with its replay and with what somebody else saw of it. Writes
benchmarks/results/chaos.json, where a kind that was not run keeps what it had, and prints a table of each.
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
OPTIONS = ("deployed", "masked")
COMMON = ("seed", "seconds", "lives", "charges", "charged_but_not_released", "abandoned_attempts")
COLUMNS = {
    "deployed": (
        *COMMON,
        "rounds_without_a_line",
        "epsilon",
        "epsilon_replayed",
        "epsilon_recomputed",
        "processes_left",
    ),
    "masked": ("seed", "seconds", "lives", "blows", "attempts", "failed_attempts", "charges", "epsilon", "budget"),
}


def one(kind: str, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.laws.chaos", f"--{kind}", "--seed", str(seed), "--rounds", str(rounds)]
    done = subprocess.run([*command, "--out", str(folder)], text=True, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=OPTIONS, help="one kind instead of all")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder that does not exist yet, for what the runs leave")
    given = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for kind in [given.only] if given.only else OPTIONS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.keep or Path(temporary)
            runs = []
            for seed in range(given.seeds):
                runs.append(one(kind, seed, given.rounds, folder / f"{kind}-{seed}"))
                results[kind] = {"machine": describe(), "runs": runs}
                RESULT.write_text(json.dumps(results, indent=1) + "\n")
        table = Table(*(name.replace("_", " ") for name in COLUMNS[kind]), title=kind)
        for run in runs:
            shown = [run[name] for name in COLUMNS[kind]]
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown))
        Console().print(table)


if __name__ == "__main__":
    main()
