"""From an experiment's settings to what a sketch measures: its law, and the law's public numbers."""

from __future__ import annotations

import functools

import torch

from fedsw.experiment import Experiment, ExperimentError, SketchPart
from fedsw.experiment.sources import Shape
from fedsw.transport.feature_maps import Convolutions, Cosine, FeatureMap, Raw
from fedsw.transport.sketch_parts import GaussianKernel, Indicators, Part, SlicedCramer
from fedsw.transport.sketches import Law, Sketcher


def cells_of_sketch(experiment: Experiment, shape: Shape) -> int:
    """How many blocks a sketch has: one for each label and group that it tells apart."""
    return _classes(experiment, shape) * _groups(experiment, shape)


def law_of(experiment: Experiment, shape: Shape) -> Law:
    """What is measured of every record, by the public settings and the data's shape alone.

    Raises:
        ExperimentError: if a part does not fit the features, or labels are asked for and there are none.
    """
    sketch = experiment.sketch
    if sketch.labels and shape.targets:
        raise ExperimentError(
            f"sketch.labels is true, and the target is {shape.targets} numbers: set it to false, or declare classes"
        )
    try:
        return Law(
            shape.features,
            tuple(_part(each) for each in (sketch, *sketch.also)),
            classes=_classes(experiment, shape),
            groups=_groups(experiment, shape),
            counts=sketch.counts,
            seed=sketch.seed,
        )
    except ValueError as fault:
        raise ExperimentError(f"sketch: {fault}") from None


@functools.lru_cache(maxsize=4)
def drawn(law: Law, dtype: torch.dtype, device: torch.device) -> Sketcher:
    """The law with its public numbers drawn, in that precision, on that device; once in a process.

    Raises:
        ExperimentError: if a map does not fit the features.
    """
    try:
        return law.drawn(dtype).to(device)
    except ValueError as fault:
        raise ExperimentError(f"sketch: {fault}") from None


def _classes(experiment: Experiment, shape: Shape) -> int:
    return max(1, shape.classes) if experiment.sketch.labels else 1


def _groups(experiment: Experiment, shape: Shape) -> int:
    return len(shape.groups) if experiment.sketch.groups else 1


def _part(spec: SketchPart) -> Part:
    columns = spec.columns or None
    if spec.kind == "code":
        return Indicators(spec.columns, weight=spec.weight)
    looked_at = _map(spec)
    if spec.kind == "cramer":
        return SlicedCramer(
            spec.directions,
            spec.harmonics,
            spec.period,
            scheme=spec.scheme,
            map=looked_at,
            columns=columns,
            weight=spec.weight,
        )
    return GaussianKernel(
        spec.bandwidths,
        spec.pairs,
        fractions=spec.fractions,
        scheme=spec.scheme,
        map=looked_at,
        columns=columns,
        weight=spec.weight,
    )


def _map(spec: SketchPart) -> FeatureMap:
    if spec.map == "cosine":
        return Cosine(spec.decay)
    return Raw() if spec.map == "raw" else Convolutions(spec.filters, spec.kernel, spec.stride)
