"""Confidence intervals (95 %) for shares, means, and what is made of them, from counts with and without noise.

Each interval holds the true values under which the observed one, with its noise, is not too unlikely; the observed one
is not clipped to possible values first. Rows are grouped by unit, so that each unit counts once, and few units take
Student's quantile.

Source: mid-P limits of a share, Lancaster (1961), here of a binomial count plus Gaussian noise; effective sizes, Korn
and Graubard (1998); differences and ratios, Zou and Donner (2008); areas under curves, Newcombe (2006), method 5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
SURE = 0.98
"""Level of a claim (better or worse than a constant, risen): each end is wrong one time in a hundred at most."""
_FAR = 8.0
"""Standard deviations of noise, beyond which a count's probability is below 1e-15 and is left out."""
_BESIDE = 1e-9
"""Relative distance that the search for a limit keeps from the estimate."""
PSEUDO = 2.0
"""Pseudo-units that differ, so that few units that agree do not look certain (Agresti and Min 2005)."""


class Interval(NamedTuple):
    """Limits of a true value; they miss it one time in twenty."""

    low: float
    high: float


WHOLE = Interval(0.0, 1.0)
"""The interval of a share of no records."""


class Gain(NamedTuple):
    """A difference, and limits of the true one; each is wrong one time in a hundred at most."""

    value: float
    low: float
    high: float

    @property
    def above(self) -> bool:
        """True if the difference is surely positive."""
        return self.low > 0

    @property
    def below(self) -> bool:
        """True if it is surely negative."""
        return self.high < 0

    @property
    def claim(self) -> str:
        """The claim that the interval allows, in words."""
        return "better" if self.above else "worse" if self.below else "cannot be told"


@dataclass(frozen=True)
class Rate:
    """An observed share, and its interval at any level."""

    value: float
    at: Callable[[float], Interval]

    def around(self, level: float) -> tuple[float, float, float]:
        """The low end, the share clipped to the interval, and the high end."""
        low, high = self.at(level)
        value = self.value if math.isfinite(self.value) else (low + high) / 2
        return low, min(max(value, low), high), high


UNKNOWN = Rate(math.nan, lambda level: WHOLE)


def share(count: float, total: float, noise: float = 0.0, level: float = LEVEL) -> Interval:
    """Confidence interval of a probability, after `count` of `total` trials plus Gaussian noise.

    A count outside [0, total], due to noise, is clipped to its nearest end, which only widens the interval.
    """
    if not total > 0:
        return WHOLE
    seen, tail = min(max(count, 0.0), total), (1 - level) / 2
    below = _noised(seen, int(total), noise) if noise > 0 else functools.partial(_below, seen, total)
    return Interval(_root(below, 1 - tail), _root(below, tail))


def counted(count: float, total: float, noise: float = 0.0) -> Rate:
    """The share of a `count` in `total` trials, plus Gaussian noise; `UNKNOWN` without trials."""
    return Rate(count / total, lambda level: share(count, total, noise, level)) if total else UNKNOWN


def rate_of(hits: NDArray[np.bool_], units: NDArray[np.int64]) -> Rate:
    """The share of hits (n,), by an effective number of rows of units (n,); few units take Student's quantile."""
    count = len(hits)
    if not count:
        return UNKNOWN
    value, (totals, held) = float(hits.mean()), _by_unit(hits.astype(np.float64), units)
    clusters = len(totals)
    if clusters == count:
        return counted(float(hits.sum()), count)
    if clusters < 2:
        return Rate(value, lambda level: WHOLE)
    square, free = _square_error(totals - value * held, count)
    size = min(value * (1 - value) / square, count) if square > 0 else float(clusters)

    def at(level: float) -> Interval:
        records = size * (normal(level) / student(level, free)) ** 2
        return _exact(value * records, records, level)

    return Rate(value, at)


def mean(values: Array, units: NDArray[np.int64], level: float = LEVEL) -> Interval:
    """Interval of the mean of the distribution of rows (n,) of units (n,)."""
    value, error, free = _error(values, units)
    reach = student(level, free) * error
    return Interval(value - reach, value + reach)


def mean_error(values: Array, units: NDArray[np.int64]) -> float:
    """The standard error of the mean of rows (n,) of units (n,); 0 for a single unit, which shows none."""
    error = _error(values, units)[1]
    return error if math.isfinite(error) else 0.0


