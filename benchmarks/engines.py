"""Engines side by side: overhead per client message in process, and one private run on both engines.

    python -m benchmarks.engines [--rounds 500] [--clients 10] [--runs 6] [--skip-ray]

Prints a table and writes benchmarks/results/engines.json, which keeps what the runs before it gave. The runs in process are made in two halves, before and after
the one on Ray, and the ratio is that of Ray's seconds to their median. A processor whose cores others use too is twice
as slow at one second as at the next, which moves what computes and hardly what waits. Two things show it: a plain loop
timed before and after every run in process, and the quick rounds of a run (a tenth of its rounds are quicker), whose
ratio stands beside that of the whole runs. The overhead is that of a message whose handler only answers with as many
numbers as it got (17: the parameters of the shipped logistic model).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.machine import describe, pace
from fedsw.experiment import load_experiment
from fedsw.federation.engines import inprocess  # noqa: F401  (Flower's switches, before Flower)
from fedsw.federation.engines.driver import run
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.runs.run_files import round_seconds

RESULT = Path(__file__).parent / "results" / "engines.json"
EXPERIMENT = Path(__file__).parents[1] / "fedsw" / "shipped" / "experiments" / "fair-classification.toml"
PARAMETERS = 17


def overhead(clients: int, exchanges: int = 400) -> dict[str, float]:
    """Milliseconds per client message of an exchange whose clients do nothing."""
    app = ClientApp()

    @app.train("echo")
    def _echo(message: Message, context: Any) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(app, [{"partition-id": i, "num-partitions": clients} for i in range(clients)])
    arrays = ArrayRecord({"theta": Array(np.zeros(PARAMETERS, dtype=np.float32))})
    times = []
    for turn in range(exchanges):
        config = ConfigRecord({"round": turn, "attempt": 0})
        requests = {n: RecordDict({"arrays": arrays, "config": config}) for n in grid.get_node_ids()}
        began = time.perf_counter()
        exchange(grid, "train.echo", requests, group="g", timeout=60, traffic=Traffic())
        times.append((time.perf_counter() - began) * 1e3 / clients)
    grid.close()
    return {"median_ms": statistics.median(times), "p90_ms": statistics.quantiles(times, n=10)[-1]}


def whole_run(engine: str, rounds: int, clients: int, *, sites: int | None = None) -> tuple[float, list[float]]:
    """Seconds of one private run of the shipped fair classification, set-up included, and of each of its rounds.

    On Ray every client is a node of its own, as Flower has it, unless `sites` says otherwise.
    """
    nodes = (clients if engine == "ray" else 1) if sites is None else sites
    settings = {"training.rounds": rounds, "federation.clients": clients, "federation.sites": nodes}
    experiment = load_experiment(
        EXPERIMENT, [*(f"{name}={value}" for name, value in settings.items()), f"evaluate_every={rounds}"]
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = run(experiment, engine="ray" if engine == "ray" else "inprocess", runs=Path(folder))
        return time.perf_counter() - began, round_seconds(result.directory)


def quick(seconds: list[float]) -> float:
    """The time that a tenth of the rounds stay below."""
    return statistics.quantiles(seconds, n=10)[0]


def earlier(path: Path) -> list[dict[str, Any]]:
    """What the file holds of benchmarks before this one, oldest first: one good moment is not the whole truth."""
    if not path.exists():
        return []
    last = json.loads(path.read_text(encoding="utf-8"))
    before: list[dict[str, Any]] = last.pop("earlier", [])
    return [*before, last] if "ratio" in last else before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--runs", type=int, default=6, help="in process")
    parser.add_argument("--skip-ray", action="store_true")
    asked = parser.parse_args()
    result: dict[str, Any] = {"machine": describe(), "clients": asked.clients, "rounds": asked.rounds}
    result["overhead"] = overhead(asked.clients)
    print(f"in-process overhead per client message: {result['overhead']['median_ms']:.3f} ms (median)", flush=True)
    whole_run("inprocess", 5, asked.clients)  # imports and caches
    size = f"{asked.rounds} rounds x {asked.clients} clients"
    runs, loop = [], [pace()]
    ray = None
    for turn in range(asked.runs):
        if turn == (asked.runs + 1) // 2 and not asked.skip_ray:
            ray = whole_run("ray", asked.rounds, asked.clients)
            loop.append(pace())
        runs.append(whole_run("inprocess", asked.rounds, asked.clients))
        loop.append(pace())
    seconds = [whole for whole, _ in runs]
    here, fast = statistics.median(seconds), quick([each for _, rounds in runs for each in rounds])
    result |= {"inprocess_seconds": here, "inprocess_runs": seconds, "inprocess_quick_round_ms": fast * 1e3}
    result["plain_loop_ms"] = loop
    print(f"a plain loop before and after every run in process: {', '.join(f'{each:.1f}' for each in loop)} ms")
    print(
        f"{size}, in process: {here:.1f} s ({min(seconds):.1f} to {max(seconds):.1f}); quick rounds {fast * 1e3:.1f} ms"
    )
    if ray is not None:
        there, slow = ray[0], quick(ray[1])
        result |= {"ray_seconds": there, "ray_quick_round_ms": slow * 1e3}
        result |= {"ratio": there / here, "quick_ratio": slow / fast}
        print(
            f"the same on Flower's Ray engine: {there:.1f} s, {there / here:.1f} x "
            f"({there / max(seconds):.1f} to {there / min(seconds):.1f}); quick rounds {slow * 1e3:.0f} ms, {slow / fast:.1f} x"
        )
    result["earlier"] = earlier(RESULT)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
