"""Laws of Laplace noise on a grid: the exact rounding of the exact sum, whatever the processor's last bits are."""

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

from fedsw import laplace
from fedsw.laplace import laplace_noised
from fedsw.noise import spacing
from fedsw.randomness import BLOCK, Stream

GOLDEN = [-2539, 692, 733]  # steps of a release


def _standard(bits: list[int]) -> mp.mpf:
    """A Laplace variate by mpmath: the words are a signed integer W, (W + 1/2) / 2^(b-1) a uniform with a sign."""
    whole = int.from_bytes(b"".join(word.to_bytes(8, "big") for word in bits), "big", signed=True)
    uniform = (whole + mp.mpf(1) / 2) / mp.mpf(2) ** (64 * len(bits) - 1)
    return -mp.sign(uniform) * mp.log(abs(uniform))


def _exactly(vector: torch.Tensor, scale: float, stream: Stream) -> torch.Tensor:
    """The oracle: every coordinate of one block from 1024-bit uniforms, in 400 digits."""
    refinement = Stream(stream.words(4).tobytes()).child(0)
    words, step, released = stream.words(len(vector)).tolist(), spacing(scale), torch.empty_like(vector)
    with mp.workdps(400):
        for i, word in enumerate(words):
            variate = _standard([word, *refinement.child(i).words(15).tolist()])
            steps = (mp.mpf(vector[i].item()) + mp.mpf(scale) * variate) / mp.mpf(step)
            released[i] = float(mp.nint(steps) * mp.mpf(step))
    return released


def _on_boundaries(scale: float, count: int, seed: int) -> torch.Tensor:
    """A vector whose noised coordinates, in the seeded stream, are half-way between grid points as nearly as can be."""
    stream = Stream.seeded(seed)
    stream.words(4)
    with mp.workdps(40):
        variates = [float(scale * _standard([word])) for word in stream.words(count).tolist()]
    halves = (torch.arange(count, dtype=torch.float64) - count // 2 + 0.5) * spacing(scale)
    return halves - torch.tensor(variates, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 0.3, 1.9999, 7e-5, 3e11])
def test_every_coordinate_is_the_exact_sum_rounded_to_the_grid(scale):
    vector = scale * torch.linspace(-3, 3, 301, dtype=torch.float64)
    assert torch.equal(laplace_noised(vector, scale, Stream.seeded(1)), _exactly(vector, scale, Stream.seeded(1)))


@pytest.mark.parametrize("doubt", [laplace._DOUBT, -1.0], ids=["as it is", "mutant: float64 believed"])
def test_sums_that_float64_cannot_round_are_rounded_exactly(monkeypatch, doubt):
    vector = _on_boundaries(0.7, 400, seed=2)
    monkeypatch.setattr(laplace, "_DOUBT", doubt)
    monkeypatch.setattr(laplace, "_LEAST", laplace._LEAST if doubt > 0 else 0.0)
    agree = laplace_noised(vector, 0.7, Stream.seeded(2)) == _exactly(vector, 0.7, Stream.seeded(2))
    assert agree.all() if doubt > 0 else (~agree).sum() > 20


class _Elsewhere:
    """numpy with logarithms that are wrong by 2000 units in the last place: another processor, another build."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(np, name)

    def log(self, values):
        return np.log(values) * (1 + 2000 * 2.0**-53 * self._rng.uniform(-1, 1, len(values)))


@pytest.mark.parametrize("doubt", [laplace._DOUBT, -1.0], ids=["as it is", "mutant: float64 believed"])
def test_the_last_bits_of_logarithms_change_nothing(monkeypatch, doubt):
    vector = _on_boundaries(0.7, 400, seed=3)
    monkeypatch.setattr(laplace, "_DOUBT", doubt)
    here = laplace_noised(vector, 0.7, Stream.seeded(3))
    monkeypatch.setattr(laplace, "np", _Elsewhere())
    assert torch.equal(here, laplace_noised(vector, 0.7, Stream.seeded(3))) == (doubt > 0)


def test_a_seeded_release_is_the_same_on_every_machine():
    steps = laplace_noised(torch.zeros(BLOCK + 3, dtype=torch.float64), 1.0, Stream.seeded(4)) / spacing(1.0)
    assert steps[[0, 1, BLOCK + 2]].tolist() == GOLDEN


class _Scripted(Stream):
    """A stream whose words are given, after the key of the refinement."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32))
        self._script = [super().words(4), np.array(words, dtype=np.uint64)]

    def after_the_key(self) -> _Scripted:
        self._script.pop(0)
        return self

    def words(self, count):
        assert count == len(self._script[0])
        return self._script.pop(0)


def test_the_longest_and_the_shortest_noise_are_refined():
    """Words at both ends of their range: uniforms of no 64 bits yet, and uniforms next to 1."""
    words = [0, 1, 2**64 - 1, 2**64 - 2, 2**63 - 1, 2**63, 2**63 + 1, 2**40, 2**64 - 2**40]
    zeros = torch.zeros(len(words), dtype=torch.float64)
    released = laplace_noised(zeros, 1.0, _Scripted(words))
    assert torch.equal(released, _exactly(zeros, 1.0, _Scripted(words)))
    assert (released[:2] > 42).all() and (released[2:4] < -42).all() and (released[4:7] == 0).all()
    assert released[7] > 0 > released[8]


