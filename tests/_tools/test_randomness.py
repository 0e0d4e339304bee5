"""Laws of the randomness a guarantee rests on."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsw._tools.randomness import BLOCK, Stream, box_muller, hypergeometric, smallest_keys, split_sample


def test_two_secure_streams_never_agree():
    assert not np.array_equal(Stream.secure().words(4), Stream.secure().words(4))


def test_a_seeded_stream_repeats_and_every_purpose_has_its_own():
    words = {
        purpose: tuple(Stream.seeded(7, *purpose).words(4))
        for purpose in [("noise", 1, 0), ("noise", 1, 1), ("noise", 10), ("batch", 1, 0), ("noise", "1", 0)]
    }
    assert len(set(words.values())) == len(words)
    assert tuple(Stream.seeded(7, "noise", 1, 0).words(4)) == words[("noise", 1, 0)]
    assert not np.array_equal(Stream.seeded(8, "noise", 1, 0).words(4), Stream.seeded(7, "noise", 1, 0).words(4))


def test_a_seed_is_a_whole_number_whatever_its_type_and_nothing_else():
    words = Stream.seeded(1, "noise", 2).words(4)
    for one in (np.int64(1), np.uint8(1)):
        assert np.array_equal(Stream.seeded(one, "noise", np.int32(2)).words(4), words)
    for other in (True, 1.0, np.True_, None):
        with pytest.raises(TypeError, match="named by texts and whole numbers"):
            Stream.seeded(other, "noise", 2)


@pytest.mark.parametrize("count", [10, 3 * BLOCK + 5])
def test_reading_a_stream_in_pieces_is_reading_it_whole(count):
    whole, pieces = Stream.seeded(1), Stream.seeded(1)
    assert np.array_equal(whole.words(count), np.concatenate([pieces.words(3), pieces.words(count - 3)]))


def test_words_are_the_keystream_of_chacha20():
    key = bytes(range(32))
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * (BLOCK + 7))), dtype="<u8")
    assert np.array_equal(Stream(key).words(BLOCK + 7), expected)


def test_uniforms_stay_inside_the_open_interval_and_are_uniform():
    uniforms = Stream.seeded(3).uniforms(200_000)
    assert uniforms.min() > 0 and uniforms.max() < 1
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3


def test_uniforms_of_the_words_at_both_ends_are_inside_the_open_interval(monkeypatch):
    ends = np.array([0, 1, 2**63, 2**64 - 2**11, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(Stream, "words", lambda self, count: ends[:count].copy())
    uniforms = Stream.seeded(3).uniforms(len(ends))
    assert uniforms.min() == 2.0**-53 and uniforms.max() == 1 - 2.0**-53
    assert uniforms[2] == 0.5 + 2.0**-53


@pytest.mark.parametrize("count", [0, 1, 2, 7, BLOCK - 1, 2 * BLOCK + 5])
def test_normals_are_the_box_muller_transform_of_the_streams_words(count):
    """Block by block: the first half of a block's words are the radii of both its halves, the second the angles."""
    stream, expected = Stream.seeded(2), []
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        words = stream.words(size + size % 2).astype(np.int64)
        radii, angles = np.split((words + np.longdouble(0.5)) / np.longdouble(2) ** 63, 2)
        lengths = np.sqrt(-2 * np.log(np.abs(radii)))
        turned = np.pi * angles.astype(np.float64)
        expected.append(np.concatenate([lengths * np.cos(turned), lengths * np.sin(turned)])[:size])
    normals = Stream.seeded(2).normals(count)
    assert normals.dtype == np.float64 and len(normals) == count
    assert np.allclose(normals, np.concatenate([np.empty(0), *expected]).astype(np.float64), rtol=1e-14, atol=1e-14)


def test_normals_follow_the_normal_law_to_its_tails():
    """Kolmogorov-Smirnov on a million, and exact binomial tests of the counts beyond 3, 4 and 5 on either side."""
    normals = Stream.seeded(4).normals(1_000_001)
    assert len(normals) == 1_000_001 and np.isfinite(normals).all()
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    for bound in (3.0, 4.0, 5.0):
        for beyond in ((normals > bound).sum(), (normals < -bound).sum()):
            assert stats.binomtest(int(beyond), len(normals), stats.norm.sf(bound)).pvalue > 1e-3


