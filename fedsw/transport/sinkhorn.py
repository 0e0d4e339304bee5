"""Entropic plans between uniform marginals: Sinkhorn's iterations, over-relaxed, with scalings that cannot overflow."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_EVERY = 8  # iterations between two looks at how fast the error falls
_LARGEST_OMEGA = 1.97
_WORSE = 30.0  # times the least error so far: from there on over-relaxation is given up
_FAR = 1e100  # scalings beyond it, or below its inverse, go into the kernel


def entropic_plan(costs: Array, regulariser: float, tolerance: float, iterations: int) -> Array:
    """The plan that minimises <plan, costs> + regulariser KL(plan | product of uniform marginals).

    Scalings u, v of the kernel exp(-costs / regulariser) are updated in turn until the plan's rows add up to uniform
    ones within the tolerance; the columns do after every plain update. An over-relaxed update takes log u a factor
    omega as far as a plain one. Where plain iterations shrink the error by eta each, omega = 2 / (1 + sqrt(1 - eta))
    shrinks it by omega - 1 each: the number of iterations is about the square root of the plain one. omega starts at 1
    and grows with what the errors say of eta. Where the error grows instead, plain iterations follow for good, and
    these always converge.

    Args:
        costs: (n, m), finite.
        regulariser: positive.
        tolerance: l1 distance from uniform of the plan's row sums at which iterations stop.
        iterations: most iterations, at least 1.

    Returns:
        The plan (n, m). Its column sums are uniform but for rounding; whether its rows are, the caller measures. It is
        not finite where a row or a column of the kernel vanished.

    Source: Cuturi 2013; Schmitzer 2019 (absorption); Thibault, Chizat, Dossal, Papadakis 2021 and Lehmann, von Renesse,
    Sambale, Uschmajew 2022 (over-relaxation); Young 1954 (omega from rates).
    """
    scaling = _Scaling(costs, regulariser)
    error, omega = scaling.step(1.0), 1.0
    seen, least, plain = [error], error, False
    for _ in range(iterations - 1):
        if error <= tolerance and (omega == 1.0 or scaling.settled() <= tolerance):
            break
        error = scaling.step(omega)
        if not math.isfinite(error):
            break
        seen.append(error)
        least = min(least, error)
        if omega > 1.0 and error > _WORSE * least:
            omega, plain = 1.0, True
        elif not plain and len(seen) % _EVERY == 0:
            omega = max(omega, _best_omega(seen, omega))
    scaling.settled()
    return scaling.plan()


def plain_plan(costs: Array, regulariser: float, iterations: int) -> Array:
    """The plan (n, m) after so many plain iterations of Sinkhorn, whether they have converged or not.

    Arguments as in `entropic_plan`; column sums are uniform but for rounding.

    Source: Cuturi 2013.
    """
    scaling = _Scaling(costs, regulariser)
    for _ in range(iterations):
        scaling.step(1.0)
    return scaling.plan()


def _best_omega(errors: list[float], omega: float) -> float:
    """The omega that the last errors speak for; 1 where they do not fall.

    Errors that fall by lambda an iteration under omega fall by eta = (lambda + omega - 1)^2 / (lambda omega^2) in plain
    iterations, if lambda is above omega - 1; it is omega - 1 for the best omega and all larger ones.
    """
    fell = errors[-1] / errors[-_EVERY // 2 - 1]
    if not 0 < fell < 1:
        return 1.0
    rate = fell ** (2 / _EVERY)
    eta = (rate + omega - 1) ** 2 / (rate * omega**2)
    if rate <= omega - 1 or eta >= 1:
        return 1.0
    return min(2 / (1 + math.sqrt(1 - eta)), _LARGEST_OMEGA)


class _Scaling:
    """diag(u) K diag(v), with K the kernel times what u and v have grown to."""

    def __init__(self, costs: Array, regulariser: float) -> None:
        n, m = costs.shape
        # Constants of rows and columns do not change the plan; without them every row and column has an entry 1.
        logs = costs - costs.min(axis=1, keepdims=True)
        logs -= logs.min(axis=0)
        logs *= -1.0 / regulariser
        self._logs, self._f, self._g = logs, np.zeros(n), np.zeros(m)
        self._kernel = np.exp(logs)
        self._u, self._v = np.full(n, 1.0 / n), np.full(m, 1.0 / m)

    def step(self, omega: float) -> float:
        """One update of u, and one of v; returns the l1 error of the row sums that the update of u found."""
        n, m = self._kernel.shape
        rows = self._kernel @ self._v
        error = float(np.abs(self._u * rows - 1.0 / n).sum())
        self._u = _towards(self._u, 1.0 / (n * rows), omega)
        self._v = _towards(self._v, 1.0 / (m * (self._u @ self._kernel)), omega)
        self._absorb()
        return error

    def settled(self) -> float:
        """A plain update of v alone, so that columns are uniform; returns the l1 error of the rows that is left."""
        n, m = self._kernel.shape
        self._v = 1.0 / (m * (self._u @ self._kernel))
        return float(np.abs(self._u * (self._kernel @ self._v) - 1.0 / n).sum())

    def plan(self) -> Array:
        """The plan as it is."""
        plan: Array = self._kernel * self._u[:, None]
        plan *= self._v
        return plan

    def _absorb(self) -> None:
        both = max(self._u.max(), self._v.max()), min(self._u.min(), self._v.min())
        if both[1] > 1.0 / _FAR and both[0] < _FAR:
            return
        self._f += np.log(self._u)
        self._g += np.log(self._v)
        self._kernel = np.exp(self._logs + self._f[:, None] + self._g)
        self._u, self._v = np.ones_like(self._u), np.ones_like(self._v)


def _towards(old: Array, new: Array, omega: float) -> Array:
    """old^(1 - omega) new^omega."""
    if omega == 1.0:
        return new
    moved: Array = new * (new / old) ** (omega - 1.0)
    return moved
