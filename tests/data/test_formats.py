"""Laws of a client's own files: formats agree, every fault is found where it is, limits hold, nothing is estimated."""

from __future__ import annotations

import csv
import gzip
import io
import struct
import zipfile
import zoneinfo
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsw.data import BadRecords, Records, encoding, find_table, formats, read_table
from fedsw.data.columns.declaration import Columns, difference, read_columns
from fedsw.experiment import ExperimentError, parse_experiment

HEADER = ["note", "age", "work", "sex", "income", "hours"]
COLUMNS = Columns.model_validate(
    {
        "features": [
            {"name": "age", "low": 10, "high": 90},
            {"name": "work", "categories": ["private", "public", "own"]},
            {"name": "hours"},
        ],
        "sensitive": {"name": "sex", "values": [0, 1]},
        "target": {"name": "income", "values": ["low", "high"]},
    }
)
WORK, INCOME = ["private", "public", "own"], ["low", "high"]
ROWS = [[f"n{i}", 10 + i, WORK[i % 3], i % 2, INCOME[i // 2 % 2], i / 4] for i in range(40)]
IMAGES = Columns.model_validate(
    {
        "features": [{"name": "pixel", "count": 6, "low": 0, "high": 255}],
        "target": {"name": "kind", "values": [0, 1, 2]},
    }
)


def write_csv(path: Path, rows=ROWS, header=HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_npz(path: Path, **changed) -> Path:
    arrays = {name: np.array([row[place] for row in ROWS]) for place, name in enumerate(HEADER)}
    np.savez(path, **{**arrays, **changed})
    return path


def write_parquet(path: Path, **changed) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {name: [row[place] for row in ROWS] for place, name in enumerate(HEADER)}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({**columns, **changed}), path)
    return path


def write_idx(folder: Path, images: np.ndarray, labels: list[int], *, zipped: bool = False) -> Path:
    end, wrap = (".gz", gzip.compress) if zipped else ("", bytes)
    path = folder / f"train-images-idx3-ubyte{end}"
    path.write_bytes(wrap(struct.pack(">4I", 2051, *images.shape) + images.astype(np.uint8).tobytes()))
    beside = folder / f"train-labels-idx1-ubyte{end}"
    beside.write_bytes(wrap(struct.pack(">2I", 2049, len(labels)) + bytes(labels)))
    return path


def expected() -> tuple[np.ndarray, list[int], list[int]]:
    one_hot = {"private": [1, 0, 0], "public": [0, 1, 0], "own": [0, 0, 1]}
    features = [[(row[1] - 10) / 80, *one_hot[row[2]], row[5]] for row in ROWS]
    return np.array(features), [row[3] for row in ROWS], [["low", "high"].index(row[4]) for row in ROWS]


def same(one: Records, other: Records) -> bool:
    names = ("features", "sensitive", "target", "ids")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("write", [write_csv, write_npz, write_parquet])
def test_every_format_gives_the_records_that_the_declaration_describes(tmp_path, write):
    path = write(tmp_path / f"train.{write.__name__.removeprefix('write_')}")
    records = read_table(path, COLUMNS, first_id=2, step=3)
    features, groups, classes = expected()
    np.testing.assert_allclose(records.features.numpy(), features, rtol=1e-6)
    assert records.sensitive.tolist() == groups and records.target.tolist() == classes
    assert records.ids.tolist() == list(range(2, 2 + 3 * len(ROWS), 3))


@pytest.mark.parametrize("zipped", [False, True])
def test_images_are_rows_of_pixels_with_the_labels_beside_them(tmp_path, zipped):
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 3))
    path = write_idx(tmp_path, images, [0, 2, 1, 1, 0], zipped=zipped)
    records = read_table(find_table(tmp_path), IMAGES)
    assert find_table(tmp_path) == path
    np.testing.assert_allclose(records.features.numpy(), images.reshape(5, 6) / 255, rtol=1e-6)
    assert records.target.tolist() == [0, 2, 1, 1, 0] and records.sensitive.tolist() == [0] * 5


def test_a_feature_with_a_count_is_one_array_of_npz_and_numbered_columns_elsewhere(tmp_path):
    values, kinds = np.arange(24.0).reshape(4, 6), np.array([0, 1, 2, 0])
    np.savez(tmp_path / "a.npz", pixel=np.asfortranarray(values), kind=kinds)
    header = [*(f"pixel{i}" for i in range(6)), "kind"]
    table = write_csv(tmp_path / "a.csv", [[*row, kind] for row, kind in zip(values, kinds, strict=True)], header)
    assert same(read_table(tmp_path / "a.npz", IMAGES), read_table(table, IMAGES))


def test_a_regression_has_two_scaled_numbers_for_a_target(tmp_path):
    columns = Columns.model_validate(
        {
            "features": [{"name": "age", "low": 10, "high": 90, "scale": "signed"}],
            "sensitive": {"name": "sex", "values": ["0", "1"]},
            "targets": [{"name": "hours", "low": 0, "high": 10}, {"name": "note"}],
        }
    )
    rows = [[i, 10 + i, "own", 1, "low", i / 4] for i in range(40)]
    records = read_table(write_csv(tmp_path / "train.csv", rows), columns)
    np.testing.assert_allclose(records.features[:, 0].numpy(), np.arange(40) / 40 - 1, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(records.target.numpy(), [[i / 40, i] for i in range(40)], rtol=1e-6)


def test_what_is_not_declared_is_never_looked_at_and_nothing_is_estimated(tmp_path):
    whole = read_table(write_csv(tmp_path / "a.csv"), COLUMNS)
    noted = [["NaN \x00 ☃", *row[1:]] for row in ROWS]
    assert same(whole, read_table(write_csv(tmp_path / "b.csv", noted), COLUMNS))
    for alone in (0, 7, 39):  # a record becomes the same whoever else is in the file
        one = read_table(write_csv(tmp_path / "one.csv", [ROWS[alone]]), COLUMNS)
        assert torch.equal(one.features[0], whole.features[alone])


SPOILED = {
    "age": ["", "nan", "inf", "-1e400", "9.99", "90.01", "old", "1,5", "2_0"],
    "work": ["", "Private", "none", "private;public"],
    "sex": ["", "2", "male", "-0"],
    "income": ["", "LOW"],
    "hours": ["  ", "nan", "-inf", "1e39", "0x10", "1_000"],
}


@given(
    place=st.integers(0, len(ROWS) - 1),
    spoiled=st.sampled_from([(name, cell) for name, cells in SPOILED.items() for cell in cells]),
    most=st.integers(1, 50),
    blanks=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_first_fault_is_named_by_file_row_and_column(tmp_path, monkeypatch, place, spoiled, most, blanks):
    monkeypatch.setattr(formats, "_MOST_ROWS", most)  # wherever chunks end
    name, cell = spoiled
    rows = [list(row) for row in ROWS]
    rows[place][HEADER.index(name)] = cell
    for later in range(place + 1, len(rows)):
        rows[later][1] = "later"
    path = write_csv(tmp_path / "train.csv", [*([[]] * blanks), *rows])
    with pytest.raises(BadRecords) as refused:
        read_table(path, COLUMNS)
    reason = str(refused.value)
    assert reason.startswith(f"{path}: row {2 + blanks + place} (the header is row 1), column {name!r} is ")
    assert ("empty" if not cell.strip() else repr(cell)) in reason and "declared" in reason


@pytest.mark.parametrize("cell", ["1_000", "1_0.5", "1e1_0"])
def test_a_number_with_underscores_is_no_number_of_a_file(tmp_path, cell):
    """Python would read 1_000 as 1000."""
    rows = [list(row) for row in ROWS]
    rows[2][HEADER.index("hours")] = cell
    with pytest.raises(BadRecords, match=f"row 4 .*column 'hours' is '{cell}'"):
        read_table(write_csv(tmp_path / "train.csv", rows), COLUMNS)


def test_rows_are_counted_as_records_even_where_a_cell_spans_lines(tmp_path):
    rows = [["two\nlines", *row[1:]] for row in ROWS]
    rows[4][1] = "old"
    with pytest.raises(BadRecords, match=r"row 6 \(the header is row 1\), column 'age' is 'old'"):
        read_table(write_csv(tmp_path / "train.csv", rows), COLUMNS)


def test_a_byte_order_mark_and_spaces_around_cells_change_nothing(tmp_path):
    path = write_csv(tmp_path / "a.csv")
    marked = tmp_path / "b.csv"
    marked.write_text("\ufeff" + path.read_text().replace(",", " , "), encoding="utf-8")
    assert same(read_table(path, COLUMNS), read_table(marked, COLUMNS))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty; its first row must name the columns"),
        (b"age,work,sex,income\n", "no column 'hours', which data.columns declares; it has 'age', 'work'"),
        (b"age,age,work,sex,income,hours\n", "two columns 'age'"),
        (b"age,work,sex,income,hours\n", "holds no records"),
        (b"age,work,sex,income,hours\n50,own,1,low\n", "row 2 has 4 cells; the header (row 1) has 5"),
        (b"age,work,sex,income,hours\n50,own,1,low,1\n50,\xffwn,1,low,1\n", "line 3 is not UTF-8"),
        (b'age,work,sex,income,hours\n50,"own,1,low,1\n', "line 2 is no CSV"),
        (b"age,work,sex,income,hours\n" + b"5" * 200_000, "row 2 has 1 cells; the header (row 1) has 5"),
    ],
)
def test_a_csv_file_that_is_none_is_named_with_its_line(tmp_path, content, reason):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(BadRecords) as refused:
        read_table(path, COLUMNS)
    assert str(path) in str(refused.value) and reason in str(refused.value)


def test_limits_on_bytes_columns_and_numbers_hold(tmp_path, monkeypatch):
    path = write_csv(tmp_path / "train.csv")
    for module, limit, value, reason in [
        (formats, "MAX_FILE_BYTES", 100, "at most 100 are read"),
        (formats, "MAX_COLUMNS", 5, "has 6 columns; at most 5"),
        (encoding, "MAX_VALUES", 39 * 5, "more than 39 records of 5 inputs"),
    ]:
        with monkeypatch.context() as patch, pytest.raises(BadRecords, match=reason):
            patch.setattr(module, limit, value)
            read_table(path, COLUMNS)
    monkeypatch.setattr(encoding, "MAX_VALUES", 40 * 5)
    assert len(read_table(path, COLUMNS)) == 40


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"age": np.array([object()] * 40)}, "Python objects are never loaded"),
        ({"age": np.zeros((40, 2))}, "array 'age' has shape (40, 2); (40,) is expected"),
        ({"hours": np.zeros(39)}, "array 'hours' has shape (39,); (40,) is expected"),
        ({"age": np.zeros(())}, "array 'age' has shape ()"),
        ({"age": np.zeros(40, dtype="datetime64[s]")}, "is datetime64[s]; numbers or text"),
        ({"age": np.where(np.arange(40) == 3, np.nan, 20.0)}, "row 4 (the first record is row 1), column 'age' is nan"),
        ({"sex": np.arange(40) % 2 + 0.5}, "row 1 (the first record is row 1), column 'sex' is 0.5"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, changed, reason):
    with pytest.raises(BadRecords) as refused:
        read_table(write_npz(tmp_path / "train.npz", **changed), COLUMNS)
    assert reason in str(refused.value)


