"""What the preset may choose for classes, by log loss, AUC and accuracy, on sets that judge nothing.

    python -m benchmarks.rivals.probabilities --rivals-python PYTHON [--sets NAME ...] [--ways WAY ...] [--seeds 4] [--at-noise] [--tables]

Runs are those of `benchmarks.rivals.shapes`, moments, rounds and counts of scores in one short loop, so that seeds give
the same split and the same noise to all ways. Every way has the same budget. A way that makes no difference to the
preset's settings of a set is left out there.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from benchmarks.own_data.store import Cell, Row, measure_missing, rows_of
from benchmarks.rivals import page
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import KNOWN, TUNING, parted
from benchmarks.rivals.shapes import EPSILONS, chosen_of, trained
from fedsw._tools import text
from fedsw.experiment import Experiment
from fedsw.federation.server.settling import numbers_of
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
EVIDENCE = {"class shares nowhere": -math.inf, "class shares below 1": 1.0}
"""Log evidence of the model below which the class shares are predicted."""
NOISES, MANY = ("b 2", "b 3.1", "b 4.5"), 1_000
NOISED = (
    "pima",
    "anes96",
    "orange-juice",
    "titanic",
    "credit-data",
    "churn",
    "email",
    "arrests",
    "births",
    "credit-card",
)
WAYS_AT_NOISE = ("preset", "linear, moments .2", "linear, no moments", "additive 3")
"""Sets of two classes, and the models that are compared at some b of three knots; `MANY` records and fewer apart."""
MEASURES = ("loss", "auc", "score")
Sections = dict[str, dict[str, Any]]


def _times(section: str, name: str, factor: float) -> Callable[[Experiment], Sections]:
    return lambda preset: {section: {name: factor * getattr(getattr(preset, section), name)}}


WAYS: dict[str, Callable[[Experiment], Sections]] = {
    "preset": lambda _: {},
    "not calibrated": lambda _: {"calibration": {"share": 0.0}},
    "linear, moments .2": lambda _: {"model": {"kind": "logistic"}, "privacy": {"moments": 0.2}},
    "linear, no moments": lambda _: {"model": {"kind": "logistic"}, "privacy": {"moments": 0.0}},
    "additive 3": lambda _: {"model": {"kind": "additive", "knots": 3}, "privacy": {"moments": 0.2}},
    "additive 5": lambda _: {"model": {"kind": "additive", "knots": 5}, "privacy": {"moments": 0.2}},
    "clip x .5": _times("clip", "loss", 0.5),
    "clip x 2": _times("clip", "loss", 2.0),
    "rate x .5": _times("training", "learning_rate", 0.5),
    "rate x 2": _times("training", "learning_rate", 2.0),
    "rounds 25": lambda _: {"training": {"rounds": 25}},
    "rounds 100": lambda _: {"training": {"rounds": 100}},
    "moments .1": lambda preset: {"privacy": {"moments": 0.1}} if preset.privacy.moments else {},
    "moments .35": lambda preset: {"privacy": {"moments": 0.35}} if preset.privacy.moments else {},
    "calibration .05": lambda _: {"calibration": {"share": 0.05}},
    "calibration .1": lambda _: {"calibration": {"share": 0.1}},
    "calibration .2": lambda _: {"calibration": {"share": 0.2}},
}
"""Ways, each with the sections that are written in place of the preset's choices, of which it is a function."""


ALL = (*WAYS, *PRIORS, *EVIDENCE)


def at_noise(name: str, wanted: float, python: str) -> float:
    """The epsilon at which b of three knots is nearly that much, rounded."""
    of, low, high = parted(name, 0, python), 0.02, 20.0
    sizes = of.private.sensitive.bincount(minlength=len(of.columns.groups)).tolist()
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        numbers = numbers_of(drafted(of, middle), dict(zip(of.columns.groups, sizes, strict=True)))
        low, high = (middle, high) if numbers.noise_over_signal(numbers.hats[3]) > wanted else (low, middle)
    return float(f"{high:.2g}")


