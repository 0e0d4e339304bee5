"""Laws of tables that are said to hold nobody's private record: equal cells make equal rows, not what cutting makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsw.data.columns.declaration import Columns
from fedsw.desk.own_data.apart import other_table
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.sources import load_held_out

OWN = """
name = "own"
[data]
source = "files"
held_out = "other.csv"
[data.columns]
features = [{name = "income", low = 0, high = 100, outside = "cut"}, {name = "work", categories = ["a", "b"]}]
sensitive = {name = "work", values = ["a", "b"]}
target = {name = "y", values = ["no", "yes"]}
[federation]
clients = 1
"""


def table(path: Path, incomes: list[float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (f"{income},{'ab'[place % 2]},yes" for place, income in enumerate(incomes))
    path.write_text("\n".join(["income,work,y", *rows]) + "\n")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An experiment with one client, whose incomes are mostly above their bound."""
    (tmp_path / "own.toml").write_text(OWN)
    table(tmp_path / "DATA" / "0" / "t.csv", [20, 150, 170, 180.5])
    return tmp_path


def test_rows_that_are_equal_only_after_their_numbers_were_cut_are_other_people_s(own):
    columns = load_experiment(str(own / "own.toml")).data.columns
    assert isinstance(columns, Columns)
    changes = [f"data.data_dir={own / 'DATA'}"]
    table(own / "other.csv", [30, 151, 990])
    assert load_held_out(load_experiment(str(own / "own.toml"), changes)) is not None
    assert not other_table(own / "other.csv", columns, own / "DATA", option="--held-out").doubt
    table(own / "other.csv", [30, 151, 170])
    with pytest.raises(ExperimentError, match="1 of its 3 rows are also in the private records"):
        load_held_out(load_experiment(str(own / "own.toml"), changes))
    with pytest.raises(ExperimentError, match="--held-out .*1 of its 3 rows"):
        other_table(own / "other.csv", columns, own / "DATA", option="--held-out")
