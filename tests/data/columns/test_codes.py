"""Columns as codes: made-up cells have the codes that they were drawn for, whatever the declaration."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsw._tools.settings import ExperimentError
from fedsw.data.codes import cells_of_table, codes_of, drawn_codes, one_hot, records_of_table
from fedsw.data.columns.declaration import Columns, coded_columns, ranges

FEATURES = [
    {"name": "age", "kind": "integer", "low": 18, "high": 90},
    {"name": "rooms", "kind": "integer", "low": 1, "high": 9, "missing": ["NA"], "fill": 1},
    {"name": "city", "categories": ["Paris", "Lyon", "Nice"], "missing": [""]},
    {"name": "pay", "low": 0, "high": 200000, "scale": "signed"},
    {"name": "dose", "low": -0.5, "high": 0.25, "missing": [""], "fill": 0},
    {"name": "seen", "kind": "date", "low": "2024-01-01", "high": "2024-12-31", "format": "%d.%m.%Y"},
    {"name": "smoker", "kind": "boolean"},
    {"name": "x", "count": 2, "low": 0, "high": 1},
]


def columns(**more) -> Columns:
    given = {"sensitive": {"name": "sex", "values": ["f", "m"]}, "target": {"name": "sick", "values": ["no", "yes"]}}
    return Columns.model_validate({"features": FEATURES, **given, **more})


def drawn(declared: Columns, *, bins: int = 8, group_in_cell: bool = False, n: int = 400):
    coded = coded_columns(declared, bins=bins, group_in_cell=group_in_cell)
    codes = torch.stack([torch.randint(0, each.size, (n,)) for each in coded], dim=1)
    classes, groups = torch.randint(0, 2, (n,)), torch.randint(0, len(declared.groups), (n,))
    return coded, codes, classes, groups, cells_of_table(codes, classes, groups, declared, coded, seed=0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"decimal": ",", "separator": ";"},
        {"sensitive": {"name": "age", "edges": [30, 51]}},
        {"sensitive": {"name": "weight", "edges": [60.5], "low": 30, "high": 150}},
        {
            "sensitive": {"name": "city", "values": ["Lyon", "Nice", "Paris"]},
            "features": [*FEATURES[:2], *FEATURES[3:]],
        },
        {"target": None, "targets": [{"name": "score", "low": 0, "high": 10, "kind": "integer"}]},
    ],
    ids=["plain", "decimal comma", "group cut from an input", "group cut", "group of three", "regression"],
)
def test_cells_read_as_records_have_the_codes_and_classes_that_they_were_drawn_for(more):
    declared = columns(**more)
    coded, codes, classes, _, cells = drawn(declared)
    records = records_of_table(cells, declared)
    torch.testing.assert_close(codes_of(records, coded), codes)
    if declared.target is not None:
        torch.testing.assert_close(records.target, classes)
    assert tuple(cells) == declared.names


def test_groups_in_blocks_are_written_though_they_are_no_codes():
    declared = columns(features=[*FEATURES, {"name": "sex", "categories": ["m", "f"]}])
    coded, _, _, groups, cells = drawn(declared, group_in_cell=True)
    assert "sex" not in [each.name for each in coded]
    torch.testing.assert_close(records_of_table(cells, declared).sensitive, groups)


def test_the_lowest_value_has_a_code_of_its_own_so_that_zeros_stay_zeros():
    declared = columns(features=[{"name": "pay", "low": 0, "high": 1000}], sensitive=None)
    coded = coded_columns(declared, bins=4, group_in_cell=False)
    none = torch.zeros(5, dtype=torch.int64)
    assert cells_of_table(none.unsqueeze(1), none, none, declared, coded, seed=0)["pay"] == ["0"] * 5
    records = records_of_table({"pay": ["0", "0.001", "999"], "sick": ["no"] * 3}, declared)
    found = codes_of(records, coded)[:, 0].tolist()
    assert found[0] == 0 and found[1] == 1 and found[2] == coded[0].size - 1


def test_declared_edges_cut_a_long_tail_where_they_are_whatever_the_range():
    feature = {"name": "gain", "kind": "integer", "low": 0, "high": 99_999, "edges": [1, 3000, 5000.5, 15_000]}
    declared = columns(features=[{**feature, "missing": [""], "fill": 0}], sensitive=None)
    (coded,) = coded_columns(declared, bins=4, group_in_cell=False)
    assert coded.edges == (0, 1, 3000, 5001, 15_000, 100_000)
    given = ["0", "1", "2999", "3000", "5000", "5001", "99999", ""]
    records = records_of_table({"gain": given, "sick": ["no"] * 8}, declared)
    codes = codes_of(records, (coded,))
    assert codes[:, 0].tolist() == [0, 1, 1, 2, 2, 3, 4, 5]
    none = torch.zeros(8, dtype=torch.int64)
    made = cells_of_table(codes, none, none, declared, (coded,), seed=0)
    assert made["gain"][0] == "0" and made["gain"][-1] == ""
    torch.testing.assert_close(codes_of(records_of_table(made, declared), (coded,)), codes)


@pytest.mark.parametrize("edges", [[0, 5], [5, 3], [5, 11], [2, 2]])
def test_edges_out_of_order_or_bounds_are_refused(edges):
    with pytest.raises(ValueError, match="each above low and at most high"):
        columns(features=[{"name": "gain", "low": 0, "high": 10, "edges": edges}])


def test_codes_are_drawn_as_often_as_their_chances_say():
    coded = coded_columns(columns(), bins=8, group_in_cell=False)
    width = ranges(coded)[-1][1]
    chances = torch.cat([torch.softmax(torch.randn(1, end - first), dim=1) for first, end in ranges(coded)], dim=1)
    found = one_hot(drawn_codes(chances.expand(4000, width), coded, seed=3), coded).mean(dim=0)
    assert float((found - chances[0]).abs().max()) < 4 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"features": [{"name": "age"}]}, "declare low and high"),
        ({"sensitive": {"name": "age2", "edges": [3]}}, "low and high of sensitive"),
        ({"features": [{"name": f"c{k}", "low": 0, "high": 1} for k in range(300)]}, "at most 2000"),
    ],
)
def test_what_cannot_be_cut_into_codes_is_refused_with_a_remedy(more, words):
    with pytest.raises(ExperimentError, match=words):
        coded_columns(columns(**more), bins=8, group_in_cell=False)


def test_groups_cut_from_an_input_are_no_blocks():
    with pytest.raises(ExperimentError, match="Declare values"):
        coded_columns(columns(sensitive={"name": "age", "edges": [30]}), bins=8, group_in_cell=True)


@pytest.mark.parametrize(
    "feature",
    [
        {"kind": "integer", "low": 0, "high": 99, "missing": ["", "98", "99"], "fill": 0},
        {"kind": "integer", "low": 0, "high": 9999, "missing": ["9999"], "fill": 0, "edges": [10, 9998]},
        {"kind": "date", "low": "2020-01-01", "high": "2020-03-01", "missing": ["2020-03-01"], "fill": "2020-01-02"},
    ],
)
def test_no_made_up_number_is_a_code_for_missing_cells(feature):
    declared = Columns.model_validate(
        {"features": [{"name": "age", **feature}], "target": {"name": "t", "values": ["x", "y"]}}
    )
    coded = coded_columns(declared, bins=8, group_in_cell=False)
    codes = torch.arange(4_000)[:, None] % coded[0].size
    none = torch.zeros(len(codes), dtype=torch.int64)
    cells = cells_of_table(codes, none, none, declared, coded, seed=0)
    assert codes_of(records_of_table(cells, declared), coded).equal(codes)
