"""Shares of noise: of any H clients together the noise of one server, on one grid, in whole numbers that never wrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsw.accounting import Charge
from fedsw.privacy.masks import MaskKey, digest_of
from fedsw.privacy.noise import noised, spacing
from fedsw.privacy.release import Bounded, Part, pay, release_share
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.privacy.shares import LEAST_STEPS, Share, require_no_wrap, shared_step, summed
from fedsw.randomness import Stream
from tests.doors import Unaccounted
from tests.noises import require_gaussian

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
