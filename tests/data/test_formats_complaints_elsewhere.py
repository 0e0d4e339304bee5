"""Laws of tables that public trackers of other tools complain of: read rightly, or refused by name with what to do.

Each test names the reports that it is of: pandas, polars, duckdb, readr, CSV.jl, PapaParse, d3, SFrame and others.
"""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw.data import BadRecords, as_records, read_table
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.number import is_amount
from fedsw.data.formats import format_of
from fedsw.data.tables import checked
from fedsw.desk.own_data.answers import Words, form_of, read_header
from fedsw.desk.own_data.draft import DraftRequest, draft

AGE = {"name": "age", "low": 0, "high": 100}
SEX = {"name": "sex", "categories": ["f", "m"]}


def declared(*features, **more) -> Columns:
    return Columns.model_validate({"features": list(features), **more})


def table(tmp_path, text: str):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    return path


def refused(path, columns) -> str:
    with pytest.raises(BadRecords) as fault:
        read_table(path, columns)
    return str(fault.value)


def test_characters_that_nobody_sees_make_no_other_value(tmp_path):
    """ICIJ/datashare 2379, PapaParse 917, bulkrax 688: BOMs, zero-width and hard blanks in names and cells."""
    columns = declared({"name": "home town", "categories": ["New York", "Oslo"]}, AGE)
    text = "\ufeffhome\u00a0town,\u200bage\n\u200bNew\u00a0York ,50\n\ufeffOslo\u200b,\ufeff60\n"
    assert read_table(table(tmp_path, text), columns).features.tolist() == [[1, 0, 0.5], [0, 1, pytest.approx(0.6)]]
    frame = pd.DataFrame({"home\u00a0town": ["New\u00a0York", " Oslo\u200d"], "age\u200b": [50, 60]})
    assert as_records(frame, columns=columns).features[:, :2].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("decimal", "cell"), [(".", "\u22123.5"), (",", "\u22123,5")])
def test_a_minus_sign_is_a_minus_whichever_of_unicode_s(tmp_path, decimal, cell):
    """actual 6206, polars 28163: U+2212 read as a text, or as a positive number."""
    columns = declared({"name": "x"}, decimal=decimal, separator=";")
    assert read_table(table(tmp_path, f"x;y\n{cell};1\n-1;1\n"), columns).features.tolist() == [[-3.5], [-1.0]]
    assert form_of([cell, "7"]).kind == "number"


def test_a_column_that_one_client_never_filled_in_is_missing_there_and_no_other_type(tmp_path):
    """fink-client 234, dask 5759, pandas 55731: Parquet's null type beside another client's numbers."""
    missing = {"missing": [""], "fill": 50}
    columns = declared({**AGE, **missing}, {**SEX, "missing": [""]}, {"name": "d", "kind": "date"} | missing)
    pd.DataFrame({"age": [None, None], "sex": [None, None], "d": [None, None]}).to_parquet(tmp_path / "t.parquet")
    records = read_table(tmp_path / "t.parquet", columns)
    assert records.features.tolist() == [[0.5, 1, 0, 0, 1, 50, 1]] * 2
    assert "column 'age' is empty" in refused(tmp_path / "t.parquet", declared(AGE, {**SEX, "missing": [""]}))


def test_categories_that_are_numbers_are_the_same_in_parquet_as_in_text(tmp_path):
    """pandas 39480, 60491, 26616: a categorical of integers comes back from Parquet as another type."""
    columns = declared({"name": "c", "categories": ["1", "2", "3"]})
    for values in ([1, 2, 3], [1.0, 2.0, 3.0], ["1", "2", "3"], [True, False, True]):
        frame = pd.DataFrame({"c": pd.Categorical(values)})
        frame.to_parquet(tmp_path / "t.parquet")
        if values[0] is True:
            assert "column 'c' is True" in refused(tmp_path / "t.parquet", columns)
            continue
        expected = torch.eye(3)
        assert torch.equal(read_table(tmp_path / "t.parquet", columns).features, expected)
        assert torch.equal(as_records(frame, columns=columns).features, expected)


def test_names_of_columns_in_the_middle_of_a_table_are_recognised(tmp_path):
    """s3-concat 3, mb2-analysis 89, datapusher 74: joined files repeat their headers, parsed as missing numbers."""
    path = table(tmp_path, "age,sex\n50,f\nage,sex\n60,m\n")
    said = refused(path, declared(AGE, SEX))
    assert "row 3" in said and "column 'age' is 'age'" in said and "joined: delete that row" in said
    found = checked(format_of(path).read(path, declared(AGE, SEX)), declared(AGE, SEX))
    assert {fault.row for fault in found.faults} == {3}


def test_dates_of_zeros_are_missing_where_that_is_declared_and_no_dates_elsewhere(tmp_path):
    """ipt 1119, spiceai 4660, cockroach 31288: 0000-00-00 in exports of MySQL."""
    date = {"name": "d", "kind": "date", "low": "2000-01-01", "high": "2030-01-01"}
    path = table(tmp_path, "d,sex\n0000-00-00,f\n2020-02-29,m\n")
    kept = declared(date | {"missing": ["0000-00-00"], "fill": "2015-01-01"}, SEX)
    assert read_table(path, kept).features[:, 1].tolist() == [1.0, 0.0]
    assert "column 'd' is '0000-00-00'; a date as 2024-05-31" in refused(path, declared(date, SEX))
    form = form_of(["0000-00-00", "2020-02-29"])
    assert form.kind == "date" and form.missing == {"0000-00-00": 1}
    assert "column 'd' is '2021-02-29'" in refused(table(tmp_path, "d,sex\n2021-02-29,f\n"), declared(date, SEX))


