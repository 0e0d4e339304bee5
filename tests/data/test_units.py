"""Laws of units: whose a row is, is read with care; rows of one person stay together; each is drawn alike."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsw._tools.randomness import Stream
from fedsw.data import BadRecords, Records, as_records, concatenate, from_flwr_datasets, owners, read_table
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.columns.values import identifier_of
from fedsw.data.units import Units, grouped, numbers_of, unit_numbers, units_in_common
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.node.held_records import require_agreement

COLUMNS = Columns.model_validate(
    {
        "features": [{"name": "age", "low": 0, "high": 100}],
        "sensitive": {"name": "sex", "values": ["female", "male"]},
        "target": {"name": "income", "values": ["low", "high"]},
        "unit": "patient",
    }
)


def records(unit: list[int], *, group: int | None = None) -> Records:
    """Records of these units; their group is the unit's parity."""
    units, count = torch.tensor(unit), len(unit)
    sensitive = units % 2 if group is None else torch.full((count,), group)
    features = torch.arange(count, dtype=torch.float32)[:, None]
    return Records(features, sensitive, torch.zeros(count, dtype=torch.int64), torch.arange(count), unit=units)


def write(path: Path, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["patient", "age", "sex", "income"], *rows])
    return path


@pytest.mark.parametrize(("count", "different"), [(0, 1), (1, 1), (7, 1), (50, 9), (5000, 2**62), (5000, 300)])
def test_equal_numbers_are_grouped_as_numpy_groups_them(count, different):
    numbers = np.random.default_rng(count).integers(0, different, count)
    wanted = np.unique(numbers, return_index=True, return_inverse=True)
    assert all(map(np.array_equal, grouped(numbers), wanted))


def test_a_unit_is_known_by_its_text_wherever_and_however_it_is_stored(tmp_path):
    said = [[7, 30, "female", "low"], [" 7 ", 31, "female", "high"], ["p-8", 32, "male", "low"]]
    from_file = read_table(write(tmp_path / "a.csv", said), COLUMNS)
    assert from_file.unit is not None and from_file.unit[0] == from_file.unit[1] != from_file.unit[2]
    for seven in (7, 7.0, "7"):
        frame = pd.DataFrame({"patient": [seven], "age": [30.0], "sex": ["female"], "income": ["low"]})
        assert torch.equal(as_records(frame, columns=COLUMNS).unit, from_file.unit[:1])
    assert units_in_common(from_file, [as_records(frame, columns=COLUMNS)]) == 1
    assert units_in_common(from_file, []) == units_in_common(replace(from_file, unit=None), [from_file]) == 0


@pytest.mark.parametrize(("cell", "shown"), [("", "empty"), ("  ", "empty")])
def test_a_row_of_nobody_is_refused_where_it_is(tmp_path, cell, shown):
    path = write(tmp_path / "a.csv", [["a", 30, "female", "low"], [cell, 31, "male", "low"]])
    with pytest.raises(BadRecords, match=rf"row 3 .*column 'patient' is {shown}; it identifies the privacy unit"):
        read_table(path, COLUMNS)


@pytest.mark.parametrize("wrong", [1.5, float("nan"), True])
def test_what_names_nobody_is_refused(wrong):
    frame = pd.DataFrame({"patient": [wrong], "age": [30.0], "sex": ["female"], "income": ["low"]})
    with pytest.raises(BadRecords, match="column 'patient'"):
        as_records(frame, columns=COLUMNS)


def test_a_person_with_rows_of_two_groups_is_refused_with_both_rows(tmp_path):
    rows = [["a", 30, "female", "low"], ["b", 1, "male", "low"], ["a", 31, "male", "low"]]
    with pytest.raises(BadRecords, match=r"row 4 .*column 'sex' is 'male'; row 2 is of the same 'patient' and has 'fe"):
        read_table(write(tmp_path / "a.csv", rows), COLUMNS)


def test_units_come_in_the_order_of_their_identifiers_whatever_rows_they_have():
    units = Units.of(records([5, 2, 5, 9, 2, 5]))
    assert len(units) == 3 and units.names.tolist() == [2, 5, 9] and units.ids.tolist() == [0, 1, 2]
    assert units.firsts.tolist() == [1, 0, 3] and units.all_rows(np.array([2, 0])).tolist() == [1, 4, 3]
    other = Units.of(records([9, 2, 5, 2, 2]))
    assert np.array_equal(units.names, other.names) and np.array_equal(units.ids, other.ids)
    alone = Units.of(replace(records([5, 2]), unit=None))
    assert len(alone) == 2 and not alone.declared


@pytest.mark.parametrize("seeded", [True, False])
def test_every_row_of_a_unit_is_as_likely_as_its_others_and_no_other_row_is_taken(seeded):
    unit = [0] * 7 + [1] + [2] * 3
    units, draws = Units.of(records(unit)), 6000
    met = np.zeros(len(unit))
    for draw in range(draws):
        rows = units.one_row_each(np.array([2, 0, 1]), Stream.seeded(draw), seeded=seeded)
        assert [unit[row] for row in rows] == [2, 0, 1]
        met[rows] += 1
    expected = draws / np.bincount(unit)[unit]
    assert np.abs(met - expected).max() < 5 * np.sqrt(expected.max())
    assert met[7] == draws


