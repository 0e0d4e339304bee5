"""How an experiment codes inputs before its model sees them: by public maps of one record, from declared columns."""

from __future__ import annotations

import functools

from fedsw.data.columns.declaration import Columns
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import Model
from fedsw.experiment.sources import Shape, declared_columns
from fedsw.experiment.task_kinds import model_kind
from fedsw.learning.models.coded import Centred, Coding, Hats


def coding_of(experiment: Experiment) -> Coding | None:
    """The map of inputs that an experiment asks for; None where a model takes them as they are.

    ExperimentError if the columns are declared nowhere.
    """
    if not model_kind(experiment.model.kind).columns and experiment.model.inputs == "plain":
        return None
    return coded(declared_columns(experiment), experiment.model)


def coded(columns: Columns, spec: Model) -> Coding:
    """The map of declared columns that a model with its own code of columns, or of centred ones, asks for."""
    return _made(columns, spec.knots if model_kind(spec.kind).columns else None)


def width_of(experiment: Experiment, shape: Shape) -> int:
    """How many numbers of a record the model takes."""
    coding = coding_of(experiment)
    return shape.features if coding is None else coding.width


@functools.lru_cache(maxsize=32)
def _made(columns: Columns, knots: int | None) -> Coding:
    if knots is None:
        return Centred(columns)
    try:
        return Hats(columns, knots)
    except ValueError as fault:
        raise ExperimentError(f"model.kind 'additive': {fault}") from None
