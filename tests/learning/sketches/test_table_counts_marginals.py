"""Columns by themselves, read off a sketch of a table: the frequencies, their noise, and intervals that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.drift import LEAST_DOUBT, Means, drift_of_means
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_counts import Pairs, cell_means, column_means

SIZES = (2, 5, 3)
CHANCES = ((0.7, 0.3), (0.1, 0.2, 0.3, 0.3, 0.1), (0.2, 0.2, 0.6))
RANGES = ((0, 2), (2, 7), (7, 10))
LAW = Law(10, (Pairs(RANGES, balance="size"),), classes=2, groups=3, counts=0.1)
SKETCHER = LAW.drawn(torch.float64)
N, SIGMA, DRAWS = 1500, 6.0, 60


def table(seed: int, n: int = N, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Codes of three columns, of which the second is moved, and cells."""
    stream, codes = Stream.seeded(seed, "test tables"), []
    for at, chances in enumerate(CHANCES):
        law = np.array(chances)
        if at == 1:
            law = (1 - shift) * law + shift * np.eye(5)[0]
        codes.append(torch.from_numpy(np.searchsorted(law.cumsum(), stream.uniforms(n) * law.sum() * (1 - 1e-12))))
    rows = torch.cat([F.one_hot(code, size) for code, size in zip(codes, SIZES, strict=True)], dim=1).double()
    return rows, torch.from_numpy((stream.uniforms(n) * 6).astype("int64"))


def sketch(rows: Tensor, cells: Tensor, *, seed: int = 0, sigma: float = SIGMA) -> NoisedSketch:
    total = SKETCHER.sums(rows, cells)
    noise = torch.from_numpy(Stream.seeded(seed, "test noise").normals(total.numel())).reshape(total.shape)
    return NoisedSketch(LAW, total + sigma * noise, sigma, len(rows))


def held(times: int, rate: float) -> tuple[float, float]:
    """How often something of that rate happens in so many draws, but for one time in some ten thousand."""
    room = 4 * math.sqrt(times * rate * (1 - rate))
    return times * rate - room, times * rate + room


def test_without_noise_the_frequencies_are_those_of_the_records():
    rows, cells = table(1)
    found = column_means(sketch(rows, cells, sigma=0.0))
    exact = torch.split(rows.mean(dim=0), SIZES)
    for mine, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(mine.numbers, theirs, rtol=0, atol=1e-6)
        assert mine.deviation == 0 and mine.records == N
    labels, groups = cell_means(sketch(rows, cells, sigma=0.0))
    torch.testing.assert_close(labels.numbers, F.one_hot(cells // 3, 2).double().mean(dim=0), rtol=0, atol=1e-6)
    torch.testing.assert_close(groups.numbers, F.one_hot(cells % 3, 3).double().mean(dim=0), rtol=0, atol=1e-6)


def test_the_noise_of_every_frequency_is_as_large_as_it_says_and_pairs_make_it_less():
    rows, cells = table(1)
    exact = [*column_means(sketch(rows, cells, sigma=0.0)), *cell_means(sketch(rows, cells, sigma=0.0))]
    errors: list[list[Tensor]] = [[] for _ in exact]
    for seed in range(150):
        noised = sketch(rows, cells, seed=seed)
        for place, (mine, theirs) in enumerate(zip([*column_means(noised), *cell_means(noised)], exact, strict=True)):
            errors[place].append((mine.numbers - theirs.numbers) / mine.deviation)
    for each in errors:
        squares = torch.stack(each).square().flatten()
        assert abs(float(squares.mean()) - 1) < 5 * math.sqrt(2 / len(squares))
    alone = SIGMA / N * math.sqrt(LAW.cells * len(SIZES) / 0.2)
    assert all(each.deviation < 0.8 * alone for each in column_means(sketch(rows, cells)))


def test_a_sketch_of_one_column_has_no_pairs_to_read():
    law = Law(2, (Pairs(((0, 2),)),))
    rows = table(1)[0][:, :2]
    total = law.drawn(torch.float64).sums(rows, torch.zeros(N, dtype=torch.int64))
    (found,) = column_means(NoisedSketch(law, total, 0.0, N))
    torch.testing.assert_close(found.numbers, rows.mean(dim=0), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_interval_of_the_records_holds_their_exact_distance_as_often_as_it_says():
    sides = [table(1), table(2, shift=0.3)]
    exact = [column_means(sketch(*side, sigma=0.0)) for side in sides]
    for column in range(3):
        distance = float((exact[0][column].numbers - exact[1][column].numbers).norm())
        inside = 0
        for seed in range(DRAWS):
            one, other = (column_means(sketch(*side, seed=2 * seed + at))[column] for at, side in enumerate(sides))
            low, high = drift_of_means(one, other, confidence=0.8).records
            inside += low <= distance <= high
        least, most = held(DRAWS, 0.8)
        assert least <= inside <= most


def test_where_nothing_drifts_intervals_hold_0_and_doubts_are_seldom_small():
    missed, doubts = np.zeros(3), []
    for seed in range(DRAWS):
        one, other = (column_means(sketch(*table(10 + 2 * seed + at), seed=2 * seed + at)) for at in (0, 1))
        found = [drift_of_means(a, b, confidence=0.8) for a, b in zip(one, other, strict=True)]
        missed += [each.populations[0] > 0 for each in found]
        doubts += [each.doubt for each in found]
    assert bool((missed <= held(DRAWS, 0.2)[1]).all())
    for level in (0.5, 0.1):
        assert np.mean(np.array(doubts) <= level) <= held(len(doubts), level)[1] / len(doubts)


def test_the_doubt_is_where_the_interval_of_the_populations_leaves_0():
    one, other = (column_means(sketch(*table(at, shift=0.25 * at), seed=at))[1] for at in (0, 1))
    doubt = drift_of_means(one, other).doubt
    assert LEAST_DOUBT < doubt < 1
    assert drift_of_means(one, other, confidence=1 - 1.01 * doubt).differ
    assert not drift_of_means(one, other, confidence=1 - 0.99 * doubt).differ


def test_a_distance_beyond_doubt_and_one_of_nothing_have_the_ends_of_it():
    here, there = (Means(torch.eye(2, dtype=torch.float64)[at], 1e-9, 10**6) for at in (0, 1))
    assert drift_of_means(here, there).doubt == LEAST_DOUBT
    assert drift_of_means(here, here).doubt == 1.0
    exact = [Means(each.numbers, 0.0, 200) for each in (here, there)]
    assert drift_of_means(*exact).doubt < 1e-6 and drift_of_means(exact[0], exact[0]).doubt == 1.0


def test_codes_that_are_nearer_to_each_other_have_narrower_intervals():
    numbers = torch.zeros(3, dtype=torch.float64)
    wide, narrow = (
        drift_of_means(Means(numbers, 0.01, 500, apart), Means(numbers, 0.01, 500, apart)).populations[1]
        for apart in (2.0, math.sqrt(2))
    )
    assert narrow < wide


def test_a_sketch_of_waves_has_no_columns():
    law = Law(2, (GaussianKernel((1.0,), 4),))
    with pytest.raises(ValueError, match="no single columns"):
        column_means(NoisedSketch(law, torch.zeros(1, 9), 1.0, 10))
