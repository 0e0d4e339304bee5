"""Pairs of columns: marginals are measured, no two records are further apart than sqrt(2), chances are exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_counts import Pairs, PairsOfCodes, table_weights
from fedsw.learning.sketches.table_parts import sums_of_codes
from fedsw.privacy.sensitivity import SLACK

SIZES = (3, 2, 4)
RANGES = ((0, 3), (3, 5), (5, 9))
PART = Pairs(RANGES, singles=0.3)
LAW = Law(9, (PART,), classes=2, counts=0.1)


def rows(n: int = 200) -> tuple[Tensor, Tensor]:
    codes = torch.stack([torch.randint(0, size, (n,)) for size in SIZES], dim=1)
    return codes, torch.cat([F.one_hot(codes[:, k], size) for k, size in enumerate(SIZES)], dim=1).float()


def test_the_mean_vector_of_a_table_is_its_single_and_pair_frequencies():
    codes, given = rows()
    mean = LAW.drawn()(given).mean(dim=0)
    single = torch.cat([torch.bincount(codes[:, k], minlength=size) / 200 for k, size in enumerate(SIZES)])
    torch.testing.assert_close(mean[:9], math.sqrt(0.3 / 3) * single)
    pairs = []
    for i, j in itertools.combinations(range(3), 2):
        both = codes[:, i] * SIZES[j] + codes[:, j]
        pairs.append(torch.bincount(both, minlength=SIZES[i] * SIZES[j]) / 200)
    found, wanted = mean[9:].sort().values, (math.sqrt(0.7 / 3) * torch.cat(pairs)).sort().values
    torch.testing.assert_close(found, wanted)


EVERY_WEIGHTING = pytest.mark.parametrize(
    ("singles", "balance"), [*itertools.product([0.3, "auto"], ["equal", "size"])]
)


@EVERY_WEIGHTING
@pytest.mark.parametrize("made", ["codes", "anything"])
def test_no_record_is_longer_than_1_or_further_from_another_than_the_bound_says(made, singles, balance):
    given = rows()[1] if made == "codes" else 5 * torch.randn(200, 9)
    vectors = Law(9, (Pairs(RANGES, singles, balance),), classes=2, counts=0.1).drawn()(given)
    assert float(vectors.norm(dim=1).max()) <= 1 + 1e-5
    assert float(torch.cdist(vectors, vectors).max()) <= math.sqrt(2) + 1e-5
    assert float(vectors.min()) >= 0


@EVERY_WEIGHTING
def test_gradient_ascent_on_two_records_comes_to_the_root_of_two_and_not_above(singles, balance):
    law = Law(9, (Pairs(RANGES, singles, balance),), counts=0.1)
    drawn, records = law.drawn(torch.float64), torch.randn(32, 2, 9, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([records], lr=0.1)
    for _ in range(150):
        apart = (drawn(records[:, 0]) - drawn(records[:, 1])).norm(dim=1)
        largest = float(apart.detach().max())
        optimizer.zero_grad()
        (-apart.sum()).backward()
        optimizer.step()
    assert largest == pytest.approx(math.sqrt(2), rel=1e-3)
    assert largest <= sketch_sensitivity(law).value


def test_weights_by_size_have_the_least_noise_of_all_numbers_together():
    sizes = (3, 2, 11)
    tables = [*((k,) for k in range(3)), *itertools.combinations(range(3), 2)]
    numbers = np.array([math.prod(sizes[k] for k in table) for table in tables])

    def noise(singles, balance):
        single, pair = table_weights(sizes, singles, balance)
        weights = np.array([float(single[t[0]] if len(t) == 1 else pair[t]) for t in tables])
        assert float((weights**2).sum()) == pytest.approx(1)
        return weights, float((numbers / weights).sum())

    weights, least = noise("auto", "size")
    np.testing.assert_allclose(weights, numbers ** (1 / 3) / math.sqrt(float((numbers ** (2 / 3)).sum())))
    for moved in np.random.default_rng(0).normal(size=(50, 6)):
        other = np.abs(weights + 0.05 * moved)
        assert (numbers / (other / np.linalg.norm(other))).sum() >= least
    assert all(
        noise(*each)[1] > least
        for each in itertools.product([0.2, "auto"], ["equal", "size"])
        if each != ("auto", "size")
    )


def test_two_records_that_share_no_code_are_as_far_apart_as_the_bound_says():
    far = torch.zeros(2, 9)
    far[0, [0, 3, 5]] = 1
    far[1, [1, 4, 6]] = 1
    assert float((LAW.drawn()(far[0:1]) - LAW.drawn()(far[1:2])).norm()) == pytest.approx(math.sqrt(2), rel=1e-6)
    alone = Law(9, (PART,), counts=0.1)
    assert sketch_sensitivity(alone).value == pytest.approx(SLACK * math.sqrt(2))
    assert sketch_sensitivity(LAW).value == pytest.approx(SLACK * math.sqrt(2 * 1.1))


@pytest.mark.parametrize("balance", ["equal", "size"])
def test_sums_by_cell_without_vectors_are_those_of_the_vectors(balance):
    part, given = PairsOfCodes(SIZES, 0.3, balance).float(), torch.rand(50, 9)
    members = (torch.arange(50) % 2 == torch.arange(2).unsqueeze(1)).float()
    vectors = part(given)
    sums, squares = part.summed(given, members)
    torch.testing.assert_close(sums, members @ vectors)
    torch.testing.assert_close(squares, members @ vectors.square().sum(dim=1))


def test_the_vector_of_chances_is_the_mean_vector_of_the_rows_that_are_drawn_with_them():
    chances = torch.cat([torch.softmax(torch.randn(1, size), dim=1) for size in SIZES], dim=1)
    whole = torch.zeros(9 + 26)
    part = PairsOfCodes(SIZES, 0.3).float()
    for chosen in itertools.product(*(range(size) for size in SIZES)):
        row = torch.cat(
            [F.one_hot(torch.tensor([code]), size) for code, size in zip(chosen, SIZES, strict=True)], dim=1
        )
        chance = math.prod(float(chances[0, RANGES[k][0] + code]) for k, code in enumerate(chosen))
        whole += chance * part(row.float())[0]
    torch.testing.assert_close(part(chances)[0], whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("ranges", "singles"), [((), 0.2), (((0, 2), (1, 3)), 0.2), (((0, 2),), 0.0), (((2, 2),), 0.5)]
)
def test_ranges_that_overlap_and_parts_out_of_range_are_refused(ranges, singles):
    with pytest.raises(ValueError, match="ranges|singles"):
        Pairs(ranges, singles)


CHOSEN = ((0, 2), (1, 2))


@pytest.mark.parametrize("balance", ["equal", "size"])
def test_chosen_pairs_have_the_whole_norm_and_records_are_as_far_apart_as_the_bound_says(balance):
    law = Law(9, (Pairs(RANGES, balance=balance, chosen=CHOSEN),), classes=2, counts=0.01)
    drawn, (codes, given) = law.drawn(), rows()
    vectors = drawn(given)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(200))
    both = codes[:, :1] * SIZES[2] + codes[:, 2:]
    weight = float(table_weights(SIZES, 0.2, balance, CHOSEN)[1][0, 2])
    counts = torch.bincount(both[:, 0], minlength=12) * weight
    found = vectors.sum(dim=0)
    torch.testing.assert_close(
        found[found > 0].sum(), torch.tensor(weight + float(table_weights(SIZES, 0.2, balance, CHOSEN)[1][1, 2])) * 200
    )
    assert {round(float(each), 3) for each in counts} <= {round(float(each), 3) for each in found}
    anything = drawn(5 * torch.randn(200, 9))
    assert float(torch.cdist(anything, anything).max()) <= math.sqrt(2) + 1e-5
    assert sketch_sensitivity(law).value == pytest.approx(SLACK * math.sqrt(2 * 1.01))


@pytest.mark.parametrize("chosen", [(), ((2, 1),), ((0, 3),), ((1, 1),)])
def test_chosen_pairs_that_are_none_are_refused(chosen):
    with pytest.raises(ValueError, match="pairs i < j"):
        Pairs(RANGES, chosen=chosen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "more",
    [
        {"singles": 0.7, "balance": "codes", "among": 3},
        {"singles": "auto", "balance": "size"},
        {"chosen": ((0, 2), (1, 3))},
        {"weight": 0.3},
    ],
)
def test_counted_codes_have_the_sums_of_their_one_hot_rows_to_the_last_bit(more, dtype):
    sizes, generator = (5, 2, 7, 3), torch.Generator().manual_seed(0)
    ends = list(itertools.accumulate(sizes, initial=0))
    law = Law(ends[-1], (Pairs(tuple(itertools.pairwise(ends)), **more),), classes=2, groups=2, counts=0.4)
    codes = torch.stack([torch.randint(size, (3000,), generator=generator) for size in sizes], dim=1)
    cells = torch.randint(-1, 5, (3000,), generator=generator)  # two of which do not exist
    rows = torch.cat([F.one_hot(codes[:, at], size) for at, size in enumerate(sizes)], dim=1).to(dtype)
    sketcher = law.drawn(dtype)
    assert torch.equal(sums_of_codes(sketcher, codes, cells), sketcher.sums(rows, cells))


def test_another_law_and_no_records_are_left_to_the_sums_of_rows():
    codes, cells = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    pairs = Pairs(((0, 2), (2, 4)))
    assert sums_of_codes(Law(4, (pairs,)).drawn(torch.float32), codes, cells) is not None
    assert sums_of_codes(Law(5, (pairs,)).drawn(torch.float32), codes, cells) is None
    assert sums_of_codes(Law(4, (pairs, pairs)).drawn(torch.float32), codes, cells) is None
    assert sums_of_codes(Law(4, (pairs,)).drawn(torch.float32), codes[:0], cells[:0]) is None
