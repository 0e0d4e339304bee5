"""The plan's forecast against truth, and its choices against a search: docs/plan-results.md.

    python -m benchmarks.forecast [--only truth|forecast|search] [--tables]

Cells are n records of a data set at an epsilon. The forecast sees the names of columns, sizes, epsilon and delta; once
more it sees what a run's moments release of the records, with their noise. Truth is training on the records themselves
(public data, nobody's budget), with the same noise, beside a well-trained model without any. The rules were designed on
the synthetic law and on Adult; Law School and Communities were looked at once the rules stood. In five cells more the
target is far from the middle of its bounds, a class or a group is rare, or columns use a tenth of their bounds. What is
in the JSON already is skipped. Writes benchmarks/results/forecast.json, and the figure and the tables of docs/plan-results.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import describe
from fedsw import data
from fedsw.data import Dataset, Records
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning._forecast import curve, reference, strength_of, trained
from fedsw.desk.planning._run_forecast import Forecast
from fedsw.desk.planning.after_moments import moments_of, twins_of
from fedsw.desk.planning.public_rows import PublicRows, columns_named, scaled
from fedsw.desk.planning.run_plan import planned
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.tasks.problem import Problem

RESULT = Path(__file__).parent / "results" / "forecast.json"
SIZES = (1_000, 10_000)
EPSILONS = (0.5, 1.0, 3.0)
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
_RARE = 0.02
_TIGHT = 0.1
_SMALL = 0.03


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
                "objective": {"task": "regression" if self.regression else "classification", "alpha": 0.0},
                "training": {"preset": "auto"},
                "privacy": noisy,
            }
        )

    def draw(self, records: int, seed: int) -> PublicRows:
        """So many private records, in which every group has its part."""
        groups = self.private.sensitive.numpy()
        everybody = np.bincount(groups, minlength=len(self.columns.groups))
        sizes = scaled(dict(enumerate(everybody.tolist())), records)  # type: ignore[arg-type]
        order = np.random.default_rng(seed).permutation(len(groups))
        rows = np.concatenate([order[groups[order] == group][:size] for group, size in sizes.items()])
        return self.declared(self.private.take(rows))

    def declared(self, records: Records) -> PublicRows:
        """The records with their columns."""
        ids = torch.arange(len(records))
        return PublicRows(records.features, records.sensitive, records.target, ids, self.columns, "public")

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
    "communities-low": data.communities,
    "communities-tight": data.communities,
    "communities-high-tight": data.communities,
    "law-school-rare": data.law_school,
    "adult-small-group": data.adult,
}


def _least_common(target: Tensor) -> float:
    """The threshold above which the share of targets is nearest to that of a rare class."""
    values = target.unique()
    shares = torch.stack([(target > value).double().mean() for value in values])
    return float(values[(shares - _RARE).abs().argmin()])


def _above(records: Records, threshold: float) -> Records:
    return replace(records, target=(records.target[:, 0] > threshold).long())


def _tight(records: Records) -> Records:
    """Columns that use a tenth of their bounds, off the middle: between 0.5 and 0.7 of -1 to 1."""
    return replace(records, features=0.6 + _TIGHT * records.features)


def _small(records: Records) -> Records:
    """The first group, but for so many that it is a small part of all."""
    others = records.sensitive != 0
    few = round(_SMALL / (1 - _SMALL) * int(others.sum()))
    return records.take(others | ((records.sensitive == 0).cumsum(0) <= few))


@functools.cache
def task(name: str) -> Task:
    """A task by name."""
    found = LOADED[name]()
    private, held_out, classes = found.train, found.test, found.classes
    threshold = _HIGH.get(name.removesuffix("-tight"))
    if name == "law-school-rare":
        threshold = _least_common(private.target[:, 0])
    if threshold is not None:
        private, held_out, classes = _above(private, threshold), _above(held_out, threshold), ("no", "yes")
    if name == "communities-low":
        private, held_out = (replace(r, target=0.1 * r.target) for r in (private, held_out))
    if name.endswith("-tight"):
        private, held_out = _tight(private), _tight(held_out)
    if name == "adult-small-group":
        private, held_out = _small(private), _small(held_out)
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
        each = numbers.multiplier * math.sqrt(ready.training.rounds / ready.left_to_rounds)
        held_out = of.declared(of.held_out)
        found = trained(problem, ready, private, held_out, multiplier=each, one=numbers.multiplier, seed=seed)
        scores.append(found.model)
    return scores


def _with(experiment: Experiment, settings: dict[str, Any]) -> Experiment:
    raw = experiment.model_dump()
    raw["training"] |= {"preset": "none", "batch_fraction": 1.0, **settings["training"]}
    raw["clip"] |= {"output": 0.5, "centre": 0.5, **settings["clip"]}
    return parse_experiment(raw)


def constant_of(of: Task) -> float:
    """What the best constant scores on the held-out records."""
    target = of.held_out.target
    if of.regression:
        return -float(target.double().var(dim=0, correction=0).sum())
    return float(target.bincount().max()) / len(target)


def truth(name: str, records: int) -> dict[str, Any]:
    """What training on the records themselves comes to at every epsilon, and as well as can be without privacy."""
    of = task(name)
    problem = Problem.from_experiment(of.experiment(1.0))
    held_out = of.declared(of.held_out)
    known = [reference(problem, of.draw(records, seed), held_out) for seed in range(DRAWS)]
    noisy = {str(e): measure(of, problem, records, e, seeds=range(DRAWS)) for e in EPSILONS}
    return {
        "task": name, "records": records, "constant": constant_of(of), "scores": noisy,
        "reference": [each.score.model for each in known], "reference_name": known[0].name,
    }  # fmt: skip


def forecast(name: str, records: int) -> dict[str, Any]:
    """What the plan says from the columns' names and the sizes at every epsilon, and what the data are.

    `after` is what it says once moments are released, where a run releases any.
    """
    of = task(name)
    problem = Problem.from_experiment(of.experiment(1.0))
    private = of.draw(records, 0)
    plans = {str(e): planned(of.experiment(e), of.by_group(private)).forecast for e in EPSILONS}
    return {
        "task": name, "records": records, "facts": facts(of.columns, private),
        "said": {e: said(plan) for e, plan in plans.items() if plan is not None},
        "after": {str(e): after(of, problem, records, e) for e in EPSILONS},
    }  # fmt: skip


def said(plan: Forecast) -> dict[str, Any]:
    """What a plan says of a run's chances."""
    return {
        "feasible": plan.feasible,
        "depends": plan.depends,
        "tight": plan.tight,
        "skewed": plan.skewed,
        "kept": plan.kept,
        "least": plan.range[0],
        "rarest": plan.rarest,
        "rare": plan.rare,
        "constant_to": plan.constant_to,
    }


