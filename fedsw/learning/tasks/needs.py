"""Models made to an experiment's shape, and what a task needs of model and machine before anything is made."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from fedsw._tools.installed import GIB, machine_memory
from fedsw._tools.own_objects import is_reference
from fedsw.data.columns.declaration import ranges
from fedsw.data.sources import Shape, stated_shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import BinSettings, Sketch, SketchPart
from fedsw.experiment.task_kinds import MODELS, ModelSizes
from fedsw.learning.sketches.from_settings import (
    FLOPS,
    NORMAL_SECONDS,
    PART_KINDS,
    SettingCost,
    cells_of_sketch,
    table_of,
)
from fedsw.learning.sketches.learnt import LearntLayer
from fedsw.learning.tasks._coding import width_of
from fedsw.learning.tasks.task import Task

_SMALL = 2**20
"""Parameters that a model may have to be tried on one record as it is. Of a larger one the sizes alone are looked at,
for which torch loads its compiler, and that takes seconds."""


def of_shape(experiment: Experiment, shape: Shape, outputs: int) -> nn.Module:
    """The model of an experiment on data of a shape, with these ``outputs``; ExperimentError if it misfits a sketch."""
    spec, make = experiment.model, MODELS.get(experiment.model.kind).make
    if not experiment.stages:
        made: nn.Module = make(spec, ModelSizes(width_of(experiment, shape), outputs, shape.classes))
        return made
    # A generator, which is called with noise and a sketch's cells.
    cells, coded = cells_of_sketch(experiment, shape), table_of(experiment)
    codes = () if coded is None else tuple(ranges(coded))
    try:
        model: nn.Module = make(spec, ModelSizes(codes[-1][1] if codes else shape.features, outputs, cells, codes))
    except ExperimentError:
        raise
    except ValueError as fault:
        raise ExperimentError(f"model.kind {experiment.model.kind!r}: {fault}") from None
    if lacking := [name for name in ("latent", "cells") if not isinstance(getattr(model, name, None), int)]:
        raise ExperimentError(
            f"model.kind {experiment.model.kind!r} has no whole number {lacking[0]!r}; a generator that learns from a "
            "sketch is called with noise and cells and has the attributes latent and cells "
            "(fedsw.learning.models.labelled)"
        )
    return model


YEAR = 365.25 * 86_400.0
_ROUND_SECONDS = 5e-4
"""A round, at least: its charge is put on the disk."""
_SORTED_SECONDS = 1e-8
"""A number among those that are sorted, at least."""
_COPIES, _SUMS = 3, 2
"""Copies of a model's parameters (as they came, loaded, flat) and of contributions in float64."""
_IMAGES = 30_000
_ENCODER_FLOPS = 6e6


@dataclass(frozen=True)
class Size:
    """A model: its parameters, the numbers that a record leaves in its layers, and operations for one record."""

    parameters: float
    activations: float
    flops: float


def parts_of(experiment: Experiment, task: Task, shape: Shape, *, rows: int = 1) -> list[SettingCost]:
    """Cost of each setting in a process with clients, for batches of these ``rows``; settings left out are small."""
    costs = [*_of_model(experiment, task, shape, rows), *_of_comparing(experiment, task, shape, rows)]
    measured = () if experiment.sketch == Sketch() else (experiment.sketch, *experiment.sketch.also)
    table = PART_KINDS.get(experiment.sketch.kind).coded
    later = [part for stage in experiment.sketch.stages for part in ((experiment.sketch,) if table else stage.parts)]
    for part in (*measured, *later):
        costs += _of_sketch(experiment, part, shape, rows)
    spec, goal = experiment.data, experiment.training
    if spec.drawn:
        for name in ("records", "test_records"):
            costs.append(SettingCost(f"data.{name}", getattr(spec, name), 16.0 * getattr(spec, name) * shape.features))
    if spec.encoded is not None:
        seconds = spec.encoder_epochs * _IMAGES * _ENCODER_FLOPS / FLOPS
        costs.append(SettingCost("data.encoder_epochs", spec.encoder_epochs, seconds=seconds))
    costs.append(SettingCost("training.rounds", goal.rounds, seconds=experiment.releases * _ROUND_SECONDS))
    return costs


