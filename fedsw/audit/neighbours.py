"""The worst neighbours that are known of an experiment's own bound: records and a model that realise them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.data import Records
from fedsw.experiment import Experiment, ExperimentError, Model
from fedsw.experiment.sources import Shape
from fedsw.federation.node import node
from fedsw.federation.node.partition import Held, held_records
from fedsw.objectives.matching import Matching
from fedsw.tasks import own
from fedsw.tasks import problem as problems
from fedsw.tasks.problem import Problem
from fedsw.tasks.task import Inputs, Raw, Task, part

WIDTH = 4
"""Parameters of the model: one would do for the bound; more of them see noise that misses a coordinate."""

_PULL, _PUSH, _ZERO, _FIRST = 0, 1, 2, 3  # columns of a record: the rest are its output and its Jacobian's direction
_JUST_BELOW = 1 - 1e-3


class Freely(nn.Module):
    """A model whose outputs, Jacobians and loss gradients the records choose, as a bound lets them.

    With u and w in R^d, a pull and a push from the record, the output is u + pull (theta . 1) w, and one coordinate of
    what is returned for the loss is 1 + pull push (theta . 1), everything else being constant: all gradients lie along
    one direction of the parameters, and every clip binds.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self._dimension = dimension
        self.linear = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (n, d) and what the loss compares with the records, (n, p), of records (n, p)."""
        d = self._dimension
        lever = self.linear(records[:, _PULL : _PULL + 1].expand(-1, WIDTH))
        outputs = records[:, _FIRST : _FIRST + d] + lever * records[:, _FIRST + d : _FIRST + 2 * d]
        compared = 1.0 + lever * records[:, _PUSH : _PUSH + 1]
        return outputs, F.pad(compared, (_ZERO, records.shape[1] - _ZERO - 1))


class Compared(Task):
    """A task that compares groups, with the free model's outputs and squared errors in place of its own head and loss.

    A head has a slope of its own, which the bound does not know: it is left out, so that outputs are what records say.
    """

    def __init__(self, genuine: Task) -> None:
        self.facts = genuine.facts
        self._genuine = genuine

    def dimension(self, shape: Shape, model: Model) -> int:
        """The genuine task's."""
        return self._genuine.dimension(shape, model)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The free model's outputs (n, d) as they are."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Squared distance (n,) of what it returns for the loss to the records."""
        return (part(raw, "compared", 1) - batch.features).square().sum(dim=-1)


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ in one record, or all records of one unit, and nothing else that a sum could tell.

    Every record of the canary's cell is the same but the canary: who else is drawn makes no difference, and where the
    canary is not drawn the two release the same law. Groups and labels stay those of the experiment's records.

    Attributes:
        cell: the canary's.
        client: who holds it; it is the first of its cell there.
        why: what is worst about them, in words.
    """

    cell: int
    client: int
    why: str

    def records(self, task: Problem, genuine: Records, client: int, *, canary: bool) -> Records:
        """A client's records with features of the worst case; `canary` says in which of the two data sets."""
        features = torch.zeros_like(genuine.features)
        strength = 1e4 * max(task.clip.jacobian, task.clip.loss * task.features, 1.0)
        m = task.clip.output
        for cell, rows in enumerate(task.cells_of(genuine)):
            own = cell == self.cell
            features[rows] = _row(task, strength, m if own else -m, towards=-1.0)
            if own and canary and client == self.client:
                # Just below: against a sample that spreads, the canary alone then sees its lowest slot everywhere.
                at = m * _JUST_BELOW if isinstance(task.objective, Matching) else m
                first = rows[:1]
                whole = first if genuine.unit is None else genuine.unit == genuine.unit[int(first[0])]
                features[whole] = _row(task, strength, at, towards=1.0)
        return Records(features, genuine.sensitive, genuine.target, genuine.ids, unit=genuine.unit)


def worst_neighbours(task: Problem, cell: int, client: int) -> Neighbours:
    """The pair that attains the slice-wise bound for outputs in one dimension, and the best known elsewhere.

    Source: docs/guarantees.md, Theorem 5.
    """
    if isinstance(task.objective, Matching):
        why = "all codes at one pole of the ball, the canary's a little below and its Jacobian turned round"
    else:
        why = "the canary's group at M, the others at -M, the canary's Jacobian turned round"
    return Neighbours(cell, client, f"{why}; loss gradients along the same direction")


@contextmanager
def staged(neighbours: Neighbours | None, *, canary: bool = False) -> Iterator[None]:
    """Let clients that join now hold the neighbours' records, and problems have the free model without a head.

    Nothing else is exchanged: the records' groups, labels, order and number are the experiment's own.
    """

    def held(task: Problem, node_config: Mapping[str, Any]) -> Held:
        found = held_records(task, node_config)
        if neighbours is None:
            return found
        records = neighbours.records(task, found.records, int(found.clients[0]), canary=canary)
        return dataclasses.replace(found, records=records)

    def build(experiment: Experiment, shape: Shape, outputs: int) -> nn.Module:
        return Freely(outputs)

    def task_of(experiment: Experiment) -> Task:
        genuine = own.task_of(experiment)
        return Compared(genuine) if genuine.facts.grouped else genuine

    Problem.from_json.cache_clear()  # a task is remembered by its experiment, whatever its model
    try:
        with (
            _exchanged(node, "held_records", held),
            _exchanged(problems, "_build", build),
            _exchanged(problems, "task_of", task_of),
        ):
            yield
    finally:
        Problem.from_json.cache_clear()


def require_room(task: Problem) -> None:
    """Refuse records with fewer features than the worst case is written in.

    Raises:
        ExperimentError: saying how many it takes.
    """
    needed = _FIRST + 2 * task.dimension
    if task.features < needed:
        raise ExperimentError(
            f"records have {task.features} features; the worst case for outputs in {task.dimension} dimensions is "
            f"written in {needed}"
        )


def _row(task: Problem, strength: float, along: float, *, towards: float) -> Tensor:
    """A record whose output is `along` the first axis, about the centre, and whose gradients go `towards` a side."""
    row, d = torch.zeros(task.features), task.dimension
    row[_PULL], row[_PUSH] = strength, towards
    row[_FIRST : _FIRST + d] = task.experiment.clip.centre
    row[_FIRST] += along
    row[_FIRST + d] = towards
    return row


@contextmanager
def _exchanged(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
