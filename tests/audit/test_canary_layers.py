"""Laws of the canary's attack on layers and maps of an experiment's own model: nothing is left out in silence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw.audit import canary
from fedsw.audit.neighbours import free_layer, staged, worst_neighbours
from fedsw.data import Records
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.learning.models.coded import Centred
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import layer_rule
from fedsw.mathematics.clipping.rules import RULES, HatLinear
from tests.audit.test_canary import ALL, audited
from tests.federations import small

COLUMNS = {
    "features": [
        {"name": "age", "low": 18, "high": 90},
        {"name": "dose", "low": 0, "high": 10},
        {"name": "job", "categories": ["a", "b", "c"], "missing": True},
    ],
    "sensitive": {"name": "sex", "values": ["f", "m"]},
    "target": {"name": "y", "values": ["no", "yes"]},
}


@pytest.fixture
def declared(tmp_path):
    """An experiment on files with declared columns of two clients, by its model and other settings."""
    rng = np.random.default_rng(1)
    for client in range(2):
        table = pd.DataFrame({"age": rng.integers(18, 91, 100), "dose": rng.uniform(0, 10, 100).round(3)})
        table["job"], table["sex"] = rng.choice(["a", "b", "c", ""], 100), np.tile(["f", "m"], 50)
        table["y"] = np.where(table.age + 5 * table.dose > 75, "yes", "no")
        folder = tmp_path / "data" / str(client)
        folder.mkdir(parents=True)
        table.to_csv(folder / "t.csv", index=False)

    def experiment(*overrides: str, columns: dict = COLUMNS) -> Experiment:
        raw = {
            "name": "own",
            "data": {"source": "files", "data_dir": str(tmp_path / "data"), "columns": columns},
            "privacy": {"epsilon": 8.0, "delta": 1e-4},
            "federation": {"clients": 2},
        }
        return parse_experiment(raw, ["training.batch_fraction=1.0", "training.rounds=1", *overrides])

    return experiment


def attacked_by(monkeypatch) -> list:
    """The trials of every neighbour that an audit makes from now on, with the coding that stood before the model."""
    made, genuine = [], canary.TrialRun.views

    def views(trial, round_):
        made.append((trial.task.experiment, trial.task.coding))
        return genuine(trial, round_)

    monkeypatch.setattr(canary.TrialRun, "views", views)
    return made


CONSTANT = ("model.inputs=constant-first", "privacy.moments=0.3")
HATS = (
    "HatLinear, on two knots of every column",
    "HatLinear, on two knots of every column, nearly hidden by a wide map",
)


def test_an_additive_models_own_layer_is_attacked_and_the_screen_says_what_stood_in_for_the_model(declared):
    found = audited(declared("model.kind=additive"), trials=20_000)
    assert found.passed and tuple(found.details["layers"]) == HATS
    assert all(0.998 <= share <= 1.0 for share in found.details["layers"].values())
    rows = dict(found.rows)
    assert "in place of those of model.kind 'additive'" in rows["model"]
    assert all(layer in rows["its layers"] for layer in HATS)


def test_hats_without_a_clip_fail_the_audit_of_an_additive_model(monkeypatch, declared):
    rule = RULES.get(HatLinear)
    nothing = dataclasses.replace(
        rule.factored,
        shared=lambda layer, a: torch.full((len(a),), 1e-12, dtype=torch.float64),
        gram=lambda layer, a, deltas: 1e-12 * rule.factored.gram(layer, a, deltas),
    )
    monkeypatch.setitem(RULES._things, HatLinear, dataclasses.replace(rule, factored=nothing))
    found = audited(declared("model.kind=additive"), trials=1000)
    assert not found.passed and f"through {HATS[0]}, moves the sum by" in found.verdict


def test_lengths_of_hats_that_are_those_before_the_map_fail_the_audit_of_an_additive_model(monkeypatch, declared):
    monkeypatch.setattr(HatLinear, "_lengths_behind", HatLinear._lengths)
    found = audited(declared("model.kind=additive"), trials=1000)
    assert not found.passed and f"through {HATS[1]}, moves the sum by" in found.verdict
    assert found.details["layers"][HATS[0]] <= 1.0


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.inputs=centred",),
        CONSTANT,
        pytest.param(("model.inputs=centred", "model.kind=mlp", "model.hidden=[4]"), marks=pytest.mark.slow),
        pytest.param(("model.inputs=centred", "privacy.trust=distributed"), marks=pytest.mark.slow),
        pytest.param((*CONSTANT, "privacy.trust=distributed"), marks=pytest.mark.slow),
    ],
    ids=["centred", "constant first", "centred, mlp", "centred, distributed", "constant first, distributed"],
)
def test_columns_about_their_middle_are_attacked_behind_that_map(monkeypatch, declared, overrides):
    made = attacked_by(monkeypatch)
    found = audited(declared(*overrides), trials=20_000)
    assert found.passed and 0.99 <= found.details["instance_share"] <= 1.0
    assert all(isinstance(coding, Centred) for _, coding in made)


def test_rows_are_scaled_in_the_attacked_run_as_in_the_experiments_own(monkeypatch):
    made = attacked_by(monkeypatch)
    found = audited(small(*ALL, "data.row_norm=2.0"), trials=20_000)
    assert found.passed and 0.998 <= found.details["instance_share"] <= 1.0
    assert made and all(experiment.data.row_norm == 2.0 for experiment, _ in made)


def test_what_a_preset_chooses_is_attacked_with_its_own_layers(monkeypatch, declared):
    made = attacked_by(monkeypatch)
    experiment = declared("training.preset=auto")
    open_settings = experiment.model_dump()
    del open_settings["training"]
    found = audited(parse_experiment({**open_settings, "training": {"preset": "auto", "rounds": 2}}), trials=1000)
    assert found.passed and tuple(found.details["layers"]) == HATS
    assert {experiment.model.kind for experiment, _ in made} == {"additive"}


def test_a_map_of_inputs_behind_which_no_worst_case_is_known_is_refused_by_name():
    images = {"name": "digits", "data": {"source": "digits"}, "model": {"kind": "scattering"}}
    experiment = parse_experiment(images, ["federation.clients=2", "objective.alpha=0.0"])
    with pytest.raises(ExperimentError, match="'scattering' sees records through ScatteredImages"):
        audited(experiment)


class Doubled(torch.nn.Linear):
    """A layer of somebody's own."""


