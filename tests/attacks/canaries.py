"""White-box canaries: how much of a release's epsilon an attacker who knows everything but one record can show."""

from __future__ import annotations

import numpy as np

from fedsw.accounting.epsilons import gaussian_epsilon as epsilon_of_gaussian
from fedsw.audit import bounds

__all__ = ["CONFIDENCE", "epsilon_of_gaussian", "shown_mu"]

CONFIDENCE = 1 - 1e-7


def shown_mu(scores: np.ndarray, others: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """`fedsw.audit.bounds.shown_mu`, wrong as rarely as tests may be."""
    return bounds.shown_mu(scores, others, confidence)
