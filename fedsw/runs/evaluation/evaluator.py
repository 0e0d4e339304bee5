"""Metrics of held-out records, round by round: shipped ones and custom ones."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.data import Records
from fedsw.data.sources import load_class_names, load_held_out
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import load_metrics, require_names
from fedsw.learning.tasks.measures import Measurements, measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import intervals
from fedsw.runs.evaluation.intervals import Gain, Interval, plain
from fedsw.runs.evaluation.quality import (
    OF_SHARES,
    GroupTable,
    Quality,
    by_column,
    by_group,
    class_named,
    of_probabilities,
    quality_of_classes,
    quality_of_numbers,
    units_of,
)
from fedsw.runs.telemetry import LOGGER, event


def subsample(records: Records, most: int) -> Records:
    """At most about `most` of the records: of every stratum its part, rounded up, so that none vanishes.

    A stratum is a group, or a class in a group if targets are classes. Within a stratum the choice is uniform and
    depends on positions only, never on features or targets of a regression; a fixed public seed makes it the same in
    every round and every run, and no training reads it. Records keep their order; n <= `most` of them are returned
    unchanged.
    """
    n = len(records)
    if n <= most:
        return records
    number = records.sensitive
    if records.is_classification:
        number = number * (int(records.target.max()) + 1) + records.target
    strata, keys = number.numpy(), Stream.seeded(0, "held-out subsample").words(n)
    rows = []
    for stratum in np.unique(strata):
        (members,) = np.nonzero(strata == stratum)
        rows.append(members[smallest_keys(keys[members], -(-len(members) * most // n))])
    return records.take(torch.from_numpy(np.sort(np.concatenate(rows))))


Metric = Callable[[Tensor, Records], float | Mapping[str, float]]
"""`metric(outputs, records)`: outputs (n, d), what the penalty compares; records with `features` (n, p), `sensitive`
(n,), the group of each record, and `target` (n,) or (n, t). Both are copies of the held-out part, and may be changed.
For a generator outputs are its samples, and rows of the two do not belong together. It returns a number, which is
recorded under the metric's name, or numbers by name, recorded as `metric.name`."""


class OwnMetrics:
    """Custom metrics by name; none has a shipped metric's name."""

    def __init__(self, *metrics: Mapping[str, Metric]) -> None:
        require_names([name for named in metrics for name in named])
        self._metrics = {name: metric for named in metrics for name, metric in named.items()}
        self._failed = set[str]()
        for name, metric in self._metrics.items():
            if not callable(metric):
                raise ExperimentError(f"metric {name!r} is a {type(metric).__name__} and cannot be called")

    @property
    def names(self) -> list[str]:
        """Their names."""
        return sorted(self._metrics)

    def attempt(self, outputs: Tensor, records: Records) -> None:
        """Try every metric on outputs (n, d), before anything is spent; what raises is named."""
        for name, metric in self._metrics.items():
            try:
                returned = metric(outputs.clone(), records.copied())
            except Exception as fault:
                raise ExperimentError(
                    f"metric {name!r} fails on {len(outputs)} held-out outputs of the initial model: "
                    f"{type(fault).__name__}: {fault}"
                ) from fault
            _named(name, returned)

    def measure(self, outputs: Tensor, records: Records) -> dict[str, float]:
        """Every metric's numbers of outputs (n, d), by name. It never raises: budget is being spent.

        A metric that fails is nan, with one warning in the log.
        """
        measured: dict[str, float] = {}
        for name, metric in self._metrics.items():
            try:
                measured |= _named(name, metric(outputs.clone(), records.copied()))
            except Exception as fault:
                measured[name] = float("nan")
                if name not in self._failed:
                    self._failed.add(name)
                    words = f"metric {name!r} failed and is nan: {type(fault).__name__}: {fault}"
                    logging.getLogger(LOGGER).warning(words, extra=event("metric failed"))
        return measured


