"""The functions that an additive model is a sum of, made of its parameters and the moments of its run, and kept."""

from __future__ import annotations

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
    if shipped_task(experiment.objective.task) is None:  # custom code, which was not allowed here
        return []
    problem = Problem.from_experiment(experiment.on_host())
    parameters = [value.double().numpy() for value in load_file(path).values()]
    coding, weights = problem.coding, [value for value in parameters if value.ndim == 2]
    bias = [value for value in parameters if value.ndim == 1]
    if not isinstance(coding, Hats) or len(weights) != 1:
        return []
    # Calibration scaled the logits, and the rounds' noise with them.
    scores = read_json(directory / RunFile.SCORES) or {}
    scale = float(scores.get("calibration", {}).get("scale", 1.0))
    # A score is the bias, plus for each column its function's height at the record's place.
    heights, noise = weights[0].T * coding.scale, scale**2 * _noise(problem, directory, coding)
    shares = _shares_of_records(problem, directory, coding)
    mean_score = bias[0] + sum(part @ heights[rows] for rows, part in zip(_rows_of(coding), shares, strict=True))
    columns = problem.experiment.data.columns
    assert columns is not None
    shapes, named = [], [(name, feature) for feature in columns.features for name in feature.columns]
    for (name, feature), rows, part in zip(named, _rows_of(coding), shares, strict=True):
        centring = np.eye(len(part)) - part  # each row takes the mean by shares off
        values = centring @ heights[rows]
        variances = np.diag(centring @ noise[rows, rows] @ centring.T)
        band = _WIDTH * np.sqrt(np.maximum(variances, 0.0))[:, None] + 0 * values
        labels = tuple(text.removeprefix(f"{name}=").removeprefix(f"{name} at ") for text in coding.names[rows])
        places = None if feature.categories else knots_of(feature, problem.experiment.model.knots)
        if columns.targets:
            values, band = _in_units(problem, values, band, mean_score)
        shapes.append(ShapeFunction(name, labels, places, values, band))
    return shapes


def _rows_of(coding: Hats) -> list[slice]:
    ends = np.cumsum(coding.by_column)
    return [slice(int(end) - width, int(end)) for width, end in zip(coding.by_column, ends, strict=True)]


def _shares_of_records(problem: Problem, directory: Path, coding: Hats) -> list[Numbers]:
    """The share of records at each place of a column, (w,), of sum 1: its function is centred at their mean.

    A predicted number is a sigmoid of the score: how far a column moves it depends on the other columns, and where no
    records are, in the sigmoid's flat part, hardly at all. So shares are those of released moments, with negative ones
    (noise) set to 0. For classes, and without moments, all places count alike.
    """
    alike = [np.full(width, 1 / width) for width in coding.by_column]
    columns, moments = problem.experiment.data.columns, kept_moments(problem, RunDirectory(directory))
    if moments is None or columns is None or not columns.targets or len(moments.mean) != coding.width:
        return alike
    means = [np.maximum(moments.mean[rows], 0.0) for rows in _rows_of(coding)]
    return [part / part.sum() if part.any() else even for part, even in zip(means, alike, strict=True)]


def _in_units(problem: Problem, values: Numbers, band: Numbers, mean_score: Numbers) -> tuple[Numbers, Numbers]:
    """Change of the answers in the targets' units, with the other columns at the records' mean."""
    columns = problem.experiment.data.columns
    assert columns is not None
    bounds = [target.reader.bounds(target) or (0.0, 1.0) for target in columns.targets]
    widths = np.array([high - low for low, high in bounds])

    def answer(scores: Numbers) -> Numbers:
        return np.asarray(widths / (1 + np.exp(-(mean_score + scores))))

    middle = answer(np.zeros_like(values))
    return answer(values) - middle, (answer(values + band) - answer(values - band)) / 2


def _noise(problem: Problem, directory: Path, coding: Hats) -> Numbers:
    """The covariance (w, w) of the heights due to the rounds' noise: by the moments, else by the noise's sigma.

    It is 0 for optimizers and schedulers of which the effect of noise on parameters is not known.
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
