"""Calibration of a classifier by noised counts of its scores: a scale and shifts of its logits, nothing but arithmetic.

Private models are too sure of themselves, since noise spreads their logits, and clipped gradients draw them to one
side. Of noised counts of records by bin of probability and class (`fedsw.learning.tasks.score_counts`) follows by how
much, with the noise known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw.learning.tasks.score_counts import COARSE, TAIL, ScoreCounts

Array = NDArray[np.float64]

_MOST = 18.0
"""The logit at which the outermost bins are taken to end."""

_SCALES = np.exp(np.linspace(math.log(0.02), math.log(2.0), 40))[:, None, None]
_RATES = np.linspace(0.01, 0.99, 50)[:, None]
_LEAST_SHARE = 0.005  # keeps the logit of a class finite, whatever noise does to its count
TELLS = -1.0
"""The least log evidence that a model tells records apart: below it the class shares are predicted. The model was
trained on the records, so counts must speak against it. Two in three models without signal are given up then, on
simulated counts (`python -m benchmarks.rivals.shares_alone`). On 19 sets (`python -m benchmarks.rivals.probabilities`)
a limit of 1 cost .018 of AUC and .003 to .013 of log loss more, which was above the class shares' as often."""
_SPREAD = 0.8
"""Before counts are seen: the standard deviation of a scale's logarithm."""
_WITHIN = 4
"""Places of a bin among which its records are taken to lie."""
_STEPS = 60  # of a bisection, which then ends at the last bit of a float64; of Newton's method at most
_STILL = 1e-12
"""The longest step of a scale and a shift at which they are at rest."""


@dataclass(frozen=True)
class CalibrationRule:
    """How a calibration follows from counts; a release has its rule's number in `RULES`, by which an audit repeats it.

    Before counts are seen the scale is about ``usual``, of two classes or of more, and the intercept of a class has
    standard deviation ``shifted`` about where the model has it, one of the ``shifts``. Of two classes these were
    chosen on six sets, checked on three others, and came out again. Of more on eight, where no class shares were
    predicted: a scale of .4 is too small where classes are far apart, and shifts of .7 follow noise, which costs
    accuracy (`python -m benchmarks.rivals.probabilities`).

    Records lie in bins between ``edges`` as the ``laws`` have it that all bins' totals tell of, or evenly. The class
    shares are predicted below `TELLS` if the rule ``judges``.
    """

    edges: tuple[float, ...] = COARSE
    shifts: int = 193
    usual: tuple[float, float] = (0.4, 0.9)
    shifted: tuple[float, float] = (0.7, 0.4)
    laws: bool = True
    judges: bool = True

    @cached_property
    def tried(self) -> Array:
        """Shifts of the grid (1, shifts, 1)."""
        return np.linspace(-4.8, 4.8, self.shifts)[None, :, None]

    def priors(self, *, binary: bool) -> tuple[Array, Array]:
        """Probabilities of scales and of shifts before counts are seen, of two classes (``binary``) or of more."""
        usual, shifted = self.usual[not binary], self.shifted[not binary]
        scales = _shares_of(-((np.log(_SCALES[:, 0, 0] / usual) / _SPREAD) ** 2) / 2)
        return scales, _shares_of(-((self.tried[0, :, 0] / shifted) ** 2) / 2)

    @cached_property
    def _ends(self) -> Array:
        """Logits (bins + 1,) at which bins end."""
        return np.array([-_MOST, *(math.log(edge / (1 - edge)) for edge in self.edges[1:-1]), _MOST])

    @cached_property
    def places(self) -> Array:
        """Logits (bins, places) of records within bins."""
        return self._ends[:-1, None] + np.diff(self._ends)[:, None] * (np.arange(_WITHIN) + 0.5) / _WITHIN

    @cached_property
    def _by_laws(self) -> Array:
        """Parts of records at every place (laws, bins, places) by logistic laws of logits, of many means and widths."""
        cuts = np.append(self.places - np.diff(self._ends)[:, None] / (2 * _WITHIN), math.inf)
        cuts[0] = -math.inf
        widths = np.exp(np.linspace(math.log(0.1), math.log(4.0), 24))[:, None]
        chances = _sigmoid((cuts - np.linspace(-9.0, 9.0, 73)[:, None, None]) / widths)
        return np.diff(chances).reshape(-1, *self.places.shape)

    def within_bins(self, total: Array, variance: Array, n: float) -> Array:
        """Parts (bins, places) of each bin's records at its places: the mean of what logistic laws say of them.

        Laws count by how likely they make the noised totals (bins,), which have this variance. Where most records are
        in one bin they lie where the others point to: at its middle they would be taken for more of one class than
        they are.
        """
        if not self.laws:
            return np.full_like(self.places, 1 / _WITHIN)
        expected = n * self._by_laws.sum(axis=2)
        spread = variance + expected + 1
        likely = _shares_of(-0.5 * ((total - expected) ** 2 / spread + np.log(spread)).sum(axis=1))
        mixed = np.einsum("l,lbw->bw", likely, self._by_laws) + 1e-9
        return np.asarray(mixed / mixed.sum(axis=1, keepdims=True))

    def middles(self, within: Array) -> Array:
        """Mean logits (..., bins) of records of which such parts (..., bins, places) are at their bins' places."""
        return np.asarray((within * self.places).sum(axis=-1))


