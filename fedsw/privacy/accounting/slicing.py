"""Random slicing: the law of the share of a record's move that random directions keep, and its Renyi divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

Scheme = Literal["iid", "orthogonal"]

_CELLS = 160


@dataclass(frozen=True)
class Slicing:
    """Features of dimension d, released through k random directions.

    The release is (Theta, X Theta + V): X the features, one row a record; Theta (d, k) with uniformly distributed unit
    columns, drawn afresh and independently of everything after the features are fixed; V normal noise. If the
    replacement of a record moves its features by z, the release moves by ||z^T Theta||, and B = ||z^T Theta||^2 /
    ||z||^2 has the same law for every z.

    The scheme is ``"iid"``, independent directions: B is a sum of k independent Beta(1/2, (d-1)/2); or
    ``"orthogonal"``, independent orthonormal blocks of d directions, the last one of r = k mod d:
    B = (k - r) / d + Beta(r/2, (d-r)/2).

    Source: docs/guarantees/accounting.md.
    """

    d: int
    k: int
    scheme: Scheme = "iid"

    def __post_init__(self) -> None:
        for name, value in (("d, the dimension of the features,", self.d), ("k, the number of directions,", self.k)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value}; it must be a whole number, at least 1.")
        if self.scheme not in get_args(Scheme):
            raise ValueError(f"scheme of directions is {self.scheme!r}; choose one of {', '.join(get_args(Scheme))}.")

    @property
    def fixed(self) -> bool:
        """True if B is k/d for certain: features on a line, or full orthonormal blocks."""
        return self.d == 1 or (self.scheme == "orthogonal" and self.k % self.d == 0)

    @property
    def share(self) -> float:
        """k/d, the mean of B."""
        return self.k / self.d


@lru_cache(maxsize=32)
def law_of_share(slicing: Slicing) -> ShareLaw:
    """The law of B, from above, for a slicing that is not ``fixed``; whole blocks are left out (add k // d)."""
    d, k = slicing.d, slicing.k
    if slicing.scheme == "orthogonal":
        return beta_law(k % d / 2, (d - k % d) / 2)
    return sum_law(beta_law(0.5, (d - 1) / 2), k, lambda copies: _highest(d, copies))


@lru_cache(maxsize=256)
def gaussian_mixture(slicing: Slicing, mu: float) -> tuple[Array, Array]:
    """Means and weights of normal laws with a mixed profile of at least E_B delta of N(mu sqrt(B), 1) against N(0, 1).

    For every epsilon >= 0 that delta is an increasing convex function of its value at epsilon = 0. So B is rounded up
    on a fine lattice, and then every value is split between two of a few nodes so that the mean of delta(0) stays.

    The means are (m,) increasing, the weights (m,) of sum 1 - :func:`lost`.
    """
    if slicing.fixed:
        return np.array([mu * math.sqrt(slicing.share)]), np.ones(1)
    law = law_of_share(slicing)
    whole = slicing.k // slicing.d if slicing.scheme == "orthogonal" else 0
    roots = np.sqrt(whole + law.values)
    nodes = np.linspace(roots[0], roots[-1], _CELLS + 1)
    cell = np.clip(np.searchsorted(nodes, roots) - 1, 0, _CELLS - 1)
    # delta(0) of N(m, 1) is 1 - erfc(m / sqrt(8)); where both ends are 1 in floating point, all goes up.
    hidden, at_nodes = scipy.special.erfc(mu * roots / math.sqrt(8)), scipy.special.erfc(mu * nodes / math.sqrt(8))
    width = (at_nodes[:-1] - at_nodes[1:])[cell]
    down = np.divide(hidden - at_nodes[cell + 1], width, out=np.zeros_like(hidden), where=width > 0).clip(0.0, 1.0)
    weights: Array = np.zeros(_CELLS + 1)
    np.add.at(weights, cell, law.mass * down)
    np.add.at(weights, cell + 1, law.mass * (1 - down))
    return mu * nodes[weights > 0], weights[weights > 0]


def lost(slicing: Slicing) -> float:
    """Mass of B that :func:`gaussian_mixture` leaves out: it counts in full as delta."""
    return 0.0 if slicing.fixed else law_of_share(slicing).lost


def bernstein_share(d: int, k: int, failure: float) -> float:
    """A share that B of k directions exceeds with probability ``failure`` (Rakotomamonjy, Ralaivola 2021, Lemma 2)."""
    log = -math.log(failure)
    return k / d + 2 / 3 * log + 2 / d * math.sqrt(k * (d - 1) / (d + 2) * log)


def central_limit_share(d: int, k: int, failure: float) -> float:
    """Such a share of a normal law with B's mean and variance: no bound (Rakotomamonjy, Ralaivola 2021, Prop. 1)."""
    return k / d + NormalDist().inv_cdf(1 - failure) / d * math.sqrt(2 * k * (d - 1) / (d + 2))


def log_moment(d: int, t: float) -> float:
    """ln E exp(t B) for one direction, t >= 0: ln 1F1(1/2; d/2; t), without overflow."""
    if d == 1 or math.isinf(t):
        return t
    if t <= 500.0:
        n = np.arange(40 + int(4 * t))
        return math.log1p(float(np.cumprod(t * (0.5 + n) / ((d / 2 + n) * (1 + n))).sum()))
    # Terms rise to the one where their ratio is 1, and fall; the sum over every stride-th is accurate for wide peaks.
    half = (t - d / 2 - 1) / 2
    peak = max(0.0, half + math.sqrt(max(0.0, half * half + t / 2 - d / 2)))
    reach = 40 * math.sqrt(peak + 100)
    low, high = max(0, int(peak - reach)), int(peak + reach)
    stride = max(1, (high - low) // 10**4)
    n = np.arange(low, high + 1, stride)
    rising = scipy.special.gammaln(0.5 + n) - scipy.special.gammaln(0.5) - scipy.special.gammaln(1.0 + n)
    logs = rising + n * math.log(t) - (scipy.special.gammaln(d / 2 + n) - scipy.special.gammaln(d / 2))
    return max(0.0, float(scipy.special.logsumexp(logs)) + math.log(stride))


def _highest(d: int, copies: int) -> float:
    """A value that B of ``copies`` independent directions exceeds with probability at most ``TAIL``, by Chernoff."""
    orders: list[float] = (d * np.logspace(-3, 1, 41)).tolist()
    return min(float(copies), *((copies * log_moment(d, t) - math.log(TAIL)) / t for t in orders))


Array = NDArray[np.float64]

POINTS = 2**16
"""Most points of a law; beyond, its lattice is made coarser."""

TAIL = 1e-18
"""Mass that a law may leave out at its upper end, each time that it is cut."""

_LOWER_TAIL = 1e-13
_ROUND_OFF = 2.0**-52


@dataclass(frozen=True)
class ShareLaw:
    """A law that is never below another: P(X > x) of the other is at most that of this one plus ``lost``.

    ``mass`` (m,) is at values (``first`` + i) ``spacing``, a power of two; ``lost`` belongs above all of them;
    ``raised`` is the most that a value was rounded up.
    """

    spacing: float
    first: int
    mass: Array
    lost: float
    raised: float

    @property
    def values(self) -> Array:
        """(m,) increasing."""
        return (self.first + np.arange(len(self.mass), dtype=np.float64)) * self.spacing


def beta_law(a: float, b: float) -> ShareLaw:
    """Beta(a, b): the mass of each cell at its upper end."""
    low, high = float(scipy.special.betaincinv(a, b, _LOWER_TAIL)), float(scipy.special.betainccinv(a, b, TAIL))
    spacing = 2.0 ** math.ceil(math.log2(max(high - low, 1e-12 * high) / (POINTS - 2)))
    first = math.floor(low / spacing)
    ends = np.minimum(np.arange(first, math.ceil(high / spacing) + 1) * spacing, 1.0)
    middle = int(np.searchsorted(ends, scipy.special.betaincinv(a, b, 0.5), side="right"))
    below, above = scipy.special.betainc(a, b, ends[:middle]), scipy.special.betaincc(a, b, ends[middle - 1 :])
    mass = np.concatenate([np.diff(below), -np.diff(above)])  # on either side the smaller of both is accurate
    mass[0] += below[0]
    return ShareLaw(spacing, first + 1, mass, TAIL + _ROUND_OFF, spacing)


def sum_law(one: ShareLaw, count: int, highest: Callable[[int], float]) -> ShareLaw:
    """The sum of ``count`` independent copies, by doubling.

    Rounding the first law up costs half a cell a copy; a lattice as long as the law's own range keeps that, and what
    coarser lattices of longer sums add, at a share of about 100 / POINTS of the sum, whatever ``count``.

    ``highest`` gives what the exact sum of a number of copies exceeds with probability at most ``TAIL``.
    """
    total, copies, power, size = None, 0, one, 1
    while True:
        if count & size:
            total, copies = power if total is None else _sum(total, power, highest(copies + size)), copies + size
        if copies == count:
            assert total is not None
            return total
        power, size = _sum(power, power, highest(2 * size)), 2 * size


def _sum(one: ShareLaw, other: ShareLaw, highest: float) -> ShareLaw:
    while one.spacing < other.spacing:
        one = _coarser(one)
    while other.spacing < one.spacing:
        other = _coarser(other)
    mass = _convolved(one.mass, other.mass)
    first, raised = one.first + other.first, one.raised + other.raised
    # Below the lower cut mass moves up; above the upper one the sum of rounded values has at most TAIL.
    start = int(np.searchsorted(mass.cumsum(), _LOWER_TAIL))
    stop = math.ceil((highest + raised) / one.spacing) + 1 - first
    low = mass[: start + 1].sum()
    mass = mass[start:stop].copy()
    mass[0] = low
    law = ShareLaw(one.spacing, first + start, mass, one.lost + other.lost + TAIL + _ROUND_OFF, raised)
    while len(law.mass) > POINTS:
        law = _coarser(law)
    return law


def _convolved(one: Array, other: Array) -> Array:
    size = len(one) + len(other) - 1
    from scipy import fft  # half as long to load as all of the accounting beside it, for random slices alone

    length = fft.next_fast_len(size, real=True)
    spectrum = fft.rfft(one, length)
    spectrum *= spectrum if one is other else fft.rfft(other, length)
    mass: Array = fft.irfft(spectrum, length)[:size]
    return np.maximum(mass, 0.0)


def _coarser(law: ShareLaw) -> ShareLaw:
    """Twice the spacing: values between two nodes move to the upper one."""
    before = 1 - law.first % 2
    padded = np.pad(law.mass, (before, (len(law.mass) + before) % 2))
    mass = padded.reshape(-1, 2).sum(axis=1)
    return ShareLaw(2 * law.spacing, (law.first - before + 1) // 2, mass, law.lost, law.raised + law.spacing)
