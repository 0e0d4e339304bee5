"""From an experiment's settings to what a sketch measures: its law, and the law's public numbers."""

from __future__ import annotations

import functools
import json

import torch

from fedsw.columns.declaration import Coded, Columns, coded_columns, ranges
from fedsw.experiment import Experiment, ExperimentError, SketchPart
from fedsw.experiment.registry import load_object
from fedsw.experiment.sections.privacy import READ_BY_MAP
from fedsw.experiment.sources import Shape
from fedsw.sketches import maps
from fedsw.sketches.codes import Features, Moments
from fedsw.sketches.law import Law, Sketcher
from fedsw.sketches.maps import FeatureMap, OwnMap
from fedsw.sketches.parts import GaussianKernel, Indicators, Part, SlicedCramer
from fedsw.sketches.tables import Pairs


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
    coded = table_of(experiment)
    try:
        return Law(
            shape.features if coded is None else ranges(coded)[-1][1],
            tuple(_part(each) for each in (sketch, *sketch.also)) if coded is None else (_pairs(sketch, coded),),
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


def table_of(experiment: Experiment) -> tuple[Coded, ...] | None:
    """How the declared columns are written as codes, where that is what is measured; None where it is not.

    Raises:
        ExperimentError: see `fedsw.columns.declaration.coded_columns`.
    """
    sketch, columns = experiment.sketch, experiment.data.columns
    if not experiment.privacy.sketch or sketch.kind != "table" or columns is None:
        return None
    return _coded(columns, sketch.bins, sketch.groups)


@functools.lru_cache(maxsize=8)
def _coded(columns: Columns, bins: int, group_in_cell: bool) -> tuple[Coded, ...]:
    return coded_columns(columns, bins=bins, group_in_cell=group_in_cell)


def _pairs(sketch: SketchPart, coded: tuple[Coded, ...]) -> Pairs:
    return Pairs(ranges(coded), sketch.singles, sketch.weight)


def _classes(experiment: Experiment, shape: Shape) -> int:
    return max(1, shape.classes) if experiment.sketch.labels else 1


def _groups(experiment: Experiment, shape: Shape) -> int:
    return len(shape.groups) if experiment.sketch.groups else 1


def _part(spec: SketchPart) -> Part:
    columns = spec.columns or None
    if spec.kind == "code":
        return Indicators(spec.columns, weight=spec.weight)
    looked_at = feature_map(spec)
    if spec.kind == "features":
        signed = spec.map not in ("convolutions", "scattering")
        return Features(looked_at, spec.radius, signed, columns=columns, weight=spec.weight)
    if spec.kind == "moments":
        return Moments(looked_at, spec.radius, spec.projected, columns=columns, weight=spec.weight)
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


def feature_map(spec: SketchPart) -> FeatureMap:
    """The public map that a part of a sketch looks at records through.

    Raises:
        ExperimentError: if it is a user's own and cannot be found or made, or is none.
    """
    if spec.map in READ_BY_MAP:
        kind: type[FeatureMap] = getattr(maps, spec.map.capitalize())
        return kind(**{name: getattr(spec, name) for name in READ_BY_MAP[spec.map]})
    made = load_object(spec.map, what="sketch.map")
    if callable(made):
        try:
            made = made(**spec.map_arguments)
        except Exception as fault:  # a user's own code
            told = f"sketch.map {spec.map!r} cannot be made with {spec.map_arguments}"
            raise ExperimentError(f"{told} ({type(fault).__name__}: {fault})") from fault
    if not isinstance(made, FeatureMap):
        raise ExperimentError(f"sketch.map {spec.map!r} gives a {type(made).__name__}; a map has `width` and `built`")
    return OwnMap(spec.map, json.dumps(spec.map_arguments, sort_keys=True), made)