def _named(name: str, returned: Any) -> dict[str, float]:
    """The numbers that a metric returned, by their names on record."""
    if not isinstance(returned, Mapping):
        return {name: _number(name, returned)}
    for key in returned:
        if not isinstance(key, str) or not key:
            raise ExperimentError(f"metric {name!r} returned a number under the name {key!r}; names are words")
    return {f"{name}.{key}": _number(f"{name}.{key}", value) for key, value in returned.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex() and value.dtype != torch.bool:
        return float(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise ExperimentError(f"metric {name!r} returned {kind}; it must return a float, or floats by name")


_PARTS = 10
"""Parts of the units, each left out once, of which intervals of metrics without a known law are made."""
_DISTANCES = ("w2_squared", "sw2", "od_", "frechet")
"""Metrics that are never negative."""


@dataclass(frozen=True)
class HeldOutMetrics:
    """A model's worth on held-out records: `metrics` by name, and tables of them by group, and by each column of
    combined groups.

    `measured_on` has the number of measured `records`, `of` all, and the `directions` of sliced distances. `quality`
    compares with a constant; `start` is the loss before training, `rise` its increase on the same records. `missing`
    is the reason in words if a planned release of kept records gave no metrics.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    by_group: GroupTable = GroupTable({}, {})
    measured_on: Mapping[str, int] = field(default_factory=dict)
    quality: Quality = field(default_factory=Quality)
    start: float | None = None
    missing: str = ""
    rise: Gain | None = None
    by_column: GroupTable = GroupTable({}, {})

    def said(self) -> dict[str, Any]:
        """The summary's part about it."""
        quality, gain = self.quality, self.quality.gain
        return {
            "held_out": dict(self.metrics),
            "held_out_intervals": plain(quality.intervals),
            "held_out_standard_errors": quality.standard_errors,
            **_table("held_out_by_group", self.by_group),
            **(_table("held_out_by_column", self.by_column) if self.by_column.numbers else {}),
            "held_out_measured_on": dict(self.measured_on),
            "constant": dict(quality.constant),
            "constant_intervals": plain(quality.constant_intervals),
            "constant_answers": quality.answer,
            "gain": None if gain is None else {**gain._asdict(), "claim": gain.claim},
            "best_threshold": dict(quality.best_threshold),
            **({"held_out_impact_of": quality.impact_of} if quality.impact_of else {}),
        }


def _table(name: str, table: GroupTable) -> dict[str, Any]:
    around = {row: plain(intervals) for row, intervals in table.around.items()}
    return {name: table.numbers, f"{name}_intervals": around}


class Evaluator:
    """Evaluates flat models on the held-out part of the experiment's data set.

    The run's guarantee does not cover held-out records; docs and summary say so. Every metric is tried once on the
    initial model, so that one that fails does so before anything is spent. By default metrics are of a subsample
    (`evaluation`), as the summary says. Custom ``metrics`` by name join those that the experiment names.
    """

    def __init__(
        self, task: Problem, metrics: Mapping[str, Metric] | None = None, *, records: Records | None = None
    ) -> None:
        self._task, self._model = task, task.build_model()
        self._records = load_held_out(task.experiment.record_source) if records is None else records
        self._own = OwnMetrics(load_metrics(task.experiment.metrics), metrics or {})
        if self._records is None:
            if self._own.names:
                raise ExperimentError(
                    f"metrics {self._own.names} are measured on held-out records, and data.held_out names none at the "
                    "server; name a file there, or leave the metrics out"
                )
            return
        self._all = len(self._records)
        if not self._all:
            raise ExperimentError("the data set has no held-out records; a run needs some to show metrics on")
        if task.experiment.evaluation.mode == "auto":
            self._records = subsample(self._records, task.experiment.evaluation.records)
        self._measured = replace(task, ready=task.keeps)
        self._there = (task.readied(self._records) if task.keeps else self._records).to(task.device)
        initial = measure(self._measured, self._there, self._model)
        self._start, self._losses = initial.report.get("loss"), initial.losses
        self._own.attempt(initial.arrays["outputs"], self._records)

    def metrics(self, theta: Tensor) -> dict[str, float]:
        """Metrics of the model with flat parameters `theta`; none without held-out records."""
        return self.metrics_of(self._task.prepared(self._model, theta)) if self._records is not None else {}

    def metrics_of(self, model: nn.Module) -> dict[str, float]:
        """Metrics of a model, buffers and all; none without held-out records."""
        if self._records is None:
            return {}
        measured = measure(self._measured, self._there, model, arrays=bool(self._own.names))
        return self._with_own(measured, self._records)

    def write_outputs(self, model: nn.Module, directory: RunDirectory) -> HeldOutMetrics:
        """Metrics of a model, by group too; its held-out outputs go to the run's folder for the plots."""
        if self._records is None:
            return HeldOutMetrics()
        measured = measure(self._measured, self._there, model, parts=parts_of(self._records))
        directory.write_outputs(measured.arrays)
        measured = replace(measured, report=self._with_own(measured, self._records))
        worth = worth_of(self._task, self._records, measured, of=self._all)
        rise, before, after = None, self._losses, measured.losses
        if before is not None and after is not None and bool(before.isfinite().all() and after.isfinite().all()):
            rise = intervals.paired_mean((after - before).numpy(), units_of(self._records))
        return replace(worth, start=self._start, rise=rise)

    def _with_own(self, measured: Measurements, records: Records) -> dict[str, float]:
        return measured.report | (self._own.measure(measured.arrays["outputs"], records) if self._own.names else {})


def parts_of(records: Records) -> Tensor:
    """The part of the units, of `_PARTS`, that each record is in, (n,); rows of one unit are in one part."""
    _, number = np.unique(units_of(records), return_inverse=True)
    return torch.from_numpy(number % _PARTS)


def worth_of(task: Problem, records: Records, measured: Measurements, *, of: int) -> HeldOutMetrics:
    """Measured metrics of some records, `of` a total, with intervals and tables for the summary."""
    outputs, quality = measured.arrays["outputs"], _with_intervals(task, records, measured)
    if scored := of_probabilities(task, outputs, records):
        around = {name: interval for name, (_, interval) in scored.items()}
        constant = {name: OF_SHARES[name] for name in scored}
        quality = replace(
            quality, intervals=around | dict(quality.intervals), constant=dict(quality.constant) | constant
        )
    size = {"records": len(records), "of": of} | ({"directions": measured.directions} if measured.directions else {})
    report = dict(measured.report) | {name: value for name, (value, _) in scored.items()}
    return HeldOutMetrics(
        report, by_group(task, outputs, records), size, quality, by_column=by_column(task, outputs, records)
    )


def _with_intervals(task: Problem, records: Records, measured: Measurements) -> Quality:
    """Intervals around a model's metrics; those without a known law by the delete-a-group jackknife, if it is there."""
    report = measured.report
    quality, units = quality_of(task, measured.arrays["outputs"], records), units_of(records)
    around = dict(quality.intervals)
    if measured.losses is not None and bool(torch.isfinite(measured.losses).all()):
        around["loss"] = intervals.mean(measured.losses.numpy(), units)
    for name in report.keys() - around.keys():
        if name == "accuracy" and math.isfinite(report[name]):
            count = len(np.unique(units))
            around[name] = intervals.share(report[name] * count, count)
        elif interval := intervals.left_out(report[name], [rest.get(name, math.nan) for rest in measured.without]):
            around[name] = Interval(max(interval.low, 0.0), interval.high) if name.startswith(_DISTANCES) else interval
    quality = replace(quality, intervals={name: around[name] for name in report if name in around})
    made_labels = task.task.facts.sketched and task.classes > 1  # labels of a classifier of synthetic rows
    return beside_constant(quality, report, records, task) if made_labels and not quality.constant else quality


def beside_constant(quality: Quality, report: Mapping[str, float], records: Records, task: Problem) -> Quality:
    """An accuracy beside that of the most frequent class, if single predictions are not at hand.

    How often both are right is not known, so that the gain's interval is between their intervals' ends.
    """
    if "accuracy" not in report:
        return quality
    units, target = units_of(records), records.target.cpu().numpy()
    most, count = int(np.bincount(target).argmax()), len(np.unique(units))
    always, names = (intervals.rate_of(target == most, units), load_class_names(task.experiment.record_source))
    made = intervals.share(report["accuracy"] * count, count, level=intervals.SURE)
    low, high = always.at(intervals.SURE)
    return replace(
        quality,
        constant={"accuracy": always.value},
        constant_intervals={"accuracy": always.at(intervals.LEVEL)},
        answer=f"always {class_named(most, names)}",
        gain=Gain(report["accuracy"] - always.value, made.low - high, made.high - low),
    )


def quality_of(task: Problem, outputs: Tensor, records: Records) -> Quality:
    """Intervals around a task's metrics; none for one without a target, or outputs (n, d) that are not finite."""
    facts = task.task.facts
    if not facts.supervised or not bool(torch.isfinite(outputs).all()):
        return Quality()
    if facts.classifies:
        names = load_class_names(task.experiment.record_source)
        about: dict[str, Any] = {"groups": len(task.groups), "classes": task.classes, "positive": task.positive}
        return quality_of_classes(outputs, records, names=names, **about)
    return quality_of_numbers(outputs, records, task.units)


def measured_on(experiment: Experiment) -> str:
    """Name the source of the held-out records, or why there are none."""
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
    source = "the object held_out" if experiment.data.held_out == experiment.data.source else experiment.data.held_out
    words = f"the server's own records in {source}, which the guarantee does not cover"
    if experiment.data.shows_private_rows:
        return f"{words}; they may share rows with private records (data.held_out_overlap = 'allow')"
    if experiment.data.of_other_people:
        return (
            f"{words}; that rows which equal private ones are of other people is the word of whoever ran this "
            "(data.held_out_overlap = 'other-people')"
        )
    return words
