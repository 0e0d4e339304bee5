"""Laws of every kind of column: it reads what it writes, its parts cover its range, another package's is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsw.data import as_records, read_table
from fedsw.data.codes import cells_of_table, codes_of
from fedsw.data.columns import number
from fedsw.data.columns.column import Spelling
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.columns.kind import Form
from fedsw.data.columns.number import NumberKind, as_float, as_number, readings, spellings
from fedsw.data.columns.registered import KINDS
from fedsw.data.columns.values import Values, identifier_of
from fedsw.data.encoding import encoded
from fedsw.data.formats import BadRecords, Chunk

DECLARED = {
    "number": {"low": -2.5, "high": 7.25},
    "integer": {"low": 3, "high": 420},
    "boolean": {},
    "date": {"low": "1999-12-30", "high": "2024-02-29", "format": "%d.%m.%Y"},
    "category": {"categories": ["private", "public", "none"]},
    "code": {"categories": ["007", "7", "01067"]},
}
SPELLINGS = [Spelling(), Spelling(","), Spelling(".", ","), Spelling(",", "."), Spelling(".", " "), Spelling(",", "'")]


class Percent(NumberKind):
    """Numbers with a sign for percent."""

    name = "percent"
    stored = "texts"

    def read(self, cells, column, spelling):
        return super().read([str(cell).removesuffix("%") for cell in cells], column, spelling)

    def write(self, values, column, spelling):
        return [f"{text}%" for text in super().write(values, column, spelling)]

    def expect(self, column, spelling):
        return f"{super().expect(column, spelling)}, with a sign for percent"

    def forms(self, cells):
        plain = [cell.removesuffix("%") for cell in cells]
        return [Form(self.name)] if cells and all(cell.endswith("%") for cell in cells) and spellings(plain) else []


@pytest.fixture
def percent(monkeypatch):
    monkeypatch.setattr(KINDS, "_things", dict(KINDS.items()))
    return KINDS.register("percent", Percent())


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
@pytest.mark.parametrize("name", DECLARED)
def test_a_kind_reads_what_it_writes_and_what_it_makes_up(name, spelling):
    kind, column = KINDS.get(name), Feature(name="x", kind=name, **DECLARED[name])
    cells = kind.make_up(column, 200, np.random.default_rng(0), spelling)
    values = kind.read(cells, column, spelling)
    low, high = kind.bounds(column)
    assert not np.isnan(values).any() and (values >= low).all() and (values <= high).all()
    np.testing.assert_allclose(kind.read(kind.write(values, column, spelling), column, spelling), values)
    assert len(np.unique(values)) >= 2


@pytest.mark.parametrize("bins", [1, 2, 20])
@pytest.mark.parametrize("name", DECLARED)
def test_the_parts_of_a_kind_cover_every_value_that_its_declaration_allows(name, bins):
    kind, column = KINDS.get(name), Feature(name="x", kind=name, **DECLARED[name])
    found = kind.describe(column, bins)
    values = kind.read(kind.make_up(column, 300, np.random.default_rng(1), Spelling()), column, Spelling())
    values = np.concatenate([values, kind.bounds(column)])
    assert (found.places(values) >= 0).all() and (found.places(values) < len(found)).all()
    assert len(found.edges) == len(found) + 1 and list(found.edges) == sorted(set(found.edges))
    assert len(set(found.labels)) == len(found)
    assert found.places(np.array([np.nan, kind.bounds(column)[1] + 10])).tolist() == [-1, -1]


def test_parts_are_logarithmic_where_bounds_span_more_than_two_decades():
    found = KINDS.get("number").describe(Feature(name="x", low=1, high=10_000), 4)
    np.testing.assert_allclose(found.edges, [1, 10, 100, 1000, 10_000])
    np.testing.assert_allclose(KINDS.get("number").describe(Feature(name="x", low=0, high=8), 4).edges, [0, 2, 4, 6, 8])


def test_an_unknown_kind_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"kind is 'intger'; there are .*'integer'"):
        Feature(name="x", kind="intger")
    with pytest.raises(ValueError, match="lists no values; groups and classes are 'code', 'category'"):
        Columns.model_validate(
            {"features": [{"name": "x"}], "target": {"name": "y", "values": [0, 1], "kind": "integer"}}
        )


def test_a_kind_of_another_package_is_read_written_drawn_and_described(percent, tmp_path):
    declared = {"name": "fat", "kind": "percent", "low": 0, "high": 50, "missing": [""], "fill": 20}
    columns = Columns.model_validate({"features": [declared], "target": {"name": "y", "values": ["no", "yes"]}})
    (tmp_path / "train.csv").write_text("fat,y\n12%,no\n,yes\n50%,no\n")
    records = read_table(tmp_path / "train.csv", columns)
    np.testing.assert_allclose(records.features.numpy(), [[0.24, 0.0], [0.4, 1.0], [1.0, 0.0]], rtol=1e-6)
    with pytest.raises(BadRecords, match=r"'fat' is '51%'; a finite number from 0 to 50 is declared, with a sign"):
        encoded([Chunk(1, {"fat": ["51%"], "y": ["no"]})], columns, where="w", counted="c")

    from fedsw.data.columns.declaration import coded_columns

    coded = coded_columns(columns, bins=5, group_in_cell=False)
    codes = codes_of(records, coded)
    cells = cells_of_table(codes, records.target, records.sensitive, columns, coded, seed=0)
    assert cells["fat"][0].endswith("%") and cells["fat"][1] == ""
    again = encoded([Chunk(1, cells)], columns, where="w", counted="c")
    np.testing.assert_array_equal(codes_of(again, coded), codes)
    assert percent.describe(columns.features[0], 5).edges == (0, 10, 20, 30, 40, 50)


@pytest.mark.parametrize(
    ("text", "spelling", "value"),
    [
        ("82,445", Spelling(".", ","), 82445.0),
        ("999", Spelling(".", ","), 999.0),
        ("1,234,567.5", Spelling(".", ","), 1234567.5),
        ("12,34,567", Spelling(".", ","), 1234567.0),
        ("-1.000,5", Spelling(",", "."), -1000.5),
        ("1 234,5", Spelling(",", " "), 1234.5),
        ("1\u202f234\u00a0567", Spelling(".", " "), 1234567.0),
        ("1’234.5", Spelling(".", "'"), 1234.5),
        ("82,445", Spelling(","), 82.445),
        ("82,445", Spelling(), None),
        ("1,00", Spelling(".", ","), None),
        ("0,123", Spelling(".", ","), None),
        ("1.5", Spelling(","), None),
        ("1.5", Spelling(",", "."), None),
        ("1_000", Spelling(), None),
    ],
)
def test_thousands_are_parted_as_declared_and_in_no_other_way(text, spelling, value):
    read = as_float(text, spelling)
    assert np.isnan(read) if value is None else read == value


def test_three_digits_behind_every_comma_are_thousands_or_decimals_and_nobody_can_tell():
    def readings(*cells):
        return {tuple(as_float(cell, each) for cell in cells) for each in spellings(cells)}

    assert readings("82,445", "999") == {(82.445, 999.0), (82445.0, 999.0)}
    assert readings("1.234", "999") == {(1.234, 999.0), (1234.0, 999.0)}
    assert readings("1.234", "2000") == {(1.234, 2000.0)}
    assert readings("1.000,5") == {(1000.5,)}
    assert readings("1,234,567") == {(1234567.0,)}
    assert readings("23,5") == {(23.5,)}
    assert readings("0,123") == {(0.123,)}
    assert readings("1 234") == {(1234.0,)}
    assert readings("abc") == set()


@pytest.mark.parametrize(
    ("declared", "cells", "places"),
    [
        (["0", "1"], [0, 1, 0.0, 1.0, "0", "1", "1.0", " 1 ", False, True, "true", "FALSE"], "010101110110"),
        (["no", "yes"], ["no", "Yes", False, True, 0.0, 1], "010101"),
        (["false", "true"], ["False", "TRUE", False, True, 0, 1.0], "010101"),
        (["1.5", "2"], [1.5, 2, 2.0, "2.0", "1.5"], "01110"),
        (["7", "012"], [7, 7.0, "7", "012"], "0001"),
        (["privé", "b"], ["prive\u0301", "priv\u00e9", "b"], "001"),
    ],
)
def test_one_rule_says_when_two_cells_are_the_same_value(declared, cells, places):
    values = Values(declared)
    assert [values.place(cell) for cell in cells] == [int(place) for place in places]


@pytest.mark.parametrize(
    ("declared", "cell"),
    [
        (["7", "12"], "007"), (["f", "m"], "F"), (["0", "1"], "t"), (["0", "1"], 0.5), (["0", "1"], None),
        (["0", "1"], float("nan")), (["a", "b"], True), (["none", "some"], "None"),
    ],
)  # fmt: skip
def test_what_is_another_value_is_found_by_none(declared, cell):
    assert Values(declared).place(cell) == -1


def test_two_spellings_of_one_value_are_not_declared_as_two_but_as_codes():
    with pytest.raises(ValueError, match=r"'1' and '1.0', which are one value in two spellings; .* kind = 'code'"):
        Feature(name="v", categories=["1", "1.0"])
    assert Feature(name="v", kind="code", categories=["1", "1.0"]).categories == ("1", "1.0")


def test_every_letter_and_zero_of_a_code_counts():
    feature = {"name": "zip", "kind": "code", "categories": ["007", "7", "01067"]}
    columns = Columns.model_validate({"features": [feature]})
    rows = encoded([Chunk(1, {"zip": ["7", "007", "01067"]})], columns, where="w", counted="c").features
    assert rows.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    with pytest.raises(BadRecords, match="'zip' is '1067'; declared are .*, and every letter and zero"):
        encoded([Chunk(1, {"zip": ["1067"]})], columns, where="w", counted="c")


def test_a_person_is_one_however_the_identifier_is_spelled():
    spelled = ["123", "0123", "123.0", " 123 ", 123, 123.0, np.int64(123), np.float32(123)]
    assert {identifier_of(cell) for cell in spelled} == {"123"}
    assert identifier_of("p-007") == "p-007" and identifier_of("123.5") == "123.5"
    assert [identifier_of(cell) for cell in (None, "", True, 1.5, float("nan"))] == [None] * 5
    columns = Columns.model_validate({"features": [{"name": "x"}], "unit": "who"})
    cells = {"x": [1.0] * 4, "who": ["123", "0123", "123.0", "124"]}
    unit = encoded([Chunk(1, cells)], columns, where="w", counted="c").unit
    assert len(unit.unique()) == 2
    assert len(as_records({"x": [1.0] * 3, "who": [123, 123.0, 124]}, unit="who").unit.unique()) == 2


_CELLS = st.lists(
    st.text("0123.,' \u00a0\u2019-x", min_size=1, max_size=7) | st.sampled_from(["1,234", "1.234,5", "12 345,5"]),
    min_size=1,
)


@given(_CELLS)
def test_spellings_are_all_those_under_which_every_cell_is_a_number(cells):
    """Marks that are in no cell are not tried one by one; here all are."""
    found = [each for each in number.SPELLINGS if all(as_number(cell, each) is not None for cell in cells)]
    read = spellings(cells)
    assert [each for each in found if each in read] == list(read)
    assert {each for each in found if each.thousands != "."} <= set(read)
    if any("." in cell or "," in cell for cell in cells):
        different: dict[tuple, Spelling] = {}
        for each in read:
            different.setdefault(tuple(as_number(cell, each) for cell in cells), each)
        assert readings(cells, read) == list(different.values())
