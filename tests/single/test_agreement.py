"""A federation and a loop on one machine are the same training: same batches, same noise, same model."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import fedsw
from fedsw.experiment import parse_experiment
from fedsw.experiment.sources import load_dataset
from fedsw.models import flatten
from fedsw.runs import checkpoint
from fedsw.tasks.problem import Problem
from tests.federations import Federation

ROUNDS, DELTA = 12, 1e-4


class Classifier:
    """What the shipped classification compares and loses, written again."""

    def outputs(self, raw, batch):
        return torch.sigmoid(raw)

    def loss(self, raw, batch):
        return binary_cross_entropy_with_logits(raw[:, 0], batch.target.to(raw.dtype), reduction="none")


def experiment(**settings):
    raw = {
        "name": "agreement",
        "seed": 5,
        "data": {"records": 600, "test_records": 50},
        "model": {"kind": "mlp", "hidden": [8], "seed": 3},
        "privacy": {"epsilon": 8.0, "delta": DELTA},
        "training": {"rounds": ROUNDS, "precision": "float64", "learning_rate": 0.5, "momentum": 0.9},
        "clip": {"centre": 0.5},
        "federation": {"clients": 3},
    }
    return parse_experiment(raw, [f"{key}={value}" for key, value in settings.items()])


def in_a_federation(folder, asked):
    """Summary and final parameters (r,), float64."""
    summary = Federation(folder).run(asked, directory=folder / "run")
    return summary, checkpoint.load(folder / "run").theta


PENALTIES = {
    "statistical-parity": lambda alpha: fedsw.Parity(alpha, centre=0.5),
    "equality-of-odds": lambda alpha: fedsw.EqualizedOdds(alpha, centre=0.5),
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-6)])
def test_a_run_and_a_loop_at_one_seed_end_at_the_same_parameters(tmp_path, penalty, optimizer, precision, tolerance):
    asked = experiment(**{
        "objective.penalty": penalty, "training.optimizer": optimizer, "training.precision": precision,
        "training.learning_rate": 0.5 if optimizer == "sgd" else 0.02,
    })  # fmt: skip
    summary, theirs = in_a_federation(tmp_path / "federation", asked)
    problem = Problem.from_experiment(asked)
    model = problem.build_model()
    records = load_dataset(asked).train
    objective = fedsw.Objective(Classifier(), [PENALTIES[penalty](asked.objective.alpha)])
    cells = problem.cells_of(records)
    plan = fedsw.plan(
        objective, problem.clip, sizes=[len(rows) for rows in cells], batch_fraction=0.1, rounds=ROUNDS,
        epsilon=8.0, delta=DELTA, seed=5,
    )  # fmt: skip
    torch_optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        if optimizer == "sgd"
        else torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.9, 0.999))
    )
    trainer = fedsw.PrivateTrainer(model, torch_optimizer, objective, problem.clip, plan, directory=tmp_path / "one")
    ours = flatten(trainer.fit(records)).double()
    assert float((ours - theirs).abs().max()) <= tolerance
    assert trainer.epsilon == pytest.approx(summary["epsilon_spent"], rel=1e-9)
