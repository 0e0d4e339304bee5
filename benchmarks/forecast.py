"""The plan's forecast against truth, and its choices against a search: docs/plan.md.

    python -m benchmarks.forecast [--only truth|forecast|search] [--tables]

Cells are n records of a data set at an epsilon. The forecast sees the names of columns, sizes, epsilon and delta; truth
is training on the records themselves (public data, nobody's budget), with the same noise. The rules were designed on
the synthetic law and on Adult; Law School and Communities were looked at once the rules stood. What is in the JSON
already is skipped. Writes benchmarks/results/forecast.json, and the figure and the tables of docs/plan.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from fedsw import data
from fedsw.columns import Columns
from fedsw.data import Dataset, Records
from fedsw.engines.settle import numbers_of, settled
from fedsw.experiment import Experiment, parse_experiment
from fedsw.forecast.forecast import curve, strength_of
from fedsw.forecast.law import LAWS, PublicRecords
from fedsw.forecast.schema import columns_named, scaled
from fedsw.forecast.twins import trained
from fedsw.tasks.problem import Problem

RESULT = Path(__file__).parent / "results" / "forecast.json"
SIZES = (300, 1_000, 3_000, 10_000)
EPSILONS = (0.5, 1.0, 3.0, 10.0)
DRAWS = 3
SEARCHED = tuple(
    (name, 1_000, epsilon)
    for name in (
        "synthetic-classification",
        "adult",
        "law-school",
        "law-school-high",
        "communities",
        "communities-high",
    )
    for epsilon in (1.0, 10.0)
)
SETTINGS = 50
_FEW = 5
"""Settings of a search that are tried again on other draws."""
_HELD_OUT = 4_000
_HIGH = {"law-school-high": 0.75, "communities-high": 0.15}
"""Where a classification asks for targets above a public threshold."""


@dataclass(frozen=True)
class Task:
    """A data set with what is predicted."""

    name: str
    columns: Columns
    private: Records
    held_out: Records

    @property
    def regression(self) -> bool:
        """Whether numbers are predicted."""
        return bool(self.columns.targets)

    def experiment(self, epsilon: float) -> Experiment:
        """What `fedsw init` drafts for it."""
        noisy = {"epsilon": epsilon, "delta": "1/n^2"} if math.isfinite(epsilon) else {"trust": "none"}
        return parse_experiment(
            {
                "name": "forecast",
                "data": {"source": "object", "columns": self.columns.model_dump()},
                "model": {"kind": "logistic"},
                "objective": {"task": "regression" if self.regression else "classification", "alpha": 0.2},
                "training": {"preset": "auto"},
                "privacy": noisy,
            }
        )

    def draw(self, records: int, seed: int) -> PublicRecords:
        """So many private records, in which every group has its part."""
        groups = self.private.sensitive.numpy()
        everybody = np.bincount(groups, minlength=len(self.columns.groups))
        sizes = scaled(dict(enumerate(everybody.tolist())), records)  # type: ignore[arg-type]
        order = np.random.default_rng(seed).permutation(len(groups))
        rows = np.concatenate([order[groups[order] == group][:size] for group, size in sizes.items()])
        return self.declared(self.private.take(rows))

    def declared(self, records: Records) -> PublicRecords:
        """The records with their columns."""
        ids = torch.arange(len(records))
        return PublicRecords(records.features, records.sensitive, records.target, ids, self.columns, "public")

    def by_group(self, records: Records) -> dict[str, int]:
        """Sizes of the groups."""
        counts = records.sensitive.bincount(minlength=len(self.columns.groups)).tolist()
        return dict(zip(self.columns.groups, counts, strict=True))


def _synthetic(target: str) -> Dataset:
    return data.synthetic(12_000, n_test=_HELD_OUT, target=target)  # type: ignore[arg-type]


LOADED: dict[str, Callable[[], Dataset]] = {
    "synthetic-classification": lambda: _synthetic("class"),
    "synthetic-regression": lambda: _synthetic("mean"),
    "adult": data.adult,
    "law-school": data.law_school,
    "law-school-high": data.law_school,
    "communities": data.communities,
    "communities-high": data.communities,
}


@functools.cache
def task(name: str) -> Task:
    """A task by name."""
    found = LOADED[name]()
    private, held_out, classes = found.train, found.test, found.classes
    if name in _HIGH:
        private, held_out = (replace(r, target=(r.target[:, 0] > _HIGH[name]).long()) for r in (private, held_out))
        classes = ("no", "yes")
    columns = columns_named(
        found.feature_names,
        groups=found.groups,
        classes=classes,
        targets=0 if classes else 1,
        bounded=not name.startswith("synthetic"),
    )
    order = np.random.default_rng(0).permutation(len(held_out))  # files are sorted by what is in them
    return Task(name, columns, private, held_out.take(order[:_HELD_OUT]))


def measure(
    of: Task, problem: Problem, records: int, epsilon: float, *, settings: dict[str, Any] | None = None, seeds: range
) -> list[float]:
    """Scores of training on the records at an epsilon: accuracies, or minus mean squared errors."""
    scores = []
    for seed in seeds:
        private = of.draw(records, seed)
        experiment = of.experiment(epsilon)
        numbers = numbers_of(experiment, of.by_group(private), problem)
        ready = _with(experiment, settings) if settings else settled(experiment, numbers)
        each = numbers.multiplier * math.sqrt(ready.training.rounds)
        found = trained(problem, ready, private, of.declared(of.held_out), multiplier=each, seed=seed)
        scores.append(found.model)
    return scores


def _with(experiment: Experiment, settings: dict[str, Any]) -> Experiment:
    raw = experiment.model_dump()
    raw["training"] |= {"preset": None, "batch_fraction": 1.0, **settings["training"]}
    raw["clip"] |= {"output": 0.5, "centre": 0.5, **settings["clip"]}
    return parse_experiment(raw)


def constant_of(of: Task) -> float:
    """What the best constant scores on the held-out records."""
    target = of.held_out.target
    if of.regression:
        return -float(target.double().var(dim=0, correction=0).sum())
    return float(target.bincount().max()) / len(target)


def truth(name: str, records: int) -> dict[str, Any]:
    """What training on the records themselves comes to, without noise and at every epsilon."""
    of = task(name)
    problem = Problem.from_experiment(of.experiment(1.0))
    quiet = measure(of, problem, records, math.inf, seeds=range(DRAWS))
    noisy = {str(e): measure(of, problem, records, e, seeds=range(DRAWS)) for e in EPSILONS}
    return {"task": name, "records": records, "constant": constant_of(of), "reference": quiet, "scores": noisy}


def forecast(name: str, records: int) -> dict[str, Any]:
    """What the plan says from the columns' names and the sizes: the share left at every epsilon, and under every law."""
    of = task(name)
    problem = Problem.from_experiment(of.experiment(1.0))
    sizes = of.by_group(of.draw(records, 0))
    started = time.perf_counter()
    found = curve(of.experiment(1.0), problem, sizes)
    seconds = time.perf_counter() - started
    strengths = {e: strength_of(of.experiment(e), numbers_of(of.experiment(e), sizes, problem)) for e in EPSILONS}
    return {
        "task": name, "records": records, "sizes": sizes, "parameters": problem.parameters, "seconds": seconds,
        "strength": {str(e): strength for e, strength in strengths.items()},
        "kept": {str(e): found.at(strength) for e, strength in strengths.items()},
        "by_law": {
            law.name: {str(e): found.under(place).at(strength) for e, strength in strengths.items()}
            for place, law in enumerate(LAWS)
        },
    }  # fmt: skip


