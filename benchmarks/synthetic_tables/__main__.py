"""Synthetic tables: what classifiers learn from them, beside MST, AIM, the real records and a constant.

    python -m benchmarks.synthetic_tables --data-dir DATA [--table adult] [--public 2000] [--epsilon 1 0.5 3] [--seeds 3]
                                          [--methods constant real sketch sketch-local]
                                          [--sketch balance=size generator=tree]
    python -m benchmarks.synthetic_tables --data-dir DATA --methods mst aim --others MBI/venv/bin/python
                                          --mechanisms MBI/mechanisms [--relation add-remove replace]
                                          [--aim max_model_size=4] [--minutes 40]

Tables: Adult (all columns but `fnlwgt`, a sampling weight, and `education`, which `education-num` repeats; 33 916 private
records), and `communities`, eight census figures of 1 396 communities (`--public 0`). delta = 1e-9. Logistic regression and
gradient boosting learn from as many synthetic rows as there are private records, and are tested on held-out real ones; the
total variation is that of single columns and of pairs, class included, in the codes of the row. `--sketch` has settings of
tables, and `later`, the part of the budget of a second stage. `--public`: so many held-out records, on which then nothing is
tested, are declared public, and numbers are cut at their quantiles. `sketch-local` has ten clients that trust nobody.

MST and AIM are their authors' programs, run by `--others`, an interpreter with `mbi`, from `--mechanisms`, a folder of
https://github.com/ryan112358/mbi. They get the same codes of columns, so that no budget goes into bounds. Their epsilon is
about a record that is there or not, which is `add-remove`, the weaker promise; for `replace`, ours, rho is divided so that
the same epsilon holds where a record is replaced. `--aim` has settings in place of its authors'. What has not ended after
`--minutes` is stopped, and its row says so. Every row is stored as it comes, with its settings, in
benchmarks/results/synthetic_tables.json, and what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.synthetic_tables.ours import ours
from benchmarks.synthetic_tables.scores import constant, scores, variation
from benchmarks.synthetic_tables.sets import TABLES, Table
from benchmarks.synthetic_tables.theirs import HOW, RELATIONS, Others

RESULT = Path(__file__).parents[1] / "results" / "synthetic_tables.json"
DELTA, CLIENTS = 1e-9, 10
THEIRS = ("mst", "aim")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing."""
    asked = _parser().parse_args(arguments)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": []}
    table = TABLES[asked.table](asked.data_dir, asked.public)
    for wanted in _wanted(asked):
        if any(wanted.items() <= row.items() for row in stored["rows"]):
            continue
        row = {**wanted, **_measured(wanted, asked, table), "date": describe()["date"]}
        print(json.dumps(row), flush=True)
        stored = json.loads(RESULT.read_text()) if RESULT.exists() else stored  # another run may have added its own
        stored["rows"].append(row)
        stored["machine"] = describe()
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def _wanted(asked: argparse.Namespace) -> Iterator[Row]:
    """What tells a row from others: ours and theirs by seed and epsilon; what has neither once."""
    for seed in range(asked.seeds):
        for epsilon in asked.epsilon:
            for method in asked.methods:
                row = {"table": asked.table, "public": asked.public, "method": method, "seed": seed}
                if method in THEIRS:
                    settings = asked.aim if method == "aim" else []
                    for relation in asked.relation:
                        yield {**row, "epsilon": epsilon, "settings": settings, "relation": relation}
                elif method in ("real", "constant"):
                    yield {**row, "seed": 0, "settings": []}
                else:
                    yield {**row, "epsilon": epsilon, "settings": asked.sketch}


def _measured(wanted: Row, asked: argparse.Namespace, table: Table) -> Row:
    method, began = wanted["method"], time.process_time()
    if method == "constant":
        return {**constant(table), "private": len(table.private), "held_out": len(table.held_out)}
    if method == "real":
        return {**scores(table.private, table.held_out), **variation(table.private, table)}
    epsilon, seed = wanted["epsilon"], wanted["seed"]
    if method in THEIRS:
        try:
            made, facts = _others(asked).made(
                method,
                wanted["relation"],
                table,
                wanted["settings"],
                epsilon=epsilon,
                delta=DELTA,
                seed=seed,
                minutes=asked.minutes,
            )
        except subprocess.TimeoutExpired:
            return {"stopped_after_minutes": asked.minutes}
    else:
        chosen, clients = dict(each.split("=") for each in wanted["settings"]), 1 if method == "sketch" else CLIENTS
        made, facts = ours(table, chosen, epsilon, DELTA, seed, clients=clients)
        facts["cpu_seconds"] = round(time.process_time() - began, 1)
    return {**scores(made, table.held_out), **variation(made, table), **facts}


def _others(asked: argparse.Namespace) -> Others:
    if asked.others is None or asked.mechanisms is None:
        raise SystemExit(f"MST and AIM are run by an interpreter with mbi, from their authors' folder: {HOW}")
    return Others(asked.others.absolute(), asked.mechanisms.absolute())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_tables")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--table", choices=TABLES, default="adult")
    parser.add_argument("--public", type=int, default=2000, help="how many held-out records are public")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=("constant", "real", "sketch", "sketch-local", *THEIRS),
        default=["constant", "real", "sketch", "sketch-local"],
    )
    parser.add_argument("--sketch", nargs="+", default=["generator=auto"], help="settings of tables")
    parser.add_argument("--others", type=Path, metavar="PYTHON", help="the interpreter of an environment with mbi")
    parser.add_argument("--mechanisms", type=Path, help="the folder of the authors' aim.py and mst.py")
    parser.add_argument("--relation", nargs="+", choices=RELATIONS, default=list(RELATIONS))
    parser.add_argument("--aim", nargs="+", default=[], help="settings of AIM in place of its authors'")
    parser.add_argument("--minutes", type=float, help="after so many MST or AIM is stopped")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
