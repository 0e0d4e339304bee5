"""Comparisons whose cells are not trained: what a run would leave, and a watcher that keeps the score."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsw.desk.compare import comparison_grid as runner
from fedsw.desk.compare.comparison_grid import Cell, Grid, run_missing, write_grid, write_result
from fedsw.desk.compare.table import make_table
from fedsw.experiment import Experiment
from fedsw.experiment.trust import accounting_at_server

Capture = pytest.CaptureFixture[str]
FAIR = ("reference", "none", "central", "central-paper", "distributed", "local-gradient")
UNPROTECTED = ("reference", "reference-any", "none", "unclipped")
BASELINES = ("opacus", "opacus-fair", "dp-fedavg", "dp-fedavg-fair", "puffle", "barycentre")
TINY = ("data.records=200", "data.test_records=100", "federation.clients=2")


class Counts:
    """A watcher that keeps the score."""

    def __init__(self) -> None:
        self.most_running, self.done, self.failed = 0, 0, 0

    def running(self, cells: int) -> None:
        self.most_running = max(self.most_running, cells)

    def ended(self, *, failed: bool) -> None:
        self.done += 1
        self.failed += failed


def thread_pool(jobs: int) -> Executor:
    return ThreadPoolExecutor(jobs)


def summary_of(experiment: Experiment, **changes: Any) -> dict[str, Any]:
    """What a run of the experiment would say of itself."""
    privacy = experiment.privacy
    local = privacy.trust not in accounting_at_server()
    epsilon = privacy.epsilon
    assert epsilon is not None
    seed = experiment.model.seed
    return {
        "status": "completed",
        "rounds": experiment.training.rounds,
        "released_rounds": experiment.training.rounds,
        "epsilon": epsilon,
        "delta": 3.3e-6,
        "nominal": experiment.seed is not None,
        "epsilon_of_reader": epsilon,
        "clients": 4,
        "guarantee": {
            "relation": "replace-one",
            "mechanism": "gaussian",
            "protects": "each record of every client" + (", by its own client's noise and ledger" if local else ""),
            "against": "everyone, including the server and the other clients" if local else "readers of the models",
            "accountant": privacy.accountant,
            "accountant_is_guarantee": privacy.accountant not in ("clt", "gdp-clt-uniform"),
        },
        "held_out": {"accuracy": 0.7 + 0.01 * seed, "disparate_impact": 0.5, "sw2": 0.1 + 0.02 * seed, "loss": 0.4},
        "seconds": 2.0 + seed,
        "bytes_up": 1000 + seed,
        "bytes_down": 2_000_000,
        "versions": {"fedsw": "0.1.0"},
        "hardware": {"cores": 2},
        **changes,
    }


def leave_run(folder: Path, cell: Cell, points: np.ndarray[Any, Any] | None = None) -> Path:
    directory = folder / "runs" / cell.id / "20250101-120000"
    directory.mkdir(parents=True)
    config = {"engine": "inprocess", "experiment": cell.experiment.model_dump(mode="json")}
    (directory / "config.json").write_text(json.dumps(config))
    if points is not None:
        np.savez(directory / "outputs.npz", outputs=points, reference=points[::-1] * 0.9)
    return directory


def pretend(folder: Path, cell: Cell) -> bool:
    """A stand-in for training."""
    write_result(folder, cell, summary=summary_of(cell.experiment), directory=leave_run(folder, cell))
    return True


def begun(folder: Path, grid: Grid) -> Grid:
    write_grid(folder, grid)
    return grid


def run_all(folder: Path, grid: Grid, work: runner.Work = pretend, jobs: int = 1) -> Counts:
    counts = Counts()
    run_missing(folder, grid, jobs=jobs, watcher=counts, work=work, open_pool=thread_pool)
    return counts


def rows_of(table: dict[str, Any]) -> dict[tuple[str, float], dict[str, Any]]:
    return {(row["method"], row["epsilon_asked"]): row for group in table["groups"] for row in group["rows"]}


def table_of(folder: Path, grid: Grid, change: Callable[[Cell], dict[str, Any]] = lambda cell: {}) -> dict[str, Any]:
    begun(folder, grid)
    for cell in grid.cells:
        summary = summary_of(cell.experiment) | change(cell)
        write_result(folder, cell, summary=summary, directory=leave_run(folder, cell))
    return make_table(folder)
