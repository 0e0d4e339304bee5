"""Slopes of least squares on the columns, with standard errors and intervals, from released moments only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Number
from fedsw.learning.moments.released_moments import LEVEL, Moments

Float = NDArray[np.float64]

SEEN = 2.0
"""Times that inputs vary, in any direction, by more than the most that noise alone makes of as many: from there on the
intervals hold the truth as often as they say, though the noise stands in the matrix that is inverted, too."""

_LEAST = 1e-9
"""What is left of the variance of an input that the others add up to, by rounding."""
_MOST_VARIED = 0.25
"""The most that a number in [0, 1], or an indicator, varies."""


@dataclass(frozen=True)
class Coefficient:
    """By how much a target moves with one input, the others held; in the column's own units where it has bounds.

    Attributes:
        target, name: the number or class that is predicted, and the input.
        value, error: the slope and its standard error, of the sample and the release's noise together.
        low, high: hold the slope of the population in 95 of 100 runs; each interval by itself.
    """

    target: str
    name: str
    value: float
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class Coefficients:
    """The slopes that released moments tell, and the inputs of which they tell none (``hidden``)."""

    seen: tuple[Coefficient, ...]
    hidden: tuple[str, ...]


def coefficients_of(moments: Moments, columns: Columns, line: Float | None = None) -> Coefficients:
    """Least squares of the targets on the inputs and a constant; of two classes, of the positive one's indicator.

    A category is compared with its column's first. Where inputs are coded, `line` (w, p) is what gives them back.
    Inputs are taken one after the other, each time the one that varies most given those before, as long as all
    directions of them vary by more than noise; the others are `hidden`, and slopes are those without them. There are
    none if moments are of the target only.

    Guarantee: post-processing of the release. An interval is for sample and noise together, as if the residual varied
    alike whatever the inputs are.

    Source: docs/guarantees/moments.md#coefficients.
    """
    if not moments.layout.features:
        return Coefficients((), ())
    names = [name for feature in columns.features for name in feature.input_names]
    compared, lengths = _compared(columns)
    design = (np.eye(len(names)) if line is None else line)[:, compared]
    taken = _told_from_noise(moments, design)
    seen = []
    for index, target, width in _targets(columns) if taken else ():
        slopes, errors = _least_squares(moments, design[:, taken], index)
        for at, slope, error in zip(taken, slopes * width, errors * width, strict=True):
            per, name = lengths[compared[at]], names[compared[at]]
            around = NormalDist().inv_cdf(0.5 + LEVEL / 2) * error
            numbers = (float(value / per) for value in (slope, error, slope - around, slope + around))
            seen.append(Coefficient(target, name, *numbers))
    hidden = tuple(names[index] for at, index in enumerate(compared) if at not in taken)
    return Coefficients(tuple(seen), hidden)


def _compared(columns: Columns) -> tuple[list[int], Float]:
    """The inputs but the first category of every column, and the length (p,) of one step of each in its own units."""
    compared, lengths = list[int](), list[float]()
    for feature in columns.features:
        start = len(lengths) + bool(feature.categories)
        lengths += [1.0 if feature.categories else _step(feature)] * (feature.inputs - bool(feature.missing))
        lengths += [1.0] * bool(feature.missing)
        compared += range(start, len(lengths))
    return compared, np.array(lengths)


def _step(number: Number) -> float:
    """Change of a column, in its own units, for a change of the model's input by 1."""
    bounds, (low, high) = number.reader.bounds(number), number.reader.limits(number)
    return 1.0 if bounds is None else (bounds[1] - bounds[0]) / (high - low)


def _targets(columns: Columns) -> list[tuple[int, str, float]]:
    """Index, name and width of everything that is predicted: numbers, the positive of two classes, each of more."""
    if columns.targets:
        return [(index, target.name, _step(target)) for index, target in enumerate(columns.targets)]
    positive = columns.positive if len(columns.classes) == 2 else None
    return [(index, name, 1.0) for index, name in enumerate(columns.classes) if positive in (None, index)]


def _told_from_noise(moments: Moments, design: Float) -> list[int]:
    """The inputs, columns of `design` (w, p), that vary by `SEEN` times what noise does in every direction together."""
    unit = design / np.linalg.norm(design, axis=0)
    order, rows = list[int](), list[Float]()
    covariance = unit.T @ moments.covariance @ unit
    left = np.diag(covariance).copy()
    while len(order) < len(left) and left.max() > 0:  # Cholesky's factor, a pivot at a time
        pivot = int(left.argmax())
        row = covariance[pivot] - sum((row * row[pivot] for row in rows), np.zeros(len(left)))
        row /= math.sqrt(left[pivot])
        order.append(pivot)
        rows.append(row)
        left = left - row**2
        left[order] = -math.inf
    least = max(SEEN * moments.noise * math.sqrt(2 * len(left)), _LEAST)
    low, high = 0, len(order)
    while low < high:  # the least variance of the first so many never rises with their number
        many = (low + high + 1) // 2
        directions, _ = np.linalg.qr(unit[:, order[:many]])
        varied = float(np.linalg.eigvalsh(directions.T @ moments.covariance @ directions)[0])
        low, high = (many, high) if varied > least else (low, many - 1)
    return sorted(order[:low])


def _least_squares(moments: Moments, design: Float, index: int) -> tuple[Float, Float]:
    """Slopes (q,) of the target at an index on the inputs `design` (w, q), and their standard errors (q,).

    In the coordinates of the sums, u = (k, x - c, t(y - d)), noise is symmetric with the variance v^2 beside the
    diagonal and 2 v^2 on it, and none in a count that is public. With r the coefficients of the residual in u, the
    normal equations miss 0 by Z(G r) and the sample's mean of z times residual: Cov(G r) = v^2 (|r|^2 I + r r').
    """
    layout, features = moments.layout, moments.layout.features
    products = moments.products * np.outer(layout.weights, layout.weights)
    variance = moments.noise**2 / 2
    with_one = np.zeros((1 + design.shape[1], layout.side))
    with_one[0, 0], with_one[1:, 1 : 1 + features] = 1 / layout.constant, design.T
    target = np.zeros(layout.side)
    target[1 + features + index] = 1 / layout.emphasis
    squares = with_one @ products @ with_one.T
    inverse = np.linalg.inv(squares)
    slopes = inverse @ (with_one @ products @ target)
    # noise stands in the matrix, too: its mean is taken out, E[G B G r] = v^2 (tr(B) r + B r)
    residual, between = target - with_one.T @ slopes, with_one.T @ inverse @ with_one
    slopes = slopes + variance * inverse @ with_one @ (np.trace(between) * residual + between @ residual)
    residual = target - with_one.T @ slopes
    length = float(residual @ residual)
    left = max(0.0, float(residual @ products @ residual)) + math.sqrt(2 * variance) * length
    noise = variance * (length * np.eye(layout.side) + np.outer(residual, residual))
    if not moments.declared:
        noise[0, 0] -= 2 * variance * residual[0] ** 2
    missed = with_one @ noise @ with_one.T + min(left, _MOST_VARIED) * squares / max(1, moments.count)
    errors = np.sqrt(np.maximum(np.diag(inverse @ missed @ inverse), 0.0))
    return slopes[1:], errors[1:]
