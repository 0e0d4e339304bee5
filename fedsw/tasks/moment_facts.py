"""What a screen says of released moments: how much of their bounds columns use, and what a constant answer is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedsw.columns.declaration import Columns
from fedsw.tasks.moments import Moments

LEVEL = 0.95
LITTLE = 0.25
"""A column that uses less of its bounds is worth a word."""


@dataclass(frozen=True)
class Estimate:
    """A number read off noised sums, with the interval that noise and the number of records give.

    Attributes:
        value: the estimate.
        low, high: hold the truth in 95 of 100 releases, all estimates of one call together.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Used:
    """How much of its declared bounds a column uses.

    Attributes:
        name: of the input.
        part: four standard deviations as a part of the distance of the bounds, which holds about 95 of 100 records of a
            normal column.
        most: what `part` is at most, as far as the noise lets it be seen.
    """

    name: str
    part: float
    most: float


@dataclass(frozen=True)
class Constant:
    """The best answer that looks at no input.

    Attributes:
        means: share of every class, or mean of every target.
        score: its accuracy, or its mean squared error.
    """

    means: tuple[Estimate, ...]
    score: Estimate


def columns_used(moments: Moments, columns: Columns) -> tuple[Used, ...]:
    """Columns of numbers that use less than a quarter of their bounds, for sure: where the noise allows to say so.

    Args:
        moments: of records of these columns, in their order.
        columns: as they are declared.
    """
    variances = np.diag(moments.covariance)
    spread = np.hypot(moments.noise, 2 * moments.shift * moments.noise_of_inputs)
    wide = _quantile(max(1, moments.layout.features), sides=1) * np.hypot(
        spread, np.maximum(variances, spread) * math.sqrt(2 / max(1, moments.count))
    )
    used, place = [], 0
    for feature in columns.features:
        if feature.low is not None:
            length = 1.0 if feature.in_unit else 2.0
            for number in range(feature.count or 1):
                at = place + number
                variance = max(0.0, float(variances[at]))  # noise below 0 takes nothing from what may be there
                part, most = (4 * math.sqrt(v) / length for v in (variance, variance + wide[at]))
                if most < LITTLE:
                    used.append(Used(feature.input_names[number], part, most))
        place += feature.inputs
    return tuple(used)


def constant_of(moments: Moments) -> Constant:
    """The best constant answer and what it is worth, with intervals, from the moments alone.

    A share's noise is that of a sum of products, and its sample varies as a count does; a squared distance of numbers
    in [0, 1] from their mean varies at most as its own mean.
    """
    n = max(1, moments.count)
    means = moments.products[0, 1 + moments.layout.features :] + moments.layout.middle
    variances = means * (1 - means) if moments.layout.classes else np.diag(moments.target_covariance)
    noise = moments.noise_of_targets
    spread = np.hypot(noise, np.sqrt(np.clip(variances, noise, 0.25) / n))
    wide = _quantile(len(means) + (not moments.layout.classes)) * spread
    estimates = tuple(_estimate(value, width) for value, width in zip(means, wide, strict=True))
    if moments.layout.classes:
        return Constant(estimates, estimates[int(np.argmax(means))])
    return Constant(estimates, _squared_error(moments, variances))


def _squared_error(moments: Moments, variances: NDArray[np.float64]) -> Estimate:
    """Of the mean of each target, over all targets; its interval at the level that the means leave."""
    shifts = moments.products[0, 1 + moments.layout.features :]
    each = np.hypot(moments.noise_of_squares, 2 * shifts * moments.noise_of_targets)
    noise = float(np.linalg.norm(each)) / len(shifts)
    value = float(np.mean(variances))
    sampled = math.sqrt(min(0.25, max(value, noise)) / max(1, moments.count))
    return _estimate(value, _quantile(len(shifts) + 1) * math.hypot(noise, sampled))


def _estimate(value: float, width: float) -> Estimate:
    return Estimate(float(value), max(0.0, float(value - width)), max(0.0, min(1.0, float(value + width))))


def _quantile(many: int, *, sides: int = 2) -> float:
    """How many standard deviations hold so many estimates together."""
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / (sides * many))