def test_an_array_that_announces_more_than_it_has_takes_no_memory(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**45,)})
    path = write_npz(tmp_path / "train.npz")
    arrays = {name: np.array([row[place] for row in ROWS]) for place, name in enumerate(HEADER) if name != "age"}
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("age.npy", header.getvalue() + bytes(320))
    with pytest.raises(BadRecords, match=r"array 'age' announces shape \(35184372088832,\) of float64"):
        read_table(path, COLUMNS)


@pytest.mark.parametrize("write", [write_npz, write_parquet])
@pytest.mark.parametrize("kept", [0, 1, 0.5, 0.99])
def test_a_truncated_file_is_refused_by_name(tmp_path, write, kept):
    path = write(tmp_path / f"train.{write.__name__.removeprefix('write_')}")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(BadRecords, match=r"is not a whole (npz|Parquet) file"):
        read_table(path, COLUMNS)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"age": [50.0, None] * 20}, "row 2 (the first record is row 1), column 'age' is empty"),
        ({"work": ["own", "own", None, "own"] * 10}, "row 3 (the first record is row 1), column 'work' is empty"),
        ({"sex": [0.5] * 40}, "column 'sex' is 0.5; declared are '0', '1'"),
        ({"age": [[1.0]] * 40}, "column 'age' is list<"),
        ({"age": [datetime(2020, 1, 1)] * 40}, 'numbers or text are expected; declare kind = "date" for it'),
    ],
)
def test_parquet_nulls_and_types_are_named(tmp_path, changed, reason):
    with pytest.raises(BadRecords) as refused:
        read_table(write_parquet(tmp_path / "train.parquet", **changed), COLUMNS)
    assert reason in str(refused.value)


