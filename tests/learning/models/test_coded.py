"""Laws of coded inputs: what a record becomes, how long it is at most, and that nothing of it is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.learning.models.coded import LENGTH, Centred, Hats, knots_of
from fedsw.mathematics.clipping.rules import HatLinear

COLUMNS = Columns.model_validate(
    {
        "features": [
            {"name": "age", "low": 0, "high": 100},
            {"name": "pay", "low": 10, "high": 20, "scale": "signed", "missing": [""], "fill": 15},
            {"name": "work", "categories": ["a", "b", "c"]},
            {"name": "home", "categories": ["own", "rent"], "missing": ["?"], "fill": "own"},
            {"name": "kids", "kind": "integer", "low": 0, "high": 3},
            {"name": "ill", "kind": "boolean"},
            {"name": "at", "count": 2, "low": 0, "high": 1, "knots": [0.1, 0.2, 0.9]},
        ],
    }
)
ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32), st.floats(-2, 2, width=32), st.sampled_from([0.0, 1.0])
)


def rows() -> torch.Tensor:
    """Inputs (40, p) of records that fit the columns."""
    rng, many = np.random.default_rng(3), 40
    cells = {
        "age": rng.uniform(0, 100, many).tolist(),
        "pay": [None if place % 5 == 0 else 10 + place % 11 for place in range(many)],
        "work": [["a", "b", "c"][place % 3] for place in range(many)],
        "home": [["own", "rent", "?"][place % 3] for place in range(many)],
        "kids": [place % 4 for place in range(many)],
        "ill": [place % 2 == 0 for place in range(many)],
        "at0": rng.uniform(0.1, 0.9, many).tolist(),
        "at1": rng.uniform(0.1, 0.9, many).tolist(),
    }
    written = {name: np.array(["" if value is None else str(value) for value in own]) for name, own in cells.items()}
    return encoded([Chunk(2, written)], COLUMNS, where="made up", counted="").features


def test_shares_of_a_column_add_up_to_one_and_give_its_inputs_back():
    coding, inputs = Hats(COLUMNS, 5), rows()
    found, start = coding(inputs).double().numpy(), 0
    for width in coding.by_column:
        shares = found[:, start : start + width] / coding.scale
        assert np.allclose(shares.sum(1), 1) and ((shares > 0).sum(1) <= 2).all()
        start += width
    assert start == coding.width == len(coding.names)
    assert np.allclose(coding.inputs(found), inputs.numpy(), atol=1e-5)
    distances = np.sum((found - coding.middle) ** 2, axis=1)
    assert distances.mean() <= coding.reach + 0.05 and np.allclose(coding.middle.sum() / coding.scale, 8)


def test_a_missing_cell_has_a_place_of_its_own_and_no_other():
    coding = Hats(COLUMNS, 5)
    found, missing = coding(rows()), coding.names.index("pay is missing")
    pay = [place for place, name in enumerate(coding.names) if name.startswith("pay at")]
    absent = found[:, missing] > 0
    assert absent.tolist() == [place % 5 == 0 for place in range(40)]
    assert not found[absent][:, pay].any() and found[~absent][:, pay].sum(1).allclose(torch.tensor(coding.scale))


@settings(max_examples=300, deadline=None)
@given(st.lists(ANYTHING, min_size=COLUMNS.inputs, max_size=COLUMNS.inputs))
def test_a_record_is_coded_inside_the_unit_ball_whatever_it_holds(numbers):
    found = Hats(COLUMNS, 5)(torch.tensor([numbers], dtype=torch.float64))
    assert bool(torch.isfinite(found).all()) and float(torch.linalg.vector_norm(found)) <= 1 + 1e-12


@pytest.mark.parametrize("coding", [Hats(COLUMNS, 3), Centred(COLUMNS)])
def test_records_are_coded_into_a_tensor_as_they_are_into_a_new_one(coding):
    inputs = torch.cat([rows(), 3 * torch.randn(40, COLUMNS.inputs, generator=torch.Generator().manual_seed(0))])
    written = torch.full((80, coding.width), math.nan)
    coding.write(inputs, written)
    assert torch.equal(written, coding(inputs))


def test_records_of_every_column_s_knots_have_length_one():
    inputs = torch.zeros(1, COLUMNS.inputs)
    inputs[0, [0, 3, 6, 9, 10]] = 1.0
    inputs[0, 11:] = 0.9
    assert float(torch.linalg.vector_norm(Hats(COLUMNS, 5)(inputs))) == pytest.approx(1)


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        ({"low": 0, "high": 100}, (0, 25, 50, 75, 100)),
        ({"kind": "integer", "low": 1, "high": 4}, (1, 2, 3, 4)),
        ({"kind": "boolean"}, (0, 1)),
        ({"low": 0, "high": 10_000}, (0, 10_000 / 10**1.5, 1_000, 10_000 / 10**0.5, 10_000)),
        ({"low": 1, "high": 10_000}, (1, 10, 100, 1_000, 10_000)),
        ({"low": 0, "high": 1, "knots": [0.2, 0.4]}, (0.2, 0.4)),
    ],
)
def test_knots_lie_in_the_bounds_and_follow_decades(declared, wanted):
    assert knots_of(Feature(name="x", **declared), 5) == pytest.approx(wanted)


@pytest.mark.parametrize("knots", [[0.5], [0.4, 0.2], [0.2, 0.2], [-1, 0.5], [0.5, 2]])
def test_knots_outside_the_bounds_or_out_of_order_are_refused(knots):
    with pytest.raises(ValueError, match="at least two, increasing, from 0 to 1"):
        Feature(name="x", low=0, high=1, knots=knots)


def test_knots_and_edges_of_dates_are_dates_or_days():
    bounds = {"kind": "date", "low": "2012-01-01", "high": "2015-12-31"}
    days = Feature(name="x", **bounds, since="2012-01-01", knots=[0, 366], edges=[366])
    dates = Feature(name="x", **bounds, since="2012-01-01", knots=["2012-01-01", "2013-01-01"], edges=["2013-01-01"])
    assert dates == days == Feature.model_validate(days.model_dump())
    with pytest.raises(ValueError, match=r"knots \['2010-06-01', '2013-01-01'\]; .* from 2012-01-01 to 2015-12-31"):
        Feature(name="x", **bounds, knots=["2010-06-01", "2013-01-01"])


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        ({"kind": "date", "low": "2012-01-01", "high": "2015-12-31"}, ["2012-01-01", "2013-12-31", "2015-12-31"]),
        ({"kind": "date", "low": 0, "high": 100, "since": "2000-01-01"}, ["2000-01-01", "2000-02-20", "2000-04-10"]),
        ({"low": 0, "high": 99_999, "knots": [12_345, 54_321]}, ["12345", "54321"]),
        ({"low": 100_000, "high": 100_010}, ["100000", "100005", "100010"]),
        ({"low": 10_000, "high": 2e9}, ["10000", "4472000", "2000000000"]),
        ({"low": 1, "high": 31_623_000}, ["1", "5623", "31620000"]),
    ],
)
def test_a_knot_s_name_tells_it_from_its_neighbours(declared, wanted):
    names = Hats(Columns(features=(Feature(name="x", **declared),)), 3).names
    assert [name.removeprefix("x at ") for name in names] == wanted


def test_knots_of_what_has_no_bounds_are_refused():
    for declared in ({}, {"kind": "boolean"}, {"categories": ["a", "b"]}):
        with pytest.raises(ValueError, match="between the bounds of a number"):
            Feature(name="x", knots=[0, 1], **declared)
    with pytest.raises(ValueError, match="'x' has no bounds.*declare low and high"):
        Hats(Columns(features=(Feature(name="x"),)), 5)


def test_centred_inputs_reach_no_further_than_their_length_and_give_the_inputs_back():
    coding, inputs = Centred(COLUMNS), rows()
    found = coding(inputs).double().numpy()
    assert np.linalg.norm(found, axis=1).max() <= LENGTH and np.allclose(
        coding.inputs(found), inputs.numpy(), atol=1e-5
    )
    corner = torch.zeros(1, COLUMNS.inputs)
    corner[0, [1, 3, 6]] = torch.tensor([-1.0, 1.0, 1.0])
    assert float(torch.linalg.vector_norm(coding(corner))) <= LENGTH * (1 + 1e-6)
    assert not coding(torch.full((1, COLUMNS.inputs), math.nan)).isnan().any()


def test_places_stand_for_the_hats_of_records_that_fit():
    coding = Hats(COLUMNS, 5)
    layer = HatLinear(coding.by_column, coding.scale, 1, dtype=torch.float64)
    for inputs in (rows(), rows().double()):
        places = coding.places(inputs)
        assert places.shape == (40, 8) and places.dtype == inputs.dtype
        found = layer.hats(layer.inputs(places), torch.float64)
        assert torch.allclose(found, coding(inputs).double(), atol=1e-6)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANYTHING, min_size=COLUMNS.inputs, max_size=COLUMNS.inputs))
def test_whatever_a_record_holds_its_places_lie_in_its_columns(numbers):
    coding = Hats(COLUMNS, 5)
    (places,) = coding.places(torch.tensor([numbers], dtype=torch.float64)).tolist()
    for place, count, kind in zip(places, coding.by_column, "nnccnnnn", strict=True):
        assert 0 <= place <= count and (kind == "n" or place == int(place))


def test_a_category_that_is_none_has_no_hat():
    inputs = rows()
    inputs[:, COLUMNS.feature_names.index("work=a") :][:, :3] = 0.0
    coding = Hats(COLUMNS, 5)
    layer = HatLinear(coding.by_column, coding.scale, 1)
    found, start = layer.hats(layer.inputs(coding.places(inputs)), torch.float32), coding.names.index("work=a")
    assert not found[:, start : start + 3].any() and torch.allclose(found, coding(inputs), atol=1e-6)


def test_places_of_nan_alone_are_those_of_zeros_as_hats_are():
    coding = Hats(COLUMNS, 5)
    layer = HatLinear(coding.by_column, coding.scale, 1, dtype=torch.float64)
    nothing = torch.tensor([math.nan, math.inf, -math.inf]).repeat(COLUMNS.inputs, 1).T
    places, zeros = coding.places(nothing), coding.places(torch.zeros(1, COLUMNS.inputs))
    assert torch.equal(places, zeros.expand(3, -1))
    assert torch.equal(layer.inputs(places), layer.inputs(zeros).expand(3, -1))
    torch.testing.assert_close(coding(nothing), coding(torch.zeros(3, COLUMNS.inputs)))
