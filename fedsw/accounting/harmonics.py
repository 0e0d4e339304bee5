"""A composed privacy loss of few frequencies, read without going back to the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class Harmonics:
    """A privacy loss known by the low frequencies of its mass on a grid; the others are negligible.

    After a few dozen steps a composition is smooth: some tens of frequencies out of 10^5 hold all of it
    above 1e-19. By Parseval, delta(epsilon) = (1/N) sum_k F_k S_k(epsilon), where S_k, the transform of the
    hockey stick on the grid, is a difference of two geometric sums: a reading costs O(frequencies).

    Attributes:
        spacing: between two losses of the grid.
        first: index of the lowest loss of the window.
        size: N, the number of points of the grid.
        coefficients: (k,) complex F_0 ... F_{k-1}, k <= N / 2.
        excess: mass that counts in full as delta.

    Source: docs/guarantees.md, "Composition on a grid".
    """

    spacing: float
    first: int
    size: int
    coefficients: _Complex
    excess: float

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), for epsilon >= 0."""
        above, weighted = self._tails(epsilon)
        return min(1.0, max(0.0, above - weighted) + self.excess)

    def epsilon(self, delta: float, *, near: float = 0.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta, to 1e-11 relative from above; inf when there is none.

        The search begins at `near`.
        """
        if self.excess >= delta:
            return math.inf
        target = delta - self.excess
        lowest, highest = 0.0, (self.first + self.size) * self.spacing
        guess = near if lowest < near < highest else lowest
        while True:
            above, weighted = self._tails(guess)
            value = above - weighted
            if value <= target:
                highest = guess
            else:
                lowest = guess
            # Newton on log delta, whose slope is -weighted / value; it is concave, so the end comes from above.
            move = math.log(value / target) * value / weighted if min(value, weighted) > 0 else math.inf
            close = 1e-11 * highest + 1e-16
            if highest - lowest <= close or (value <= target and abs(move) <= close):
                return highest
            guess += move
            if not lowest < guess < highest:
                guess = (lowest + highest) / 2

    def _tails(self, epsilon: float) -> tuple[float, float]:
        """P(L > epsilon) and e^epsilon Q(L > epsilon) within the window."""
        stop = self.first + self.size
        start = max(math.floor(epsilon / self.spacing) + 1, self.first)
        if start >= stop:
            return 0.0, 0.0
        plain, damped, plain_end, damped_end = self._geometric
        begin = self._phase(start)[1:]
        mean = self.coefficients[0].real / self.size  # the constant's sums, which lose all digits as differences
        above = mean * (stop - start) + np.vdot(plain, begin).real - plain_end
        weighted = math.exp(epsilon - start * self.spacing) * (
            mean * math.expm1((start - stop) * self.spacing) / math.expm1(-self.spacing) + np.vdot(damped, begin).real
        )
        return float(above), float(weighted - math.exp(epsilon - stop * self.spacing) * damped_end)

    @cached_property
    def _geometric(self) -> tuple[_Complex, _Complex, float, float]:
        """For k > 0, conjugates of 2 F / (N (1 - z)) and 2 F / (N (1 - z e^-spacing)); their sums at the end."""
        doubled = self.coefficients[1:] * (2.0 / self.size)
        angle = 2 * math.pi / self.size * np.arange(1, len(self.coefficients))
        chord = 2 * np.sin(angle / 2) ** 2 - 1j * np.sin(angle)  # 1 - z, accurate for small angles
        plain = np.conj(doubled / chord)
        damped = np.conj(doubled / (-math.expm1(-self.spacing) + math.exp(-self.spacing) * chord))
        end = self._phase(self.first + self.size)[1:]
        return plain, damped, float(np.vdot(plain, end).real), float(np.vdot(damped, end).real)

    def _phase(self, index: int) -> _Complex:
        """z^index for z = exp(2 pi i k / N), the exponent reduced modulo N exactly."""
        turns = self._numbers * (index % self.size) % self.size
        phase: _Complex = np.exp(2j * math.pi / self.size * turns)
        return phase

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        return np.arange(len(self.coefficients))
