"""Noise that hides one record: how much a budget needs, and the numbers themselves."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from fedsw.accounting.profiles import gaussian_profile
from fedsw.text import upward

Calibration = Literal["analytic", "rco"]
Mechanism = Literal["gaussian", "laplace"]

_ROUNDING = 1e-9  # relative, on every scale: far above the rounding of the formulas, far below what anybody notices
_LEAST_DELTA = 1e-100  # below it the tail of the normal law leaves double precision's range


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float, calibration: Calibration = "analytic") -> float:
    """Standard deviation of Gaussian noise that makes one release (epsilon, delta)-private.

    Guarantee: with noise N(0, sigma^2 I) on a vector that moves by at most `sensitivity` in l2 norm, the release is
    (epsilon, delta)-differentially private under the relation that the sensitivity is for. "analytic" is the least
    such sigma, to about 1e-9 relative and never below it; "rco" is
    (c + sqrt(c^2 + epsilon)) / (epsilon sqrt 2) * sensitivity with c^2 = ln(2 / (sqrt(16 delta + 1) - 1)), which is
    larger. Proofs: docs/guarantees/slices.md.

    Sources: Balle and Wang 2018, Theorem 8 (analytic); RCO, equation (4), after Zhao et al. 2019.

    Raises:
        ValueError: if epsilon or the sensitivity is not positive and finite, delta is outside [1e-100, 1) (for "rco":
            [1e-100, 1/2)), or the calibration is unknown.
    """
    _check(epsilon, sensitivity)
    if not _LEAST_DELTA <= delta < 1.0:
        raise ValueError(
            f"delta is {delta}; Gaussian noise needs delta in [{upward(_LEAST_DELTA)}, 1), well below 1/n."
        )
    if calibration == "rco":
        if delta >= 0.5:
            raise ValueError(f"delta is {delta}; calibration 'rco' needs delta below 1/2. Use 'analytic'.")
        c_squared = math.log((math.sqrt(16 * delta + 1) + 1) / (8 * delta))  # the same without cancellation
        multiplier = (math.sqrt(c_squared) + math.sqrt(c_squared + epsilon)) / (epsilon * math.sqrt(2))
    elif calibration == "analytic":
        multiplier = _least_multiplier(epsilon, delta)
    else:
        raise ValueError(f"calibration is {calibration!r}; choose one of {', '.join(get_args(Calibration))}.")
    return multiplier * sensitivity * (1 + _ROUNDING)


def laplace_scale(epsilon: float, sensitivity: float) -> float:
    """Scale b of Laplace noise, of density exp(-|x| / b) / 2b, that makes one release epsilon-private.

    Guarantee: on a vector that moves by at most `sensitivity` in l1 norm the release is (epsilon, 0)-differentially
    private. Source: Dwork, McSherry, Nissim, Smith 2006.

    Raises:
        ValueError: if epsilon or the sensitivity is not positive and finite.
    """
    _check(epsilon, sensitivity)
    return sensitivity / epsilon * (1 + _ROUNDING)


def _least_multiplier(epsilon: float, delta: float) -> float:
    """Least sigma / sensitivity whose exact delta(epsilon) is at most delta: the upper end of a bisection."""
    at = torch.tensor(epsilon, dtype=torch.float64)

    def meets(multiplier: float) -> bool:
        # the absolute error of the profile, a few 1e-16, matters where its tail is not used: for large delta
        slack = 1e-12 * delta + (1e-14 if delta > 1e-3 else 0.0)
        return float(gaussian_profile(at, 1 / multiplier)) <= delta - slack

    high = 1.0
    while not meets(high):
        high *= 2
    low = high / 2
    while meets(low):
        low, high = low / 2, low
    while high > (1 + 1e-10) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _check(epsilon: float, sensitivity: float) -> None:
    if not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be positive and finite (inf would mean no noise).")
    if not 0.0 < sensitivity < math.inf:
        raise ValueError(f"the sensitivity is {sensitivity}; it must be positive and finite: clip the records first.")
