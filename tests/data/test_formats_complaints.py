"""Laws of reading tables that people complain of elsewhere: one table gives the same records in whatever it is kept."""

from __future__ import annotations

import datetime
import zoneinfo
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw.data import BadRecords, as_records, read_table
from fedsw.data.columns.declaration import Columns
from fedsw.desk.use.predictions import read_given

TABLES = Path(__file__).parent / "complaints"
COLUMNS = Columns.model_validate(
    {
        "features": [{"name": "age", "low": 0, "high": 100}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "y", "values": ["no", "yes"]},
    }
)
INTEGERS = {"name": "x", "kind": "integer", "low": 0, "high": 9, "missing": [""], "fill": 5}
NUMBERS = {"name": "x", "low": 0, "high": 9, "missing": [""], "fill": 5}
TRUTHS = {"name": "x", "kind": "boolean", "missing": [""], "fill": 0}
TEXTS = {"name": "x", "categories": ["u", "v"], "missing": [""]}
DATES = {"name": "x", "kind": "date", "low": "2020-01-01", "high": "2024-01-01", "missing": [""], "fill": "2022-01-01"}
DAYS = [datetime.date(2021, 1, 1), None, datetime.date(2022, 1, 1)]


@pytest.mark.parametrize(
    ("feature", "cells", "kinds"),
    [
        (INTEGERS, [1, None, 3], ["Int64", "Int8", "int64[pyarrow]", object]),
        (NUMBERS, [1.5, None, 3.0], ["Float64", "float64", "double[pyarrow]", object]),
        (TRUTHS, [True, None, False], ["boolean", "bool[pyarrow]", object]),
        (TEXTS, ["u", None, "v"], ["string", "string[pyarrow]", "str", "category", object]),
        (DATES, DAYS, ["datetime64[ns]", "date32[pyarrow]", "timestamp[ns][pyarrow]", object]),
    ],
    ids=["integers", "numbers", "truth values", "texts", "dates"],
)
def test_a_missing_cell_is_missing_in_every_type_of_column(feature, cells, kinds, tmp_path):
    plain = as_records({"x": cells, "y": [0, 1, 0]}, features=[feature], target="y", classes=[0, 1])
    assert plain.features[:, -1].tolist() == [0.0, 1.0, 0.0]
    for kind in kinds:
        series = pd.Series(cells, dtype=object)
        series = series.where(series.notna(), pd.NA) if kind is object else pd.Series(series.tolist()).astype(kind)
        frame = pd.DataFrame({"x": series, "y": [0, 1, 0]})
        found = as_records(frame, columns=plain.columns)
        assert torch.equal(found.features, plain.features), kind
        assert torch.equal(read_given(frame[["x"]], plain.columns).features, plain.features), kind


@pytest.mark.parametrize("kind", ["Int64", "string", "boolean", "Float64"])
def test_a_label_that_is_missing_is_named_with_its_row(kind):
    cells = {"string": ["a", None, "b"], "boolean": [True, None, False]}.get(kind, [0, None, 1])
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": pd.array(cells, dtype=kind)})
    with pytest.raises(BadRecords, match="row 1 .*column 'y' is empty"):
        as_records(frame, target="y")


@pytest.mark.parametrize(
    ("values", "spellings"),
    [
        (["0", "1"], [["0", "1"], ["0.0", "1.0"], [0, 1], [0.0, 1.0], [False, True], ["false", "true"]]),
        (["false", "true"], [["False", "True"], [False, True], ["false", "TRUE"]]),
        (["no", "yes"], [["no", "yes"], ["No", "YES"], [False, True]]),
        (["1.5", "2"], [["1.5", "2"], [1.5, 2.0], ["1.5", "2.0"]]),
    ],
)
def test_groups_and_classes_are_the_same_values_in_text_parquet_npz_and_frames(tmp_path, values, spellings):
    columns = Columns.model_validate(
        {
            "features": [{"name": "x", "low": 0, "high": 9}],
            "sensitive": {"name": "g", "values": values},
            "target": {"name": "y", "values": values},
        }
    )
    for cells in spellings:
        frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "g": (cells * 2), "y": (cells[::-1] * 2)})
        kept = tmp_path / str(len(list(tmp_path.iterdir())))
        kept.mkdir()
        frame.to_csv(kept / "t.csv", index=False)
        frame.to_parquet(kept / "t.parquet", index=False)
        arrays = {name: np.array(frame[name].tolist()) for name in frame}
        np.savez(kept / "t.npz", **arrays)
        for records in (
            as_records(frame, columns=columns),
            *(read_table(kept / f"t.{end}", columns) for end in ("csv", "parquet", "npz")),
        ):
            assert records.sensitive.tolist() == [0, 1, 0, 1] and records.target.tolist() == [1, 0, 1, 0], cells


