"""Held-out metrics group by group, with fairlearn's MetricFrame; for reading, beside the gaps between the groups.

The gaps themselves stay our own (`fedsw.metrics`): they are for any number of classes, and nan where a group has no
records, which fairlearn leaves out.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data import Records
from fedsw.metrics import predictions
from fedsw.runs import intervals
from fedsw.runs.intervals import Interval
from fedsw.runs.quality import units_of
from fedsw.tasks.problem import Problem

TASKS = ("classification", "regression")

Array = NDArray[Any]
Metric = Callable[[Array, Array], float]

_BINS = 10


def require_by_group(task: Problem) -> None:
    """Find out whether the table can be made, without loading what makes it, which takes seconds.

    Raises:
        ModuleNotFoundError: if fairlearn is missing; the extra `app` brings it.
    """
    if _has_table(task) and importlib.util.find_spec("fairlearn") is None:
        raise ModuleNotFoundError(
            "tables by group need fairlearn, which is not installed: `pip install 'fedsw[app]'`", name="fairlearn"
        )


def by_group(task: Problem, outputs: Tensor, records: Records) -> dict[str, dict[str, float]]:
    """For every group its records and what the model is worth on them; empty for one group, and for other tasks.

    Args:
        outputs: held-out outputs (n, d), as `fedsw.tasks.measures` gives them.
        records: the n held-out records.

    Returns:
        By group: `count`; for classification `accuracy`, and `selection_rate`, `true_positive_rate`,
        `false_positive_rate`, `auc` and `calibration_error` of class 1 (for more than two classes `selection_rate_c` of
        every class c); for regression `mean_squared_error` and `mean_absolute_error`, of Euclidean distances, and `r2`.
        In a group without records everything but the count is nan, as is what its records do not define.

    Raises:
        ModuleNotFoundError: if fairlearn is missing; the extra `app` brings it.
    """
    if not _has_table(task):
        return {}
    from fairlearn.metrics import MetricFrame, count

    target, found = records.target.numpy(), outputs.detach().double().numpy()
    metrics = _of_classes(task.classes, target, found) if _classifies(task) else _of_numbers(target, found)
    places = np.arange(len(found))  # metrics look up what they need, which may be a row of several numbers
    frame = MetricFrame(
        metrics={"count": count, **metrics},
        y_true=places,
        y_pred=places,
        sensitive_features={"group": records.sensitive.numpy()},  # by name: of a bare array one record is no column
    )
    table = frame.by_group
    absent = {"count": 0, **dict.fromkeys(metrics, float("nan"))}
    return {
        name: {column: _plain(column, table.loc[group, column]) for column in table} if group in table.index else absent
        for group, name in enumerate(task.groups)
    }


def by_group_intervals(task: Problem, outputs: Tensor, records: Records) -> dict[str, dict[str, Interval]]:
    """Where what is in the table by group lies, 95 %, over draws of units; empty where there is none.

    Args:
        outputs: held-out outputs (n, d).
        records: the n held-out records.
    """
    if not _has_table(task):
        return {}
    found, target, units = outputs.detach().double().cpu(), records.target.cpu().numpy(), units_of(records)
    rows = [records.sensitive.cpu().numpy() == group for group in range(len(task.groups))]
    if _classifies(task):
        of = functools.partial(_around_classes, task.classes, target, found.numpy(), predictions(found).numpy(), units)
    else:
        gaps = (found.numpy() - target).reshape(len(target), -1)
        of = functools.partial(_around_numbers, gaps, target.reshape(len(target), -1).astype(np.float64), units)
    return {name: of(own) if own.any() else {} for name, own in zip(task.groups, rows, strict=True)}


def _around_classes(
    classes: int, target: Array, outputs: Array, predicted: Array, units: Array, rows: Array
) -> dict[str, Interval]:
    def rate(hits: Array, among: Array) -> Interval:
        return intervals.rate_of(hits[among], units[among]).at(intervals.LEVEL)

    around = {"accuracy": rate(predicted == target, rows)}
    if classes > 2:
        return around | {f"selection_rate_{c}": rate(predicted == c, rows) for c in range(classes)}
    positive, scores = predicted == 1, outputs[:, 0]
    apart = [rows & (target == c) for c in range(2)]
    counts = [len(np.unique(units[each])) for each in apart]
    return around | {
        "selection_rate": rate(positive, rows),
        "true_positive_rate": rate(positive, apart[1]),
        "false_positive_rate": rate(positive, apart[0]),
        "auc": intervals.curve_area(_auc(target[rows], scores[rows]), counts[1], counts[0]),
        "calibration_error": _around_calibration(target[rows], scores[rows], units[rows]),
    }


def _around_calibration(target: Array, scores: Array, units: Array) -> Interval:
    bins, gaps = _bins(scores), scores - target
    within = [np.where(bins == b, gaps, 0.0) for b in range(_BINS)]
    errors = [intervals.mean_error(each, units) for each in within]
    return intervals.sum_of_sizes(np.array([each.mean() for each in within]), np.array(errors))


def _around_numbers(gaps: Array, wide: Array, units: Array, rows: Array) -> dict[str, Interval]:
    squares, own = np.square(gaps[rows]).sum(axis=1), units[rows]
    spread = np.square(wide[rows] - wide[rows].mean(axis=0)).sum(axis=1)
    low, high = intervals.ratio_of_means(squares, spread, own)
    return {
        "mean_squared_error": intervals.positive_mean(squares, own),
        "mean_absolute_error": intervals.positive_mean(np.sqrt(squares), own),
        "r2": Interval(1 - high, 1 - low),
    }


def _has_table(task: Problem) -> bool:
    return task.experiment.objective.task in TASKS and len(task.groups) >= 2


def _classifies(task: Problem) -> bool:
    return task.experiment.objective.task == "classification"


def _of_classes(classes: int, target: Array, outputs: Array) -> dict[str, Metric]:
    from fairlearn.metrics import false_positive_rate, selection_rate, true_positive_rate
    from sklearn.metrics import accuracy_score

    predicted = predictions(torch.from_numpy(outputs)).numpy()

    def of(metric: Callable[..., Any], **more: int) -> Metric:
        return lambda places, _: metric(target[places], predicted[places], **more)

    if classes > 2:
        rates = {f"selection_rate_{c}": of(selection_rate, pos_label=c) for c in range(classes)}
        return {"accuracy": of(accuracy_score), **rates}
    scores = outputs[:, 0]
    return {
        "accuracy": of(accuracy_score),
        "selection_rate": of(selection_rate),
        "true_positive_rate": lambda places, _: _rate(true_positive_rate, target[places], predicted[places], 1),
        "false_positive_rate": lambda places, _: _rate(false_positive_rate, target[places], predicted[places], 0),
        "auc": lambda places, _: _auc(target[places], scores[places]),
        "calibration_error": lambda places, _: calibration_error(target[places], scores[places]),
    }


def _of_numbers(target: Array, outputs: Array) -> dict[str, Metric]:
    gaps = (outputs - target).reshape(len(target), -1)
    squares = np.square(gaps).sum(axis=1)
    wide = target.reshape(len(target), -1).astype(np.float64)

    def r2(places: Array, _: Array) -> float:
        own = wide[places]
        spread = np.square(own - own.mean(axis=0)).sum()
        return float(1 - squares[places].sum() / spread) if spread > 0 else float("nan")

    return {
        "mean_squared_error": lambda places, _: squares[places].mean(),
        "mean_absolute_error": lambda places, _: np.sqrt(squares[places]).mean(),
        "r2": r2,
    }


def calibration_error(target: Array, scores: Array) -> float:
    """Mean gap between score and share of class 1 in ten bins of equal width, weighted by their records.

    Args:
        target: (n,) classes 0 and 1.
        scores: (n,) probabilities of class 1.
    """
    gaps = np.bincount(_bins(scores), weights=scores - target, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(target))


def _bins(scores: Array) -> Array:
    bins: Array = np.clip((scores * _BINS).astype(int), 0, _BINS - 1)
    return bins


def _rate(metric: Callable[..., Any], target: Array, predicted: Array, owner: int) -> float:
    """A rate among the records of class `owner`; nan without any."""
    return float(metric(target, predicted, pos_label=1)) if (target == owner).any() else float("nan")


def _auc(target: Array, scores: Array) -> float:
    """The area under the ROC curve; nan where one class is absent, or a score is not finite."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(target)) < 2 or not np.isfinite(scores).all():
        return float("nan")
    return float(roc_auc_score(target, scores))


def _plain(column: str, value: Any) -> float:
    return int(value) if column == "count" else float(value)
