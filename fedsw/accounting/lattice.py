"""Laws of sums of Beta variables on a lattice, each value rounded up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

Array = NDArray[np.float64]

POINTS = 2**16
"""Most points of a law; beyond, its lattice is made coarser."""

TAIL = 1e-18
"""Mass that a law may leave out at its upper end, each time that it is cut."""

_LOWER_TAIL = 1e-13
_ROUND_OFF = 2.0**-52


@dataclass(frozen=True)
class Law:
    """A law that is never below another: P(X > x) of the other is at most that of this one plus ``lost``.

    Attributes:
        spacing: between two values, a power of two.
        first: index of the lowest value; value i is (first + i) * spacing.
        mass: (m,) float64.
        lost: mass left out; it belongs above all values.
        raised: the most that a value was rounded up.
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


def beta_law(a: float, b: float) -> Law:
    """Beta(a, b): the mass of each cell at its upper end."""
    low, high = float(special.betaincinv(a, b, _LOWER_TAIL)), float(special.betainccinv(a, b, TAIL))
    spacing = 2.0 ** math.ceil(math.log2(max(high - low, 1e-12 * high) / (POINTS - 2)))
    first = math.floor(low / spacing)
    ends = np.minimum(np.arange(first, math.ceil(high / spacing) + 1) * spacing, 1.0)
    middle = int(np.searchsorted(ends, special.betaincinv(a, b, 0.5), side="right"))
    below, above = special.betainc(a, b, ends[:middle]), special.betaincc(a, b, ends[middle - 1 :])
    mass = np.concatenate([np.diff(below), -np.diff(above)])  # on either side the smaller of both is accurate
    mass[0] += below[0]
    return Law(spacing, first + 1, mass, TAIL + _ROUND_OFF, spacing)


def sum_law(one: Law, count: int, highest: Callable[[int], float]) -> Law:
    """The sum of ``count`` independent copies, by doubling.

    Rounding the first law up costs half a cell a copy; a lattice as long as the law's own range keeps that, and what
    coarser lattices of longer sums add, at a share of about 100 / POINTS of the sum, whatever ``count``.

    Args:
        one: law of each summand.
        count: >= 1.
        highest: a value that the exact sum of so many copies exceeds with probability at most ``TAIL``.
    """
    total, copies, power, size = None, 0, one, 1
    while True:
        if count & size:
            total, copies = power if total is None else _sum(total, power, highest(copies + size)), copies + size
        if copies == count:
            assert total is not None
            return total
        power, size = _sum(power, power, highest(2 * size)), 2 * size


def _sum(one: Law, other: Law, highest: float) -> Law:
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
    law = Law(one.spacing, first + start, mass, one.lost + other.lost + TAIL + _ROUND_OFF, raised)
    while len(law.mass) > POINTS:
        law = _coarser(law)
    return law


def _convolved(one: Array, other: Array) -> Array:
    size = len(one) + len(other) - 1
    length = fft.next_fast_len(size, real=True)
    spectrum = fft.rfft(one, length)
    spectrum *= spectrum if one is other else fft.rfft(other, length)
    mass: Array = fft.irfft(spectrum, length)[:size]
    return np.maximum(mass, 0.0)


def _coarser(law: Law) -> Law:
    """Twice the spacing: values between two nodes move to the upper one."""
    before = 1 - law.first % 2
    padded = np.pad(law.mass, (before, (len(law.mass) + before) % 2))
    mass = padded.reshape(-1, 2).sum(axis=1)
    return Law(2 * law.spacing, (law.first - before + 1) // 2, mass, law.lost, law.raised + law.spacing)
