"""Distances between noised sketches: intervals hold as often as they say, whatever the noise, and cost nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.drift import drift
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import Law

LAW = Law(2, (GaussianKernel((1.0,), 30),))
SKETCHER = LAW.drawn()
N = 2000


def side(shift: float, *, sigma: float = 0.0, records: int = N) -> NoisedSketch:
    points = torch.randn(records, 2) + shift
    return noised(SKETCHER.sums(points, torch.zeros(records, dtype=torch.int64)), sigma, records)


def noised(total: Tensor, sigma: float, records: int = N) -> NoisedSketch:
    return NoisedSketch(LAW, total + sigma * torch.randn_like(total), sigma, records)


@pytest.mark.parametrize("shift", [0.0, 0.2, 2.0])
def test_the_interval_of_the_records_holds_the_exact_distance_as_often_as_it_says(shift):
    one, other = side(0.0), side(shift)
    exact = drift(one, other).distance
    held = 0
    for _ in range(40):
        found = drift(noised(one.value, 15.0), noised(other.value, 25.0), confidence=0.9)
        held += found.records[0] <= exact <= found.records[1]
    assert held >= 40 * 0.9 - 4 * math.sqrt(40 * 0.09)


def test_without_noise_the_distance_is_known_and_the_populations_still_are_not():
    found = drift(side(0.0), side(1.0))
    assert found.records == (found.distance, found.distance)
    assert found.populations[0] < found.distance < found.populations[1]


def test_samples_of_one_law_are_not_found_to_differ_and_far_ones_are():
    assert not any(drift(side(0.0, sigma=15.0), side(0.0, sigma=15.0)).differ for _ in range(10))
    assert drift(side(0.0, sigma=15.0), side(2.0, sigma=15.0)).differ


def test_more_noise_makes_wider_intervals_and_huge_differences_stay_finite():
    one, other = side(0.0), side(2.0)
    widths = []
    for sigma in (1e-6, 1.0, 100.0):
        low, high = drift(noised(one.value, sigma), noised(other.value, sigma)).records
        widths.append(high - low)
    assert 0 < widths[0] < widths[1] < widths[2] < math.inf


def test_sketches_of_different_laws_are_no_two_sides():
    law = Law(2, (GaussianKernel((2.0,), 30),))
    with pytest.raises(ValueError, match="different laws"):
        drift(side(0.0), NoisedSketch(law, side(0.0).value, 0.0, N))
