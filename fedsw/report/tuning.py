"""A search on screens and as plain values: what was tried on twins; of one on the records, its cost and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich import box
from rich.console import Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fedsw.report.console import Screen
from fedsw.text import number, upward


class Candidate(Protocol):
    """What is shown of settings."""

    @property
    def settings(self) -> tuple[str, ...]:
        """As on the command line."""

    @property
    def words(self) -> str:
        """In one line."""


class Tried(Protocol):
    """What is shown of a try."""

    @property
    def candidate(self) -> Candidate:
        """What was tried."""

    @property
    def score(self) -> float:
        """The higher the better; -inf where there is none."""

    @property
    def fault(self) -> str | None:
        """Why there is none."""


@contextmanager
def counting(total: int, *, show: bool) -> Iterator[Callable[[Tried], None]]:
    """A bar that counts the tries of a search that is free."""
    with Progress(console=Screen(stderr=True), disable=not show, transient=True) as progress:
        task = progress.add_task("trying settings on public twins", total=total)
        yield lambda tried: progress.advance(task)


@contextmanager
def waiting(*, show: bool) -> Iterator[None]:
    """Something that moves, without a count: the number of private runs is secret."""
    if not show:
        yield
        return
    with Screen(stderr=True).status("comparing private runs; how many is secret"):
        yield


def tried_record(tried: Sequence[Tried], metric: str, sign: float) -> dict[str, Any]:
    """The tries of a free search, the best first."""
    rows = [
        {
            "settings": list(each.candidate.settings),
            "words": each.candidate.words,
            metric: sign * each.score if math.isfinite(each.score) else None,
            "fault": each.fault,
        }
        for each in tried
    ]
    return {"on": "public twins", "metric": metric, "cost": 0.0, "best": rows[0]["settings"], "tried": rows}


def tried_view(record: Mapping[str, Any]) -> RenderableType:
    """The table of a free search."""
    metric = record["metric"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("settings")
    table.add_column(metric.replace("_", " "), justify="right")
    table.add_column("")
    for row in record["tried"]:
        table.add_row(row["words"], number(row[metric], 4), row["fault"] or "")
    best = "  ".join(record["best"]) or "as written"
    note = Text(f"best on public twins: {best}\n", style="bold")
    note.append("cost: ε = 0, no record was looked at. Records may follow another law than their twins", style="dim")
    return Group(table, note)


def cost_view(
    epsilon: float, delta: float, *, single: float, all_shown: float, among: int, runs: float
) -> RenderableType:
    """What a selection on the records will cost, beside what else could be done."""
    found = Text(
        f"the best of a random number of runs ({number(runs)} on average, {among} settings) costs ε = "
        f"{upward(epsilon, 4)} at δ = {upward(delta)}; one run costs {upward(single, 4)}, and {round(runs)} runs that "
        f"are all shown {upward(all_shown, 4)}"
    )
    if all_shown < epsilon:
        found.append(": so few runs are cheaper made one by one", style="yellow")
    return found


def selected_record(
    directory: Path, settings: Sequence[str], value: float, metric: str, epsilon: float, delta: float
) -> dict[str, Any]:
    """The outcome of a selection on the records: all of it that may be released."""
    return {
        "on": "the records",
        "metric": metric,
        "best": list(settings),
        metric: value,
        "directory": str(directory),
        "epsilon": epsilon,
        "delta": delta,
    }


def selected_view(record: Mapping[str, Any]) -> RenderableType:
    """The same on a screen."""
    best = "  ".join(record["best"]) or "as written"
    found = Text(f"best: {best}", style="bold")
    found.append(f"\n{record['metric'].replace('_', ' ')} {number(record[record['metric']], 4)}, {record['directory']}")
    found.append(
        f"\nit cost ε = {upward(record['epsilon'], 4)} at δ = {upward(record['delta'])}, which the run has for good: "
        "the other runs are not kept: neither they, nor their number, nor how long this took may be published"
    )
    return found
