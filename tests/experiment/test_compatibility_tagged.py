"""Settings that a task, a kind of model or a trust model does not read are refused; all that is shipped still loads."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsw._tools.settings import ExperimentError
from fedsw.desk.compare import methods
from fedsw.experiment import parse_experiment
from fedsw.experiment.compatibility import only_read
from fedsw.experiment.load import load_experiment, shipped
from fedsw.experiment.task_kinds import MODELS, TASKS, Facts
from fedsw.learning.tasks.problem import Problem
from simulations.papers import cells
from simulations.papers.figure import figures, load_figure
from tests.federations import SMALL, small
from tests.site.pages import committed

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    (page.name, number, text)
    for page in (*committed(), ROOT / "CONTRIBUTING.md")
    for number, text in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    if {"name", "data"} <= set(tomllib.loads(text))
]
SKETCH = {"name": "a", "objective": {"task": "synthesis"}, "privacy": {"trust": "sketch"}}


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_experiment_loads_and_its_stored_text_says_the_same(name: str) -> None:
    experiment = load_experiment(name)
    stored = parse_experiment(json.loads(experiment.model_dump_json()))
    assert stored.model_dump() == experiment.model_dump()


@pytest.mark.parametrize("task", methods.tasks())
def test_every_method_of_a_comparison_loads(task: str) -> None:
    assert [methods.build(task, method).name for method in methods.able(task)]


@pytest.mark.parametrize("name", figures())
def test_every_papers_setting_loads(name: str) -> None:
    for series in load_figure(name).series:
        assert list(cells._cells(series, 2))


@pytest.mark.parametrize(("page", "number", "text"), EXAMPLES, ids=[f"{page}-{n}" for page, n, _ in EXAMPLES])
def test_every_whole_example_of_the_docs_loads(page: str, number: int, text: str) -> None:
    raw = tomllib.loads(text)
    raw.pop("metrics", None)  # code of a user's own
    assert parse_experiment(raw).name == raw["name"]


@pytest.mark.parametrize(
    ("base", "setting", "words"),
    [
        ({}, "data.public=mnist", "data.public is 'mnist', which objective.task 'classification' does not read"),
        ({}, "data.target=mean", "data.target .* 'classification' does not read; it is read by 'regression': leave"),
        ({}, "objective.protected=both", "objective.protected .* it is read by 'generation': leave it out"),
        (
            {},
            "objective.prior_radius=2.0",
            "prior_radius is for penalty 'prior-matching', not",
        ),
        ({}, "model.knots=3", "model.knots is 3, which model.kind 'logistic' does not read; it is read by 'additive'"),
        ({}, "model.latent=3", "model.latent is 3, which model.kind 'logistic' does not read"),
        ({}, "model.arguments.a=3", "'logistic' does not read; it is read by one of your own, 'module:name'"),
        ({}, "local.colluding=2", "local.colluding is 2, which has no meaning under privacy.trust 'central'"),
        (SKETCH, "clip.loss=2.0", "clip.loss is 2.0, which objective.task 'synthesis' does not read"),
        (SKETCH, "training.momentum=0.5", "training.momentum is 0.5, which objective.task 'synthesis' does not read"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_with_what_reads_it(base: dict, setting: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        parse_experiment(base or SMALL, [setting])


@pytest.mark.parametrize("task", TASKS)
def test_a_stored_setting_that_a_task_does_not_read_is_dropped_at_its_default_and_refused_elsewhere(task: str) -> None:
    default = json.loads(parse_experiment({"name": "a"}).model_dump_json())
    for section, names in TASKS.get(task).facts.unread.items():
        for name in names:
            raw = {"objective": {"task": task}, section: {"task": task} if section == "objective" else {}}
            raw[section][name] = default[section][name]
            assert name not in only_read(raw)[section]
            raw[section][name] = "another"
            with pytest.raises(ValueError, match=f"{section}.{name} is 'another', which objective.task '{task}'"):
                only_read(raw)


@pytest.mark.parametrize("kind", MODELS)
def test_a_stored_setting_that_a_model_does_not_read_is_dropped_at_its_default(kind: str) -> None:
    default = json.loads(small().model_dump_json())["model"]
    assert set(only_read({"model": {**default, "kind": kind}})["model"]) == {"kind", "seed", *MODELS.get(kind).reads}


def test_another_task_on_the_command_line_drops_what_it_does_not_read() -> None:
    raw = {**SMALL, "data": {**SMALL["data"], "target": "mean"}, "objective": {"task": "regression"}}
    assert parse_experiment(raw, ["objective.task=classification"]).data.target == "point"
    with pytest.raises(ExperimentError, match="data.target is 'mean'"):
        parse_experiment(raw, ["objective.task=classification", "data.target=mean"])


def test_a_task_of_ones_own_refuses_what_its_facts_do_not_read_when_it_is_made() -> None:
    experiment = small("objective.task=fedsw.learning.tasks.kinds._classification:Classification", "data.target=mean")
    with pytest.raises(ExperimentError, match="data.target is 'mean', which objective.task 'fedsw.learning"):
        Problem.from_experiment(experiment)


def test_every_task_reads_what_no_other_reads_alone() -> None:
    facts = [kind.facts for _, kind in TASKS.items()]
    for section, names in Facts(other_side="generator", sketched=True).unread.items():
        for name in names:
            assert any(name not in known.unread.get(section, ()) for known in facts), f"{section}.{name}"


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("sketch.period", 2.0, 3.0),
        ("sketch.fractions", [], [1.0, 1.0, 2.0, 2.0]),
        ("slicing.memory_limit_mb", 1024, 64),
        ("data.core_variance", 0.2, 0.3),
        ("data.spurious_variance", 0.4, 0.2),
        ("partition.concentration", 0.5, 1.0),
    ],
)
def test_a_stored_run_may_have_a_removed_setting_at_its_default_alone(name: str, default: Any, other: Any) -> None:
    for base in (load_experiment("sketch-digits"), small()):
        raw = json.loads(base.model_dump_json())
        *sections, setting = name.split(".")
        section = functools.reduce(lambda table, key: table[key], sections, raw)
        assert setting not in section
        section[setting] = default
        assert parse_experiment(raw).model_dump() == base.model_dump()
        section[setting] = other
        with pytest.raises(ExperimentError, match=f"unknown key '{name}'"):
            parse_experiment(raw)
