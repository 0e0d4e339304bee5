"""Laws of wavelet denoising with known noise."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import pywt
import torch

from fedsw.mathematics.transport.denoise import wavelet_denoise

SIGMA = 0.3


def images(side: int, count: int = 40) -> torch.Tensor:
    """Discs and slopes: piecewise smooth, (count, side * side)."""
    place = torch.linspace(-1, 1, side, dtype=torch.float64)
    x, y = torch.meshgrid(place, place, indexing="ij")
    shift = torch.linspace(-0.4, 0.4, count, dtype=torch.float64)[:, None, None]
    return (((x - shift) ** 2 + y**2 < 0.4) * 1.0 + 0.3 * x).reshape(count, -1)


def noisy(clean: torch.Tensor) -> torch.Tensor:
    return clean + SIGMA * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("side", [16, 28, 33])
def test_denoised_images_are_nearer_to_the_clean_ones(side):
    clean = images(side)
    released = noisy(clean)
    denoised = wavelet_denoise(released, SIGMA)
    error = lambda rows: float(((rows - clean) ** 2).mean())  # noqa: E731
    assert denoised.shape == clean.shape and denoised.dtype == torch.float64
    assert error(denoised) < 0.62 * error(released)


def test_denoised_vectors_are_nearer_to_the_clean_ones():
    clean = torch.sin(torch.linspace(0, 6, 100, dtype=torch.float64)).repeat(30, 1)
    released = noisy(clean)
    denoised = wavelet_denoise(released, SIGMA, shape="vector")
    assert float(((denoised - clean) ** 2).mean()) < 0.5 * float(((released - clean) ** 2).mean())


def test_the_thresholds_are_the_textbooks_in_every_row_and_band():
    released = noisy(images(16, 3)) * torch.tensor([[0.3], [1.0], [4.0]], dtype=torch.float64)
    for row, ours in zip(released.numpy(), wavelet_denoise(released, SIGMA).numpy(), strict=True):
        coefficients = pywt.wavedec2(row.reshape(16, 16), "db2", mode="periodization", level=2)
        for level, bands in enumerate(coefficients[1:], 1):
            coefficients[level] = tuple(soft(band) for band in bands)
        expected = pywt.waverec2(coefficients, "db2", mode="periodization").ravel()
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def soft(band: np.ndarray) -> np.ndarray:
    signal = float((band**2).mean()) - SIGMA**2
    if signal <= 0:
        return np.zeros_like(band)
    return pywt.threshold(band, SIGMA**2 / math.sqrt(signal), mode="soft")


@pytest.mark.parametrize("side", [8, 28, 33])
def test_without_noise_to_remove_an_image_comes_back(side):
    clean = images(side, 4)
    torch.testing.assert_close(wavelet_denoise(clean, 1e-9), clean, atol=1e-6, rtol=0)


def test_pure_noise_is_nearly_all_removed():
    released = noisy(torch.zeros(50, 1024, dtype=torch.float64))
    assert float((wavelet_denoise(released, SIGMA) ** 2).mean()) < 0.05 * SIGMA**2


def test_every_row_is_denoised_on_its_own():
    released = noisy(images(16, 5))
    alone = torch.cat([wavelet_denoise(row.unsqueeze(0), SIGMA) for row in released])
    torch.testing.assert_close(wavelet_denoise(released, SIGMA), alone)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deviation": 0.0}, "deviation is 0.0"),
        ({"shape": "cube"}, "choose one of image, vector"),
        ({"wavelet": "bior2.2"}, "not an orthogonal one"),
        ({"wavelet": "nothing"}, "not an orthogonal one"),
        ({"released": torch.zeros(2, 12)}, "12 features, which is no square image"),
        ({"released": torch.zeros(2, 4)}, "side 2 are too short"),
        ({"released": torch.zeros(4)}, r"shape \(4,\)"),
    ],
)
def test_what_cannot_be_denoised_is_refused_by_name(change, said):
    arguments = {"released": torch.zeros(2, 16), "deviation": 1.0} | change
    with pytest.raises(ValueError, match=said):
        wavelet_denoise(arguments.pop("released"), arguments.pop("deviation"), **arguments)


def test_pywavelets_is_imported_only_when_it_is_used():
    code = "import sys, fedsw.mathematics.transport.denoise; sys.exit('pywt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