def search_row(name: str, records: int, epsilon: float) -> dict[str, Any]:
    """The rules' choice beside the best of a random search: 50 on one draw, the best 5 on two more, it on fresh ones."""
    of = task(name)
    problem = Problem.from_experiment(of.experiment(1.0))
    chance = np.random.default_rng([records, len(name)])

    def mean(settings: dict[str, Any], seeds: range) -> float:
        return statistics.mean(measure(of, problem, records, epsilon, settings=settings, seeds=seeds))

    tried = [_random(chance) for _ in range(SETTINGS)]
    tried = sorted(tried, key=lambda settings: mean(settings, range(1)), reverse=True)[:_FEW]
    best = max(tried, key=lambda settings: mean(settings, range(1, 3)))
    again = range(100, 100 + DRAWS)
    return {
        "task": name, "records": records, "epsilon": epsilon, "constant": constant_of(of), "best": best,
        "best_scores": measure(of, problem, records, epsilon, settings=best, seeds=again),
        "chosen_scores": measure(of, problem, records, epsilon, seeds=again),
    }  # fmt: skip


def _random(chance: np.random.Generator) -> dict[str, Any]:
    loss = float(np.exp(chance.uniform(np.log(0.05), np.log(3.0))))
    return {
        "training": {
            "rounds": int(chance.choice([10, 25, 50, 100])),
            "learning_rate": float(np.exp(chance.uniform(np.log(0.05), np.log(20.0)))),
            "momentum": float(chance.choice([0.0, 0.9])),
            "averaging": float(chance.choice([0.0, 0.5])),
        },
        "clip": {"loss": loss, "jacobian": loss / 2},
    }


def main() -> None:
    """Measure what is missing, then write the figure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("truth", "forecast", "search"))
    parser.add_argument("--tables", action="store_true", help="measure nothing; draw and print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stored = (
        json.loads(RESULT.read_text(encoding="utf-8"))
        if RESULT.exists()
        else {"truth": [], "forecast": [], "search": []}
    )
    if not asked.tables:
        stored["machine"] = describe()
        _measure_missing(stored, asked.only)
    from benchmarks.forecast_report import report

    report(stored)


def _measure_missing(stored: dict[str, Any], only: str | None) -> None:
    def keep() -> None:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")

    for part, work in (("truth", truth), ("forecast", forecast)):
        done = {(row["task"], row["records"]) for row in stored[part]}
        for name, records in ((name, records) for records in SIZES for name in LOADED):
            if only in (None, part) and (name, records) not in done and records <= len(task(name).private):
                stored[part].append(work(name, records))
                keep()
                print(part, name, records, flush=True)
    done_cells = {(row["task"], row["records"], row["epsilon"]) for row in stored["search"]}
    for cell in SEARCHED:
        if only in (None, "search") and cell not in done_cells:
            stored["search"].append(search_row(*cell))
            keep()
            print("search", *cell, flush=True)


if __name__ == "__main__":
    main()
