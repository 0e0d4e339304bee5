"""The table of a comparison: one row for each method and budget, in groups of rows with the same kind of guarantee."""

from __future__ import annotations

import csv
import datetime
import io
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.compare.grid import Cell, Grid, read_grid, read_result
from fedsw.compare.methods import methods
from fedsw.experiment import Experiment
from fedsw.report.names import ordered_metrics
from fedsw.runs.files import write_json
from fedsw.text import json_text, to_float

CAPTION = (
    "Rows are comparable within a group only: each group is another guarantee. A row's ε is for the release of one of "
    "its runs alone; runs on the same records compose, so releasing several adds their ε up. Metrics are measured on "
    "held-out records, outside the guarantee: mean ± standard deviation over seeds. Versions, hardware and date are in "
    "table.json."
)

_COLUMNS = (
    "group", "method", "what", "guarantee", "why_not", "protects", "against", "relation", "epsilon_asked", "epsilon",
    "delta", "accountant", "nominal", "rounds", "released_rounds", "clients", "bytes_up", "bytes_down", "seconds",
    "seeds", "stopped", "failed",
)  # fmt: skip


@dataclass(frozen=True)
class Guarantee:
    """Who is protected from whom, and whether that holds as asked for.

    Attributes:
        rank: order of the groups: 0 with a trusted server, 1 against everybody, 2 none.
        why_not: why (epsilon, delta) is not a guarantee; empty if it is one.
    """

    rank: int
    protects: str
    against: str
    relation: str
    why_not: str

    @property
    def heading(self) -> str:
        """What the rows of a group have in common; rows with different headings are not comparable."""
        if self.rank == 2:
            return f"no guarantee: {self.why_not}"
        kind = f"{self.protects}, against {self.against}; neighbours: {self.relation}"
        return f"no guarantee ({self.why_not}), accounted for {kind}" if self.why_not else f"protects {kind}"

    @property
    def position(self) -> tuple[bool, int, str]:
        """Guarantees first; among them those with a trusted server first."""
        return (bool(self.why_not), self.rank, self.heading)


def guarantee_of(experiment: Experiment, summary: Mapping[str, Any]) -> Guarantee:
    """The guarantee behind a run's summary."""
    privacy, stated = experiment.privacy, summary["guarantee"]
    relation = str(stated["relation"])
    if not privacy.noisy:
        return Guarantee(2, "nothing", "nobody", relation, "no noise was added")
    why_not = "; ".join(_why_not(experiment, summary))
    rank = 1 if privacy.local else 0
    return Guarantee(rank, str(stated["protects"]), str(stated["against"]), relation, why_not)


def make_table(folder: Path) -> dict[str, Any]:
    """The table of what has finished in a comparison's folder.

    Raises:
        ValueError: if the folder holds no comparison.
    """
    grid = read_grid(folder)
    task = grid.about
    results = {cell: result for cell in grid.cells if (result := read_result(folder, cell)) is not None}
    completed = {cell: result for cell, result in results.items() if result["status"] == "completed"}
    failed = [{"cell": cell.id, "error": result["error"]} for cell, result in results.items() if cell not in completed]
    groups: dict[Guarantee, list[dict[str, Any]]] = {}
    for guarantee, row in _rows(grid, completed, failed={entry["cell"] for entry in failed}):
        groups.setdefault(guarantee, []).append(row)
    summaries = [result["summary"] for result in completed.values()]
    return {
        "task": grid.task,
        "metric": task.metric,
        "better": task.better,
        "metrics": task.metrics,
        "methods": grid.methods,
        "epsilons": grid.epsilons,
        "seeds": grid.seeds,
        "nominal": grid.nominal,
        "groups": [
            {"heading": guarantee.heading, "guarantee": not guarantee.why_not, "rows": groups[guarantee]}
            for guarantee in sorted(groups, key=lambda one: one.position)
        ],
        "constant": _constant(summaries, task.metrics),
        "standard_errors": _standard_errors(summaries, task.metrics),
        "cells": {"all": len(grid.cells), "completed": len(completed), "failed": len(failed)},
        "failed": failed,
        "caption": CAPTION,
        "versions": _distinct(summary["versions"] for summary in summaries),
        "hardware": _distinct(summary["hardware"] for summary in summaries),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_table(folder: Path, table: Mapping[str, Any]) -> list[Path]:
    """Write table.json and table.csv into the folder; returns both."""
    write_json(folder / "table.json", table)
    rows = [{"group": group["heading"], **row} for group in table["groups"] for row in group["rows"]]
    names = ordered_metrics({name: 0.0 for row in rows for name in row["metrics"]})
    shown = [*table["metrics"], *(name for name in names if name not in table["metrics"])]
    measured = [f"{name}_{part}" for name in shown for part in ("mean", "sd")]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*_COLUMNS, *measured])
    writer.writeheader()
    for row in rows:
        flat = {column: row[column] for column in _COLUMNS}
        for name, value in row["metrics"].items():
            flat |= {f"{name}_mean": value["mean"], f"{name}_sd": value["sd"]}
        writer.writerow({key: "" if value is None else value for key, value in flat.items()})
    files.replace(folder / "table.csv", text.getvalue().encode())
    return [folder / "table.json", folder / "table.csv"]