def test_the_two_normals_of_a_pair_are_independent():
    """Signs, ranks and sizes of R cos t and R sin t, which share their words."""
    blocks = Stream.seeded(5).normals(16 * BLOCK).reshape(16, 2, BLOCK // 2)
    cosines, sines = blocks[:, 0].ravel(), blocks[:, 1].ravel()
    for one, other in ((cosines, sines), (cosines**2, sines**2), (np.abs(cosines), sines), (cosines, np.abs(sines))):
        assert stats.pearsonr(one, other).pvalue > 1e-3
    cells = [np.searchsorted(stats.norm.ppf(np.arange(1, 16) / 16), x) for x in (cosines, sines)]
    table = np.bincount(16 * cells[0] + cells[1], minlength=256)
    assert stats.chisquare(table).pvalue > 1e-3


def test_the_words_at_both_ends_give_finite_normals():
    words = np.array([0, 2**64 - 1, 2**63, 2**63 - 1, 1, 0, 0, 2**63, 2**63 - 1, 2**62], dtype=np.uint64)
    normals = np.empty(10)
    least, most = box_muller(words, normals)
    assert np.isfinite(normals).all() and least == 0.0 and 9.4 < most < 9.5


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_a_sample_without_replacement_has_distinct_members_of_the_population(population, size, seed):
    keys = Stream.seeded(seed).words(population)
    if size > population:
        with pytest.raises(ValueError, match=f"{size} records asked from {population}"):
            smallest_keys(keys, size)
        return
    chosen = smallest_keys(keys, size)
    assert len(set(chosen.tolist())) == size and (np.diff(chosen) > 0).all()
    assert size == 0 or 0 <= chosen.min() <= chosen.max() < population


def test_every_record_is_equally_likely_to_be_sampled():
    hits = np.zeros(20)
    for seed in range(4000):
        hits[smallest_keys(Stream.seeded(seed, "sample").words(20), 5)] += 1
    assert stats.chisquare(hits).pvalue > 1e-3


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 2**32), st.data())
@settings(deadline=None, derandomize=True, max_examples=50)
def test_parts_of_one_sample_add_up_to_the_sample_of_the_union(sizes, seed, data):
    keys = [Stream.seeded(seed, part).words(size) for part, size in enumerate(sizes)]
    size = data.draw(st.integers(0, sum(sizes)))
    counts = split_sample(np.concatenate(keys), np.cumsum(sizes), size)
    union = set(np.sort(np.concatenate(keys))[:size].tolist())
    parts = [set(k[smallest_keys(k, count)].tolist()) for k, count in zip(keys, counts, strict=True)]
    assert sum(counts) == size and set().union(*parts) == union


def _by_keys(stream: Stream, sizes: tuple[int, ...], size: int):
    return split_sample(stream.words(sum(sizes)), np.cumsum(sizes), size)


def _drawn(stream: Stream, sizes: tuple[int, ...], size: int):
    return hypergeometric(stream, np.array(sizes), size)


@pytest.mark.parametrize("size", [3, 12, 20, 100])
@pytest.mark.parametrize("counted", [_by_keys, _drawn])
def test_split_counts_follow_the_multivariate_hypergeometric_law(counted, size):
    """Of 100 things, 3 and 12 are drawn place by place, 20 and all of them by keys."""
    sizes, trials = (30, 10, 60), 3000
    counts = np.array([counted(Stream.seeded(t, "counts"), sizes, size) for t in range(trials)])
    assert (counts.sum(axis=1) == size).all()
    for holder, held in enumerate(sizes):
        law = stats.hypergeom(sum(sizes), held, size)
        values = np.arange(size + 1)
        expected = law.pmf(values) * trials
        common = expected > 5
        observed = np.bincount(counts[:, holder], minlength=size + 1)
        if common.sum() < 2:
            assert size == 100 and (counts[:, holder] == held).all()
            continue
        left = expected[common].sum() / observed[common].sum()
        assert stats.chisquare(observed[common] * left, expected[common]).pvalue > 1e-3


@pytest.mark.parametrize("size", [1, 2, 17, 150, 999])
@pytest.mark.parametrize("law", ["uniform", "low", "high", "equal", "few values", "largest"])
def test_the_smallest_keys_are_the_first_of_a_full_sort_however_keys_are_distributed(law, size):
    words = Stream.seeded(size, "keys").words(1000)
    keys = {
        "uniform": words,
        "low": words >> np.uint64(20),
        "high": words | np.uint64(2**63),
        "equal": np.full(1000, 7, dtype=np.uint64),
        "few values": words % np.uint64(5),
        "largest": np.full(1000, 2**64 - 1, dtype=np.uint64),
    }[law]
    chosen = smallest_keys(keys, size)
    assert len(set(chosen.tolist())) == size and np.array_equal(chosen, np.sort(chosen))
    assert np.array_equal(np.sort(keys[chosen]), np.sort(keys)[:size])
