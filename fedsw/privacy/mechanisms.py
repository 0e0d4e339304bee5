"""Noise that hides one record: Gaussian and Laplace noise on a grid, exact in every bit; scales for one release.

The noise multiplier of many rounds is made by `fedsw.privacy.plan.calibrated`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw._tools.randomness import BLOCK, KEY_BYTES, Stream, box_muller
from fedsw._tools.registry import Registry, Word
from fedsw._tools.text import upward
from fedsw.privacy.accountants import ACCOUNTANTS, GAUSSIAN, LAPLACE, accountant_named, let_take, word_of
from fedsw.privacy.accounting.profiles import gaussian_profile
from fedsw.privacy.sensitivity import Norm

if TYPE_CHECKING:
    from torch import Tensor

Calibration = Literal["analytic", "rco"]

_ROUNDING = 1e-9  # relative, on every scale: far above the rounding of the formulas, far below what anybody notices
_LEAST_DELTA = 1e-100  # below it the tail of the normal law leaves double precision's range


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float, calibration: Calibration = "analytic") -> float:
    """Standard deviation of Gaussian noise that makes one release (epsilon, delta)-private.

    Guarantee: with noise N(0, sigma^2 I) on a vector that moves by at most `sensitivity` in l2 norm, the release is
    (epsilon, delta)-differentially private under the relation that the sensitivity is for. "analytic" is the least
    such sigma, to about 1e-9 relative and never below it; "rco" is
    (c + sqrt(c^2 + epsilon)) / (epsilon sqrt 2) * sensitivity with c^2 = ln(2 / (sqrt(16 delta + 1) - 1)), which is
    larger. Proofs: docs/guarantees/slices.md. ValueError if epsilon or the sensitivity is not positive and finite,
    delta is outside [1e-100, 1) (for "rco": [1e-100, 1/2)), or the calibration is unknown.

    Sources: Balle and Wang 2018, Theorem 8 (analytic); RCO, equation (4), after Zhao et al. 2019.
    """
    _check(epsilon, sensitivity)
    if not _LEAST_DELTA <= delta < 1.0:
        raise ValueError(
            f"delta is {delta}; Gaussian noise needs delta in [{upward(_LEAST_DELTA)}, 1), well below 1/n."
        )
    if calibration == "rco":
        if delta >= 0.5:
            raise ValueError(f"delta is {delta}; calibration 'rco' needs delta below 1/2. Use 'analytic'.")
        c_squared = math.log((math.sqrt(16 * delta + 1) + 1) / (8 * delta))  # the same without cancellation
        multiplier = (math.sqrt(c_squared) + math.sqrt(c_squared + epsilon)) / (epsilon * math.sqrt(2))
    elif calibration == "analytic":
        multiplier = _least_multiplier(epsilon, delta)
    else:
        raise ValueError(f"calibration is {calibration!r}; choose one of {', '.join(get_args(Calibration))}.")
    return multiplier * sensitivity * (1 + _ROUNDING)


def laplace_scale(epsilon: float, sensitivity: float) -> float:
    """Scale b of Laplace noise, of density exp(-|x| / b) / 2b, that makes one release epsilon-private.

    Guarantee: on a vector that moves by at most `sensitivity` in l1 norm the release is (epsilon, 0)-differentially
    private. Source: Dwork, McSherry, Nissim, Smith 2006. ValueError if a number is not positive and finite.
    """
    _check(epsilon, sensitivity)
    return sensitivity / epsilon * (1 + _ROUNDING)


@functools.lru_cache(maxsize=64)
def _least_multiplier(epsilon: float, delta: float) -> float:
    """Least sigma / sensitivity with an exact delta(epsilon) of at most delta: the upper end of a bisection."""
    at = np.array(epsilon)

    def meets(multiplier: float) -> bool:
        # the absolute error of the profile, a few 1e-16, matters where its tail is not used: for large delta
        slack = 1e-12 * delta + (1e-14 if delta > 1e-3 else 0.0)
        return float(gaussian_profile(at, 1 / multiplier)) <= delta - slack

    high = 1.0
    while not meets(high):
        high *= 2
    low = high / 2
    while meets(low):
        low, high = low / 2, low
    while high > (1 + 1e-10) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _check(epsilon: float, sensitivity: float) -> None:
    if not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be positive and finite (inf would mean no noise).")
    if not 0.0 < sensitivity < math.inf:
        raise ValueError(f"the sensitivity is {sensitivity}; it must be positive and finite: clip the records first.")


_BITS = 12  # the scale is between 2^11 and 2^12 steps of the grid
_LEAST_SCALE, _MOST_SCALE = 2.0**-900, 2.0**900
# A float64 result is trusted when it is not within DOUBT of a rounding boundary, in steps, and its radius is in
# RADII; then its error is below 2^-28 steps. Chances are 1.6e-6 a pair that one of these fails.
_DOUBT = 2.0**-22
_RADII = (2.0**-10, 5.6)
_MORE_WORDS = 3  # 64-bit words that extend each of a pair's two words when float64 does not settle it
Moves = Callable[[NDArray[np.float64], float, Stream, Stream], NDArray[np.float64]]
_DIGITS = Context(prec=120, rounding=ROUND_HALF_EVEN)
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
    "214808651328230664709384460955"
)


def spacing(scale: float) -> float:
    """Step of the grid that noise of a scale (sigma of Gaussian noise) is released on: a power of two.

    It is between scale / 4096 and scale / 2048. ValueError for a scale outside [2^-900, 2^900], where steps or sums
    would leave float64's range.
    """
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        raise ValueError(
            f"noise of scale {scale} was asked; noise on a grid has a scale (sigma of Gaussian noise) between 2^-900 "
            "and 2^900. Rescale the clipping bounds."
        )
    return math.ldexp(1.0, math.frexp(scale)[1] - _BITS)


def noised(vector: Tensor, sigma: float, stream: Stream, *, step: float | None = None) -> Tensor:
    """`vector` + N(0, sigma^2 I), rounded to the nearest multiple of `spacing(sigma)`; float64, same shape, a copy.

    Guarantee: the result has the law of round((v + sigma Z) / g) g with Z exactly normal, computed in exact arithmetic
    from the float64 numbers v and sigma, up to 2^-115 in total variation a coordinate. Rounding reads nothing but the
    noised vector: whatever is proved of the Gaussian mechanism with noise sigma, for whatever relation and sensitivity
    of v, holds for the bits of the result, at the same sigma and with no enlarged sensitivity
    (docs/guarantees/grid.md). Rounding adds less than 2^-25 to the noise's variance, relative.

    Every coordinate is first computed in float64. Where the float64 result is so close to a rounding boundary, or the
    radius so extreme, that its rounding could be wrong (about one pair of coordinates in 600 000), the pair's two
    uniforms are extended to 256 bits and the rounding is decided in 120 digits. So the result depends on the vector,
    sigma and the stream, and not on the processor's or a library's last bits.

    The vector is not checked for finite values, since nothing may depend on a record's value here: a coordinate that
    is not finite stays so. A ``step`` of the grid, at least `spacing(sigma)`, is given where several noised vectors
    need the same one. TypeError if the vector is not float64; ValueError if sigma is outside [2^-900, 2^900], or the
    step is not a power of two or too fine.

    Source: interval refining (Haney, Desfontaines, Hartman, Shrestha, Hay 2022) of Box-Muller normals.
    """
    return released_on_grid(vector, sigma, stream, _moves, step=step)


def released_on_grid(
    vector: Tensor, scale: float, stream: Stream, moves: Moves, *, step: float | None = None
) -> Tensor:
    """Add noise of any law to `vector`, of any shape, and round to multiples of `spacing(scale)`.

    ``moves`` is the law: it takes offsets in [-1/2, 1/2] (at most BLOCK of them), the scale in steps, the stream and
    a stream for refinements, and returns the offsets plus noise, rounded to whole numbers. Errors are as of `noised`.
    """
    if vector.dtype != torch.float64:
        raise TypeError(
            f"noise is added to float64 sums, this one is {vector.dtype}; add in float64 and cast afterwards"
        )
    finest = spacing(scale)
    step = finest if step is None else step
    if not (step >= finest and math.frexp(step)[0] == 0.5):
        raise ValueError(f"a grid of step {step} was asked; it is a power of two, at least {finest} for such noise")
    values = vector.detach().reshape(-1).contiguous().numpy()
    released = np.empty_like(values)
    refinement = Stream(stream.words(KEY_BYTES // 8).astype("<u8").tobytes())
    with np.errstate(invalid="ignore", over="ignore"):
        for number, start in enumerate(range(0, len(values), BLOCK)):
            part = slice(start, start + BLOCK)
            # The nearest whole number of steps and the rest in [-1/2, 1/2], exactly: the step is a power of two.
            offsets = values[part] * (1 / step)
            cells = np.rint(offsets)
            offsets -= cells
            cells += moves(offsets, scale / step, stream, refinement.child(number))
            np.multiply(cells, step, out=released[part])
    return torch.from_numpy(released).reshape(vector.shape)


def _moves(offsets: NDArray[np.float64], scale: float, stream: Stream, refinement: Stream) -> NDArray[np.float64]:
    """offsets + scale Z rounded to whole numbers, at most BLOCK; positions i and pairs + i share two words."""
    count = len(offsets)
    pairs = (count + 1) // 2
    words = stream.words(2 * pairs)
    normals = np.empty(2 * pairs)
    least, most = box_muller(words, normals)
    sums = normals[:count]
    sums *= scale
    sums += offsets
    moves = np.rint(sums)
    sums -= moves
    if max(sums.max(), -sums.min()) <= 0.5 - _DOUBT and _RADII[0] <= least and most <= _RADII[1]:
        return moves
    for pair in _doubtful(words, sums):
        more = refinement.child(pair).words(2 * _MORE_WORDS).tolist()
        radius = [int(words[pair]), *more[:_MORE_WORDS]]
        angle = [int(words[pairs + pair]), *more[_MORE_WORDS:]]
        for position, normal in zip((pair, pairs + pair), exact_normals(radius, angle), strict=True):
            if position < count and math.isfinite(offsets[position]):
                with localcontext(_DIGITS):
                    moves[position] = int((Decimal(scale) * normal + Decimal(offsets[position])).to_integral_value())
    return moves


def _doubtful(words: NDArray[np.uint64], remainders: NDArray[np.float64]) -> Iterable[int]:
    """Pairs with an extreme radius, or with a coordinate close to a rounding boundary; in order."""
    pairs = len(words) // 2
    uniforms = np.abs(words[:pairs].view(np.int64).astype(np.float64) + 0.5) * 2.0**-63
    radii = np.sqrt(-2 * np.log(uniforms))
    close = np.flatnonzero(np.abs(remainders) > 0.5 - _DOUBT) % pairs
    extreme = np.flatnonzero((radii < _RADII[0]) | (radii > _RADII[1]))
    return [int(pair) for pair in np.union1d(close, extreme)]


def exact_normals(radius: Sequence[int], angle: Sequence[int]) -> tuple[Decimal, Decimal]:
    """The two Box-Muller normals of uniforms of 64 bits a word, most significant word first, to 115 digits.

    The first words are those of `fedsw._tools.randomness.box_muller`; this extends its definition: the words of each
    uniform are one signed integer W of b bits, u = |W + 1/2| / 2^(b-1) and t = pi (W + 1/2) / 2^(b-1).
    """
    with localcontext(_DIGITS):
        length = (-2 * abs(_centred(radius)).ln()).sqrt()
        turned = _PI * _centred(angle)
        return length * _alternating(turned, 0), length * _alternating(turned, 1)


def _centred(words: Sequence[int]) -> Decimal:
    """(W + 1/2) / 2^(b-1) in (-1, 1), W the signed integer of the words' b bits."""
    bits = 64 * len(words)
    whole = 0
    for word in words:
        whole = (whole << 64) | word
    if whole >= 1 << (bits - 1):
        whole -= 1 << bits
    return Decimal(2 * whole + 1) / Decimal(1 << bits)


