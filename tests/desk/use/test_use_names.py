"""Groups and classes have their declared names wherever a person reads them, and keep their places in the files."""

from __future__ import annotations

import json

import pytest

from fedsw.cli.app import main
from fedsw.data.columns.declaration import Columns
from fedsw.privacy.accounting import Ledger
from fedsw.runs.accounts import read_ledger
from fedsw.runs.group_names import Names, names_of, names_of_plan
from fedsw.runs.report.metric_names import metric_name
from fedsw.runs.report.plots import draw_outputs
from fedsw.runs.run_files import names_in
from fedsw.runs.view import read_run

from .conftest import COLUMNS, INCOME

NAMES = Names(("female", "male"), ("low", "high"), 1)


@pytest.mark.parametrize(
    ("cell", "said"),
    [("A=0", "female"), ("Y=1,A=0", "high,female"), ("Y=0,A=1", "low,male"), ("A=2", "A=2"), ("records", "records")],
)
def test_a_stratum_is_called_by_the_names_of_its_class_and_group(cell, said):
    assert NAMES.cell(cell) == said


def test_a_ledger_is_read_by_declared_names_and_kept_by_numbers(classifier, capsys):
    account = read_ledger(classifier)
    assert set(account["epsilon_by_group"]) == {"female", "male"} == {entry["group"] for entry in account["entries"]}
    with Ledger.open(classifier / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.groups == ("A=0", "A=1")
    assert main(["show", str(classifier), "ledger"]) == 0
    shown = capsys.readouterr().out
    assert "female" in shown and "A=0" not in shown


def test_figures_name_the_groups(classifier):
    figure = draw_outputs(read_run(classifier))
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["female", "male"]


def test_names_come_from_the_run_s_beginning_and_else_from_its_columns(classifier, tmp_path):
    assert json.loads((classifier / "plan.json").read_text())["names"] == NAMES.plain()
    assert names_in(classifier) == NAMES
    assert names_in(tmp_path) == Names() and names_in(tmp_path, Columns.model_validate(COLUMNS | INCOME)) == NAMES
    (tmp_path / "plan.json").write_text('{"names": {"groups": "abc"}}')
    assert names_in(tmp_path) == Names()


def test_a_class_that_is_a_number_says_whose_it_is():
    columns = Columns.model_validate(COLUMNS | {"target": {"name": "ill", "values": [0, 1]}})
    called = names_of(columns)
    assert metric_name("disparate_impact", called) == "DI of ill = 1" and called.label(0) == "ill = 0"
    assert names_of_plan({"names": called.plain()}, columns).label(1) == "ill = 1"
    words = Columns.model_validate(COLUMNS | INCOME)
    assert metric_name("selection_rate", names_of(words)) == "rate of high"
