"""Laws of kinds of columns: what is missing is marked and filled, dates are days, other cells are refused."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsw.data import BadRecords, as_records, read_table
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.data.tables import MOST_FAULTS, checked
from fedsw.experiment import parse_experiment

AGE = {"name": "age", "kind": "integer", "low": 0, "high": 100, "missing": ["", "?"], "fill": 40}
BORN = {"name": "born", "kind": "date", "format": "%d.%m.%Y", "since": "2000-01-01", "low": "2000-01-01"}
BORN |= {"high": "2000-04-10"}
DATES = st.dates(datetime.date(2000, 1, 1), datetime.date(2000, 4, 10))


def one(feature, cells, **more) -> torch.Tensor:
    columns = Columns.model_validate({"features": [feature], **more})
    return encoded([Chunk(2, {feature["name"]: cells})], columns, where="w", counted="c").features


@given(st.lists(st.one_of(st.sampled_from(["", " ", "?", None, float("nan")]), st.integers(0, 100)), min_size=1))
def test_a_missing_number_is_the_public_fill_and_marked_and_no_other_is(cells):
    found = one(AGE, cells)
    for cell, (value, absent) in zip(cells, found.tolist(), strict=True):
        there = isinstance(cell, int)
        assert absent == (0.0 if there else 1.0)
        assert value == pytest.approx((cell if there else 40) / 100)


@given(st.lists(st.sampled_from(["a", "b", "NA"]), min_size=1, max_size=20), st.sampled_from([None, "b"]))
def test_a_missing_category_is_marked_and_is_none_of_the_others_or_the_one_declared(cells, fill):
    feature = {"name": "job", "categories": ["a", "b"], "missing": ["NA"], "fill": fill}
    filled = [0.0, 0.0, 1.0] if fill is None else [0.0, 1.0, 1.0]
    rows = {"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0], "NA": filled}
    assert one(feature, cells).tolist() == [rows[cell] for cell in cells]


def test_inputs_and_their_names_say_what_may_be_missing():
    columns = Columns.model_validate(
        {"features": [AGE, {"name": "job", "categories": ["a", "b"], "missing": True}, {"name": "x"}]}
    )
    assert columns.feature_names == ("age", "age is missing", "job=a", "job=b", "job is missing", "x")
    assert columns.inputs == len(columns.feature_names)


@given(st.lists(DATES, min_size=1))
def test_dates_are_days_since_the_public_date_and_their_bounds_are_dates(dates):
    found = one(BORN, [date.strftime("%d.%m.%Y") for date in dates])[:, 0]
    days = [(date - datetime.date(2000, 1, 1)).days for date in dates]
    np.testing.assert_allclose(found.numpy(), np.array(days) / 100, rtol=1e-6)
    plain = {"name": "born", "kind": "date"}
    since_1970 = one(plain, [date.isoformat() for date in dates])[:, 0]
    assert since_1970.tolist() == [float((date - datetime.date(1970, 1, 1)).days) for date in dates]
    assert torch.equal(one(plain, dates)[:, 0], since_1970)


def test_truth_values_are_0_and_1_however_they_are_written():
    words = ["true", "No", "T", "f", "1", "0", "YES", "n", True, False, 1, 0, 1.0, 0.0, "1.0", "0.0", "1.", "0.00"]
    assert one({"name": "m", "kind": "boolean"}, words)[:, 0].tolist() == [1.0, 0.0] * 9


@given(st.floats(-1e6, 1e6, width=32, allow_subnormal=False))
def test_a_decimal_comma_is_a_decimal_point(value):
    text = repr(value).replace(".", ",")
    assert one({"name": "x"}, [text], decimal=",").item() == np.float32(value)


@pytest.mark.parametrize(
    ("feature", "cell", "said"),
    [
        (AGE, "17.5", "whole number from 0 to 100"),
        (AGE, "NaN", "whole number"),
        (AGE, "101", "0 to 100"),
        (BORN, "2000-01-02", "'%d.%m.%Y', from 2000-01-01 to 2000-04-10"),
        (BORN, "11.04.2000", "to 2000-04-10"),
        (BORN, "31.02.2000", "date"),
        ({"name": "m", "kind": "boolean"}, "maybe", "truth value"),
        ({"name": "m", "kind": "boolean"}, "2", "truth value"),
        ({"name": "m", "kind": "boolean"}, 0.5, "truth value"),
        ({"name": "m", "kind": "boolean"}, "01", "truth value"),
        ({"name": "x"}, "1,5", "finite number"),
        ({"name": "job", "categories": ["a", "b"], "missing": ["NA"]}, "", "declared are"),
    ],
)
def test_what_is_not_of_its_kind_is_refused_with_row_and_column(feature, cell, said):
    with pytest.raises(BadRecords, match=f"row 2 .*column '{feature['name']}'") as fault:
        one(feature, [cell])
    assert said in str(fault.value)


def test_a_point_in_a_number_with_decimal_commas_is_refused_for_it_may_part_thousands():
    with pytest.raises(BadRecords, match="decimal comma"):
        one({"name": "x"}, ["1.234,5"], decimal=",")


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        ({"name": "a", "missing": [""]}, "give fill"),
        ({"name": "a", "fill": 3}, "no missing"),
        ({"name": "a", "low": 0, "high": 1, "missing": [""], "fill": 2}, "outside 0 to 1"),
        ({"name": "a", "count": 2, "missing": [""], "fill": 0}, "count and missing"),
        ({"name": "a", "categories": ["x", "y"], "missing": [""], "fill": "z"}, "none of its categories"),
        ({"name": "a", "categories": ["x", "y"], "missing": ["x"]}, "as a category and as missing"),
        ({"name": "a", "kind": "boolean", "low": 0, "high": 1}, "truth values"),
        ({"name": "a", "since": "2000-01-01"}, "belong to dates"),
        ({"name": "a", "kind": "integer", "categories": ["x", "y"]}, "leave one of the two out"),
        ({"name": "a", "outside": "cut"}, "no bounds; give low and high"),
    ],
)
def test_declarations_that_do_not_hold_together_are_refused(feature, said):
    with pytest.raises(ValidationError, match=said):
        Feature.model_validate(feature)


def test_a_semicolon_table_with_decimal_commas_is_the_table_with_commas_and_points(tmp_path: Path):
    features = [AGE, {"name": "pay", "low": 0, "high": 10}]
    group = {"name": "sex", "values": ["f", "m"]}
    rows = [[i, i / 8, "fm"[i % 2]] for i in range(20)]
    for name, separator in (("a.csv", ","), ("b.csv", ";"), ("c.csv", "\t")):
        with (tmp_path / name).open("w", newline="") as file:
            table = [[str(cell).replace(".", "," if separator == ";" else ".") for cell in row] for row in rows]
            csv.writer(file, delimiter=separator).writerows([["age", "pay", "sex"], *table])
    plain = Columns.model_validate({"features": features, "sensitive": group})
    semicolons = plain.model_copy(update={"separator": ";", "decimal": ","})
    tabs = plain.model_copy(update={"separator": "\t"})
    wanted = read_table(tmp_path / "a.csv", plain)
    assert torch.equal(read_table(tmp_path / "b.csv", semicolons).features, wanted.features)
    assert torch.equal(read_table(tmp_path / "c.csv", tabs).features, wanted.features)
    with pytest.raises(BadRecords, match=r'parted by semicolons, and commas are declared; .* set separator = ";"'):
        read_table(tmp_path / "b.csv", plain)
    assert difference(plain, semicolons) == "separator is ';', not ','"


def test_a_declaration_outlives_its_way_through_json():
    raw = {"features": [AGE, BORN, {"name": "m", "kind": "boolean"}], "separator": ";", "decimal": ","}
    raw |= {"sensitive": {"name": "sex", "values": ["f", "m"]}, "target": {"name": "y", "values": [0, 1]}}
    experiment = parse_experiment({"name": "own", "data": {"source": "files", "columns": raw}})
    assert parse_experiment(experiment.model_dump(mode="json")) == experiment


def test_python_tables_are_read_under_the_same_kinds():
    found = as_records(
        {"age": [30, None, 50], "m": [True, False, True]}, features=[AGE, {"name": "m", "kind": "boolean"}]
    )
    np.testing.assert_allclose(found.features.numpy(), [[0.3, 0, 1], [0.4, 1, 0], [0.5, 0, 1]], rtol=1e-6)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.sampled_from(["number", "date"]))
def test_a_number_outside_is_the_nearer_bound_where_that_is_declared_and_no_other_moves(cells, kind):
    bounds = {"low": -3.0, "high": 5.0, "scale": "signed"}
    if kind == "date":
        cells = [str(datetime.date(2000, 1, 1) + datetime.timedelta(days=int(cell % 40) - 20)) for cell in cells]
        bounds = {"low": datetime.date(1999, 12, 29), "high": datetime.date(2000, 1, 6), "since": "2000-01-01"}
    feature = {"name": "x", "kind": kind, "outside": "cut"} | bounds
    inside = [datetime.date.fromisoformat(each).toordinal() - 730120 if kind == "date" else each for each in cells]
    unit = np.clip((np.clip(inside, -3, 5) + 3) / 8, 0, 1)
    expected = unit if kind == "date" else 2 * unit - 1
    assert one(feature, cells)[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    counted = checked([Chunk(1, {"x": cells})], Columns.model_validate({"features": [feature]}))
    outside = sum(not -3 <= each <= 5 for each in inside)
    assert counted.cut == ({"x": outside} if outside else {}) and not counted.faults


def test_what_is_cut_of_several_columns_declared_at_once_is_counted_together():
    columns = Columns.model_validate({"features": [{"name": "x", "count": 2, "low": 0, "high": 1, "outside": "cut"}]})
    assert checked([Chunk(1, {"x0": ["2", "0"], "x1": ["-1", "3"]})], columns).cut == {"x": 3}


@pytest.mark.parametrize("cell", ["inf", float("-inf"), "nan", "x", ""])
def test_what_is_no_finite_number_is_refused_though_numbers_outside_are_cut(cell):
    with pytest.raises(BadRecords, match="column 'x'"):
        one({"name": "x", "low": 0, "high": 1, "outside": "cut"}, [cell])


@pytest.mark.parametrize(
    ("columns", "cell", "named"),
    [
        ({"features": [{"name": "x", "low": 0, "high": 1}]}, "2", True),
        ({"features": [{"name": "x", "low": 0, "high": 1}]}, "x", False),
        ({"features": [{"name": "x"}]}, "1e39", False),
        ({"features": [{"name": "y"}], "sensitive": {"name": "x", "edges": [0.5], "low": 0, "high": 1}}, "2", False),
    ],
)
def test_the_setting_that_cuts_is_named_where_it_would_mend_the_cell(columns, cell, named):
    with pytest.raises(BadRecords) as fault:
        encoded([Chunk(2, {"x": [cell], "y": ["0"]})], Columns.model_validate(columns), where="w", counted="c")
    assert ('outside = "cut"' in str(fault.value)) == named


def test_every_fault_is_found_once_and_what_fits_is_counted():
    columns = Columns.model_validate(
        {
            "features": [AGE, {"name": "sex", "categories": ["f", "m"]}],
            "sensitive": {"name": "sex", "values": ["f", "m"]},
        }
    )
    ages = ["1", "x", "", "200", "5"]
    found = checked([Chunk(2, {"age": ages, "sex": ["f", "m", "m", "?", "f"]})], columns)
    assert [(fault.row, fault.column) for fault in found.faults] == [(3, "age"), (5, "age")]
    assert found.absent == {"sex": {"'?'": 1}}
    assert found.rows == 5 and found.groups.tolist() == [2, 2] and found.missing == {"age": 1} and found.more == 0
    many = checked([Chunk(1, {"age": ["x"] * 80, "sex": ["f"] * 80})], columns)
    assert len(many.faults) == MOST_FAULTS and many.more == 80 - MOST_FAULTS
