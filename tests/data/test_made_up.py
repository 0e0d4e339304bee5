"""Laws of made-up records: every cell is as declared, and inputs are what cells of the declared form are read as."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.data.columns.declaration import Columns
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.data.made_up import made_up_cells, made_up_inputs, made_up_targets

FEATURES = [
    {"name": "age", "kind": "integer", "low": 18, "high": 90, "missing": ["", "?"], "fill": 40},
    {"name": "pay", "low": 0, "high": 200_000, "scale": "signed", "thousands": "."},
    {"name": "free"},
    {"name": "born", "kind": "date", "format": "%d.%m.%Y", "low": "1920-01-01", "high": "2020-12-31"},
    {"name": "member", "kind": "boolean"},
    {"name": "job", "categories": ["a", "b", "None"], "missing": ["NA"], "fill": "b"},
    {"name": "ward", "kind": "code", "categories": ["007", "7"]},
    {"name": "x", "count": 3, "low": -1, "high": 1},
]
GROUPS = [{"name": "sex", "values": ["f", "m"]}, {"name": "age", "edges": [30, 50]}, {"name": "z", "edges": [0]}]


@pytest.mark.parametrize("group", GROUPS, ids=["values", "cut from an input", "cut"])
@pytest.mark.parametrize("regression", [False, True])
def test_made_up_cells_are_read_without_a_fault_and_as_made_up_inputs_are(group, regression):
    more = {"targets": [{"name": "y", "kind": "integer", "low": 1, "high": 9}]} if regression else {}
    more |= {} if regression else {"target": {"name": "y", "values": ["no", "yes"], "kind": "category"}}
    never = {**FEATURES[0], "missing": [], "fill": None}  # a group is never missing
    features = [never, *FEATURES[1:]] if group["name"] == "age" else FEATURES
    columns = Columns.model_validate({"features": features, "sensitive": group, "unit": "who", "decimal": ",", **more})
    cells = made_up_cells(columns, 400, seed=3)
    assert tuple(cells) == columns.names
    read = encoded([Chunk(1, cells)], columns, where="made-up", counted="c")
    inputs = made_up_inputs(columns, 400, seed=3)
    assert inputs.shape == read.features.shape and len(read.unit.unique()) == 400
    for place, name in enumerate(columns.feature_names):
        ours, theirs = inputs[:, place], read.features[:, place].numpy()
        assert abs(ours.mean() - theirs.mean()) < 0.25 and abs(ours.min() - theirs.min()) < 0.1, name
        if "=" in name or "missing" in name or name == "member":
            assert set(np.unique(ours)) == set(np.unique(theirs)) == {0.0, 1.0}
    if regression:
        targets = made_up_targets(columns, 400, seed=3)
        assert targets.shape == read.target.shape and targets.min() >= 0 and targets.max() <= 1