def test_a_time_of_a_parquet_file_counts_as_its_day(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    born = {
        "name": "born",
        "kind": "date",
        "low": "1990-01-01",
        "high": "2020-12-31",
        "missing": [""],
        "fill": "1991-01-01",
    }
    columns = Columns.model_validate({"features": [born]})
    days = [datetime(2000, 5, 4), None, datetime(2019, 12, 31)]
    times = [day and day + timedelta(hours=23, minutes=5) for day in days]

    def written(cells, kind) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"born": pyarrow.array(cells, kind)}), path)
        return path

    dates = read_table(written(days, pyarrow.date32()), columns)
    for unit in ("ms", "ns"):
        found = read_table(written(times, pyarrow.timestamp(unit)), columns)
        assert found.features.tolist() == dates.features.tolist()
    in_berlin = [day and day.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")) for day in times]
    found = read_table(written(in_berlin, pyarrow.timestamp("us", "Europe/Berlin")), columns)
    assert found.features.tolist() == dates.features.tolist()


def test_without_pyarrow_parquet_is_refused_with_the_remedy(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(formats.importlib, "import_module", missing)
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadRecords, match=r"pip install '.\[tables\]' in fedsw's checkout"):
        read_table(tmp_path / "train.parquet", COLUMNS)


def test_images_that_do_not_fit_are_named(tmp_path):
    images = np.zeros((3, 2, 3))
    smaller = Columns.model_validate({"features": [{"name": "pixel", "count": 4}]})
    for labels, columns, reason in [
        ([0, 1, 7], IMAGES, r"row 3 \(the first image is row 1\), column 'kind' is 7; declared are '0', '1', '2'"),
        ([0, 1], IMAGES, "2 labels for 3 images"),
        ([0, 1, 2], COLUMNS, "declare one feature with a count of pixels"),
        ([0, 1, 2], smaller, "2x3 pixels; 4 are declared"),
    ]:
        path = write_idx(tmp_path, images, labels)
        with pytest.raises(BadRecords, match=reason):
            read_table(path, columns)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte"):
        read_table(path, IMAGES)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadRecords, match="announces 18 bytes"):
        read_table(path, IMAGES)


