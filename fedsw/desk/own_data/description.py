"""Histograms of a table's columns from one noised release: the experiment that makes it, and what it says.

`as_description` is the experiment, `described` reads a finished run of it into a `Description` of `DescribedColumn`s.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from fedsw.data.columns.declaration import LOWEST, Coded, Columns, ranges
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.sources import load_shape
from fedsw.experiment.trust import trust_models
from fedsw.learning.sketches.from_settings import law_of, table_of
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.table_counts import column_means, pairs_measured
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_sketch
from fedsw.runs.run_files import RunFile, read_json

Array = NDArray[np.float64]

BINS = 20
"""Equal parts of a range; finer ones at its low end come to them."""
SINGLES = 0.7
"""Part of the squared norm that columns have; columns by class have the rest."""
LEVEL = 0.95
SUFFIX = "-described"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_KEPT = ("title", "data", "partition", "federation", "seed")
_WIDE = 3.0
"""Bounds that are so many times as long as what holds nearly all records are called too wide."""
_NEARLY = 0.995


def as_description(experiment: Experiment, *, trust: str | None = None, epsilon: float | None = None) -> Experiment:
    """Make the experiment that releases histograms of all declared columns of another one's tables, once.

    A record adds the root of w_j to its bin of column j, and the root of v_j to its bin of column j and its class, with
    sum w_j + sum v_j = 1: no number of its vector is negative, so replacing it moves the sum by at most sqrt(2)
    (docs/guarantees/sketches.md). Declaration, files, account, clients, partition, seed, epsilon and delta stay; the
    trust model is the experiment's own, or of the same trust where records leave once.

    Raises:
        ExperimentError: if there are no declared columns, no noise is asked for, or no such release exists under the
            trust model.
    """
    columns = experiment.data.columns
    if columns is None:
        raise ExperimentError(
            f"data.source {experiment.data.source!r} has no declared columns, and histograms are of these: declare "
            "[data.columns] (`fedsw init DATA` drafts it)"
        )
    privacy, raw = experiment.privacy, experiment.model_dump()
    if trust is None:
        trust = privacy.model.once
        if trust is None:
            able = ", ".join(name for name, model in trust_models().items() if model.once is not None)
            raise ExperimentError(
                f"privacy.trust is {privacy.trust!r}, under which no histograms are released; choose --trust among "
                f"{able}"
            )
    settings: dict[str, Any] = {name: raw[name] for name in _KEPT}
    settings["name"] = experiment.name + SUFFIX  # its runs are no runs of the model that the experiment trains
    settings["model"], settings["training"] = {"kind": "table-generator", "latent": 4}, {"rounds": 1}
    settings["sketch"] = {
        "kind": "table",
        "crossed": "class",
        "singles": SINGLES,
        "balance": "codes",
        "bins": BINS,
        "labels": False,
        "batch": 20,
    }
    settings["data"] |= {"held_out": None, "held_out_to": "operator"}
    settings["objective"] = {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0}
    settings["evaluate_every"] = 1
    settings["privacy"] = {"delta": privacy.delta, "device": privacy.device, "trust": trust}
    if trust == privacy.trust:
        settings["local"] = raw.get("local", {})  # how many may collude
    if epsilon is None and privacy.noise_multiplier is not None:
        settings["privacy"] |= {"noise_multiplier": privacy.noise_multiplier, "epsilon": None}
    else:
        settings["privacy"]["epsilon"] = privacy.epsilon if epsilon is None else epsilon
    made = parse_experiment(settings)
    if made.privacy.guarantee.unprotected:
        raise ExperimentError(
            "privacy.epsilon is inf: counts of records without noise are not released; set a finite epsilon"
        )
    return made


@dataclass(frozen=True)
class DescribedColumn:
    """One column's noised shares, over all records and by class.

    Attributes:
        name, role: of the column: "feature", "group" or "target".
        labels: (k,) of the bins.
        edges: (k + 1,) of the bins of numbers, in the column's own units; empty for values.
        shares: (k,) of all records, with their noise: they may be negative, and need not add up to 1.
        deviation: of the noise in each share.
        by_class: (classes, k) shares of all records that are in a bin and of a class; no row without classes.
        class_deviation: of the noise in each of these.
        missing: whether the last bin is that of missing cells.
    """

    name: str
    role: str
    labels: tuple[str, ...]
    edges: tuple[float, ...]
    shares: Array
    deviation: float
    by_class: Array
    class_deviation: float
    missing: bool

    @property
    def half_width(self) -> float:
        """Half of the interval around each share that holds the truth with probability .95."""
        return float(ndtri((1 + LEVEL) / 2)) * self.deviation

    @property
    def class_half_width(self) -> float:
        """Half of the interval around each share by class that holds the truth with probability .95."""
        return float(ndtri((1 + LEVEL) / 2)) * self.class_deviation

    @property
    def plausible(self) -> Array:
        """The shares (k,) as the nearest ones that are not negative and add up to 1."""
        return on_simplex(self.shares)

    def quantile(self, part: float) -> float | None:
        """Return the number that a part of the records lies below, missing ones left out; None for values."""
        if not self.edges:
            return None
        shares = on_simplex(self.shares[: len(self.edges) - 1])
        below = np.concatenate([[0.0], np.cumsum(shares)])
        return float(self.edges[0]) if part <= shares[0] else float(np.interp(part, below, np.array(self.edges)))

    @property
    def advice(self) -> str | None:
        """Say that bounds are much wider than what they hold, and which would do; None where they fit."""
        if len(self.edges) < 5:
            return None
        noise = 3 * self.deviation * math.sqrt(len(self.edges))
        low, high = self.quantile((1 - _NEARLY) / 2 + noise), self.quantile((1 + _NEARLY) / 2 - noise)
        if low is None or high is None or not high > low:
            return None
        places = np.searchsorted(self.edges, [low, high])
        low, high = self.edges[max(0, int(places[0]) - 1)], self.edges[min(len(self.edges) - 1, int(places[1]))]
        times = (self.edges[-1] - self.edges[0]) / (high - low)
        if times < _WIDE:
            return None
        return (
            f"Bounds of {self.name!r} are {times:.0f} times as wide as what holds nearly all records: declare about "
            f'{low:.6g} to {high:.6g} (outside = "cut" for the others), and the same epsilon buys more.'
        )


@dataclass(frozen=True)
class Description:
    """Noised histograms of a table from one release.

    Attributes:
        columns: in the declared order, the classes last.
        classes: their names; none without classes.
        records: their public number.
        summary: of the run.
    """

    experiment: Experiment
    columns: tuple[DescribedColumn, ...]
    classes: tuple[str, ...]
    records: int
    summary: dict[str, Any]

    @property
    def findings(self) -> list[str]:
        """Advice on the declaration, a sentence each."""
        return [advice for column in self.columns if (advice := column.advice) is not None]

    def plain(self) -> dict[str, Any]:
        """Everything as numbers and texts."""
        return {
            "records": self.records,
            "epsilon_spent": self.summary["epsilon_spent"],
            "guarantee": self.summary["guarantee"]["statement"],
            "columns": [
                {
                    "name": column.name,
                    "role": column.role,
                    "bins": list(column.labels),
                    "edges": list(column.edges),
                    "shares": column.shares.tolist(),
                    "half_width": column.half_width,
                    "class_half_width": column.class_half_width,
                    "by_class": dict(zip(self.classes, column.by_class.tolist(), strict=False)),
                    "quantiles": {f"{part:g}": column.quantile(part) for part in QUANTILES} if column.edges else {},
                }
                for column in self.columns
            ],
            "findings": self.findings,
        }


def described(directory: Path, modules: Collection[str] = ()) -> Description:
    """Read what a finished run of `as_description` released.

    Raises:
        ExperimentError: if the run is of something else, or has not ended.
    """
    if not (directory / RunFile.CONFIG).is_file():
        raise ExperimentError(f"{directory} is no run of `fedsw describe`: it has no {RunFile.CONFIG}")
    experiment, _ = RunDirectory(directory).read_config(modules)
    coded = table_of(experiment)
    if coded is None or experiment.sketch.crossed != "class":
        raise ExperimentError(f"{directory} is no run of `fedsw describe`")
    summary = read_json(directory / RunFile.SUMMARY) or {}
    law = law_of(experiment, load_shape(experiment))
    stored = stored_sketch(RunDirectory(directory), law)
    if summary.get("status") != "completed" or stored is None:
        raise ExperimentError(f"{directory} has not ended ({summary.get('status')}): `fedsw resume {directory}`")
    columns = experiment.data.columns
    assert columns is not None
    return _described(experiment, columns, coded, stored.sketch, summary)


def _described(
    experiment: Experiment, columns: Columns, coded: tuple[Coded, ...], sketch: NoisedSketch, summary: dict[str, Any]
) -> Description:
    means, measured = column_means(sketch), pairs_measured(sketch)
    codes, classes = len(measured.column), len(columns.classes)
    products = _numbers(sketch.blocks[0, codes:].cpu())
    first_codes = measured.first.cpu().numpy()
    made = []
    for index, (column, (first, end), mean) in enumerate(zip(coded, ranges(coded), means, strict=True)):
        by_class, spread = np.zeros((0, column.size)), 0.0
        if classes and column.role != "class":  # the class is the last column: its code is each product's second
            weight = float(measured.pair[index, -1])
            within = (first_codes >= first) & (first_codes < end)  # by class, and within it by the column's code
            by_class = products[within].reshape(classes, column.size) / weight
            spread = float(sketch.deviation) / weight
        shares, missing = _numbers(mean.numbers.cpu()), column.missing is not None
        names = _labels(column)
        made.append(
            DescribedColumn(
                column.name, column.role, names, column.edges, shares, mean.deviation, by_class, spread, missing
            )
        )
    return Description(experiment, tuple(made), columns.classes, sketch.records, summary)


def _labels(column: Coded) -> tuple[str, ...]:
    missing = ("missing",) if column.missing is not None else ()
    if column.values:
        return (*column.values, *missing)
    pairs = list(zip(column.edges[:-1], column.edges[1:], strict=True))
    names = [_between(low, high, whole=column.whole) for low, high in pairs]
    if not column.whole and len(pairs) > 1 and pairs[0][1] - pairs[0][0] <= 2 * LOWEST * (pairs[-1][1] - pairs[0][0]):
        names[:2] = [f"{pairs[0][0]:.6g}", f"above {pairs[0][0]:.6g}, to {pairs[1][1]:.6g}"]
    return (*names, *missing)


def _between(low: float, high: float, *, whole: bool) -> str:
    last = high - 1 if whole else high
    return f"{low:.6g}" if whole and low == last else f"{low:.6g} to {last:.6g}"


def on_simplex(shares: Array) -> Array:
    """Return the nearest numbers (k,) to these that are not negative and have sum 1, in Euclidean norm."""
    ordered = np.sort(shares)[::-1]
    spare = (np.cumsum(ordered) - 1) / np.arange(1, len(shares) + 1)
    last = int(np.flatnonzero(ordered > spare)[-1])
    return np.asarray(np.maximum(shares - spare[last], 0.0))


def _numbers(values: Tensor) -> Array:
    return np.asarray(values.double().numpy(), dtype=np.float64)
