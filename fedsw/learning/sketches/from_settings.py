"""From an experiment's settings to what a sketch measures and what that takes: its law, memory and seconds."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.own_objects import load_object
from fedsw._tools.registry import Registry
from fedsw.data.columns.declaration import Coded, coded_columns, ranges
from fedsw.data.sources import Shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import Sketch, SketchPart
from fedsw.experiment.sketch_section import MAPS
from fedsw.learning.models.initial import count_parameters
from fedsw.learning.sketches import maps
from fedsw.learning.sketches.learnt import Classifier, LearntLayer
from fedsw.learning.sketches.maps import FeatureMap, OwnMap, circle_of
from fedsw.learning.sketches.parts import (
    Features,
    GaussianKernel,
    Indicators,
    MomentFeatures,
    PartOfSketch,
    SlicedCramer,
)
from fedsw.learning.sketches.sketch_law import Law, Sketcher, chunk_of
from fedsw.learning.sketches.table_counts import Pairs
from fedsw.learning.sketches.table_parts import MOST_CODES, MOST_COLUMNS, Triple, Triples, triples_within
from fedsw.mathematics.transport.denoise import image_side


def cells_of_sketch(experiment: Experiment, shape: Shape) -> int:
    """Number of a sketch's blocks: one for each label and group that it distinguishes."""
    return _classes(experiment, shape) * _groups(experiment, shape)


@dataclass(frozen=True)
class Stage:
    """One of the releases of a sketch, from 1.

    ``weights`` are of the classifier that its map `learnt` looks through, or marks of the pairs of columns that a
    table's stage measures, or of triples; none for zeros, where only sizes matter.
    """

    number: int = 1
    weights: bytes = b""


FIRST = Stage()


def classifier_of(experiment: Experiment, shape: Shape, *, seed: int = 0) -> Classifier:
    """The classifier with the layers that later stages look at, untrained."""
    return Classifier(shape.features, max(1, shape.classes), experiment.sketch.hidden, seed=seed)


def law_of(experiment: Experiment, shape: Shape, stage: Stage = FIRST) -> Law:
    """Return the law of a stage's sketch, from public settings, the data's shape and released weights only.

    ExperimentError if a part does not fit the features, or labels are asked for and there are none.
    """
    sketch = experiment.sketch
    if sketch.labels and shape.targets:
        raise ExperimentError(
            f"sketch.labels is true, and the target is {shape.targets} numbers: set it to false, or declare classes"
        )
    first = stage.number == 1
    if stage.number > 1 + len(sketch.stages):
        raise ExperimentError(f"stage {stage.number} of a sketch with {1 + len(sketch.stages)}: there is none")
    coded = table_of(experiment)
    try:
        return Law(
            shape.features if coded is None else ranges(coded)[-1][1],
            _parts(experiment, shape, stage) if coded is None else (_pairs(sketch, coded, stage),),
            classes=_classes(experiment, shape),
            groups=_groups(experiment, shape),
            counts=(sketch if first else sketch.stages[stage.number - 2]).counts,
            seed=sketch.seed,
        )
    except ValueError as fault:
        raise ExperimentError(f"{'sketch' if first else 'sketch.stages'}: {fault}") from None


def _parts(experiment: Experiment, shape: Shape, stage: Stage) -> tuple[PartOfSketch, ...]:
    sketch = experiment.sketch
    if stage.number == 1:
        return tuple(_part(spec) for spec in (sketch, *sketch.also))
    learnt = LearntLayer(max(1, shape.classes), sketch.hidden, weights=stage.weights)
    return tuple(_part(spec, learnt) for spec in sketch.stages[stage.number - 2].parts)


def sent_size(experiment: Experiment, shape: Shape) -> int:
    """Length of what selects a later stage's measurements: weights of a classifier, or one number a pair of columns.

    One for each triple where three columns are counted together.
    """
    coded = table_of(experiment)
    if coded is None:
        return count_parameters(classifier_of(experiment, shape))
    return math.comb(len(coded), experiment.sketch.together)


def marks_of(chosen: Sequence[tuple[int, ...]], columns: int, together: int = 2) -> Tensor:
    """1 for each chosen pair of columns and 0 for others, (pairs,), as they are sent to clients; or triples."""
    every, marked = itertools.combinations(range(columns), together), set(chosen)
    return torch.tensor([float(table in marked) for table in every], dtype=torch.float64)


def _chosen(weights: bytes, columns: int) -> tuple[tuple[int, int], ...]:
    """The pairs that a server marked, whatever it sent; all of them where it marked none."""
    pairs = tuple(itertools.combinations(range(columns), 2))
    marks = np.frombuffer(weights, dtype="<f4") if weights else np.zeros(len(pairs))
    if not pairs or len(marks) != len(pairs):
        raise ExperimentError(
            f"a later stage of a table of {columns} columns came with {len(marks)} numbers; it measures pairs, one "
            f"number for each of {len(pairs)}: leave sketch.stages out where there is no pair"
        )
    return tuple(pair for pair, mark in zip(pairs, marks, strict=True) if mark > 0.5) or pairs


