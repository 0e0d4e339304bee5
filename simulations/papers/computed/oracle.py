"""Wavelet denoising tuned by an oracle: it sees the clean private images, as no user of released ones could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pywt
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.data import mnist
from fedsw.mathematics.transport.denoise import image_side, wavelet_denoise
from fedsw.privacy.local_release import RecordRelease
from simulations.papers.measures.released import noise_of
from simulations.papers.store import Measured

_GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)


def wavelets(*, budgets: Mapping[str, Mapping[str, Any]], bases: Sequence[str], images: int) -> Measured:
    """The basis, the number of levels and the thresholds of least mean squared error on MNIST's private images.

    The noise is seeded: nothing is released, nothing is protected. What is chosen is outside every guarantee, since it
    reads the clean images; a baseline with it does better than anybody could who sees the released ones alone.

    Args:
        budgets: by name, the fields of a `RecordRelease`.
        bases: orthogonal wavelets of PyWavelets.
        images: how many of the private images are looked at.

    Returns:
        Values `<name> error`, `<name> noise` (root of the mean squared error of a pixel, denoised and as released), and
        in words `<name> choice`.

    Source: RCO, Section 4 ("chosen to minimize the average distance between the reconstructed and original image").
    """
    clean = mnist().train.features[:images].double()
    values: dict[str, Any] = {}
    for position, (name, fields) in enumerate(budgets.items()):
        release = RecordRelease(**fields)
        noise = noise_of(release, clean.shape, Stream.seeded(0, "oracle", position))
        noised = clean + noise
        found = [tuned(clean, noised, release.deviation, basis) for basis in bases]
        best = min(range(len(bases)), key=lambda index: found[index][0])
        error, thresholds = found[best]
        values[f"{name} error"], values[f"{name} noise"] = error, release.deviation
        values[f"{name} choice"] = f"{bases[best]}, thresholds {list(thresholds)}"
    return Measured(values)


def tuned(clean: Tensor, noised: Tensor, deviation: float, basis: str) -> tuple[float, tuple[float, ...]]:
    """Root mean squared error of a pixel and the thresholds (coarsest level first) that are best for a basis.

    For an orthonormal transform every level adds its own error, so thresholds are chosen one after the other.

    Args:
        clean: images (n, side^2).
        noised: the same with noise.
        deviation: of the noise.
        basis: an orthogonal wavelet of PyWavelets.
    """
    levels = pywt.dwt_max_level(image_side(clean.shape[1]), pywt.Wavelet(basis))
    best: tuple[float, tuple[float, ...]] = (float("inf"), ())
    for depth in range(1, levels + 1):
        thresholds = [_GRID[-1]] * depth
        for level in range(depth):
            tried = [[*thresholds[:level], each, *thresholds[level + 1 :]] for each in _GRID]
            errors = [_error(clean, wavelet_denoise(noised, deviation, wavelet=basis, thresholds=one)) for one in tried]
            thresholds = tried[int(np.argmin(errors))]
        error = _error(clean, wavelet_denoise(noised, deviation, wavelet=basis, thresholds=thresholds))
        best = min(best, (error, tuple(thresholds)))
    return best


def _error(clean: Tensor, found: Tensor) -> float:
    return float((clean - found).square().mean().sqrt())
