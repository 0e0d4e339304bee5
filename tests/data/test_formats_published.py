"""Published tables, read as a user would read them; skipped where the files are missing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw.data import as_records, read_table
from fedsw.experiment import parse_experiment
from fedsw.federation.engines.driver import run

GIVEN = Path(os.environ.get("FEDSW_DATA", Path(__file__).parents[3] / "shared" / "data"))
RACES = {"asian": 897, "black": 1343, "hisp": 1027, "white": 18716}
LSAT = {"name": "lsat", "low": 10, "high": 50}
GPA = {"name": "ugpa", "low": 0, "high": 4}


def found(*names: str) -> Path:
    path = GIVEN.joinpath(*names)
    if not path.is_file():
        pytest.skip(f"there is no {path}; set FEDSW_DATA to test against it")
    return path


@pytest.fixture(scope="module")
def law() -> pd.DataFrame:
    """The Law School records of the four groups that Xian et al. compare."""
    frame = pd.read_csv(found("law_school", "bar_pass_prediction.csv"))[["lsat", "ugpa", "race1", "pass_bar"]]
    return frame[frame["race1"].isin(list(RACES))].reset_index(drop=True)


def test_law_school_by_race_has_the_published_groups_and_race_may_be_an_input(law):
    race = {"name": "race1", "categories": list(RACES)}
    plain = as_records(law, group="race1", groups=list(RACES), features=[LSAT], targets=[GPA])
    declared = as_records(law, group="race1", groups=list(RACES), features=[LSAT, race], targets=[GPA])
    assert plain.rows_by_group == declared.rows_by_group == RACES
    assert torch.equal(plain.sensitive, declared.sensitive) and plain.target.shape == (len(law), 1)
    assert torch.equal(declared.features[:, 1:].argmax(1), declared.sensitive)
    np.testing.assert_allclose(plain.target[:, 0].numpy(), law["ugpa"].to_numpy() / 4, rtol=1e-6)


def test_law_school_cut_at_edges_of_the_lsat_is_what_pandas_cuts(law, tmp_path):
    edges = [30.0, 36.5, 40.0]
    group = {"name": "lsat", "edges": edges}
    records = as_records(law, group=group, features=[LSAT], target="pass_bar", classes=[0, 1])
    expected = pd.cut(law["lsat"], [-np.inf, *edges, np.inf], right=False, labels=False)
    assert records.sensitive.tolist() == expected.tolist() and min(records.rows_by_group.values()) > 1000
    assert records.target.tolist() == law["pass_bar"].astype(int).tolist()
    law.assign(pass_bar=law["pass_bar"].astype(int)).to_csv(tmp_path / "train.csv", index=False)
    again = read_table(tmp_path / "train.csv", records.columns)
    assert all(
        torch.equal(getattr(records, name), getattr(again, name)) for name in ("features", "sensitive", "target")
    )


def test_communities_cut_at_an_edge_have_the_published_groups():
    names = [str(place) for place in range(128)]
    frame = pd.read_csv(found("communities", "communities.data"), header=None, names=names, na_values="?")
    records = as_records(
        frame, group="7", edges=[0.065], features=["5", "7"], targets={"name": "127", "low": 0, "high": 1}
    )
    assert sorted(records.rows_by_group.values()) == [970, 1024]


def test_a_run_on_law_school_in_memory_ends(law, tmp_path):
    columns = as_records(law, group="race1", groups=list(RACES), features=[LSAT, GPA], target="pass_bar").columns
    train, held_out = (as_records(law.iloc[place::2], columns=columns) for place in range(2))
    raw = {
        "name": "law",
        "data": {"source": "object", "held_out_overlap": "allow"},  # equal rows of different people
        "training": {"rounds": 3},
        "privacy": {"epsilon": 2.0},
    }
    result = run(parse_experiment(raw), data=train, held_out=held_out, runs=tmp_path)
    assert result.summary["status"] == "completed" and 0 <= result.summary["held_out"]["accuracy"] <= 1
    assert result.experiment.data.objects[0].records == len(train)