@pytest.mark.parametrize("seeded", [True, False])
def test_the_rows_drawn_of_others_do_not_depend_on_how_many_rows_a_person_has(seeded):
    """The two data sets of a proof differ in one person's rows; under one draw they differ in one row of the batch."""
    one, many = (Units.of(records([0] * rows + [1] * 4 + [2] * 5)) for rows in (3, 3))
    fewer = replace(records([0] + [1] * 4 + [2] * 5), ids=torch.tensor([0, *range(3, 12)]))
    for draw in range(50):
        stream = Stream.seeded(draw)
        first = many.one_row_each(np.arange(3), stream.child("x"), seeded=seeded)
        again = one.one_row_each(np.arange(3), stream.child("x"), seeded=seeded)
        other = Units.of(fewer).one_row_each(np.arange(3), stream.child("x"), seeded=seeded)
        assert first.tolist() == again.tolist() and (first[1:] - 2).tolist() == other[1:].tolist()


@pytest.mark.parametrize("scheme", ["iid", "group", "dirichlet"])
def test_all_rows_of_a_unit_go_to_one_client(scheme):
    unit = np.random.default_rng(0).permutation(np.repeat(np.arange(30), np.arange(30) % 4 + 1)).tolist()
    owner = owners(records(unit), 3, scheme)
    assert all(len(set(owner[np.array(unit) == one])) == 1 for one in range(30))
    assert len(owner) == len(unit) and set(owner.tolist()) == {0, 1, 2}


def test_more_clients_than_units_and_partitioners_that_part_a_unit_are_refused():
    with pytest.raises(ValueError, match="4 clients for 2 records"):
        owners(records([0, 0, 0, 1, 1]), 4)

    class Halves:
        num_partitions, dataset = 2, None

        def load_partition(self, client):
            return {"index": [0, 1] if client == 0 else [2, 3]}

    pytest.importorskip("datasets")
    with pytest.raises(ValueError, match="parts the rows of a unit"):
        from_flwr_datasets(Halves(), records([0, 1, 1, 2]))


def test_the_same_name_at_two_clients_is_refused():
    both = concatenate([records([0, 0, 1]), records([7, 5, 5])])
    assert Units.of(both).names.tolist() == [0, 1, 5, 7]
    with pytest.raises(ValueError, match="2 units of a part are also in an earlier one"):
        concatenate([records([0, 0, 1]), records([0, 1, 1])])
    with pytest.raises(ValueError, match="declare a unit for all"):
        concatenate([records([0]), replace(records([0]), unit=None)])


def test_sizes_count_units():
    frame = pd.DataFrame({"who": list("aabc"), "age": 1.0, "sex": list("ffmm"), "income": list("lhll")})
    assert as_records(frame, group="sex", target="income", unit="who").rows_by_group == {"f": 1, "m": 2}
    given = as_records(frame[["age", "sex", "income"]], group="sex", target="income", unit=[1, 1, 2, 2])
    assert given.rows_by_group == {"f": 1, "m": 1} and given.columns.inputs == 1


def experiment(**data):
    return parse_experiment({"name": "own", "data": data})


def test_the_unit_stands_in_the_declaration_that_clients_agree_to(tmp_path):
    columns = COLUMNS.model_dump(exclude_defaults=True)
    inside = experiment(source="files", columns=columns)
    del columns["unit"]
    beside = experiment(source="files", columns=columns, unit="patient")
    assert inside.data == beside.data and inside.data.unit == inside.data.columns.unit == "patient"
    without = experiment(source="files", columns=columns)
    assert difference(COLUMNS, without.data.columns) == "unit is None, not 'patient'"
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'unit = "patient"\nfeatures = [{name = "age", low = 0, high = 100}]\n'
        'sensitive = {name = "sex", values = ["female", "male"]}\n'
        'target = {name = "income", values = ["low", "high"]}\n'
    )
    require_agreement(beside.data.columns, {"schema": str(schema)})
    with pytest.raises(ExperimentError, match="unit is None, not 'patient'"):
        require_agreement(without.data.columns, {"schema": str(schema)})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "adult", "unit": "patient"}, "every record of 'adult' is a unit"),
        ({"source": "object", "unit": "patient"}, "no columns are declared"),
        ({"source": "files", "unit": "age", "columns": {"features": [{"name": "age"}]}}, "has another role too"),
        (
            {"source": "files", "unit": "a", "columns": {"features": [{"name": "age"}], "unit": "b"}},
            "unit is 'a', and columns.unit is 'b'",
        ),
    ],
)
def test_a_unit_that_cannot_be_meant_is_refused(data, words):
    with pytest.raises(ExperimentError, match=words):
        experiment(**data)


@given(st.lists(st.one_of(st.text("0a7. -\t\u00a0é", max_size=4), st.sampled_from([7, 7.0, True, None, 1.5]))))
def test_a_cell_names_the_unit_of_its_identifier_whatever_is_beside_it(cells):
    for beside in (cells, [cell for cell in cells if isinstance(cell, str) and cell.isascii()]):
        names = [identifier_of(cell) for cell in beside]
        assert numbers_of(beside).tolist() == [int(unit_numbers([name])[0]) if name else -1 for name in names]