def _alternating(angle: Decimal, first: int) -> Decimal:
    """Cosine (first = 0) or sine (first = 1) of an angle in (-pi, pi), by Taylor's series."""
    square, order = angle * angle, first
    term = total = angle if first else Decimal(1)
    while abs(term) > Decimal("1e-119"):
        order += 2
        term = -term * square / (order * (order - 1))
        total += term
    return total


_LEAST = 2.0**-20


def laplace_noised(vector: Tensor, scale: float, stream: Stream) -> Tensor:
    """`vector` (n,) + Laplace noise of scale b (density exp(-|x| / b) / 2b), to the nearest multiple of a step g.

    Guarantee: the result (n,) has the law of round((v + b Z) / g) g with Z exactly Laplace of scale 1, computed in
    exact arithmetic from the float64 numbers v and b; g is `spacing(b)`. It is a function of v + b Z that
    reads nothing else of v, so that a v that moves by at most Delta in l1 norm is released with pure epsilon Delta / b,
    for the bits of the result and without any delta (docs/guarantees/grid.md).

    Every coordinate is first computed in float64. Where that could round wrongly (about one in 700 000), its uniform is
    extended, for as long as it takes, until the two ends of what it may be round alike. Errors as `noised`.

    Source: interval refining (Haney, Desfontaines, Hartman, Shrestha, Hay 2022).
    """
    return released_on_grid(vector, scale, stream, _laplace_moves)


