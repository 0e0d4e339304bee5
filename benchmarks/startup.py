"""How long a command takes from the shell: a fresh process each time, wall clock and processor time.

    python -m benchmarks.startup [--repeats 7]

Verbs that train nothing start without torch. Commands take turns, so that whoever else uses the cores disturbs all of them
alike; `python` is an interpreter that does nothing, `import torch` one that imports torch and ends. `init` and `check` read
three tables of 1 200 rows and five columns, `show`, `report` and `account` a run of three rounds on them, `describe` a run of
its own; each process has a fresh copy of these. `plan` and `run` take three tables of 20 columns and a group, 4 803 and 7 500
records together: a plan is to take no more than the run that it is of. Another run is timed from the shell to where its first
round begins. What was compiled is kept, as after an installation. Writes
benchmarks/results/startup.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "startup.json"
BUDGET = "budget --sampling-rate 0.01 --steps 1000 --delta 1e-5 --noise-multiplier 1.0"
INIT = "init DATA --group sex --target income -o draft.toml --from-public"
CERTS = "certs --host localhost --clients 2 --out keys"
REPORT = "report own"
DESCRIBE = "describe runs/own-described/run"
WIDE = (4_803, 7_500)
"""Records of the wide tables."""
PLANS = {
    f"plan wide{rows}.toml --data-dir WIDE{rows}": f"run wide{rows}.toml --data-dir WIDE{rows} --quiet" for rows in WIDE
}
"""A plan, and the run that it is of."""
FIRST_ROUND = "run fair-classification, to its first round"
CHECK = "check own.toml --data-dir DATA"
LIMITS = {
    "--help": 0.4,
    "list": 0.6,
    **dict.fromkeys((INIT, CHECK, "show own", REPORT, DESCRIBE, "account", CERTS, BUDGET), 1.0),
    FIRST_ROUND: 2.0,
}
"""Seconds that the least of the times is to stay below."""
_COLUMNS = 20

_TO_FIRST_ROUND = """
import os, tempfile
from fedsw.cli.app import main
import fedsw.runs.progress
fedsw.runs.progress.RunProgress.started = lambda self, plan: os._exit(0)
with tempfile.TemporaryDirectory() as folder:
    main(["run", "fair-classification", "training.rounds=1", "--quiet", "--runs", folder])
"""
"""The command's imports, data, calibration, greeting of clients and first evaluation; then the process ends at once."""
_MAIN = "from fedsw.cli.app import program; program()"


def commands() -> dict[str, list[str]]:
    """What is timed, by name."""
    beside = [line for pair in PLANS.items() for line in pair]
    lines = [line for line in ("--version", *LIMITS, *beside) if line != FIRST_ROUND]
    fedsw = {line: [sys.executable, "-c", _MAIN, *line.split()] for line in lines}
    fedsw[FIRST_ROUND] = [sys.executable, "-c", _TO_FIRST_ROUND]
    plain = {"python": "pass", "import torch": "import torch"}
    return {**{name: [sys.executable, "-c", code] for name, code in plain.items()}, **fedsw}


def prepare(folder: Path) -> None:
    """Tables of three clients, narrow and wide, a draft for each, and a run of the narrow one."""
    draws = random.Random(0)
    for client in range(3):
        (folder / "DATA" / str(client)).mkdir(parents=True)
        narrow = [
            f"{draws.randint(18, 80)},{draws.choice(('own', 'private', 'public'))},{draws.randint(5, 60)},"
            f"{draws.choice('fm')},{draws.choice(('low', 'high'))}"
            for _ in range(1200)
        ]
        text = "\n".join(["age,work,hours,sex,income", *narrow, ""])
        (folder / "DATA" / str(client) / "table.csv").write_text(text, encoding="utf-8")
        for rows in WIDE:
            (folder / f"WIDE{rows}" / str(client)).mkdir(parents=True)
            wide = [
                ",".join(
                    [
                        *(
                            draws.choice("abcd") if place % 2 else f"{draws.gauss(0, 1):.3f}"
                            for place in range(_COLUMNS)
                        ),
                        draws.choice("fm"),
                        draws.choice(("low", "high")),
                    ]
                )
                for _ in range(rows // 3)
            ]
            names = ",".join([*(f"column{place}" for place in range(_COLUMNS)), "sex", "income"])
            path = folder / f"WIDE{rows}" / str(client) / "table.csv"
            path.write_text("\n".join([names, *wide, ""]), encoding="utf-8")
    wide_drafts = [INIT.replace("DATA", f"WIDE{rows}").replace("draft", f"wide{rows}") for rows in WIDE]
    drafts = INIT.replace("draft", "own"), *wide_drafts
    runs = ("run own.toml --data-dir DATA training.rounds=3 --quiet", "describe own.toml --data-dir DATA --quiet")
    for line in (*drafts, *runs):
        _run([sys.executable, "-c", _MAIN, *line.split()], folder)
    described = folder / "runs" / "own-described"
    next(described.iterdir()).rename(described / "run")


def measure(command: list[str], prepared: Path) -> tuple[float, float]:
    """Seconds of one process in a copy of a folder: wall clock, and processor time of user and system."""
    with tempfile.TemporaryDirectory() as place:
        folder = shutil.copytree(prepared, Path(place) / "copy")
        before, began = _used(), time.perf_counter()
        _run(command, folder)
        return time.perf_counter() - began, _used() - before


def _run(command: list[str], folder: Path) -> None:
    outer = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FEDSW_ACCOUNTS": str(folder / "accounts")}
    subprocess.run(command, cwd=folder, env={**outer, **own}, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    machine = describe()
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        turns = [
            {name: measure(command, Path(place)) for name, command in commands().items()} for _ in range(repeats + 1)
        ]
    turns = turns[1:]  # the first filled the cache of files
    times = {name: [turn[name] for turn in turns] for name in commands()}
    limits = LIMITS | {plan: min(used for _, used in times[run]) for plan, run in PLANS.items()}
    rows = [_row(name, found, limits.get(name)) for name, found in times.items()]
    RESULT.write_text(json.dumps({"repeats": repeats, "rows": rows, "machine": machine}, indent=1) + "\n")
    _print(rows)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _row(name: str, times: list[tuple[float, float]], limit: float | None) -> dict[str, Any]:
    wall, processor = zip(*times, strict=True)
    return {
        "command": name if name in ("python", "import torch") else f"fedsw {name}",
        "wall": {"least": min(wall), "median": statistics.median(wall)},
        "processor": {"least": min(processor), "median": statistics.median(processor)},
        "limit": limit,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="start-up, seconds of a fresh process")
    table.add_column("command")
    for column in ("wall, least", "median", "processor, least", "median", "limit"):
        table.add_column(column, justify="right")
    for row in rows:
        found = [row[kind][what] for kind in ("wall", "processor") for what in ("least", "median")]
        table.add_row(
            row["command"], *(f"{value:.2f}" for value in found), f"{row['limit']:.3g}" if row["limit"] else "–"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