def positive_mean(values: Array, units: NDArray[np.int64]) -> Interval:
    """As `mean`, for numbers (n,) >= 0 such as squared errors: the logarithm of their mean is nearer to normal."""
    value, error, free = _error(values, units)
    if not value > 0 or not math.isfinite(error):
        return Interval(0.0, math.inf if len(values) < 2 else value + student(LEVEL, free) * error)
    return _in_ratio(value, student(LEVEL, free) * error / value)


def ratio_of_means(over: Array, under: Array, units: NDArray[np.int64]) -> Interval:
    """Interval of the mean of `over` divided by that of `under`, both (n,) and never negative."""
    whole = float(under.mean()) if len(under) else 0.0
    if not whole > 0:
        return Interval(0.0, math.inf)
    value = float(over.mean()) / whole
    _, error, free = _error((over - value * under) / whole, units)
    if not value > 0 or not math.isfinite(error):
        return Interval(0.0, math.inf)
    return _in_ratio(value, student(LEVEL, free) * error / value)


def gain(differences: Array, units: NDArray[np.int64], level: float = SURE) -> Gain:
    """The mean difference of two models' scores, row by row (n,).

    If few rows differ, by one answer each, the normal approximation is too narrow: two pseudo-units that differ are
    added to the error, and no end is on a side of 0 that the exact sign test rejects.
    """
    value, error, free = _error(differences, units)
    if not math.isfinite(error):
        return Gain(value, -math.inf, math.inf)
    totals, _ = _by_unit(differences, units)
    moved = totals[totals != 0]
    by_one = bool((np.abs(moved) == 1).all())
    size = float(np.square(moved).mean()) if len(moved) else 1.0
    reach = student(level, len(totals) - 1 if by_one else free)
    reach *= math.sqrt(error**2 + PSEUDO * size / len(differences) ** 2)
    low, high, tail = value - reach, value + reach, (1 - level) / 2
    if by_one:
        more, fewer = int((totals > 0).sum()), int((totals < 0).sum())
        low = min(low, 0.0) if _sign_tail(more, fewer) > tail else low
        high = max(high, 0.0) if _sign_tail(fewer, more) > tail else high
    return Gain(value, max(low, -1.0), min(high, 1.0))


def paired_mean(differences: Array, units: NDArray[np.int64], level: float = SURE) -> Gain:
    """The mean of differences (n,), by Student's quantile over units."""
    return Gain(float(differences.mean()), *mean(differences, units, level))


def largest_gap(rates: Sequence[Sequence[Rate]]) -> Interval:
    """Interval of the largest difference of two groups' shares, over groups and over several answers.

    The low end is that of the pair with the highest one, so Bonferroni's over all pairs; the high end is at least that
    of the pair which truly differs most, so at the level itself.
    """
    pairs = [pair for shares in rates for pair in combinations(shares, 2)]
    sure = [_size_of(_difference(*pair, 1 - (1 - LEVEL) / len(pairs))) for pair in pairs]
    usual = [_size_of(_difference(*pair, LEVEL)) for pair in pairs]
    return Interval(max(shares.low for shares in sure), max(shares.high for shares in usual))


def smallest_ratio(rates: Sequence[Sequence[Rate]]) -> Interval:
    """Interval of the smallest group's share divided by the largest's, the least over several answers."""
    pairs = [pair for shares in rates for pair in combinations(shares, 2)]

    def at(level: float) -> list[Interval]:
        return [_folded(quotient(one.around(level), other.around(level))) for one, other in pairs]

    usual, sure = at(LEVEL), at(1 - (1 - LEVEL) / len(pairs))
    return Interval(min(shares.low for shares in usual), min(shares.high for shares in sure))


def quotient(over: tuple[float, float, float], under: tuple[float, float, float]) -> Interval:
    """Interval of a quotient of numbers >= 0, each given by low end, estimate and high end (Zou and Donner)."""
    (l1, p1, u1), (l2, p2, u2) = over, under
    product = p1 * p2
    low_part, high_part = l1 * u2 * (2 * p1 - l1) * (2 * p2 - u2), u1 * l2 * (2 * p1 - u1) * (2 * p2 - l2)
    bottom, top = u2 * (2 * p2 - u2), l2 * (2 * p2 - l2)
    low = (product - math.sqrt(max(0.0, product**2 - low_part))) / bottom if bottom > 0 else 0.0
    high = (product + math.sqrt(max(0.0, product**2 - high_part))) / top if top > 0 else math.inf
    return Interval(max(0.0, low), max(high, 0.0))


