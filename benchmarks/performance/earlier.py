"""Seconds of `init --from-public` and `check` on a million rows, against the fedsw of an earlier checkout.

    FEDSW_EARLIER=CHECKOUT python -m benchmarks.performance earlier

The tables are those of `million`, and both sides read the same files, in turns, each in a process of its own that does the
same on a small table first. Seconds are those of the processor, which other work on the machine moves least. `init` reads
every cell as text, as what a column is follows from all of its cells: a person waits for that once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.performance.comparing import Row
from benchmarks.performance.million import COLUMNS, SMALL, experiment, timed_turn, write_tables

_EARLIER = "FEDSW_EARLIER"
_WORDS = {"init": "init --from-public", "check": "check", "persons": "check, under a unit"}
_TURNS = {"init": 1, "check": 3, "persons": 3}
_SLOWER = 1.3


def missing() -> str:
    """What is missing to measure; empty if nothing is."""
    return "" if _EARLIER in os.environ else f"{_EARLIER} names no checkout of an earlier commit"


def measure(quick: bool) -> Iterator[Row]:
    """Rows of every verb and format."""
    rows, earlier = 20_000 if quick else 1_000_000, Path(os.environ[_EARLIER])
    asked = ["git", "log", "-1", "--format=%h, %as"]
    commit = subprocess.run(asked, cwd=earlier, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, size in (("small", SMALL), ("large", rows)):
            write_tables(folder / name, size)
        (folder / "own.toml").write_text(experiment(unit=False), encoding="utf-8")
        (folder / "persons.toml").write_text(experiment(unit=True), encoding="utf-8")
        for kind in ("csv", "parquet"):
            for verb, turns in _TURNS.items():
                seconds: dict[str, list[float]] = {"now": [], "earlier": []}
                for _ in range(turns):
                    seconds["now"].append(timed_turn(folder, verb, kind)["busy"])
                    seconds["earlier"].append(timed_turn(folder, verb, kind, earlier)["busy"])
                ours, other = statistics.median(seconds["now"]), statistics.median(seconds["earlier"])
                yield {
                    "what": f"{_WORDS[verb]}, {rows} rows of {COLUMNS} columns, {kind}",
                    "against": f"fedsw of {commit}",
                    "ours": ours,
                    "other": other,
                    "ratio": ours / other,
                    "goal": f"<= {_SLOWER:g} times the processor time",
                    "met": ours <= _SLOWER * other,
                    "spread": ", ".join(f"{side} {min(all_):.3g} to {max(all_):.3g}" for side, all_ in seconds.items()),
                    "note": "",
                }
