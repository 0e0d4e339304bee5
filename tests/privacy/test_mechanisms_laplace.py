"""Laws of Laplace noise on a grid: the exact rounding of the exact sum, whatever the processor's last bits are.

Those it shares with Gaussian noise are in test_mechanisms_noise.py.
"""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

from fedsw._tools.randomness import BLOCK, Stream
from fedsw.privacy import mechanisms as noise
from fedsw.privacy.mechanisms import laplace_noised, spacing

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


DOUBTS = pytest.mark.parametrize(
    ("doubt", "exact"), [(noise._DOUBT, True), (-1.0, False)], ids=["as it is", "mutant: float64 believed"]
)


@DOUBTS
def test_sums_that_float64_cannot_round_are_rounded_exactly(monkeypatch, doubt, exact):
    vector = _on_boundaries(0.7, 400, seed=2)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    monkeypatch.setattr(noise, "_LEAST", noise._LEAST if exact else 0.0)
    agree = laplace_noised(vector, 0.7, Stream.seeded(2)) == _exactly(vector, 0.7, Stream.seeded(2))
    assert agree.all() if exact else (~agree).sum() > 20


class _Elsewhere:
    """numpy with logarithms that are wrong by 2000 units in the last place: another processor, another build."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(np, name)

    def log(self, values):
        return np.log(values) * (1 + 2000 * 2.0**-53 * self._rng.uniform(-1, 1, len(values)))


@DOUBTS
def test_the_last_bits_of_logarithms_change_nothing(monkeypatch, doubt, exact):
    vector = _on_boundaries(0.7, 400, seed=3)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    here = laplace_noised(vector, 0.7, Stream.seeded(3))
    monkeypatch.setattr(noise, "np", _Elsewhere())
    assert torch.equal(here, laplace_noised(vector, 0.7, Stream.seeded(3))) is exact


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

    move = noise._exact_move(word, 0.25, 3000.0, More())
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

    monkeypatch.setattr(noise, "np", Watched())
    noise._laplace_moves(np.zeros(3000), 4095.0, _Scripted(words.tolist()).after_the_key(), Stream.seeded(6))
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
