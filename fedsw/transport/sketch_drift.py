"""How far apart the records behind two noised sketches are, with intervals that account for the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedsw.transport.noised_sketches import NoisedSketch

CONFIDENCE = 0.95

_LARGE = 1e8
"""Above it the noncentral chi-squared law is normal to more digits than anybody reads, and scipy's loses its own."""


@dataclass(frozen=True)
class Drift:
    """Distance between two sets of records, as their sketches measure it: between mean vectors, from 0 to sqrt(2).

    Attributes:
        distance: root of the unbiased estimate of its square, 0 where that is negative.
        records: an interval for the distance of the records themselves; only the noise is uncertain.
        populations: an interval for the distance of the laws that they were drawn from, independently.
        differ: whether the laws are found to differ, at that confidence.
    """

    distance: float
    records: tuple[float, float]
    populations: tuple[float, float]

    @property
    def differ(self) -> bool:
        """Whether 0 is outside the interval of the laws' distance."""
        return self.populations[0] > 0


def drift(one: NoisedSketch, other: NoisedSketch, *, confidence: float = CONFIDENCE) -> Drift:
    """The distance between the records of two sketches of one law.

    With D the difference of the sketches' blocks, d that of the exact ones, t^2 = s_1^2 / n_1^2 + s_2^2 / n_2^2 the
    noise of a number, and m numbers, |D|^2 / t^2 has the noncentral chi-squared law of m degrees of freedom with
    noncentrality |d|^2 / t^2: inverting it gives the exact interval for |d|. A mean of n independent vectors of norm at
    most 1 is within (1 + sqrt(2 ln(1 / a))) / sqrt(n) of the law's mean with probability 1 - a (McDiarmid), whatever
    the law: that widens it to the populations' interval, with half of the doubt for the noise and a quarter for each
    side's records.

    Guarantee: post-processing of both sketches.

    Args:
        one, other: of the same law; one of them may be of public records, without noise.
        confidence: of each interval.

    Raises:
        ValueError: if laws differ, or the confidence is not between 0 and 1.

    Sources: McDiarmid 1989; Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Theorem 7 (the same for MMD).
    """
    if one.law != other.law or one.value.shape != other.value.shape:
        raise ValueError("the sketches are of different laws, and their numbers mean different things")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}; it lies between 0 and 1, as 0.95")
    doubt = 1 - confidence
    squared = float((one.blocks - other.blocks).square().sum())
    numbers, noise = one.blocks.numel(), math.hypot(one.deviation, other.deviation)
    low, high = _interval(squared, noise, numbers, doubt / 2)
    slack = sum((1 + math.sqrt(2 * math.log(4 / doubt))) / math.sqrt(each.records) for each in (one, other))
    return Drift(
        distance=math.sqrt(max(0.0, squared - numbers * noise**2)),
        records=_interval(squared, noise, numbers, doubt),
        populations=(max(0.0, low - slack), high + slack),
    )


def _interval(squared: float, noise: float, numbers: int, doubt: float) -> tuple[float, float]:
    """The distances (low, high) under which so large a squared difference is not too rare on either side."""
    if noise == 0:
        return math.sqrt(squared), math.sqrt(squared)
    from scipy.optimize import brentq
    from scipy.stats import ncx2, norm

    seen = squared / noise**2
    if seen > _LARGE:
        shift = max(0.0, seen - numbers)
        error = float(norm.isf(doubt / 2)) * math.sqrt(2 * numbers + 4 * shift)
        return noise * math.sqrt(max(0.0, shift - error)), noise * math.sqrt(shift + error)
    most = 4 * (seen + numbers) + 100 * math.log(1 / doubt) + 100  # far above what any noncentrality here can be

    def solved(wanted: float) -> float:
        if ncx2.cdf(seen, numbers, 0.0) <= wanted:
            return 0.0
        return float(brentq(lambda shift: ncx2.cdf(seen, numbers, shift) - wanted, 0.0, most, xtol=1e-6))

    return noise * math.sqrt(solved(1 - doubt / 2)), noise * math.sqrt(solved(doubt / 2))


def exact_sketch(sketch: NoisedSketch, sums: torch.Tensor, records: int) -> NoisedSketch:
    """The sums (cells, F + 1) of so many *public* records under the law of a sketch, to compare it with."""
    return NoisedSketch(sketch.law, sums, 0.0, records)