def require_within(
    parts: list[SettingCost],
    *,
    bytes_: float,
    seconds: float,
    holder: str,
    remedy: tuple[str, str],
    limit_said: bool = True,
) -> None:
    """Raise ExperimentError if more is taken than there is: the setting that takes most, its value, the remedy.

    ``holder`` says what has these limits ("this machine"), ``remedy`` what else helps about memory, and about time.
    Without ``limit_said`` the error leaves out how large the limits are.
    """
    room, most = sum(part.bytes for part in parts), max(parts, key=lambda part: part.bytes)
    if not room <= bytes_:
        needed = f"{room / GIB:,.4g} GiB" if math.isfinite(room) else "more than can be counted"
        limit = f"has {bytes_ / GIB:.3g} GiB for it" if limit_said else "gives less"
        raise ExperimentError(
            f"{most.setting} is {_short(most.value)}: of memory, the run takes {needed} or more, and {holder} {limit}. "
            f"Lower {most.setting}{remedy[0]}"
        )
    time, most = sum(part.seconds for part in parts), max(parts, key=lambda part: part.seconds)
    if not time <= seconds:
        limit = f"gives it {_time(seconds)} at most" if limit_said else "gives less"
        raise ExperimentError(
            f"{most.setting} is {_short(most.value)}: the run takes {_time(time)} or more, and {holder} {limit}. "
            f"Lower {most.setting}{remedy[1]}"
        )


def require_possible(experiment: Experiment, task: Task) -> None:
    """Refuse what this machine has no memory for, or what takes longer than a year: before anything is made."""
    shape = stated_shape(experiment.record_source)
    clients = SettingCost("federation.clients", experiment.federation.clients, 400.0 * experiment.federation.clients)
    sites = SettingCost("federation.sites", experiment.federation.sites, 4000.0 * (experiment.federation.sites or 0))
    require_within(
        [*parts_of(experiment, task, shape), clients, sites],
        bytes_=machine_memory(),
        seconds=YEAR,
        holder="this machine",
        remedy=(", or use one with more memory", ""),
    )


@functools.lru_cache(maxsize=64)
def model_size(experiment: Experiment, task: Task, shape: Shape) -> Size:
    """The size of an experiment's model, without memory where it is large; nothing is known of a user's own."""
    spec = experiment.model
    if is_reference(spec.kind):
        return Size(0.0, 0.0, 0.0)
    if MODELS.get(spec.kind).points:
        points = float(spec.particles) * shape.features
        return Size(points, points, points)
    try:
        with torch.device("meta"):
            model = of_shape(experiment, shape, task.width(shape, spec))
    except ValueError:
        return Size(0.0, 0.0, 0.0)  # which is said where the model is made
    except (RuntimeError, TypeError, OverflowError):  # more numbers than can be counted
        return Size(math.inf, 0.0, 0.0)
    parameters = float(sum(parameter.numel() for parameter in model.parameters()))
    if small := parameters <= _SMALL:
        model = of_shape(experiment, shape, task.width(shape, spec))
    generates = task.facts.other_side == "generator"
    width = spec.latent if generates else width_of(experiment, shape)
    return Size(parameters, *_passed(model, width, parameters, "cpu" if small else "meta"))


