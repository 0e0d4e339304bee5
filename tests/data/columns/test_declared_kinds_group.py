"""Laws of groups: edges partition the line, a group that is also an input changes no stratum, both are public."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import fedsw
from fedsw.data import BadRecords, read_table
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.columns.declared_kinds import Group
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.data.sources import load_shape
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.learning.tasks.problem import Problem

AGE = {"name": "age", "low": 0, "high": 100}
SEX = {"name": "sex", "values": ["female", "male"]}
INCOME = {"name": "income", "values": ["low", "high"]}
EDGES = {"name": "age", "edges": [30, 50]}

numbers = st.floats(-1e30, 1e30, allow_subnormal=False)


def declared(*features, sensitive=SEX, **more) -> Columns:
    return Columns.model_validate({"features": list(features), "sensitive": sensitive, "target": INCOME, **more})


def write(path: Path, ages, sexes=None) -> Path:
    sexes = sexes or ["female", "male"] * len(ages)
    with path.open("w", newline="") as file:
        rows = ((age, sex, ("low", "high")[row % 2]) for row, (age, sex) in enumerate(zip(ages, sexes, strict=False)))
        csv.writer(file).writerows([("age", "sex", "income"), *rows])
    return path


def inside(name: str, value: float) -> bool:
    """Whether a number is in the interval that the name of a group writes."""
    if match := re.fullmatch(r"v<(.*)", name):
        return value < float(match[1])
    if match := re.fullmatch(r"v>=(.*)", name):
        return value >= float(match[1])
    low, high = re.fullmatch(r"(.*)<=v<(.*)", name).groups()
    return float(low) <= value < float(high)


@given(edges=st.lists(numbers, min_size=1, max_size=6, unique=True), values=st.lists(numbers, min_size=1, max_size=30))
def test_edges_partition_the_line_and_every_group_is_the_interval_that_its_name_says(edges, values):
    group = Group(name="v", edges=tuple(sorted(edges)))
    columns = Columns.model_validate({"features": [{"name": "x"}], "sensitive": group})
    values = [*values, *edges]
    found = encoded(
        [Chunk(0, {"v": values, "x": [0.0] * len(values)})], columns, where="w", counted="c"
    ).sensitive.tolist()
    assert len(set(group.groups)) == len(group.groups) == len(edges) + 1
    for value, place in zip(values, found, strict=True):
        holds = [inside(name, value) for name in group.groups]
        assert holds.index(True) == place and sum(holds) == 1


def test_edges_are_named_as_they_are_written_and_two_edges_never_alike():
    assert Group(name="age", edges=(30, 50)).groups == ("age<30", "30<=age<50", "age>=50")
    assert Group(name="x", edges=(0.1, math.nextafter(0.1, 1))).groups[1] == "0.1<=x<0.10000000000000002"


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"edges": [50, 30]}, "each must be above the one before it"),
        ({"edges": [30, 30]}, "each must be above the one before it"),
        ({"edges": [math.nan]}, "finite"),
        ({"edges": [math.inf]}, "finite|less than"),
        ({}, "neither values nor edges"),
        ({"edges": [30], "values": ["a", "b"]}, "both values and edges"),
        ({"values": ["a", "b"], "low": 0, "high": 1}, "low and high are for numbers that edges cut"),
        ({"edges": [30], "low": 0}, "give both or neither"),
        ({"edges": [0, 30], "low": 0, "high": 100}, "the edge 0, and bounds 0 and 100"),
        ({"edges": [30, 101], "low": 0, "high": 100}, "the edge 101, and bounds 0 and 100"),
    ],
)
def test_edges_that_leave_a_group_empty_or_unclear_are_refused(group, reason):
    with pytest.raises(ValidationError, match=reason):
        Group.model_validate({"name": "age", **group})


@pytest.mark.parametrize(
    ("features", "sensitive", "reason"),
    [
        ([AGE], {"name": "age", "edges": [30, 130]}, "the edge 130, and bounds 0 and 100"),
        ([AGE], {"name": "age", "edges": [30], "low": 0, "high": 90}, "as group and from 0 to 100 as input"),
        ([{"name": "sex", "categories": ["f", "m"]}], SEX, "as group and categories .* as input; declare the same"),
        ([AGE], {"name": "income", "values": ["low", "high"]}, "'income' is declared twice"),
        ([{"name": "income"}], SEX, "'income' is declared twice"),
        ([AGE, AGE], SEX, "'age' is declared twice"),
    ],
)
def test_a_column_has_one_role_or_is_the_group_and_an_input_under_one_declaration(features, sensitive, reason):
    with pytest.raises(ValidationError, match=reason):
        declared(*features, sensitive=sensitive)


@pytest.mark.parametrize("sensitive", [SEX, EDGES])
def test_a_group_that_is_also_an_input_does_not_change_the_strata(tmp_path, sensitive):
    ages = np.random.default_rng(0).uniform(0, 100, 90).round(3).tolist()
    path = write(tmp_path / "train.csv", ages)
    other = {"name": "sex", "categories": ["female", "male"]} if sensitive is EDGES else AGE
    own = AGE if sensitive is EDGES else {"name": "sex", "categories": ["male", "female"]}
    columns = [declared(other, sensitive=sensitive), declared(other, own, sensitive=sensitive)]
    cells = []
    for each in columns:
        raw = {"name": "a", "data": {"source": "files", "columns": each.model_dump(mode="json")}}
        records = read_table(path, each)
        task = Problem.from_experiment(parse_experiment(raw, ["objective.penalty=equality-of-odds"]))
        cells.append([cell.tolist() for cell in task.cells_of(records)])
    without, with_ = (read_table(path, each) for each in columns)
    assert cells[0] == cells[1] and torch.equal(without.sensitive, with_.sensitive)
    width = columns[0].inputs
    assert torch.equal(without.features, with_.features[:, :width]) and with_.features.shape[1] > width
    if sensitive is SEX:
        assert torch.equal(with_.features[:, width:].argmax(1), 1 - with_.sensitive)  # in the order declared there
    else:
        np.testing.assert_allclose(with_.features[:, width].numpy(), np.array(ages) / 100, rtol=1e-6)


def test_a_number_is_compared_with_an_edge_as_it_is_in_the_file(tmp_path):
    """Not as a float32: 29.999999999 is below 30."""
    path = write(tmp_path / "train.csv", [29.999999999, 30, 50, 49.9999999999, 100, 0])
    assert read_table(path, declared(AGE, sensitive=EDGES)).sensitive.tolist() == [0, 1, 2, 1, 2, 0]


@pytest.mark.parametrize("cell", ["", "nan", "inf", "old", "100.5"])
def test_what_is_in_no_group_is_refused_with_its_row(tmp_path, cell):
    path = write(tmp_path / "train.csv", [10, cell, 20])
    sensitive = {**EDGES, "low": 0, "high": 100}
    columns = declared({"name": "sex", "categories": ["female", "male"]}, sensitive=sensitive)
    with pytest.raises(BadRecords, match=r"row 3 \(the header is row 1\), column 'age' is .*from 0 to 100 is declared"):
        read_table(path, columns)


def test_names_of_columns_and_inputs_say_each_once():
    columns = declared(AGE, {"name": "sex", "categories": ["female", "male"]}, {"name": "p", "count": 2})
    assert columns.names == ("age", "sex", "p0", "p1", "income")
    assert columns.feature_names == ("age", "sex=female", "sex=male", "p0", "p1")
    assert len(columns.feature_names) == columns.inputs
    assert difference(columns, declared(AGE, sensitive=EDGES)) is not None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_regression_has_any_number_of_scaled_targets_from_one_on(tmp_path, count):
    names = [f"t{index}" for index in range(count)]
    targets = [{"name": name, "low": 0, "high": 10 * (place + 1)} for place, name in enumerate(names)]
    columns = declared(AGE, target=None, targets=targets)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = ((row, ("female", "male")[row % 2], *([row / 4] * count)) for row in range(8))
        csv.writer(file).writerows([("age", "sex", *names), *rows])
    records = read_table(tmp_path / "train.csv", columns)
    assert records.target.shape == (8, count) and not records.is_classification
    expected = [[row / 4 / (10 * (place + 1)) for place in range(count)] for row in range(8)]
    np.testing.assert_allclose(records.target.numpy(), expected, rtol=1e-6)
    raw = {"name": "a", "data": {"source": "files", "columns": columns.model_dump(mode="json")}}
    experiment = parse_experiment(raw, ["objective.task=regression"])
    assert (load_shape(experiment.record_source).targets, load_shape(experiment.record_source).classes) == (count, 0)
    with pytest.raises(ExperimentError, match="declare one or more of them in data.columns.targets"):
        parse_experiment({"name": "a", "data": {"source": "files", "columns": declared(AGE).model_dump(mode="json")}},
                         ["objective.task=regression"])  # fmt: skip


@pytest.mark.parametrize("form", ["frame", "array", "lists"])
def test_columns_beside_a_table_make_the_groups_that_its_own_would(form):
    frame = pd.DataFrame({"x": np.linspace(0, 1, 8), "y": [0, 1] * 4, "sex": ["f", "m"] * 4, "old": [True, False] * 4})
    frame.loc[6:, "old"] = [False, True]
    beside = frame[["sex", "old"]]
    given = {"frame": beside, "array": beside.to_numpy(), "lists": beside.to_numpy().tolist()}[form]
    own = fedsw.as_records(frame, group=["sex", "old"], target="y", features=["x"])
    other = fedsw.as_records(frame[["x", "y"]], group=given, target="y")
    assert other.columns.sensitive.values == own.columns.sensitive.values
    assert torch.equal(other.sensitive, own.sensitive) and other.columns.sensitive.values[0] == "f × false"
