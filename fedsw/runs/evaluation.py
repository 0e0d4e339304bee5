"""Held-out metrics, on records that are declared outside the guarantee; a run measures itself on no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.own_metrics import load_metrics, require_names
from fedsw.experiment.sources import load_class_names, load_held_out
from fedsw.runs.by_group import by_group, require_by_group
from fedsw.runs.directory import RunDirectory
from fedsw.runs.own_metrics import Metric, OwnMetrics
from fedsw.runs.quality import Quality, quality_of_classes, quality_of_numbers
from fedsw.runs.subsample import subsample
from fedsw.tasks.measures import Measured, measure
from fedsw.tasks.problem import Problem


@dataclass(frozen=True)
class HeldOut:
    """What a model is worth on held-out records: `metrics` by name, and a table of them by group.

    `measured_on` says on how many `records`, `of` how many that there are, and with how many `directions` where a
    metric is a sliced distance; `quality` what the metrics are worth beside a constant, and `start` the loss before
    training. `missing` says in words why there is nothing where a release of kept records was planned.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    by_group: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measured_on: Mapping[str, int] = field(default_factory=dict)
    quality: Quality = field(default_factory=Quality)
    start: float | None = None
    missing: str = ""


class Evaluator:
    """Evaluates flat models on the held-out part of the experiment's data set.

    Held-out records are not protected by the run's guarantee; the docs and the record say so. All that is measured is
    tried here once, on the initial model: what fails does so before anything is spent. By default it is measured on a
    subsample (`evaluation`), which the summary says.

    Args:
        metrics: functions of a user's own by name, beside those that the experiment names.

    Raises:
        ExperimentError: if one of them cannot be used, or there are no records to use them on.
        ModuleNotFoundError: if a library that measures is missing.
    """

    def __init__(self, task: Problem, metrics: Mapping[str, Metric] | None = None) -> None:
        everything, evaluation = load_held_out(task.experiment), task.experiment.evaluation
        if everything is not None and len(everything) == 0:
            raise ExperimentError("the data set has no held-out records; a run needs some to show metrics on")
        self._task, self._records, self._all = task, everything, 0 if everything is None else len(everything)
        if everything is not None and evaluation.mode == "auto":
            self._records = subsample(everything, evaluation.records)
        self._there = None if self._records is None else self._records.to(task.device)
        self._model = task.build_model()
        self._start: float | None = None
        named, given = load_metrics(task.experiment.metrics), metrics or {}
        require_names([*named, *given])
        self._own = OwnMetrics({**named, **given})
        if self._records is not None and self._there is not None:
            initial = measure(task, self._there, self._model)
            outputs, self._start = initial.arrays["outputs"], initial.report.get("loss")
            require_by_group(task)
            self._own.attempt(outputs, self._records)
        elif self._own:
            raise ExperimentError(
                f"metrics {sorted({**named, **given})} are measured on held-out records, and data.held_out names none "
                "at the server; name a file there, or leave the metrics out"
            )

    def metrics(self, theta: Tensor) -> dict[str, float]:
        """Metrics of the model with flat parameters `theta`; none without held-out records."""
        return self.metrics_of(self._task.prepared(self._model, theta)) if self._records is not None else {}

    def metrics_of(self, model: nn.Module) -> dict[str, float]:
        """Metrics of a model, buffers and all; none without held-out records."""
        if self._records is None or self._there is None:
            return {}
        measured = measure(self._task, self._there, model, arrays=len(self._own) > 0)
        return self._with_own(measured, self._records)

    def write_outputs(self, model: nn.Module, directory: RunDirectory) -> HeldOut:
        """Metrics of a model, by group too; its held-out outputs go to the run's folder for the plots."""
        if self._records is None or self._there is None:
            return HeldOut()
        measured = measure(self._task, self._there, model)
        directory.write_outputs(measured.arrays)
        table = by_group(self._task, measured.arrays["outputs"], self._records)
        size = {"records": len(self._records), "of": self._all}
        directions = {"directions": measured.directions} if measured.directions else {}
        quality = quality_of(self._task, measured.arrays["outputs"], self._records)
        report = self._with_own(measured, self._records)
        return HeldOut(report, table, size | directions, quality, self._start)

    def _with_own(self, measured: Measured, records: Records) -> dict[str, float]:
        return measured.report | (self._own.measure(measured.arrays["outputs"], records) if self._own else {})


def quality_of(task: Problem, outputs: Tensor, records: Records) -> Quality:
    """What a task's metrics are worth; nothing for one without a target, or outputs (n, d) that are not finite."""
    kind = task.experiment.objective.task
    if not bool(torch.isfinite(outputs).all()):
        return Quality()
    if kind == "classification":
        names = load_class_names(task.experiment)
        return quality_of_classes(outputs, records, groups=len(task.groups), classes=task.classes, names=names)
    return quality_of_numbers(outputs, records) if kind == "regression" else Quality()


def measured_on(experiment: Experiment) -> str:
    """What the record says of the held-out metrics: whose records they are, or why there are none."""
    if not experiment.data.own:
        return "the data set's held-out part, which the guarantee does not cover"
    if experiment.data.held_out_released:
        return (
            f"counts and sums over the {experiment.data.held_out_fraction:g} of their records that clients keep out of "
            "training, released once with noise and charged to them"
        )
    if experiment.data.held_out is None and experiment.data.held_out_fraction:
        return (
            f"nothing here: every client keeps {experiment.data.held_out_fraction:g} of its records out of training, "
            "and `fedsw evaluate` shows its operator the metrics on them"
        )
    if experiment.data.held_out is None:
        return "nothing: clients bring their own records, and data.held_out names none at the server"
    place = "the object held_out" if experiment.data.held_out == experiment.data.source else experiment.data.held_out
    words = f"the server's own records in {place}, which the guarantee does not cover"
    if experiment.data.shows_private_rows:
        return f"{words}; they may share rows with private records (data.held_out_overlap = 'allow')"
    return words
