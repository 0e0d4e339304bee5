"""Epsilon of many compositions of few frequencies at once: `fedsw.accounting.harmonics`, a composition a row."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Array = NDArray[np.float64]
_Complex = NDArray[np.complex128]
_MOST_READINGS = 200


class Readings:
    """Compositions known by their low frequencies on circles of one size, each with a spacing and window of its own.

    Args:
        coefficients: (m, k) complex, F_0 ... F_{k-1} of the masses on the grid.
        spacings: (m,) between two losses.
        first: (m,) index of the lowest loss of the window.
        size: N, the number of nodes of the circle.
    """

    def __init__(self, coefficients: _Complex, spacings: _Array, first: NDArray[np.int64], size: int) -> None:
        self._spacing, self._size = spacings, size
        self._first, self._stop = first, first + size
        self._numbers = np.arange(coefficients.shape[1] - 1) + 1
        self._mean = coefficients[:, 0].real / size
        doubled = coefficients[:, 1:] * (2.0 / size)
        angle = 2 * math.pi / size * self._numbers
        chord = 2 * np.sin(angle / 2) ** 2 - 1j * np.sin(angle)  # 1 - z, accurate for small angles
        wane = spacings[:, None]
        self._plain = doubled / chord
        self._damped = doubled / (-np.expm1(-wane) + np.exp(-wane) * chord)
        end = self._phase(self._stop)
        self._plain_end = (self._plain * end).real.sum(1)
        self._damped_end = (self._damped * end).real.sum(1)

    def epsilon(self, targets: _Array) -> _Array:
        """Smallest epsilon >= 0 (m,) with delta(epsilon) <= target, to 1e-11 relative from above."""
        lowest, highest = np.zeros(len(targets)), np.maximum(self._stop * self._spacing, 0.0)
        guess = lowest.copy()
        open_ = np.arange(len(targets))
        for _ in range(_MOST_READINGS):
            above, weighted = self._tails(guess[open_], open_)
            value, target, here = above - weighted, targets[open_], guess[open_]
            met = value <= target
            highest[open_] = np.where(met, here, highest[open_])
            lowest[open_] = np.where(met, lowest[open_], here)
            # Newton on log delta, as a single composition is read.
            steep = np.minimum(value, weighted) > 0
            with np.errstate(all="ignore"):
                move = np.where(steep, np.log(value / target) * value / weighted, math.inf)
            low, high = lowest[open_], highest[open_]
            close = 1e-11 * high + 1e-16
            done = (high - low <= close) | (met & (np.abs(move) <= close))
            moved = here + move
            guess[open_] = np.where((low < moved) & (moved < high), moved, (low + high) / 2)
            open_ = open_[~done]
            if not len(open_):
                break
        return highest

    def _tails(self, epsilon: _Array, rows: NDArray[np.int64]) -> tuple[_Array, _Array]:
        """P(L > epsilon) and e^epsilon Q(L > epsilon) within the window, of some rows."""
        spacing, stop = self._spacing[rows], self._stop[rows]
        start = np.clip(np.floor(epsilon / spacing).astype(np.int64) + 1, self._first[rows], stop)
        begin = self._phase(start)
        mean = self._mean[rows]
        above = mean * (stop - start) + (self._plain[rows] * begin).real.sum(1) - self._plain_end[rows]
        weighted = np.exp(epsilon - start * spacing) * (
            mean * np.expm1((start - stop) * spacing) / np.expm1(-spacing) + (self._damped[rows] * begin).real.sum(1)
        )
        return above, weighted - np.exp(epsilon - stop * spacing) * self._damped_end[rows]

    def _phase(self, index: NDArray[np.int64]) -> _Complex:
        """z^index for z = exp(2 pi i k / N), the exponent reduced modulo N exactly."""
        turns = (index % self._size)[:, None] * self._numbers % self._size
        phase: _Complex = np.exp(2j * math.pi / self._size * turns)
        return phase


def epsilons_on_grid(mass: Tensor, highest: Tensor, spacings: Tensor, targets: Tensor) -> Tensor:
    """Smallest epsilon >= 0 with delta(epsilon) <= target, of masses on a grid, as a single distribution is read.

    Args:
        mass: (m, n) at n losses, from the highest down.
        highest: (m,) index of the highest loss.
        spacings: (m,) between two losses.
        targets: (m,) delta less what is set aside.
    """
    numbers = torch.arange(mass.shape[1], device=mass.device)
    losses = ((highest[:, None] - numbers) * spacings[:, None]).clamp_(min=0.0)
    shrink = torch.exp(-losses)
    p_above, q_above = mass.cumsum(1), (mass * shrink).cumsum(1)  # q as if no loss were below 0
    too_much = (p_above - q_above / shrink > targets[:, None]) & (numbers < highest[:, None] + 1)
    # The last node, going down, that is not too much: between it and the next one delta(eps) is
    # P(L >= node) - e^eps Q(L >= node).
    lowest = highest.clamp(0, mass.shape[1] - 1)[:, None]
    node = torch.where(too_much, numbers, lowest + 1).amin(1, keepdim=True) - 1
    node = node.clamp(min=0)
    surplus = p_above.gather(1, node) - targets[:, None]
    found = torch.minimum(surplus.clamp(min=1e-300).log() - q_above.gather(1, node).log(), losses.gather(1, node))
    return torch.where(surplus > 0.0, found, torch.zeros_like(found)).clamp(min=0.0)[:, 0]
