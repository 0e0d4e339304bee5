"""White-box canaries: how much of a release's epsilon an attacker who knows everything but one record can show."""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 1 - 1e-7


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """Exact epsilon(delta) of the Gaussian mechanism at sensitivity/sigma = mu (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        left = stats.norm.cdf(mu / 2 - epsilon / mu)
        right = np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(left - right - delta)

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * mu / 2 + 40 * mu + 1))


def shown_mu(scores: np.ndarray, others: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """A lower bound on mu, at that confidence, from the scores of two neighbours; for Gaussian trade-off curves.

    The threshold is chosen on one half of the trials and judged on the other; error rates are bounded above by
    Clopper and Pearson.
    """
    half = len(scores) // 2
    if scores[:half].mean() > others[:half].mean():
        scores, others = others, scores
    threshold = (np.median(scores[:half]) + np.median(others[:half])) / 2
    wrong = [int((scores[half:] > threshold).sum()), int((others[half:] <= threshold).sum())]
    trials = [len(scores) - half, len(others) - half]
    rates = [_most(k, n, confidence) for k, n in zip(wrong, trials, strict=True)]
    return float(-stats.norm.ppf(rates).sum())


def _most(errors: int, trials: int, confidence: float) -> float:
    return float(stats.beta.ppf(1 - (1 - confidence) / 2, errors + 1, trials - errors)) if errors < trials else 1.0
