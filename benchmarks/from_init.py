"""Processor time from a draft to a page, the commands of docs/start.md, here and in another checkout by turns.

    python -m benchmarks.from_init CHECKOUT [--repeats 4]

Each command is a process of its own; the first turn fills caches and is not kept. Writes benchmarks/results/from_init.json
and prints how many times as long the commands take here as there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "from_init.json"
_MAIN = "from fedsw.cli.app import program; program()"
COMMANDS = (
    "init DATA --group sex --target ill --bounds age=18:100 --bounds pressure=60:220 --bounds glucose=2:20 "
    "--categories sex=f,m --categories ill=0,1 --held-out held-out.csv -o own.toml",
    "check own.toml --data-dir DATA",
    "plan own.toml --data-dir DATA --epsilon 1",
    "run own.toml --data-dir DATA --epsilon 1",
    "report own",
)


def seconds(checkout: Path) -> list[float]:
    """Processor time of each command, of user and system, on the tables of docs/start.md in a fresh folder."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (tables,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[:1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", tables], cwd=folder, check=True)
        own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "FEDSW_ACCOUNTS": f"{folder}/accounts"}
        found = []
        for line in COMMANDS:
            before = _used()
            process = [sys.executable, "-c", _MAIN, *line.split()]
            subprocess.run(process, cwd=folder, env={**os.environ, **own}, stdout=subprocess.DEVNULL, check=True)
            found.append(_used() - before)
    return found


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure both by turns, write the JSON and print the factor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--repeats", type=int, default=4)
    asked = parser.parse_args()
    checkouts = {"here": ROOT, "there": asked.checkout.resolve()}
    turns = [{name: seconds(path) for name, path in checkouts.items()} for _ in range(asked.repeats + 1)][1:]
    git = [["git", "-C", str(path), "log", "-1", "--format=%h"] for path in checkouts.values()]
    commits = [subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() for line in git]
    median = {name: statistics.median(sum(turn[name]) for turn in turns) for name in checkouts}
    factor = median["here"] / median["there"]
    content = {"commits": dict(zip(checkouts, commits, strict=True)), "factor": factor, "median": median}
    RESULT.write_text(json.dumps({**content, "turns": turns, "machine": describe()}, indent=1) + "\n")
    print(f"{median['here']:.1f} s here, {median['there']:.1f} s there: {factor:.2f} times")


if __name__ == "__main__":
    main()