def curve_area(area: float, positives: int, negatives: int, level: float = LEVEL) -> Interval:
    """Confidence interval of the area under a ROC curve, by the numbers of units of each class."""
    if positives < 1 or negatives < 1 or not math.isfinite(area):
        return WHOLE
    z, mid = normal(level), (positives + negatives) / 2 - 1

    def beyond(theta: float) -> float:
        shape = 1 + mid * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(theta - area) - z * math.sqrt(theta * (1 - theta) * shape / (positives * negatives))

    brentq = scipy.optimize.brentq
    low = 0.0 if area <= 0 else brentq(beyond, 0.0, area - _BESIDE * area)
    high = 1.0 if area >= 1 else brentq(beyond, area + _BESIDE * (1 - area), 1.0)
    return Interval(float(low), float(high))


def sum_of_sizes(sizes: Array, errors: Array) -> Interval:
    """Interval of a sum of absolute values, of estimates (k,) and standard errors (k,); it is not too narrow.

    By the triangle inequality the sum moves by at most that of the errors' absolute values. It is a calibration error,
    so that it is at most 1.
    """
    total = float(np.abs(sizes).sum())
    # |error| of a normal error has mean sqrt(2/pi) and variance 1 - 2/pi; one side at 95 % is normal(0.9).
    reach = math.sqrt(2 / math.pi) * float(errors.sum())
    reach += normal(0.9) * math.sqrt((1 - 2 / math.pi) * float(np.square(errors).sum()))
    return Interval(min(1.0, max(0.0, total - reach)), min(1.0, total + reach))


def largest_cdf_gap(value: float, counts: Sequence[int]) -> Interval:
    """Confidence interval of the largest Kolmogorov-Smirnov distance between groups, by their numbers of units."""
    if min(counts, default=0) < 1 or not math.isfinite(value):
        return WHOLE
    smallest = sorted(counts)[:2]
    chance = (1 - LEVEL) / math.comb(len(counts), 2)
    reach = float(scipy.special.kolmogi(chance)) * math.sqrt(sum(1 / n for n in smallest))
    return Interval(max(0.0, value - reach), min(1.0, value + reach))


def left_out(value: float, without: Sequence[float]) -> Interval | None:
    """Jackknife interval of a number, from its values without one of k equal parts; None if a value is missing."""
    parts = np.asarray(without, dtype=np.float64)
    if len(parts) < 2 or not np.isfinite([value, *parts]).all():
        return None
    reach = student(LEVEL, len(parts) - 1) * math.sqrt((len(parts) - 1) * float(np.square(parts - parts.mean()).mean()))
    return Interval(value - reach, value + reach)


def standard_error(interval: Interval) -> float:
    """The standard error of a normal distribution with that interval."""
    return (interval.high - interval.low) / (2 * normal(LEVEL))


