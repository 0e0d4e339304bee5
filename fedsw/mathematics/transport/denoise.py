"""Wavelet denoising of released points: a post-processing step before a plain transport loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.later import Later
from fedsw._tools.settings import real, whole
from fedsw.mathematics.transport.given import positive, sample

if TYPE_CHECKING:
    import pywt
else:  # PyWavelets is part of the `app` extra
    pywt = Later("pywt")

Shape = Literal["image", "vector"]


def wavelet_denoise(
    released: Tensor,
    deviation: float,
    *,
    shape: Shape = "image",
    wavelet: str = "db2",
    thresholds: Sequence[float] = (),
) -> Tensor:
    """Soft-threshold the orthonormal wavelet details of every released row; float64, (n, p).

    The threshold comes from the *known* noise: sigma^2 / s in every row and sub-band, s^2 the sub-band's mean square
    less sigma^2 (all of it is removed where s^2 is not positive).
    Rows with sides that are not a multiple of 2^levels are mirrored at their ends and cut back; there a few mirrored
    coefficients share their noise.

    Guarantee: it reads released rows and public numbers only, so it is post-processing and costs no privacy.

    Rows (n, p) are square images, row by row, or vectors; cosine coefficients are decoded first. The noise of every
    value has this standard deviation. Thresholds, in units of it, one for every level, the coarsest first, are in place
    of it; they cost no privacy where they come from public data only. ValueError for rows that do not fit.

    Source: Chang, Yu, Vetterli 2000 (BayesShrink).
    """
    deviation, released = positive(deviation, "deviation"), sample(released, "released rows")
    thresholds = [real(threshold, "a threshold") for threshold in thresholds]
    if shape not in get_args(Shape):
        raise ValueError(f"shape is {shape!r}; choose one of {', '.join(get_args(Shape))}.")
    if wavelet not in pywt.wavelist(kind="discrete") or not pywt.Wavelet(wavelet).orthogonal:
        raise ValueError(f"wavelet {wavelet!r} is not an orthogonal one of PyWavelets: choose 'haar', 'db2' or 'sym4'.")
    n, p = released.shape
    side = image_side(p) if shape == "image" else p
    levels = pywt.dwt_max_level(side, pywt.Wavelet(wavelet))
    if levels < 1:
        raise ValueError(f"rows of side {side} are too short for wavelet {wavelet!r}: choose 'haar' or longer rows.")
    if len(thresholds) > levels or not all(0 <= threshold < math.inf for threshold in thresholds):
        raise ValueError(
            f"thresholds are {thresholds}; at side {side} wavelet {wavelet!r} has {levels} levels at most, and a "
            "threshold is finite and not negative."
        )
    levels = len(thresholds) or levels
    axes = (1, 2) if shape == "image" else (1,)
    rows = released.detach().to("cpu", torch.float64).numpy().reshape(n, *(side for _ in axes))
    padded = np.pad(rows, [(0, 0)] + [(0, -side % 2**levels)] * len(axes), mode="symmetric")
    coefficients = pywt.wavedecn(padded, wavelet, mode="periodization", level=levels, axes=axes)
    for level, bands in enumerate(coefficients[1:]):
        for name, band in bands.items():
            cut = thresholds[level] * deviation if thresholds else _thresholds(band, deviation)
            bands[name] = np.sign(band) * np.maximum(np.abs(band) - cut, 0.0)
    smooth: NDArray[np.float64] = pywt.waverecn(coefficients, wavelet, mode="periodization", axes=axes)
    corner = (slice(None), *(slice(0, side) for _ in axes))
    return torch.from_numpy(np.ascontiguousarray(smooth[corner]).reshape(n, p))


def image_side(features: int) -> int:
    """Side of a square image of that many pixels; ValueError if the number is not a square."""
    features = whole(features, "features", least=1)
    side = math.isqrt(features)
    if side * side != features:
        raise ValueError(f"records have {features} features, which is no square image; this works on square images.")
    return side


def cosine_matrix(side: int) -> Tensor:
    """Matrix (side, side) of the orthonormal cosine transform (DCT-II), float64: its inverse is its transpose."""
    side = whole(side, "side", least=1)
    index = torch.arange(side, dtype=torch.float64)
    angles = math.pi / side * (index + 0.5) * index.unsqueeze(1)
    matrix = torch.cos(angles) * math.sqrt(2 / side)
    matrix[0] = math.sqrt(1 / side)
    return matrix


def _thresholds(band: NDArray[np.float64], deviation: float) -> Any:
    """The threshold of every row of a sub-band, shaped to broadcast over it."""
    signal = (band**2).mean(axis=tuple(range(1, band.ndim)), keepdims=True) - deviation**2
    return np.where(signal > 0, deviation**2 / np.sqrt(np.where(signal > 0, signal, 1.0)), np.inf)
