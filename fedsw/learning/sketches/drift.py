"""Distances of generated samples, or another sketch's records, from a noised sketch, less the noise."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from fedsw.learning.models.labelled import CHUNK
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import BatchSums, Sketcher

CONFIDENCE = 0.95
LEAST_DOUBT = 1e-9
"""Below it the tails of floating-point noise would decide, not the records."""

_LARGE = 1e8
"""Above it the noncentral chi-squared law is normal to more digits than are read, and scipy's loses its own."""


@dataclass(frozen=True)
class Drift:
    """Distance between two sets of records, as their sketches measure it: between mean vectors, from 0 to sqrt(2).

    Attributes:
        distance: root of the unbiased estimate of its square, 0 if that is negative.
        records: an interval for the distance of the records themselves; only the noise is uncertain.
        populations: an interval for the distance of the laws that they were drawn from, independently.
        doubt: the least one minus confidence at which the laws are found to differ: the probability, at most, of
            so large a distance where they do not. At least LEAST_DOUBT; 1 where none shows it.
    """

    distance: float
    records: tuple[float, float]
    populations: tuple[float, float]
    doubt: float

    @property
    def differ(self) -> bool:
        """True if 0 is outside the interval of the laws' distance."""
        return self.populations[0] > 0


@dataclass(frozen=True)
class Means:
    """Mean vector of ``records``, of any shape, with independent Gaussian noise of one deviation in every number.

    The ``diameter`` is how far apart two records' vectors, of norm at most 1, can be.
    """

    numbers: Tensor
    deviation: float
    records: int
    diameter: float = 2.0


def drift(one: NoisedSketch, other: NoisedSketch, *, confidence: float = CONFIDENCE) -> Drift:
    """The distance between the records of two sketches of one law; see `drift_of_means`.

    Guarantee: post-processing of both sketches; one of them may be of public records, without noise.
    """
    if one.law != other.law or one.value.shape != other.value.shape:
        raise ValueError("the sketches are of different laws, and their numbers mean different things")
    return drift_of_means(_means(one), _means(other), confidence=confidence)


def drift_of_means(one: Means, other: Means, *, confidence: float = CONFIDENCE) -> Drift:
    """The distance between two mean vectors, with what the noise and the draw of the records leave open.

    With D the difference of the numbers, d that of the exact ones, t^2 the sum of both variances of the noise, and m
    numbers, |D|^2 / t^2 has the noncentral chi-squared law of m degrees of freedom with noncentrality |d|^2 / t^2:
    inverting it gives the exact interval for |d|. A mean of n independent vectors of norm at most 1, any two of
    them at most c apart, is within (1 + c sqrt(ln(1 / a) / 2)) / sqrt(n) of its expectation with probability 1 - a
    (McDiarmid), whatever their laws: that widens it to the populations' interval, with half of the doubt for the noise
    and a quarter for each side's records.

    Guarantee: post-processing of both. The confidence is that of each interval; ValueError if it is not between 0 and
    1.

    Sources: McDiarmid 1989; Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Theorem 7 (the same for MMD).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}; it lies between 0 and 1, as 0.95")
    doubt = 1 - confidence
    squared = float((one.numbers - other.numbers).square().sum())
    numbers, noise = one.numbers.numel(), math.hypot(one.deviation, other.deviation)
    low, high = _interval(squared, noise, numbers, doubt / 2)
    slack = _slack(one, other, doubt)
    return Drift(
        distance=math.sqrt(max(0.0, squared - numbers * noise**2)),
        records=_interval(squared, noise, numbers, doubt),
        populations=(max(0.0, low - slack), high + slack),
        doubt=_least_doubt(squared, noise, numbers, one, other),
    )


def _slack(one: Means, other: Means, doubt: float) -> float:
    """How far both sides' records may be from their laws, with a quarter of the doubt each."""
    root = math.sqrt(math.log(4 / doubt) / 2)
    return sum((1 + side.diameter * root) / math.sqrt(side.records) for side in (one, other))


