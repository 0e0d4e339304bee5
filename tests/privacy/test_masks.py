"""Pairwise masks: they cancel where all were asked the same, and are uniform numbers to whoever lacks a key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsw._tools.randomness import Stream
from fedsw.privacy.accounting import Charge
from fedsw.privacy.masks import LEAST_STEPS, BadKey, MaskKey, Share, digest_of, require_no_wrap, shared_step, summed
from fedsw.privacy.mechanisms import noised, spacing
from fedsw.privacy.release import Bounded, Part, pay, release_share
from fedsw.privacy.sensitivity import Sensitivity
from tests.doors import Unaccounted
from tests.noises import require_gaussian

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


SIGMA = 1.7


def paid(part: Part, clients: int = 1):
    charge = Charge("records", 1.0, part.sensitivity)
    return [pay(Unaccounted(), 1, 0, [charge], part.scale, [part]) for _ in range(clients)]


def shares_of(clients, honest, most=100.0, sigma=SIGMA):
    step = shared_step(sigma, honest, clients)
    return [Share(count, honest, step, most) for count in clients]


def answer(vector, share, stream, mask=None, sigma=SIGMA):
    part = Part("sum", 1.0, sigma)
    mask = np.zeros(vector.numel(), dtype=np.uint64) if mask is None else mask
    return release_share(
        Bounded(vector, Sensitivity(1.0, "any")), paid(part, share.clients), "sum", share, mask, stream
    )


@pytest.mark.parametrize(
    ("clients", "honest"), [([1] * 4, 4), ([1] * 5, 3), ([1, 3, 2], 6), ([40], 40), ([1, 900], 901)]
)
def test_the_noise_of_a_sum_is_that_of_one_server_times_the_clients_over_the_honest(clients, honest):
    shares = shares_of(clients, honest)
    vectors = [torch.randn(30, dtype=torch.float64) for _ in clients]
    sums = torch.stack(
        [
            summed(
                [answer(v, share, Stream.secure()) for v, share in zip(vectors, shares, strict=True)], shares[0].step
            )
            for _ in range(60)
        ]
    )
    require_gaussian(sums - sum(vectors), SIGMA * math.sqrt(sum(clients) / honest))


def _sum_of_rounded(offsets, s, reach=400):
    """Exact law of the sum of round(x_i + s Z_i), by convolution; from -reach on."""
    law, at = np.ones(1), 0
    ks = np.arange(-reach, reach + 1)
    for x in offsets:
        own = stats.norm.cdf((ks + 0.5 - x) / s) - stats.norm.cdf((ks - 0.5 - x) / s)
        law, at = np.convolve(law, own), at - reach
    return law, at


@pytest.mark.parametrize("offsets", [(0.3, 0.3), (0.5, -0.5), (0.25, 0.1, 0.4), (0.0, 0.0, 0.0, 0.5)])
@pytest.mark.parametrize("s", [0.6, 0.8, 1.0, 1.3])
def test_the_sum_of_rounded_shares_is_as_near_to_a_rounded_sum_as_is_proved(offsets, s):
    """By characteristic functions: the gap is at most of the size of e^{-pi^2 s^2 / 2}; s is at least 8 in a run."""
    law, at = _sum_of_rounded(offsets, s, reach=30)
    ks = np.arange(len(law)) + at
    omegas = np.linspace(-math.pi, math.pi, 501)
    found = np.exp(1j * omegas[:, None] * ks) @ law
    target = np.zeros(len(omegas), dtype=complex)
    for m in range(-6, 7):
        w = omegas + 2 * math.pi * m
        target += (np.exp(-((s * w) ** 2) / 2) * np.sinc(w / (2 * math.pi))) ** len(offsets) * np.exp(
            1j * w * sum(offsets)
        )
    most = (len(offsets) + 1) * 2.01 * math.exp(-((math.pi * s) ** 2) / 2)
    assert np.abs(found - target).max() <= most


def test_a_share_has_the_exact_law_of_a_rounded_normal():
    """Chi-square over all whole numbers within four deviations, and the tails beyond."""
    share = Share(1, 1, spacing(SIGMA) * 512, 100.0)  # a coarse grid, so that few whole numbers have all the weight
    draws = answer(torch.full((200_000,), 0.3, dtype=torch.float64), share, Stream.seeded(5)).view(np.int64)
    s, x = SIGMA / share.step, 0.3 / share.step
    edges = np.arange(math.floor(x - 4 * s), math.ceil(x + 4 * s) + 1)
    law = stats.norm.cdf((edges + 0.5 - x) / s) - stats.norm.cdf((edges - 0.5 - x) / s)
    low, high = stats.norm.cdf((edges[0] - 0.5 - x) / s), stats.norm.sf((edges[-1] + 0.5 - x) / s)
    counts = [(draws < edges[0]).sum(), *((draws == k).sum() for k in edges), (draws > edges[-1]).sum()]
    expected = np.array([low, *law, high]) * len(draws)
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    assert abs(draws).max() <= 9.6 * s


@given(
    sigma=st.floats(1e-6, 1e6),
    honest=st.integers(1, 50),
    clients=st.lists(st.integers(1, 4000), min_size=1, max_size=9),
)
def test_all_sites_round_to_one_grid_that_every_share_is_many_steps_of(sigma, honest, clients):
    step = shared_step(sigma, honest, clients)
    assert math.frexp(step)[0] == 0.5
    for count in clients:
        scale = Share(count, honest, step, 1.0).scale(sigma)
        assert spacing(scale) <= step <= scale / LEAST_STEPS
        noised(torch.zeros(1, dtype=torch.float64), scale, Stream.secure(), step=step)


def test_sites_too_unlike_for_one_grid_are_refused():
    with pytest.raises(ValueError, match="cannot share a grid"):
        shared_step(1.0, 3, [1, 10**6])


def test_a_grid_finer_than_the_noise_is_known_on_is_refused():
    for step in (spacing(1.0) / 2, 0.3):
        with pytest.raises(ValueError, match="power of two"):
            noised(torch.zeros(1, dtype=torch.float64), 1.0, Stream.secure(), step=step)


@given(st.data())
def test_no_admissible_sum_wraps(data):
    clients = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    most = data.draw(st.floats(1e-3, 1e9))
    shares = shares_of(clients, 2, most)
    try:
        require_no_wrap(SIGMA, shares)
    except ValueError:
        return
    extreme = [torch.full((3,), most, dtype=torch.float64) for _ in clients]
    total = summed(
        [answer(v, share, Stream.secure()) for v, share in zip(extreme, shares, strict=True)], shares[0].step
    )
    assert (total - most * len(clients)).abs().max() <= 40 * SIGMA * math.sqrt(sum(clients)) + most * 1e-12


def test_a_sum_that_could_wrap_is_refused():
    with pytest.raises(ValueError, match="could come to"):
        require_no_wrap(SIGMA, shares_of([1, 1], 1, most=2.0**53 * SIGMA))
    with pytest.raises(ValueError, match="could come to"):
        require_no_wrap(SIGMA, shares_of([1] * 5000, 1, most=2.0**39 * SIGMA))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_what_no_record_can_make_is_cut_and_never_wraps(value):
    (share,) = shares_of([1], 1, most=5.0)
    found = summed([answer(torch.full((4,), value, dtype=torch.float64), share, Stream.secure())], share.step)
    assert (found.abs() <= 5 + 10 * SIGMA).all()


def test_masks_change_no_bit_of_the_sum():
    shares = shares_of([1, 2, 1], 3)
    keys = [MaskKey.fresh() for _ in shares]
    vectors = [torch.randn(50, dtype=torch.float64) for _ in shares]
    asked = digest_of({"nonces": b"n"})

    def total(masked):
        parts = []
        for i, (vector, share, key) in enumerate(zip(vectors, shares, keys, strict=True)):
            others = [other.public for other in keys if other is not key]
            mask = key.mask(others, asked, 50) if masked else None
            parts.append(answer(vector, share, Stream.seeded(9, i), mask))
        return parts, summed(parts, shares[0].step)

    (bare, without), (hidden, under) = total(False), total(True)
    assert torch.equal(without, under)
    assert not any((one == other).any() for one, other in zip(bare, hidden, strict=True))


def test_a_part_leaves_once_and_only_for_all_clients_at_one_scale():
    part, vector = Part("sum", 1.0, SIGMA), torch.zeros(2, dtype=torch.float64)
    (share,) = shares_of([2], 2)
    bounded, mask = Bounded(vector, Sensitivity(1.0, "any")), np.zeros(2, dtype=np.uint64)
    payments = paid(part, 2)
    release_share(bounded, payments, "sum", share, mask, Stream.secure())
    with pytest.raises(ValueError, match="nothing is paid"):
        release_share(bounded, payments, "sum", share, mask, Stream.secure())
    with pytest.raises(ValueError, match="1 clients paid"):
        release_share(bounded, paid(part, 1), "sum", share, mask, Stream.secure())
    mixed = [*paid(part), *paid(Part("sum", 1.0, 2 * SIGMA))]
    with pytest.raises(ValueError, match="at 2 scales"):
        release_share(bounded, mixed, "sum", share, mask, Stream.secure())
    wider = Bounded(vector, Sensitivity(1.5, "any"))
    with pytest.raises(ValueError, match="moves by up to"):
        release_share(wider, paid(part, 2), "sum", share, mask, Stream.secure())


@pytest.mark.parametrize(("again", "said"), [("own", "this site"), ("twice", "named twice")])
def test_a_mask_with_the_site_itself_or_with_one_site_twice_is_refused(again, said):
    own, other = MaskKey.fresh(), MaskKey.fresh().public
    others = [other, own.public] if again == "own" else [other, other]
    with pytest.raises(BadKey, match=said):
        own.mask(others, b"request", 3)
