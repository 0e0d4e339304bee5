"""A released model on the records that clients kept out of training: for the screens of whoever holds the records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from fedsw.data import Records, tables_in
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import require_allowed_code
from fedsw.federation.node.partition import held_out_records
from fedsw.randomness import Stream
from fedsw.report.progress import measured_cell, metric_name, ordered_metrics
from fedsw.report.screens import group_cell
from fedsw.runs.by_group import by_group, by_group_intervals
from fedsw.runs.evaluation import parts_of, with_intervals
from fedsw.runs.files import MODEL
from fedsw.runs.intervals import Gain, Interval
from fedsw.runs.record import read_run
from fedsw.runs.verdict import warnings_of
from fedsw.tasks.measures import measure
from fedsw.tasks.problem import Problem

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
    """What a model is worth on held-out records of a client, or of all. Without noise: for their owner alone.

    Attributes:
        name: whose they are.
        count: how many records, one of each unit; none is measured where there is none.
        metrics: of the model.
        intervals: where they lie, 95 %, over draws of units.
        standard_errors: the same as standard errors.
        constant: metrics of the best predictor that looks at no input, on the same records.
        constant_intervals: where they lie.
        answer: what that always answers.
        gain: how much better than the constant the model is in its first metric; None where there is no constant.
        by_group, by_group_intervals: metrics by group, and where they lie.
        warnings: what a reader must know first.
    """

    name: str
    count: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]
    standard_errors: Mapping[str, float]
    constant: Mapping[str, float]
    constant_intervals: Mapping[str, Interval]
    answer: str
    gain: Gain | None
    by_group: Mapping[str, Mapping[str, float]]
    by_group_intervals: Mapping[str, Mapping[str, Interval]]
    warnings: tuple[str, ...]


def evaluate(
    directory: Path, data_dir: Path | None, client: int | None = None, *, allow_modules: Collection[str] = ()
) -> tuple[Evaluated, ...]:
    """Measure a run's model on what clients kept out of its training, client by client and all together.

    Nothing is written, sent or charged: the split, the model and the settings are public, and the metrics, which are
    not, go to the caller.

    Args:
        directory: the run's; its config.json and model.safetensors are read.
        data_dir: where the clients' files are, as in the run; the run's own folder if it is None.
        client: this client's records alone; `data_dir` may then be its own folder.
        allow_modules: modules that the run's settings may name as `module:name`; their code runs.

    Raises:
        CodeRefused: if the settings name another module; none of its code has run.
        ExperimentError: if the run kept nothing out of training, or its records are not in files.
        FileNotFoundError, BadRecords: for a model or files that are missing or do not fit.
    """
    stored = read_run(directory).experiment
    require_allowed_code(stored, allow_modules, stored=directory)
    experiment = _asked(stored, data_dir).on_host()
    task = Problem.from_experiment(experiment)
    model = _model(task, directory / MODEL)
    records = held_out_records(task, _places(experiment, client))
    parts = [(f"client {number}", records.owner == place) for place, number in enumerate(records.clients)]
    if len(parts) > 1:
        parts.append(("all clients", np.ones(len(records.owner), dtype=bool)))
    return tuple(_evaluated(name, task, model, records.records.take(rows)) for name, rows in parts)


def _asked(experiment: Experiment, data_dir: Path | None) -> Experiment:
    spec = experiment.data
    if not spec.held_out_fraction:
        raise ExperimentError(
            "this run kept no records out of training (data.held_out_fraction = 0); set it for the next one, or name a "
            "table at the server with data.held_out"
        )
    if spec.source != "files":
        raise ExperimentError(f"evaluate reads clients' files, and this run's records came from {spec.label!r}")
    folder = spec.data_dir if data_dir is None else str(data_dir.expanduser())
    if folder is None:
        raise ExperimentError("this run does not say where the clients' files are: add --data-dir DIR")
    return experiment.model_copy(update={"data": spec.model_copy(update={"data_dir": folder})})


def _places(experiment: Experiment, client: int | None) -> dict[str, Any]:
    """The configuration of a node that holds the client, or all of them."""
    clients = experiment.federation.clients
    if client is None:
        return {"partition-id": 0, "num-partitions": 1}
    if client >= clients:
        raise ExperimentError(f"--client is {client}, and the run has clients 0 to {clients - 1}")
    alone = {"partition-id": client, "num-partitions": clients}
    folder = Path(str(experiment.data.data_dir))
    return {**alone, "data-dir": str(folder)} if tables_in(folder) else alone


def _model(task: Problem, path: Path) -> nn.Module:
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no model {path}; a run leaves it when it ends")
    model = task.build_model()
    model.load_state_dict(load_file(path))
    return model


def _evaluated(name: str, task: Problem, model: nn.Module, records: Records) -> Evaluated:
    """Of every unit one row, the same at every call: rows of one person say little more than one of them."""
    if len(records) == 0:
        return Evaluated(name, 0, {}, {}, {}, {}, {}, "", None, {}, {}, (_NOTHING.format(name),))
    units = Units.of(records)
    rows = units.one_row_each(np.arange(len(units)), Stream.seeded(0, "evaluate"), seeded=False)
    chosen = records.take(rows)
    measured = measure(task, chosen.to(task.device), model, parts=parts_of(chosen))
    outputs = measured.arrays["outputs"]
    quality = with_intervals(task, chosen, measured, measured.report, measured.without)
    return Evaluated(
        name,
        len(chosen),
        measured.report,
        quality.intervals,
        quality.standard_errors,
        quality.constant,
        quality.constant_intervals,
        quality.answer,
        quality.gain,
        by_group(task, outputs, chosen),
        by_group_intervals(task, outputs, chosen),
        (_ALONE.format(name),)
        if len(chosen) == 1
        else warnings_of(
            metrics=measured.report, quality=quality, records=len(chosen), start=None, epsilon=0.0, noisy=False
        ),
    )


_MOST = 4
_INTERVALS = "below each number where its true value lies, 95 %: what other records of as many units would have given"
_CAPTION = "without noise, of private records: for the screen of whoever holds them; nothing was written or sent"


def evaluated_view(found: Sequence[Evaluated]) -> RenderableType:
    """Warnings, a line for every client and one for a constant, and the last of them by group.

    Of the metrics those that a constant has; plain values have all of them (`--json`).
    """
    last = found[-1]
    names = [name for name in ordered_metrics(last.metrics) if name in last.constant]
    names = names or ordered_metrics(last.metrics)[:_MOST]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kept out by", no_wrap=True)
    for column in ("count", *(metric_name(name) for name in names)):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(each.name, f"{each.count:,}", *(_cell(each, name) for name in names))
    if last.constant:
        around = last.constant_intervals
        scores = [(last.constant.get(name), around.get(name)) for name in names]
        constant = ["" if value is None else measured_cell(value, interval) for value, interval in scores]
        table.add_row(last.answer, f"{last.count:,}", *constant, style="dim")
    said = [warning for each in found if each is last or each.count < 2 for warning in each.warnings]
    parts: list[RenderableType] = [Text(f"! {warning}", style="bold red") for warning in said]
    parts += [table, *_groups(last), Text(_INTERVALS, style="dim")]
    return Group(*parts, Text(_CAPTION, style="dim"))


def _cell(each: Evaluated, name: str) -> str:
    return measured_cell(each.metrics[name], each.intervals.get(name)) if name in each.metrics else ""


def _groups(each: Evaluated) -> list[Table]:
    if not each.by_group:
        return []
    columns = list(dict.fromkeys(name for numbers in each.by_group.values() for name in numbers))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(each.name, no_wrap=True)
    for column in columns:
        table.add_column(metric_name(column), justify="right")
    for group, numbers in each.by_group.items():
        around = each.by_group_intervals.get(group, {})
        table.add_row(group, *(group_cell(name, numbers.get(name), around.get(name)) for name in columns))
    return [table]
