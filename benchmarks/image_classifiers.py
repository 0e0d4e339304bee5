"""Private classifiers of images through fixed filters: accuracy at three budgets, beside what others print.

    python -m benchmarks.image_classifiers --data-dir DATA [--seeds 3] [--only SET ...] [--added-alone] [--orders 1]

Every row is an ordinary run of the shipped experiment `image-classifier` on one data set at one epsilon (delta = 1e-5,
replacement of one record, no public data), with the seed that the row says, measured on all held-out images. Rows at
epsilon = 3 are there for the addition or removal of a record, too, with the set's printed size declared. Settings
are the preset's, whose rules for filtered images were chosen on USPS alone; one at epsilon = infinity says what the
filters leave; with `--orders 1` the second order of filters is left out. Seconds are those of the processor, user and system. Rows that are in
benchmarks/results/image_classifiers.json already are not measured again.
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
from fedsw.federation.engines.driver import run
from fedsw.privacy.relations import ADD_OR_REMOVE

RESULT = Path(__file__).parent / "results" / "image_classifiers.json"
SETS = ("usps", "fashion-mnist", "mnist")
EPSILONS = (10.0, 3.0, 1.0)
DECLARED = {"usps": 7291, "fashion-mnist": 60_000, "mnist": 60_000}
"""Training images of each set, as it is published: the declared number where additions and removals are covered."""
OF_ADDITIONS = (3.0,)
"""The epsilons that others print for additions and removals."""
ALIKE = ("evaluation.mode=full", "evaluate_every=100000", "federation.clients=1", "federation.timeout=3600")
PRINTED = [
    {
        "method": "DP-SGD, scattering of two orders and a linear model (Tramer and Boneh 2021)",
        "relation": "add/remove of one record",
        "accuracy": {"mnist": {"3": 0.987}, "fashion-mnist": {"3": 0.897}},
    },
    {
        "method": "convolutions that learn from a generator's images (DPDM, Dockhorn et al. 2023)",
        "relation": "add/remove of one record",
        "accuracy": {"fashion-mnist": {"10": 0.862, "1": 0.794}},
    },
]
"""Printed numbers of others, with the neighbours that their epsilon is about."""


def measured(
    name: str, epsilon: float | None, seed: int, data_dir: str, *, added: bool = False, orders: int = 2
) -> dict[str, Any]:
    """One run's row: what it was, its held-out accuracy beside a constant's, and what it took."""
    relation: tuple[str, ...] = ()
    if added:
        relation = ("privacy.relation=add-remove", "privacy.sampling=poisson", f"privacy.records={DECLARED[name]}")
    budget = ("privacy.trust=none", "privacy.moments=0.2") if epsilon is None else (f"privacy.epsilon={epsilon}",)
    settings = (f"data.source={name}", f"data.data_dir={data_dir}", f"seed={seed}", *budget, *relation, *ALIKE)
    settings += () if orders == 2 else (f"model.orders={orders}",)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        summary = run("image-classifier", *settings, runs=folder).summary
    return {
        "data": name,
        "epsilon": epsilon,
        "seed": seed,
        **({} if orders == 2 else {"orders": orders}),
        "accuracy": summary["held_out"]["accuracy"],
        "constant": summary["constant"]["accuracy"],
        "measured_on": summary["held_out_measured_on"]["records"],
        "relation": (summary.get("guarantee") or {}).get("relation"),
        **({"epsilon_of_replacement": summary["guarantee"]["epsilon_of_replacement"]} if added else {}),
        "processor_seconds": round(time.process_time() - began, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows that are not there yet, and write each when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image_classifiers")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--added-alone", action="store_true", help="rows for additions and removals, and no others")
    parser.add_argument("--orders", type=int, choices=(1, 2), default=2, help="of filters")
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text())["rows"] if RESULT.is_file() else []
    done = {
        (row["data"], row["epsilon"], row["seed"], row["relation"] == ADD_OR_REMOVE)
        for row in rows
        if row.get("orders", 2) == asked.orders
    }
    for seed in range(1, asked.seeds + 1):
        for name in asked.only:
            plain = () if asked.added_alone else (*EPSILONS, None) if seed == 1 else EPSILONS
            wanted = [(epsilon, False) for epsilon in plain] + [(epsilon, True) for epsilon in OF_ADDITIONS]
            for epsilon, added in wanted:
                if (name, epsilon, seed, added) in done:
                    continue
                rows.append(measured(name, epsilon, seed, asked.data_dir, added=added, orders=asked.orders))
                print(json.dumps(rows[-1]), flush=True)
                RESULT.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
