"""White-box canaries: how much of a release's epsilon an attacker who knows everything but one record can show."""

from __future__ import annotations

import numpy as np

from fedsw.audit.bounds import gaussian_mu, judged
from fedsw.privacy.accounting.epsilons import gaussian_epsilon as epsilon_of_gaussian

__all__ = ["CONFIDENCE", "epsilon_of_gaussian", "shown_mu"]

CONFIDENCE = 1 - 1e-7


def shown_mu(
    scores: np.ndarray, others: np.ndarray, confidence: float = CONFIDENCE, threshold: float | None = None
) -> float:
    """A lower bound on mu of a Gaussian trade-off curve from scores (n,), (m,) of two neighbours.

    Without a threshold that was fixed before the trials, the first half of them chooses it and which neighbour has the
    higher scores, and the other half alone is judged.
    """
    if threshold is None:
        first, other_first = scores[: len(scores) // 2], others[: len(others) // 2]
        threshold = float(np.median(first) + np.median(other_first)) / 2
        lower = np.mean(first) < np.mean(other_first)
        scores, others = scores[len(first) :], others[len(other_first) :]
        if lower:
            scores, others = others, scores
    return gaussian_mu(*judged(scores, others, threshold).rates(confidence))
