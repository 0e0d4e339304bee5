"""The preset's choices against a search, and the page of what plans came to: docs/measured/plans.md.

    python -m benchmarks.forecast [--tables]

A search trains on n records of a data set (public data, nobody's budget) with the noise of an epsilon. The preset's rules
were designed on the synthetic law and on Adult; Law School and Communities were looked at once the rules stood. What is in
the JSON already is skipped. Plans and what runs came to are rows of `benchmarks.rivals`. Writes
benchmarks/results/forecast.json, and the figure and the tables of docs/measured/plans.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.machine import describe
from benchmarks.own_data.store import rows_of
from benchmarks.rivals.page import FOLDER, Judged, judged
from fedsw import data
from fedsw._tools.text import number, upward
from fedsw._tools.text import table as markdown_table
from fedsw.data import Dataset, Records
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning.forecast import FEASIBLE, trained
from fedsw.desk.planning.public_rows import PublicRows, columns_named, scaled
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.report.figures import MARKERS, colour, house_style, new_panels, save

RESULT = Path(__file__).parent / "results" / "forecast.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "plan-forecast.png"
_AGAIN = range(100, 103)
"""Draws that no search has seen."""
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
}


def _above(records: Records, threshold: float) -> Records:
    return replace(records, target=(records.target[:, 0] > threshold).long())


@functools.cache
def task(name: str) -> Task:
    """A task by name."""
    found = LOADED[name]()
    private, held_out, classes = found.train, found.test, found.classes
    threshold = _HIGH.get(name)
    if threshold is not None:
        private, held_out, classes = _above(private, threshold), _above(held_out, threshold), ("no", "yes")
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
        made = Problem.from_experiment(ready)
        (found,) = trained(made, (private, held_out), multiplier=each, one=numbers.multiplier, seed=seed)
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
    return {
        "task": name, "records": records, "epsilon": epsilon, "constant": constant_of(of), "best": best,
        "best_scores": measure(of, problem, records, epsilon, settings=best, seeds=_AGAIN),
        "chosen_scores": chosen(name, records, epsilon),
    }  # fmt: skip


def chosen(name: str, records: int, epsilon: float) -> list[float]:
    """Scores of the rules' choice on the draws that the best of a search is measured on."""
    of = task(name)
    return measure(of, Problem.from_experiment(of.experiment(1.0)), records, epsilon, seeds=_AGAIN)


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


_NAMES = {
    "law-school": "law school, grade",
    "law-school-high": "law school, grade above 3.25",
    "communities": "communities, crimes",
    "communities-high": "communities, crimes above 0.15",
}
_FEW_RECORDS = 1_000
_POINT = 0.01


def judged_plans() -> list[Judged]:
    """The plans of `benchmarks.rivals`, beside what runs came to."""
    return judged(rows_of("scores", FOLDER), rows_of("forecasts", FOLDER))


def unit_of(constant: float) -> float:
    """A point: 0.01 of accuracy, or 1 % of the constant's squared error."""
    return _POINT if constant > 0 else -constant * _POINT


def loss(kept: float) -> float:
    """The share of what can be learnt that is lost, between none and all."""
    return min(1.0, max(0.0, 1.0 - kept))


@house_style()
def draw(plans: Sequence[Judged]) -> Path:
    """Predicted against measured loss, a panel for each kind of target."""
    figure, panels = new_panels(1, 2, size=(10.5, 4.8), sharey=True)
    for axes, classes, title in zip(
        panels, (True, False), ("a class is predicted", "a number is predicted"), strict=True
    ):
        names = list(dict.fromkeys(plan.name for plan in plans if (plan.constant > 0) == classes))
        for place, name in enumerate(names):
            own = [plan for plan in plans if plan.name == name]
            axes.scatter(
                [loss(plan.expected) for plan in own],
                [loss(plan.kept) for plan in own],
                s=[21 + 12 * (plan.epsilon >= 1) + 12 * (plan.epsilon > 1) for plan in own],
                marker=MARKERS[place % len(MARKERS)],
                color=colour(place),
                alpha=0.75,
                linewidths=0,
                label=f"{name}, {own[0].records:,}",
            )
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axes.axvspan(1 - FEASIBLE, 1.04, color="0.5", alpha=0.12, linewidth=0)
        axes.axhspan(1 - FEASIBLE, 1.04, color="0.5", alpha=0.12, linewidth=0)
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="predicted loss", title=title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    panels[0].set_ylabel("measured loss")
    figure.suptitle("What noise takes of what can be learnt: forecast and truth (larger marks: larger ε)")
    return save(figure, PICTURE)


