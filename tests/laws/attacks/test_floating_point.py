"""Attacks on the low bits of noise (Mironov 2012): they identify naive sums with certainty, and ours not at all.

The neighbours are a sum of zeros and one that a record moves by MU sigma, spread evenly over SIZE coordinates: an
attacker who may use anything but the low bits tells them apart with advantage 2 Phi(MU / 2) - 1 = 0.04 at best. For
Laplace noise of scale sigma that is so up to the central limit: the logarithms of its likelihood ratios have this mean
and this deviation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedsw._tools.randomness import Stream
from fedsw.privacy.mechanisms import laplace_noised, noised, spacing
from tests.laws.attacks.canaries import shown_mu

SIZE, TRIALS, MU, SIGMA = 10_000, 120, 0.1, 1.0
SHIFT = MU * SIGMA / np.sqrt(SIZE)


def _float32(value: float, seed: int) -> np.ndarray:
    """What one writes first: torch's float32 normals, scaled and added."""
    normals = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    return (torch.full((SIZE,), value) + SIGMA * normals).numpy()


def _without_the_grid(value: float, seed: int) -> np.ndarray:
    """The mutant of ours: float64 normals, scaled and added."""
    return value + SIGMA * Stream.seeded(seed, "floating point").normals(SIZE)


def _laplace_without_the_grid(value: float, seed: int) -> np.ndarray:
    """The textbook's Laplace noise, by inversion in float64."""
    uniforms = Stream.seeded(seed, "floating point").uniforms(2 * SIZE)
    magnitude = -np.log(uniforms[:SIZE])
    return value + SIGMA * np.where(uniforms[SIZE:] < 0.5, -magnitude, magnitude)


def _ours(value: float, seed: int) -> np.ndarray:
    vector = torch.full((SIZE,), value, dtype=torch.float64)
    return noised(vector, SIGMA, Stream.seeded(seed, "floating point")).numpy()


def _our_laplace(value: float, seed: int) -> np.ndarray:
    vector = torch.full((SIZE,), value, dtype=torch.float64)
    return laplace_noised(vector, SIGMA, Stream.seeded(seed, "floating point")).numpy()


NAIVE = pytest.mark.parametrize(
    "naive",
    [_float32, _without_the_grid, _laplace_without_the_grid],
    ids=["float32", "mutant: no grid", "mutant: Laplace without the grid"],
)
OURS = pytest.mark.parametrize("ours", [_ours, _our_laplace], ids=["Gaussian", "Laplace"])


def _unreachable(released: np.ndarray, value: float) -> np.ndarray:
    """Coordinates that are no float sum value + SIGMA z, for any z of the release's own format: a proof, not a guess.

    The rounded sum grows with z. If a z gives less than the release and the next larger number gives more, none
    gives the release.
    """
    kind = released.dtype.type
    z = (released - kind(value)) / kind(SIGMA)
    for _ in range(4):
        z = np.nextafter(z, kind(-np.inf))
    reached, previous = np.zeros(len(z), dtype=bool), kind(value) + kind(SIGMA) * z
    assert (previous <= released).all()
    for _ in range(8):
        z = np.nextafter(z, kind(np.inf))
        reached |= (previous == released) | (kind(value) + kind(SIGMA) * z == released)
        previous = kind(value) + kind(SIGMA) * z
    assert (previous >= released).all()
    return ~reached


def _claims(mechanism, truth: float, first: int = 0) -> np.ndarray:
    """In each of TRIALS releases of `truth`, how many coordinates no naive sum can have after the record's move."""
    return np.array([_unreachable(mechanism(truth, first + trial), SHIFT).sum() for trial in range(TRIALS)])


@NAIVE
def test_naive_noise_is_identified_with_certainty(naive):
    assert (_claims(naive, 0.0) > 0).mean() > 0.95
    assert (_claims(naive, SHIFT) == 0).all()


@OURS
def test_noise_on_a_grid_is_never_identified(ours):
    """What the attack takes for proof it finds as often in either neighbour's releases: every step is open to both."""
    assert stats.mannwhitneyu(_claims(ours, 0.0), _claims(ours, SHIFT, first=TRIALS)).pvalue > 1e-3
    steps = np.concatenate([ours(v, 0) for v in (0.0, SHIFT)]) / spacing(SIGMA)
    assert np.array_equal(steps, np.rint(steps))


def _signature(released: np.ndarray) -> np.ndarray:
    """Of each coordinate: its power of two and how many zero bits end its significand, as one number below 2^12."""
    fraction, exponent = np.frexp(released.astype(np.float64))
    whole = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
    trailing = np.log2(np.maximum(whole & -whole, 1)).astype(np.int64)
    return np.clip(exponent + 32, 0, 63) * 64 + trailing


def _learned(mechanism) -> float:
    """A lower bound on the mu an attacker shows who learns from examples which signatures each neighbour leaves."""
    counts = [
        np.bincount(np.concatenate([_signature(mechanism(v, first + s)) for s in range(TRIALS)]), minlength=4096)
        for v, first in ((0.0, 10_000), (SHIFT, 20_000))
    ]
    weights = np.log(counts[0] + 0.5) - np.log(counts[1] + 0.5)
    scores = [
        np.array([weights[_signature(mechanism(v, first + s))].sum() for s in range(TRIALS)])
        for v, first in ((0.0, 0), (SHIFT, TRIALS))
    ]
    return shown_mu(scores[0], scores[1])


@NAIVE
def test_an_attacker_who_learns_low_bits_shows_far_more_than_naive_noise_claims(naive):
    assert _learned(naive) > 10 * MU


@OURS
def test_an_attacker_who_learns_low_bits_shows_no_more_than_the_guarantee_of_noise_on_a_grid(ours):
    assert _learned(ours) <= MU


@OURS
def test_the_low_bits_of_the_steps_tell_nothing(ours):
    """The lowest four bits of the released steps, a million of each neighbour: chi-square between the two."""
    steps = [np.concatenate([ours(v, first + s) for s in range(100)]) for v, first in ((0.0, 0), (SHIFT, 1000))]
    table = [np.bincount((s / spacing(SIGMA)).astype(np.int64) & 15, minlength=16) for s in steps]
    assert stats.chi2_contingency(table).pvalue > 1e-3
