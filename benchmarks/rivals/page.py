"""The table of docs/own-data-results.md: who wins where."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.own_data.store import Row, rows_of
from fedsw._tools import text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "rivals"
PAGE = ROOT / "docs" / "own-data-results.md"
LEAST_SEEDS = 3
REPLACED = ("descent", "adassp")
"""Rivals of the same relation: one record is replaced by another. Of the others one is added or removed, which costs
less noise."""


def table(rows: list[Row]) -> str:
    """A line for each set and epsilon: means over seeds, and the best rival of each relation."""
    lines = []
    for name, epsilon in dict.fromkeys((row["cell"][0], row["cell"][1]) for row in rows):
        own = [row for row in rows if row["cell"][:2] == [name, epsilon]]
        scores: dict[str, list[float]] = {}
        for row in own:
            if row["score"] is not None:
                scores.setdefault(row["cell"][2], []).append(row["score"])
        if "fedsw" not in scores:
            continue
        mine, known = scores.pop("fedsw"), {row["cell"][2]: row for row in own}
        without = [row for row in own if row["cell"][2] == "not-private"]
        scores.pop("not-private", None)
        same = _best({rival: values for rival, values in scores.items() if rival in REPLACED})
        other = _best({rival: values for rival, values in scores.items() if rival not in REPLACED})
        chosen = known["fedsw"].get("chosen", "")
        plain = " / ".join(_mean([row[kind] for row in without]) for kind in ("linear", "boosted")) if without else "–"
        constant = _mean([row["constant"] for row in own])
        lines.append(
            [name, f"{own[0]['records']:,}", epsilon, constant, _mean(mine), chosen, same, other, plain, len(mine)]
        )
    head = [
        "data",
        "records",
        "ε",
        "a constant",
        "fedsw",
        "it chose",
        "best by replacement",
        "best by removal",
        "not private",
        "seeds",
    ]
    return text.table(head, lines)


def verdict(rows: list[Row]) -> str:
    """In how many cells fedsw is ahead of, or behind, the best rival by more than a standard error.

    Cells of fewer than `LEAST_SEEDS` seeds have no standard error to speak of, and are not counted.
    """
    counts = {"same": [0, 0, 0], "all": [0, 0, 0]}
    for name, epsilon in dict.fromkeys((row["cell"][0], row["cell"][1]) for row in rows):
        own = [row for row in rows if row["cell"][:2] == [name, epsilon] and row["score"] is not None]
        mine = [row["score"] for row in own if row["cell"][2] == "fedsw"]
        for which, count in counts.items():
            others: dict[str, list[float]] = {}
            for row in own:
                rival = row["cell"][2]
                if rival not in ("fedsw", "not-private") and (which == "all" or rival in REPLACED):
                    others.setdefault(rival, []).append(row["score"])
            if len(mine) < LEAST_SEEDS or not others:
                continue
            best = max(others.values(), key=statistics.fmean)
            if len(best) < LEAST_SEEDS:
                continue
            error = math.hypot(_error(mine), _error(best))
            apart = statistics.fmean(mine) - statistics.fmean(best)
            count[0 if apart > error else 1 if apart < -error else 2] += 1
    if not sum(counts["all"]):
        return f"No cell has {LEAST_SEEDS} seeds yet, so nobody can say who is ahead."
    words = {"same": "of rivals by replacement", "all": "of all rivals"}
    said = "; ".join(
        f"{words[which]}: ahead in {count[0]} of {sum(count)} cells by more than a standard error, behind in {count[1]}"
        for which, count in counts.items()
    )
    return f"fedsw's default beside the best {said}."


def _best(scores: dict[str, list[float]]) -> str:
    if not scores:
        return "–"
    name, values = max(scores.items(), key=lambda item: statistics.fmean(item[1]))
    return f"{_mean(values)} ({name})"


def _mean(values: list[float]) -> str:
    return text.number(statistics.fmean(values)) if values else "–"


def _error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def write(folder: Path = FOLDER) -> None:
    """Write the table between its marks, where it has any rows; of another folder, print it."""
    rows: list[Any] = rows_of("scores", folder)
    if not rows:
        return
    content = f"{table(rows)}\n\n{verdict(rows)}"
    if folder != FOLDER:
        print(content)
        return
    page = PAGE.read_text(encoding="utf-8")
    marks = r"(<!-- rivals -->\n\n).*?(\n\n<!-- end of rivals -->)"
    PAGE.write_text(
        re.sub(marks, lambda found: f"{found[1]}{content}{found[2]}", page, flags=re.DOTALL), encoding="utf-8"
    )