def forecast_table(plans: Sequence[Judged]) -> str:
    """Rank correlation and right verdicts, by what is predicted and by how many records there are."""
    rows = []
    for what, own in (
        ("all", plans),
        ("classes", [plan for plan in plans if plan.constant > 0]),
        ("numbers", [plan for plan in plans if plan.constant <= 0]),
        (f"at most {_FEW_RECORDS:,} records", [plan for plan in plans if plan.records <= _FEW_RECORDS]),
        ("more", [plan for plan in plans if plan.records > _FEW_RECORDS]),
    ):
        pairs = [(loss(plan.expected), loss(plan.kept)) for plan in own]
        verdicts = [plan.verdict for plan in own]
        rows.append(
            [
                what,
                len(own),
                f"{spearmanr(*zip(*pairs, strict=True)).statistic:.2f}",
                f"{100 * verdicts.count('right') / len(own):.0f} %",
                verdicts.count("too hopeful"),
                verdicts.count("too cautious"),
                f"{statistics.median(abs(said - kept) for said, kept in pairs):.2f}",
            ]
        )
    head = ["plans of", "cells", "rank correlation", "verdicts that are right", "too hopeful", "too cautious"]
    return markdown_table([*head, "median error of the loss"], rows)


def cells_table(plans: Sequence[Judged]) -> str:
    """Predicted and measured share, a row for every set and a column for every epsilon."""
    epsilons, rows = sorted({plan.epsilon for plan in plans}), []
    for name in dict.fromkeys(plan.name for plan in plans):
        own = {plan.epsilon: plan for plan in plans if plan.name == name}
        first = next(iter(own.values()))
        cells = (
            f"{_percent(own[e].expected)} / {_percent(own[e].kept)}{_wrong(own[e])}" if e in own else ""
            for e in epsilons
        )
        rows.append([name, f"{first.records:,}", number(first.constant), number(first.best), *cells])
    return markdown_table(["data", "records", "constant", "not private", *(f"ε = {upward(e)}" for e in epsilons)], rows)


def search_table(search: Sequence[dict[str, Any]]) -> str:
    """What the rules chose beside the best of 50 settings."""
    rows, gaps, names = [], [], list(LOADED)
    for row in sorted(search, key=lambda row: (names.index(row["task"]), row["records"], row["epsilon"])):
        best, own = (statistics.median(row[name]) for name in ("best_scores", "chosen_scores"))
        gaps.append((best - own) / unit_of(row["constant"]))
        rows.append(
            [
                _NAMES.get(row["task"], row["task"].replace("-", ", ")),
                f"{row['records']:,}",
                upward(row["epsilon"]),
                *(number(abs(value)) for value in (row["constant"], own, best)),
                f"{gaps[-1]:+.1f}",
            ]
        )
    if gaps:
        rows.append(["median", "", "", "", "", "", f"{statistics.median(gaps):+.1f}"])
    return markdown_table(["task", "records", "ε", "constant", "`auto`", "best of 50", "points behind"], rows)


def _wrong(plan: Judged) -> str:
    return "" if plan.verdict == "right" else f" ({plan.verdict})"


def _percent(kept: float) -> str:
    return "–" if kept < FEASIBLE else f"{100 * min(1.0, kept):.0f} %"


def main() -> None:
    """Measure what is missing, then draw the figure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="measure nothing; draw and print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"search": []}
    if not asked.tables:
        stored["machine"] = describe()
        _measure_missing(stored)
    plans = judged_plans()
    draw(plans)
    print("\n\n".join((forecast_table(plans), cells_table(plans), search_table(stored["search"]))))


def _measure_missing(stored: dict[str, Any]) -> None:
    def keep() -> None:
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")

    for row in stored["search"]:
        if "chosen_scores" not in row:  # of rules that have changed since
            row["chosen_scores"] = chosen(row["task"], row["records"], row["epsilon"])
            keep()
    done_cells = {(row["task"], row["records"], row["epsilon"]) for row in stored["search"]}
    for cell in SEARCHED:
        if cell not in done_cells:
            stored["search"].append(search_row(*cell))
            keep()
            print("search", *cell, flush=True)


if __name__ == "__main__":
    main()
