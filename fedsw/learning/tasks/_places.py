"""Records of an additive model as places in their columns, at their holder; `HatLinear` reads them.

`reads_places` says where that is done, `layer_of` makes the layer, `placed` its inputs of features and `remeasured` of
such inputs behind another map; `written` is all numbers that they stand for.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedsw.experiment import Experiment
from fedsw.learning.models.coded import Coding, Hats
from fedsw.learning.objectives import WeightedSum
from fedsw.learning.tasks.task import Task
from fedsw.mathematics.clipping.rules import HatLinear

_AT_ONCE, _WRITTEN_AT_ONCE = 8_192, 2_048
"""Records that are placed and written out together."""
_SHIPPED = "fedsw.learning.tasks.kinds."
"""Modules of tasks with known code: those of predictors read what the model returns, and never its inputs."""


class Mapped(Protocol):
    """A `fedsw.learning.moments.preparation.Preparation`."""

    @property
    def centre(self) -> Tensor: ...

    @property
    def matrix(self) -> Tensor: ...


def reads_places(
    experiment: Experiment, task: Task, objective: WeightedSum, coding: Coding | None, device: torch.device
) -> bool:
    """True if holders of records keep places: of hats, on a processor, for code that does not look at inputs.

    An accelerator multiplies all hats at once; a processor, which would spend its time on zeros, gathers.
    """
    shipped = type(task).__module__.startswith(_SHIPPED) and task.facts.role == "predictor"
    own_outputs = any(callable(penalty.outputs) for penalty in objective.penalties)
    hats = isinstance(coding, Hats) and experiment.data.row_norm is None
    return hats and shipped and not own_outputs and device.type == "cpu"


def layer_of(coding: Coding | None, outputs: int, dtype: torch.dtype, preparation: Mapped | None) -> HatLinear:
    """A layer of so many outputs for hats behind a preparation, without a start."""
    if not isinstance(coding, Hats):
        raise TypeError("places are of hats of columns, and records are coded otherwise here")
    centre, matrix = (None, None) if preparation is None else (preparation.centre, preparation.matrix)
    return HatLinear(coding.by_column, coding.scale, outputs, centre=centre, matrix=matrix, dtype=dtype)


def placed(coding: Coding | None, layer: HatLinear, features: Tensor) -> Tensor:
    """The layer's inputs (n, q + 1) of features (n, p)."""
    if not isinstance(coding, Hats):
        raise TypeError("places are of hats of columns, and records are coded otherwise here")
    inputs = torch.empty((len(features), layer.columns + 1), dtype=torch.int32)
    for rows, out in zip(torch.split(features, _AT_ONCE), torch.split(inputs, _AT_ONCE), strict=True):
        layer.write(coding.places(rows), out)
    return inputs


def remeasured(layer: HatLinear, inputs: Tensor) -> Tensor:
    """Inputs (n, q + 1) of the same places, measured behind this layer's map."""
    copies = inputs.clone()
    for rows in torch.split(copies, _AT_ONCE):
        layer.measure(rows)
    return copies


def written(layer: HatLinear, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """All numbers (n, w), before any map, of inputs (n, q + 1)."""
    return torch.cat([layer.hats(rows, dtype) for rows in torch.split(inputs, _WRITTEN_AT_ONCE)])
