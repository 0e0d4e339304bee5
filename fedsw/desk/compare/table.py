"""The table of a comparison, group by group: as data, as JSON and CSV, and as cells of a screen or a page."""

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

from fedsw._tools import files
from fedsw._tools.text import bytes_of, for_spreadsheets, harmless, json_text, measured, number, to_float, upward
from fedsw.desk.baselines.reference import NAMES
from fedsw.desk.compare.comparison_grid import Cell, Grid, read_grid, read_result
from fedsw.desk.compare.methods import able, methods, tasks
from fedsw.experiment import Experiment
from fedsw.runs.evaluation.intervals import LEVEL, Interval, normal, standard_error, student
from fedsw.runs.group_names import UNNAMED, Names, names_from
from fedsw.runs.report.document import Document, Listed
from fedsw.runs.report.metric_names import metric_name, ordered_metrics
from fedsw.runs.run_files import names_in, write_json


def names_of(table: Mapping[str, Any]) -> Names:
    """The names of groups and classes that a table's runs had."""
    return names_from(table.get("names"))


def tasks_view() -> Document:
    """The tasks with their methods, and what the methods are."""
    rows = []
    for name, task in tasks().items():
        others = [method for method in able(name) if method not in (*task.methods, *task.baselines)]
        listed = (", ".join(some) for some in (task.methods, task.baselines, others))
        rows.append((name, f"{metric_name(task.metric)} ({task.better})", *listed))
    headings, about = ("task", "utility", "compares", "baselines", "can also run"), ("method", "what")
    known = [(name, method.what) for name, method in methods().items()]
    both = (headings, rows), (about, known)
    return Document("", begins=tuple(Listed.of("", of, cells, left=of, whole=of[:1]) for of, cells in both))


def spread(value: Mapping[str, Any] | None) -> str:
    """The mean over seeds with its interval; mean ± standard deviation where that is not known."""
    if value is None:
        return "–"
    if value.get("low") is not None:
        return measured(value["mean"], [value["low"], value["high"]])
    return number(value["mean"]) + (f" ± {number(value['sd'], 2)}" if value["sd"] is not None else "")


def row_cells(row: Mapping[str, Any], metrics: Sequence[str], *, operator: bool) -> Iterator[object]:
    """The cells of a row: method, epsilon, delta, metrics and sizes; traffic, time and faults for the operator."""
    yield from (row["method"], epsilon_of(row), upward(row["delta"], 2))
    yield from (spread(row["metrics"].get(name)) for name in metrics)
    yield row["rounds"]
    if operator:
        yield from (bytes_of(row["bytes_up"]), bytes_of(row["bytes_down"]), number(row["seconds"]))
    faults = [f", {row[what]} {what}" for what in ("stopped", "failed") if row[what] and operator]
    yield "".join([str(row["seeds"]), *faults])


def beside_methods(table: Mapping[str, Any]) -> Iterator[str]:
    """The reference without privacy and a constant, with their metrics."""
    reference, constant, called = table.get("reference"), table.get("constant"), names_of(table)
    if reference:
        scores = [f"{metric_name(name, called)} {spread(value)}" for name, value in reference["metrics"].items()]
        yield f"Without privacy ({reference['what']}): {', '.join(scores)}."
    if constant:
        around, named = constant.get("intervals") or {}, constant["metrics"].items()
        scores = [f"{metric_name(name, called)} {measured(value, around.get(name))}" for name, value in named]
        yield f"A constant ({constant['answers']}): {', '.join(scores)}."


def epsilon_of(row: Mapping[str, Any]) -> str:
    """Write the epsilon that holds, and the one asked for where the two differ."""
    held, wanted = upward(row["epsilon"]), upward(row["epsilon_asked"])
    return held if held == wanted else f"{held} ({wanted} asked)"


CAPTION = (
    "Rows are comparable within a group only: each group is another guarantee. A row's ε is for the release of one of "
    "its runs alone; runs on the same records compose, so releasing several adds their ε up. Metrics are measured on "
    "held-out records, outside the guarantee: the mean over seeds and where it lies, 95 %, for the draw of held-out "
    "records and of seeds; mean ± standard deviation over seeds where that is not known. Versions, hardware and date "
    "are in table.json."
)