@pytest.mark.parametrize("cell", ["$1200", "€ 12", "12 €", "12.5%", "(987.65)", "($987)", "-$3", "1.23-"])
def test_amounts_with_signs_are_refused_with_what_to_write_and_are_no_categories(tmp_path, cell):
    """readr 444, CSV.jl 1147, bilig 46, tablesorter 47: signs of money, percent and brackets, read as text."""
    assert is_amount(cell) and not any(map(is_amount, ["1200", "-3", "a%", "", "12 Monkeys", "(old)", "-"]))
    said = refused(table(tmp_path, f'age,sex\n"{cell}",f\n'), declared(AGE, SEX))
    assert "without a sign of money or percent" in said
    folder = tmp_path / "DATA"
    folder.mkdir()
    rows = [f'"{cell.replace("1", str(row)).replace("9", str(row))}",{20 + row},f,no' for row in range(1, 5)]
    (folder / "t.csv").write_text("\n".join(["paid,age,sex,y", *rows, *[row[:-4] + "m,yes" for row in rows]]))
    made = draft(DraftRequest(folder, "sex", "y", Words(), from_public=True), name="own")
    assert "left out: its numbers have signs of money or percent" in made.text


def test_a_comment_before_the_names_is_recognised(tmp_path):
    """csvkit 336, CSV.jl 351, arquero 165: comments and titles above the header become its names."""
    path = table(tmp_path, "# made by a tool\nage,sex\n50,f\n")
    assert "begins with a comment, '# made by a tool'; its first row must name the columns" in refused(
        path, declared(AGE, SEX)
    )
    with pytest.raises(BadRecords, match="begins with a comment"):
        read_header(path)


def test_separators_at_the_ends_of_lines_shift_nothing(tmp_path):
    """league/csv 543, node-csv-parse 120, dust 3718: trailing separators, with and without one in the header."""
    columns = declared(AGE, SEX)
    assert read_table(table(tmp_path, "age,sex,,\n50,f,,\n60,m,,\n"), columns).features[:, 1].tolist() == [1.0, 0.0]
    said = refused(table(tmp_path, "age,sex\n50,f,\n60,m,\n"), columns)
    assert "row 2 has 3 cells; the header (row 1) has 2" in said


def test_names_are_compared_without_the_blanks_around_them_and_two_alike_are_refused(tmp_path):
    """d3 978, csvql 101, arnio 828: " age" beside "age"."""
    columns = declared(AGE, SEX)
    text = table(tmp_path, " age , sex\n50, f\n")
    frame = pd.DataFrame({" age ": [50], "sex ": ["f"]})
    frame.to_parquet(tmp_path / "t.parquet")
    for records in (
        read_table(text, columns),
        read_table(tmp_path / "t.parquet", columns),
        as_records(frame, columns=columns),
    ):
        assert records.features.tolist() == [[0.5, 1.0, 0.0]]
    assert "two columns 'age'" in refused(table(tmp_path, "age, age,sex\n50,60,f\n"), columns)
    with pytest.raises(BadRecords, match="two columns 'age'"):
        as_records(pd.DataFrame({"age": [1], "age ": [2], "sex": ["f"]}), columns=columns)


@pytest.mark.parametrize("late", ["9a", "1.5", "1e400", "2020-01-01"])
def test_a_late_cell_of_another_kind_is_refused_and_never_converted(tmp_path, late):
    """SFrame 23, duckdb 25824, readr 482: types from the first rows, later cells rounded or cut short silently."""
    whole = {"name": "n", "kind": "integer", "low": 0, "high": 10**6}
    lines = "\n".join(f"{row},f" for row in range(30_000))
    said = refused(table(tmp_path, f"n,sex\n{lines}\n{late},f\n"), declared(whole, SEX))
    assert f"row 30002 (the header is row 1), column 'n' is {late!r}; a whole number" in said


def test_identifiers_of_many_digits_stay_apart(tmp_path):
    """pandas 5697: whole numbers above 2^53 are rounded, and two persons become one."""
    numbers = [9_007_199_254_740_993 + step for step in range(4)]
    columns = declared(AGE, unit="who")
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "who": numbers})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    np.savez(tmp_path / "t.npz", age=frame["age"].to_numpy(), who=frame["who"].to_numpy())
    found = [read_table(tmp_path / f"t.{end}", columns) for end in ("csv", "parquet", "npz")]
    found += [as_records(frame, columns=columns), as_records(frame.astype({"who": "Int64"}), columns=columns)]
    assert [len(records.unit.unique()) for records in found] == [4] * 5
    assert all(torch.equal(records.unit, found[0].unit) for records in found)


def test_lines_may_end_as_on_old_machines(tmp_path):
    """Carriage returns alone end lines, as in exports of old spreadsheets."""
    assert read_table(table(tmp_path, "age,sex\r50,f\r60,m\r"), declared(AGE, SEX)).features[:, 1].tolist() == [1, 0]
    assert read_header(tmp_path / "t.csv") == (["age", "sex"], ",")


def test_a_date_is_one_day_whatever_holds_it(tmp_path):
    """Dates as text, as dates, as moments at midnight, and in Arrow's and pandas' types."""
    columns = declared({"name": "d", "kind": "date"})
    day = datetime.date(2024, 2, 29)
    moments = [day.isoformat(), day, datetime.datetime(2024, 2, 29), pd.Timestamp(day), np.datetime64("2024-02-29")]
    for moment in moments:
        assert as_records({"d": [moment]}, columns=columns).features.item() == (day - datetime.date(1970, 1, 1)).days
