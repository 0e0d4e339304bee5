"""How an experiment codes inputs before its model sees them: by public maps of one record."""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable

from torch import Tensor

from fedsw.data.columns.declaration import Columns
from fedsw.data.sources import Shape, declared_columns, stated_shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.models.coded import Centred, Coding, Hats
from fedsw.learning.models.scattering import ScatteredImages


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
