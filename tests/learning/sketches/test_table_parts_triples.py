"""Counts of three columns: how far two records are apart, what is summed, and which triples come next."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from fedsw.learning.models.labelled import TableGenerator
from fedsw.learning.sketches.noised import NoisedSketch, sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_parts import (
    MOST_CODES,
    Triples,
    TriplesOf,
    next_triples,
    sums_of_codes,
    triples_within,
)

SIZES = (3, 2, 4, 2)
RANGES = ((0, 3), (3, 5), (5, 9), (9, 11))
CHOSEN = ((0, 1, 2), (0, 2, 3), (1, 2, 3))
LAW = Law(11, (Triples(RANGES, CHOSEN),), classes=2, counts=0.01)


def rows_of(codes: torch.Tensor) -> torch.Tensor:
    return torch.cat([F.one_hot(codes[:, k], size) for k, size in enumerate(SIZES)], dim=1).double()


def records(many: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    codes = torch.stack([torch.randint(size, (many,), generator=random) for size in SIZES], dim=1)
    return codes, torch.randint(2, (many,), generator=random)


def test_squares_of_weights_have_sum_1_and_grow_with_the_numbers_of_a_table():
    part = Triples(RANGES, CHOSEN).of_codes
    squares = part.factors.square()
    assert float(squares.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(squares[0]) == pytest.approx(float(squares[1]))
    assert float(squares[0] / squares[2]) == pytest.approx((24 / 16) ** (2 / 3))


def test_no_two_records_are_farther_apart_than_the_root_of_two_however_they_are_sought():
    part, random = Triples(RANGES, CHOSEN).of_codes, torch.Generator().manual_seed(1)
    wild = 5 * torch.randn(200, 11, generator=random, dtype=torch.float64)
    assert float(torch.linalg.vector_norm(part(wild), dim=1).max()) <= 1 + 1e-12
    assert float(torch.cdist(part(wild), part(wild)).max()) <= math.sqrt(2) + 1e-9
    pair = [torch.rand(30, 11, generator=random, dtype=torch.float64).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.SGD(pair, lr=1.0)
    for _ in range(25):
        optimizer.zero_grad()
        apart = torch.linalg.vector_norm(part(pair[0]) - part(pair[1]), dim=1)
        torch.autograd.backward(-apart.sum())
        optimizer.step()
    assert 1.3 < float(apart.detach().max()) <= math.sqrt(2) + 1e-9
    apart = torch.linalg.vector_norm(part(rows_of(torch.zeros(1, 4).long())) - part(rows_of(torch.ones(1, 4).long())))
    assert float(apart) == pytest.approx(math.sqrt(2), abs=1e-12)


def test_the_bound_is_attained_by_records_of_two_labels_with_their_counts():
    sketcher, cells = LAW.drawn(torch.float64), torch.tensor([0])
    one, other = (sketcher.sums(rows_of(torch.zeros(1, 4).long()), cells + label) for label in (0, 1))
    bound = sketch_sensitivity(LAW).value
    assert bound / 1.001 * (1 - 1e-6) < float((one - other).norm()) <= bound


def test_counted_sums_are_those_of_one_hot_rows_to_the_last_bit():
    codes, labels = records(500)
    for dtype in (torch.float32, torch.float64):
        sketcher = LAW.drawn(dtype)
        counted = sums_of_codes(sketcher, codes, labels)
        assert counted is not None and torch.equal(counted, sketcher.sums(rows_of(codes).to(dtype), labels))


def test_sums_by_cell_are_those_of_the_vectors_and_of_their_squares():
    part, random = Triples(RANGES, CHOSEN).of_codes, torch.Generator().manual_seed(2)
    rows = torch.randn(30, 11, generator=random, dtype=torch.float64)
    members = F.one_hot(torch.arange(30) % 2, 2).T.double()
    sums, squares = part.summed(rows, members)
    vectors = part(rows)
    torch.testing.assert_close(sums, members @ vectors)
    torch.testing.assert_close(squares, members @ vectors.square().sum(dim=1))
    assert vectors.shape[1] == part.coordinates == part.measured == 24 + 24 + 16


def test_records_as_rows_of_chances_are_at_no_distance_and_noise_is_taken_off():
    codes, labels = records(40)
    labels = torch.arange(40) % 2
    total = sums_of_codes(LAW.drawn(torch.float64), codes, labels)
    assert total is not None
    chances = torch.stack([rows_of(codes[labels == label]) for label in (0, 1)])
    exact = TriplesOf(NoisedSketch(LAW, total, 0.0, 40))
    assert float(exact.distance(chances, torch.tensor([0.5, 0.5]).double())) == pytest.approx(0.0, abs=1e-9)
    random = torch.Generator().manual_seed(3)
    off = [
        TriplesOf(NoisedSketch(LAW, total + 2 * torch.randn(total.shape, generator=random).double(), 2.0, 40))
        for _ in range(200)
    ]
    mean = sum(float(each.distance(chances, torch.tensor([0.5, 0.5]).double())) for each in off) / 200
    assert abs(mean) < 0.1 * off[0].noise


def test_the_triples_that_tell_most_of_the_cell_come_next():
    network = TableGenerator(RANGES, 2, latent=3, hidden=(4,))
    network.proportions.copy_(torch.tensor([0.5, 0.5]))
    chances = torch.cat([torch.full((2, network.rows.shape[1], size), 1 / size) for size in SIZES], dim=-1)
    chances[0, :, 9:], chances[1, :, 9:] = torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])
    network.take(chances)
    assert next_triples(network, 3) == tuple(t for t in itertools.combinations(range(4), 3) if 3 in t)


def test_tables_above_the_most_are_never_asked_for():
    assert triples_within((10, 10, 10, 11)) == ((0, 1, 2),) and MOST_CODES == 1000


@pytest.mark.parametrize("chosen", [(), ((0, 1, 1),), ((1, 0, 2),), ((0, 1, 4),), ((0, 1, 2), (0, 1, 2))])
def test_triples_that_are_none_are_refused(chosen):
    with pytest.raises(ValueError, match="each i < j < k of 4 columns once"):
        Triples(RANGES, chosen)