def test_files_that_are_missing_ambiguous_or_of_no_known_kind_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_table(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no table \(\.csv, \.tsv, \.txt, \.parquet or \.npz\)"):
        find_table(tmp_path)
    for name in ("train.csv", "train.npz"):
        (tmp_path / name).touch()
    with pytest.raises(BadRecords, match=r"train\.csv and train\.npz; keep the one"):
        find_table(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_table(tmp_path / "missing.csv", COLUMNS)
    with pytest.raises(BadRecords, match="is not a file"):
        read_table(tmp_path, COLUMNS)
    (tmp_path / "train.xlsx").touch()
    with pytest.raises(BadRecords, match=r"a table is \.csv, \.tsv, \.txt, \.parquet or \.npz"):
        read_table(tmp_path / "train.xlsx", COLUMNS)


FULL = COLUMNS.model_dump(mode="json", exclude_defaults=True)


AUTOENCODER = ("objective.task=autoencoder", "objective.penalty=prior-matching", "model.kind=encoder-decoder")


def _points(**second):
    """A declaration of a regression, of whose second number something else is said."""
    targets = [{"name": name, "low": 0, "high": 9} for name in ("a", "b")]
    return FULL | {"target": None, "targets": [targets[0], targets[1] | second]}


@pytest.mark.parametrize(
    ("columns", "overrides"), [(_points(), ("objective.task=regression",)), (IMAGES.model_dump(), AUTOENCODER)]
)
def test_what_is_compared_with_probabilities_serves_in_the_unit_interval(columns, overrides):
    parse_experiment({"name": "own", "data": {"source": "files", "columns": columns}}, overrides)


@pytest.mark.parametrize(
    ("columns", "overrides", "reason"),
    [
        (None, (), r"data: source 'files' reads the columns that \[data.columns\] declares"),
        (FULL, ("data.source=adult",), "columns and held_out belong to source 'files', not to 'adult'"),
        (FULL | {"features": []}, (), "data.columns.features"),
        (FULL | {"features": [{"name": "age", "low": 3}]}, (), "give both or neither"),
        (FULL | {"features": [{"name": "age", "low": 3, "high": 3}]}, (), "not below high"),
        (FULL | {"features": [{"name": "age", "lo": 3}]}, (), "nearest known: 'data.columns.features.low'"),
        (FULL | {"features": [{"name": "a", "categories": ["x"]}]}, (), "at least two different ones"),
        (FULL | {"features": [{"name": "a", "categories": ["x", "x "]}]}, (), "without spaces"),
        (FULL | {"features": [{"name": "a", "categories": ["x", "y"], "count": 2}]}, (), "are for numbers"),
        (FULL | {"features": [{"name": "income"}]}, (), "'income' is declared twice"),
        (FULL | {"features": [{"name": "a", "count": 10_000}, {"name": "b"}]}, (), "at most 10000"),
        (FULL | {"targets": [{"name": "a"}, {"name": "b"}]}, (), "keep one"),
        (FULL | {"sensitive": None}, (), "declare data.columns.sensitive"),
        (FULL | {"target": None}, (), "declare data.columns.target"),
        (FULL, ("objective.task=regression",), "predicts numbers: declare one or more of them in data.columns.targets"),
        (FULL | {"target": None, "targets": [{"name": "a"}, {"name": "b"}]}, (), "are for a regression"),
        (
            {"features": [{"name": "pixel", "count": 60}]},
            ("objective.task=autoencoder", "objective.penalty=prior-matching", "model.kind=image-autoencoder"),
            "takes square images; data.columns.features add up to 60 inputs",
        ),
        (FULL | {"features": [{"name": "age", "scale": "signed"}]}, (), "'age' has scale 'signed' and no bounds; give"),
        (FULL, AUTOENCODER, r"predicts numbers in \[0, 1\]; column 'hours' needs public bounds"),
        (FULL | {"features": [{"name": "age", "low": 0, "high": 9, "scale": "signed"}]}, AUTOENCODER, "scale 'unit'"),
        (_points(low=None, high=None), ("objective.task=regression",), "column 'b' needs public bounds"),
        (_points(scale="signed"), ("objective.task=regression",), "column 'b' needs public bounds"),
    ],
)
def test_a_declaration_that_does_not_serve_the_experiment_is_refused(columns, overrides, reason):
    raw = {"name": "own", "data": {"source": "files"} | ({} if columns is None else {"columns": columns})}
    with pytest.raises(ExperimentError, match=reason):
        parse_experiment(raw, overrides)


def test_a_schema_file_is_the_declaration_and_its_faults_are_named(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(
        'features = [{name = "age", low = 10, high = 90}, {name = "work", categories = ["private", "public", "own"]}, '
        '{name = "hours"}]\n[sensitive]\nname = "sex"\nvalues = [0, 1]\n'
        '[target]\nname = "income"\nvalues = ["low", "high"]\n'
    )
    assert read_columns(path) == COLUMNS and difference(COLUMNS, read_columns(path)) is None
    for text, word in [("features = 3", "features"), ("features = [", "not valid TOML"), ("a = " + "[" * 4000, "TOML")]:
        path.write_text(text)
        with pytest.raises(ExperimentError, match=word) as refused:
            read_columns(path)
        assert str(path) in str(refused.value)
    with pytest.raises(ExperimentError, match="cannot be read: No such file"):
        read_columns(tmp_path / "none.toml")
    whole = tmp_path / "own.toml"
    whole.write_text('name = "own"\n[data.columns]\nfeatures = [{name = "age"}]\n')
    with pytest.raises(ExperimentError, match=r"write what is under \[data.columns\] there at its top level"):
        read_columns(whole)