def test_names_and_values_are_compared_in_one_form_of_unicode(tmp_path):
    columns = Columns.model_validate({"features": [{"name": "me\u0301tier", "categories": ["prive\u0301", "public"]}]})
    expected = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    cells = ["prive\u0301", "privé", "public"]
    for name in ("me\u0301tier", "métier"):
        frame = pd.DataFrame({name: cells})
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame.to_parquet(tmp_path / "t.parquet", index=False)
        assert as_records(frame, columns=columns).features.tolist() == expected
        for end in ("csv", "parquet"):
            assert read_table(tmp_path / f"t.{end}", columns).features.tolist() == expected


def test_a_first_line_that_names_the_separator_is_no_header_and_shifts_no_row(tmp_path):
    columns = COLUMNS.model_copy(update={"separator": ";"})
    assert len(read_table(TABLES / "sep_line.csv", columns)) == 40
    text = (TABLES / "sep_line.csv").read_bytes()
    (tmp_path / "t.csv").write_bytes(text.replace(b";f;", b";x;", 1))
    with pytest.raises(BadRecords, match="row 2 .*column 'sex' is 'x'"):
        read_table(tmp_path / "t.csv", columns)
    (tmp_path / "plain.csv").write_bytes(text.removeprefix(b"\xef\xbb\xbfsep=;\r\n"))
    assert torch.equal(
        read_table(tmp_path / "plain.csv", columns).features, read_table(TABLES / "sep_line.csv", columns).features
    )


