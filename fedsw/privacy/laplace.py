"""Laplace noise, drawn exactly and rounded to a grid: every released bit has the law that pure epsilon assumes."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw.privacy.gaussian import released_on_grid
from fedsw.randomness import Stream

# A float64 result is trusted when it is not within DOUBT of a rounding boundary, in steps, and its uniform is not
# below LEAST; then its error is below 2^-24 steps. Chances are 1.5e-6 a coordinate that one of these fails.
_DOUBT = 2.0**-22
_LEAST = 2.0**-20


def laplace_noised(vector: Tensor, scale: float, stream: Stream) -> Tensor:
    """`vector` + Laplace noise of scale b (density exp(-|x| / b) / 2b), rounded to the nearest multiple of a step g.

    Guarantee: the result has the law of round((v + b Z) / g) g with Z exactly Laplace of scale 1, computed in exact
    arithmetic from the float64 numbers v and b; g is `gaussian.spacing(b)`. It is a function of v + b Z that reads
    nothing else of v, so that a v that moves by at most Delta in l1 norm is released with pure epsilon Delta / b, for
    the bits of the result and without any delta (docs/guarantees.md, "Laplace noise on the grid").

    Every coordinate is first computed in float64. Where that could round wrongly (about one in 700 000), its uniform is
    extended, for as long as it takes, until the two ends of what it may be round alike.

    Args:
        vector: any shape, float64; a coordinate that is not finite stays so.
        scale: b, in [2^-900, 2^900].
        stream: where the uniforms come from.

    Returns:
        float64, the vector's shape, a copy.

    Source: interval refining (Haney, Desfontaines, Hartman, Shrestha, Hay 2022).

    Raises:
        TypeError: if the vector is not float64.
        ValueError: if the scale is out of range.
    """
    return released_on_grid(vector, scale, stream, _moves)


def _moves(offsets: NDArray[np.float64], scale: float, stream: Stream, refinement: Stream) -> NDArray[np.float64]:
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
    """offset + scale Z rounded, for the Z whose uniform has the bits of `word` and goes on with those of `more`."""
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
