"""Data sets under declared columns, as their owner would have them: shipped, scikit-learn's, and a made-up law."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import forecast
from fedsw.data import DeclaredRecords
from fedsw.data.columns.declaration import Columns
from fedsw.experiment import Experiment, parse_experiment

SHIPPED = ("adult", "law-school", "communities")
LEARN = ("breast-cancer", "diabetes", "wine")
MADE_UP = "million-rows"
NAMES = (*SHIPPED, MADE_UP, *LEARN)
_GROUPS = {"name": "group", "values": ["a", "b"]}
"""Of sets without groups: every other record, since tasks that compare groups need two."""
_HELD_OUT = 0.25
_COLUMNS = 10


@dataclass(frozen=True)
class Split:
    """Private records and held-out ones under one declaration."""

    columns: Columns
    private: DeclaredRecords
    held_out: DeclaredRecords

    @property
    def regression(self) -> bool:
        """Whether numbers are predicted."""
        return bool(self.columns.targets)

    def experiment(self, epsilon: float, *, alpha: float = 0.0, training: dict[str, Any] | None = None) -> Experiment:
        """The settings of a draft, with every choice left to the preset."""
        return parse_experiment(
            {
                "name": "own",
                "data": {"source": "object", "columns": self.columns.model_dump(), "held_out_overlap": "allow"},
                "objective": {"task": "regression" if self.regression else "classification", "alpha": alpha},
                "training": {"preset": "auto", **(training or {})},
                "privacy": {"epsilon": epsilon, "delta": "auto"},
                "evaluation": {"mode": "full"},
                "evaluate_every": 10**6,
                "federation": {"clients": 1},
            }
        )


def split(name: str, seed: int, most: int | None = None) -> Split:
    """A data set parted by a seed, or drawn by it; shipped ones have their own held-out part, the records' order is new.

    Args:
        most: so many private records at most.
    """
    if name in SHIPPED:
        of = forecast.task(name)
        size = min(len(of.private), most or len(of.private))
        return Split(of.columns, of.draw(size, seed), of.declared(of.held_out))
    if name == MADE_UP:
        return _made_up(most or 800_000, seed)
    features, target, columns = _learn(name)
    order = np.random.default_rng(seed).permutation(len(target))
    held_out = round(_HELD_OUT * len(target))
    private = order[held_out:][:most]
    return Split(
        columns,
        records(columns, features[private], target[private]),
        records(columns, features[order[:held_out]], target[order[:held_out]]),
    )


def records(
    columns: Columns, features: NDArray[Any], target: NDArray[Any], groups: NDArray[np.int64] | None = None
) -> DeclaredRecords:
    """Records of coded inputs (n, p) and targets, in `groups` (n,) by number or every other one in the second."""
    numbers = bool(columns.targets)
    return DeclaredRecords(
        torch.from_numpy(features.astype(np.float32)),
        torch.arange(len(features)) % 2 if groups is None else torch.from_numpy(groups.astype(np.int64)),
        torch.from_numpy(target.astype(np.float32 if numbers else np.int64)),
        torch.arange(len(features)),
        columns,
        "public",
    )


def _made_up(size: int, seed: int) -> Split:
    """Logistic in ten columns, of which each uses 4 to 20 % of its bounds, wherever they are in them."""
    fixed = np.random.default_rng(41)
    middle, reach = fixed.uniform(0.2, 0.8, _COLUMNS), fixed.uniform(0.04, 0.2, _COLUMNS)
    weights = fixed.standard_normal(_COLUMNS)
    weights *= 1.45 / np.linalg.norm(weights)
    columns = Columns.model_validate(
        {
            "features": [{"name": f"x{place}", "low": 0, "high": 1} for place in range(_COLUMNS)],
            "sensitive": _GROUPS,
            "target": {"name": "y", "values": ["no", "yes"]},
        }
    )

    def drawn(count: int, part: int) -> DeclaredRecords:
        chance = np.random.default_rng([42, seed, part])
        values = np.clip(chance.standard_normal((count, _COLUMNS)), -2, 2)
        chances = 1 / (1 + np.exp(-(values @ weights + 0.5)))
        target = (chance.random(count) < chances).astype(np.int64)
        return records(columns, middle + reach / 4 * values, target)

    return Split(columns, drawn(size, 0), drawn(max(2_000, min(size, 100_000)), 1))


@functools.cache
def _learn(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], Columns]:
    """scikit-learn's set, coded to [0, 1] by bounds half as wide again as its values: public, as the set is."""
    from sklearn import datasets

    load = {
        "breast-cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "wine": datasets.load_wine,
    }
    found = load[name]()
    coded, features = zip(
        *(_coded(str(n), c) for n, c in zip(found.feature_names, found.data.T, strict=True)), strict=True
    )
    declared: dict[str, Any] = {"features": list(features), "sensitive": _GROUPS}
    target = found.target
    if name == "diabetes":
        target, number = _coded("progression", target.astype(np.float64))
        declared["targets"], target = [number], target[:, None]
    else:
        declared["target"] = {"name": "class", "values": [str(value) for value in found.target_names]}
    return np.stack(coded, axis=1), target, Columns.model_validate(declared)


def _coded(name: str, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], dict[str, Any]]:
    low, high = float(values.min()), float(values.max())
    low, high = low - (high - low) / 4, high + (high - low) / 4
    return (values - low) / (high - low), {"name": name, "low": low, "high": high}
