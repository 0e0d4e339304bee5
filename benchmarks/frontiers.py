"""Accuracy against fairness at several privacy levels: the tables of docs/measured/models.md, run by run.

    python -m benchmarks.frontiers [--seeds 5] [--only synthetic|rll|adult] [--data-dir DIR]

Every run is an ordinary `fedsw` run with secret sampling and noise; "seeds" are those of data and initialisation
(Adult's split is fixed: there they only repeat the run). Runs that are in the JSON already are skipped, so an
interrupted table goes on. Writes benchmarks/results/frontiers.json and prints means with standard deviations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import describe

RESULT = Path(__file__).parent / "results" / "frontiers.json"
EXPERIMENTS = Path(__file__).parents[1] / "fedsw" / "shipped" / "experiments"
SHOWN = ("accuracy", "disparate_impact", "demographic_parity_difference")
# The paper's own clips with the learning rate that makes them train: where its bound costs most.
RLL_CLIP = ("clip.output=1.0", "clip.centre=0.0", "clip.loss=5.0", "training.averaging=0.0")


def cells(part: str, seeds: int) -> Iterator[dict[str, Any]]:
    """All runs of one part: a name for the row, the experiment and its overrides."""
    for seed in range(seeds):
        own = [f"data.seed={seed}", f"model.seed={seed}"]
        if part == "adult":
            for alpha in (0.0, 0.2, 0.375):
                for epsilon in ("inf", 1.0):
                    yield _cell(part, "adult", alpha, epsilon, "auto", seed, [f"model.seed={seed}"])
            continue
        extra = RLL_CLIP if part == "rll" else ()
        for alpha in (0.0, 0.5, 0.75):
            for epsilon in ("inf", 3.0, 1.0) if part == "synthetic" else ("inf", 1.0):
                yield _cell(part, "fair-classification", alpha, epsilon, "auto", seed, [*own, *extra])
            if alpha:
                yield _cell(part, "fair-classification", alpha, 1.0, "paper", seed, [*own, *extra])


def _cell(
    part: str, experiment: str, alpha: float, epsilon: float | str, bound: str, seed: int, own: list[str]
) -> dict[str, Any]:
    overrides = [*own, f"objective.alpha={alpha}", f"privacy.epsilon={epsilon}", f"privacy.bound={bound}"]
    return {
        "row": f"{part}: alpha={alpha:g} epsilon={epsilon} bound={bound}",
        "seed": seed,
        "experiment": experiment,
        "overrides": overrides,
    }


def measure(cell: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Run one cell in a temporary folder; what it asked and what came out."""
    import torch

    from fedsw.experiment import FULL_EVALUATION, load_experiment
    from fedsw.federation.engines.driver import run

    torch.set_num_threads(1)
    overrides = [FULL_EVALUATION, *cell["overrides"], "evaluate_every=1000000"]
    if data_dir:
        overrides.append(f"data.data_dir={json.dumps(data_dir)}")
    experiment = load_experiment(EXPERIMENTS / f"{cell['experiment']}.toml", overrides)
    with tempfile.TemporaryDirectory() as folder:
        summary = run(experiment, runs=Path(folder)).summary
    return {
        **cell,
        "held_out": {name: summary["held_out"][name] for name in SHOWN},
        "noise_multiplier": summary["guarantee"]["noise_multiplier"],
        "epsilon_spent": summary["epsilon_spent"],
        "delta": summary["delta"],
        "seconds": summary["seconds"],
    }


def table(results: list[dict[str, Any]]) -> Table:
    """Mean and standard deviation of every row over its seeds."""
    shown = Table("row", "seeds", *SHOWN, "sigma/Delta", "seconds")
    for row in dict.fromkeys(result["row"] for result in results):
        runs = [result for result in results if result["row"] == row]
        means = [_spread([run["held_out"][name] for run in runs]) for name in SHOWN]
        multiplier = statistics.mean(run["noise_multiplier"] for run in runs)
        seconds = statistics.mean(run["seconds"] for run in runs)
        shown.add_row(row, str(len(runs)), *means, f"{multiplier:.3f}", f"{seconds:.1f}")
    return shown


def _spread(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {spread:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("synthetic", "rll", "adult"))
    parser.add_argument("--data-dir")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    parts = [asked.only] if asked.only else ["synthetic", "rll", "adult"]
    stored = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"runs": []}
    done = {(run["row"], run["seed"]) for run in stored["runs"]}
    wanted = [cell for part in parts for cell in cells(part, asked.seeds) if (cell["row"], cell["seed"]) not in done]
    stored["machine"] = describe()
    with ProcessPoolExecutor(asked.processes) as pool, Progress() as progress:
        bar = progress.add_task("runs", total=len(wanted))
        for finished in as_completed([pool.submit(measure, cell, asked.data_dir) for cell in wanted]):
            stored["runs"].append(finished.result())
            stored["runs"].sort(key=lambda run: (run["row"], run["seed"]))
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            progress.advance(bar)
    Console(width=140).print(table(stored["runs"]))


if __name__ == "__main__":
    main()
