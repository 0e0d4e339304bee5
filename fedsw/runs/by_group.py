"""Held-out metrics group by group, as fairlearn's MetricFrame has them; for reading, beside the gaps between groups.

fairlearn itself takes seconds to import, at the start of every run, and leaves out a group without records.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    """
    objective = task.experiment.objective
    if objective.task not in TASKS or len(task.groups) < 2:
        return {}
    classified = objective.task == "classification"
    columns = _classified(task, outputs, records) if classified else _regressed(outputs, records)
    return {name: _of_group(columns, records.sensitive == group) for group, name in enumerate(task.groups)}


def _of_group(columns: Mapping[str, Tensor], members: Tensor) -> dict[str, float]:
    """The number of members, and the mean of every column (n,) over them."""
    means = {name: float(column[members].to(torch.float64).mean()) for name, column in columns.items()}
    return {"count": int(members.sum()), **means}


def _classified(task: Problem, outputs: Tensor, records: Records) -> dict[str, Tensor]:
    predicted = predictions(outputs)
    rates = {f"selection_rate_{c}": predicted == c for c in range(task.classes)}
    chosen = rates if task.classes > 2 else {"selection_rate": rates["selection_rate_1"]}
    return {"accuracy": predicted == records.target, **chosen}


def _regressed(outputs: Tensor, records: Records) -> dict[str, Tensor]:
    squares = (outputs.to(torch.float64) - records.target.to(torch.float64)).square()
    return {"mean_squared_error": squares.reshape(len(squares), -1).sum(dim=1)}