def _chosen_triples(weights: bytes, sizes: tuple[int, ...], most: int) -> tuple[Triple, ...]:
    """The first triples that a server marked, at most ``most``, of small tables; without marks, those of most codes.

    Whatever the server sent, no more is measured than the settings say.
    """
    columns = len(sizes)
    if columns > MOST_COLUMNS:
        raise ExperimentError(
            f"sketch.stages.together = 3 is for up to {MOST_COLUMNS} columns, and there are {columns}"
        )
    small, every = triples_within(sizes), math.comb(columns, 3)
    marks = np.frombuffer(weights, dtype="<f4") if weights else np.zeros(every)
    if not small or len(marks) != every:
        raise ExperimentError(
            f"a later stage of a table of {columns} columns came with {len(marks)} numbers for {every} triples, of "
            f"which {len(small)} have at most {MOST_CODES} codes: set sketch.stages.together = 2, or fewer sketch.bins"
        )
    triples = itertools.combinations(range(columns), 3)
    marked = {triple for triple, mark in zip(triples, marks, strict=True) if mark > 0.5}
    largest = sorted(small, key=lambda triple: -math.prod(sizes[column] for column in triple))[:most]
    return tuple(triple for triple in small if triple in marked)[:most] or tuple(sorted(largest))


@functools.lru_cache(maxsize=8)
def drawn(law: Law, dtype: torch.dtype, device: torch.device) -> Sketcher:
    """The law with its public numbers drawn, in that precision, on that device; once in a process."""
    try:
        return law.drawn(dtype).to(device)
    except ValueError as fault:
        raise ExperimentError(f"sketch: {fault}") from None


MOST_IN_HISTOGRAMS = 100_000
"""Codes of all columns where pairs with one of them are measured at most."""

_coded = functools.lru_cache(maxsize=8)(coded_columns)


def table_of(experiment: Experiment) -> tuple[Coded, ...] | None:
    """How the declared columns are written as codes, where that is what is measured; None if it is not."""
    sketch, columns = experiment.sketch, experiment.data.columns
    if not PART_KINDS.get(sketch.kind).coded or columns is None:
        return None
    if sketch.crossed == "all":
        return _coded(columns, bins=sketch.bins, group_in_cell=sketch.groups)
    return _coded(columns, bins=sketch.bins, group_in_cell=sketch.groups, with_class=True, most=MOST_IN_HISTOGRAMS)


def _pairs(sketch: Sketch, coded: tuple[Coded, ...], stage: Stage) -> Pairs | Triples:
    if stage.number > 1 and sketch.together == 3:
        most = sketch.stages[stage.number - 2].tables
        return Triples(ranges(coded), _chosen_triples(stage.weights, tuple(column.size for column in coded), most))
    if stage.number > 1:
        return Pairs(ranges(coded), balance=sketch.balance, chosen=_chosen(stage.weights, len(coded)))
    if sketch.crossed == "all":
        return Pairs(ranges(coded), sketch.singles, sketch.balance, weight=sketch.weight)
    among = next((index for index, column in enumerate(coded) if column.role == "class"), None)
    singles = 1.0 if among is None else sketch.singles
    return Pairs(ranges(coded), singles, sketch.balance, among=among or 0, weight=sketch.weight)


def _classes(experiment: Experiment, shape: Shape) -> int:
    return max(1, shape.classes) if experiment.sketch.labels else 1


def _groups(experiment: Experiment, shape: Shape) -> int:
    return len(shape.groups) if experiment.sketch.groups else 1


def _part(spec: SketchPart, learnt: LearntLayer | None = None) -> PartOfSketch:
    return PART_KINDS.get(spec.kind).made(spec, learnt)


def feature_map(spec: SketchPart, learnt: LearntLayer | None = None) -> FeatureMap:
    """The public map that a part of a sketch looks at records through; `learnt` is that of the stage."""
    return MAP_KINDS.get(spec.map).made(spec, learnt)


