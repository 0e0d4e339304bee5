"""Linear models without privacy by numpy and scipy: those of scikit-learn, without the second that its import takes.

Each minimises what scikit-learn's model of columns about their mean, in standard deviations, minimises, and is trained
and asked for its predictions in the same way: `fit` with features (n, p), and `predict_proba` or `predict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STEPS = 200
_STILL = 1e-5
"""Largest number of the mean loss's gradient at which it is at rest; scikit-learn stops at ten times as much."""


@dataclass
class _Columns:
    """Columns about their mean, in standard deviations; those that do not vary are 0."""

    mean: Array
    spread: Array

    @classmethod
    def of(cls, features: Array) -> _Columns:
        spread = features.std(axis=0)
        return cls(features.mean(axis=0), np.where(spread > 10 * np.finfo(np.float64).eps, spread, 1.0))

    def of_rows(self, features: Array) -> Array:
        return np.asarray((features - self.mean) / self.spread)


@dataclass
class PlainLogistic:
    """The sum of log losses of two classes and |w|^2 / 2C, at its least, by limited-memory steps of Newton's kind."""

    strength: float
    _columns: _Columns = field(init=False, repr=False)
    _weights: Array = field(init=False, repr=False)

    def fit(self, features: Array, target: NDArray[Any]) -> PlainLogistic:
        """Train on features (n, p) and a target (n,) of two values; the higher one is the class of predictions."""
        self._columns = _Columns.of(features)
        rows = self._columns.of_rows(features)
        signs = np.where(target == target.max(), 1.0, -1.0)
        pull = 1 / (self.strength * len(rows))

        def loss(weights: Array) -> tuple[float, Array]:
            margins = signs * (rows @ weights[:-1] + weights[-1])
            small = np.exp(-np.abs(margins))
            value = float(np.log1p(small).sum() + np.maximum(-margins, 0.0).sum()) / len(rows)
            wrong = -signs * np.where(margins > 0, small, 1.0) / (1 + small) / len(rows)
            gradient = np.append(wrong @ rows + pull * weights[:-1], wrong.sum())
            return value + 0.5 * pull * float(weights[:-1] @ weights[:-1]), gradient

        self._weights = _at_rest(loss, np.zeros(rows.shape[1] + 1))
        return self

    def predict_proba(self, features: Array) -> Array:
        """Return probabilities (n, 2) for features (n, p)."""
        scores = self._columns.of_rows(features) @ self._weights[:-1] + self._weights[-1]
        small = np.exp(-np.abs(scores))
        likely = np.where(scores > 0, 1.0, small) / (1 + small)
        return np.stack([1 - likely, likely], axis=1)


@dataclass
class PlainRidge:
    """The sum of squared errors and alpha |w|^2 at its least."""

    alpha: float
    _columns: _Columns = field(init=False, repr=False)
    _weights: Array = field(init=False, repr=False)
    _middle: Array = field(init=False, repr=False)

    def fit(self, features: Array, target: Array) -> PlainRidge:
        """Train on features (n, p) and targets (n, t)."""
        self._columns = _Columns.of(features)
        self._middle = np.asarray(target.mean(axis=0), dtype=np.float64)
        rows = self._columns.of_rows(features)
        matrix = rows.T @ rows + self.alpha * np.eye(rows.shape[1])
        self._weights = np.asarray(np.linalg.solve(matrix, rows.T @ (target - self._middle)), dtype=np.float64)
        return self

    def predict(self, features: Array) -> Array:
        """Return answers (n, t) for features (n, p)."""
        return np.asarray(self._columns.of_rows(features) @ self._weights + self._middle)


def _at_rest(loss: Any, start: Array) -> Array:
    """Find the least of a smooth convex function, of its value and gradient (r,)."""
    from scipy.optimize import minimize  # takes a fifth of a second, which only training needs

    ended = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "gtol": _STILL, "ftol": 0.0})
    return np.asarray(ended.x, dtype=np.float64)
