"""Laws of what an experiment may name: the shipped tasks say what they go with, in words that the schema knows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedsw._tools.settings import ExperimentError
from fedsw.data.settings import SOURCES
from fedsw.data.sources import Shape
from fedsw.experiment import parse_experiment
from fedsw.experiment.load import shipped_experiments
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.task_kinds import MODELS, TASKS, task_facts
from fedsw.experiment.trust import trust_models
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Task
from fedsw.runs.report.plots import PICTURES
from tests.federations import small

SOURCED = {*SOURCES, "files"}


def test_the_shipped_tasks_are_the_files_of_their_folder():
    tasks = dict(TASKS.items())
    assert set(tasks) == {
        "adaptation", "autoencoder", "classification", "generation", "regression", "representation", "synthesis",
    }  # fmt: skip
    assert all(isinstance(kind, type) and issubclass(kind, Task) and kind.__doc__ for kind in tasks.values())


@pytest.mark.parametrize("name", TASKS.names())
def test_what_a_task_goes_with_exists(name):
    facts = task_facts(name)
    assert set(facts.models) <= set(MODELS)
    assert set(facts.penalties) <= set(PENALTIES)
    assert set(facts.trusts) <= set(trust_models())
    assert {"none", "central"} <= set(facts.trusts) or set(facts.trusts) == {"distributed", "sketch", "sketch-local"}
    assert set(facts.sources) <= SOURCED
    assert set(facts.figures) <= set(PICTURES)


def test_every_model_penalty_trust_and_source_serves_some_task():
    every = [task_facts(name) for name in TASKS]
    for key, known in (
        ("models", set(MODELS)),
        ("penalties", set(PENALTIES)),
        ("trusts", set(trust_models())),
        ("sources", {name for name in SOURCED if name not in SOURCES or not SOURCES.get(name).tasks}),
    ):
        assert set().union(*(getattr(facts, key) for facts in every)) == known
    assert {task for _, source in SOURCES.items() for task in source.tasks} <= set(TASKS)


def test_every_shipped_experiment_is_of_a_shipped_task_with_what_it_goes_with():
    for experiment in shipped_experiments():
        facts = task_facts(experiment.objective.task)
        assert experiment.model.kind in facts.models and experiment.data.source in facts.sources


def test_checking_an_experiment_of_a_shipped_task_imports_nothing_that_computes():
    code = (
        "from fedsw.experiment import parse_experiment; parse_experiment({'name': 'a'});"
        "import sys; assert 'fedsw.learning.tasks.kinds._classification' in sys.modules;"
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_naming_a_task_of_ones_own_imports_nothing_until_it_is_made_concrete():
    experiment = parse_experiment({"name": "a"}, ("objective.task=no_such_module:Task", "model.kind=neither:build"))
    assert (experiment.objective.task, experiment.model.kind) == ("no_such_module:Task", "neither:build")
    with pytest.raises(ExperimentError, match="objective.task is 'no_such_module:Task'.*cannot be imported"):
        Problem.from_experiment(experiment)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("groups", [2, 5])
def test_a_classification_has_any_number_of_classes_and_groups(tmp_path, classes, groups):
    columns = {
        "features": [{"name": "x"}],
        "sensitive": {"name": "a", "values": [str(i) for i in range(groups)]},
        "target": {"name": "y", "values": [str(i) for i in range(classes)]},
    }
    raw = {"name": "a", "data": {"source": "files", "columns": columns}}
    for penalty, cells in (("statistical-parity", groups), ("equality-of-odds", groups * classes)):
        problem = Problem.from_experiment(parse_experiment(raw, (f"objective.penalty={penalty}",)))
        assert problem.dimension == (1 if classes == 2 else classes)
        assert len(problem.objective.cells) == cells


def test_the_number_of_targets_is_the_dimension_of_a_regression():
    kind = TASKS.get("regression")()
    assert [kind.dimension(Shape(4, ("a", "b"), 0, t), small().model) for t in (1, 2, 9)] == [1, 2, 9]
