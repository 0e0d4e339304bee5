"""Held-out metrics group by group, with fairlearn's MetricFrame; for reading, beside the gaps between the groups.

The gaps themselves stay our own (`fedsw.metrics`): they are for any number of classes, and nan where a group has no
records, which fairlearn leaves out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.metrics import predictions
from fedsw.tasks.problem import Problem

TASKS = ("classification", "regression")


def by_group(task: Problem, outputs: Tensor, records: Records) -> dict[str, dict[str, float]]:
    """For every group its records and what the model is worth on them; empty for one group, and for other tasks.

    Args:
        outputs: held-out outputs (n, d), as `fedsw.tasks.measures` gives them.
        records: the n held-out records.

    Returns:
        By group: `count`; for classification `accuracy` and `selection_rate` (of class 1; for more than two classes
        `selection_rate_c` of every class c); for regression `mean_squared_error`, of squared Euclidean distances. In a
        group without records everything but the count is nan.

    Raises:
        ModuleNotFoundError: if fairlearn is missing; the extra `app` brings it.
    """
    if task.experiment.objective.task not in TASKS or len(task.groups) < 2:
        return {}
    from fairlearn.metrics import MetricFrame, count

    metrics, target, predicted = (
        _classified(task, outputs, records) if _classifies(task) else _regressed(outputs, records)
    )
    frame = MetricFrame(
        metrics={"count": count, **metrics},
        y_true=target.numpy(),
        y_pred=predicted.numpy(),
        sensitive_features=records.sensitive.numpy(),
    )
    table = frame.by_group
    absent = {"count": 0, **dict.fromkeys(metrics, float("nan"))}
    return {
        name: {column: _plain(column, table.loc[group, column]) for column in table} if group in table.index else absent
        for group, name in enumerate(task.groups)
    }


def _classifies(task: Problem) -> bool:
    return task.experiment.objective.task == "classification"


def _classified(
    task: Problem, outputs: Tensor, records: Records
) -> tuple[Mapping[str, Callable[..., Any]], Tensor, Tensor]:
    from fairlearn.metrics import selection_rate
    from sklearn.metrics import accuracy_score

    rates = {
        f"selection_rate_{c}": functools.partial(selection_rate, pos_label=c) for c in range(task.classes)
    } if task.classes > 2 else {"selection_rate": selection_rate}  # fmt: skip
    return {"accuracy": accuracy_score, **rates}, records.target, predictions(outputs)


def _regressed(outputs: Tensor, records: Records) -> tuple[Mapping[str, Callable[..., Any]], Tensor, Tensor]:
    from fairlearn.metrics import mean_prediction

    squares = (outputs.to(torch.float64) - records.target.to(torch.float64)).square()
    distances = squares.reshape(len(squares), -1).sum(dim=1)
    return {"mean_squared_error": mean_prediction}, torch.zeros_like(distances), distances


def _plain(column: str, value: Any) -> float:
    return int(value) if column == "count" else float(value)
