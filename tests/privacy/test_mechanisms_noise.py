"""Laws of noise on a grid: the exact rounding of the exact sum, whatever the processor's last bits are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsw._tools.randomness import BLOCK, Stream, box_muller
from fedsw.privacy import mechanisms as noise
from fedsw.privacy.mechanisms import exact_normals, gaussian_sigma, laplace_noised, laplace_scale, noised, spacing
from tests.doors import privatised

DIGITS = 150


def _pair(radius: list[int], angle: list[int]) -> tuple[mp.mpf, mp.mpf]:
    """Box-Muller by mpmath, of signed integers made of words, most significant first."""

    def centred(words):
        whole = int.from_bytes(b"".join(int(w).to_bytes(8, "big") for w in words), "big", signed=True)
        return (whole + mp.mpf(1) / 2) / mp.mpf(2) ** (64 * len(words) - 1)

    length, turn = mp.sqrt(-2 * mp.log(abs(centred(radius)))), mp.pi * centred(angle)
    return length * mp.cos(turn), length * mp.sin(turn)


def _exactly_normal(vector: torch.Tensor, sigma: float, stream: Stream) -> torch.Tensor:
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


def _standard(bits: list[int]) -> mp.mpf:
    """A Laplace variate by mpmath: the words are a signed integer W, (W + 1/2) / 2^(b-1) a uniform with a sign."""
    whole = int.from_bytes(b"".join(word.to_bytes(8, "big") for word in bits), "big", signed=True)
    uniform = (whole + mp.mpf(1) / 2) / mp.mpf(2) ** (64 * len(bits) - 1)
    return -mp.sign(uniform) * mp.log(abs(uniform))


def _exactly_laplace(vector: torch.Tensor, scale: float, stream: Stream) -> torch.Tensor:
    """The oracle: every coordinate of one block from 1024-bit uniforms, in 400 digits."""
    refinement = Stream(stream.words(4).tobytes()).child(0)
    words, step, released = stream.words(len(vector)).tolist(), spacing(scale), torch.empty_like(vector)
    with mp.workdps(400):
        for i, word in enumerate(words):
            variate = _standard([word, *refinement.child(i).words(15).tolist()])
            steps = (mp.mpf(vector[i].item()) + mp.mpf(scale) * variate) / mp.mpf(step)
            released[i] = float(mp.nint(steps) * mp.mpf(step))
    return released


def _scaled_laplace(stream: Stream, count: int, scale: float) -> torch.Tensor:
    with mp.workdps(40):
        variates = [float(scale * _standard([word])) for word in stream.words(count).tolist()]
    return torch.tensor(variates, dtype=torch.float64)


def _wrong_box_muller(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)

    def elsewhere(words, out):
        extremes = box_muller(words, out)
        out *= 1 + 2000 * 2.0**-53 * rng.uniform(-1, 1, len(out))
        return extremes

    monkeypatch.setattr(noise, "box_muller", elsewhere)


def _wrong_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)

    class Elsewhere:
        def __getattr__(self, name):
            return getattr(np, name)

        def log(self, values):
            return np.log(values) * (1 + 2000 * 2.0**-53 * rng.uniform(-1, 1, len(values)))

    monkeypatch.setattr(noise, "np", Elsewhere())


@dataclass(frozen=True)
class Law:
    """A noise on the grid, and what it is held against.

    Attributes:
        release: from a sum, a scale and a stream to what leaves.
        exactly: the same by mpmath.
        scaled: variates of the words of a stream, times a scale, in float64.
        elsewhere: lets functions be wrong by 2000 units in the last place, as on another processor or build.
        golden: steps of a seeded release, by place.
        law: scipy's.
        edges: steps about the mode from which on the tails are one bin.
    """

    release: Callable[[torch.Tensor, float, Stream], torch.Tensor]
    exactly: Callable[[torch.Tensor, float, Stream], torch.Tensor]
    scaled: Callable[[Stream, int, float], torch.Tensor]
    elsewhere: Callable[[pytest.MonkeyPatch], None]
    golden: dict[int, int]
    law: Any
    edges: tuple[int, int]


LAWS = {
    "gaussian": Law(
        noised,
        _exactly_normal,
        lambda stream, count, scale: scale * torch.from_numpy(stream.normals(count)),
        _wrong_box_muller,
        {0: -2764, 1: 296, 2: -399, BLOCK - 1: 629, BLOCK: -2546, BLOCK + 2: 3521},
        stats.norm,
        (-400, 401),
    ),
    "laplace": Law(
        laplace_noised,
        _exactly_laplace,
        _scaled_laplace,
        _wrong_logarithms,
        {0: -2539, 1: 692, BLOCK + 2: 733},
        stats.laplace,
        (-400, 1001),
    ),
}
every = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def _on_boundaries(law: Law, scale: float, count: int, seed: int) -> torch.Tensor:
    """A vector whose noised coordinates, in the seeded stream, are half-way between grid points as nearly as can be."""
    stream = Stream.seeded(seed)
    stream.words(4)
    halves = (torch.arange(count, dtype=torch.float64) - count // 2 + 0.5) * spacing(scale)
    return halves - law.scaled(stream, count, scale)


@every
@pytest.mark.parametrize("scale", [1.0, 0.3, 1.9999, 7e-5, 3e11])
def test_every_coordinate_is_the_exact_sum_rounded_to_the_grid(law, scale):
    vector = scale * torch.linspace(-3, 3, 301, dtype=torch.float64)
    assert torch.equal(law.release(vector, scale, Stream.seeded(1)), law.exactly(vector, scale, Stream.seeded(1)))


DOUBTS = pytest.mark.parametrize(
    ("doubt", "exact"), [(noise._DOUBT, True), (-1.0, False)], ids=["as it is", "mutant: float64 believed"]
)


@every
@DOUBTS
def test_sums_that_float64_cannot_round_are_rounded_exactly(monkeypatch, law, doubt, exact):
    vector = _on_boundaries(law, 0.7, 400, seed=2)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    monkeypatch.setattr(noise, "_LEAST", noise._LEAST if exact else 0.0)
    agree = law.release(vector, 0.7, Stream.seeded(2)) == law.exactly(vector, 0.7, Stream.seeded(2))
    assert agree.all() if exact else (~agree).sum() > 20


@every
@DOUBTS
def test_the_last_bits_of_a_processors_functions_change_nothing(monkeypatch, law, doubt, exact):
    vector = _on_boundaries(law, 0.7, 400, seed=3)
    monkeypatch.setattr(noise, "_DOUBT", doubt)
    here = law.release(vector, 0.7, Stream.seeded(3))
    law.elsewhere(monkeypatch)
    assert torch.equal(here, law.release(vector, 0.7, Stream.seeded(3))) is exact


@every
def test_a_seeded_release_is_the_same_on_every_machine(law):
    steps = law.release(torch.zeros(BLOCK + 3, dtype=torch.float64), 1.0, Stream.seeded(4)) / spacing(1.0)
    assert {place: steps[place] for place in law.golden} == law.golden


@every
def test_the_released_steps_follow_the_rounded_law(law):
    """Chi-square of every step near the mode, and Kolmogorov-Smirnov of the whole, for a sum off the grid."""
    scale, mean, count = 1.0, 0.123456789, 1_000_000
    released = law.release(torch.full((count,), mean, dtype=torch.float64), scale, Stream.seeded(6)).numpy()
    assert stats.kstest(released, law.law(mean, scale).cdf).pvalue > 1e-3
    edges = np.concatenate([[-np.inf], (np.arange(*law.edges) + 0.5) * spacing(scale), [np.inf]])
    observed, expected = np.histogram(released, bins=edges)[0], np.diff(law.law.cdf(edges, mean, scale)) * count
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert abs(released.std() - law.law(mean, scale).std()) < 0.006
    assert abs(np.corrcoef(released[:-1], released[1:])[0, 1]) < 0.004


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


def test_extreme_radii_are_refined():
    """Words at both ends of their range: radii near 0 and beyond what 64 bits tell apart."""
    radii = [0, 1, 2**64 - 1, 2**63 - 1, 2**63, 2**63 - 2**41, 2**40, 2**62]
    angles = [2**60 + 12345] * len(radii)
    zeros = torch.zeros(2 * len(radii), dtype=torch.float64)
    released = noised(zeros, 1.0, _Scripted(radii + angles))
    assert torch.equal(released, _exactly_normal(zeros, 1.0, _Scripted(radii + angles)))
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


def test_the_longest_and_the_shortest_noise_are_refined():
    """Words at both ends of their range: uniforms of no 64 bits yet, and uniforms next to 1."""
    words = [0, 1, 2**64 - 1, 2**64 - 2, 2**63 - 1, 2**63, 2**63 + 1, 2**40, 2**64 - 2**40]
    zeros = torch.zeros(len(words), dtype=torch.float64)
    released = laplace_noised(zeros, 1.0, _Scripted(words))
    assert torch.equal(released, _exactly_laplace(zeros, 1.0, _Scripted(words)))
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

    class Watched:
        def __getattr__(self, name):
            return getattr(np, name)

        def rint(self, values):
            sums.extend(values.tolist())
            return np.rint(values)

    monkeypatch.setattr(noise, "np", Watched())
    noise._laplace_moves(np.zeros(3000), 4095.0, _Scripted(words.tolist()).after_the_key(), Stream.seeded(6))
    with mp.workdps(60):
        pairs = zip(words.tolist(), sums, strict=True)
        assert max(abs(float(4095 * _standard([word]) - found)) for word, found in pairs) < 2.0**-28


numbers = st.floats(-1e15, 1e15, allow_subnormal=False)
either = pytest.mark.parametrize("noise_of", [law.release for law in LAWS.values()], ids=LAWS)


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


BUDGETS = [(e, d) for e in (0.01, 0.3, 1.0, 5.0, 30.0) for d in (1e-12, 1e-5, 1e-2, 0.3)]


def exact_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """delta(epsilon) of N(sensitivity, sigma^2) against N(0, sigma^2), by the normal law of its privacy loss."""
    mu = sensitivity / sigma
    first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(stats.norm.cdf(first) - math.exp(epsilon + stats.norm.logcdf(second)))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_true_delta_of_every_calibration_is_within_the_asked_one(epsilon, delta):
    for calibration in ("analytic", "rco"):
        sigma = gaussian_sigma(epsilon, delta, 3.0, calibration)
        assert exact_delta(epsilon, sigma, 3.0) <= delta * (1 + 1e-9), calibration


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_analytic_sigma_is_the_least_and_never_too_small(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta, 1.0)
    assert exact_delta(epsilon, sigma * (1 - 1e-6), 1.0) > delta
    assert gaussian_sigma(epsilon, delta, 1.0, "rco") > sigma


def test_the_closed_form_of_delta_is_the_integral_of_the_excess_density():
    sigma = gaussian_sigma(1.0, 1e-3, 2.0)
    excess = integrate.quad(
        lambda x: max(0.0, stats.norm.pdf(x, 2.0, sigma) - math.e * stats.norm.pdf(x, 0.0, sigma)),
        -10 * sigma,
        2 + 12 * sigma,
        limit=400,
        points=[sigma**2 / 2 + 1],
    )[0]
    assert excess == pytest.approx(1e-3, rel=1e-5)


def test_rco_is_equation_4():
    epsilon, delta = 0.7, 1e-4
    c = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    expected = (c + math.sqrt(c * c + epsilon)) / (epsilon * math.sqrt(2)) * 5
    assert gaussian_sigma(epsilon, delta, 5.0, "rco") == pytest.approx(expected, rel=1e-8)


def test_sigma_is_proportional_to_the_sensitivity_and_falls_with_the_budget():
    assert gaussian_sigma(1.0, 1e-5, 2.0) == pytest.approx(2 * gaussian_sigma(1.0, 1e-5, 1.0), rel=1e-12)
    assert gaussian_sigma(1.0, 1e-5, 1.0) > gaussian_sigma(1.1, 1e-5, 1.0) > gaussian_sigma(1.1, 1e-4, 1.0)


def test_a_laplace_release_has_a_likelihood_ratio_of_at_most_e_to_the_epsilon():
    scale = laplace_scale(0.4, 3.0)
    points = np.linspace(-50, 50, 2001)
    ratio = stats.laplace.logpdf(points, 0.0, scale) - stats.laplace.logpdf(points, 3.0, scale)
    assert 0.4 * (1 - 1e-6) <= ratio.max() <= 0.4


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_follows_its_law_and_its_scale(mechanism):
    rows = torch.full((1000, 200), 0.7, dtype=torch.float64)
    drawn = (privatised(mechanism, rows, 2.5, Stream.seeded(11, "noise")) - rows).numpy()
    assert drawn.dtype == np.float64 and drawn.shape == (1000, 200)
    assert stats.kstest(drawn.ravel(), LAWS[mechanism].law(0, 2.5).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(np.abs(drawn[:, 0]), drawn[:, 1])[0, 1]) < 0.15
    assert abs(np.corrcoef(drawn.ravel()[:-1], drawn.ravel()[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_comes_from_its_stream_alone_and_is_released_on_a_grid(mechanism):
    rows = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(10, 5)
    first, again, other = (privatised(mechanism, rows, 0.3, Stream.seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert all((value / spacing(0.3)).is_integer() for value in first.flatten().tolist())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_is_no_budget_is_refused(epsilon):
    for call in (lambda: gaussian_sigma(epsilon, 1e-5, 1.0), lambda: laplace_scale(epsilon, 1.0)):
        with pytest.raises(ValueError, match=f"epsilon is {epsilon}; it must be positive"):
            call()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1.0, 0.0, 1.0), "delta is 0.0; Gaussian noise needs delta"),
        ((1.0, 1.0, 1.0), "delta is 1.0; Gaussian noise needs delta"),
        ((1.0, math.nan, 1.0), "delta is nan"),
        ((1.0, 0.5, 1.0, "rco"), "'rco' needs delta below 1/2"),
        ((1.0, 1e-5, 0.0), "sensitivity is 0.0"),
        ((1.0, 1e-5, math.inf), "sensitivity is inf"),
        ((1.0, 1e-5, 1.0, "classic"), "choose one of analytic, rco"),
    ],
)
def test_what_gives_no_sigma_is_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        gaussian_sigma(*arguments)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_a_positive_scale_is_refused(mechanism, scale):
    with pytest.raises(ValueError, match=f"noise of scale {scale}"):
        privatised(mechanism, torch.zeros(1, dtype=torch.float64), scale, Stream.seeded(1))


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(ValueError, match="there are 'gaussian', 'laplace'"):
        privatised("cauchy", torch.zeros(1, dtype=torch.float64), 1.0, Stream.seeded(1))
