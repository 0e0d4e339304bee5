"""Laws of tables that are said to hold nobody's private record: equal cells make equal rows, not what cutting makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.data.sources import load_held_out
from fedsw.desk.own_data.apart import other_table
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import unprotected
from fedsw.runs.evaluation.evaluator import measured_on

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
    assert load_held_out(load_experiment(str(own / "own.toml"), changes).record_source) is not None
    assert not other_table(own / "other.csv", columns, own / "DATA", option="--held-out").doubt
    table(own / "other.csv", [30, 151, 170])
    with pytest.raises(ExperimentError, match="1 of its 3 rows are also in the private records"):
        load_held_out(load_experiment(str(own / "own.toml"), changes).record_source)
    with pytest.raises(ExperimentError, match="--held-out .*1 of its 3 rows"):
        other_table(own / "other.csv", columns, own / "DATA", option="--held-out")


def coarse(path: Path, seed: int, rows: int = 300, unit: bool = False) -> Path:
    """A table of few values, whose rows are equal by chance; other people's with another seed."""
    drawn = np.random.default_rng(seed).integers(0, 60, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{income},{'ab'[income % 2]},yes{f',{seed}-{row}' * unit}" for row, income in enumerate(drawn)]
    path.write_text("\n".join(["income,work,y" + ",person" * unit, *lines]) + "\n")
    return path


def held(own: Path, path: Path, *changes: str) -> Records | None:
    named = [f"data.data_dir={own / 'DATA'}", f"data.held_out={path}", *changes]
    return load_held_out(load_experiment(str(own / "own.toml"), named).record_source)


OTHERS = "data.held_out_overlap=other-people"


def test_equal_rows_of_other_people_are_measured_on_by_the_word_of_who_runs_it(own):
    coarse(own / "DATA" / "0" / "t.csv", 0)
    other = coarse(own / "other.csv", 1, 80)
    with pytest.raises(ExperimentError, match=r"of its 80 rows are also .*'other-people': the guarantee stays"):
        held(own, other)
    assert held(own, other, OTHERS) is not None
    experiment = load_experiment(str(own / "own.toml"), [OTHERS])
    assert unprotected(experiment) is None and not experiment.data.shows_private_rows
    assert "is the word of whoever ran this" in measured_on(experiment)


def test_the_word_that_equal_rows_are_other_people_s_is_not_believed_of_an_extract(own):
    private = coarse(own / "DATA" / "0" / "t.csv", 0, 90)
    lines = table(own / "DATA" / "0" / "t.csv", list(np.linspace(1, 99, 90))).read_text().splitlines()
    extract = own / "other.csv"
    extract.write_text("\n".join([lines[0], *lines[1:20], "0.5,a,yes"]) + "\n")
    with pytest.raises(ExperimentError, match="19 of its 20 rows .* only 0 of the rows equal another one.*cannot be"):
        held(own, extract, OTHERS)
    columns = load_experiment(str(own / "own.toml")).data.columns
    assert isinstance(columns, Columns)
    with pytest.raises(ExperimentError, match="--reference .*cannot be right"):
        other_table(extract, columns, own / "DATA", option="--reference", others=True)
    with pytest.raises(ExperimentError, match="is the private file"):
        held(own, private, OTHERS)


def test_a_person_by_the_declared_unit_is_nobody_else_whatever_the_word(own):
    coarse(own / "DATA" / "0" / "t.csv", 0, unit=True)
    other = coarse(own / "other.csv", 1, 80, unit=True)
    assert held(own, other, OTHERS, "data.unit=person") is not None
    other.write_text(other.read_text() + "3,b,yes,0-7\n")
    with pytest.raises(ExperimentError, match="1 values of its column 'person' are also in the private records"):
        held(own, other, OTHERS, "data.unit=person")


def test_a_verb_says_whose_word_equal_rows_rest_on_and_wants_the_clients_files(own):
    columns = load_experiment(str(own / "own.toml")).data.columns
    assert isinstance(columns, Columns)
    coarse(own / "DATA" / "0" / "t.csv", 0)
    other = coarse(own / "other.csv", 1, 80)
    with pytest.raises(ExperimentError, match="say so with --other-people"):
        other_table(other, columns, own / "DATA", option="--held-out")
    believed = other_table(other, columns, own / "DATA", option="--held-out", others=True)
    assert not believed.doubt and "is the word of whoever asked (--other-people)" in believed.word
    with pytest.raises(ExperimentError, match="--data-dir, their files, is not named"):
        other_table(other, columns, None, option="--held-out", others=True)