def plain(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    """Intervals by name as lists."""
    return {name: [float(low), float(high)] for name, (low, high) in intervals.items()}


def _below(seen: float, total: float, p: float) -> float:
    """Mid-P: the probability of a smaller count than the observed, and half of that of an equal one, at a share p."""
    at_most = 1.0 if seen >= total else float(scipy.special.betainc(total - seen, seen + 1, 1 - p))
    fewer = 0.0 if seen <= 0 else float(scipy.special.betainc(total - seen + 1, seen, 1 - p))
    return (at_most + fewer) / 2


def _noised(seen: float, total: int, noise: float) -> Callable[[float], float]:
    """The probability, for every true share, that a count with its noise is below the observed one."""
    first, last = max(0, math.floor(seen - _FAR * noise)), min(total, math.ceil(seen + _FAR * noise))
    counts = np.arange(first, last + 1)
    gammaln = scipy.special.gammaln
    ways = gammaln(total + 1) - gammaln(counts + 1) - gammaln(total - counts + 1)
    within = scipy.special.ndtr((seen - counts) / noise)

    def below(p: float) -> float:
        chances = np.exp(ways + scipy.special.xlogy(counts, p) + scipy.special.xlog1py(total - counts, -p))
        far = float(scipy.special.betainc(total - first + 1, first, 1 - p)) if first else 0.0
        return float(chances @ within) + far

    return below


def _root(below: Callable[[float], float], wanted: float) -> float:
    """The share at which a falling probability is the wanted one; 0 or 1 if there is none."""
    if below(0.0) <= wanted:
        return 0.0
    if below(1.0) >= wanted:
        return 1.0
    return float(scipy.optimize.brentq(lambda p: below(p) - wanted, 0.0, 1.0, xtol=1e-7))


def _exact(count: float, total: float, level: float) -> Interval:
    """Clopper and Pearson's limits of a share; both may be fractions."""
    tail = (1 - level) / 2
    low = 0.0 if count <= 0 else float(scipy.special.betaincinv(count, total - count + 1, tail))
    high = 1.0 if count >= total else float(scipy.special.betaincinv(count + 1, total - count, 1 - tail))
    return Interval(low, high)


def _by_unit(values: Array, units: NDArray[np.int64]) -> tuple[Array, Array]:
    """Sum and number of the rows (n,) of each unit."""
    _, unit = np.unique(units, return_inverse=True)
    sums, rows = np.bincount(unit, weights=values), np.bincount(unit)
    return sums.astype(np.float64), rows.astype(np.float64)


def _error(values: Array, units: NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean, its standard error over units, and degrees of freedom; an infinite error for one unit."""
    if not len(values):
        return math.nan, math.inf, 1.0
    value = float(values.mean())
    totals, held = _by_unit(values, units)
    if len(totals) < 2:
        return value, math.inf, 1.0
    square, free = _square_error(totals - value * held, len(values))
    return value, math.sqrt(square), free


def _square_error(moved: Array, rows: int) -> tuple[float, float]:
    """Squared error and degrees of freedom of a mean of a number of rows, from each unit's part of its sum (k,).

    If few units dominate the sum, only these show how much units differ, and degrees of freedom are fewer.
    """
    clusters, squares = len(moved), np.square(moved)
    total = float(squares.sum())
    # Of k normal parts of equal variance, E(sum of squares)^2 / E(sum of fourth powers) is (k + 2) / 3.
    alike = total**2 / float(np.square(squares).sum()) if total > 0 else clusters
    free = 3 * alike - 2 if 3 * alike < clusters else clusters - 1
    return clusters / (clusters - 1) * total / rows**2, max(1.0, min(free, clusters - 1))


def _in_ratio(value: float, reach: float) -> Interval:
    factor = math.exp(min(reach, 700.0))
    return Interval(value / factor, value * factor)


def _difference(one: Rate, other: Rate, level: float) -> Interval:
    (l1, p1, u1), (l2, p2, u2) = one.around(level), other.around(level)
    gap = p1 - p2
    return Interval(gap - math.hypot(p1 - l1, u2 - p2), gap + math.hypot(u1 - p1, p2 - l2))


def _size_of(signed: Interval) -> Interval:
    low, high = signed
    if low <= 0 <= high:
        return Interval(0.0, min(1.0, max(-low, high)))
    return Interval(min(abs(low), abs(high)), min(1.0, max(abs(low), abs(high))))


def _folded(ratio: Interval) -> Interval:
    """Interval of the smaller one of a ratio and its inverse."""
    low, high = ratio
    if low <= 1 <= high:
        return Interval(min(low, 1 / high), 1.0)
    return ratio if high < 1 else Interval(1 / high, 1 / low)


def _sign_tail(more: int, fewer: int) -> float:
    """Probability of at least this difference if both signs are equally likely."""
    return float(scipy.special.bdtrc(more - 1, more + fewer, 0.5)) if more > 0 else 1.0


@functools.lru_cache(maxsize=64)
def normal(level: float) -> float:
    """The two-sided quantile of the normal distribution."""
    return float(scipy.special.ndtri((1 + level) / 2))


@functools.lru_cache(maxsize=4096)
def student(level: float, free: float) -> float:
    """The two-sided quantile of Student's distribution, by degrees of freedom."""
    return float(scipy.special.stdtrit(free, (1 + level) / 2))
