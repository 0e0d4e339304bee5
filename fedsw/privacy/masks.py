"""Pairwise masks of sites, which cancel in the sum of all, mod 2^64, and each site's share of the sum's noise.

A site with m clients adds N(0, sigma^2 m / H) to its vector and rounds to multiples of a step that all sites have in
common. Of any H honest clients the noise adds up to N(0, sigma^2). Rounding costs nothing: the sum of the rounded
vectors has, up to e^-250 in total variation, the law of one rounding of the noised sum (docs/guarantees/distributed.md,
Theorem M1).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw._tools.randomness import BLOCK, KEY_BYTES, Stream
from fedsw.privacy.mechanisms import spacing

if TYPE_CHECKING:
    from torch import Tensor

Whole = NDArray[np.uint64]
"""Whole numbers mod 2^64."""

NONCE_BYTES = 32
_LABEL = b"fedsw pairwise mask 1"


class BadKey(ValueError):
    """A public key that no site has: of the wrong length, or a point that makes every secret the same."""


@dataclass(frozen=True)
class MaskKey:
    """A site's key pair; the private key never leaves the site, and shared secrets are kept in memory only."""

    private: X25519PrivateKey
    _shared: dict[bytes, bytes] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def fresh(cls) -> MaskKey:
        """A new key pair from the operating system's entropy."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def of_bytes(cls, private: bytes) -> MaskKey:
        """The pair of a stored private key, 32 bytes."""
        return cls(X25519PrivateKey.from_private_bytes(private))

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    def shared(self, other: bytes) -> bytes:
        """Secret that this site shares with the owner of a public key; BadKey if that key is invalid."""
        if other not in self._shared:
            try:
                self._shared[other] = self.private.exchange(X25519PublicKey.from_public_bytes(other))
            except ValueError:
                raise BadKey(f"{other.hex()[:16]} is no public key of a site") from None
        return self._shared[other]

    def mask(self, others: Iterable[bytes], request: bytes, length: int) -> Whole:
        """This site's mask (length,): with the masks of all others for the same request it adds up to 0 mod 2^64.

        Guarantee: a party knowing neither this site's private key nor that of one of the `others` cannot tell the mask
        from uniform numbers, up to the advantage against X25519, HKDF-SHA256 and ChaCha20, as long as each `request`
        is masked once. Two sites' parts cancel if both got the same request; else they are independent.

        ``others`` are the public keys of the other sites in the sum, ``request`` is the digest of all that the sites
        are asked, with the nonces of all of them (`digest_of`).

        Raises:
            BadKey: as `shared`; for this site's own key, or one that is named twice: its masks would not cancel.
        """
        public, total, others = self.public, np.zeros(length, dtype=np.uint64), list(others)
        if len({public, *others}) <= len(others):
            again = next(key for index, key in enumerate(others) if key == public or key in others[:index])
            raise BadKey(f"{again.hex()[:16]} is {'this site' if again == public else 'a site that is named twice'}")
        for other in others:
            stream = Stream(_pad_key(self.shared(other), public, other, request))
            for start in range(0, length, BLOCK):
                part = total[start : start + BLOCK]
                words = stream.words(len(part))
                # Both sites have the same words; one adds them and the other takes them away, mod 2^64.
                if public < other:
                    part += words
                else:
                    part -= words
        return total


def digest_of(fields: Mapping[str, bytes | str | int]) -> bytes:
    """SHA-256 of named fields: two requests have one digest only if every field is the same."""
    digest = hashlib.sha256(_LABEL)
    for name in sorted(fields):
        value = fields[name]
        content = value if isinstance(value, bytes) else str(value).encode()
        for part in (name.encode(), type(value).__name__.encode(), content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def _pad_key(secret: bytes, one: bytes, other: bytes, request: bytes) -> bytes:
    """The key of the stream that two sites share for one request; the same at both."""
    info = _LABEL + b"".join(sorted((one, other))) + request
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


LEAST_STEPS = 8.0
"""The least standard deviation of a site's noise, in steps of the grid: sums are then within e^-250 of their law."""

_DEVIATIONS = 40
"""More standard deviations than noise ever has: its uniforms have at most 256 bits, and its radius is below 19."""

_EXACT = 2.0**52
"""Whole numbers of a site stay below it: float64 has all of them."""

_MODULUS = 2.0**63


@dataclass(frozen=True)
class Share:
    """A site's part in the noise of a masked sum; public.

    The site answers for some of the sum's ``clients``, each with one share; with the shares of ``honest`` of them,
    H, the noise is complete. No coordinate of its vector exceeds ``most``; ``step`` is the grid's.
    """

    clients: int
    honest: int
    step: float
    most: float

    def scale(self, sigma: float) -> float:
        """Standard deviation of the site's own noise where H clients have sigma together."""
        return sigma * math.sqrt(self.clients / self.honest)


def shared_step(sigma: float, honest: int, clients: Iterable[int]) -> float:
    """The step of the grid that all sites of a sum round to, by sigma of H honest clients and the sites' clients.

    ValueError if a client's share would be too few steps: one site has tens of thousands of clients, another one.
    """
    counts = list(clients)
    alone = sigma / math.sqrt(honest)
    step = spacing(alone * math.sqrt(max(counts)))
    if alone * math.sqrt(min(counts)) < LEAST_STEPS * step:
        raise ValueError(
            f"sites of {min(counts)} and of {max(counts)} clients cannot share a grid for their noise; let the large "
            "one be several sites"
        )
    return step


def require_no_wrap(sigma: float, shares: Sequence[Share]) -> None:
    """Refuse (ValueError) what could leave (-2^63, 2^63), whatever the sites' vectors and noise are."""
    parts = [(share.most + _DEVIATIONS * share.scale(sigma)) / share.step + 1 for share in shares]
    if not (max(parts) < _EXACT and sum(parts) < _MODULUS):
        raise ValueError(
            f"a masked sum could come to {sum(parts):.3g} steps of its grid, beyond 2^63, or a site's part to "
            f"{max(parts):.3g}, beyond 2^52: too little noise for such vectors. Use a smaller epsilon, or clip more"
        )


def whole_steps(values: Tensor, step: float) -> Whole:
    """Multiples of a step (any shape, float64) as whole numbers mod 2^64, flat."""
    return (values.reshape(-1) / step).numpy().astype(np.int64).view(np.uint64)


def summed(parts: Iterable[Whole], step: float) -> Tensor:
    """The sum of masked vectors (n,) as numbers, float64: masks have cancelled, and nothing has wrapped."""
    total: Whole = functools.reduce(np.add, parts)
    return torch.from_numpy(total.view(np.int64).astype(np.float64)) * step
