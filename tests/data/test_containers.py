"""Cells from Python's containers: masks are missing cells, labels of rows are respected, whole numbers are exact."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedsw
from fedsw.data import BadRecords

GROUP, TARGET = [0, 1] * 3, [0, 1, 1, 0, 1, 0]


def masked(values, *rows, **other) -> np.ma.MaskedArray:
    array = np.ma.masked_array(values, mask=False, **other)
    for row in rows:
        array[row] = np.ma.masked
    return array


FILLED = {"name": "x", "missing": [""], "fill": 0.5, "low": 0.0, "high": 10.0}


@pytest.mark.parametrize(
    "column",
    [
        masked([1.0, 2.0, -9999.0, 4.0, 5.0, 6.0], 2),
        masked([1, 2, -9999, 4, 5, 6], 2),
        [1.0, 2.0, np.ma.masked, 4.0, 5.0, 6.0],
    ],
)
def test_a_masked_cell_is_a_missing_one_and_never_the_number_under_the_mask(column):
    table = {"x": column, "g": GROUP, "t": TARGET}
    with pytest.raises(BadRecords, match="row 2 .*column 'x' is (nan|empty)"):
        fedsw.as_records(table, group="g", target="t")
    found = fedsw.as_records(table, group="g", target="t", features=[FILLED])
    expected = fedsw.as_records(
        {**table, "x": [1.0, 2.0, None, 4.0, 5.0, 6.0]}, group="g", target="t", features=[FILLED]
    )
    assert torch.equal(found.features, expected.features)


def test_masks_of_matrices_rows_labels_and_groups_are_missing_cells_too():
    for matrix in (np.arange(12.0).reshape(6, 2), np.arange(12).reshape(6, 2)):
        with pytest.raises(BadRecords, match="row 2 .*column 'x0' is nan"):
            fedsw.as_records(masked(matrix, (2, 0)), group=GROUP, target=TARGET)
        rows = [masked(row, *([0] if place == 2 else [])) for place, row in enumerate(matrix)]
        with pytest.raises(BadRecords, match="row 2 .*column 'x0' is (nan|empty)"):
            fedsw.as_records({"x": rows, "g": GROUP, "t": TARGET}, group="g", target="t")
    for group, target in ((masked(GROUP, 3), TARGET), (GROUP, masked(TARGET, 3)), (masked(list("ababab"), 3), TARGET)):
        with pytest.raises(BadRecords, match="row 3 .*(neither text nor a whole number|is empty)"):
            fedsw.as_records({"x": np.zeros(6)}, group=group, target=target)
    whole = masked(np.arange(12.0).reshape(6, 2))
    assert torch.equal(fedsw.as_records(whole, group=GROUP).features, torch.arange(12.0).reshape(6, 2))


def test_a_series_of_the_same_labels_is_put_in_the_order_of_the_rows_and_any_other_is_refused():
    """It had been taken by its place: every record had another one's group."""
    frame = pd.DataFrame({"x": np.arange(6.0), "t": TARGET}, index=[10, 20, 30, 40, 50, 60])
    group = pd.Series(list("aabbab"), index=frame.index)
    expected = fedsw.as_records(frame, group=group, target="t")
    found = fedsw.as_records(frame, group=group.sample(frac=1, random_state=1), target="t")
    assert expected.sensitive.tolist() == [0, 0, 1, 1, 0, 1] == found.sensitive.tolist()
    both = {"x": frame["x"], "t": frame["t"].iloc[::-1], "g": group.iloc[::-1]}
    assert torch.equal(fedsw.as_records(both, group="g", target="t").target, expected.target)
    for other in (group.reset_index(drop=True), group.iloc[:5], group.rename({60: 50}), group.rename({60: 70})):
        with pytest.raises(BadRecords, match=r"pandas\.Series whose index is not that of the rows"):
            fedsw.as_records(frame, group=other, target="t")
    assert fedsw.as_records(frame, group=group.to_numpy(), target="t").sensitive.tolist() == [0, 0, 1, 1, 0, 1]
    assert fedsw.as_records(frame[["x"]].to_numpy(), group=other).sensitive.tolist() == [0, 0, 1, 1, 0, 1]