_PERIOD = 2.0
"""Length that holds all projections of records of norm 1."""
FLOPS = 5e10
"""Operations that a core does in a second, at most."""
NORMAL_SECONDS = 2e-8
"""A number of a frequency or direction, at least: drawn, made orthogonal, and put in place."""
_PLACED_SECONDS = 1e-8
"""A number of a wave, at least: multiplied, put in place, and in the records' precision."""
_BANDWIDTH_SECONDS = 5e-5
"""A bandwidth, at least: its own block of frequencies."""
_WAVELET_SECONDS, _EXPONENTIAL_SECONDS = 2e-4, 4e-9
_EXPONENTIALS = 98
"""Exponentials for one frequency of a wavelet: seven turns in either direction, of two Gaussians."""
_WAVELETS_HELD = 40.0
"""Bytes for one frequency of one wavelet while the bank is scaled: the bank, mirrored, two squares and their sum."""
_DECOMPOSED_FLOPS = 2e10
_MAPPED = 24.0
"""Bytes for one number inside a map: as it is, transformed, and without its sign; complex where the map is."""


@dataclass(frozen=True)
class SettingCost:
    """Cost of one setting as it is written: bytes of memory at once, seconds of all rounds."""

    setting: str
    value: object
    bytes: float = 0.0
    seconds: float = 0.0


def of_waves(
    part: SketchPart, features: int, cells: int, rows: int, learnt: LearntLayer | None = None, *, gaussian: bool
) -> Iterator[SettingCost]:
    """Cost of a part of a sketch that measures waves: its frequencies, its map, and the sum over records.

    Records have p ``features``, and ``rows`` of them are summed into ``cells``; ``learnt`` is the map of a later
    stage; ``gaussian`` waves are of a kernel, others of the Cramer distance. ValueError if the map does not fit.
    """
    width = float(feature_map(part, learnt).width(features))
    name, count = ("pairs", part.pairs) if gaussian else ("directions", part.directions)
    waves = float(count if gaussian else count * part.harmonics)
    held = min(rows, chunk_of(int(2 * waves)))
    normals = count * width
    seconds = normals * NORMAL_SECONDS + waves * width * (_PLACED_SECONDS + 2 * rows / FLOPS)
    seconds += len(part.bandwidths) * _BANDWIDTH_SECONDS if gaussian else 0.0
    seconds += 4 * normals * min(width, count) / FLOPS if part.scheme == "orthogonal" else 0.0
    if not gaussian and part.harmonics > part.directions:
        name, count = "harmonics", part.harmonics
    yield SettingCost(f"sketch.{name}", count, 24.0 * waves * width + 32.0 * (cells + held) * waves, seconds)
    yield from _of_map(part, features, rows, held)


def of_codes(
    part: SketchPart, features: int, cells: int, rows: int, learnt: LearntLayer | None = None, *, moments: bool
) -> Iterator[SettingCost]:
    """Cost of a part of a sketch that measures features of a map, or their moments; see `of_waves`."""
    width = float(feature_map(part, learnt).width(features))
    directions, coordinates = 0.0, 2 * width
    if moments:
        mapped = float(part.projected or width) + 1
        directions, coordinates = 16.0 * part.projected * width, mapped * (mapped + 1) / 2
    held = min(rows, chunk_of(int(coordinates)))
    numbers = 32.0 * (cells + held) * coordinates
    yield SettingCost("sketch.kind", part.kind, directions + numbers, 2 * rows * (coordinates + directions) / FLOPS)
    yield from _of_map(part, features, rows, held)


def _of_map(part: SketchPart, features: int, rows: int, held: int) -> Iterator[SettingCost]:
    """Cost of the map of a part, for all ``rows``, ``held`` of them at a time."""
    yield from MAP_KINDS.get(part.map).costs(part, features, rows, held)


def _of_convolutions(part: SketchPart, features: int, rows: int, held: int) -> Iterator[SettingCost]:
    width, moves = float(feature_map(part).width(features)), (2 * part.shifts + 1) ** 2
    places = float(part.filters) * math.ceil(image_side(features) / part.stride) ** 2
    bank = float(part.filters) * part.kernel**2
    spent = bank * NORMAL_SECONDS + 2 * moves * rows * places * part.kernel**2 / FLOPS
    yield SettingCost("sketch.filters", part.filters, 16.0 * bank + 8.0 * width + _MAPPED * held * places, spent)


def _of_scattering(part: SketchPart, features: int, rows: int, held: int) -> Iterator[SettingCost]:
    """The bank of wavelets, the norms of folded frequencies, and a chunk of records with all coefficients at once."""
    frequencies = float(circle_of(image_side(features), part.scales)) ** 2
    wavelets = float(part.scales * part.orientations)
    sets = 4.0**part.scales
    folded = frequencies * sets
    at_once = float(part.orientations) ** part.order * frequencies
    once = wavelets * (_WAVELET_SECONDS + _EXPONENTIALS * frequencies * _EXPONENTIAL_SECONDS)
    passes = wavelets * (wavelets if part.order == 2 else 1.0) * frequencies * rows
    yield SettingCost(
        "sketch.orientations",
        part.orientations,
        _WAVELETS_HELD * wavelets * frequencies + 24.0 * folded + _MAPPED * held * at_once,
        once + 4 / 3 * folded * sets / _DECOMPOSED_FLOPS + 10 * passes / FLOPS,
    )


