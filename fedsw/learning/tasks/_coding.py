"""How an experiment codes inputs before its model sees them: by public maps of one record.

Codes of an additive model are mostly zeros: its holder keeps places in columns, which `HatLinear` reads. `reads_places`
says where that is done, `layer_of` makes the layer, `placed` its inputs of features and `remeasured` of such inputs
behind another map; `written` is all numbers that they stand for.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

from fedsw.data.columns.declaration import Columns
from fedsw.data.sources import Shape, declared_columns, stated_shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.models.coded import Centred, Coding, Hats
from fedsw.learning.models.scattering import ScatteredImages
from fedsw.learning.objectives import WeightedSum
from fedsw.learning.tasks.task import Task
from fedsw.mathematics.clipping.rules import HatLinear


def coding_of(experiment: Experiment) -> Coding | None:
    """The map of inputs that an experiment asks for; None if a model takes them as they are.

    ExperimentError if the columns are declared nowhere.
    """
    kind = MODELS.get(experiment.model.kind)
    if kind.filtered:
        return _of_images(stated_shape(experiment.record_source).features, experiment.model.orders)
    if not kind.columns and experiment.model.inputs in ("plain", "by-noise"):
        return None
    return coded(declared_columns(experiment.data), experiment.model)


def coded(columns: Columns, spec: Model) -> Coding:
    """The map of declared columns that a model with its own code of columns, or of centred ones, asks for."""
    if not MODELS.get(spec.kind).columns:
        return _made(columns, None)
    return _made(columns, spec.knots, tuple((binned.column, binned.edges) for binned in spec.bins))


def width_of(experiment: Experiment, shape: Shape) -> int:
    """Number of inputs that the model takes of a record."""
    coding = coding_of(experiment)
    return shape.features if coding is None else coding.width


_known: deque[tuple[Tensor, int, Hashable, Tensor]] = deque(maxlen=2)
_knowing = threading.Lock()


def coded_once(features: Tensor, about: Hashable, code: Callable[[], Tensor]) -> Tensor:
    """Codes of features (n, p), by `code`: the last two results are cached, for the very same tensors only.

    Runs of one process that differ in other settings, as those of a sweep do, then code the same records once; `about`
    has all that the codes depend on.
    """
    with _knowing:
        for known, version, same, codes in _known:
            if known is features and version == features._version and same == about:
                return codes
    codes = code()
    with _knowing:
        _known.append((features, features._version, about, codes))
    return codes


@functools.lru_cache(maxsize=8)
def _of_images(features: int, orders: int) -> Coding:
    side = math.isqrt(features)
    if side**2 != features:
        raise ExperimentError(f"model.kind 'scattering' sees square images, and a record has {features} numbers")
    try:
        return ScatteredImages(side, orders)
    except ValueError as fault:
        raise ExperimentError(f"model.kind 'scattering': {fault}") from None


@functools.lru_cache(maxsize=32)
def _made(columns: Columns, knots: int | None, bins: tuple[tuple[str, tuple[float, ...]], ...] = ()) -> Coding:
    if knots is None:
        return Centred(columns)
    try:
        return Hats(columns, knots, bins)
    except ValueError as fault:
        raise ExperimentError(f"model.kind 'additive': {fault}") from None


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
    """A layer for hats behind a preparation, without a start."""
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
