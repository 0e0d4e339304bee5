"""Held-out metrics group by group, with where they lie; for reading, beside the gaps between the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data import Records
from fedsw.runs import intervals
from fedsw.runs.intervals import Interval
from fedsw.runs.quality import AnswersByRecord, units_of
from fedsw.tasks.problem import Problem

TASKS = ("classification", "regression")

Array = NDArray[Any]
Measured = Mapping[str, tuple[float, Interval]]

_BINS = 10


class GroupTable(NamedTuple):
    """Metrics by group, each by name, and where they lie, 95 %, over draws of units."""

    numbers: dict[str, dict[str, float]]
    around: dict[str, dict[str, Interval]]

    @classmethod
    def of(cls, counts: Mapping[str, float], found: Mapping[str, Measured]) -> GroupTable:
        """Of how many records each group has, and what was measured on them; what was not is nan."""
        columns = dict.fromkeys(column for each in found.values() for column in each)
        numbers = {
            name: {"count": counts[name], **{column: each.get(column, _NOTHING)[0] for column in columns}}
            for name, each in found.items()
        }
        return cls(numbers, {name: {key: around for key, (_, around) in each.items()} for name, each in found.items()})


def by_group(task: Problem, outputs: Tensor, records: Records) -> GroupTable:
    """For every group its records and what the model is worth on them; empty for one group, and for other tasks.

    Held-out outputs are (n, d). By group: `count`; for classification `accuracy`, and `selection_rate`,
    `true_positive_rate`, `false_positive_rate`, `auc` and `calibration_error` of class 1 (for more than two classes
    `selection_rate_c` of every class c); for regression `mean_squared_error` and `mean_absolute_error`, of Euclidean
    distances, and `r2`. What a group's records do not define is nan.
    """
    kind = task.experiment.objective.task
    if kind not in TASKS or len(task.groups) < 2:
        return GroupTable({}, {})
    sensitive = records.sensitive.cpu().numpy()
    size = len(task.groups), task.classes
    answers = AnswersByRecord(outputs, records, *size) if kind == "classification" else None

    def of(group: int, rows: Array) -> Measured:
        if answers is None:
            return _of_numbers(outputs, records, rows)
        return _of_classes(answers, outputs, group, rows)

    rows = {name: sensitive == group for group, name in enumerate(task.groups)}
    found = {name: of(group, own) if own.any() else {} for group, (name, own) in enumerate(rows.items())}
    return GroupTable.of({name: int(own.sum()) for name, own in rows.items()}, found)


_NOTHING = (float("nan"), intervals.WHOLE)


def _of_classes(answers: AnswersByRecord, outputs: Tensor, group: int, rows: Array) -> Measured:
    measured = answers.of_group(group)
    if answers.classes > 2:
        return measured
    target, units = answers.target[rows], answers.units[rows]
    scores = outputs[:, 0].detach().double().cpu().numpy()[rows]
    ones, others = (len(np.unique(units[target == c])) for c in (1, 0))
    area = _auc(target, scores)
    return measured | {
        "auc": (area, intervals.curve_area(area, ones, others)),
        "calibration_error": (calibration_error(target, scores), _around_calibration(target, scores, units)),
    }


def _of_numbers(outputs: Tensor, records: Records, rows: Array) -> Measured:
    target = records.target.cpu().numpy()[rows]
    gaps = (outputs.detach().double().cpu().numpy()[rows] - target).reshape(len(target), -1)
    squares, own, wide = np.square(gaps).sum(axis=1), units_of(records)[rows], target.reshape(len(target), -1)
    spread = np.square(wide.astype(np.float64) - wide.mean(axis=0, dtype=np.float64)).sum(axis=1)
    low, high = intervals.ratio_of_means(squares, spread, own)
    explained = float(1 - squares.sum() / spread.sum()) if spread.sum() > 0 else float("nan")
    return {
        "mean_squared_error": (float(squares.mean()), intervals.positive_mean(squares, own)),
        "mean_absolute_error": (float(np.sqrt(squares).mean()), intervals.positive_mean(np.sqrt(squares), own)),
        "r2": (explained, Interval(1 - high, 1 - low)),
    }


def calibration_error(target: Array, scores: Array) -> float:
    """Mean gap between score (n,) and share of class 1 in ten bins of equal width, weighted by their records (n,)."""
    gaps = np.bincount(_bins(scores), weights=scores - target, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(target))


def _around_calibration(target: Array, scores: Array, units: Array) -> Interval:
    bins, gaps = _bins(scores), scores - target
    within = [np.where(bins == b, gaps, 0.0) for b in range(_BINS)]
    errors = [intervals.mean_error(each, units) for each in within]
    return intervals.sum_of_sizes(np.array([each.mean() for each in within]), np.array(errors))


def _bins(scores: Array) -> Array:
    bins: Array = np.clip((scores * _BINS).astype(int), 0, _BINS - 1)
    return bins


def _auc(target: Array, scores: Array) -> float:
    """The area under the ROC curve; nan where one class is absent, or a score is not finite."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(target)) < 2 or not np.isfinite(scores).all():
        return float("nan")
    return float(roc_auc_score(target, scores))