def _laplace_moves(
    offsets: NDArray[np.float64], scale: float, stream: Stream, refinement: Stream
) -> NDArray[np.float64]:
    """offsets + scale Z rounded to whole numbers; a word gives a coordinate's sign and its uniform."""
    words = stream.words(len(offsets))
    centred = words.view(np.int64).astype(np.float64)
    centred += 0.5
    uniforms = np.abs(centred)
    uniforms *= 2.0**-63
    sums = np.log(uniforms)
    sums *= np.copysign(scale, -centred)
    sums += offsets
    moves = np.rint(sums)
    sums -= moves
    for i in np.flatnonzero((np.abs(sums) > 0.5 - _DOUBT) | (uniforms < _LEAST)):
        if math.isfinite(offsets[i]):
            moves[i] = _exact_move(int(words[i]), float(offsets[i]), scale, refinement.child(int(i)))
    return moves


def _exact_move(word: int, offset: float, scale: float, more: Stream) -> int:
    """offset + scale Z rounded, for the Z with a uniform of the bits of `word`, continued by those of `more`."""
    bits, whole = 64, word
    negative = word >= 1 << 63
    while True:
        for fresh in more.words(max(3, bits // 64)).tolist():
            whole = (whole << 64) | fresh
            bits += 64
        signed = whole - (1 << bits) if negative else whole
        low = abs(2 * signed + 1) - 1  # the uniform is between low and low + 2, in units of 2^-bits
        if low == 0:
            continue  # it may be 0, and the noise of any length
        digits = 40 + bits // 3
        with localcontext(Context(prec=digits, rounding=ROUND_HALF_EVEN)):
            margin = Decimal(10) ** (12 - digits)
            ends = [_noised(Decimal(offset), Decimal(scale), end, bits, negative) for end in (low, low + 2)]
            nearest = {
                int((end + shift + Decimal("0.5")).to_integral_value(ROUND_FLOOR))
                for end in ends
                for shift in (-margin, margin)
            }
        if len(nearest) == 1:
            return nearest.pop()


def _noised(offset: Decimal, scale: Decimal, uniform: int, bits: int, negative: bool) -> Decimal:
    """offset + scale Z for the uniform `uniform` / 2^bits, in the digits of the context."""
    length = -(Decimal(uniform) / Decimal(1 << bits)).ln() * scale
    return offset - length if negative else offset + length


Noised: TypeAlias = "Callable[[Tensor, float, Stream], Tensor]"
"""(float64 values, scale, stream) to the values with noise, on a grid."""


@dataclass(frozen=True)
class Mechanism:
    """A noise that a value may leave with: its law on the grid, the norm it is scaled to, how several add up.

    Attributes:
        name: its name in ledgers and payments.
        noised: the law: (float64 values, scale, stream) to a noised copy of the same shape, on a grid, which is a
            function of values plus noise of that scale.
        norm: the norm of the sensitivities that it is scaled to.
        joint: from the mu = sensitivity / scale of several values of one sample to the mu of all together. None if
            it is unknown how they add up: only one value may then leave for a payment.
        ratio: what scale / sensitivity is called in a guarantee's statement.
    """

    name: str
    noised: Noised
    norm: Norm = "l2"
    joint: Callable[[Iterable[float]], float] | None = None
    ratio: str = "scale/Delta"

    def require_norm(self, what: str, norm: Norm) -> None:
        """Refuse a bound in another norm than this noise is scaled to: ValueError. One in l1 is one in l2, too."""
        if norm not in (self.norm, "l1"):
            raise ValueError(
                f"{what} is bounded in {norm} norm, and {self.name} noise is in proportion to {self.norm} bounds, "
                f"which are larger: state one (Sensitivity(..., norm={self.norm!r}))"
            )

    @property
    def accountants(self) -> Mapping[str, Word]:
        """The accountants that take it, each with who says that it bounds what this noise costs."""
        return {
            name: word_of(name, self.name) for name, accountant in ACCOUNTANTS.items() if self.name in accountant.takes
        }


MECHANISMS: Registry[Mechanism] = Registry("mechanism", Mechanism)
"""The noises that a value may leave with, by name.

A ledger charges sensitivity / scale, which costs another epsilon under another noise: its accountant must take this.
"""

MECHANISMS.register(
    GAUSSIAN, Mechanism(GAUSSIAN, noised, "l2", lambda mus: math.hypot(*mus), "noise multiplier sigma/Delta")
)
MECHANISMS.register(LAPLACE, Mechanism(LAPLACE, laplace_noised, "l1", math.fsum, "scale b/Delta"))


def require_norm(mechanism: str, what: str, norm: Norm) -> None:
    """Refuse a bound in another norm than a mechanism's noise is scaled to, see `Mechanism.require_norm`."""
    MECHANISMS.get(mechanism).require_norm(what, norm)


def ratio_of(mechanism: str) -> str:
    """Name of the noise multiplier under a mechanism, as the ratio that it is; KeyError for an unknown one."""
    return MECHANISMS.get(mechanism).ratio


def mechanism(
    name: str, *, accountants: Sequence[str], upper_bound: bool = False, norm: Norm = "l2"
) -> Callable[[Noised], Noised]:
    """Give this process a noise of one's own: `@mechanism("mine", accountants=["pld"])` over a law, see `Mechanism`.

    Nothing proves that the epsilon of these accountants, computed from sensitivity / scale, bounds the cost of a
    release with this noise. With ``upper_bound`` you state that it does, and every epsilon is shown with that
    statement; without it epsilon is not asserted. A payment covers one value. The law is tried on zeros: ValueError
    if it adds nothing to one, or returns anything but noised numbers of the same shape; for a name that is taken, or
    unknown accountants.
    """

    def registered(law: Noised) -> Noised:
        for accountant in accountants:
            accountant_named(accountant)
        _require_noising(name, law)
        MECHANISMS.register(name, Mechanism(name, law, norm, ratio=f"scale of {name} noise/Delta"))
        for accountant in accountants:
            let_take(accountant, name, "stated" if upper_bound else "none")
        return law

    return registered


_TRIED = 256


def _require_noising(name: str, law: Noised) -> None:
    """Refuse a law that leaves a value as it was, or gives something else than numbers of the same shape."""
    zeros = torch.zeros(_TRIED, dtype=torch.float64)
    values = law(zeros.clone(), 1.0, Stream.secure())
    if not isinstance(values, torch.Tensor) or values.dtype != torch.float64 or values.shape != zeros.shape:
        raise ValueError(f"mechanism {name!r} gives no float64 tensor of the shape of the values that it noises")
    if not bool(torch.isfinite(values).all()) or bool((values == 0).sum() > _TRIED // 2):
        raise ValueError(
            f"mechanism {name!r} of scale 1 leaves {int((values == 0).sum())} of {_TRIED} zeros as they are, or gives "
            "numbers that are not finite: it is no noise"
        )
