"""Private selection: the best of a random number of runs, and what its release costs.

Source: docs/guarantees.md, "Private selection"; Papernot and Steinke 2022, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedsw.accounting.stated import Renyi

_MOST = 10**7


@dataclass(frozen=True)
class Repetitions:
    """The truncated negative binomial law of a number K >= 1 of runs, drawn before the first and kept secret.

    P(K = k) is in proportion to (1 - gamma)^k times the product of (l + eta) / (l + 1) for l = 0 .. k-1 (for eta = 0:
    to (1 - gamma)^k / k). eta = 1 is the geometric law, eta = 0 the logarithmic one, whose selection costs less and
    whose K is more spread.

    Attributes:
        eta: > -1.
        gamma: in (0, 1).

    Raises:
        ValueError: if a number is out of range.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not self.eta > -1.0 or not math.isfinite(self.eta):
            raise ValueError(f"eta is {self.eta}; it must be above -1 and finite")
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma is {self.gamma}; it lies strictly between 0 and 1")

    @property
    def mean(self) -> float:
        """E K."""
        odds = (1 - self.gamma) / self.gamma
        if self.eta == 0.0:
            return odds / -math.log(self.gamma)
        return self.eta * odds / -math.expm1(self.eta * math.log(self.gamma))

    def masses(self) -> Iterator[float]:
        """P(K = 1), P(K = 2), ..."""
        log = math.log(self.gamma)
        first = 1 / -log if self.eta == 0.0 else self.eta / math.expm1(-self.eta * log)
        mass = first * (1 - self.gamma)
        for k in range(1, _MOST):
            yield mass
            mass *= (1 - self.gamma) * (k + self.eta) / (k + 1)

    def draw(self, uniform: float) -> int:
        """K by inversion of a uniform number in [0, 1): secret, and independent of everything else."""
        left = uniform
        for k, mass in enumerate(self.masses(), start=1):
            left -= mass
            if left < 0.0 or (k > 10 and mass < 1e-18):
                return k
        return _MOST


def with_mean(mean: float, eta: float = 0.0) -> Repetitions:
    """The law with that E K, by bisection over gamma.

    Raises:
        ValueError: if the mean is not above 1, or above a million.
    """
    if not 1.0 < mean <= 1e6:
        raise ValueError(f"the expected number of runs is {mean:g}; it must be above 1, and at most a million")
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if Repetitions(eta, middle).mean > mean else (low, middle)
    return Repetitions(eta, high)


def worst_curve(curves: Iterable[Renyi]) -> Renyi:
    """The divergences of a run whose settings are drawn at random, by a law that looks at no record: the largest.

    A divergence of mixtures with the same weights is at most the largest of its parts.
    """
    found = [dict(zip(curve.orders, curve.divergences, strict=True)) for curve in curves]
    orders = sorted(set.intersection(*(set(own) for own in found)))
    return Renyi(tuple(orders), tuple(max(own[order] for own in found) for order in orders))


def selected(run: Renyi, law: Repetitions) -> Renyi:
    """The divergences of the best of K runs, of which nothing else is released, not even K.

    Guarantee: let each run release its score with everything else that is released of it, and have these divergences,
    in both orders of the neighbours. Then what is released of the run with the best score has the divergences that are
    returned: at order a, with b ranging over the orders of the run,

        D(a) + (1 + eta) min_b ((1 - 1/b) D(b) + ln(1/gamma) / b) + ln E K / (a - 1).

    Source: docs/guarantees.md, "Private selection".
    """
    orders, divergences = np.array(run.orders), np.array(run.divergences)
    inside = float(((1 - 1 / orders) * divergences - math.log(law.gamma) / orders).min())
    found = divergences + (1 + law.eta) * inside + math.log(law.mean) / (orders - 1)
    return Renyi(run.orders, tuple(found.tolist()))
