"""A released model on the records that clients kept out of training: for the screens of their holders."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import nn

from fedsw._tools.randomness import Stream
from fedsw.data import Records, tables_in
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import require_allowed_code
from fedsw.federation.node.held_records import held_out_records
from fedsw.federation.node.simulated import simulating
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.evaluator import HeldOutMetrics, parts_of, worth_of
from fedsw.runs.evaluation.intervals import Interval
from fedsw.runs.evaluation.verdict import warnings_of
from fedsw.runs.group_names import UNNAMED, Names, names_of
from fedsw.runs.report.document import Document, Listed, Note
from fedsw.runs.report.metric_names import group_table, measured_cell, metric_name, ordered_metrics
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import read_run

_NOTHING = (
    "{} kept no record out of training, so nothing is measured there: data.held_out_fraction of each of its groups and "
    "classes is less than one record"
)
_ALONE = (
    "{} kept 1 record out of training: nothing can be measured on it, since one record does not show how much others "
    "differ. Look at all clients together, or keep more with data.held_out_fraction"
)


@dataclass(frozen=True)
class Evaluated:
    """Metrics of a model on held-out records of a client, or of all. Without noise: for their owner only.

    ``worth`` is metrics, a constant's beside them, and a table by group, over so many records, one of each unit;
    ``warnings`` are what a reader must know first; ``called`` are the names of groups and classes.
    """

    name: str
    count: int
    worth: HeldOutMetrics
    warnings: tuple[str, ...]
    called: Names = UNNAMED

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        quality = self.worth.quality
        return {
            "name": self.name,
            "epsilon_of_reader": math.inf,
            "count": self.count,
            "metrics": self.worth.metrics,
            "intervals": quality.intervals,
            "standard_errors": quality.standard_errors,
            "constant": quality.constant,
            "constant_intervals": quality.constant_intervals,
            "answer": quality.answer,
            "gain": quality.gain,
            "classes": self.called.plain(),
            "disparate_impact_of": quality.impact_of,
            "by_group": self.worth.by_group.numbers,
            "by_group_intervals": self.worth.by_group.around,
            "warnings": self.warnings,
        }


def evaluate(
    directory: Path, data_dir: Path | None, client: int | None = None, *, allow_modules: Collection[str] = ()
) -> tuple[Evaluated, ...]:
    """Measure a run's model on what clients kept out of its training, client by client and all together.

    Nothing is written, sent or charged: the split, the model and the settings are public, and the metrics, which are
    not, go to the caller. The clients' files are in `data_dir`, by default the run's folder; with `client` it may be
    that client's own folder.

    CodeRefused if the settings name another module; none of its code has run. ExperimentError if the run kept nothing
    out of training, or its records are not in files; FileNotFoundError, BadRecords for what is missing or does not fit.
    """
    stored = read_run(directory).experiment
    require_allowed_code(stored, allow_modules, stored=directory)
    if not stored.data.held_out_fraction:
        raise ExperimentError(
            "this run kept no records out of training (data.held_out_fraction = 0); set it for the next one, or name a "
            "table at the server with data.held_out"
        )
    if stored.data.own_files is None:
        raise ExperimentError(f"evaluate reads clients' files, and this run's records came from {stored.data.label!r}")
    folder = stored.data.data_dir if data_dir is None else str(data_dir.expanduser())
    if folder is None:
        raise ExperimentError("this run does not say where the clients' files are: add --data-dir DIR")
    experiment = stored.with_sections(data={"data_dir": folder}).on_host()
    task = Problem.from_experiment(experiment)
    model = _model(task, directory / RunFile.MODEL)
    with simulating():
        records = held_out_records(task, _places(experiment, client))
    parts = [(f"client {number}", records.owner == index) for index, number in enumerate(records.clients)]
    if len(parts) > 1:
        parts.append(("all clients", np.ones(len(records.owner), dtype=bool)))
    return tuple(_evaluated(name, task, model, records.records.take(rows)) for name, rows in parts)


def _places(experiment: Experiment, client: int | None) -> dict[str, Any]:
    clients = experiment.federation.clients
    if client is None:
        return {"partition-id": 0, "num-partitions": 1}
    if client >= clients:
        raise ExperimentError(f"--client is {client}, and the run has clients 0 to {clients - 1}")
    alone = {"partition-id": client, "num-partitions": clients}
    folder = Path(str(experiment.data.data_dir))
    return {**alone, "data-dir": str(folder)} if tables_in(folder) else alone


def _model(task: Problem, path: Path) -> nn.Module:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model {path}; a run leaves it when it ends")
    model = task.build_model()
    model.load_state_dict(load_file(path))
    return model


def _evaluated(name: str, task: Problem, model: nn.Module, records: Records) -> Evaluated:
    """Measure on one row of every unit, the same at every call: rows of one person say little more than one of them."""
    if len(records) == 0:
        return Evaluated(name, 0, HeldOutMetrics(), (_NOTHING.format(name),))
    columns = task.experiment.data.columns
    called = UNNAMED if columns is None else names_of(columns)
    units = Units.of(records)
    rows = units.one_row_each(np.arange(len(units)), Stream.seeded(0, "evaluate"), seeded=False)
    chosen = records.take(rows)
    measured = measure(task, chosen.to(task.device), model, parts=parts_of(chosen))
    worth = worth_of(task, chosen, measured, of=len(chosen))
    if len(chosen) == 1:
        return Evaluated(name, 1, worth, (_ALONE.format(name),), called)
    warnings = warnings_of(
        metrics=worth.metrics,
        quality=worth.quality,
        records=len(chosen),
        start=None,
        epsilon=None,
        groups={group: row["count"] for group, row in worth.by_group.numbers.items() if "count" in row},
        alpha=task.experiment.objective.alpha,
    )
    return Evaluated(name, len(chosen), worth, warnings, called)


_MOST = 4
_INTERVALS = "below each number where its true value lies, 95 %: what other records of as many units would have given"
_CAPTION = "without noise, of private records: for the screen of their holder; nothing was written or sent"


def evaluated_view(evaluated: Sequence[Evaluated]) -> Document:
    """Warnings, a line for every client and one for a constant, and the last by group; metrics that a constant has."""
    last, called = evaluated[-1].worth, evaluated[-1].called
    constant, answer = last.quality.constant, last.quality.answer
    known = ordered_metrics(last.metrics, called)
    names = [name for name in known if name in constant] or known[:_MOST]

    def cells(metrics: Mapping[str, float], around: Mapping[str, Interval]) -> list[str]:
        return [measured_cell(metrics[name], around.get(name)) if name in metrics else "" for name in names]

    rows = [
        [measured.name, f"{measured.count:,}", *cells(measured.worth.metrics, measured.worth.quality.intervals)]
        for measured in evaluated
    ]
    if constant:
        rows.append([answer, f"{evaluated[-1].count:,}", *cells(constant, last.quality.constant_intervals)])
    headed = ("kept out by", "count", *(metric_name(name, called) for name in names))
    headings, by_group = group_table(*last.by_group, measured_cell, called=called)
    warned_of = (measured for measured in evaluated if measured is evaluated[-1] or measured.count < 2)
    return Document(
        "",
        warnings=tuple(warning for measured in warned_of for warning in measured.warnings),
        begins=(
            Listed.of("Metrics", headed, rows, whole=headed[:1]),
            Listed.of("By group", (evaluated[-1].name, *headings), by_group, whole=(evaluated[-1].name,)),
            Note(_INTERVALS),
            Note(_CAPTION),
        ),
    )
