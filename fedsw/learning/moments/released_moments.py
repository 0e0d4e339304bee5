"""Moments as released, and what is read off them: means, covariances, used bounds, constants, coefficients."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Number
from fedsw.learning.moments.moments_sum import STEP, Layout

LEVEL = 0.95
LITTLE = 0.25
"""A column that uses less of its bounds is worth a word."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments as they were released, or exact ones; whatever is read off them is post-processing.

    ``values`` (blocks, w) float64 are sums in the units of `Layout.vectors`, with noise of deviation ``sigma`` in each,
    0 for exact ones; ``records`` is the public number of each cell, whether it has a block of its own or not. Where it
    is ``declared``, the true number is secret and read off its noised count.
    """

    layout: Layout
    values: Tensor
    sigma: float
    records: tuple[int, ...]
    declared: bool = False

    @classmethod
    def exact(cls, layout: Layout, totals: Tensor, records: tuple[int, ...]) -> Moments:
        """Moments without noise from sums in whole steps (cells, w) int64."""
        return cls(layout, totals.double() * STEP, 0.0, records)

    @functools.cached_property
    def count(self) -> int:
        """n, the number of records; of a secret one the noised count, at least 1 and the deviation of its noise."""
        if not self.declared:
            return sum(self.records)
        counted = float(self.layout.matrix(self.values.sum(0))[0, 0] * self.layout.rounded[0] ** 2)
        return max(1, round(counted), math.ceil(self.sigma * (self.layout.bound / self.layout.constant) ** 2))

    @property
    def noise_of_count(self) -> float:
        """Standard deviation of the noise in n, as a part of it; 0 if n is public.

        It moves every mean by that part of its distance from the public middle.
        """
        return self.noise / self.layout.constant**2 if self.declared else 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in the mean square of an input over all records."""
        return self.sigma * math.sqrt(self.layout.cells) * self.layout.bound**2 / max(1, self.count)

    @property
    def noise_of_targets(self) -> float:
        """Standard deviation of the noise in the mean of a target, or in the share of a class."""
        return self.noise / math.sqrt(2) / (self.layout.constant * self.layout.emphasis)

    @property
    def noise_of_inputs(self) -> float:
        """Standard deviation of the noise in the mean of an input."""
        return self.noise / math.sqrt(2) / self.layout.constant

    @property
    def noise_of_products(self) -> float:
        """Standard deviation of the noise in the mean of an input times a target."""
        return self.noise / math.sqrt(2) / self.layout.emphasis

    @property
    def noise_of_squares(self) -> float:
        """Standard deviation of the noise in the mean square of a target."""
        return self.noise / self.layout.emphasis**2

    @property
    def hidden(self) -> float:
        """lambda: half the largest eigenvalue that noise alone gives a matrix of mean products, noise * sqrt(2D)."""
        return self.noise * math.sqrt(self.layout.side / 2)

    def block(self, cell: int) -> NDArray[np.float64]:
        """Sums of products of (1, x - c, y - d) over a cell's records, (D, D); symmetric."""
        return self.layout.matrix(self.values[cell])

    @functools.cached_property
    def products(self) -> NDArray[np.float64]:
        """Means of products of (1, x - c, y - d) over all records, (D, D); the first is 1."""
        products: NDArray[np.float64] = self.layout.matrix(self.values.sum(0)) / max(1, self.count)
        products *= np.outer(self.layout.rounded, self.layout.rounded)
        products[0, 0] = 1.0
        return products

    @property
    def _inputs(self) -> slice:
        return slice(1, 1 + self.layout.features)

    @property
    def _predicted(self) -> slice:
        return slice(1 + self.layout.features, self.layout.side)

    @functools.cached_property
    def shift(self) -> NDArray[np.float64]:
        """Mean of x - c, (p,)."""
        return self.products[0, self._inputs]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of the inputs, (p,)."""
        mean: NDArray[np.float64] = self.shift + np.array(self.layout.centre)
        return mean

    @functools.cached_property
    def target_mean(self) -> NDArray[np.float64]:
        """Mean of the targets, (t,); of classes their shares, which are at least a little and have sum 1."""
        mean = self.products[0, self._predicted] + self.layout.middle
        if not self.layout.classes:
            return np.clip(mean, 0.0, 1.0)
        least = min(max(self.noise_of_targets, 1 / max(1, self.count)), 0.5 / self.layout.targets)
        shares: NDArray[np.float64] = np.maximum(mean, least)
        shares /= shares.sum()
        return shares

    @functools.cached_property
    def covariance(self) -> NDArray[np.float64]:
        """Covariance of the inputs, (p, p); noised, so it may have eigenvalues below 0."""
        return self.products[self._inputs, self._inputs] - np.outer(self.shift, self.shift)

    @functools.cached_property
    def cross(self) -> NDArray[np.float64]:
        """Covariance of inputs and targets, (p, t)."""
        predicted = self.products[0, self._predicted]
        return self.products[self._inputs, self._predicted] - np.outer(self.shift, predicted)

    @functools.cached_property
    def target_covariance(self) -> NDArray[np.float64]:
        """Covariance of the targets, (t, t)."""
        predicted = self.products[0, self._predicted]
        return self.products[self._predicted, self._predicted] - np.outer(predicted, predicted)

    @functools.cached_property
    def class_shifts(self) -> NDArray[np.float64]:
        """Mean of the inputs in every class less the mean of all, (classes, p)."""
        return self.cross.T / self.target_mean[:, None]

    @functools.cached_property
    def within(self) -> NDArray[np.float64]:
        """Covariance (p, p) of the inputs within classes, pooled over them; of a regression that of all."""
        if not self.layout.classes:
            return self.covariance
        return self.covariance - self.class_shifts.T @ (self.class_shifts * self.target_mean[:, None])

    def shares_of(self, cell: int) -> NDArray[np.float64]:
        """Means of the targets (t,) among a block's records, as they were released, by their public number."""
        row = (self.block(cell)[0] * self.layout.rounded * self.layout.rounded[0])[self._predicted]
        many = self.records[cell] if self.layout.cells > 1 else self.count
        shares: NDArray[np.float64] = row / max(1, many) + self.layout.middle
        return shares


