"""Laws of tables that are read in blocks: cells are those of a loop over rows, and so are refusals."""

from __future__ import annotations

import csv
import math
import threading

import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsw.data import BadRecords, blocks, concatenate, formats, read_table, read_tables
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.distinct_cells import Distinct, mapped
from fedsw.data.encoding import Growing
from fedsw.data.tables import checked

WORK, AGE_MISSING, SCORE_MISSING = ("private", "public", "own"), ("", "?"), ("NA",)
COLUMNS = Columns.model_validate(
    {
        "features": [
            {"name": "age", "kind": "integer", "low": 0, "high": 100, "missing": AGE_MISSING, "fill": 40},
            {"name": "score", "low": -2, "high": 2, "scale": "signed", "missing": SCORE_MISSING, "fill": 0},
            {"name": "hours"},
            {"name": "work", "categories": WORK, "missing": [""], "fill": "own"},
            {"name": "member", "kind": "boolean"},
        ],
        "sensitive": {"name": "hours", "edges": [10.0]},
        "target": {"name": "ill", "values": ["no", "yes"]},
        "unit": "who",
    }
)
HEADER = ["who", "note", "age", "score", "hours", "work", "member", "ill"]
BOUNDED = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture], "max_examples": 40}


def spaced(texts) -> st.SearchStrategy[str]:
    return st.tuples(texts, st.sampled_from(["", " ", "  "])).map(lambda pair: pair[1] + pair[0] + pair[1])


def written(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[str]:
    return numbers.flatmap(lambda value: st.sampled_from([repr(value), f"{value:.3e}", f"{value:+f}", f"{value:g}"]))


NUMBERS = st.floats(0, 40, width=32).filter(lambda value: value == 0 or value > 1e-3)
ROW = st.tuples(
    st.sampled_from(["p1", "p2", "p3", "17"]),
    st.sampled_from(["", "a, b", 'say "so"', "two\nlines", "ä"]),
    st.one_of(st.integers(0, 100).map(str), st.sampled_from(AGE_MISSING)),
    st.one_of(written(st.floats(-1.9, 1.9).map(lambda value: round(value, 5))), st.just("NA")),
    written(NUMBERS.filter(lambda value: abs(value - 10) > 0.01)),
    spaced(st.sampled_from([*WORK, ""])),
    st.sampled_from(["true", "No", "1", "f"]),
    st.sampled_from(["no", "yes"]),
)
TABLES = st.lists(ROW, min_size=1, max_size=12)


def write(path, rows, *, quoting=csv.QUOTE_MINIMAL, ends="\n"):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=quoting, lineterminator=ends).writerows([HEADER, *rows])
    return path


def one_group_each(rows):
    """The same rows, those of one person in one group."""
    return [[f"{row[0]} in {float(row[4]) >= 10}", *row[1:]] for row in rows]


def naive(row) -> tuple[list[float], int, int]:
    """Inputs, group and class of a row, cell by cell."""
    _, _, age, score, hours, work, member, ill = (cell.strip() for cell in row)
    inputs = [0.4, 1.0] if age in AGE_MISSING else [float(age) / 100, 0.0]
    inputs += [0.0, 1.0] if score in SCORE_MISSING else [2 * (float(score) + 2) / 4 - 1, 0.0]
    inputs += [float(hours)]
    inputs += [float((work or "own") == each) for each in WORK] + [float(not work)]
    inputs += [float(member.lower() in ("true", "1"))]
    return inputs, int(float(hours) >= 10), int(ill == "yes")


def same(one, other) -> bool:
    fields = ("features", "sensitive", "target", "ids", "unit")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


