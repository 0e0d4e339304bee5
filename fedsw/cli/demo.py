"""The demonstration: fair classification over a grid of penalties and budgets, in one table and two figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsw._tools.files import fresh_folder
from fedsw._tools.text import to_float, upward
from fedsw.desk.run_grid import GridRun, finish
from fedsw.experiment import FULL_EVALUATION, Experiment, load_experiment
from fedsw.experiment.load import shipped
from fedsw.runs.progress import RunProgress
from fedsw.runs.report.figures import save
from fedsw.runs.report.plots import draw_histogram_grid, draw_trade_off
from fedsw.runs.run_files import write_json
from fedsw.runs.view import read_run

ALPHAS = (0.0, 0.5, 0.75)
EPSILONS = (math.inf, 3.0, 1.0)
CAPTION = (
    "Each row's ε is for the release of that run alone; the runs share their records, so releasing several composes. "
    "Accuracy and DI are measured on held-out data, outside the guarantee."
)

_EXPERIMENT = "fair-classification"


def start_demo(runs: Path, *, clients: int, rounds: int | None, seed: int | None) -> Path:
    """Make the demo's folder with its settings and an empty table; returns the folder."""
    folder = fresh_folder(runs / "demo")
    settings = {"clients": clients, "rounds": rounds, "seed": seed}
    write_json(folder / "table.json", {"experiment": _EXPERIMENT, "settings": settings, "rows": []})
    return folder


def read_demo(folder: Path) -> dict[str, Any]:
    """The table of a demo, with the settings it was started with."""
    try:
        table: dict[str, Any] = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        if not isinstance(table["rows"], list) or not isinstance(table["settings"], dict):
            raise KeyError("rows")
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as fault:
        raise ValueError(f"{folder} holds no demo to resume: table.json is missing or damaged ({fault})") from None
    return table


def run_demo(folder: Path, progress: RunProgress) -> dict[str, Any]:
    """Run the cells that the table in `folder` lacks, one after the other; returns the table."""
    table, grid = read_demo(folder), [(alpha, epsilon) for alpha in ALPHAS for epsilon in EPSILONS]
    for experiment in missing_cells(table):
        progress.begin(experiment.title)
        summary, directory = finish(GridRun(experiment=experiment), folder / "cells", observer=progress)
        row = _row(experiment, summary, directory.relative_to(folder))
        table["rows"] = sorted(
            [*table["rows"], row],
            key=lambda row: grid.index((row["alpha"], to_float(row["target_epsilon"]) or 0.0)),
        )
        write_json(folder / "table.json", table)
        table = read_demo(folder)
    return table


def draw_demo(folder: Path) -> list[Path]:
    """Draw the demo's figures from its folder: the trade-off, and histograms of every cell."""
    rows = read_demo(folder)["rows"]
    if not rows:
        return []
    drawn = [save(draw_trade_off(rows), folder / "plots" / "trade-off.png")]
    records = [(row, read_run(folder / row["directory"]).outputs) for row in rows]
    cells = [(row, outputs) for row, outputs in records if outputs is not None]
    if cells:
        drawn.append(save(draw_histogram_grid(cells), folder / "plots" / "histograms.png"))
    return drawn


def missing_cells(table: Mapping[str, Any]) -> list[Experiment]:
    """The experiments of the grid that have no row in `table`."""
    done = {(row["alpha"], to_float(row["target_epsilon"])) for row in table["rows"]}
    return [experiment for key, experiment in _grid(table["settings"]) if key not in done]


def _grid(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[float, float], Experiment]]:
    path = shipped()[_EXPERIMENT]
    shared = [FULL_EVALUATION, f"federation.clients={settings['clients']}"]
    if settings["rounds"] is not None:
        shared.append(f"training.rounds={settings['rounds']}")
    if settings["seed"] is not None:
        shared.append(f"seed={settings['seed']}")
    for alpha in ALPHAS:
        for epsilon in EPSILONS:
            label = "∞" if math.isinf(epsilon) else upward(epsilon, 6)
            changes = [
                f'name="alpha-{alpha:g}-epsilon-{epsilon:g}"',
                f'title="α = {alpha:g}, ε = {label}"',
                f"objective.alpha={alpha}",
                f"privacy.epsilon={epsilon}",
            ]
            yield (alpha, epsilon), load_experiment(path, [*shared, *changes])


def _row(experiment: Experiment, summary: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    held_out = summary["held_out"]
    return {
        "alpha": experiment.objective.alpha,
        "target_epsilon": experiment.privacy.epsilon,
        "epsilon": summary["epsilon"],
        "delta": summary["delta"],
        "nominal": summary["nominal"],
        "noise_multiplier": summary["guarantee"]["noise_multiplier"],
        "accuracy": held_out["accuracy"],
        "disparate_impact": held_out["disparate_impact"],
        "seconds": summary["seconds"],
        "directory": str(directory),
    }
