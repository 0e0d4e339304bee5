"""The functions that an additive model is a sum of: one of each column, with the band of the rounds' noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from fedsw._tools.text import number
from fedsw.experiment.choices import shipped_task
from fedsw.experiment.task_kinds import model_kind
from fedsw.learning.models.coded import Hats, knots_of
from fedsw.learning.moments.preparation import noise_of_rounds, prepare
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.record import RunRecord
from fedsw.runs.releases import kept_moments
from fedsw.runs.report.figures import colour, house_style, new_panels
from fedsw.runs.run_files import MODEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]

_MOST_PANELS = 60
_WIDTH = 2.0
"""Standard deviations of noise on either side of a function."""


@dataclass(frozen=True, eq=False)
class Shape:
    """One column's function: its values (w, k) at places, for each output, and a band (w, k) on either side of them.

    ``places`` are knots in the column's own numbers, or None beside ``labels``: categories, and the missing cell.
    """

    column: str
    labels: tuple[str, ...]
    places: tuple[float, ...] | None
    values: Numbers
    band: Numbers

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "column": self.column,
            "at": list(self.labels),
            "values": self.values.tolist(),
            "band": self.band.tolist(),
        }


def shapes_of(record: RunRecord) -> list[Shape]:
    """The functions of an additive model that a run released; none of another model, or before it is released.

    Each is about its mean over the places. Of a classifier they are log-odds (of more than two classes the scores of
    each); of numbers what the answer, in the target's own units, moves by while other columns are at their mean. The
    band is two standard deviations of the noise that all rounds added, at most: gradients draw parameters back.
    """
    path = record.directory / MODEL
    if not model_kind(record.experiment.model.kind).columns or not path.is_file():
        return []
    if shipped_task(record.experiment.objective.task) is None:  # whose code nobody has allowed here
        return []
    problem = Problem.from_experiment(record.experiment.on_host())
    coding, weights = problem.coding, [value.double().numpy() for value in load_file(path).values() if value.ndim == 2]
    bias = [value.double().numpy() for value in load_file(path).values() if value.ndim == 1]
    if not isinstance(coding, Hats) or len(weights) != 1:
        return []
    heights, spread = weights[0].T * coding.scale, _noise(problem, record, coding)
    constant = bias[0] + sum(part.mean(axis=0) for part in np.split(heights, np.cumsum(coding.by_column)[:-1]))
    return [*_shapes(problem, coding, heights, spread, constant)]


def _shapes(problem: Problem, coding: Hats, heights: Numbers, noise: Numbers, constant: Numbers) -> Iterator[Shape]:
    columns = problem.experiment.data.columns
    assert columns is not None
    named = [(name, feature) for feature in columns.features for name in feature.columns]
    start = 0
    for (name, feature), width in zip(named, coding.by_column, strict=True):
        rows = slice(start, start + width)
        about = np.eye(width) - 1 / width
        values = about @ heights[rows]
        band = _WIDTH * np.sqrt(np.maximum(np.diag(about @ noise[rows, rows] @ about), 0.0))[:, None] + 0 * values
        labels = tuple(text.removeprefix(f"{name}=").removeprefix(f"{name} at ") for text in coding.names[rows])
        places = None if feature.categories else knots_of(feature, problem.experiment.model.knots)
        if columns.targets:
            values, band = _in_units(problem, values, band, constant)
        yield Shape(name, labels, places, values, band)
        start += width


def _in_units(problem: Problem, values: Numbers, band: Numbers, constant: Numbers) -> tuple[Numbers, Numbers]:
    """Move of the answers in the targets' own units, with the other columns at their mean."""
    columns = problem.experiment.data.columns
    assert columns is not None
    widths = np.array([(target.high or 1.0) - (target.low or 0.0) for target in columns.targets])

    def answer(scores: Numbers) -> Numbers:
        return np.asarray(widths / (1 + np.exp(-(constant + scores))))

    middle = answer(np.zeros_like(values))
    return answer(values) - middle, (answer(values + band) - answer(values - band)) / 2


def _noise(problem: Problem, record: RunRecord, coding: Hats) -> Numbers:
    """The covariance (w, w) of heights that the rounds' noise gives; 0 where no moments say how it is scaled."""
    moments = kept_moments(problem, RunDirectory(record.directory))
    if moments is None:
        return np.zeros((coding.width, coding.width))
    preparation = prepare(problem, moments)
    matrix = preparation.matrix.numpy()
    deviation = preparation.scale * noise_of_rounds(problem, moments) * coding.scale
    covariance: Numbers = deviation**2 * (matrix @ matrix.T)
    return covariance


@house_style()
def draw_shapes(record: RunRecord) -> Figure | None:
    """A small panel for each column; None where the model is no sum of functions."""
    shapes = shapes_of(record)[:_MOST_PANELS]
    if not shapes:
        return None
    columns = min(4, len(shapes))
    rows = -(-len(shapes) // columns)
    figure, panels = new_panels(rows, columns, size=(2.4 * columns + 0.4, 1.9 * rows + 0.5), sharey=True)
    for axes in panels[len(shapes) :]:
        axes.set_axis_off()
    for axes, shape in zip(panels, shapes, strict=False):
        many = len(shape.places or shape.labels)
        at = np.array(shape.places) if shape.places is not None else np.arange(many, dtype=np.float64)
        for output in range(shape.values.shape[1]):
            values, band = shape.values[:many, output], shape.band[:many, output]
            axes.fill_between(at, values - band, values + band, color=colour(output), alpha=0.2, linewidth=0)
            axes.plot(at, values, "o-" if shape.places else "o", color=colour(output), markersize=3)
        if shape.places is None:
            axes.set_xticks(at, [label[:10] for label in shape.labels], rotation=45, fontsize=6)
        axes.set_title(shape.column, fontsize=8)
    figure.suptitle(f"{record.experiment.name}: what each column adds, with the rounds' noise")
    return figure


def shapes_in_words(record: RunRecord) -> str:
    """For who cannot see the picture: the columns that move the answer most, and by how much."""
    shapes = shapes_of(record)
    ranges = {shape.column: float(np.ptp(shape.values, axis=0).max()) for shape in shapes}
    most = sorted(ranges, key=lambda name: -ranges[name])[:3]
    return "The columns that move the answer most: " + ", ".join(f"{name}, by {number(ranges[name])}" for name in most)


def rows_of_shapes(shapes: list[Shape]) -> Iterator[tuple[str, str]]:
    """Each column, with its values at its knots or categories."""
    for shape in shapes:
        for output in range(shape.values.shape[1]):
            pairs = zip(shape.labels, shape.values[:, output], shape.band[:, output], strict=True)
            told = (f"{at}: {number(value)}{f' ± {number(band)}' if band else ''}" for at, value, band in pairs)
            yield shape.column if not output else "", ", ".join(told)
