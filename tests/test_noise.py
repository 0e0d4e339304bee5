"""Laws of noise on a grid: the exact rounding of the exact sum, whatever the processor's last bits are."""

from __future__ import annotations

import math
import re

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsw.privacy import noise
from fedsw.privacy.noise import exact_normals, laplace_noised, noised, spacing
from fedsw.randomness import BLOCK, Stream, box_muller

DIGITS = 150
GOLDEN = [-2764, 296, -399, 629, -2546, 3521]  # steps of a release


def _pair(radius: list[int], angle: list[int]) -> tuple[mp.mpf, mp.mpf]:
    """Box-Muller by mpmath, of signed integers made of words, most significant first."""

    def centred(words):
        whole = int.from_bytes(b"".join(int(w).to_bytes(8, "big") for w in words), "big", signed=True)
        return (whole + mp.mpf(1) / 2) / mp.mpf(2) ** (64 * len(words) - 1)

    length, turn = mp.sqrt(-2 * mp.log(abs(centred(radius)))), mp.pi * centred(angle)
    return length * mp.cos(turn), length * mp.sin(turn)


def _exactly(vector: torch.Tensor, sigma: float, stream: Stream) -> torch.Tensor:
    """The oracle: every coordinate of one block from 256-bit uniforms, in 150 digits."""
    refinement = Stream(stream.words(4).tobytes()).child(0)
    pairs = (len(vector) + 1) // 2
    words, step, released = stream.words(2 * pairs).tolist(), spacing(sigma), torch.empty_like(vector)
    with mp.workdps(DIGITS):
        for i in range(pairs):
            more = refinement.child(i).words(6).tolist()
            normals = _pair([words[i], *more[:3]], [words[pairs + i], *more[3:]])
            for position, normal in zip((i, pairs + i), normals, strict=True):
                if position < len(vector):
                    steps = (mp.mpf(vector[position].item()) + mp.mpf(sigma) * normal) / mp.mpf(step)
                    released[position] = float(mp.nint(steps) * mp.mpf(step))
    return released


