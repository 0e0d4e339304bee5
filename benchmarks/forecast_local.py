"""The plan's forecast against runs in which nobody is trusted: docs/measured/plans.md.

    python -m benchmarks.forecast_local

Every cell is a plan of what `fedsw init` drafts for 10 000 records of Adult, with `privacy.trust = "local-gradient"`, and
simulated federations of it (public data, nobody's budget). What is in the JSON already is skipped. Writes
benchmarks/results/forecast_local.json and the table of docs/measured/plans.md.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.forecast import task
from benchmarks.machine import describe
from fedsw._tools import text
from fedsw.desk.planning.run_plan import planned
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run

RESULT = Path(__file__).parent / "results" / "forecast_local.json"
RECORDS = 10_000
CLIENTS, ALPHAS, EPSILONS = (5, 50), (0.0, 0.2), (1.0, 10.0)
RUNS = 2
_EXPECT = "some"


def main() -> None:
    stored = load()
    for alpha in ALPHAS:
        if str(alpha) not in stored["without_noise"]:
            _, stored["without_noise"][str(alpha)] = trained(experiment(math.inf, alpha, 1), seed=0)
    done = [(cell["clients"], cell["alpha"], cell["epsilon"]) for cell in stored["cells"]]
    for cell in itertools.product(CLIENTS, ALPHAS, EPSILONS):
        if cell not in done:
            stored["cells"].append(measured(*cell))
            print(stored["cells"][-1], flush=True)
            RESULT.write_text(json.dumps(stored | {"about": describe()}, indent=1) + "\n", encoding="utf-8")
    print(table(stored))


def load() -> dict[str, Any]:
    """What is stored, and where nothing is, no cells."""
    stored: dict[str, Any] = {"cells": [], "without_noise": {}}
    return json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else stored


def experiment(epsilon: float, alpha: float, clients: int) -> Experiment:
    """What is planned and run: under `local-gradient`, or without noise where epsilon is infinite."""
    drafted = task("adult").experiment(epsilon).model_dump(exclude_unset=True)
    drafted["objective"]["alpha"] = alpha
    drafted["data"]["held_out_overlap"] = "allow"  # a few of Adult's rows are equal
    if math.isfinite(epsilon):
        drafted["privacy"]["trust"] = "local-gradient"
    evaluation = {"evaluation": {"mode": "full"}, "evaluate_every": 10**6}
    return parse_experiment({**drafted, **evaluation, "federation": {"clients": clients}})


def measured(clients: int, alpha: float, epsilon: float) -> dict[str, Any]:
    """What the plan expects of a cell, and what runs of it come to."""
    of, asked = task("adult"), experiment(epsilon, alpha, clients)
    forecast = planned(asked, of.by_group(of.draw(RECORDS, 0)), expect=_EXPECT).forecast
    assert forecast is not None
    runs = [trained(asked, seed=seed) for seed in range(RUNS)]
    return {
        "clients": clients, "alpha": alpha, "epsilon": epsilon, "kept": forecast.share_left,
        "constant": runs[0][0], "accuracy": [accuracy for _, accuracy in runs],
    }  # fmt: skip


def trained(asked: Experiment, *, seed: int) -> tuple[float, float]:
    """Accuracy of a constant, and of a run's model, on held-out records; the seed is of the records that are drawn."""
    of = task("adult")
    private, held_out = of.draw(RECORDS, seed), of.declared(of.held_out)
    with tempfile.TemporaryDirectory() as folder:
        summary = run(asked, data=private, held_out=held_out, runs=Path(folder)).summary
    return summary["constant"]["accuracy"], summary["held_out"]["accuracy"]


def table(stored: dict[str, Any]) -> str:
    """Predicted and measured share of what can be learnt, cell by cell."""
    rows = []
    for cell in stored["cells"]:
        learnable = stored["without_noise"][str(cell["alpha"])] - cell["constant"]
        accuracy = statistics.mean(cell["accuracy"])
        left = (accuracy - cell["constant"]) / learnable
        rows.append(
            (cell["clients"], cell["alpha"], cell["epsilon"], _share(cell["kept"]), _share(left), f"{accuracy:.3f}")
        )
    return text.table(("clients", "α", "ε", "predicted", "measured", "accuracy"), rows)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value > 0 else "–"


if __name__ == "__main__":
    main()
