"""What recorded rows cost, as steps; and the profile of a step, written again from theory and not from fedsw's code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from fedsw.audit.record.folder import Book, Row

Array = NDArray[np.float64]

_CELLS = 400
_FINEST = 50
_MOST_CELLS = 2**22


@dataclass(frozen=True)
class Slices:
    """Random directions: dimension, number, and "iid" or "orthogonal"."""

    d: int
    k: int
    scheme: str

    @property
    def fixed(self) -> bool:
        """Whether whole orthonormal blocks leave the share k/d of a move for certain."""
        return self.d == 1 or (self.scheme == "orthogonal" and self.k % self.d == 0)


@dataclass(frozen=True)
class Recorded:
    """One group's part of a row: rate p, mu = sensitivity / sigma (inf without noise), and how it was made."""

    rate: float
    mu: float
    sampling: str
    slices: Slices | None = None


Steps = Counter[Recorded]


def steps_of(book: Book, group: str, rows: Iterable[Row] | None = None) -> Steps:
    """The steps of a group by the rows of a ledger, all of them unless some are given."""
    found: Steps = Counter()
    for row in book.rows if rows is None else rows:
        for charge in row.charges:
            if charge["group"] == group and charge["sampling_rate"] > 0 and charge["sensitivity"] > 0:
                mu = charge["sensitivity"] / row.sigma if row.sigma > 0 else math.inf
                reported = charge.get("slicing")
                slices = None if reported is None else Slices(reported["d"], reported["k"], reported["scheme"])
                found[Recorded(charge["sampling_rate"], mu, charge["sampling"], slices)] += 1
    return found


def groups_of(book: Book) -> list[str]:
    """The groups that a ledger accounts for."""
    return [str(group) for group in book.promise["groups"]]


def mixture(step: Recorded) -> tuple[Array, Array]:
    """Means and weights of normal laws whose mixed profile is the step's before sampling.

    For slices: the law of B = ||z^T Theta||^2, on a lattice that keeps its mean (theory, section 5.2): a sum of k
    independent Beta(1/2, (d-1)/2), or k // d whole blocks and Beta(r/2, (d-r)/2). Not a bound but a quadrature, whose
    error is of second order in the lattice's width.
    """
    if step.slices is None:
        return np.array([step.mu]), np.ones(1)
    if step.slices.fixed:
        return np.array([step.mu * math.sqrt(step.slices.k / step.slices.d)]), np.ones(1)
    values, weights = _share(step.slices)
    return step.mu * np.sqrt(values), weights


def profile(step: Recorded, epsilon: Array) -> Array:
    """delta(epsilon) of C_p of the step's profile, any sign of epsilon (theory, section 5.1).

    For epsilon >= 0 it is p delta_1(ln(1 + (e^epsilon - 1) / p)), delta_1 the profile without sampling, and
    1 - e^-x + e^-x delta(x) at -x.
    """
    size = np.abs(epsilon)
    inner = np.log1p(np.expm1(size) / step.rate)
    means, weights = mixture(step)
    above = np.zeros_like(size)
    for mean, weight in zip(means, weights, strict=True):
        above += weight * _gaussian(inner, float(mean))
    above *= step.rate
    found: Array = np.where(epsilon >= 0, above, -np.expm1(-size) + np.exp(-size) * above)
    return found


def _gaussian(epsilon: Array, mu: float) -> Array:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), the second factor taken in logarithms."""
    if mu == 0.0:
        return np.zeros_like(epsilon)
    first = special.ndtr(-epsilon / mu + mu / 2)
    second = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    found: Array = np.maximum(0.0, first - second)
    return found


@lru_cache(maxsize=8)
def _share(slices: Slices) -> tuple[Array, Array]:
    d, k = slices.d, slices.k
    if slices.scheme == "orthogonal":
        left = k % d
        values, mass = _lattice(stats.beta(left / 2, (d - left) / 2), 1 / (_FINEST * 40), 1)
        return _fewer(k // d + values, mass)
    width = 1 / (_FINEST * d)
    while (k / width) > _MOST_CELLS:
        width *= 2
    return _fewer(*_lattice(stats.beta(0.5, (d - 1) / 2), width, k))


def _lattice(law: stats.rv_continuous, width: float, copies: int) -> tuple[Array, Array]:
    """The sum of copies of a law on [0, 1], each cell's mass split between its ends so that the mean stays."""
    cells = math.ceil(1 / width)
    ends = np.linspace(0.0, 1.0, cells + 1)
    below = law.cdf(ends)
    # The mean of the law over a cell, from the integral of its distribution function by Simpson's rule.
    middles = law.cdf((ends[:-1] + ends[1:]) / 2)
    area = (below[:-1] + 4 * middles + below[1:]) / 6
    up = np.clip(below[1:] - area, 0.0, None)  # mass that goes to the upper end
    down = np.diff(below) - up
    mass = np.zeros(cells + 1)
    mass[:-1] += down
    mass[1:] += up
    if copies == 1:
        return ends, mass
    length = 2 ** math.ceil(math.log2(cells * copies + 1))
    total = np.fft.irfft(np.fft.rfft(mass, length) ** copies, length)[: cells * copies + 1]
    return np.arange(cells * copies + 1) / cells, np.clip(total, 0.0, None)


def _fewer(values: Array, mass: Array) -> tuple[Array, Array]:
    """A few values of the same mean, evenly spaced in the square root, over where the mass is more than round-off."""
    kept = mass > 1e-17
    roots, mass = np.sqrt(values[kept]), mass[kept]
    nodes = np.linspace(roots[0], roots[-1], _CELLS + 1) ** 2
    squares = roots**2
    cell = np.clip(np.searchsorted(nodes, squares, side="right") - 1, 0, _CELLS - 1)
    up = (squares - nodes[cell]) / (nodes[cell + 1] - nodes[cell])
    weights = np.zeros(_CELLS + 1)
    np.add.at(weights, cell, mass * (1 - up))
    np.add.at(weights, cell + 1, mass * up)
    return nodes[weights > 0], weights[weights > 0] / weights.sum()
