"""Synthetic tables of records that are at many parties: what they teach, by trust model and number of parties.

    python -m benchmarks.synthetic_tables.federated --data-dir DATA [--parties 5 25 150] [--seeds 3] [--trust MODEL ...]

Adult at epsilon = 1, delta = 1e-9, replacement of one record, with the columns, bins and held-out records of
`benchmarks.synthetic_tables`. Every row is an ordinary run of what `fedsw synthesize` makes of a declared table: private
records are split among the parties at random, each a client and, under `distributed`, a site with keys and real masks.
A trusted server's sum is the same for any number of them, and is measured for the first one alone.
Noise is drawn by the row's seed, so every number is nominal. Logistic regression and gradient boosting learn from as many
made-up rows as there are private records, and are tested on real ones. Processor seconds are of the run and of the
drawing of rows, all parties, server and generator together, user and system. Rows that are in
benchmarks/results/federated_tables.json already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.synthetic_tables.scores import scores
from benchmarks.synthetic_tables.sets import TABLES, Table
from fedsw.data.codes import cells_of_table, codes_of, records_of_table
from fedsw.desk.own_data.synthetic_table import as_synthesis, learnt, table_cells
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run

RESULT = Path(__file__).parents[1] / "results" / "federated_tables.json"
TRUST = {"central": "sketch", "distributed": "distributed", "sketch-local": "sketch-local"}
"""Trust models by the names of the table: a trusted server that is asked once is `sketch`."""
PARTIES = (5, 25, 150)
EPSILON, DELTA, PUBLIC = 1.0, 1e-9, 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that are not there yet, and write each when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_tables.federated")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--parties", type=int, nargs="+", default=list(PARTIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trust", nargs="+", choices=TRUST, default=list(TRUST))
    options = parser.parse_args(arguments)
    table = TABLES["adult"](options.data_dir, PUBLIC)
    for seed in range(1, options.seeds + 1):
        for parties in options.parties:
            for trust in options.trust:
                if trust == "central" and parties != options.parties[0]:
                    continue  # the same sum, whatever the number of parties
                if any((row["trust"], row["parties"], row["seed"]) == (trust, parties, seed) for row in stored_rows()):
                    continue
                row = measured(table, trust, parties, seed)
                print(json.dumps(row), flush=True)
                rows = [*stored_rows(), row]  # another process may have added its rows meanwhile
                stored = {"machine": describe(), "epsilon": EPSILON, "delta": DELTA, "rows": rows}
                RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def stored_rows() -> list[dict[str, Any]]:
    """Rows that were measured before."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.is_file() else []
    return rows


def measured(table: Table, trust: str, parties: int, seed: int, *settings: str) -> dict[str, Any]:
    """Row of one run: held-out scores of what is learnt from its table, the noise, and what it took.

    Args:
        table: public declaration, private and held-out records.
        settings: changes to what `fedsw synthesize` would run.
    """
    began, many = time.process_time(), len(table.private)
    codes = codes_of(table.private, table.coded)
    private = cells_of_table(codes, table.private.target, table.private.sensitive, table.columns, table.coded, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        result = run(experiment_of(table, trust, parties, seed, *settings), data=private, runs=folder)
        made = records_of_table(table_cells(learnt(result.directory), many, seed=seed), table.columns)
    spent = time.process_time() - began
    return {
        "trust": trust,
        "parties": parties,
        "seed": seed,
        **scores(made, table.held_out),
        "from": result.summary["sketch"]["generator"]["kind"],
        "sigma": result.summary["sketch"]["sigma"],
        "numbers": result.summary["sketch"]["coordinates"] * result.summary["sketch"]["cells"],
        "megabytes_up": round(result.summary["bytes_up"] / 1e6, 3),
        "cpu_seconds": round(spent, 1),
    }


def experiment_of(table: Table, trust: str, parties: int, seed: int, *settings: str) -> Experiment:
    """The run of `fedsw synthesize` on the table's declaration, of parties that are a site each under masks."""
    declared = {
        "name": "federated-table",
        "seed": seed,
        "data": {"source": "object", "columns": table.columns.model_dump(exclude_defaults=True)},
        "federation": {"clients": parties, "timeout": 3600},
        "privacy": {"delta": DELTA},
    }
    synthesis = as_synthesis(parse_experiment(declared), trust=TRUST[trust], fair=False, epsilon=EPSILON)
    masks = ("federation.masks=real",) if trust == "distributed" else ()
    return parse_experiment(synthesis.model_dump(), [*masks, *settings])


if __name__ == "__main__":
    raise SystemExit(main())