def test_a_cell_may_hold_a_page_of_notes_and_a_name_a_line_break(tmp_path):
    note = 'a, "note"; of many lines\n' * 10_000
    frame = pd.DataFrame({"age": [50, 60], "note": [note, "short"], "sex": ["f", "m"], "y": ["no", "yes"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert len(note) > 131_072
    records = read_table(tmp_path / "t.csv", COLUMNS)
    assert records.features[:, 0].tolist() == [0.5, pytest.approx(0.6)] and records.target.tolist() == [0, 1]
    columns = Columns.model_validate({"features": [{"name": "age\nin years", "low": 0, "high": 100}]})
    assert len(read_table(TABLES / "break_in_a_name.csv", columns)) == 40


@pytest.mark.parametrize("name", ["packed_by_gzip", "packed_by_zip", "utf16"])
def test_what_is_no_text_is_named_with_what_to_do_whatever_it_is_called(name):
    with pytest.raises(BadRecords, match=rf"{name}.csv is .*: (unpack|save)"):
        read_table(TABLES / f"{name}.csv", COLUMNS)


def test_another_separator_at_one_client_is_reported_without_a_remedy_that_breaks_the_others(tmp_path):
    (tmp_path / "t.csv").write_text("age;sex;y\n50;f;no\n")
    with pytest.raises(BadRecords, match="if every client's table is .*; if this one alone is, write it as"):
        read_table(tmp_path / "t.csv", COLUMNS)


def test_a_moment_counts_as_the_day_that_its_own_clock_shows_in_every_container(tmp_path):
    columns = Columns.model_validate({"features": [{"name": "t", "kind": "date"}]})
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    moments = [
        datetime.datetime(2024, 3, 1, 0, 30, tzinfo=berlin),
        datetime.datetime(2024, 6, 30, 23, 59, tzinfo=berlin),
    ]
    days = [float((moment.date() - datetime.date(1970, 1, 1)).days) for moment in moments]
    frame = pd.DataFrame({"t": pd.Series(moments).astype("datetime64[us, Europe/Berlin]")})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = [as_records(frame, columns=columns), as_records({"t": moments}, columns=columns)]
    found += [read_table(tmp_path / f"t.{end}", columns) for end in ("parquet", "csv")]
    assert [records.features[:, 0].tolist() for records in found] == [days] * 4


def test_a_time_of_day_alone_is_refused_with_what_to_write_in_its_place(tmp_path):
    columns = Columns.model_validate({"features": [{"name": "t", "low": 0, "high": 24}]})
    (tmp_path / "t.csv").write_text("t\n13:45\n")
    frame = pd.DataFrame({"t": [datetime.time(13, 45)]})
    frame.to_parquet(tmp_path / "t.parquet")
    for read in (
        lambda: read_table(tmp_path / "t.csv", columns),
        lambda: read_table(tmp_path / "t.parquet", columns),
        lambda: as_records(frame, columns=columns),
    ):
        with pytest.raises(BadRecords, match="times of day are not read: write hours as numbers"):
            read()


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("82,445", 'if commas part thousands, set thousands = ","'),
        ("1,234.5", 'set thousands = ","'),
        ("1.234,5", 'set decimal = "," and thousands = "."'),
        ("1 234", 'set thousands = " "'),
        ("23,5", 'set decimal = ","'),
    ],
)
def test_a_number_that_is_written_otherwise_is_refused_with_what_to_declare(tmp_path, cell, said):
    (tmp_path / "t.csv").write_text(f'age,sex,y\n"{cell}",f,no\n')
    with pytest.raises(BadRecords) as fault:
        read_table(tmp_path / "t.csv", COLUMNS)
    assert said in str(fault.value)


def test_thousands_are_read_alike_by_both_readers_of_text(tmp_path):
    declared = {"features": [{"name": "income"}, {"name": "bmi"}], "thousands": ","}
    columns = Columns.model_validate(declared)
    quick = read_table(TABLES / "thousands_decided.csv", columns)
    text = (TABLES / "thousands_decided.csv").read_text().replace("\n", "\r", 1).replace("\r", "\r\n", 1)
    (tmp_path / "t.csv").write_text(text, newline="")
    assert torch.equal(read_table(tmp_path / "t.csv", columns).features, quick.features)
    assert quick.features[:, 0].min() > 20_000 and quick.features[:, 1].max() < 41
    own = Columns.model_validate({"features": [{"name": "income", "thousands": ","}, {"name": "bmi"}]})
    assert torch.equal(read_table(TABLES / "thousands_decided.csv", own).features, quick.features)


def test_a_number_that_stands_for_a_missing_cell_does_so_however_it_is_written(tmp_path):
    feature = {"name": "x", "low": 0, "high": 9, "missing": ["-9", ""], "fill": 0}
    columns = Columns.model_validate({"features": [feature, {"name": "z"}]})
    (tmp_path / "t.csv").write_text("x,z\n-9,1\n-9.0,1\n,1\n3,1\n")
    assert read_table(tmp_path / "t.csv", columns).features[:, 1].tolist() == [1.0, 1.0, 1.0, 0.0]
    frame = pd.DataFrame({"x": [-9.0, -9.0, np.nan, 3.0], "z": 1.0})
    assert as_records(frame, columns=columns).features[:, 1].tolist() == [1.0, 1.0, 1.0, 0.0]


def test_one_row_of_a_frame_is_refused_with_what_to_pass(tmp_path):
    frame = pd.DataFrame({"age": [50.0], "sex": ["f"], "y": ["no"]})
    with pytest.raises(BadRecords, match=r"pandas.Series is one row or one column.*frame.iloc\[\[0\]\]"):
        read_given(frame.iloc[0], COLUMNS)


def test_columns_that_number_the_rows_of_a_frame_are_left_out_and_said():
    frame = pd.DataFrame({"Unnamed: 0": range(4), "age": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    with pytest.warns(UserWarning, match="'Unnamed: 0' numbers the rows and is no input"):
        records = as_records(frame, target="y")
    assert records.columns.feature_names == ("age",)
    assert as_records(frame, target="y", features=["Unnamed: 0", "age"]).columns.inputs == 2


def test_the_inputs_of_complaints_are_small_and_each_is_described():
    described = (TABLES / "README.md").read_text()
    for table in TABLES.glob("*.csv"):
        assert table.stat().st_size < 2_000 and f"| `{table.name}` |" in described


@pytest.mark.parametrize("own", [True, False])
def test_a_group_that_is_cut_from_an_input_is_read_as_the_input_is(tmp_path, own):
    income = {"name": "income", "low": 0, "high": 100_000} | ({"thousands": ","} if own else {})
    columns = Columns.model_validate(
        {"features": [income], "sensitive": {"name": "income", "edges": [50_000]}, "thousands": "" if own else ","}
    )
    (tmp_path / "t.csv").write_text('income,x\n"82,445",1\n"12,000",1\n999,1\n')
    assert read_table(tmp_path / "t.csv", columns).sensitive.tolist() == [1, 0, 0]
    day = {"name": "d", "kind": "date", "format": "%d.%m.%Y", "low": "1990-01-01", "high": "2020-01-01"}
    dated = Columns.model_validate({"features": [day], "sensitive": {"name": "d", "edges": [11_000]}})
    assert as_records({"d": ["01.01.1991", "31.12.2019"]}, columns=dated).sensitive.tolist() == [0, 1]
