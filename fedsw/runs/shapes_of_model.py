"""The functions that an additive model is a sum of, made of its parameters and the moments of its run, and kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from fedsw.experiment import Experiment
from fedsw.experiment.task_kinds import MODELS, shipped_task
from fedsw.learning.models.coded import Hats, knots_of
from fedsw.learning.moments.preparation import noise_of_rounds, prepare
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.additive_shapes import Numbers, ShapeFunction, sources_of_shapes
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import kept_moments
from fedsw.runs.run_files import RunFile, read_json, write_json

_WIDTH = 2.0
"""Standard deviations of noise on either side of a function."""


def keep_shapes(directory: Path, experiment: Experiment) -> list[ShapeFunction]:
    """Store and return the functions of the released model, with the digests of the files that they are made of.

    Nothing is stored of another kind of model, before a model is released, or of infinite or NaN parameters.
    """
    path = directory / RunFile.MODEL
    if not (MODELS.get(experiment.model.kind).columns and path.is_file()):
        return []
    shapes = shapes_of(directory, experiment)
    if all(np.isfinite(shape.values).all() and np.isfinite(shape.band).all() for shape in shapes):
        content = {"of": sources_of_shapes(directory), "shapes": [shape.content() for shape in shapes]}
        write_json(directory / RunFile.SHAPES, content)
    return shapes


def shapes_of(directory: Path, experiment: Experiment) -> list[ShapeFunction]:
    """The functions that a released model is a sum of; see `fedsw.runs.additive_shapes.read_shapes`."""
    path = directory / RunFile.MODEL
    if shipped_task(experiment.objective.task) is None:  # whose code nobody has allowed here
        return []
    problem = Problem.from_experiment(experiment.on_host())
    coding, weights = problem.coding, [value.double().numpy() for value in load_file(path).values() if value.ndim == 2]
    bias = [value.double().numpy() for value in load_file(path).values() if value.ndim == 1]
    if not isinstance(coding, Hats) or len(weights) != 1:
        return []
    scores = read_json(directory / RunFile.SCORES) or {}  # which scaled logits, and the rounds' noise with them
    times = float(scores.get("calibration", {}).get("scale", 1.0))
    heights, noise = weights[0].T * coding.scale, times**2 * _noise(problem, directory, coding)
    lie = _where_records_lie(problem, directory, coding)
    constant = bias[0] + sum(shares @ heights[rows] for rows, shares in zip(_rows_of(coding), lie, strict=True))
    return [*_shapes(problem, coding, heights, noise, constant, lie)]


def _rows_of(coding: Hats) -> list[slice]:
    ends = np.cumsum(coding.by_column)
    return [slice(int(end) - width, int(end)) for width, end in zip(coding.by_column, ends, strict=True)]


def _where_records_lie(problem: Problem, directory: Path, coding: Hats) -> list[Numbers]:
    """The share of records at each place of a column, (w,) that add up to 1, about which its function is drawn.

    Numbers that are predicted move by what depends on where the other columns are: in the flat part of the sigmoid,
    without records, by next to nothing. So shares are those that released moments tell, noise below 0 left out; of
    classes, and where no moments are, all places count alike.
    """
    alike = [np.full(width, 1 / width) for width in coding.by_column]
    columns, moments = problem.experiment.data.columns, kept_moments(problem, RunDirectory(directory))
    if moments is None or columns is None or not columns.targets or len(moments.mean) != coding.width:
        return alike
    means = [np.maximum(moments.mean[rows], 0.0) for rows in _rows_of(coding)]
    return [part / part.sum() if part.any() else even for part, even in zip(means, alike, strict=True)]


def _shapes(
    problem: Problem, coding: Hats, heights: Numbers, noise: Numbers, constant: Numbers, lie: list[Numbers]
) -> Iterator[ShapeFunction]:
    columns = problem.experiment.data.columns
    assert columns is not None
    named = [(name, feature) for feature in columns.features for name in feature.columns]
    for (name, feature), rows, shares in zip(named, _rows_of(coding), lie, strict=True):
        about = np.eye(len(shares)) - shares
        values = about @ heights[rows]
        band = _WIDTH * np.sqrt(np.maximum(np.diag(about @ noise[rows, rows] @ about.T), 0.0))[:, None] + 0 * values
        labels = tuple(text.removeprefix(f"{name}=").removeprefix(f"{name} at ") for text in coding.names[rows])
        places = None if feature.categories else knots_of(feature, problem.experiment.model.knots)
        if columns.targets:
            values, band = _in_units(problem, values, band, constant)
        yield ShapeFunction(name, labels, places, values, band)


def _in_units(problem: Problem, values: Numbers, band: Numbers, constant: Numbers) -> tuple[Numbers, Numbers]:
    """Move of the answers in the targets' own units, with the other columns where records are, on average."""
    columns = problem.experiment.data.columns
    assert columns is not None
    bounds = [target.reader.bounds(target) or (0.0, 1.0) for target in columns.targets]
    widths = np.array([high - low for low, high in bounds])

    def answer(scores: Numbers) -> Numbers:
        return np.asarray(widths / (1 + np.exp(-(constant + scores))))

    middle = answer(np.zeros_like(values))
    return answer(values) - middle, (answer(values + band) - answer(values - band)) / 2


def _noise(problem: Problem, directory: Path, coding: Hats) -> Numbers:
    """The covariance (w, w) of heights that the rounds' noise gives: by the moments', else by what was added.

    It is 0 if nothing says how noise moves parameters: with optimizers and schedulers of other rules.
    """
    stored = RunDirectory(directory)
    moments = kept_moments(problem, stored)
    if moments is None:
        added = [float(record.get("sigma") or 0.0) for record in stored.read_metrics()]
        deviation = max(added, default=0.0) * problem.experiment.training.noise_kept() * coding.scale
        return deviation**2 * np.eye(coding.width)
    preparation = prepare(problem, moments)
    matrix = preparation.matrix.numpy()
    deviation = preparation.scale * noise_of_rounds(problem, moments) * coding.scale
    covariance: Numbers = deviation**2 * (matrix @ matrix.T)
    return covariance