@pytest.mark.parametrize("zeros", [3, 7, 15])
@pytest.mark.parametrize("word", [0, 2**64 - 1], ids=["positive", "negative"])
def test_a_uniform_is_extended_until_its_ends_round_alike(zeros, word):
    """Words that leave the uniform next to 0 for 256, 512 or 1024 bits: no length of it is given up."""

    class More:
        drawn = [word] * zeros + [12345] * 100

        def words(self, count):
            taken, self.drawn = self.drawn[:count], self.drawn[count:]
            return np.array(taken, dtype=np.uint64)

    move = laplace._exact_move(word, 0.25, 3000.0, More())
    length = [3, 4, 8, 16, 32]
    used = next(total for total in np.cumsum(length) if total > zeros)
    with mp.workdps(900):
        variate = _standard([word] * (zeros + 1) + [12345] * (int(used) - zeros))
        assert move == int(mp.nint(mp.mpf("0.25") + 3000 * variate))


def test_float64_sums_are_as_accurate_as_the_proof_asks(monkeypatch):
    """The bound 2^-24 steps on the error of a sum, over random words and words at the edge of what is trusted."""
    words = Stream.seeded(5).words(3000)
    words[:4] = [2**43, 2**43 + 12345, 2**63 - 2**10, 2**64 - 2**43]
    sums = []

    class Watched(_Elsewhere):
        log = staticmethod(np.log)

        def rint(self, values):
            sums.extend(values.tolist())
            return np.rint(values)

    monkeypatch.setattr(laplace, "np", Watched())
    laplace._moves(np.zeros(3000), 4095.0, _Scripted(words.tolist()).after_the_key(), Stream.seeded(6))
    with mp.workdps(60):
        pairs = zip(words.tolist(), sums, strict=True)
        assert max(abs(float(4095 * _standard([word]) - found)) for word, found in pairs) < 2.0**-28


def test_the_released_steps_follow_the_rounded_laplace_law():
    """Chi-square of every step near the mode, and Kolmogorov-Smirnov of the whole, for a sum off the grid."""
    scale, mean, count = 1.0, 0.123456789, 1_000_000
    released = laplace_noised(torch.full((count,), mean, dtype=torch.float64), scale, Stream.seeded(6)).numpy()
    step = spacing(scale)
    assert stats.kstest(released, stats.laplace(mean, scale).cdf).pvalue > 1e-3
    edges = np.concatenate([[-np.inf], (np.arange(-400, 1001) + 0.5) * step, [np.inf]])
    observed = np.histogram(released, bins=edges)[0]
    expected = np.diff(stats.laplace.cdf(edges, mean, scale)) * count
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert abs(np.corrcoef(released[:-1], released[1:])[0, 1]) < 0.004


numbers = st.floats(-1e15, 1e15, allow_subnormal=False)


@given(st.lists(numbers, min_size=1, max_size=9), st.floats(1e-6, 1e6), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_every_release_is_a_multiple_of_the_step_whatever_the_sum(values, scale, seed):
    vector = torch.tensor(values, dtype=torch.float64)
    before = vector.clone()
    released, step = laplace_noised(vector, scale, Stream.seeded(seed)), spacing(scale)
    assert released.dtype == torch.float64 and torch.equal(vector, before)
    assert all((r / step).is_integer() for r in released.tolist())


@given(st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=9), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_sum_moved_by_whole_steps_moves_the_release_by_them(moves, seed):
    vector = torch.round(torch.from_numpy(Stream.seeded(seed, "vector").normals(len(moves))) * 2**20) / 2**20
    shift = torch.tensor(moves, dtype=torch.float64) * spacing(0.9)
    one, other = (laplace_noised(v, 0.9, Stream.seeded(seed)) for v in (vector, vector + shift))
    assert torch.equal(other - one, shift)


def test_every_call_draws_fresh_noise_and_keeps_the_shape():
    zeros, stream = torch.zeros((25, 2), dtype=torch.float64), Stream.seeded(8)
    first = laplace_noised(zeros, 1.0, stream)
    assert first.shape == zeros.shape and not torch.equal(first, laplace_noised(zeros, 1.0, stream))
    assert not torch.equal(laplace_noised(zeros, 1.0, Stream.secure()), laplace_noised(zeros, 1.0, Stream.secure()))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_coordinate_that_is_not_finite_stays_so_and_changes_no_other(value):
    vector = torch.ones(9, dtype=torch.float64)
    clean = laplace_noised(vector, 1.0, Stream.seeded(9))
    vector[4] = value
    released = laplace_noised(vector, 1.0, Stream.seeded(9))
    assert not math.isfinite(released[4])
    assert torch.equal(released[[0, 1, 2, 3, 5, 6, 7, 8]], clean[[0, 1, 2, 3, 5, 6, 7, 8]])


def test_sums_of_another_precision_and_scales_out_of_range_are_refused():
    with pytest.raises(TypeError, match=r"float64 sums, this one is torch\.float32"):
        laplace_noised(torch.zeros(3), 1.0, Stream.seeded(0))
    for scale in (0.0, -1.0, math.nan, math.inf, 1e-300, 1e300):
        with pytest.raises(ValueError, match=re.escape(f"noise of scale {scale} was asked")):
            laplace_noised(torch.zeros(3, dtype=torch.float64), scale, Stream.seeded(0))
