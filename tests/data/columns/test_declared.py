"""Laws of records read in Python: the same table gives the same records in any container; faults are named."""

from __future__ import annotations

import math
import warnings

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedsw.data import BadRecords, Records, as_records, read_table
from fedsw.data.columns.declaration import Columns
from fedsw.experiment import ExperimentError

ROLES = {"group": "g", "target": "y", "groups": [0, 1, 2], "classes": [0, 1]}

floats = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: value if abs(value) > 1e-30 else 0.0)
tables = st.integers(2, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "a": st.lists(floats, min_size=n, max_size=n),
            "b": st.lists(floats, min_size=n, max_size=n),
            "g": st.lists(st.integers(0, 2), min_size=n, max_size=n),
            "y": st.lists(st.integers(0, 1), min_size=n, max_size=n),
        }
    )
)


class Items(Dataset):
    """A map-style data set of a user's own."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def same(one: Records, other: Records) -> bool:
    names = ("features", "sensitive", "target", "ids")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def containers(table: dict[str, list]) -> dict[str, Records]:
    """The table in every container that is accepted, read with the same roles."""
    table = {name: table[name] for name in "abgy"}
    x = np.column_stack([table["a"], table["b"]])
    g, y = np.array(table["g"]), np.array(table["y"])
    rows = [{name: table[name][row] for name in table} for row in range(len(g))]
    frame = pd.DataFrame(table)
    alike = {"groups": [0, 1, 2], "classes": [0, 1]}
    tuples = [(torch.tensor(x[row]), torch.tensor(y[row]), torch.tensor(g[row])) for row in range(len(g))]
    return {
        "frame": as_records(frame, **ROLES),
        "shuffled columns": as_records(frame[["y", "b", "g", "a"]], features=["a", "b"], **ROLES),
        "categories": as_records(frame.assign(g=frame["g"].astype("category")), **ROLES),
        "mapping": as_records(table, **ROLES),
        "structured": as_records(frame.to_records(index=False), **ROLES),
        "hub": as_records(datasets.Dataset.from_dict(table), **ROLES),
        "hub in torch's format": as_records(datasets.Dataset.from_dict(table).with_format("torch"), **ROLES),
        "array": as_records(x, group=g, target=y, **alike),
        "one array": as_records(np.column_stack([x, g, y]), group=2, target=3, **alike),
        "one named array": as_records(np.column_stack([x, g, y]), names=["a", "b", "g", "y"], **ROLES),
        "tensor": as_records(torch.tensor(x), group=torch.tensor(g), target=torch.tensor(y), **alike),
        "one tensor": as_records(torch.tensor(np.column_stack([x, g, y])), group=-2, target=-1, **alike),
        "tensor data set": as_records(TensorDataset(torch.tensor(x), torch.tensor(y), torch.tensor(g)), **alike),
        "data set of tuples": as_records(Items(tuples), **alike),
        "data set of dicts": as_records(Items(rows), **ROLES),
        "subset": as_records(Subset(Items(rows), range(len(rows))), **ROLES),
        "list of dicts": as_records(rows, **ROLES),
        "function": as_records(lambda: frame, **ROLES),
    }


@settings(max_examples=30, phases=[Phase.generate])
@given(table=tables)
def test_the_same_table_gives_the_same_records_whatever_its_container(table):
    found = containers(table)
    assert all(same(each, found["frame"]) for each in found.values())
    first = found["frame"]
    np.testing.assert_array_equal(first.features.numpy(), np.column_stack([table["a"], table["b"]]).astype(np.float32))
    assert first.sensitive.tolist() == table["g"] and first.target.tolist() == table["y"]
    assert first.columns.groups == ("0", "1", "2") and first.columns.classes == ("0", "1")


@settings(max_examples=30, phases=[Phase.generate])
@given(table=tables)
def test_a_table_in_python_gives_the_records_of_its_csv_file(tmp_path_factory, table):
    columns = Columns.model_validate(
        {
            "features": [{"name": "a", "low": -1e6, "high": 1e6, "scale": "signed"}, {"name": "g"}],
            "sensitive": {"name": "b", "edges": [0.5]},
            "targets": [{"name": "y", "low": 0, "high": 3}],
        }
    )
    path = tmp_path_factory.mktemp("csv") / "train.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    assert same(as_records(pd.DataFrame(table), columns=columns), read_table(path, columns))


def test_a_number_is_a_column_of_a_matrix_counted_from_either_end():
    matrix = np.array([[0.0, 10, 1], [1, 11, 0], [2, 12, 1]])
    for group in (2, -1, "x2", matrix[:, 2]):
        records = as_records(matrix, group=group, features=[1, "x0"])
        assert records.sensitive.tolist() == [1, 0, 1] and records.features.tolist() == [[10, 0], [11, 1], [12, 2]]
    assert as_records(matrix, group=2).columns.feature_names == ("x0", "x1")


@pytest.mark.parametrize("kind", ["text", "category", "object", "truth values", "whole floats"])
def test_groups_and_classes_of_any_kind_are_numbered_in_the_declared_order_or_in_their_own(kind):
    values = {
        "text": (pd.Series(["b", "a", "c", "a"]), ["c", "a", "b"]),
        "category": (pd.Series(["b", "a", "c", "a"]).astype("category"), ["c", "a", "b"]),
        "object": (pd.Series(["b", "a", "c", "a"], dtype=object), ["c", "a", "b"]),
        "truth values": (pd.Series([True, False, True, False]), [True, False]),
        "whole floats": (pd.Series([2.0, 1.0, 10.0, 1.0]), [10, 1, 2]),
    }[kind]
    frame = pd.DataFrame({"x": [0.0, 1, 2, 3], "v": values[0]})
    declared, own = (as_records(frame, group="v", groups=values[1]), as_records(frame, group="v"))
    as_target = as_records(frame, target="v", classes=values[1])
    expected = [values[1].index(value) for value in frame["v"].tolist()]
    assert declared.sensitive.tolist() == as_target.target.tolist() == expected
    natural = sorted(set(frame["v"].tolist()))
    assert own.sensitive.tolist() == [natural.index(value) for value in frame["v"].tolist()]


def test_the_order_that_a_container_declares_is_the_order_of_the_groups():
    ordered = pd.Categorical(["low", "high", "low"], categories=["low", "middle", "high"])
    records = as_records(pd.DataFrame({"x": [1.0, 2, 3], "v": ordered}), group="v")
    assert records.columns.groups == ("low", "middle", "high") and records.sensitive.tolist() == [0, 2, 0]
    features = datasets.Features({"x": datasets.Value("float32"), "v": datasets.ClassLabel(names=["no", "yes"])})
    hub = datasets.Dataset.from_dict({"x": [1.0, 2.0], "v": [1, 0]}, features=features)
    records = as_records(hub, target="v")
    assert records.columns.classes == ("no", "yes") and records.target.tolist() == [1, 0]


def test_a_selection_of_a_hub_data_set_is_what_is_read():
    hub = datasets.Dataset.from_dict({"x": [0.0, 1, 2, 3], "g": [0, 1, 0, 1]}).select([3, 0, 2])
    assert as_records(hub, group="g").features[:, 0].tolist() == [3, 0, 2]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_regression_has_any_number_of_targets_in_every_form(count):
    values = np.random.default_rng(0).random((6, count))
    names = [f"t{place}" for place in range(count)]
    frame = pd.DataFrame({"x": np.arange(6.0), "g": [0, 1] * 3, **{name: values[:, j] for j, name in enumerate(names)}})
    bounded = [{"name": name, "low": 0, "high": 2} for name in names]
    x, g = frame[["x"]].to_numpy(), frame["g"].to_numpy()
    given = values[:, 0] if count == 1 else values
    for records in (
        as_records(frame, group="g", targets=names),
        as_records(x, group=g, targets=given),
        as_records(TensorDataset(torch.tensor(x), torch.tensor(given), torch.tensor(g))),
    ):
        assert records.target.shape == (6, count) and records.columns.inputs == 1
        np.testing.assert_allclose(records.target.numpy(), values, rtol=1e-6)
    np.testing.assert_allclose(as_records(frame, group="g", targets=bounded).target.numpy(), values / 2, rtol=1e-6)
    if count == 1:
        assert same(as_records(frame, group="g", targets="t0"), as_records(frame, group="g", targets=["t0"]))


def test_a_group_may_be_an_input_and_a_number_may_be_cut_into_groups():
    frame = pd.DataFrame({"age": [20.0, 30, 40, 60], "sex": ["f", "m", "f", "m"]})
    by_sex = as_records(frame, group="sex", features=["age", {"name": "sex", "categories": ["m", "f"]}])
    assert by_sex.features.tolist() == [[20, 0, 1], [30, 1, 0], [40, 0, 1], [60, 1, 0]]
    assert by_sex.sensitive.tolist() == [0, 1, 0, 1]
    for records in (
        as_records(frame, group="age", edges=[30, 50], features=["age"]),
        as_records(frame, group={"name": "age", "edges": [30, 50]}, features=["age"]),
        as_records(frame[["age"]].to_numpy(), group=frame["age"], edges=[30, 50]),
    ):
        assert records.sensitive.tolist() == [0, 1, 1, 2] and records.features[:, 0].tolist() == [20, 30, 40, 60]
    assert as_records(frame, group="age", edges=[30], features=["age"]).columns.groups == ("age<30", "age>=30")


def test_dates_of_a_frame_or_an_array_are_those_that_their_text_says():
    days = ["2000-05-04", None, "2019-12-31"]
    born = {"name": "born", "kind": "date", "low": "1990-01-01", "high": "2020-12-31", "missing": True}
    asked = {"features": [{**born, "fill": "1991-01-01"}]}
    wanted = as_records({"born": days}, **asked).features.tolist()
    times = pd.to_datetime(pd.Series(days)) + pd.Timedelta(hours=23)
    for cells in (times, times.dt.tz_localize("Asia/Tokyo"), times.astype("datetime64[ns]").to_numpy()):
        for source in ({"born": cells}, pd.DataFrame({"born": cells})):
            assert as_records(source, **asked).features.tolist() == wanted


def test_images_are_rows_of_numbers_with_a_count():
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4))
    kinds = np.array([0, 1, 0, 1, 1])
    pixels = [{"name": "x", "count": 12, "low": 0, "high": 255}]
    expected = images.reshape(5, 12) / 255
    whole = as_records(images, target=kinds, features=pixels)
    items = as_records([(image, int(kind)) for image, kind in zip(images, kinds, strict=True)], features=pixels)
    pictures = pytest.importorskip("PIL.Image")
    hub = datasets.Dataset.from_dict(
        {"x": [pictures.fromarray(image.astype(np.uint8)) for image in images], "y": kinds},
        features=datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")}),
    )
    for records in (whole, items, as_records(hub, target="y", features=pixels)):
        np.testing.assert_allclose(records.features.numpy(), expected, rtol=1e-6)
        assert records.target.tolist() == kinds.tolist()
    assert as_records(images, target=kinds).columns.features[0].count == 12


def test_a_declaration_of_other_records_reads_these_and_records_that_are_declared_stay_as_they_are():
    frame = pd.DataFrame({"x": [0.0, 1, 2], "g": ["a", "b", "c"]})
    train = as_records(frame, group="g")
    rest = as_records(frame.iloc[[1]], columns=train.columns)
    assert rest.sensitive.tolist() == [1] and rest.columns == train.columns
    assert as_records(train) is train and as_records(train, columns=train.columns) is train
    assert train.rows_by_group == {"a": 1, "b": 1, "c": 1} and train.kind == "pandas.DataFrame"
    with pytest.raises(BadRecords, match="under other columns: sensitive is"):
        as_records(train, columns=as_records(frame, group="g", groups=["c", "b", "a"]).columns)
    with pytest.raises(ExperimentError, match="group is given, and these records are declared already"):
        as_records(train, group="g")


FRAME = pd.DataFrame({"x": [0.0, 1, 2, 3], "w": ["u", "v", "u", "v"], "g": [0, 1, 0, 1], "y": ["n", "y", "n", "y"]})
PLAIN = FRAME[["x", "g", "y"]]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(1.0, 0)])


@pytest.mark.parametrize(
    ("source", "declared", "reason"),
    [
        (FRAME, {"group": "g"}, "column 'w' holds text; declare its public categories in features"),
        (PLAIN, {"group": "sex"}, "group is 'sex', and pandas.DataFrame has no such column; it has 'x', 'g', 'y'"),
        (PLAIN, {"group": "g", "target": "y", "features": ["z"]}, "features is 'z', and .* has no such column"),
        (
            PLAIN.assign(x=[0, np.nan, 2, 3]),
            {"group": "g", "target": "y"},
            r"row 1 \(the first record is row 0\), column",
        ),
        (
            PLAIN.assign(x=[0, 1, np.inf, 3]),
            {"group": "g", "target": "y"},
            "row 2 .*column 'x' is inf; a finite number",
        ),
        (PLAIN.assign(x=[0, 1, 2, 1e39]), {"group": "g", "target": "y"}, "row 3 .*that a float32 holds"),
        (
            PLAIN,
            {"group": "g", "target": "y", "classes": ["n", "z"]},
            "row 1 .*column 'y' is 'y'; declared are 'n', 'z'",
        ),
        (
            PLAIN.assign(y=["n", None, "n", "y"]),
            {"target": "y"},
            "row 1 .*column 'y' is empty",
        ),
        (
            PLAIN.assign(g=[0, None, 0, 1]),
            {"group": "g"},
            "column 'g' holds numbers that are not all whole; edges= cuts",
        ),
        (
            PLAIN.assign(g=[0.5, 1, 0, 1]),
            {"group": "g"},
            "column 'g' holds numbers that are not all whole; edges= cuts",
        ),
        (PLAIN.assign(g=1), {"group": "g"}, "column 'g' holds one value only; declare groups=, two or more"),
        (PLAIN.iloc[:0], {"group": "g", "groups": [0, 1], "target": "y", "classes": ["n", "y"]}, "holds no records"),
        (
            PLAIN.assign(x=pd.Timestamp("2020")),
            {"target": "y"},
            r"column 'x' holds dates; .* as in {'name': 'x', 'kind': 'date'",
        ),
        (pd.concat([PLAIN, PLAIN[["x"]]], axis=1), {"target": "y"}, "has two columns 'x'; rename one"),
        (PLAIN, {"target": "y", "group": [0, 1]}, "column 'group' has 2 rows; there are 4 records"),
        (PLAIN, {"target": "y", "names": ["a"]}, "names are for the columns of a matrix"),
        (np.zeros((3, 2)), {"names": ["a", "a"]}, "has 2 columns and 1 different names; give one for each"),
        (np.zeros((3, 2)), {"group": 2}, "group is 2, and numpy.ndarray has 2 columns, counted from 0"),
        (
            np.zeros((3, 2)),
            {"features": [{"name": "x", "count": 3}]},
            "column 'x' has 2 numbers a record; 3 are declared",
        ),
        (np.zeros((3, 2)), {"features": [{"name": "x"}]}, "column 'x' has 2 numbers a record; declare count = 2"),
        (np.zeros((3, 2)), {"group": np.zeros((3, 2))}, "column 'group0' holds one value only; declare groups="),
        (np.zeros((3, 2), dtype=complex), {}, "is complex128; numbers, truth values or text"),
        (np.zeros(()), {}, "is a single value; one cell a record is expected"),
        (
            [(torch.zeros(2), 0), (torch.zeros(3), 1)],
            {},
            r"column 'x' has shape \(3,\) in row 1 and \(2,\) in row 0; pad",
        ),
        ([(1.0, 0), (1.0,)], {}, "row 1 is no tuple of 2, as row 0 is"),
        ([{"x": 1.0}, {"z": 1.0}], {}, "row 1 has other keys than row 0, which has x"),
        ([(1.0, 0, 0, 0)], {}, r"gives 4 things a record; \(x,\), \(x, y\), \(x, y, group\) or a dict"),
        ([], {}, "list holds no records"),
        ({}, {}, "dict has no columns"),
        ({"x": 3}, {}, "column 'x' is a single value"),
        (Stream(), {}, "has no length, and records are sampled by their place; pass list"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})}), {}, "has several splits; pass one"),
        (3, {}, "records in int cannot be read; pass a torch tensor, a NumPy array"),
        ("train.csv", {}, "records in str cannot be read"),
        (lambda: lambda: PLAIN, {}, "returned a function again"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_remedy(source, declared, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadRecords, match=reason):
            as_records(source, **declared)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"groups": [0, 1]}, "groups is given and group is not"),
        ({"classes": [0, 1]}, "classes is given and target is not"),
        ({"edges": [1]}, "edges is given and group is not"),
        ({"group": "g", "groups": [0, 1], "edges": [1]}, "groups and edges are both given"),
        ({"group": "g", "edges": [2, 1]}, "each must be above the one before it"),
        ({"group": "g", "edges": [math.nan]}, "finite"),
        ({"group": "g", "groups": [0]}, "at least two different ones"),
        ({"target": "y", "targets": "x"}, "both target .* and targets .* keep one"),
        ({"target": "y", "features": ["x", "x"]}, "'x' is declared twice"),
        ({"target": "y", "features": [{"name": "x", "lo": 1}]}, "nearest known"),
        (
            {"target": "y", "columns": as_records(PLAIN, target="y", features=["x"]).columns},
            "target and columns are both",
        ),
    ],
)
def test_a_declaration_that_does_not_hold_together_is_refused(declared, reason):
    with pytest.raises(ExperimentError, match=reason):
        as_records(PLAIN, **declared)


def test_importing_the_data_package_imports_no_library_of_containers():
    import subprocess
    import sys

    code = "import sys, fedsw.data; print([m for m in ('pandas', 'datasets', 'pyarrow') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
