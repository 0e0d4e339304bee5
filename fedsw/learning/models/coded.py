"""Public maps of one record's inputs, in front of a model: hats of every column, or columns about their middle.

Each is made of declared columns only, has no parameter to train, and codes a record without a look at another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.columns.values import number_text

LENGTH = 4.5
"""The most that a record's inputs reach from the middle of their bounds, in front of a model that takes them so."""
_DECADES = 1000.0
"""Bounds from 0 to this or more have knots that grow by `_FACTOR`; so do positive ones this square root apart."""
_FACTOR = math.sqrt(10.0)
_JUMP, _APART = 2.0**-7, 2.0**-20
"""Parts of the narrower of two bins, which lies between them, and of a number, which float32 can still tell."""
_BLURRED = 0.02
"""Part of the least distance of two knots that the name of one may be rounded by."""


class Coding(nn.Module):
    """A public map of inputs (n, p), as columns are encoded, to the numbers (n, w) that a model takes.

    Attributes:
        width: w.
        names: of the w numbers.
        middle: (w,), what the numbers of records lie about; ``reach`` is the squared distance from it to which moments
            cut them.
        line: (w, p), what gives the inputs of a record back, if it fits its columns: inputs = numbers @ line + offset;
            None if nothing does.
        offset: (p,).
        kept: whether it costs so much that a holder of records codes them once.
    """

    kept = False

    def __init__(
        self,
        names: tuple[str, ...],
        middle: NDArray[np.float64],
        reach: float,
        line: NDArray[np.float64] | None,
        offset: NDArray[np.float64] | None,
    ) -> None:
        super().__init__()
        self.names, self.middle, self.reach, self.line, self.offset = names, middle, reach, line, offset

    @property
    def width(self) -> int:
        """Length of a coded record."""
        return len(self.names)

    def write(self, inputs: Tensor, out: Tensor) -> None:
        """Put the numbers (n, w) of inputs (n, p) into `out`."""
        out.copy_(self(inputs))

    def inputs(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs (n, p) that these numbers (n, w) are of, or would be; ValueError if numbers do not tell them."""
        if self.line is None or self.offset is None:
            raise ValueError("these numbers tell no inputs: many images have the same")
        inputs: NDArray[np.float64] = numbers @ self.line + self.offset
        return inputs


@dataclass(frozen=True)
class Unit:
    """One number that a column becomes: 1 where its input, number ``source``, is from ``low`` to ``high``; less beyond.

    Both are the knot of a hat, and the ends of a bin. It falls to 0 at 1/``rising`` below and 1/``falling`` above, and
    stays 1 on a side where this is 0. It is 0 in a record with the input number ``absent`` at 1. A record that has this
    unit alone has the inputs ``line``.
    """

    name: str
    source: int
    low: float
    high: float
    rising: float
    falling: float
    absent: int
    line: tuple[tuple[int, float], ...]


class Places:
    """A map of finite inputs (n, p) to the places (n, q) that they have among the units of every column."""

    def __init__(self, columns: Columns, by_column: list[list[Unit]]) -> None:
        self.width, self.numbers, self.categories, self.missing = len(by_column), [], [], []
        units: list[list[Unit]] = []
        sources: list[int] = []
        start, column = 0, 0
        for feature in columns.features:
            for at, _ in enumerate(feature.columns):
                count = len(by_column[column]) - bool(feature.missing)
                if feature.categories:
                    self.categories.append((column, slice(start, start + count), len(by_column[column])))
                else:
                    self.numbers.append(column)
                    sources.append(start + at)
                    units.append(by_column[column][:count])
                if feature.missing:
                    self.missing.append((column, start + feature.inputs - 1, float(count)))
                column += 1
            start += feature.inputs
        self.sources = np.array(sources, dtype=np.int64)
        steps = max(map(len, units), default=1) - 1
        self.begins, self.rising = np.zeros((2, steps, len(units)))
        for number, values in enumerate(units):
            for step, (below, above) in enumerate(pairwise(values)):
                self.begins[step, number], self.rising[step, number] = below.high, above.rising

    def __call__(self, inputs: Tensor) -> Tensor:
        """See the class: a number's place is how many of its steps, and which part of one, are below it."""
        numbers = inputs.index_select(1, torch.from_numpy(self.sources))
        among = torch.zeros_like(numbers)
        begins, risings = (torch.from_numpy(steps).to(inputs) for steps in (self.begins, self.rising))
        for begin, rising in zip(begins, risings, strict=True):
            among += (numbers - begin).mul_(rising).clamp_(0.0, 1.0)
        if len(self.numbers) == self.width:
            places = among
        else:
            places = inputs.new_empty((len(inputs), self.width))
            places[:, self.numbers] = among
        for column, indicators, none in self.categories:
            largest, category = inputs[:, indicators].max(dim=1)
            places[:, column] = torch.where(largest > 0, category, none)
        for column, missing, behind in self.missing:
            places[:, column].masked_fill_(inputs[:, missing] >= 0.5, behind)
        return places


class Hats(Coding):
    """Every column as shares of its knots or categories, which add up to 1, over the square root of their number.

    A number between two knots is coded by its nearness to each (piecewise linear hat functions), one beyond the
    first or the last as that knot; a category by 1 in its own place; a missing cell by 1 in a place of its own. A
    linear model of these is an additive model: a sum of functions of one column each, straight between its knots. A
    column of ``bins``, by the edges between them, is coded as its bin is, like a category: its function is level in a
    bin, and jumps.

    Guarantee: a record's numbers have norm 1 at most, whatever its inputs hold: what is not finite counts as 0, shares
    are cut to [0, 1], and what is longer than 1 is divided by its length.
    """

    source: Tensor
    absent: Tensor
    low: Tensor
    high: Tensor
    rising: Tensor
    falling: Tensor

    def __init__(self, columns: Columns, knots: int, bins: Sequence[tuple[str, tuple[float, ...]]] = ()) -> None:
        edges = dict(bins)
        named = [(feature, name) for feature in columns.features for name in feature.columns]
        by_column = [*_units_by_column(columns, knots, edges)]
        units = [unit for of_column in by_column for unit in of_column]
        scale = 1 / math.sqrt(len(by_column))
        line = np.zeros((len(units), columns.inputs))
        for row, unit in enumerate(units):
            for column, value in unit.line:
                line[row, column] = value / scale
        middle = np.array([scale / len(of_column) for of_column in by_column for _ in of_column])
        reaches = [
            (1.0 if name in edges or at_knots(feature, knots) else 2 / 3) - 1 / len(of_column)
            for (feature, name), of_column in zip(named, by_column, strict=True)
        ]  # of a hat's square the mean over the bounds; who is further away is cut to it in moments
        reach = sum(reaches) / len(by_column)
        super().__init__(tuple(unit.name for unit in units), middle, reach, line, np.zeros(columns.inputs))
        self.scale = scale
        self.by_column = tuple(len(of_column) for of_column in by_column)
        self.may_lack = any(feature.missing for feature in columns.features)
        for name in ("source", "absent", "low", "high", "rising", "falling"):
            values = np.array([getattr(unit, name) for unit in units])
            self.register_buffer(name, torch.from_numpy(values), persistent=False)
        self._places = Places(columns, by_column)

    def forward(self, inputs: Tensor) -> Tensor:
        """Numbers (n, w) of inputs (n, p)."""
        return self._numbers(inputs, None)

    def write(self, inputs: Tensor, out: Tensor) -> None:
        """Put `forward` of inputs (n, p) into `out` (n, w), with one other tensor of its size beside it."""
        self._numbers(inputs, out)

    def places(self, inputs: Tensor) -> Tensor:
        """Where inputs (n, p) lie in every column, (n, q); a `HatLinear` reads `forward`'s hats from places that fit.

        The number k + f lies between knots k and k + 1, or is category k; a missing cell is behind all others, and what
        is not a category behind that. A category is that of its largest input, the first of equal ones.
        """
        return self._places(torch.nan_to_num(inputs, 0.0, 0.0, 0.0))

    def _numbers(self, inputs: Tensor, out: Tensor | None) -> Tensor:
        known = torch.nan_to_num(inputs, 0.0, 0.0, 0.0)
        low, high, rising, falling = (v.to(known.dtype) for v in (self.low, self.high, self.rising, self.falling))
        away = known.index_select(1, self.source)
        fallen = torch.sub(away, high, out=out).mul_(falling)
        fallen = torch.maximum(fallen, away.sub_(low).mul_(-rising), out=out)
        shares = fallen.neg_().add_(1.0).clamp_(0.0, 1.0).mul_(self.scale)
        if self.may_lack:
            none = torch.zeros_like(known[:, :1])
            shares.mul_(1 - torch.cat([known, none], dim=1)[:, self.absent].clamp(0.0, 1.0))
        lengths = torch.linalg.vector_norm(shares, dim=1, keepdim=True)
        return torch.div(shares, lengths.clamp(min=1.0), out=out)


class Centred(Coding):
    """Inputs about the middle of their bounds, scaled so that the farthest that these allow is LENGTH away."""

    centre: Tensor

    def __init__(self, columns: Columns) -> None:
        centre = np.array([number for feature in columns.features for number in middle_of(feature)])
        reach = sum(most_of(feature) for feature in columns.features)
        scale, width = LENGTH / math.sqrt(reach), len(centre)
        super().__init__(columns.feature_names, np.zeros(width), LENGTH**2, np.eye(width) / scale, centre)
        self.scale = scale
        self.register_buffer("centre", torch.from_numpy(centre.astype(np.float32)), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Numbers (n, p) of inputs (n, p); what is not finite counts as 0."""
        known = torch.nan_to_num(inputs, 0.0, 0.0, 0.0)
        return (known - self.centre.to(known.dtype)) * self.scale


def middle_of(feature: Feature) -> tuple[float, ...]:
    """The middle of every input of a column: of a number in its bounds, of indicators as if all were as frequent."""
    missing = (0.5,) if feature.missing else ()
    if feature.categories:
        return (1 / len(feature.categories),) * len(feature.categories) + missing
    return (0.5 if feature.in_unit else 0.0,) * (feature.count or 1) + missing


def most_of(feature: Feature) -> float:
    """Return the most that a column adds to the squared distance from its middle; 1 for a number without bounds."""
    missing = 0.25 if feature.missing else 0.0
    if feature.categories:
        return 1 - 1 / len(feature.categories) + missing
    return (0.25 if feature.in_unit else 1.0) * (feature.count or 1) + missing


def typical_length(columns: Columns) -> float:
    """Length of a record's inputs about their middle, in the longest's, if numbers are spread evenly in their bounds.

    Categories are as far from their middle in every record.
    """
    most = [most_of(feature) for feature in columns.features]
    typical = [part if feature.categories else part / 3 for feature, part in zip(columns.features, most, strict=True)]
    return math.sqrt(sum(typical) / sum(most))


def knots_of(feature: Feature, knots: int) -> tuple[float, ...]:
    """The knots of a column of numbers, in its own units: the declared ones, or evenly spaced ones in its bounds.

    They are equally far apart; where the bounds span decades they grow by a factor, from 0 or from the lower bound.
    Whole numbers of no more values have a knot each.
    """
    if feature.knots:
        return feature.knots
    if (limits := feature.reader.bounds(feature)) is None:
        raise ValueError(f"column {feature.name!r} has no bounds, and knots lie between them: declare low and high")
    low, high = limits
    if _has_a_knot_each(feature, knots):
        return tuple(float(value) for value in range(int(low), int(high) + 1))
    if low == 0 and high >= _DECADES and feature.since is None:
        return (0.0, *(high / _FACTOR**power for power in reversed(range(knots - 1))))
    if low > 0 and high >= low * math.sqrt(_DECADES) and feature.since is None:
        return (low, *(low * (high / low) ** (step / (knots - 1)) for step in range(1, knots - 1)), high)
    return (low, *(low + (high - low) * step / (knots - 1) for step in range(1, knots - 1)), high)


def _units_by_column(columns: Columns, knots: int, bins: Mapping[str, tuple[float, ...]]) -> Iterator[list[Unit]]:
    """The units of every column, in the order of the inputs."""
    start, nowhere = 0, columns.inputs
    for feature in columns.features:
        missing = start + feature.inputs - 1 if feature.missing else nowhere
        for at, name in enumerate(feature.columns):
            if feature.categories:
                units = [
                    Unit(f"{name}={category}", start + code, 1.0, 1.0, 1.0, 0.0, missing, ((start + code, 1.0),))
                    for code, category in enumerate(feature.categories)
                ]
            elif name in bins:
                units = _of_bins(feature, name, start + at, missing, bins[name])
            else:
                units = _of_number(feature, name, start + at, missing, knots)
            if feature.missing:
                line = ((missing, 1.0), *_filled(feature, start))
                units.append(Unit(f"{name} is missing", missing, 1.0, 1.0, 1.0, 0.0, nowhere, line))
            yield units
        start += feature.inputs


def _of_number(feature: Feature, name: str, source: int, missing: int, knots: int) -> list[Unit]:
    values = knots_of(feature, knots)
    encoded = [_encoded(feature, value) for value in values]
    steps = [1 / (above - below) for below, above in pairwise(encoded)]
    return [
        Unit(f"{name} at {text}", source, knot, knot, rising, falling, missing, ((source, knot),))
        for text, knot, rising, falling in zip(
            _texts(feature, values), encoded, (0.0, *steps), (*steps, 0.0), strict=True
        )
    ]


def _texts(feature: Feature, values: tuple[float, ...]) -> list[str]:
    """Names of knots: declared ones and dates as they are, others with four digits, or more where these are too few."""
    if feature.knots or feature.reader.stored == "days":
        return [feature.reader.worded(value, feature) for value in values]
    gaps = [math.inf, *(above - below for below, above in pairwise(values)), math.inf]
    return [_short(value, min(pair)) for value, pair in zip(values, pairwise(gaps), strict=True)]


def _short(value: float, gap: float) -> str:
    """A number with four digits, or as many more as keep it off its neighbours, of which the nearer is a gap away."""
    rounded = (float(f"{value:.{digits}g}") for digits in range(4, 18))
    return number_text(next(short for short in rounded if abs(short - value) <= _BLURRED * gap))


def _of_bins(feature: Feature, name: str, source: int, missing: int, edges: tuple[float, ...]) -> list[Unit]:
    """The bins of a column between these edges; a number on an edge is in the bin above it.

    From one bin to the next a unit falls within a part of a bin, in which no whole number lies, and few others do.
    """
    limits = feature.reader.bounds(feature)
    assert limits is not None
    ends, whole = (limits[0], *edges, limits[1]), feature.reader.whole
    encoded = [_encoded(feature, end) for end in ends]
    lows, highs, one = [encoded[0]], [], _encoded(feature, ends[0] + 1) - encoded[0]
    for (below, edge), above in zip(pairwise(encoded[:-1]), encoded[2:], strict=True):
        step = one / 4 if whole else min(edge - below, above - edge) * _JUMP
        highs.append(max(below, edge - 2 * step))
        lows.append(max(edge - step, highs[-1] + _APART * abs(highs[-1])))
    highs.append(encoded[-1])
    lasts = [edge - 1 if whole else edge for edge in edges] + [limits[1]]
    names = [
        feature.reader.worded(first, feature) + ("" if first == last else f" to {feature.reader.worded(last, feature)}")
        for first, last in zip(ends, lasts, strict=False)
    ]
    rates = [0.0, *(1 / (low - high) for low, high in zip(lows[1:], highs, strict=False)), 0.0]
    return [
        Unit(f"{name} at {text}", source, low, high, rising, falling, missing, ((source, (low + high) / 2),))
        for text, low, high, rising, falling in zip(names, lows, highs, rates[:-1], rates[1:], strict=True)
    ]


def at_knots(feature: Feature, knots: int) -> bool:
    """True if every cell is at a knot: categories, and whole numbers of no more values than knots."""
    return bool(feature.categories) or _has_a_knot_each(feature, knots)


def _has_a_knot_each(feature: Feature, knots: int) -> bool:
    """True if every number of a column is a knot: where they are whole, and no more than these."""
    limits = feature.reader.bounds(feature)
    if feature.knots or limits is None or not feature.reader.whole:
        return False
    low, high = limits
    return high - low <= knots - 1 and low == int(low) and high == int(high)


def _encoded(feature: Feature, value: float) -> float:
    """A number as the column's input has it."""
    return float(feature.reader.inputs(np.array([value]), feature)[0, 0])


def _filled(feature: Feature, start: int) -> tuple[tuple[int, float], ...]:
    """The inputs that stand for a missing cell of a column, given where the column's inputs begin."""
    if (fill := feature.filled_category) is not None:
        return ((start + fill, 1.0),)
    if feature.categories or not isinstance(feature.fill, int | float):
        return ()
    return ((start, _encoded(feature, float(feature.fill))),)
