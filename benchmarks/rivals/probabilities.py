"""What the preset may choose for classes, by log loss, AUC and accuracy, on sets that judge nothing.

    python -m benchmarks.rivals.probabilities --rivals-python PYTHON [--sets NAME ...] [--ways WAY ...] [--seeds 4] [--tables]

Runs are those of `benchmarks.rivals.shapes`, moments, rounds and counts of scores in one short loop, so that seeds give
the same split and the same noise to all ways. Every way has the same budget. A way that makes no difference to the
preset's settings of a set is left out there.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from benchmarks.forecast_report import replaced
from benchmarks.own_data.store import Cell, Row, measure_missing, rows_of
from benchmarks.rivals import page
from benchmarks.rivals.sets import KNOWN, TUNING, parted
from benchmarks.rivals.shapes import EPSILONS, chosen_of, trained
from fedsw._tools import text
from fedsw.experiment import Experiment
from fedsw.learning.moments.moments_sum import layout_of
from fedsw.learning.tasks import calibration
from fedsw.learning.tasks.problem import Problem

NAME = "probabilities"
SETS = (
    *TUNING["two classes"], "churn", "email", "arrests", "births", "credit-card",
    *TUNING["more classes"], "olive", "diabetes-types", "bank-wages", "beps", "computing",
)  # fmt: skip
PRIORS = {"scale .4, shift .7": (0.4, 0.7), "scale .4, shift .4": (0.4, 0.4), "scale .9, shift .7": (0.9, 0.7)}
"""Ways to calibrate more than two classes: the scale that is taken as usual, and the deviation of shifts."""
MEASURES = ("loss", "auc", "score")
Sections = dict[str, dict[str, Any]]


def _times(section: str, name: str, factor: float) -> Callable[[Experiment], Sections]:
    return lambda preset: {section: {name: factor * getattr(getattr(preset, section), name)}}


WAYS: dict[str, Callable[[Experiment], Sections]] = {
    "preset": lambda _: {},
    "not calibrated": lambda _: {"calibration": {"share": 0.0}},
    "linear": lambda _: {"model": {"kind": "logistic"}},
    "linear, moments .2": lambda _: {"model": {"kind": "logistic"}, "privacy": {"moments": 0.2}},
    "linear, no moments": lambda _: {"model": {"kind": "logistic"}, "privacy": {"moments": 0.0}},
    "additive 3": lambda _: {"model": {"kind": "additive", "knots": 3}, "privacy": {"moments": 0.2}},
    "additive 5": lambda _: {"model": {"kind": "additive", "knots": 5}, "privacy": {"moments": 0.2}},
    "clip x .5": _times("clip", "loss", 0.5),
    "clip x 2": _times("clip", "loss", 2.0),
    "clip x 4": _times("clip", "loss", 4.0),
    "rate x .5": _times("training", "learning_rate", 0.5),
    "rate x 2": _times("training", "learning_rate", 2.0),
    "rounds 10": lambda _: {"training": {"rounds": 10}},
    "rounds 25": lambda _: {"training": {"rounds": 25}},
    "rounds 100": lambda _: {"training": {"rounds": 100}},
    "moments .1": lambda preset: {"privacy": {"moments": 0.1}} if preset.privacy.moments else {},
    "moments .35": lambda preset: {"privacy": {"moments": 0.35}} if preset.privacy.moments else {},
    "calibration .05": lambda _: {"calibration": {"share": 0.05}},
    "calibration .1": lambda _: {"calibration": {"share": 0.1}},
    "calibration .2": lambda _: {"calibration": {"share": 0.2}},
}
"""Ways, each with the sections that are written in place of the preset's choices, of which it is a function."""


ALL = (*WAYS, *PRIORS)


def measured(way: str, name: str, epsilon: float, *, python: str, seeds: int) -> Row:
    """Log loss, AUC and accuracy on held-out records by seed, and the class shares' log loss; none of a way that
    changes nothing, or has too many columns for moments."""
    preset = chosen_of(name, epsilon, python)
    sections = WAYS[way](preset) if way in WAYS else {}
    chosen = chosen_of(name, epsilon, python, **sections)
    spec = chosen.model
    words = f"{spec.kind} {spec.knots if spec.kind == 'additive' else spec.inputs}, moments {chosen.privacy.moments}"
    row: Row = {"chosen": words, "calibration": chosen.calibration.share}
    many = chosen.privacy.moments and layout_of(Problem.from_experiment(chosen)) is None
    unlike = (
        chosen.calibration.share and len(parted(name, 0, python).columns.classes) > 2
        if way in PRIORS
        else (way == "preset" or chosen != preset)
    )
    if many or not unlike:
        return row
    usual, shifted = PRIORS.get(way, (calibration._USUAL[1], calibration._SHIFTED[1]))
    with (
        mock.patch.object(calibration, "_USUAL", (calibration._USUAL[0], usual)),
        mock.patch.object(calibration, "_SHIFTED", (calibration._SHIFTED[0], shifted)),
    ):
        found = [trained(name, epsilon, seed, python=python, **sections) for seed in range(seeds)]
    each = [model.of.measures(model.probabilities) for model in found]
    return {
        **row,
        "classes": found[0].of.classes,
        **{measure: [one[measure] for one in each] for measure in MEASURES},
        "loss_of_shares": [model.of.loss_of_shares for model in found],
        "constant": [model.of.constant for model in found],
    }


def table(rows: list[Row]) -> str:
    """A line for each way and kind of target: what it gains over the preset where it makes a difference, the mean over
    cells, a set at one epsilon, with its standard error; and in how many of them log loss is above the class shares'."""
    of_preset = {tuple(row["cell"][1:]): row for row in rows if row["cell"][0] == "preset"}
    lines = []
    for two, way in itertools.product((True, False), ALL):
        own = [
            (row, of_preset[tuple(row["cell"][1:])])
            for row in rows
            if row["cell"][0] == way and "loss" in row and (row["classes"] == 2) == two
        ]
        if len(own) < 2:
            continue
        gains = []
        for measure in MEASURES:
            sign = -1 if measure == "loss" else 1
            means = [sign * (statistics.fmean(row[measure]) - statistics.fmean(of[measure])) for row, of in own]
            gains.append(
                f"{statistics.fmean(means):+.3f} ± {text.number(statistics.stdev(means) / len(means) ** 0.5, 1)}"
            )
        above = sum(statistics.fmean(row["loss"]) > statistics.fmean(row["loss_of_shares"]) for row, _ in own)
        lines.append(["two" if two else "more", way, len(own), *(gains if way != "preset" else "–––"), above])
    head = ["classes", "way", "cells", "less log loss", "AUC", "accuracy", "above the class shares'"]
    return text.table(head, lines)


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=KNOWN, metavar="NAME")
    parser.add_argument("--ways", nargs="*", default=ALL, choices=ALL, metavar="WAY")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tables", action="store_true", help="measure nothing; write what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[Cell] = [(way, name, epsilon) for name in asked.sets for epsilon in EPSILONS for way in asked.ways]
    how = functools.partial(measured, python=asked.rivals_python, seeds=asked.seeds)
    if not asked.tables:
        measure_missing(NAME, (cells, how), page.FOLDER)
    content = table(rows_of(NAME, page.FOLDER))
    page.PAGE.write_text(replaced(page.PAGE.read_text(encoding="utf-8"), "choices", content), encoding="utf-8")


if __name__ == "__main__":
    main()
