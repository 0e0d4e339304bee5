"""Cells from Python's containers: masks are missing cells, labels of rows are respected, whole numbers are exact."""

from __future__ import annotations

import numpy as np
import pandas as pd
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