def _passed(model: torch.nn.Module, width: int, parameters: float, device: str) -> tuple[float, float]:
    """Numbers in the layers after one record, and its operations; by its parameters where it takes something else."""
    seen: list[int] = []
    operations: list[float] = []

    def count(module: torch.nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(output, torch.Tensor) and not list(module.children()):
            seen.append(output.numel())
            operations.append(_operations(module, inputs, output))

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with torch.device(device), torch.no_grad():
            model.eval()(torch.zeros((1, width)))
        return float(sum(seen)), sum(operations)
    except Exception:  # a generator that is called with cells, or a network of more than one input
        return 0.0, 2.0 * parameters
    finally:
        for hook in hooks:
            hook.remove()


def _operations(module: torch.nn.Module, inputs: tuple[object, ...], output: torch.Tensor) -> float:
    """Operations of a layer's product, in which each entry of its weight meets every place once."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        places = inputs[0].numel() / module.in_channels if isinstance(inputs[0], torch.Tensor) else 0
    elif isinstance(module, nn.modules.conv._ConvNd):
        places = output.numel() / module.out_channels
    elif isinstance(module, nn.Linear):
        places = output.numel() / module.out_features
    else:
        return 0.0
    return 2.0 * places * weight.numel() if isinstance(weight, torch.Tensor) else 0.0


def _of_model(experiment: Experiment, task: Task, shape: Shape, rows: int) -> Iterator[SettingCost]:
    size, training = model_size(experiment, task, shape), experiment.training
    item, rounds = 8 if training.precision == "float64" else 4, experiment.releases
    threads = experiment.federation.cores * (1000 if training.device == "cuda" else 1)
    passes = 3 * rounds * size.flops / (FLOPS * threads)
    yield SettingCost(*_named(experiment), (_COPIES * item + 8.0 * _SUMS) * size.parameters, passes)
    held = min(rows, training.micro_batch) * size.activations * 2 * item
    chosen = "batch_fraction" if training.batch_size is None else "batch_size"
    yield SettingCost(f"training.{chosen}", getattr(training, chosen), held, passes * (rows - 1))


def _named(experiment: Experiment) -> tuple[str, object]:
    spec = experiment.model
    if MODELS.get(spec.kind).points:
        return "model.particles", spec.particles
    if spec.hidden and max(spec.hidden) >= spec.latent:
        return "model.hidden", list(spec.hidden)
    return ("model.latent", spec.latent) if spec.latent > 2 else ("model.kind", spec.kind)


def _of_comparing(experiment: Experiment, task: Task, shape: Shape, rows: int) -> Iterator[SettingCost]:
    """Directions, the numbers of a batch along them, and tables of these."""
    dimension = task.dimension(shape, experiment.model)
    if isinstance(dimension, int):
        k = 1 if dimension < 2 else experiment.slicing.directions
        spent = k * (dimension * NORMAL_SECONDS + rows * (2 * dimension / FLOPS + _SORTED_SECONDS))
        spent *= experiment.releases
        yield SettingCost("slicing.directions", k, 24.0 * k * dimension + 8.0 * rows * k, spent)
        if isinstance(local := experiment.local, BinSettings):
            tables = 16.0 * local.most_bins * k * len(shape.groups)
            bins = SettingCost("local.bins", local.bins, tables)
            yield bins if local.most_bins >= k else SettingCost("slicing.directions", k, tables)


def _of_sketch(experiment: Experiment, part: SketchPart, shape: Shape, rows: int) -> Iterator[SettingCost]:
    coded, cells, kind = table_of(experiment), cells_of_sketch(experiment, shape), PART_KINDS.get(part.kind)
    if kind.coded and coded is not None:
        width = float(ranges(coded)[-1][1])
        yield SettingCost("sketch.bins", part.bins, 16.0 * cells * width * width / 2, rows * width * width / FLOPS)
    else:
        with suppress(ValueError):  # which is said where the law is made
            learnt = LearntLayer(max(1, shape.classes), experiment.sketch.hidden)
            yield from kind.costs(part, len(part.columns) or shape.features, cells, rows, learnt)


def _time(seconds: float) -> str:
    if seconds >= YEAR:
        return f"{seconds / YEAR:,.4g} years" if seconds > YEAR else "a year"
    return f"{seconds / 3600:,.3g} hours" if seconds >= 3600 else f"{seconds:,.3g} s"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