def doubled(features: int, outputs: int) -> torch.nn.Module:
    return Doubled(features, outputs)


def test_a_layer_whose_rule_has_no_worst_neighbours_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(RULES, "_things", dict(RULES._things))
    layer_rule(Doubled)(lambda layer, a, delta: {"weight": delta.unsqueeze(2) * a.unsqueeze(1), "bias": delta})
    with pytest.raises(ExperimentError, match="doubled'.*type Doubled trains.*no worst neighbours"):
        audited(small(*ALL, f"model.kind={__name__}:doubled"))


def test_behind_a_map_the_model_takes_the_numbers_of_the_worst_case(declared):
    with staged(free_layer()):
        task = Problem.from_experiment(declared("model.inputs=centred"))
        group, target = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 0])
        genuine = Records(torch.zeros(4, task.shape.features), group, target, torch.arange(4))
        records = worst_neighbours(task, 0, 0).records(task, genuine, 0, canary=True)
        numbers = task.inputs(records).double()
    pull, push, _, output, side = numbers[:, :5].T
    m = task.clip.output
    assert output.tolist() == pytest.approx([m, -m, m, -m], abs=1e-4)
    assert side.tolist() == pytest.approx([1, -1, -1, -1], abs=1e-4)
    assert push.tolist() == pytest.approx([1, -1, -1, -1], abs=1e-4) and bool((pull > 1e3).all())