@pytest.fixture(params=["pyarrow", "python"])
def reader(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(formats, "_arrow", lambda part: None)
    else:
        pytest.importorskip("pyarrow")


@given(rows=TABLES, size=st.sampled_from([1, 60, 2**21]), ends=st.sampled_from(["\n", "\r\n"]))
@settings(**BOUNDED)
def test_columns_in_blocks_are_what_a_loop_over_rows_finds(tmp_path, monkeypatch, reader, rows, size, ends):
    monkeypatch.setattr(blocks, "BLOCK", size)
    rows = one_group_each(rows)
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        found = read_table(write(tmp_path / "train.csv", rows, quoting=quoting, ends=ends), COLUMNS)
        wanted = [naive(row) for row in rows]
        assert torch.allclose(found.features, torch.tensor([inputs for inputs, _, _ in wanted]), rtol=1e-6, atol=0)
        assert found.sensitive.tolist() == [group for _, group, _ in wanted]
        assert found.target.tolist() == [label for _, _, label in wanted]
        assert found.ids.tolist() == list(range(len(rows)))
        whose = dict(zip([row[0] for row in rows], found.unit.tolist(), strict=True))
        assert [whose[row[0]] for row in rows] == found.unit.tolist() and len(set(whose.values())) == len(whose)


@given(rows=TABLES)
@settings(**BOUNDED)
def test_a_table_in_blocks_is_the_table_read_whole_bit_by_bit_by_either_reader(tmp_path, rows):
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "train.csv", one_group_each(rows))
    found = []
    for size, there in ((1, True), (80, True), (2**21, True), (2**21, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK", size)
            if not there:
                patch.setattr(formats, "_arrow", lambda part: None)
            found.append(read_table(path, COLUMNS))
    assert all(same(found[0], other) for other in found[1:])


SPOILT = ["nan", "inf", "-5", "1_0", "", "NA", "?", "x", "1e999", "0x10", "٣", " ", "20.5", "1,5", "--1", "9" * 400]


@pytest.mark.parametrize("column", ["age", "score", "hours", "work", "member", "ill", "who"])
@pytest.mark.parametrize("size", [1, 2**21])
def test_either_reader_refuses_the_same_cells_in_the_same_words(tmp_path, monkeypatch, column, size):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(blocks, "BLOCK", size)
    plain = ["p1", "", "30", "0.5", "5", "own", "true", "no"]
    for cell in SPOILT:
        rows = [list(plain) for _ in range(5)]
        rows[3][HEADER.index(column)] = cell
        path, said = write(tmp_path / "train.csv", rows), []
        for there in (True, False):
            with monkeypatch.context() as patch:
                if not there:
                    patch.setattr(formats, "_arrow", lambda part: None)
                try:
                    said.append(read_table(path, COLUMNS).features.tolist())
                except BadRecords as refused:
                    said.append(str(refused))
                chunks = formats.format_of(path).read(path, COLUMNS)
                found = checked(chunks, COLUMNS)
                said.append([[(each.row, each.column, each.value) for each in found.faults], found.absent])
        assert said[:2] == said[2:], cell


BROKEN = [
    "p1,,30,0.5,5,own,true\n",
    "\n",
    "   \n",
    'p1,a"b,30,0.5,5,own,true,no\n',
    'p1,"a"b,30,0.5,5,own,true,no\n',
    'p1, "a",30,0.5,5,own,true,no\n',
    'p1,"a\nb",30,0.5,5,own,true,no\n',
    'p1,"a\n',
    "p1,a\rb,30,0.5,5,own,true,no\n",
    "p1,a\0b,30,0.5,5,own,true,no\n",
    "p1," + "a" * 140_000 + ",30,0.5,5,own,true,no\n",
]


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("size", [1, 2**21])
def test_either_reader_finds_the_same_rows_or_says_the_same_of_a_file_that_is_not_plain(tmp_path, line, size):
    pytest.importorskip("pyarrow")
    plain, path = "p1,,30,0.5,5,own,true,no\n", tmp_path / "train.csv"
    path.write_bytes((",".join(HEADER) + "\n" + plain * 3 + line + plain + plain.replace("own", "x")).encode())
    said = []
    for there in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK", size)
            if not there:
                patch.setattr(formats, "_arrow", lambda part: None)
            with pytest.raises(BadRecords) as refused:
                read_table(path, COLUMNS)
            said.append(str(refused.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2**21])
def test_a_blank_line_is_no_row_where_every_cell_may_be_missing(tmp_path, monkeypatch, reader, size, end):
    monkeypatch.setattr(blocks, "BLOCK", size)
    feature = {"low": 0, "high": 10, "missing": [""], "fill": 5}
    columns = Columns.model_validate({"features": [{"name": "a", **feature}, {"name": "b", **feature}]})
    path = tmp_path / "train.csv"
    path.write_bytes(end.join(["a,b", "", "1,2", "", ",", "", "", "3,", ""]).encode())
    assert read_table(path, columns).features.tolist() == pytest.approx(
        np.array([[0.1, 0, 0.2, 0], [0.5, 1, 0.5, 1], [0.3, 0, 0.5, 1]])
    )
    path.write_bytes(end.join(["a,b", "", "1,2", "", "x,1", ""]).encode())
    with pytest.raises(BadRecords, match="row 5 "):
        read_table(path, columns)


def test_parquet_gives_the_records_of_the_same_table_as_text(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [["p1", "", "30", "NA", "5", "own", "true", "no"], ["p2", "", "", "0.25", "20", "", "false", "yes"]] * 20
    columns = {name: [row[place] for row in rows] for place, name in enumerate(HEADER)}
    typed = columns | {
        "age": [int(cell) if cell else None for cell in columns["age"]],
        "score": ["NA" if cell == "NA" else cell for cell in columns["score"]],
        "hours": np.array(columns["hours"], dtype=np.float32),
        "work": pyarrow.array([cell or None for cell in columns["work"]]).dictionary_encode(),
        "member": [cell == "true" for cell in columns["member"]],
    }
    parquet.write_table(pyarrow.table(typed), tmp_path / "train.parquet")
    assert same(
        read_table(tmp_path / "train.parquet", COLUMNS), read_table(write(tmp_path / "train.csv", rows), COLUMNS)
    )


WORDS = st.lists(st.sampled_from(["private", " public", "own", "", "no", None]), min_size=1, max_size=30)


@given(words=WORDS, size=st.integers(1, 9), coded=st.booleans(), unused=st.booleans())
@settings(**BOUNDED)
def test_texts_of_parquet_are_the_cells_of_its_rows_however_it_codes_them(
    tmp_path, monkeypatch, words, size, coded, unused
):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(formats, "_ARROW_ROWS", size)
    cells = pyarrow.array(words, pyarrow.large_string() if unused else pyarrow.string())
    if coded and unused:
        levels = list(dict.fromkeys(["unused", *(word for word in words if word is not None)]))
        codes = [None if word is None else levels.index(word) for word in words]
        cells = pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes, pyarrow.int32()), levels)
    elif coded:
        cells = cells.dictionary_encode()
    parquet.write_table(pyarrow.table({"work": cells}), path := tmp_path / "train.parquet", row_group_size=7)
    columns = Columns.model_validate({"features": [{"name": "work", "categories": WORK}]})
    chunks = list(formats.format_of(path).read(path, columns))
    assert [cell for chunk in chunks for cell in chunk.cells["work"]] == words
    for chunk in chunks:
        assert isinstance(found := chunk.cells["work"], Distinct) and set(found.values) == set(found)
    faults = checked(iter(chunks), columns)
    assert faults.rows == len(words)
    missed = [row for row, word in enumerate(words, 1) if word not in (None, "") and word.strip() not in WORK]
    assert sorted(each.row for each in faults.faults) == missed
    assert sum(faults.absent.get("work", {}).values()) == sum(word in (None, "") for word in words)


@given(st.lists(st.one_of(st.floats(), st.floats(width=32), st.integers(-5, 5)), max_size=8), st.booleans())
def test_missing_numbers_of_an_array_are_those_of_its_cells(values, single):
    from fedsw.data.cells import missing_among

    with np.errstate(over="ignore"):
        cells = np.array(values, dtype=np.float32 if single else np.float64)
    for markers in (("",), ("0", "-3"), ("1e+30", "nan", "inf", "0.1", "-0", "")):
        assert missing_among(cells, markers).tolist() == missing_among([*cells.tolist(), "x"], markers).tolist()[:-1]


@given(st.lists(st.one_of(st.sampled_from(["a", "b", "1"]), st.just(1), st.just(True), st.none())))
def test_what_is_said_of_values_is_what_is_said_of_every_cell(cells):
    wanted = [repr(cell) for cell in cells]
    assert mapped(cells, repr, object).tolist() == wanted
    listed = list(dict.fromkeys(map(repr, cells)))
    distinct = Distinct(listed, np.array([listed.index(repr(cell)) for cell in cells], dtype=np.int64))
    assert mapped(distinct, str, object).tolist() == wanted and list(distinct) == wanted


def test_tables_that_are_read_together_are_in_memory_once(tmp_path):
    rows = one_group_each([["p1", "", "30", "0.5", "5", "own", "true", "no"]] * 7)
    paths = [write(tmp_path / f"{name}.csv", [[f"{name} {row[0]}", *row[1:]] for row in rows]) for name in "abc"]
    parts = read_tables(paths, COLUMNS)
    whole = concatenate(parts)
    for part in parts:
        assert part.features.untyped_storage().data_ptr() == whole.features.untyped_storage().data_ptr()
    assert same(whole, concatenate([part.take(range(7)) for part in parts]))
    assert torch.equal(concatenate(parts[::-1]).unit, torch.cat([part.unit for part in parts[::-1]]))
    for path, part in zip(paths, parts, strict=True):
        assert torch.equal(part.features, read_table(path, COLUMNS).features)


@given(st.lists(st.integers(0, 30), min_size=1))
def test_what_grows_is_what_was_appended(sizes):
    growing, parts = Growing(np.float32), []
    for start, size in enumerate(sizes):
        parts.append(np.full((size, 2), start, dtype=np.float32))
        growing.append(parts[-1])
    assert len(growing) == sum(sizes) and np.array_equal(growing.whole(), np.concatenate(parts))


def test_subnormal_numbers_of_a_table_are_zero(tmp_path):
    columns = Columns.model_validate({"features": [{"name": "x"}]})
    (tmp_path / "a.csv").write_text("x,y\n1e-40,\n-1e-42,\n2e-38,\n-0.0,\n")
    found = read_table(tmp_path / "a.csv", columns).features[:, 0].tolist()
    assert found[:2] == [0.0, 0.0] and found[2] > 0 and math.copysign(1, found[3]) == 1


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chunks_that_are_read_ahead_are_the_same_and_end_with_the_reader(tmp_path, monkeypatch, kind):
    columns = Columns.model_validate({"features": [{"name": "a"}, {"name": "b"}]})
    table, path = pandas.DataFrame({"a": np.arange(50), "b": np.arange(50) / 8}), tmp_path / f"t.{kind}"
    (table.to_csv if kind == "csv" else table.to_parquet)(path, index=False)
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(formats, "_ARROW_ROWS", 8)
    read, threads = formats.FORMATS[kind].read, threading.active_count()
    alone = [(chunk.first_row, [*chunk.cells["b"]]) for chunk in read(path, columns)]
    monkeypatch.setattr(formats, "BLOCK", 0)
    assert [(chunk.first_row, [*chunk.cells["b"]]) for chunk in read(path, columns)] == alone
    assert len(alone) > 3
    left = read(path, columns)
    next(left)
    left.close()
    assert threading.active_count() == threads


def test_a_fault_that_is_read_ahead_is_raised_after_the_chunks_before_it(tmp_path, monkeypatch):
    (path := tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 40 + "1,2,3\n", encoding="utf-8")
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(formats, "BLOCK", 0)
    rows = 0
    with pytest.raises(BadRecords, match="row 42 has 3 cells"):
        for chunk in formats.FORMATS["csv"].read(path, Columns.model_validate({"features": [{"name": "a"}]})):
            rows += len(chunk.cells["a"])
    assert rows >= 32