REFERENCE = NAMES[0]
"""The method that what privacy costs is measured against."""
_COLUMNS = (
    "group", "method", "what", "guarantee", "why_not", "protects", "against", "relation", "epsilon_asked", "epsilon",
    "delta", "accountant", "nominal", "rounds", "released_rounds", "clients", "bytes_up", "bytes_down", "seconds",
    "seeds", "stopped", "failed",
)  # fmt: skip


@dataclass(frozen=True)
class StatedGuarantee:
    """Guarantee of a run in words: who is protected from whom, and whether that holds as asked for.

    Groups stand in the order of their rank: 0 with a trusted server, 1 without trust, 2 none. ``why_not`` says why
    (epsilon, delta) is not a guarantee; it is empty if it is one.
    """

    rank: int
    protects: str
    against: str
    relation: str
    why_not: str

    @property
    def heading(self) -> str:
        """Guarantee that the rows of a group have in common; rows with different headings are not comparable."""
        if self.rank == 2:
            return f"no guarantee: {self.why_not}"
        kind = f"{self.protects}, against {self.against}; neighbours: {self.relation}"
        return f"no guarantee ({self.why_not}), accounted for {kind}" if self.why_not else f"protects {kind}"

    @property
    def position(self) -> tuple[bool, int, str]:
        """Guarantees first; among them those with a trusted server first."""
        return (bool(self.why_not), self.rank, self.heading)


def guarantee_of(experiment: Experiment, summary: Mapping[str, Any]) -> StatedGuarantee:
    """The guarantee behind a run's summary."""
    privacy, stated = experiment.privacy, summary["guarantee"]
    relation = str(stated["relation"])
    if privacy.guarantee.unprotected:
        return StatedGuarantee(2, "nothing", "nobody", relation, "no noise was added")
    why_not = "; ".join(_why_not(experiment, summary))
    return StatedGuarantee(privacy.model.rank, str(stated["protects"]), str(stated["against"]), relation, why_not)


def make_table(folder: Path) -> dict[str, Any]:
    """The table of what has finished in a comparison's folder."""
    grid = read_grid(folder)
    task = grid.about
    results = {cell: result for cell in grid.cells if (result := read_result(folder, cell)) is not None}
    completed = {cell: result for cell, result in results.items() if result["status"] == "completed"}
    failed = [{"cell": cell.id, "error": result["error"]} for cell, result in results.items() if cell not in completed]
    groups: dict[StatedGuarantee, list[dict[str, Any]]] = {}
    for guarantee, row in _rows(grid, completed, failed={entry["cell"] for entry in failed}):
        groups.setdefault(guarantee, []).append(row)
    summaries = [result["summary"] for result in completed.values()]
    # the reference without privacy, in words, and its metrics; {} where it has not run
    reference = dict[str, Any]()
    for without in [row for rows in groups.values() for row in rows if row["method"] == REFERENCE][:1]:
        known = {name: without["metrics"][name] for name in task.metrics if name in without["metrics"]}
        reference = {"what": without["what"], "metrics": known}
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
        "names": _names(completed).plain(),
        "constant": _constant(summaries, task.metrics),
        "reference": reference,
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
    headings = [f"{name}_{part}" for name in shown for part in ("mean", "sd", "low", "high")]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*_COLUMNS, *headings])
    writer.writeheader()
    for row in rows:
        flat = {column: row[column] for column in _COLUMNS}
        for name, value in row["metrics"].items():
            flat |= {f"{name}_{part}": value.get(part) for part in ("mean", "sd", "low", "high")}
        texts = {key: "" if value is None else harmless(value) for key, value in flat.items()}
        writer.writerow({key: for_spreadsheets(text) for key, text in texts.items()})
    files.replace(folder / "table.csv", text.getvalue().encode())
    return [folder / "table.json", folder / "table.csv"]


def _names(completed: Mapping[Cell, Mapping[str, Any]]) -> Names:
    """Return names of groups and classes of the first run that has any: all cells learn from the same records."""
    every = (names_in(Path(result["directory"]), cell.experiment.data.columns) for cell, result in completed.items())
    return next((names for names in every if names.classes), UNNAMED)