def _on_boundaries(sigma: float, count: int, seed: int) -> torch.Tensor:
    """A vector whose noised coordinates, in the seeded stream, are half-way between grid points as nearly as can be."""
    stream = Stream.seeded(seed)
    stream.words(4)
    normals, step = torch.from_numpy(stream.normals(count)), spacing(sigma)
    halves = (torch.arange(count, dtype=torch.float64) - count // 2 + 0.5) * step
    return halves - sigma * normals


@pytest.mark.parametrize("sigma", [1.0, 0.3, 1.9999, 7e-5, 3e11])
def test_every_coordinate_is_the_exact_sum_rounded_to_the_grid(sigma):
    vector = sigma * torch.linspace(-3, 3, 301, dtype=torch.float64)
    assert torch.equal(noised(vector, sigma, Stream.seeded(1)), _exactly(vector, sigma, Stream.seeded(1)))


DOUBTS = pytest.mark.parametrize(
    ("doubt", "exact"), [(noise._DOUBT, True), (-1.0, False)], ids=["as it is", "mutant: float64 believed"]
)


@DOUBTS
def test_sums_that_float64_cannot_round_are_rounded_exactly(monkeypatch, doubt, exact):
    vector = _on_boundaries(0.7, 400, seed=2)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    agree = noised(vector, 0.7, Stream.seeded(2)) == _exactly(vector, 0.7, Stream.seeded(2))
    assert agree.all() if exact else (~agree).sum() > 20


@DOUBTS
def test_the_last_bits_of_logarithms_and_sines_change_nothing(monkeypatch, doubt, exact):
    """Functions that are wrong by 2000 units in the last place stand for another processor and other builds."""
    vector = _on_boundaries(0.7, 400, seed=3)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    here = noised(vector, 0.7, Stream.seeded(3))
    rng = np.random.default_rng(0)

    def elsewhere(words, out):
        extremes = box_muller(words, out)
        out *= 1 + 2000 * 2.0**-53 * rng.uniform(-1, 1, len(out))
        return extremes

    monkeypatch.setattr(noise, "box_muller", elsewhere)
    there = noised(vector, 0.7, Stream.seeded(3))
    assert torch.equal(here, there) is exact


def test_a_seeded_release_is_the_same_on_every_machine():
    steps = noised(torch.zeros(BLOCK + 3, dtype=torch.float64), 1.0, Stream.seeded(4)) / spacing(1.0)
    assert steps[[0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 2]].tolist() == GOLDEN


class _Scripted(Stream):
    """A stream whose words are given, after the key of the refinement."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32))
        self._script = [super().words(4), np.array(words, dtype=np.uint64)]

    def words(self, count):
        assert count == len(self._script[0])
        return self._script.pop(0)


def test_extreme_radii_are_refined():
    """Words at both ends of their range: radii near 0 and beyond what 64 bits tell apart."""
    radii = [0, 1, 2**64 - 1, 2**63 - 1, 2**63, 2**63 - 2**41, 2**40, 2**62]
    angles = [2**60 + 12345] * len(radii)
    zeros = torch.zeros(2 * len(radii), dtype=torch.float64)
    released = noised(zeros, 1.0, _Scripted(radii + angles))
    assert torch.equal(released, _exactly(zeros, 1.0, _Scripted(radii + angles)))
    length = torch.hypot(released[:8], released[8:])
    assert (length[:3] > 9.2).all() and (length[3:6] < 2 * spacing(1.0)).all()


def test_float64_normals_are_as_accurate_as_the_proof_asks():
    """The bound 2^-42 on the error of a normal, over random words and words at the edges of the trusted radii."""
    edges = [int(2**63 * math.exp(-(r**2) / 2)) for r in (noise._RADII[0] * 1.01, 0.01, 0.1, 1.0, 5.0, 5.59)]
    words = Stream.seeded(5).words(4000)
    words[: len(edges)] = edges
    normals = np.empty(4000)
    box_muller(words, normals)
    worst = 0.0
    with mp.workdps(60):
        for i in range(2000):
            length = _pair([int(words[i])], [0])[0]
            if noise._RADII[0] <= length <= noise._RADII[1]:
                exact = _pair([int(words[i])], [int(words[2000 + i])])
                worst = max(worst, *(abs(float(e - n)) for e, n in zip(exact, normals[[i, 2000 + i]], strict=True)))
    assert worst < 2.0**-42


def test_exact_normals_agree_with_mpmath_to_110_digits():
    for seed in range(20):
        words = Stream.seeded(seed, "exact").words(8).tolist()
        with mp.workdps(DIGITS):
            for ours, theirs in zip(exact_normals(words[:4], words[4:]), _pair(words[:4], words[4:]), strict=True):
                assert abs(mp.mpf(str(ours)) - theirs) < mp.mpf(10) ** -110


def test_the_released_steps_follow_the_rounded_normal_law():
    """Chi-square of every step near the mode, and Kolmogorov-Smirnov of the whole, for a sum off the grid."""
    sigma, mean, count = 1.0, 0.123456789, 1_000_000
    released = noised(torch.full((count,), mean, dtype=torch.float64), sigma, Stream.seeded(6)).numpy()
    step = spacing(sigma)
    assert stats.kstest(released, stats.norm(mean, sigma).cdf).pvalue > 1e-3
    edges = (np.arange(-400, 401) + 0.5) * step
    observed = np.histogram(released, bins=np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    expected = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]), mean, sigma)) * count
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert abs(released.std() - sigma) < 0.004


numbers = st.floats(-1e15, 1e15, allow_subnormal=False)
either = pytest.mark.parametrize("noise_of", [noised, laplace_noised], ids=["Gaussian", "Laplace"])


@either
@given(st.lists(numbers, min_size=1, max_size=9), st.floats(1e-6, 1e6), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_every_release_is_a_multiple_of_the_step_whatever_the_sum(noise_of, values, sigma, seed):
    vector = torch.tensor(values, dtype=torch.float64)
    before = vector.clone()
    released, step = noise_of(vector, sigma, Stream.seeded(seed)), spacing(sigma)
    assert math.frexp(step)[0] == 0.5 and sigma / 4096 < step <= sigma / 2048
    assert released.dtype == torch.float64 and torch.equal(vector, before)
    assert all((r / step).is_integer() for r in released.tolist())


@either
@given(st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=9), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_sum_moved_by_whole_steps_moves_the_release_by_them(noise_of, moves, seed):
    vector = torch.from_numpy(Stream.seeded(seed, "vector").normals(len(moves)))
    vector = torch.round(vector * 2**20) / 2**20
    shift = torch.tensor(moves, dtype=torch.float64) * spacing(0.9)
    one, other = (noise_of(v, 0.9, Stream.seeded(seed)) for v in (vector, vector + shift))
    assert torch.equal(other - one, shift)


@either
def test_blocks_shapes_and_odd_sizes_are_noised_independently(noise_of):
    flat = noise_of(torch.zeros(2 * BLOCK + 1, dtype=torch.float64), 1.0, Stream.seeded(7))
    shaped = noise_of(torch.zeros((2 * BLOCK + 1, 1), dtype=torch.float64), 1.0, Stream.seeded(7))
    assert torch.equal(shaped.flatten(), flat) and shaped.shape == (2 * BLOCK + 1, 1)
    half = BLOCK // 2
    for other in (slice(half, BLOCK), slice(BLOCK, BLOCK + half), slice(BLOCK + half, 2 * BLOCK)):
        assert abs(np.corrcoef(flat[:half], flat[other])[0, 1]) < 0.03
    assert noise_of(torch.zeros(0, dtype=torch.float64), 1.0, Stream.secure()).shape == (0,)


@either
def test_every_call_draws_fresh_noise(noise_of):
    zeros, stream = torch.zeros(50, dtype=torch.float64), Stream.seeded(8)
    assert not torch.equal(noise_of(zeros, 1.0, stream), noise_of(zeros, 1.0, stream))
    assert not torch.equal(noise_of(zeros, 1.0, Stream.secure()), noise_of(zeros, 1.0, Stream.secure()))


@either
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_coordinate_that_is_not_finite_stays_so_and_changes_no_other(noise_of, value):
    vector = torch.ones(9, dtype=torch.float64)
    clean = noise_of(vector, 1.0, Stream.seeded(9))
    vector[4] = value
    released = noise_of(vector, 1.0, Stream.seeded(9))
    assert not math.isfinite(released[4])
    assert torch.equal(released[[0, 1, 2, 3, 5, 6, 7, 8]], clean[[0, 1, 2, 3, 5, 6, 7, 8]])


@either
def test_sums_of_another_precision_and_scales_out_of_range_are_refused(noise_of):
    with pytest.raises(TypeError, match=r"float64 sums, this one is torch\.float32"):
        noise_of(torch.zeros(3), 1.0, Stream.seeded(0))
    for sigma in (0.0, -1.0, math.nan, math.inf, 1e-300, 1e300):
        with pytest.raises(ValueError, match=re.escape(f"noise of scale {sigma} was asked")):
            noise_of(torch.zeros(3, dtype=torch.float64), sigma, Stream.seeded(0))