@dataclass(frozen=True)
class Estimate:
    """A number read off noised sums; low and high hold the truth in 95 of 100 releases, all of one call together."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Used:
    """Part of its declared bounds that a column uses.

    ``part`` is four standard deviations (about 95 of 100 records of a normal column) as a part of the distance of the
    bounds, ``most`` what it is at most, as far as the noise lets it be seen.
    """

    name: str
    part: float
    most: float


@dataclass(frozen=True)
class Constant:
    """The best answer that looks at no input: shares of classes or means of targets, accuracy or squared error."""

    means: tuple[Estimate, ...]
    score: Estimate


def columns_used(moments: Moments, columns: Columns, line: NDArray[np.float64] | None = None) -> tuple[Used, ...]:
    """Columns of numbers that use less than a quarter of their bounds, for sure: where the noise allows to say so.

    Where inputs are coded, `line` (w, p) is what gives them back (`fedsw.learning.models.coded.Coding`). None are named
    where moments are of the target only.
    """
    if not moments.layout.features:
        return ()
    line = np.eye(moments.layout.features) if line is None else line
    variances = np.einsum("wp,wv,vp->p", line, moments.covariance, line, optimize=True)
    squares = np.sum(line**2, axis=0)
    shifts = moments.shift @ line
    spread = np.hypot(moments.noise * squares, 2 * shifts * moments.noise_of_inputs * np.sqrt(squares))
    spread = np.hypot(spread, (variances - shifts**2) * moments.noise_of_count)
    wide = _quantile(max(1, len(variances)), sides=1) * np.hypot(
        spread, np.maximum(variances, spread) * math.sqrt(2 / max(1, moments.count))
    )
    used, start = [], 0
    for feature in columns.features:
        if feature.low is not None:
            length = 1.0 if feature.in_unit else 2.0
            for number in range(feature.count or 1):
                at = start + number
                variance = max(0.0, float(variances[at]))  # noise below 0 takes nothing from what may be there
                part, most = (4 * math.sqrt(v) / length for v in (variance, variance + wide[at]))
                if most < LITTLE:
                    used.append(Used(feature.input_names[number], part, most))
        start += feature.inputs
    return tuple(used)


def constant_of(moments: Moments) -> Constant:
    """The best constant answer and what it is worth, with intervals, from the moments only.

    A share's noise is that of a sum of products, and its sample varies as a count does; a squared distance of numbers
    in [0, 1] from their mean varies at most as its own mean.
    """
    n = max(1, moments.count)
    means = moments.products[0, 1 + moments.layout.features :] + moments.layout.middle
    variances = means * (1 - means) if moments.layout.classes else np.diag(moments.target_covariance)
    noise = np.hypot(moments.noise_of_targets, (means - moments.layout.middle) * moments.noise_of_count)
    spread = np.hypot(noise, np.sqrt(np.clip(variances, noise, 0.25) / n))
    wide = _quantile(len(means) + (not moments.layout.classes)) * spread
    estimates = tuple(_estimate(value, width) for value, width in zip(means, wide, strict=True))
    if moments.layout.classes:
        return Constant(estimates, estimates[int(np.argmax(means))])
    return Constant(estimates, _squared_error(moments, variances))


def _squared_error(moments: Moments, variances: NDArray[np.float64]) -> Estimate:
    """Squared distance of all targets to their means, as metrics have it; its interval at the level that is left."""
    shifts = moments.products[0, 1 + moments.layout.features :]
    by_target = np.hypot(moments.noise_of_squares, 2 * shifts * moments.noise_of_targets)
    by_target = np.hypot(by_target, (variances - shifts**2) * moments.noise_of_count)
    noise, most = float(np.linalg.norm(by_target)), float(len(shifts))
    value = float(np.sum(variances))
    sampled = math.sqrt(most * min(0.25 * most, max(value, noise)) / max(1, moments.count))
    return _estimate(value, _quantile(len(shifts) + 1) * math.hypot(noise, sampled), most)


def _estimate(value: float, width: float, most: float = 1.0) -> Estimate:
    return Estimate(float(value), max(0.0, float(value - width)), max(0.0, min(most, float(value + width))))


def _quantile(many: int, *, sides: int = 2) -> float:
    """Standard deviations for simultaneous intervals, by the number of estimates."""
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / (sides * many))


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
    while low < high:  # the least variance of the first inputs never rises with their number
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