def measured(way: str, name: str, noise: float | str, *, python: str, seeds: int) -> Row:
    """Log loss, AUC and accuracy on held-out records by seed, and the class shares' log loss; none of a way that
    changes nothing, or has too many columns for moments."""
    epsilon = at_noise(name, float(noise.split()[1]), python) if isinstance(noise, str) else noise
    preset = chosen_of(name, epsilon, python)
    sections = WAYS[way](preset) if way in WAYS else {}
    chosen = chosen_of(name, epsilon, python, **sections)
    spec = chosen.model
    words = f"{spec.kind} {spec.knots if spec.kind == 'additive' else spec.inputs}, moments {chosen.privacy.moments}"
    records = len(parted(name, 0, python).private)
    row: Row = {"records": records, "epsilon": epsilon, "chosen": words, "calibration": chosen.calibration.share}
    many = chosen.privacy.moments and layout_of(Problem.from_experiment(chosen)) is None
    calibrated, several = bool(chosen.calibration.share), len(parted(name, 0, python).columns.classes) > 2
    unlike = {**dict.fromkeys(EVIDENCE, calibrated), **dict.fromkeys(PRIORS, calibrated and several), "preset": True}
    if many or not unlike.get(way, chosen != preset):
        return row
    rule = calibration.RULES[-1]
    usual, shifted = PRIORS.get(way, (rule.usual[1], rule.shifted[1]))
    tried = replace(rule, usual=(rule.usual[0], usual), shifted=(rule.shifted[0], shifted))
    with (
        mock.patch.object(calibration, "RULES", (*calibration.RULES[:-1], tried)),
        mock.patch.object(calibration, "TELLS", EVIDENCE.get(way, calibration.TELLS)),
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
    known = [row for row in rows if "loss" in row]
    kinds, lines = sorted({_kind(row) for row in known}, key=lambda kind: (len(kind), kind)), []
    for kind, way in itertools.product(kinds, ALL):
        own = [(row, of_preset[tuple(row["cell"][1:])]) for row in known if (_kind(row), row["cell"][0]) == (kind, way)]
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
        lines.append([kind, way, len(own), *(gains if way != "preset" else "–––"), above])
    head = ["classes", "way", "cells", "less log loss", "AUC", "accuracy", "above the class shares'"]
    return text.table(head, lines)


def _kind(row: Row) -> str:
    """What is predicted, and of cells at some noise how much it is, and how many records there are."""
    classes, noise = "two" if row["classes"] == 2 else "more", row["cell"][2]
    return f"{classes}, {'few' if row['records'] < MANY else 'many'}, {noise}" if isinstance(noise, str) else classes


def main() -> None:
    """Measure what is missing, then write the table; what was measured at some noise is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=KNOWN, metavar="NAME")
    parser.add_argument("--ways", nargs="*", default=ALL, choices=ALL, metavar="WAY")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--at-noise", action="store_true", help="models at three b of three knots, on sets of two classes"
    )
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.at_noise:
        cells: list[Cell] = [(way, *of) for of in itertools.product(NOISED, NOISES) for way in WAYS_AT_NOISE]
    else:
        cells = [(way, *of) for of in itertools.product(asked.sets, EPSILONS) for way in asked.ways]
    how = functools.partial(measured, python=asked.rivals_python, seeds=asked.seeds)
    if not asked.tables:
        measure_missing(NAME, (cells, how), page.FOLDER)
    print(table([row for row in rows_of(NAME, page.FOLDER) if isinstance(row["cell"][2], str)]))
    print(content())


def content() -> str:
    """The table of ways on whole sets."""
    return table([row for row in rows_of(NAME, page.FOLDER) if not isinstance(row["cell"][2], str)])


if __name__ == "__main__":
    main()