def _constant(summaries: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """What a constant scores on the same held-out records, averaged over runs, and what it answers; {} if unknown."""
    known = [summary for summary in summaries if summary.get("constant")]
    if not known:
        return {}
    values = {name: [to_float(summary["constant"].get(name)) for summary in known] for name in metrics}
    means = {name: mean for name, each in values.items() if (mean := _spread(each)["mean"]) is not None}
    return {"metrics": means, "answers": " or ".join(dict.fromkeys(str(one["constant_answers"]) for one in known))}


def _standard_errors(summaries: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, float]:
    """How much a metric of one run moves with the draw of held-out records: the largest over the runs, where known."""
    known = [summary.get("held_out_standard_errors") or {} for summary in summaries]
    values = {name: [to_float(errors.get(name)) for errors in known] for name in metrics}
    found = {name: [value for value in each if value is not None] for name, each in values.items()}
    return {name: max(each) for name, each in found.items() if each}


def _rows(
    grid: Grid, completed: Mapping[Cell, Mapping[str, Any]], *, failed: set[str]
) -> Iterator[tuple[Guarantee, dict[str, Any]]]:
    keys = dict.fromkeys((cell.method, cell.epsilon) for cell in grid.cells)
    for key in keys:
        cells = [cell for cell in grid.cells if (cell.method, cell.epsilon) == key]
        if done := [cell for cell in cells if cell in completed]:
            summaries = [completed[cell]["summary"] for cell in done]
            guarantee = guarantee_of(done[0].experiment, summaries[0])
            row = _row(done[0], guarantee, summaries)
            row["failed"] = sum(cell.id in failed for cell in cells)
            row["directories"] = [completed[cell]["directory"] for cell in done]
            yield guarantee, row


def _row(cell: Cell, guarantee: Guarantee, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return statistics.fmean(float(summary[key]) for summary in summaries)

    def worst(key: str) -> float:
        return max(to_float(summary[key]) or 0.0 for summary in summaries)

    names = ordered_metrics(summaries[0]["held_out"])
    held_out = {name: [to_float(summary["held_out"].get(name)) for summary in summaries] for name in names}
    return {
        "method": cell.method,
        "what": methods()[cell.method].what,
        "guarantee": not guarantee.why_not,
        "why_not": guarantee.why_not,
        "protects": guarantee.protects,
        "against": guarantee.against,
        "relation": guarantee.relation,
        "epsilon_asked": cell.epsilon,
        "epsilon": worst("epsilon"),
        "delta": worst("delta") if math.isfinite(cell.epsilon) else None,
        "accountant": summaries[0]["guarantee"]["accountant"],
        "nominal": summaries[0]["nominal"],
        "rounds": summaries[0]["rounds"],
        "released_rounds": mean("released_rounds"),
        "clients": summaries[0]["clients"],
        "bytes_up": mean("bytes_up"),
        "bytes_down": mean("bytes_down"),
        "seconds": mean("seconds"),
        "seeds": len(summaries),
        "stopped": sum(summary["status"] != "completed" for summary in summaries),
        "metrics": {name: _spread(values) for name, values in held_out.items()},
    }


def _spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation; the latter needs two values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return {"mean": None, "sd": None}
    return {"mean": statistics.fmean(known), "sd": statistics.stdev(known) if len(known) > 1 else None}


def _why_not(experiment: Experiment, summary: Mapping[str, Any]) -> Iterator[str]:
    privacy, stated = experiment.privacy, summary["guarantee"]
    if not stated["accountant_is_guarantee"]:
        yield f"accountant {stated['accountant']} is an approximation or for another relation"
    if privacy.trust == "local-release" and experiment.local.diameter == "paper":
        yield "the noise is for half of what a replaced record moves"
    if summary["nominal"]:
        yield f"nominal: {stated.get('randomness', 'sampling and noise are reproducible from a seed')}"
    if to_float(summary["epsilon_of_reader"]) != to_float(summary["epsilon"]):
        yield "the record shows metrics of private records"


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({json_text(value, indent=None): value for value in values}.values())