@dataclass(frozen=True)
class LogLoss:
    """The mean log loss (nats) of calibrated probabilities, and of the class shares, by noised counts.

    ``low`` and ``high`` are two standard deviations of noise and of the draw of records about ``value``.
    """

    value: float
    low: float
    high: float
    shares: float


@dataclass(frozen=True)
class LogitCalibration:
    """Logits become `scale` times themselves and `shift` (d,) more: of class 1 of two, or of each of more classes.

    The scale is 0, and the shift that of the class shares only, where the log `evidence` that the model tells records
    apart is below `TELLS`. The ``rule`` is a number of `RULES`.
    """

    scale: float
    shift: tuple[float, ...]
    log_loss: LogLoss
    evidence: float
    rule: int

    def logits(self, raw: Tensor) -> Tensor:
        """Calibrated logits of those that the rounds' model returns: (n, 1) of class 1 of two, or (n, classes)."""
        return self.scale * raw + raw.new_tensor(self.shift)

    def of_positive(self, probability: Array, positive: int) -> Array:
        """Calibrated probabilities (n,) of the positive one of two classes, for those of the rounds' model."""
        least = np.finfo(np.float64).tiny
        logits = np.log(np.maximum(probability, least)) - np.log(np.maximum(1 - probability, least))
        shift = self.shift[0] if positive == 1 else -self.shift[0]
        return np.asarray(_sigmoid(self.scale * logits + shift))

    def said(self) -> dict[str, Any]:
        """Plain values for a file."""
        loss = self.log_loss
        return {
            "scale": self.scale,
            "shift": list(self.shift),
            "log_loss": {"value": loss.value, "low": loss.low, "high": loss.high},
            "log_loss_of_shares": loss.shares,
            "evidence": self.evidence,
            "rule": self.rule,
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> LogitCalibration:
        """The calibration behind `said`; LookupError, TypeError, ValueError for one that is damaged."""
        loss = content["log_loss"]
        value, low, high = (float(loss[name]) for name in ("value", "low", "high"))
        shift = tuple(float(number) for number in content["shift"])
        of_shares = LogLoss(value, low, high, float(content["log_loss_of_shares"]))
        evidence = float(content.get("evidence", math.inf))
        return cls(float(content["scale"]), shift, of_shares, evidence, rule_of(content))


RULES = (
    CalibrationRule(
        (0.0, TAIL, 1 / 32, 7 / 32, 25 / 32, 31 / 32, 1 - TAIL, 1.0), 49, (0.4, 0.4), (0.7, 0.7), False, False
    ),
    CalibrationRule(),
)
"""The rules of calibrations on file, the last that of a release from now on."""


def rule_of(content: Mapping[str, Any]) -> int:
    """The number of the rule that what is on file was made by; those before numbers differ in `evidence`."""
    return int(content.get("rule", "evidence" in content))


def calibration_of(
    counts: ScoreCounts, values: Array, sigma: float, records: float | None, number: int = len(RULES) - 1
) -> LogitCalibration:
    """The calibration by noised counts (groups, width) of `records` records, each with noise sigma.

    Of records that are None, since their number is secret, the noised counts say how many they are.

    For each counted class the posterior of p = sigmoid(a z + b + c) is computed on a grid of (a, c) from what its bins
    hold beyond p, with noise of known variance. In a bin z is where logits lie by the law that all bins' totals
    tell of. Of two classes b is 0: what noise hides leaves their boundary as it is. Several have one b, at which they
    add up to 1 on average, one a, and each its own c. The answer is the scale and shift of least expected log loss
    under that posterior; of several classes the mean scale, and the shifts that give each class's probability its own
    intercept. Where the counts do not bear out that probabilities say anything of a record's class, they become the
    class shares. All is by the rule of that ``number`` in `RULES`.

    Guarantee: post-processing of the counts. Source: docs/guarantees/calibration.md.
    """
    rule = RULES[number]
    by_bin = values.reshape(counts.groups, counts.counted, counts.bins, 2).sum(axis=0)
    firsts = np.searchsorted(np.array(counts.edges), np.array(rule.edges[:-1]))
    merged = np.add.reduceat(by_bin, firsts, axis=1).transpose(0, 2, 1)  # (k, 2, coarse bins)
    variance = sigma**2 * counts.groups * np.diff([*firsts.tolist(), counts.bins])
    n = max(1.0, float(merged.sum()) / counts.counted if records is None else records)
    of_number = 0.0 if records is not None else 2 * float(variance.sum()) / counts.counted  # its variance
    merged = merged + (n - merged.sum(axis=(1, 2), keepdims=True)) / merged[0].size
    total = np.clip(merged.sum(axis=1), 0.0, n)
    sums = total.sum(axis=1, keepdims=True)
    parts = np.where(sums > 0, total / np.maximum(sums, 1e-300), 1 / total.shape[1])  # of records in each bin
    binary = counts.counted == 1
    lying = np.array([rule.within_bins(one.sum(axis=0), 2 * variance, n) for one in merged])
    base = np.zeros_like(_SCALES) if binary else _intercepts(parts, rule.middles(lying))
    of_scales, of_shifts = rule.priors(binary=binary)
    seen = [
        _ClassPosterior(rule, one, variance, n, part, base, of_shifts, within)
        for one, part, within in zip(merged, parts, lying, strict=True)
    ]
    by_scale = np.log(of_scales) + sum(one.by_scale for one in seen)
    evidence = float(np.logaddexp.reduce(by_scale) - sum(one.by_rate for one in seen))
    fits = [one.fit(_shares_of(by_scale)) for one in seen]
    if rule.judges and evidence < TELLS:
        whole = 1.0 if binary else sum(fit.share for fit in fits)
        fits = [fit.of_shares(whole) for fit in fits]
    loss, scale = _log_loss(fits, n, of_number, binary=binary), float(np.mean([fit.scale for fit in fits]))
    if binary:
        (shift,) = (fit.shift if counts.positive in (1, None) else -fit.shift for fit in fits)
        return LogitCalibration(scale, (shift,), loss, evidence, number)
    return LogitCalibration(scale, tuple(-float(np.logaddexp(0.0, -fit.shift)) for fit in fits), loss, evidence, number)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Scale and shift of one class's logit against the rest, with what they were found from.

    The ``middles`` (bins,) are mean logits of bins.
    """

    scale: float
    shift: float
    counts: Array
    variance: Array
    share: float
    middles: Array

    def of_shares(self, total: float) -> _Fit:
        """The fit that gives every record the class's part of the shares, which together are that total."""
        share = self.share / total
        return replace(self, scale=0.0, shift=math.log(share / (1 - share)), share=share)


@dataclass(eq=False)
class _ClassPosterior:
    """The posterior of scale and shift by one class's noised counts (2, bins) with noise variances (bins,).

    Of n records these `parts` (bins,) are in the bins, and `within` (bins, places) of a bin's at its places; `base`
    (scales, 1, 1) is the intercept before counts are seen, when shifts from it have the probabilities `of_shifts`.
    """

    rule: CalibrationRule
    counts: Array
    variance: Array
    n: float
    parts: Array
    base: Array
    of_shifts: InitVar[Array]
    within: Array

    def __post_init__(self, of_shifts: Array) -> None:
        n, seen = self.n, float(np.clip(self.counts[1].sum() / self.n, 0.0, 1.0))
        spread = math.sqrt(float(self.variance.sum()) / 2 / n**2 + seen * (1 - seen) / n + 1 / n**2)
        self._share = float(np.clip(_within(seen, spread), _LEAST_SHARE, 1 - _LEAST_SHARE))
        likely = self._likely(self._chances(self.rule.middles(self.within))) + np.log(of_shifts)
        self._of_shifts = _shares_of(likely, axis=1)
        self.by_scale: Array = np.logaddexp.reduce(likely, axis=1)
        self.by_rate = float(np.logaddexp.reduce(self._likely(_RATES)) - math.log(len(_RATES)))

    def _likely(self, p: Array) -> Array:
        """Log likelihood of what bins hold beyond chances (..., bins), or (..., 1) alike in all."""
        residual = self.counts[1] - p * self.counts.sum(axis=0)
        spread = self.variance * (p**2 + (1 - p) ** 2) + self.n * self.parts * p * (1 - p) + 1
        return np.asarray(-0.5 * (residual**2 / spread + np.log(spread)).sum(axis=-1))

    def _chances(self, logits: Array) -> Array:
        """p at logits (m,) by scale and shift: (scales, shifts, m)."""
        return _sigmoid(_SCALES * logits + self.base + self.rule.tried)

    def fit(self, of_scales: Array) -> _Fit:
        """The scale and shift of least expected log loss, where scales have these probabilities."""
        places, weights = self.rule.places.ravel(), _WITHIN * (self.parts[:, None] * self.within).ravel() + 1e-3
        wanted = np.einsum("a,ac,acn->n", of_scales, self._of_shifts, self._chances(places))
        scale, shift = _nearest(places, wanted, weights)
        return _Fit(scale, shift, self.counts, self.variance, self._share, self.rule.middles(self.within))


def _intercepts(parts: Array, middles: Array) -> Array:
    """The intercept (scales, 1, 1) of each scale at which all k classes' p add up to 1 on average.

    Of each class these `parts` (k, bins) of records are in bins with these `middles`. By bisection: logits of one of
    several classes are far from 0, and the share at their mean is not the mean of p.
    """
    most = _MOST * (1 + float(_SCALES.max()))
    low, high = np.full_like(_SCALES, -most), np.full_like(_SCALES, most)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        chances = _sigmoid(_SCALES[..., None] * middles + middle[..., None])
        above = (chances * parts).sum(axis=(2, 3))[..., None] > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray((low + high) / 2)


def _shares_of(logarithms: Array, axis: int = 0) -> Array:
    """Numbers in proportion to the exponentials of these along an axis, that add up to 1."""
    numbers = np.exp(logarithms - logarithms.max(axis=axis, keepdims=True))
    return np.asarray(numbers / numbers.sum(axis=axis, keepdims=True))


def _within(seen: float, spread: float) -> float:
    """The mean of a number in [0, 1], all alike before, that was seen with normal noise of this spread."""
    low, high = -seen / spread, (1 - seen) / spread
    heights = math.exp(-(low**2) / 2) - math.exp(-(high**2) / 2)
    between = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return seen + spread * heights / math.sqrt(2 * math.pi) / between


def _nearest(logits: Array, wanted: Array, weights: Array) -> tuple[float, float]:
    """Scale and shift of least log loss to probabilities (m,) at logits, weighed: a convex problem, by Newton."""
    weights = weights / weights.sum()
    design, solution = np.stack([logits, np.ones_like(logits)], axis=1), np.zeros(2)

    def loss(at: Array) -> float:
        tried = design @ at
        return float(weights @ (np.logaddexp(0.0, tried) - wanted * tried))

    for _ in range(_STEPS):
        p = _sigmoid(design @ solution)
        slope = design.T @ (weights * (p - wanted))
        curved = (design * (weights * p * (1 - p))[:, None]).T @ design + 1e-12 * np.eye(2)
        step = np.linalg.solve(curved, slope)
        while loss(solution - step) > loss(solution) and np.abs(step).max() > _STILL:
            step = step / 2
        solution = solution - step
        if np.abs(step).max() <= _STILL:
            break
    return float(max(solution[0], 1e-3)), float(solution[1])


def _log_loss(fits: list[_Fit], n: float, of_number: float, *, binary: bool) -> LogLoss:
    """The log loss by noised counts: of every class the records that are of it, of two classes the others, too.

    A noised n has the variance `of_number`, and errors of counts and of n never add up to more than their squares do.
    """
    value = square = variance = shares = 0.0
    for fit in fits:
        logits = fit.scale * fit.middles + fit.shift
        of_class_itself, of_others = (1, -logits, fit.share), (0, logits, 1 - fit.share)
        for of_class, against, share in (of_class_itself, of_others) if binary else (of_class_itself,):
            losses = np.logaddexp(0.0, against)
            value += float(fit.counts[of_class] @ losses) / n
            square += float(fit.counts[of_class] @ losses**2) / n
            variance += float(fit.variance @ losses**2) / n**2
            shares -= float(fit.counts[of_class].sum()) / n * math.log(share)
    band = 2 * math.sqrt(variance + of_number * (value / n) ** 2 + max(0.0, square - value**2) / n)
    return LogLoss(value, value - band, value + band, shares)


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -60.0, 60.0))))