def facts(columns: Columns, private: Records) -> dict[str, Any]:
    """What a plan leaves open and an owner may know: the share of all but the most frequent class, where the numbers to
    predict lie in their bounds, and what of its bounds a column uses."""
    names = [(name, feature) for feature in columns.features for name in feature.input_names]
    spreads = zip(names, private.features.double().std(0).tolist(), strict=True)
    widths = {"unit": 1, "signed": 2}
    used = [4 * spread / widths[feature.scale] for (_, feature), spread in spreads if feature.low is not None]
    target, numbers = private.target, bool(columns.targets)
    return {
        "others": None if numbers else 1 - float(target.bincount().max()) / len(target),
        "middle": float(target.double().mean()) if numbers else None,
        "used": statistics.median(used) if used else None,
    }


def after(of: Task, problem: Problem, records: int, epsilon: float) -> float | None:
    """What the plan says from released moments of the records; None where none are released."""
    private = of.draw(records, 0)
    asked, sizes = of.experiment(epsilon), of.by_group(private)
    numbers = numbers_of(asked, sizes, problem)
    moments = moments_of(problem, settled(asked, numbers), private, one=numbers.multiplier, seed=0)
    if moments is None:
        return None
    twins, strength = twins_of(moments, problem, of.columns), strength_of(asked, numbers)
    return curve(asked, problem, sizes, table=twins, strengths=(strength,)).at(strength)


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

    for part, work, newest in (("truth", truth, "reference_name"), ("forecast", forecast, "said")):
        stored[part] = [row for row in stored[part] if newest in row]  # what was measured otherwise is measured again
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
