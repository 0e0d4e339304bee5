"""Images as fixed filters see them: averages of moduli of wavelets, of one order or of two, of norm 1 at most.

Nothing is learnt: filters are a formula, and a record is coded without a look at another one. Source: J. Bruna,
S. Mallat, "Invariant Scattering Convolution Networks", 2013; before a private linear model F. Tramer, D. Boneh 2021.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsw.learning.models.coded import Coding

ANGLES = 8
"""Orientations of the first order; the second takes every other one, of the fine scale and of the coarse one."""
GRID, GRID_OF_PAIRS = 7, 4
"""Places along a side at which moduli of the first and of the second order are averaged."""
LEAST_SIDE = 8
WEIGHT_OF_PAIRS = 0.7
"""Length of the second order's part of a record beside that of the first, 1, before both are divided by the whole."""
SOFT = 0.3
"""What a place's moduli are divided by has this part of the image's own average beside it: where nothing is, nothing is
made large."""

_FREQUENCY, _WIDTH = 3 * math.pi / 4, 0.8
_RADII = (3, 6)
"""Half the side of the filters' windows, in pixels, by scale: nearly four deviations of their envelopes."""
_LEAST = 1e-6
_MOST = 1e4
_INSIDE = 1 - 1e-5
"""Records end this much inside the unit ball, so that rounding in float32 keeps them in it."""


def wavelets(scale: int) -> NDArray[np.float64]:
    """Morlet wavelets of every angle at a scale (0 or 1): real and imaginary parts in turn, (2 * ANGLES, s, s).

    The envelope is a Gaussian, ANGLES/4 times longer along the bars than across; the real part has sum 0.
    """
    radius, deviation, frequency = _RADII[scale], _WIDTH * 2**scale, _FREQUENCY / 2**scale
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    slant, parts = 4 / ANGLES, list[NDArray[np.float64]]()
    for angle in range(ANGLES):
        turn = math.pi * angle / ANGLES
        across, along = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
        envelope = np.exp(-(across**2 + (slant * along) ** 2) / (2 * deviation**2))
        real, imaginary = envelope * np.cos(frequency * across), envelope * np.sin(frequency * across)
        parts += [real - envelope * (real.sum() / envelope.sum()), imaginary]
    waves: NDArray[np.float64] = np.stack(parts) * (slant / (2 * math.pi * deviation**2))
    return waves


def windows(side: int, places: int) -> NDArray[np.float64]:
    """Weights (places, side) of Gaussian averages about evenly spaced places in a row of pixels; rows have sum 1."""
    step = side / places
    centres = (np.arange(places) + 0.5) * step - 0.5
    weights = np.exp(-((np.arange(side) - centres[:, None]) ** 2) / (step**2 / 2))
    normed: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normed


class ScatteredImages(Coding):
    """Square images (n, side^2), row by row, as (n, w) numbers: w = 784, or 1040 with a second order.

    The first order are moduli of 8 angles and 2 scales, the coarse one at every other pixel, averaged at 7 x 7 places,
    and divided by their norm at each place, softened. The second are moduli of the coarse wavelets of those of the fine
    ones, 4 angles each, averaged at 4 x 4 places, and divided by the average of the fine one there. Of each channel its
    mean over the places is taken away, each order has norm 1 and 0.7, and both together 1.

    Guarantee: a record's numbers have norm 1 at most, whatever its inputs hold: what is not finite counts as 0, pixels
    are cut to +-10 000, and the last step divides by the norm.

    ``orders`` are 1 or 2. ValueError for an image of fewer than LEAST_SIDE pixels a side.
    """

    kept = True

    def __init__(self, side: int, orders: int) -> None:
        if side < LEAST_SIDE:
            raise ValueError(f"an image has {side} pixels a side; filters see one of {LEAST_SIDE} at least")
        names = [
            f"angle {angle} of scale {scale} at ({row},{column})"
            for scale in range(2)
            for angle in range(ANGLES)
            for row in range(GRID)
            for column in range(GRID)
        ]
        if orders == 2:
            names += [
                f"angle {second} of angle {first} at ({row},{column})"
                for first in range(0, ANGLES, 2)
                for second in range(0, ANGLES, 2)
                for row in range(GRID_OF_PAIRS)
                for column in range(GRID_OF_PAIRS)
            ]
        super().__init__(tuple(names), np.zeros(len(names)), 1.0, None, None)
        self.side, self.orders = side, orders
        half = (side + 1) // 2
        for name, values in {
            "fine": wavelets(0)[:, None],
            "coarse": wavelets(1)[:, None],
            "places": windows(side, GRID),
            "places_of_coarse": windows(half, GRID),
            "fine_of_pairs": windows(side, GRID_OF_PAIRS),
            "places_of_pairs": windows(half, GRID_OF_PAIRS),
        }.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Numbers (n, w) of images (n, side^2), in their precision."""
        known = torch.nan_to_num(inputs, 0.0, 0.0, 0.0).clamp(-_MOST, _MOST)
        images = known.reshape(-1, 1, self.side, self.side)
        fine = self._moduli(images, "fine", 1)
        coarse = self._averaged(self._moduli(images, "coarse", 2), "places_of_coarse")
        averages = torch.cat([self._averaged(fine, "places"), coarse], dim=1)
        at_places = torch.linalg.vector_norm(averages, dim=1, keepdim=True)
        first = averages / (at_places + SOFT * at_places.mean(dim=(2, 3), keepdim=True) + _LEAST)
        parts = [_unit(_about_mean(first))]
        if self.orders == 2:
            parts.append(WEIGHT_OF_PAIRS * self._pairs(fine[:, ::2]))
        return _INSIDE * _unit(torch.cat(parts, dim=1))

    def _pairs(self, fine: Tensor) -> Tensor:
        """The second order (n, 256) of moduli (n, 4, side, side), of norm 1."""
        angles = fine.shape[1]
        moduli = self._moduli(fine.reshape(-1, 1, self.side, self.side), "coarse", 2)[:, ::2]
        averages = self._averaged(moduli, "places_of_pairs")
        seconds = averages.reshape(-1, angles, averages.shape[1], GRID_OF_PAIRS, GRID_OF_PAIRS)
        parents = self._averaged(fine, "fine_of_pairs")
        soft = SOFT * parents.mean(dim=(1, 2, 3), keepdim=True)
        seconds = seconds / (parents + soft + _LEAST)[:, :, None]
        return _unit(_about_mean(seconds.flatten(1, 2)))

    def _moduli(self, images: Tensor, scale: str, stride: int) -> Tensor:
        """Moduli (m, ANGLES, h, h) of wavelets of one scale, at every pixel or every other one, of images (m, 1, h, h).

        Outside an image all is 0.
        """
        filters = self.get_buffer(scale).to(images.dtype)
        seen = F.conv2d(images, filters, stride=stride, padding=filters.shape[-1] // 2)
        return (seen[:, ::2].square() + seen[:, 1::2].square()).sqrt()

    def _averaged(self, moduli: Tensor, places: str) -> Tensor:
        weights = self.get_buffer(places).to(moduli.dtype)
        return weights @ moduli @ weights.T


def _about_mean(channels: Tensor) -> Tensor:
    """Channels (n, c, g, g) less their means over places, (n, c * g * g)."""
    return (channels - channels.mean(dim=(2, 3), keepdim=True)).flatten(1)


def _unit(rows: Tensor) -> Tensor:
    """Rows (n, k) over their norms, or over _LEAST where that is more."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=_LEAST)
