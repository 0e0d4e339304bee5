"""No penalty: the task loss alone, of all records in one stratum, in Python and in an experiment."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fedsw
from fedsw.audit.record import audit
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.trust import releasing_gradients
from fedsw.learning.objectives import Clip, WeightedSum
from fedsw.learning.objectives.distances import BetweenGroups, TaskAlone
from fedsw.learning.objectives.penalties import NoPenalty, Parity
from tests.federations import small

CLIP = Clip(1.0, 0.5, 2.0)


def test_its_bound_is_that_of_the_loss_and_it_pulls_nothing():
    alone, parity = TaskAlone(), BetweenGroups("statistical-parity", 1, 1, 0.0)
    (bound,) = alone.sensitivities((40,), CLIP, d=1)
    assert bound.value == parity.sensitivities((40,), CLIP, d=1)[0].value == 2 * CLIP.loss / 40
    assert alone.sensitivities((40,), CLIP, d=1, alone=True)[0].value == 0
    outputs = [torch.ones(4, 2)]
    pulled, other = alone.pulled(outputs, torch.eye(2), lambda count: pytest.fail("there is no other side"))
    assert torch.equal(pulled[0], torch.zeros(4, 2).double()) and other is None
    assert alone.cell_of(torch.tensor([0, 1, 1]), torch.zeros(3)).tolist() == [0, 0, 0]


def test_an_objective_without_penalties_has_one_stratum_and_trains(tmp_path):
    torch.manual_seed(0)
    group, x = torch.arange(100) % 2, torch.randn(100, 3)
    records = fedsw.as_records(x, group=group, groups=[0, 1], target=(x[:, 0] > 0).long(), classes=[0, 1])
    objective = fedsw.Objective("classification", [])
    assert objective.strata == ("all",) and objective.composite.alpha == 0
    plan = fedsw.plan(objective, CLIP, sizes=(100,), batch_fraction=0.5, rounds=2, epsilon=4, delta=1e-3, seed=1)
    model = nn.Linear(3, 1).double()
    trainer = fedsw.PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), objective, CLIP, plan, directory=tmp_path / "t"
    )
    trainer.fit(records)
    assert trainer.rounds == 2 and trainer.epsilon <= 4


@pytest.mark.parametrize("trust", sorted({*releasing_gradients(), "none"}))
def test_an_experiment_without_a_penalty_draws_from_all_records_and_passes_its_audit(federation, trust):
    chosen = small("objective.penalty=none", f"privacy.trust={trust}", *(["privacy.epsilon=5.0"] * (trust != "none")))
    assert chosen.objective.alpha == 0 and parse_experiment(chosen.model_dump(mode="json")) == chosen
    summary = federation.run(chosen)
    assert summary["status"] == "completed"
    directory = federation.folder / "run1"
    assert set(json.loads((directory / "plan.json").read_text())["groups"]) == {"all"}
    found = audit(directory)
    assert found.passed, found.details["checks"]


def test_thresholds_part_the_groups_of_one_stratum(federation):
    summary = federation.run(small("objective.penalty=none", "thresholds.share=0.3", "privacy.epsilon=8.0"))
    assert set(summary["thresholds"]["by_group"]) == {"A=0", "A=1"} and audit(federation.folder / "run1").passed


def test_no_penalty_has_no_weight_and_stands_alone():
    for settings in ({"alpha": 0.3}, {"also": [{"penalty": "statistical-parity", "weight": 0.2}]}):
        with pytest.raises(ExperimentError, match="penalty 'none' is the task loss alone"):
            parse_experiment({"name": "x", "objective": {"penalty": "none", **settings}})
    raw = {"name": "x", "objective": {"alpha": 0.5, "also": [{"penalty": "statistical-parity", "weight": 0.2}]}}
    assert parse_experiment(raw, "objective.penalty=none").objective.also == ()
    with pytest.raises(ValueError, match="no penalty has the weight 0.2"):
        NoPenalty(0.2)
    with pytest.raises(ValueError, match="stands alone"):
        WeightedSum((NoPenalty(), Parity(0.5)))
    with pytest.raises(ValueError, match=r"NoPenalty\(\) for the task loss alone"):
        WeightedSum(())
    with pytest.raises(ExperimentError, match="objective.penalty 'none' with objective.task 'generation'"):
        parse_experiment(
            {
                "name": "x",
                "data": {"source": "gaussians"},
                "model": {"kind": "generator"},
                "objective": {"task": "generation", "penalty": "none"},
            }
        )
