"""Rows that a table's generator makes have the classes and groups of its cells, whichever of these the cells have."""

from __future__ import annotations

import itertools

import pytest

import fedsw
from fedsw.desk.own_data.synthetic_table import learnt
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.learning.sketches.from_settings import table_of
from fedsw.learning.tasks.measures import made_table, measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from tests.laws.runs.test_audited_folders import sketched, table

CELLS = [
    {"labels": labels, "groups": groups, "crossed": crossed}
    for labels, groups, crossed in itertools.product((True, False), (True, False), ("all", "class"))
    if not (labels and crossed == "class")
]


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_made_rows_have_the_classes_and_groups_of_the_cells_that_they_are_of(cells):
    experiment = parse_experiment(sketched(**cells), ("privacy.trust=sketch",))
    problem, columns = Problem.from_experiment(experiment), experiment.data.columns
    network = problem.build_model().eval()
    made = made_table(network, columns, table_of(experiment), 400, labels=cells["labels"])
    assert {len(column) for column in made.values()} == {400}
    assert not cells["labels"] or made["y"].count("a") == 200
    assert not cells["groups"] or made["sex"].count("f") == 200
    both = sum(pair == ("a", "f") for pair in zip(made["y"], made["sex"], strict=True))
    assert not (cells["labels"] and cells["groups"]) or both == 100
    report = measure(problem, fedsw.as_records(table(60), columns=columns), network, arrays=False).report
    assert set(report) == ({"sw2", "accuracy"} if cells["labels"] else {"sw2"})


def test_no_table_is_drawn_whose_class_was_not_measured(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.make()
    directory.write_config(parse_experiment(sketched(labels=False), ("privacy.trust=sketch",)), "inprocess")
    with pytest.raises(ExperimentError, match=r"measured no class .*'y': set sketch\.labels"):
        learnt(directory.path)