def _constant(summaries: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """Return what a constant scores on the same held-out records, averaged over runs, and its answer; {} if unknown."""
    known = [summary for summary in summaries if summary.get("constant")]
    if not known:
        return {}
    values = {name: [to_float(summary["constant"].get(name)) for summary in known] for name in metrics}
    means = {name: mean for name, scores in values.items() if (mean := _spread(scores)["mean"]) is not None}
    every = [one.get("constant_intervals") or {} for one in known]
    around = {name: scores for intervals in every for name, scores in intervals.items() if name in means}
    answers = " or ".join(dict.fromkeys(str(one["constant_answers"]) for one in known))
    return {"metrics": means, "intervals": around, "answers": answers}


def _standard_errors(summaries: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, float]:
    """Return standard errors of metrics by the draw of held-out records: the largest over the runs, where known."""
    known = [summary.get("held_out_standard_errors") or {} for summary in summaries]
    values = {name: [to_float(errors.get(name)) for errors in known] for name in metrics}
    numbers = {name: [value for value in by_run if value is not None] for name, by_run in values.items()}
    return {name: max(by_run) for name, by_run in numbers.items() if by_run}


def _rows(
    grid: Grid, completed: Mapping[Cell, Mapping[str, Any]], *, failed: set[str]
) -> Iterator[tuple[StatedGuarantee, dict[str, Any]]]:
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


def _row(cell: Cell, guarantee: StatedGuarantee, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return statistics.fmean(float(summary[key]) for summary in summaries)

    def worst(key: str) -> float:
        return max(to_float(summary[key]) or 0.0 for summary in summaries)

    names, about = ordered_metrics(summaries[0]["held_out"]), methods()[cell.method].what
    spreads = {name: _spread(to_float(summary["held_out"].get(name)) for summary in summaries) for name in names}
    return {
        "method": cell.method,
        "what": " or ".join(dict.fromkeys(summary.get("reference", about) for summary in summaries)),
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
        "metrics": {name: spread | _around(name, spread, summaries) for name, spread in spreads.items()},
    }


def _spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and sample standard deviation; the latter needs two values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return {"mean": None, "sd": None}
    return {"mean": statistics.fmean(known), "sd": statistics.stdev(known) if len(known) > 1 else None}


def _around(
    name: str, spread: Mapping[str, float | None], summaries: Sequence[Mapping[str, Any]]
) -> dict[str, float | None]:
    """Return the interval (95 %) of the mean over seeds and held-out records; empty if a run does not say.

    The two draws are independent: their variances add up. All seeds share one draw of records, so that the largest
    standard error of a run counts once, and the deviation over seeds is divided by their root, by Student's law.
    """
    intervals = [(summary.get("held_out_intervals") or {}).get(name) for summary in summaries]
    if spread["mean"] is None or any(interval is None for interval in intervals):
        return {}
    known = [Interval(*(to_float(end) or 0.0 for end in interval)) for interval in intervals if interval is not None]
    records, seeds = max(map(standard_error, known)), len(known)
    chance = 0.0 if seeds < 2 else student(LEVEL, seeds - 1) * (spread["sd"] or 0.0) / math.sqrt(seeds)
    reach = math.hypot(normal(LEVEL) * records, chance)
    low, high = spread["mean"] - reach, spread["mean"] + reach
    floor = 0.0 if all(interval.low >= 0 for interval in known) else -math.inf
    ceiling = 1.0 if all(interval.high <= 1 for interval in known) else math.inf
    return {"low": max(low, floor), "high": min(high, ceiling)}


def _why_not(experiment: Experiment, summary: Mapping[str, Any]) -> Iterator[str]:
    stated = summary["guarantee"]
    if not stated["accountant_is_guarantee"]:
        yield f"accountant {stated['accountant']} is an approximation or for another relation"
    if stated.get("word") == "stated":
        yield f"the bound of the penalty {experiment.objective.penalty} is stated by the user"
    if not experiment.local.guaranteed:
        yield "the noise is for half of what a replaced record moves"
    if summary["nominal"]:
        yield f"nominal: {stated.get('randomness', 'sampling and noise are reproducible from a seed')}"
    if to_float(summary["epsilon_of_reader"]) != to_float(summary["epsilon"]):
        yield "the record shows metrics of private records"


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({json_text(value, indent=None): value for value in values}.values())
