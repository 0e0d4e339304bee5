"""Real client processes: seconds an exchange with Flower's own executors and with warm ones, side by side.

    python -m benchmarks.deployed [--clients 5] [--rounds 500] [--stock-rounds 3] [--skip-stock]

Both are the shipped private fair classification over TLS with node authentication on loopback, torch imported in
every client. A round is two exchanges and the server's own work between them; its first round, in which processes
load the app, is left out of the medians and shown apart. Writes benchmarks/results/deployed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from fedsw.experiment import Experiment, load_experiment
from fedsw.federation.engines.deployed import local_federation
from fedsw.federation.engines.driver import RunResult, prepare_served, run, run_served
from fedsw.runs.observer import NoObserver
from fedsw.runs.run_files import round_seconds

RESULT = Path(__file__).parent / "results" / "deployed.json"
EXPERIMENT = Path(__file__).parents[1] / "fedsw" / "shipped" / "experiments" / "fair-classification.toml"
EXCHANGES = 2
LONG_RUN = 500


def run_on_stock_clients(experiment: Experiment, folder: Path) -> RunResult:
    """Run an experiment on real processes of Flower's own executors."""
    directory = prepare_served(experiment, folder)
    with local_federation(directory / "deployment", directory / "nodes", experiment, stock=True) as link:
        return run_served(link, directory, NoObserver(), resume=False)


def measure(rounds: int, clients: int, *, stock: bool = False) -> dict[str, Any]:
    """One run: seconds of an exchange (median, slowest tenth), of the first round, of starting and stopping."""
    overrides = [f"training.rounds={rounds}", f"federation.clients={clients}", "federation.timeout=900.0"]
    experiment = load_experiment(EXPERIMENT, [*overrides, f"evaluate_every={rounds}"])
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        runs = Path(folder)
        result = run_on_stock_clients(experiment, runs) if stock else run(experiment, engine="deployed", runs=runs)
        whole = time.perf_counter() - began
        seconds = round_seconds(result.directory)
    exchanges = [second / EXCHANGES for second in seconds[1:]]
    median = statistics.median(exchanges)
    overhead = whole - sum(seconds[1:])
    return {
        "engine": "deployed-stock" if stock else "deployed",
        "rounds": rounds,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "exchange_median_s": median,
        "exchange_p90_s": sorted(exchanges)[int(0.9 * len(exchanges))],
        "exchange_mean_s": statistics.fmean(exchanges),
        "first_round_s": seconds[0],
        "start_and_stop_s": overhead,
        "whole_s": whole,
        "whole_minutes": whole / 60,
        f"rounds_{LONG_RUN}_minutes": (overhead + LONG_RUN * statistics.fmean(seconds[1:])) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=LONG_RUN)
    parser.add_argument("--stock-rounds", type=int, default=3)
    parser.add_argument("--skip-stock", action="store_true")
    asked = parser.parse_args()
    rows = [measure(asked.rounds, asked.clients)]
    if not asked.skip_stock:
        rows.append(measure(asked.stock_rounds, asked.clients, stock=True))
    result = {"machine": describe(), "clients": asked.clients, "runs": rows}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    shown = {
        "exchange_median_s": "seconds an exchange, median",
        "exchange_p90_s": "seconds an exchange, slowest tenth",
        "first_round_s": "seconds of the first round",
        "start_and_stop_s": "seconds to start and stop, first round included",
        "rounds": "rounds measured",
        "whole_minutes": "minutes of these",
        f"rounds_{LONG_RUN}_minutes": f"minutes of {LONG_RUN} rounds, from these",
        "load_before": "load of the machine before",
        "load_after": "and after",
    }
    print(f"{asked.clients} clients on {result['machine']['cores']} cores")
    print(f"{'':50s}" + "".join(f"{row['engine']:>16s}" for row in rows))
    for key, words in shown.items():
        print(f"{words:50s}" + "".join(f"{row[key]:16.2f}" for row in rows))


if __name__ == "__main__":
    main()