def test_a_whole_number_that_float32_would_change_is_refused_and_every_other_is_kept():
    def read(values, **more):
        return fedsw.as_records({"x": values, "g": GROUP, "t": TARGET}, group="g", target="t", **more)

    kept = [0, 1, 2**24, -(2**24), 2**24 + 2, 2**30]
    assert read(kept).features.flatten().tolist() == kept
    odd = 2**24 + 1
    for values in (
        [*kept[:5], odd],
        [*map(float, kept[:5]), float(odd)],
        np.array([*kept[:5], 2**53 + 1]),
        [*kept[:5], -odd],
    ):
        with pytest.raises(BadRecords, match="row 5 .*whole numbers beyond 16,777,216 .*declare low and high"):
            read(values)
    assert read([*kept[:5], odd + 0.5]).features[5] == np.float32(odd + 0.5), "no whole number"
    assert read([*kept[:5], 1.5e20]).features[5] == np.float32(1.5e20), "a measurement"
    bounded = read([*kept[:3], 5, 6, odd], features=[{"name": "x", "low": 0, "high": 2**25}])
    assert bounded.features[5] == np.float32(odd / 2**25)
    with pytest.raises(BadRecords, match="row 5 .*whole numbers beyond"):
        fedsw.as_records({"x": [0.0] * 6, "g": GROUP, "y": [*kept[:5], odd]}, group="g", targets="y")


class Lent:
    """A frame of another library, which lends its columns as Arrow's, as polars does."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return self._table.__arrow_c_stream__(requested)


@pytest.mark.parametrize("coded", [False, True])
def test_frames_of_arrow_are_read_as_the_same_data_frame_is(coded):
    days = pd.to_datetime(["2019-01-31", "2020-02-29"] * 20)
    frame = pd.DataFrame({"age": np.arange(40) % 7, "seen": days, "sex": list("fm") * 20, "ill": ["no", "yes"] * 20})
    frame["dose"] = np.where(frame.age > 3, np.nan, 0.5)
    if coded:
        frame["sex"] = frame.sex.astype("category")
    table = pa.Table.from_pandas(frame)
    inputs = [
        {"name": "age", "low": 0, "high": 9},
        {"name": "seen", "kind": "date", "low": "2019-01-01", "high": "2020-12-31"},
        {"name": "dose", "low": 0, "high": 1, "missing": [""], "fill": 0.5},
    ]
    wanted = fedsw.as_records(frame, group="sex", target="ill", features=inputs)
    for lent in (table, pa.RecordBatch.from_pandas(frame), Lent(table)):
        found = fedsw.as_records(lent, group="sex", target="ill", features=inputs)
        assert found.columns == wanted.columns and torch.equal(found.features, wanted.features)
        assert torch.equal(found.sensitive, wanted.sensitive) and torch.equal(found.target, wanted.target)


def test_intervals_of_a_cut_are_values_by_their_text():
    ages = np.random.default_rng(0).integers(0, 40, 60)
    frame = pd.DataFrame({"age": ages, "band": pd.cut(ages, [-1, 10, 20, 40]), "ill": ["no", "yes"] * 30})
    records = fedsw.as_records(frame, group="band", target="ill", features=["age"])
    assert records.columns.groups == ("(-1, 10]", "(10, 20]", "(20, 40]")
    assert records.sensitive.tolist() == np.digitize(ages, [10, 20], right=True).tolist()
    loose = frame.assign(band=frame.band.astype(object))
    assert fedsw.as_records(loose, columns=records.columns).sensitive.tolist() == records.sensitive.tolist()


def test_a_series_of_other_labels_is_put_in_order_or_refused():
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0]}, index=list("abcd"))
    sex, ill = pd.Series(list("ffmm"), index=frame.index), pd.Series([0, 1, 0, 1], index=frame.index)
    wanted = fedsw.as_records(frame, group=sex, target=ill)
    mixed = fedsw.as_records(frame, group=sex[::-1], target=ill.sample(frac=1, random_state=1))
    assert torch.equal(mixed.sensitive, wanted.sensitive) and torch.equal(mixed.target, wanted.target)
    with pytest.raises(BadRecords, match="index is not that of the rows"):
        fedsw.as_records(frame, group=sex.reset_index(drop=True), target=ill)
