"""Pairwise masks: they cancel where all were asked the same, and are uniform numbers to whoever lacks a key."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsw.privacy.masks import BadKey, MaskKey, digest_of

KEYS = [MaskKey.of_bytes(bytes([number] * 32)) for number in range(1, 6)]
ASKED = digest_of({"round": 1})


def _masks(keys, asked, length=40):
    publics = [key.public for key in keys]
    return [
        key.mask([p for p in publics if p != key.public], digest, length)
        for key, digest in zip(keys, asked, strict=True)
    ]


@given(sites=st.integers(1, 5), length=st.integers(0, 70_000))
def test_masks_of_all_sites_for_one_request_add_up_to_zero(sites, length):
    total = sum(_masks(KEYS[:sites], [ASKED] * sites, length), np.zeros(length, dtype=np.uint64))
    assert not total.any()


def test_a_mask_is_the_stream_of_an_x25519_secret_through_hkdf(monkeypatch):
    """An oracle of its own: RFC 5869 by hand, and the cipher itself."""
    one, other = KEYS[0], KEYS[1]
    secret = X25519PrivateKey.from_private_bytes(bytes([1] * 32)).exchange(
        X25519PublicKey.from_public_bytes(other.public)
    )
    info = b"fedsw pairwise mask 1" + min(one.public, other.public) + max(one.public, other.public) + ASKED

    def keyed(key, content):
        digest = hmac.HMAC(key, hashes.SHA256())
        digest.update(content)
        return digest.finalize()

    key = keyed(keyed(bytes(32), secret), info + b"\x01")
    words = np.frombuffer(Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(800)), "<u8")
    sign = 1 if one.public < other.public else -1
    assert np.array_equal(one.mask([other.public], ASKED, 100), words if sign == 1 else -words)


@pytest.mark.parametrize("different", [0, 1, 2])
def test_a_site_that_was_asked_something_else_leaves_uniform_numbers_in_the_sum(different):
    asked = [ASKED] * 3
    asked[different] = digest_of({"round": 2})
    total = sum(_masks(KEYS[:3], asked, 4000))
    assert stats.kstest(total / 2.0**64, "uniform").pvalue > 1e-9
    assert len(np.unique(total)) == 4000


def test_without_one_honest_site_the_sum_of_the_others_is_uniform():
    total = sum(_masks(KEYS, [ASKED] * 5, 4000)[1:])
    assert stats.kstest(total / 2.0**64, "uniform").pvalue > 1e-9


def test_every_request_has_masks_of_its_own():
    one, other = (KEYS[0].mask([KEYS[1].public], digest_of({"nonce": nonce}), 1000) for nonce in (b"a", b"b"))
    assert not (one == other).any()
    assert stats.kstest((one - other) / 2.0**64, "uniform").pvalue > 1e-9


def test_a_long_mask_repeats_nothing():
    mask = KEYS[0].mask([KEYS[1].public], ASKED, 100_000)
    assert len(np.unique(mask)) == len(mask)


REQUESTS = st.dictionaries(
    st.text(max_size=3), st.one_of(st.binary(max_size=3), st.text(max_size=3), st.integers()), max_size=4
)


@given(REQUESTS, REQUESTS)
def test_two_requests_have_one_digest_only_if_they_are_the_same(one, other):
    assert (digest_of(one) == digest_of(other)) == (one == other)


def test_no_field_of_a_request_runs_into_the_next():
    assert digest_of({"a": b"xdbytesy"}) != digest_of({"a": b"x", "d": b"y"})
    assert digest_of({"a": "1"}) != digest_of({"a": 1}) != digest_of({"a": b"1"})


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_a_public_key_that_gives_everybody_the_same_secret_is_refused(key):
    with pytest.raises(BadKey, match="no public key"):
        KEYS[0].mask([key], ASKED, 3)