def _nothing(*settings: object) -> Iterator[SettingCost]:
    return iter(())


@dataclass(frozen=True)
class MapKind:
    """A kind of map that sketches look at records through: it is made of a part's settings, and says what it costs.

    An output of a ``one_sided`` map is never negative, so its features need no second half for negative numbers.
    """

    made: Callable[[SketchPart, LearntLayer | None], FeatureMap]
    costs: Callable[[SketchPart, int, int, int], Iterator[SettingCost]] = _nothing
    one_sided: bool = False


def _loaded(spec: SketchPart, learnt: LearntLayer | None) -> FeatureMap:
    """A map of the user's own, by its reference."""
    made = load_object(spec.map, what="sketch.map")
    if callable(made):
        try:
            made = made(**spec.map_arguments)
        except Exception as fault:  # a user's own code
            problem = f"sketch.map {spec.map!r} cannot be made with {spec.map_arguments}"
            raise ExperimentError(f"{problem} ({type(fault).__name__}: {fault})") from fault
    if not isinstance(made, FeatureMap):
        raise ExperimentError(f"sketch.map {spec.map!r} gives a {type(made).__name__}; a map has `width` and `built`")
    return OwnMap(spec.map, json.dumps(spec.map_arguments, sort_keys=True), made)


def _of_stage(spec: SketchPart, learnt: LearntLayer | None) -> FeatureMap:
    if learnt is None:
        raise ExperimentError(
            "sketch.map 'learnt' looks through what stages before have learnt: use it in sketch.stages"
        )
    return replace(learnt, layer=spec.layer)


def _shipped(kind: type[FeatureMap]) -> Callable[[SketchPart, LearntLayer | None], FeatureMap]:
    """Make a map of the settings that `MAPS` lists for it."""
    return lambda spec, learnt: kind(**{name: getattr(spec, name) for name in MAPS.get(spec.map).reads})


MAP_KINDS: Registry[MapKind] = Registry("sketch.map", MapKind, custom=lambda name: MapKind(_loaded))
MAP_KINDS.register("raw", MapKind(_shipped(maps.Raw)))
MAP_KINDS.register("cosine", MapKind(_shipped(maps.Cosine)))
MAP_KINDS.register("convolutions", MapKind(_shipped(maps.Convolutions), _of_convolutions, one_sided=True))
MAP_KINDS.register("scattering", MapKind(_shipped(maps.Scattering), _of_scattering, one_sided=True))
MAP_KINDS.register("learnt", MapKind(_of_stage, one_sided=True))


@dataclass(frozen=True)
class PartKind:
    """A kind of part of a sketch: it is made of its settings, and says what it costs; a ``coded`` one is of a table."""

    made: Callable[[SketchPart, LearntLayer | None], PartOfSketch]
    costs: Callable[..., Iterator[SettingCost]]
    coded: bool = False


def _about(spec: SketchPart) -> dict[str, Any]:
    return {"columns": spec.columns or None, "weight": spec.weight}


def _gaussian(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    looked_at, about = feature_map(spec, learnt), _about(spec)
    return GaussianKernel(spec.bandwidths, spec.pairs, scheme=spec.scheme, map=looked_at, **about)


def _cramer(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    looked_at, about = feature_map(spec, learnt), _about(spec)
    return SlicedCramer(spec.directions, spec.harmonics, _PERIOD, scheme=spec.scheme, map=looked_at, **about)


def _features(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    signed = not MAP_KINDS.get(spec.map).one_sided
    return Features(feature_map(spec, learnt), spec.radius, signed, **_about(spec))


def _moments(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    return MomentFeatures(feature_map(spec, learnt), spec.radius, spec.projected, **_about(spec))


def _code(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    return Indicators(spec.columns, weight=spec.weight)


def _table(spec: SketchPart, learnt: LearntLayer | None) -> PartOfSketch:
    raise ExperimentError("sketch.kind 'table' measures declared columns, and there are none: declare [data.columns]")


PART_KINDS: Registry[PartKind] = Registry("sketch.kind", PartKind)
PART_KINDS.register("gaussian", PartKind(_gaussian, functools.partial(of_waves, gaussian=True)))
PART_KINDS.register("cramer", PartKind(_cramer, functools.partial(of_waves, gaussian=False)))
PART_KINDS.register("features", PartKind(_features, functools.partial(of_codes, moments=False)))
PART_KINDS.register("moments", PartKind(_moments, functools.partial(of_codes, moments=True)))
PART_KINDS.register("code", PartKind(_code, _nothing))
PART_KINDS.register("table", PartKind(_table, functools.partial(of_waves, gaussian=False), coded=True))
