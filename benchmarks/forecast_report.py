"""The figure and the tables of docs/plan-results.md, from benchmarks/results/forecast.json."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.forecast import LOADED
from benchmarks.rivals.page import expects
from fedsw._tools.text import number, upward
from fedsw._tools.text import table as markdown_table
from fedsw.desk.planning._forecast import FEASIBLE
from fedsw.runs.report.figures import MARKERS, colour, house_style, new_panels, save

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "plan-results.md", ROOT / "docs" / "images" / "plan-forecast.png"
DESIGNED = ("synthetic-classification", "synthetic-regression", "adult")
"""Tasks that the rules were designed on; the others were held back."""
HARD = ("communities-low", "communities-tight", "communities-high-tight", "law-school-rare", "adult-small-group")
"""Tasks as owners bring them: off the middle, columns that use little of their bounds, rare classes, small groups."""
_NAMES = {
    "law-school": "law school, grade",
    "law-school-high": "law school, grade above 3.25",
    "communities": "communities, crimes",
    "communities-high": "communities, crimes above 0.15",
    "communities-low": "communities, a tenth of crimes",
    "communities-tight": "communities, crimes, tight columns",
    "communities-high-tight": "communities, crimes above 0.15, tight columns",
    "law-school-rare": "law school, the best 2 %",
    "adult-small-group": "adult, a group of 3 %",
}
_POINT = 0.01

Row = dict[str, Any]


def report(stored: dict[str, Any]) -> None:
    """Draw the figure, and write the tables between their marks on the page."""
    cells = joined(stored)
    draw(cells)
    text = PAGE.read_text(encoding="utf-8")
    parts = {"forecast": forecast_table(cells), "cells": cells_table(cells), "search": search_table(stored["search"])}
    for mark, table in parts.items():
        text = replaced(text, mark, table)
    PAGE.write_text(text, encoding="utf-8")


def replaced(text: str, mark: str, table: str) -> str:
    """The page with a table between its marks."""
    return re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)


def joined(stored: dict[str, Any]) -> list[Row]:
    """Forecast and truth, a row for every cell."""
    forecasts = {(row["task"], row["records"]): row for row in stored["forecast"]}
    rows: list[Row] = []
    names = list(LOADED)
    for found in sorted(stored["truth"], key=lambda row: (names.index(row["task"]), row["records"])):
        said = forecasts.get((found["task"], found["records"]))
        if said is None:
            continue
        constant, reference = found["constant"], statistics.median(found["reference"])
        medians = {epsilon: statistics.median(scores) for epsilon, scores in found["scores"].items()}
        learnable = max(reference, *medians.values()) - constant
        for epsilon, score in medians.items():
            rows.append(
                {
                    "task": found["task"],
                    "records": found["records"],
                    "epsilon": float(epsilon),
                    "constant": constant,
                    "reference": reference,
                    "score": score,
                    "kept": (score - constant) / learnable if learnable / unit_of(constant) >= 1 else 0.0,
                    "predicted": said["said"][epsilon]["kept"],
                    "after": said["after"][epsilon],
                    "promised": expects({**said["said"][epsilon], **said["facts"]}),
                    "surely": said["said"][epsilon]["least"],
                }
            )
    return rows


def unit_of(constant: float) -> float:
    """A point: 0.01 of accuracy, or 1 % of the constant's squared error."""
    return _POINT if constant > 0 else -constant * _POINT


def loss(kept: float) -> float:
    """The share of what can be learnt that is lost, between none and all."""
    return min(1.0, max(0.0, 1.0 - kept))


