"""Probabilities of the default path with and without calibration, beside the class shares': log loss, AUC, accuracy.

    python -m benchmarks.rivals.probabilities [--rivals-python PYTHON] [--sets NAME ...] [--seeds 2] [--tables]

Both ways have the same budget: where counts of scores are released, the rounds get what these leave. The sets are those
that settings are chosen on and judge nothing. Rows are stored as they come, under benchmarks/results/rivals/, so that
the command goes on where it was ended; the noise of a run is secret, and no seed repeats it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.own_data.store import Cell, Row, measure_missing, rows_of
from benchmarks.rivals import page
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import KNOWN, TUNING, parted
from fedsw.federation.engines.driver import run
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import read_outputs

EPSILONS = (0.5, 1.0, 3.0)
WAYS = {"as trained": 0.0, "calibrated": None}
"""The share of counts of scores: none, or the preset's choice."""
SETS = (*TUNING["two classes"], *TUNING["more classes"])
NAME = "probabilities"
Numbers = NDArray[np.float64]


def measured(name: str, epsilon: float, way: str, seed: int, *, python: str) -> Row:
    """Log loss, accuracy and, of two classes, AUC of one run on held-out records; log loss and accuracy of a constant."""
    of, share = parted(name, seed, python), WAYS[way]
    experiment = drafted(of, epsilon)
    if share is not None:
        experiment = experiment.with_sections(calibration={"share": share})
    with tempfile.TemporaryDirectory() as folder:
        ended = run(experiment, data=of.private, held_out=of.held_out, runs=Path(folder))
        outputs = read_outputs(ended.directory / RunFile.OUTPUTS)
    assert outputs is not None
    summary, constant = ended.summary, ended.summary["constant"]
    said = summary.get("calibration") or {}
    auc = area(outputs.values[:, 0], outputs.target) if outputs.values.shape[1] == 1 else None
    return {
        "records": len(of.private),
        "loss": summary["held_out"]["loss"],
        "loss_of_shares": constant["loss"],
        "accuracy": summary["held_out"]["accuracy"],
        "accuracy_of_constant": constant["accuracy"],
        "auc": auc,
        "scale": said.get("scale"),
        "log_loss_by_counts": said.get("log_loss"),
    }


def area(scores: Numbers, target: NDArray[Any]) -> float:
    """How often a record of class 1 has the larger score of two, one of each class; ties count half."""
    ones, zeros = np.sort(scores[target == 1]), scores[target == 0]
    below = (np.searchsorted(ones, zeros, "left") + np.searchsorted(ones, zeros, "right")) / 2
    return float(1 - below.mean() / max(1, len(ones)))


def table() -> str:
    """The means over seeds, by set, epsilon and way, and over all sets."""
    rows = rows_of(NAME, page.FOLDER)
    lines = ["set, epsilon: log loss less the class shares', as trained -> calibrated; AUC; accuracy"]
    by_epsilon: dict[float, list[list[float]]] = {epsilon: [] for epsilon in EPSILONS}
    for name in dict.fromkeys(row["cell"][0] for row in rows):
        for epsilon in EPSILONS:
            of = {way: [row for row in rows if row["cell"][:3] == [name, epsilon, way]] for way in WAYS}
            if not all(of.values()):
                continue
            numbers = []
            for of_way in of.values():
                numbers.append(statistics.mean(row["loss"] - row["loss_of_shares"] for row in of_way))
                areas = [row["auc"] for row in of_way if row["auc"] is not None]
                numbers.append(statistics.mean(areas) if areas else float("nan"))
                numbers.append(statistics.mean(row["accuracy"] for row in of_way))
            by_epsilon[epsilon].append(numbers)
            lines.append(f"{name:>14} {epsilon:<4g} {_line(numbers)}")
    for epsilon, numbers_of in by_epsilon.items():
        if numbers_of:
            lines.append(f"{'mean':>14} {epsilon:<4g} {_line(np.nanmean(np.array(numbers_of), axis=0).tolist())}")
    return "\n".join(lines)


def _line(numbers: list[float]) -> str:
    loss, auc, accuracy = ((numbers[at], numbers[at + 3]) for at in range(3))
    return f"{loss[0]:+.3f} -> {loss[1]:+.3f}; {auc[0]:.3f} -> {auc[1]:.3f}; {accuracy[0]:.3f} -> {accuracy[1]:.3f}"


def main() -> None:
    """Measure what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=KNOWN, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[Cell] = [
        (name, epsilon, way, seed)
        for seed in range(asked.seeds)
        for name in asked.sets
        for epsilon in EPSILONS
        for way in WAYS
    ]
    if not asked.tables:
        measure_missing(NAME, (cells, functools.partial(measured, python=asked.rivals_python)), page.FOLDER)
    print(table())


if __name__ == "__main__":
    main()
