"""The figure and the tables of docs/measured/plans.md: plans beside what runs came to, and the preset beside a search."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.forecast import LOADED
from benchmarks.own_data.store import rows_of
from benchmarks.rivals.page import FOLDER, Judged, judged
from fedsw._tools.text import number, upward
from fedsw._tools.text import table as markdown_table
from fedsw.desk.planning.forecast import FEASIBLE
from fedsw.runs.report.figures import MARKERS, colour, house_style, new_panels, save

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "plan-forecast.png"
_NAMES = {
    "law-school": "law school, grade",
    "law-school-high": "law school, grade above 3.25",
    "communities": "communities, crimes",
    "communities-high": "communities, crimes above 0.15",
}
_FEW = 1_000
_POINT = 0.01

Row = dict[str, Any]


def report(stored: dict[str, Any]) -> None:
    """Draw the figure, and print the tables."""
    plans = judged_plans()
    draw(plans)
    print("\n\n".join((forecast_table(plans), cells_table(plans), search_table(stored["search"]))))


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
        (f"at most {_FEW:,} records", [plan for plan in plans if plan.records <= _FEW]),
        ("more", [plan for plan in plans if plan.records > _FEW]),
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


def search_table(search: Sequence[Row]) -> str:
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
