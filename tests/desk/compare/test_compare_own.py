"""Laws of comparing on clients' own files: all trust models that can, a constant beside them, nothing unmeasured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.compare.comparison_grid import make_grid, read_grid, run_cell, write_grid
from fedsw.desk.compare.comparison_page import draw_utility
from fedsw.desk.compare.table import make_table
from fedsw.experiment import ExperimentError
from fedsw.privacy.accounting.lifetime import account_named

OWN = """
name = "own"
[data]
source = "files"
data_dir = "DATA"
held_out = "held-out.csv"
[data.columns]
features = [{name = "age", low = 0, high = 100}]
sensitive = {name = "sex", values = ["female", "male"]}
target = {name = "income", values = ["low", "high"]}
[training]
rounds = 2
batch_fraction = 0.5
[federation]
clients = 2
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    def write(path: Path, ages: range) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            rows = [[age, ("female", "male")[age % 2], ("low", "high")[age // 2 % 3 > 0]] for age in ages]
            csv.writer(file).writerows([["age", "sex", "income"], *rows])

    write(tmp_path / "DATA" / "0" / "train.csv", range(0, 30))
    write(tmp_path / "DATA" / "1" / "train.csv", range(30, 60))
    write(tmp_path / "held-out.csv", range(60, 96))
    (tmp_path / "own.toml").write_text(OWN)
    return tmp_path / "own.toml"


def test_every_trust_model_that_can_run_it_is_compared_with_both_references(own):
    grid = make_grid(str(own), epsilons=(1.0, 3.0), seeds=1)
    private = ("central", "distributed", "local-gradient")
    assert grid.task == "own" and grid.methods == ("reference", "unclipped", "none", *private)
    assert len(grid.cells) == 3 + 2 * len(private)
    assert (grid.about.metric, grid.about.better) == ("accuracy", "higher")
    assert grid.cells[1].experiment.clip.mode == "none" and grid.cells[2].experiment.clip.mode != "none"


def test_a_constant_stands_beside_what_was_run(own, tmp_path):
    grid = make_grid(str(own), methods=["none", "central"], epsilons=(3.0,), seeds=1)
    folder = tmp_path / "compared"
    write_grid(folder, grid)
    own.unlink()  # a comparison goes on by its own folder alone
    for cell in read_grid(folder).cells:
        assert run_cell(folder, cell)
    table = make_table(folder)
    assert table["constant"]["answers"] == "always 'high'"
    assert table["constant"]["metrics"] == {"accuracy": pytest.approx(24 / 36), "disparate_impact": 1.0}
    figure = draw_utility(table)
    (legend,) = figure.legends
    assert any("always 'high'" in text.get_text() for text in legend.get_texts())


def test_nothing_is_compared_that_nobody_measures(own):
    own.write_text(OWN.replace('held_out = "held-out.csv"', ""))
    with pytest.raises(ExperimentError, match="names no held-out records"):
        make_grid(str(own))


@pytest.mark.slow
def test_by_itself_a_comparison_puts_no_infinite_epsilon_into_an_account_and_shows_the_reference(
    own, tmp_path, monkeypatch, capsys
):
    """The account of a draft reads what was released; the reference's line says that it may not be."""
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    own.write_text(OWN.replace("[data.columns]", 'account = "people"\n[data.columns]'))
    monkeypatch.chdir(tmp_path)
    line = ["compare", str(own), "--data-dir", str(tmp_path / "DATA"), "--epsilon", "1", "--seeds", "1"]
    assert main([*line, "--set", "privacy.delta=1e-4", "--jobs", "1"]) == 0
    said = capsys.readouterr()
    assert "left out: unclipped, none" in said.err
    assert "--methods unclipped,none,reference,central,distributed,local-gradient runs them" in said.err
    shown = " ".join(said.out.split())
    assert "made by an operator who sees all records and may not be released: no account counts it" in shown
    runs = account_named("people").state().runs.values()
    kinds = [run.kind.partition(",")[0] for run in runs]  # runs of clients' own ledgers count there, too
    assert kinds == ["central", "distributed", "local-gradient"] and not any(run.unprotected for run in runs)
    grid = make_grid(str(own), methods=["reference", "none"], epsilons=(1.0,), seeds=1)
    assert [cell.method for cell in grid.cells] == ["reference", "none"] and not grid.left_out
    account_named("people").limit(3.0, 1e-6)
    assert make_grid(str(own), epsilons=(1.0,), seeds=1).methods == ("central", "distributed", "local-gradient")
