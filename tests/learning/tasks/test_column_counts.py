"""Laws of histograms of columns: how far one record moves them, what they count, and bins that are read off them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.data.columns.declaration import Columns
from fedsw.experiment.sections import Model
from fedsw.learning.models.coded import Hats
from fedsw.learning.moments.column_counts import Histograms, bins_of, counts_of_columns
from fedsw.privacy.relations import ADD_OR_REMOVE, REPLACE_ANY

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=32)
COLUMNS = Columns.model_validate(
    {
        "features": [
            {"name": "gain", "kind": "integer", "low": 0, "high": 100_000},
            {"name": "age", "kind": "integer", "low": 17, "high": 90},
            {"name": "share", "low": 0, "high": 1, "missing": [""], "fill": 0.5},
            {"name": "change", "low": -5, "high": 5, "scale": "signed"},
            {"name": "stars", "kind": "integer", "low": 1, "high": 5},
            {"name": "own", "low": 0, "high": 9, "knots": [0, 3, 9]},
            {"name": "ward", "categories": ["a", "b"]},
        ],
        "target": {"name": "y", "values": ["n", "y"]},
    }
)
COUNTS = counts_of_columns(COLUMNS, Model(kind="additive", knots=5))
NAMES = ("gain", "age", "share", "change")


def rows(gain, age, share, change, *, missing=None) -> torch.Tensor:
    """Features of records with these cells."""
    numbers = np.zeros((len(gain), COLUMNS.inputs))
    cells = {"gain": gain, "age": age, "share": share, "change": change}
    for column, feature in zip(COUNTS.columns, COUNTS.features, strict=True):
        values = np.asarray(cells[column.name], dtype=np.float64)
        numbers[:, column.first] = feature.reader.inputs(values, feature)[:, 0]
    if missing is not None:
        numbers[:, COUNTS.columns[2].first + 1] = missing
    return torch.from_numpy(numbers).float()


def test_columns_are_counted_that_have_more_values_than_knots_and_no_knots_of_their_own():
    assert tuple(column.name for column in COUNTS.columns) == NAMES
    assert counts_of_columns(COLUMNS, Model(kind="logistic")) is None
    assert all(65 <= column.size <= 151 for column in COUNTS.columns)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANYTHING, min_size=2 * COLUMNS.inputs, max_size=2 * COLUMNS.inputs))
def test_a_replaced_record_moves_counts_by_the_root_of_two_for_each_column_at_most_whatever_it_holds(numbers):
    before, after = torch.tensor(numbers).reshape(2, 1, -1)
    one, other = COUNTS.counted(before), COUNTS.counted(after)
    assert float((one - other).double().norm()) <= COUNTS.moved_for(REPLACE_ANY) == math.sqrt(8)
    assert float(one.double().norm()) == pytest.approx(COUNTS.moved_for(ADD_OR_REMOVE)) == math.sqrt(4)
    assert COUNTS.fits(one, 1) and not COUNTS.fits(one + 1, 1) and not COUNTS.fits(one, 2)


def test_the_bound_is_met_by_two_records_that_share_no_part_of_any_column():
    found = [COUNTS.counted(rows([gain], [age], [share], [change])) for gain, age, share, change in
             ((0, 17, 0.0, -5.0), (100_000, 90, 1.0, 5.0))]  # fmt: skip
    assert float((found[0] - found[1]).double().norm()) == pytest.approx(COUNTS.moved)


def test_every_record_is_counted_once_in_each_column_in_the_part_between_its_declared_edges():
    rng = np.random.default_rng(0)
    gain = np.concatenate([[0, 1, 100_000], rng.integers(0, 100_001, 500)])
    age = rng.integers(17, 91, len(gain))
    share, change = rng.random(len(gain)), np.where(rng.random(len(gain)) < 0.5, 0.0, rng.uniform(-5, 5, len(gain)))
    absent = (rng.random(len(gain)) < 0.2).astype(float)
    found = COUNTS.counted(rows(gain, age, share, change, missing=absent)).numpy()
    for column, values, of_column in zip(COUNTS.columns, (gain, age, share, change), found, strict=True):
        there = values[absent == 0] if column.name == "share" else values
        known = [int(((low <= there) & (there < high)).sum()) for low, high in pairwise(column.edges)]
        known[-1] += int((there == column.edges[-1]).sum())
        if column.missing is not None:
            known.append(int(absent.sum()))
        moved = np.abs(np.cumsum(of_column[: len(known)]) - np.cumsum(known))
        assert moved.max() <= (2 if column.name in ("share", "change") else 0)  # float32 may move one over an edge
        assert of_column.sum() == len(gain) and not of_column[len(known) :].any()


@pytest.mark.parametrize("records", [20_000, 200_000])
def test_bins_are_of_columns_with_a_point_mass_and_hold_enough_and_others_keep_their_knots(records):
    rng = np.random.default_rng(1)
    gain = np.where(rng.random(records) < 0.9, 0, np.minimum(np.exp(rng.normal(8, 1.5, records)).round(), 100_000))
    cells = gain, rng.integers(17, 91, records), rng.random(records), rng.uniform(-5, 5, records)
    exact = COUNTS.counted(rows(*cells)).double().numpy()
    sigma = 40.0
    values = exact + sigma * rng.standard_normal(exact.shape)
    found = bins_of(Histograms(COUNTS, values, sigma, records), 5)
    assert {column.column for column in found} == {"gain"}
    edges = (0.0, *found[0].edges, 100_001.0)
    assert set(found[0].edges) <= set(COUNTS.columns[0].edges) and 1.0 in edges
    held = np.histogram(gain, edges)[0]
    assert len(held) >= 4 and held.min() >= 6 * sigma - 5 * sigma * math.sqrt(COUNTS.width)
    assert bins_of(Histograms(COUNTS, 0 * values, sigma, records), 5) == ()


BINS = (("gain", (1.0, 500.0, 40_000.0)), ("share", (0.25,)), ("change", (0.0, 1e-9, 2.0)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000), st.floats(0, 1, width=32), st.floats(-5, 5, width=32))
def test_a_number_is_coded_as_its_bin_alone_and_no_record_is_longer_than_1(gain, share, change):
    coding = Hats(COLUMNS, 5, BINS)
    inputs = rows([gain], [40], [share], [change])
    numbers = coding(inputs)[0] / coding.scale
    assert float(coding(inputs).norm()) <= 1 + 1e-6
    ends = np.cumsum([0, *coding.by_column])
    for place, (values, edges) in {0: (gain, BINS[0][1]), 2: (share, BINS[1][1]), 3: (change, BINS[2][1])}.items():
        shares = numbers[ends[place] : ends[place + 1]].double().numpy()
        assert shares.sum() == pytest.approx(1, abs=1e-5)
        near = min(abs(values - edge) for edge in edges)
        if place == 0 or near > 0.05:
            assert shares[np.searchsorted(edges, values, side="right")] == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(st.lists(ANYTHING, min_size=COLUMNS.inputs, max_size=COLUMNS.inputs))
def test_codes_of_bins_have_norm_1_at_most_whatever_a_record_holds(numbers):
    assert float(Hats(COLUMNS, 5, BINS)(torch.tensor([numbers])).norm()) <= 1 + 1e-6


def test_places_of_bins_are_those_that_the_layer_reads_the_same_numbers_from():
    coding = Hats(COLUMNS, 5, BINS)
    rng = np.random.default_rng(2)
    inputs = rows(rng.integers(0, 100_001, 300), rng.integers(17, 91, 300), rng.random(300), rng.uniform(-5, 5, 300))
    numbers, places = coding(inputs) / coding.scale, coding.places(inputs)
    ends = np.cumsum([0, *coding.by_column])
    for place in (0, 1, 2, 3):
        first, part = places[:, place].floor().long(), places[:, place] % 1
        again = torch.zeros(300, coding.by_column[place])
        again[torch.arange(300), first] += 1 - part
        again[torch.arange(300), (first + 1).clamp(max=coding.by_column[place] - 1)] += part
        assert torch.allclose(again, numbers[:, ends[place] : ends[place + 1]], atol=1e-4)
