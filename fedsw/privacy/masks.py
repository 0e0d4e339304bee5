"""Pairwise masks: numbers that sites add to their vectors and that cancel in the sum of all of them, mod 2^64."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedsw.randomness import BLOCK, KEY_BYTES, Stream

Whole = NDArray[np.uint64]
"""Whole numbers mod 2^64."""

NONCE_BYTES = 32
_LABEL = b"fedsw pairwise mask 1"


class BadKey(ValueError):
    """A public key that no site has: of the wrong length, or a point that makes every secret the same."""


@dataclass(frozen=True)
class MaskKey:
    """A site's key pair. What it shares with another site is agreed once, and kept in memory alone.

    Attributes:
        private: never leaves the site.
    """

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
        """The secret that this site and the owner of a public key have in common.

        Raises:
            BadKey: if the other's key is none.
        """
        if other not in self._shared:
            try:
                self._shared[other] = self.private.exchange(X25519PublicKey.from_public_bytes(other))
            except ValueError:
                raise BadKey(f"{other.hex()[:16]} is no public key of a site") from None
        return self._shared[other]

    def mask(self, others: Iterable[bytes], asked: bytes, length: int) -> Whole:
        """This site's mask (length,): with the masks of all others for the same request it adds up to 0 mod 2^64.

        Guarantee: whoever knows neither this site's private key nor that of one of the `others` cannot tell the mask
        from uniform numbers, up to the advantage against X25519, HKDF-SHA256 and ChaCha20, as long as each `asked` is
        masked once. Two sites' parts cancel if both were asked the same; else they are independent.

        Args:
            others: public keys of the other sites in the sum.
            asked: digest of all that the sites are asked, with the nonces of all of them (`digest_of`).

        Raises:
            BadKey: as `shared`.
        """
        own, total = self.public, np.zeros(length, dtype=np.uint64)
        for other in others:
            stream = Stream(_pad_key(self.shared(other), own, other, asked))
            for start in range(0, length, BLOCK):
                part = total[start : start + BLOCK]
                words = stream.words(len(part))
                if own < other:
                    part += words
                else:
                    part -= words
        return total


def digest_of(fields: Mapping[str, bytes | str | int]) -> bytes:
    """SHA-256 of named fields: two requests have one digest only if every field is the same."""
    digest = hashlib.sha256(_LABEL)
    for name in sorted(fields):
        value = fields[name]
        for part in (
            name.encode(),
            type(value).__name__.encode(),
            value if isinstance(value, bytes) else str(value).encode(),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def _pad_key(secret: bytes, one: bytes, other: bytes, asked: bytes) -> bytes:
    """The key of the stream that two sites share for one request; the same at both."""
    info = _LABEL + b"".join(sorted((one, other))) + asked
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