def _least_doubt(squared: float, noise: float, numbers: int, one: Means, other: Means) -> float:
    """Where the lower end of the populations' interval leaves 0, by bisection of the doubt's logarithm."""

    def shown(doubt: float) -> bool:
        slack = _slack(one, other, doubt)
        if noise == 0:
            return math.sqrt(squared) > slack
        return _exceeds(squared / noise**2, numbers, (slack / noise) ** 2) < doubt / 4

    if not shown(1.0):
        return 1.0
    low, high = math.log(LEAST_DOUBT), 0.0
    if shown(LEAST_DOUBT):
        return LEAST_DOUBT
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if shown(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _exceeds(seen: float, numbers: int, shift: float) -> float:
    """Probability that a noncentral chi-squared number is larger."""
    if max(seen, shift) > _LARGE:
        return float(scipy.stats.norm.sf((seen - numbers - shift) / math.sqrt(2 * numbers + 4 * shift)))
    return float(scipy.stats.ncx2.sf(seen, numbers, shift))


def _interval(squared: float, noise: float, numbers: int, doubt: float) -> tuple[float, float]:
    """The distances (low, high) under which so large a squared difference is not too rare on either side."""
    if noise == 0:
        return math.sqrt(squared), math.sqrt(squared)
    seen = squared / noise**2
    if seen > _LARGE:
        shift = max(0.0, seen - numbers)
        error = float(scipy.stats.norm.isf(doubt / 2)) * math.sqrt(2 * numbers + 4 * shift)
        return noise * math.sqrt(max(0.0, shift - error)), noise * math.sqrt(shift + error)
    most = 4 * (seen + numbers) + 100 * math.log(1 / doubt) + 100  # far above what any noncentrality here can be

    def solved(wanted: float) -> float:
        if scipy.stats.ncx2.cdf(seen, numbers, 0.0) <= wanted:
            return 0.0
        law = functools.partial(scipy.stats.ncx2.cdf, seen, numbers)
        return float(scipy.optimize.brentq(lambda shift: law(shift) - wanted, 0.0, most, xtol=1e-6))

    return noise * math.sqrt(solved(1 - doubt / 2)), noise * math.sqrt(solved(doubt / 2))


def _means(sketch: NoisedSketch) -> Means:
    return Means(sketch.blocks, sketch.deviation, sketch.records)


@dataclass(frozen=True, eq=False)
class Target:
    """A noised sketch, in the precision and on the device of training, to compare generated samples with.

    The ``blocks`` (cells, F) are the sketch's sums over its records, ``proportions`` (cells,) of the generated law,
    ``weights`` (cells,) of every cell's squared distance; ``noise`` is the mean of the squared noise in the weighted
    blocks, which `distance_of_sums` takes off.
    """

    blocks: Tensor
    proportions: Tensor
    weights: Tensor
    noise: float

    @classmethod
    def of(cls, sketch: NoisedSketch, *, weights: Tensor | None = None, like: Tensor | None = None) -> Target:
        """The target of a sketch.

        Weights (cells,) are at least 0; None for 1, the distance between the laws of features and labels together. It
        has the precision and the device of a tensor `like` it, of any shape; None for float64 on the CPU. ValueError if
        the weights have another shape, are negative or all 0.
        """
        chosen = torch.ones(sketch.law.cells, dtype=torch.float64) if weights is None else weights.to(torch.float64)
        if chosen.shape != (sketch.law.cells,) or bool((chosen < 0).any()) or not float(chosen.sum()) > 0:
            raise ValueError(
                f"weights have shape {tuple(chosen.shape)}; give one number of at least 0 for each of the "
                f"{sketch.law.cells} cells, not all 0"
            )
        noise = sketch.deviation**2 * sketch.coordinates * float(chosen.sum())
        values = (sketch.blocks, sketch.proportions, chosen.to(sketch.value.device))
        blocks, proportions, cell_weights = values if like is None else (tensor.to(like) for tensor in values)
        return cls(blocks, proportions, cell_weights, noise)

    def at(self, places: Tensor, factors: Tensor) -> Target:
        """The target at some coordinates, places (m,), multiplied by factors (m,): see `Sketcher.some`."""
        blocks = self.blocks[:, places.to(self.blocks.device)] * factors.to(self.blocks)
        return Target(blocks, self.proportions, self.weights, self.noise)


def distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """Estimate without bias the weighted squared distance between the sketched records and a generated law, a scalar.

    With b_c the target's blocks, p_c its proportions and mu_c the mean vector that the generator has for cell c, it
    estimates sum_c weight_c |E b_c - p_c mu_c|^2 without bias, given as many samples of each cell as there are: the
    square of a mean is taken over pairs of *different* samples, and the mean of the squared noise is taken off. It may
    be negative. A square with its diagonal would pull small batches together. Cells without two samples are left out,
    so a batch has two or more of every cell of positive proportion. Differentiable in the samples' vectors.

    Guarantee: post-processing of the sketch. BatchNorm and whatever else mixes samples of a batch is allowed in the
    generator, since no record passes through it; samples of a batch then depend on each other a little, and what is
    estimated is the distance of the law that the batch's own statistics make.

    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Lemma 6 (U-statistic).
    """
    sums, squares, counts = batch.sums, batch.squares, batch.counts
    scale = target.proportions / counts.clamp(min=1)
    cross = (target.blocks * sums).sum(dim=1) * scale
    pairs = (sums.square().sum(dim=1) - squares) * scale.square() * counts / (counts - 1).clamp(min=1)
    terms = target.blocks.square().sum(dim=1) - 2 * cross + pairs
    present = (counts >= 2) | (target.proportions == 0)
    return (target.weights * torch.where(present, terms, 0.0)).sum() - target.noise


def drawn_distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """The same scalar for cells that were drawn at random, independently, with the target's proportions.

    Unbiased for any batch of two or more, whichever cells are in it: where there are more cells than a batch can hold
    twice.
    """
    sums, squares, m = batch.sums, batch.squares, batch.counts.sum()
    pairs = (sums.square().sum(dim=1) - squares) / (m * (m - 1))
    terms = target.blocks.square().sum(dim=1) - 2 * (target.blocks * sums).sum(dim=1) / m + pairs
    return (target.weights * terms).sum() - target.noise


def sketch_distance(
    sketch: NoisedSketch, features: Tensor, cells: Tensor, *, sketcher: Sketcher | None = None
) -> float:
    """Compute the squared distance of samples from a sketch's records, noise taken off: to choose generators by.

    Samples (m, p) in cells (m,) int64 are two or more of every cell that the sketch has. The sketcher is the sketch's
    law, drawn, if it is there already.
    """
    drawn = sketcher_like(sketch, sketcher, features)
    target = Target.of(sketch, like=features.to(torch.float64))
    with torch.no_grad():
        parts = [
            drawn.by_cell(*chunk) for chunk in zip(torch.split(features, CHUNK), torch.split(cells, CHUNK), strict=True)
        ]
        sums, squares, counts = (
            torch.stack([getattr(part, name).to(torch.float64) for part in parts]).sum(dim=0)
            for name in ("sums", "squares", "counts")
        )
        return float(distance_of_sums(target, BatchSums(sums, squares, counts)))


def sketcher_like(sketch: NoisedSketch, sketcher: Sketcher | None, like: Tensor) -> Sketcher:
    """A sketcher of its own for a sketch, where `like`, a tensor of any shape, is and of its precision.

    ValueError if the sketcher is not the sketch's.
    """
    drawn = sketch.law.drawn(like.dtype) if sketcher is None else copy.deepcopy(sketcher).to(like.dtype)
    if drawn.law != sketch.law or drawn.coordinates != sketch.coordinates:
        raise ValueError("the sketcher is not the sketch's: draw it from the same law, seed included")
    return drawn.to(like.device)