@house_style()
def draw(cells: Sequence[Row]) -> Path:
    """Predicted against measured loss, a panel for the data sets of the design and one for those held back."""
    figure, panels = new_panels(1, 2, size=(10.5, 4.8), sharey=True)
    for axes, designed, title in zip(panels, (True, False), ("designed on these", "held back"), strict=True):
        names = list(dict.fromkeys(row["task"] for row in cells if (row["task"] in DESIGNED) == designed))
        for place, name in enumerate(names):
            own = [row for row in cells if row["task"] == name]
            axes.scatter(
                [loss(row["predicted"]) for row in own],
                [loss(row["kept"]) for row in own],
                s=[12 + 9 * (1 + (row["records"] > 500) + (row["records"] > 2_000) + (row["records"] > 5_000)) for row in own],
                marker=MARKERS[place % len(MARKERS)],
                color=colour(place),
                alpha=0.75,
                linewidths=0,
                label=_NAMES.get(name, name.replace("-", ", ")),
            )  # fmt: skip
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axes.axvspan(1 - FEASIBLE, 1.04, color="0.5", alpha=0.12, linewidth=0)
        axes.axhspan(1 - FEASIBLE, 1.04, color="0.5", alpha=0.12, linewidth=0)
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="predicted loss", title=title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    panels[0].set_ylabel("measured loss")
    figure.suptitle("What noise takes of what can be learnt: forecast and truth (larger marks: more records)")
    return save(figure, PICTURE)


def forecast_table(cells: Sequence[Row]) -> str:
    """Rank correlation and right verdicts, by where the data sets were used, and with what is publicly known."""
    rows = []
    for what, own, key in (
        ("designed on", [row for row in cells if row["task"] in DESIGNED], "predicted"),
        ("held back", [row for row in cells if row["task"] not in DESIGNED], "predicted"),
        ("all", cells, "predicted"),
        ("off the middle, tight, rare, small", [row for row in cells if row["task"] in HARD], "predicted"),
        ("the same, after moments", [row for row in cells if row["task"] in HARD], "after"),
        ("all, after moments", cells, "after"),
        ("all, under every law", cells, "surely"),
    ):
        pairs = [(_share_of(row, key), row["kept"]) for row in own]
        claims = [(claimed(row, key), row["kept"] >= FEASIBLE) for row in own]
        below = [row for row in own if claimed(row, key) and points_above_constant(row) < -1]
        correlation = spearmanr([loss(said) for said, _ in pairs], [loss(kept) for _, kept in pairs]).statistic
        rows.append(
            [
                what,
                len(own),
                f"{correlation:.2f}",
                f"{100 * statistics.mean(said == true for said, true in claims):.0f} %",
                sum(said and not true for said, true in claims),
                sum(true and not said for said, true in claims),
                len(below),
                f"{statistics.median(abs(loss(said) - loss(kept)) for said, kept in pairs):.2f}",
            ]
        )
    head = ["data sets", "cells", "rank correlation", "feasible or not: right", "wrongly feasible", "wrongly not"]
    return markdown_table([*head, "feasible, and over a point below a constant", "median error of the loss"], rows)


def _share_of(row: Row, key: str) -> float:
    """The share that is said to be left; after moments as without them where a run releases none."""
    share: float = row["predicted"] if row[key] is None else row[key]
    return share


def claimed(row: Row, key: str) -> bool:
    """Whether the plan promises more than a constant; its conditions are taken at what the data are, unless moments
    tell."""
    if key == "after" and row["after"] is not None:
        return bool(row["after"] >= FEASIBLE)
    return bool(row["promised"] and _share_of(row, key) >= FEASIBLE)


def points_above_constant(row: Row) -> float:
    """How far the model is above a constant, in points."""
    return (row["score"] - row["constant"]) / unit_of(row["constant"])


def cells_table(cells: Sequence[Row]) -> str:
    """Predicted and measured share, cell by cell: a row for every task and size, a column for every epsilon."""
    epsilons = sorted({row["epsilon"] for row in cells})
    rows = []
    for task, records in dict.fromkeys((row["task"], row["records"]) for row in cells):
        own = {row["epsilon"]: row for row in cells if (row["task"], row["records"]) == (task, records)}
        first = next(iter(own.values()))
        rows.append(
            [
                _NAMES.get(task, task.replace("-", ", ")),
                f"{records:,}",
                number(abs(first["constant"])),
                number(abs(first["reference"])),
                *(f"{_percent(own[e]['predicted'])} / {_percent(own[e]['kept'])}" for e in epsilons),
            ]
        )
    return markdown_table(
        ["task", "records", "constant", "without noise", *(f"ε = {upward(e)}" for e in epsilons)], rows
    )


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


def _percent(kept: float) -> str:
    return "–" if kept < FEASIBLE else f"{100 * min(1.0, kept):.0f} %"
