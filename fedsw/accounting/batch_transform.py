"""Many compositions on circles of one size: their few frequencies, with the proof that no others count, or all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting.batch_steps import nodes_up_to
from fedsw.accounting.pld import TAIL

NEGLIGIBLE = -34.0
"""Log modulus of a composition's frequencies that are left out: all together move no delta by more than 1e-13."""

_KEPT = 256
_RATIO = 0.025
_PARTS = 320
_LARGEST_EXPONENT = 600.0
_FLATTEST, _STEEPEST = 10.0, 3e4  # rates of moments, times the circumference
_RATES = 24


@dataclass(frozen=True)
class Masses:
    """Steps on the nodes of a circle, one a row: P-masses (m, n) at minus the nodes and at the nodes, the rest at 0.

    Attributes:
        down, up: the masses.
        counts: (m,) how often each step is taken.
    """

    down: Tensor
    up: Tensor
    counts: Tensor

    def rows(self, index: Tensor) -> Masses:
        """Those at some places (i,)."""
        return Masses(self.down[index], self.up[index], self.counts[index])


class Circle:
    """The nodes that stand for losses on a circle of ``size`` even points, and what they look like in Fourier space.

    With masses u at the nodes i and d at -i, and the rest of 1 at 0, 1 - F(k) = sum (u + d) (1 - cos) + i sum (u - d)
    sin of 2 pi k i / size. It is computed as this difference, which is small where frequencies count: its rounding is
    relative to itself, so that that of F^T does not grow with T.

    Args:
        size: points of the circle, a power of two.
        last: the largest node.
        device: of the tables.

    Source: docs/guarantees.md, "Many settings at once".
    """

    def __init__(self, size: int, last: int, device: torch.device) -> None:
        self.size = size
        self.nodes = nodes_up_to(last, device)
        self._kept = min(_KEPT, size // 2)
        centres, halves = _intervals(self._kept, size // 2)
        self._halves = torch.from_numpy(halves).to(device)
        numbers = torch.from_numpy(np.concatenate([np.arange(self._kept), centres])).to(device)
        half_angle = (self.nodes.long()[:, None] * numbers % size).double() * (math.pi / size)
        sine = half_angle.sin()
        self._versed, self._sines = 2 * sine * sine, 2 * sine * half_angle.cos_()
        steepest = min(_STEEPEST, _LARGEST_EXPONENT * size / float(self.nodes[-1]))
        ends = (math.log10(min(_FLATTEST, steepest)), math.log10(steepest))
        self._rates = torch.logspace(*ends, _RATES, dtype=torch.float64, device=device)
        exponents = self.nodes[:, None] * (self._rates / size)
        self._rising, self._falling = torch.expm1(exponents), torch.expm1(-exponents)

    def frequencies(self, masses: Masses) -> tuple[Tensor, Tensor, Tensor]:
        """Log moduli and arguments (m, k) of the first frequencies of the compositions, and whether no others count."""
        down, up, counts = masses.down, masses.up, masses.counts[:, None]
        versed, sines = (up + down) @ self._versed, (up - down) @ self._sines
        modulus = torch.log1p((versed * versed - 2 * versed + sines * sines).clamp(min=-1 + 1e-15)) / 2
        argument = torch.atan2(-sines[:, : self._kept], 1 - versed[:, : self._kept])
        alone = self._others_negligible(modulus[:, self._kept :], (up + down) @ self.nodes, counts)
        return counts * modulus[:, : self._kept], counts * argument, alone

    def window(self, masses: Masses) -> tuple[Tensor, Tensor]:
        """(m,) index of the lowest loss, and whether the circle holds all but ``TAIL`` above and below it: Chernoff."""
        down, up, counts = masses.down, masses.up, masses.counts[:, None]
        ends = []
        for rising, falling in ((up, down), (down, up)):
            moments = torch.log1p((rising @ self._rising + falling @ self._falling).clamp(min=-1 + 1e-15))
            ends.append(((counts * moments - math.log(TAIL)) * self.size / self._rates).amin(1))
        highest, lowest = ends
        first = -torch.ceil(lowest) - 1
        return first.long(), torch.ceil(highest) + 2 - first <= self.size

    def grid(self, masses: Masses, first: Tensor) -> Tensor:
        """(m, size) masses of the compositions at ``first`` + size - 1 and the points below it: all frequencies."""
        circle = masses.up.new_zeros(len(masses.up), self.size)
        index = self.nodes.long() % self.size
        circle.index_add_(1, index, masses.up).index_add_(1, (-index) % self.size, masses.down)
        circle[:, 0] += 1.0 - (masses.up + masses.down).sum(1)
        composed = _power(torch.fft.rfft(circle, dim=1), masses.counts.long())
        points = first[:, None] + torch.arange(self.size - 1, -1, -1, device=first.device)
        mass: Tensor = torch.fft.irfft(composed, n=self.size, dim=1).gather(1, points % self.size).clamp_(min=0.0)
        return mass

    def _others_negligible(self, modulus: Tensor, moved: Tensor, counts: Tensor) -> Tensor:
        """Whether |F(k)|^T is negligible for all k from the first that is not kept to size / 2.

        |F| changes by at most 2 pi E|i| / size from one frequency to the next, so that the middle of an interval speaks
        for all of it.
        """
        slack = 2 * math.pi / self.size * moved[:, None] * self._halves
        return (modulus.exp() + slack <= torch.exp(NEGLIGIBLE / counts)).all(dim=1)


def _power(values: Tensor, exponents: Tensor) -> Tensor:
    """(m, n) complex values to the power of each row's whole number, by squaring."""
    result = torch.ones_like(values)
    while bool(exponents.any()):
        odd = (exponents % 2 == 1)[:, None]
        result = result * torch.where(odd, values, 1.0)
        values, exponents = values * values, exponents // 2
    return result


def _intervals(start: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Middles and half-widths of intervals that cover the whole numbers from ``start`` to ``last``."""
    centres, halves = [], []
    while start <= last:
        half = int(min(max(1.0, last / _PARTS), _RATIO * start))
        centres.append(min(start + half, last))
        halves.append(float(half))
        start += 2 * half + 1
    return np.array(centres, dtype=np.int64), np.array(halves, dtype=np.float64)
