"""Random numbers a guarantee can rest on: one ChaCha20 keystream, keyed by the system or by a seed."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedsw._tools.later import torch

KEY_BYTES = 32
_LARGEST = 2**64 - 2**11  # the largest uint64 that is a float64
_SPARSE = 8
"""If one thing in this many is drawn, or more, a key is drawn for each, which is then quicker."""
Label = str | int

# Arrays of one block stay in a core's second-level cache, and below the size at which torch starts threads.
BLOCK = 2**15
_ZEROS = bytes(8 * BLOCK)


class Stream:
    """A stream of random numbers of one purpose.

    `Stream.secure()` draws its key from the operating system and never shows it: the stream of a private run.
    `Stream.seeded(seed, ...)` derives it from a seed: reproducible, and the seed gives away every number,
    so a run that uses it for sampling or noise has a *nominal* epsilon only. Both share all the code below.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a stream key has {KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    @classmethod
    def secure(cls) -> Stream:
        """An irreproducible stream, from the operating system's entropy."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def seeded(cls, seed: int, *purpose: Label) -> Stream:
        """The stream of one purpose under a seed; different purposes are independent.

        Whole numbers of any type are one seed: 1 and `np.int64(1)`. TypeError for a number of another kind.
        """
        return cls(_derive(b"fedsw seeded stream", (seed, *purpose)))

    def child(self, *purpose: Label) -> Stream:
        """An independent stream for one purpose, the same at every call."""
        return Stream(_derive(self._key, purpose))

    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform 64-bit words (count,)."""
        words = np.empty(count, dtype="<u8")
        for start in range(0, count, BLOCK):
            part = words[start : start + BLOCK].view(np.uint8)
            self._cipher.update_into(_ZEROS[: len(part)] if len(part) < len(_ZEROS) else _ZEROS, part.data)
        return words.astype(np.uint64, copy=False)

    def words_of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """64-bit words (n,) of some numbers (n,), by a keyed hash: a number's word does not depend on the others."""
        cells = np.ascontiguousarray(numbers, dtype="<i8").tobytes()
        keyed = functools.partial(hashlib.blake2b, key=self._key, digest_size=8, person=b"fedsw words of")
        words = b"".join(keyed(cells[start : start + 8]).digest() for start in range(0, len(cells), 8))
        return np.frombuffer(words, dtype="<u8").astype(np.uint64)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Uniforms (count,) in the open interval (0, 1), multiples of 2^-52 shifted by half a step."""
        words = self.words(count)
        words >>= np.uint64(12)  # 52 bits: with one more, the largest and a half would be rounded up to 1
        uniforms = words.astype(np.float64)
        uniforms += 0.5
        uniforms *= 2.0**-52
        return uniforms

    def normals(self, count: int) -> NDArray[np.float64]:
        """Standard normals (count,) by the Box-Muller transform, float64, at most 9.5 in absolute value.

        For directions, tests and simulations. What hides a record is added by `privacy.mechanisms.noised`, since the
        last bits of these numbers are those of floating-point functions: they depend on the processor and the builds
        of numpy and torch, and could be used against the guarantee.
        """
        normals = np.empty(count)
        for start in range(0, count, BLOCK):
            part = normals[start : start + BLOCK]
            even = len(part) + len(part) % 2
            block = part if even == len(part) else np.empty(even)
            box_muller(self.words(even), block)
            part[:] = block[: len(part)]
        return normals


def box_muller(words: NDArray[np.uint64], out: NDArray[np.float64]) -> tuple[float, float]:
    """Standard normals (2p,) from words (2p,), at most BLOCK of them; returns the smallest and the largest radius.

    With w_i the words read as signed integers, u = |w_i + 1/2| / 2^63 and t = pi (w_(p+i) + 1/2) / 2^63, the i-th
    and the (p+i)-th normals are R cos t and R sin t, R = sqrt(-2 ln u). A signed word becomes a float64 in one
    instruction, and its magnitude keeps 53 significant bits however small it is, so that the tails of R are not cut
    where a 53-bit uniform would cut them. Reading 1/2 as a uniform fraction, R cos t and R sin t are exactly normal
    and independent; truncating it to 1/2 and rounding move each of them by less than 2^-41 wherever
    2^-10 <= R <= 5.6 (docs/guarantees/grid.md).

    Source: Box and Muller 1958.
    """
    pairs = len(words) // 2
    np.copyto(out, words.view(np.int64), casting="unsafe")
    out += 0.5
    radius, angle = out[:pairs], out[pairs:]
    np.abs(radius, out=radius)
    radius *= 2.0**-63
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    extremes = (float(radius.min()), float(radius.max())) if pairs else (np.inf, 0.0)
    angle *= np.pi * 2.0**-63
    # torch's float64 sine and cosine are vectorised, numpy's are not; its float64 logarithm is.
    turned = torch.from_numpy(angle)
    cosine = torch.cos(turned).numpy()
    torch.sin(turned, out=turned)
    angle *= radius
    radius *= cosine
    return extremes


def smallest_keys(keys: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Positions (size,) of the smallest keys of (n,), in increasing order of position.

    With independent uniform keys this is a uniform sample without replacement (two equal keys among N have
    probability below N^2 / 2^65). Samples drawn from parts of one set of keys fit together: the smallest keys of
    the union are the smallest keys of its parts.
    """
    _require_size(size, len(keys))
    if size == len(keys):
        return np.arange(size, dtype=np.int64)
    if size == 0:
        return np.empty(0, dtype=np.int64)
    # Uniform keys tell where the wanted ones end (six standard deviations); comparing all of them costs far more.
    end = min((size + 6.0 * math.sqrt(size) + 1.0) / len(keys) * 2.0**64, _LARGEST)
    few = np.flatnonzero(keys <= np.uint64(end))
    if len(few) >= size:
        values = keys[few]
        smallest = few[values <= np.partition(values, size - 1)[size - 1]]
        if len(smallest) == size:  # no equal keys there
            places: NDArray[np.int64] = smallest.astype(np.int64, copy=False)
            return places
    return np.sort(np.argpartition(keys, size - 1)[:size]).astype(np.int64, copy=False)


def split_sample(keys: NDArray[np.uint64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How many of the `size` smallest keys each holder has, (holders,).

    With uniform keys the counts follow the multivariate hypergeometric law of the holders' sizes: jointly with a
    uniform sample of that many records at each holder, one sample without replacement of the union (RLL §5.3). Keys are
    those of all holders, one after the other; ``ends`` say where each holder's end, ascending.
    """
    return _by_holder(smallest_keys(keys, size), ends)


def hypergeometric(stream: Stream, held: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Multivariate hypergeometric counts (holders,): of `size` things drawn uniformly, each holder's number.

    The law is that of `split_sample` with fresh keys. Where few things of many are drawn, it costs as much as is drawn
    and not as much as there is: uniform places are drawn until that many different ones came, in their order, which is
    a uniform sample without replacement. ``held`` says how many things each holder has.
    """
    ends = np.cumsum(held)
    total = int(ends[-1]) if len(ends) else 0
    _require_size(size, total)
    if len(held) == 1:
        return np.array([size], dtype=np.int64)
    if size * _SPARSE > total:
        return split_sample(stream.words(total), ends, size)
    return _by_holder(np.sort(_different(stream, total, size)), ends)


def below_rate(keys: NDArray[np.uint64], ends: NDArray[np.int64], rate: float) -> NDArray[np.int64]:
    """How many keys of each holder, (holders,), are below a rate in (0, 1], as a part of all 64-bit words.

    With uniform keys every one is below by itself, with the probability of the rate rounded down to 64 binary digits:
    a Poisson sample, of which each holder's part is that of its smallest keys (`smallest_keys`). Keys are those of all
    holders, one after the other; ``ends`` say where each holder's end, ascending.
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"a rate of {rate}; it lies above 0 and at most at 1")
    below = np.arange(len(keys)) if rate == 1.0 else np.flatnonzero(keys < np.uint64(math.floor(rate * 2.0**64)))
    return _by_holder(below, ends)


def _require_size(size: int, total: int) -> None:
    if not 0 <= size <= total:
        raise ValueError(f"{size} records asked from {total}; a sample without replacement cannot exceed its group")


def _different(stream: Stream, total: int, size: int) -> NDArray[np.int64]:
    """The first `size` different ones among independent uniform whole numbers below `total`."""
    limit = np.uint64(2**64 // total * total - 1)  # words above it would prefer the small numbers
    drawn = np.empty(0, dtype=np.int64)
    while True:
        words = stream.words(size + size // 4 + 16)
        places = (words[words <= limit] % np.uint64(total)).astype(np.int64)
        drawn = np.concatenate([drawn, places])
        _, first = np.unique(drawn, return_index=True)
        if len(first) >= size:
            return drawn[np.sort(first)[:size]]


def _by_holder(places: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of some places, in ascending order, are each holder's."""
    return np.diff(np.searchsorted(places, ends), prepend=0)


def _derive(key: bytes, purpose: tuple[Label, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in (key, *purpose):
        encoded = part if isinstance(part, bytes) else _labelled(part)
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def _labelled(label: Label) -> bytes:
    if isinstance(label, str):
        return f"str:{label}".encode()
    if isinstance(label, bool):
        raise TypeError(f"a stream is named by texts and whole numbers, and {label} is a truth value")
    try:
        return f"int:{operator.index(label)}".encode()
    except TypeError:
        kind = type(label).__name__
        raise TypeError(
            f"a stream is named by texts and whole numbers, and {label!r} is {kind}: give int(...)"
        ) from None
