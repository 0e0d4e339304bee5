"""A federation and a loop on one machine are the same training: same batches, same noise, same model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import fedsw
from fedsw.data.sources import load_dataset
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.runs import checkpoint
from tests.federations import Federation
from tests.runs.single.examples import Scores

ROUNDS, DELTA = 6, 1e-4


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
    if "model.kind" in settings:
        del raw["model"]["hidden"]
    return parse_experiment(raw, [f"{key}={value}" for key, value in settings.items()])


def in_a_federation(folder, asked):
    """Summary and final parameters (r,), float64."""
    summary = Federation(folder).run(asked, directory=folder / "run")
    return summary, checkpoint.load(folder / "run").theta


PENALTIES = {
    "statistical-parity": lambda alpha: fedsw.Parity(alpha, centre=0.5),
    "equality-of-odds": lambda alpha: fedsw.EqualizedOdds(alpha, centre=0.5),
}


@pytest.mark.parametrize(
    ("precision", "tolerance", "optimizer", "penalty"),
    [
        *(("float64", 1e-9, optimizer, penalty) for optimizer in ("sgd", "adam") for penalty in PENALTIES),
        ("float32", 1e-6, "sgd", "equality-of-odds"),
        ("float32", 1e-6, "adam", "statistical-parity"),
    ],
)
def test_a_run_and_a_loop_at_one_seed_end_at_the_same_parameters(tmp_path, penalty, optimizer, precision, tolerance):
    asked = experiment(**{
        "objective.penalty": penalty, "training.optimizer": optimizer, "training.precision": precision,
        "training.learning_rate": 0.5 if optimizer == "sgd" else 0.02,
    })  # fmt: skip
    summary, theirs = in_a_federation(tmp_path / "federation", asked)
    problem = Problem.from_experiment(asked)
    model = problem.build_model()
    records = load_dataset(asked.record_source).train
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


TWO_HEADS = {
    "objective.task": "tests.runs.single.examples:ScoreTask", "model.kind": "tests.runs.single.examples:TwoHeads",
    "clip.centre": 0.5, "objective.alpha": 0.3,
}  # fmt: skip
ALSO = {
    "odds on the task's outputs": (
        "{penalty='equality-of-odds', weight=0.2, centre=0.5}",
        lambda: fedsw.EqualizedOdds(0.2, centre=0.5),
    ),
    "a prior for named outputs": (
        "{penalty='prior-matching', weight=0.4, outputs='codes', dimension=2, radius=0.9, jacobian=0.5,"
        " prior_radius=0.8}",
        lambda: fedsw.ToSample(0.4, outputs="codes", dimension=2, clip=fedsw.Clip(0.9, 0.5, 1.0), radius=0.8),
    ),
    "parity of named outputs": (
        "{penalty='statistical-parity', weight=0.4, outputs='codes', dimension=2}",
        lambda: fedsw.Parity(0.4, outputs="codes", dimension=2),
    ),
}


@pytest.mark.parametrize(
    ("also", "micro_batch"),
    [([0], 65_536), ([1], 65_536), ([2], 65_536), ([0, 1, 2], 65_536), ([0, 1, 2], 17)],
    ids=str,
)
def test_several_penalties_are_the_same_in_a_federation_and_on_one_machine(tmp_path, also, micro_batch):
    chosen = [list(ALSO.values())[index] for index in also]
    weights = {0: 0.2, 1: 0.4, 2: 0.1}
    settings = [text.replace("weight=0.4", f"weight={weights[i]}") for i, (text, _) in zip(also, chosen, strict=True)]
    asked = experiment(**{
        **TWO_HEADS, "model.kind": TWO_HEADS["model.kind"], "objective.also": f"[{', '.join(settings)}]",
        "training.micro_batch": micro_batch, "training.rounds": 4,
    })  # fmt: skip
    summary, theirs = in_a_federation(tmp_path / "federation", asked)
    problem = Problem.from_experiment(asked)
    model, records = problem.build_model(), load_dataset(asked.record_source).train
    penalties = [dataclasses.replace(make(), weight=weights[i]) for i, (_, make) in zip(also, chosen, strict=True)]
    objective = fedsw.Objective(Scores(), [fedsw.Parity(0.3, centre=0.5), *penalties], micro_batch=micro_batch)
    sizes = [len(rows) for rows in problem.cells_of(records)]
    plan = fedsw.plan(
        objective, problem.clip, sizes=sizes, batch_fraction=0.1, rounds=4, epsilon=8.0, delta=DELTA, seed=5
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = fedsw.PrivateTrainer(model, optimizer, objective, problem.clip, plan, directory=tmp_path / "one")
    ours = flatten(trainer.fit(records)).double()
    assert float((ours - theirs).abs().max()) <= 1e-9
    assert trainer.epsilon == pytest.approx(summary["epsilon_spent"], rel=1e-9)
    assert max(summary["guarantee"]["sensitivities"].values()) == pytest.approx(plan.sensitivity.value, rel=1e-12)


PARITY = "penalty='statistical-parity'"


@pytest.mark.parametrize(
    ("also", "other", "said"),
    [
        (f"{{{PARITY}, weight=0.9}}", {}, "add up to 1.2"),
        (f"{{{PARITY}, weight=0.1, outputs='codes'}}", {}, "outputs and dimension belong together"),
        (f"{{{PARITY}, weight=0.1, radius=1.0}}", {}, "radius and jacobian belong together"),
        (f"{{{PARITY}, weight=0.1, outputs='odes', dimension=2}}", {}, r"also\[0\].*returns score, codes"),
        (f"{{{PARITY}, weight=0.1, outputs='codes', dimension=3}}", {}, r"also\[0\] compares outputs of"),
        (
            "{penalty='equality-of-odds', weight=0.1}",
            {"privacy.trust": "local-gradient"},
            "objective.also has more penalties, and trust 'local-gradient' takes one",
        ),
    ],
)  # fmt: skip
def test_penalties_that_do_not_compose_are_refused_before_anything_is_spent(also, other, said):
    with pytest.raises(ExperimentError, match=said):
        Problem.from_experiment(experiment(**{**TWO_HEADS, "objective.also": f"[{also}]", **other}))
