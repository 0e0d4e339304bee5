"""Laws of the kinds of models: one entry makes a model known to settings, tasks and runs; an unknown name raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw._tools.settings import ExperimentError
from fedsw.experiment import parse_experiment
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, ModelKind, ModelSizes
from fedsw.learning.models import flatten
from fedsw.learning.shipped_models import model
from fedsw.learning.tasks.problem import Problem
from tests.federations import SMALL

SIZES = ModelSizes(68, 64, 4, codes=((0, 3), (3, 68)))
"""An 8 x 8 image with a code of four classes beside it, or a table of two columns."""
LATENT = {"transported-adaptor": 16, "labelled-images": 9, "blocked-images": 9}


def settings(kind: str, seed: int) -> Model:
    return Model.model_validate({"kind": kind, "latent": LATENT.get(kind, 3), "seed": seed})


def sizes(kind: ModelKind) -> ModelSizes:
    return ModelSizes(256, 256, 4) if kind.square else SIZES


@pytest.mark.parametrize("name", MODELS)
def test_an_entry_makes_the_same_network_of_the_same_seed_and_another_of_another(name: str) -> None:
    kind = MODELS.get(name)
    first, again, other = (flatten(kind.make(settings(name, seed), sizes(kind))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape == other.shape and not torch.equal(first, other)


def test_one_entry_makes_a_model_known_to_settings_tasks_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_things", dict(MODELS._things))

    @model(
        "doubled", "predictor", reads=("knots",), misfit=lambda settings: "no" if settings.model.knots == 9 else None
    )
    def _doubled(spec: Model, sizes: ModelSizes) -> nn.Module:
        torch.manual_seed(spec.seed)
        return nn.Sequential(nn.Linear(sizes.features, spec.knots), nn.Linear(spec.knots, sizes.outputs))

    raw = {**SMALL, "model": {"kind": "doubled", "knots": 7}}
    made = Problem.from_experiment(parse_experiment(raw)).build_model()
    assert [layer.out_features for layer in made] == [7, 1]
    with pytest.raises(ExperimentError, match="model.hidden is .*, which model.kind 'doubled' does not read"):
        parse_experiment(raw, ["model.hidden=[3]"])
    with pytest.raises(ExperimentError, match="no$"):
        parse_experiment(raw, ["model.knots=9"])
    with pytest.raises(ExperimentError, match="model.kind 'doubled' with objective.task 'generation': use 'generator'"):
        parse_experiment(raw, ["objective.task=generation", "data.source=ring", "objective.alpha=1"])


def test_an_unknown_model_and_an_unknown_role_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ExperimentError, match="'logistic', 'additive', 'scattering', 'mlp'.*'multilayer'"):
        parse_experiment({**SMALL, "model": {"kind": "multilayer"}})
    with pytest.raises(ValueError, match="a model's role is 'juggler'; there are 'predictor'"):
        model("clown", "juggler", reads=())(lambda spec, sizes: nn.Identity())  # type: ignore[arg-type]


def test_a_model_of_declared_columns_codes_is_made_for_a_table_alone() -> None:
    with pytest.raises(ExperimentError, match="rows of a declared table.*there is none"):
        MODELS.get("table-generator").make(settings("table-generator", 0), ModelSizes(3, 3, 2))
