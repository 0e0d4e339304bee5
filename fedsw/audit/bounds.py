"""From the scores of two neighbours to a lower bound on epsilon: Clopper and Pearson, then the mechanism's curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedsw.accounting import Step, lower_epsilon
from fedsw.accounting.accountants import gaussian_epsilon

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """A test between two neighbours, judged: "the first" above the threshold, "the second" at or below it.

    Attributes:
        threshold: of the score.
        misses: trials of the first at or below it.
        trials: of the first.
        alarms: trials of the second above it.
        other_trials: of the second.
    """

    threshold: float
    misses: int
    trials: int
    alarms: int
    other_trials: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """Upper bounds (false positive rate, false negative rate) that hold together at that confidence."""
        each = 1 - (1 - confidence) / 2
        return rate_at_most(self.alarms, self.other_trials, each), rate_at_most(self.misses, self.trials, each)


def judged(scores: Scores, others: Scores, threshold: float | None = None) -> Attack:
    """Count the errors of a threshold test.

    Args:
        scores: (n,) of the first neighbour, which tend to be higher.
        others: (m,) of the second.
        threshold: fixed before the trials were drawn; without it, it is chosen on the first half of the trials (midway
            between the medians) and judged on the other half alone.

    Raises:
        ValueError: if there are too few trials to judge anything.
    """
    if threshold is None:
        half, other_half = len(scores) // 2, len(others) // 2
        if min(half, other_half) < 1:
            raise ValueError(f"{len(scores)} and {len(others)} trials; half of them choose a threshold: give 2 or more")
        threshold = float(np.median(scores[:half]) + np.median(others[:other_half])) / 2
        scores, others = scores[half:], others[other_half:]
    if min(len(scores), len(others)) < 1:
        raise ValueError(f"{len(scores)} and {len(others)} trials; at least one of each neighbour is needed")
    misses, alarms = int((scores <= threshold).sum()), int((others > threshold).sum())
    return Attack(threshold, misses, len(scores), alarms, len(others))


def rate_at_most(events: int, trials: int, confidence: float) -> float:
    """The largest rate at which so few events in so many trials are not too rare: one-sided, exact.

    Source: Clopper and Pearson 1934.

    Raises:
        ValueError: if the count is not between 0 and the trials, or the confidence not in (0, 1).
    """
    _require(events, trials, confidence)
    return float(stats.beta.isf(1 - confidence, events + 1, trials - events)) if events < trials else 1.0


def rate_at_least(events: int, trials: int, confidence: float) -> float:
    """The smallest rate at which so many events in so many trials are not too rare; see `rate_at_most`."""
    _require(events, trials, confidence)
    return float(stats.beta.ppf(1 - confidence, events, trials - events + 1)) if events > 0 else 0.0


def gaussian_mu(false_positive: float, false_negative: float) -> float:
    """The mu of the Gaussian trade-off curve through a point: every smaller mu is contradicted by the point.

    A test of N(mu, 1) against N(0, 1) has Phi^-1(1 - alpha) + Phi^-1(1 - beta) <= mu. 0 where the point shows nothing.

    Source: Dong, Roth, Su 2022, Equation (6).
    """
    if false_positive + false_negative >= 1.0:
        return 0.0
    return float(stats.norm.isf(false_positive) + stats.norm.isf(false_negative))


def shown_mu(scores: Scores, others: Scores, confidence: float, threshold: float | None = None) -> float:
    """A lower bound on mu, at that confidence, from the scores of two neighbours; for Gaussian trade-off curves.

    See `judged`; without a threshold either neighbour may have the higher scores.
    """
    if threshold is None and np.mean(scores[: len(scores) // 2]) < np.mean(others[: len(others) // 2]):
        scores, others = others, scores
    return gaussian_mu(*judged(scores, others, threshold).rates(confidence))


def shown_epsilon(mu: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon(delta) of so many steps that include the record at a rate and then move by mu, the worse direction.

    One step is (1 - p) N(0, 1) + p N(mu, 1) against N(0, 1); more mu, or a higher rate, costs more: the pair of less is
    made from it by added noise, or by exchanging a share of its outcomes for noise about 0. So lower bounds on mu and
    on the rate, which hold together at some confidence, give one on epsilon at that confidence.

    Source: docs/guarantees.md, "Attacks".
    """
    if mu <= 0.0 or rate <= 0.0 or steps < 1:
        return 0.0
    if rate == 1.0:
        return gaussian_epsilon(math.sqrt(steps) * mu, delta)
    return lower_epsilon({Step(rate, mu): steps}, delta)


def epsilon_of_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """The largest epsilon that a point contradicts at delta, whatever the mechanism's curve is.

    (epsilon, delta)-DP means 1 - beta <= e^epsilon alpha + delta, and the same with both exchanged.

    Source: Kairouz, Oh, Viswanath 2015.
    """
    found = 0.0
    for alpha, beta in ((false_positive, false_negative), (false_negative, false_positive)):
        if 1 - delta - beta > alpha:
            found = max(found, math.log((1 - delta - beta) / alpha) if alpha > 0 else math.inf)
    return found


def _require(events: int, trials: int, confidence: float) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"{events} events in {trials} trials; there is at least one trial, and no more events")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")
