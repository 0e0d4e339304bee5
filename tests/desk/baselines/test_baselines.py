"""Laws of what others would run: their epsilon, their steps, what one record moves, and what their rows say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import norm

from fedsw.data.sources import load_dataset
from fedsw.desk.baselines.fedavg import Weighted
from fedsw.desk.baselines.penalised import Scored, absolute, contrasts, squared
from fedsw.desk.baselines.pooled import ADD_REMOVE, BaselineTask, Rows, made_private
from fedsw.desk.baselines.run_baseline import replaced, run, train
from fedsw.desk.compare.comparison_grid import Cell, make_grid, run_cell, write_grid
from fedsw.desk.compare.methods import able
from fedsw.desk.compare.table import make_table
from fedsw.experiment import Experiment, ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning import models
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Step, lower_epsilon
from fedsw.runs.run_files import RunFile

pytest.importorskip("opacus")

SMALL = ("data.records=400", "data.test_records=400", "training.rounds=4", "evaluation.mode=full")


def fair(*settings: str) -> Experiment:
    return load_experiment(find_experiment("fair-classification"), [*SMALL, *settings])


def report(experiment: Experiment, theta: torch.Tensor) -> dict[str, float]:
    problem = Problem.from_experiment(experiment)
    model = problem.prepared(problem.build_model(), theta)
    return measure(problem, load_dataset(experiment.record_source).test, model).report


def gaussian_delta(shift: float, epsilon: float) -> float:
    """delta of the Gaussian mechanism with standard deviation 1 and that sensitivity (Balle and Wang 2018)."""
    first, second = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return float(norm.cdf(first) - math.exp(epsilon) * norm.cdf(second))


def plain_descent(experiment: Experiment) -> torch.Tensor:
    """Torch's own SGD on the mean loss of all records."""
    problem, records = Problem.from_experiment(experiment), load_dataset(experiment.record_source).train
    model, given = problem.build_model(), Problem.from_experiment(experiment).given(records)
    training = experiment.training
    steps = torch.optim.SGD(model.parameters(), lr=training.learning_rate, momentum=training.momentum)
    for _ in range(training.rounds):
        steps.zero_grad()
        problem.clipped.losses(model(given.features), given).mean().backward()
        steps.step()
    return models.flatten(model)


def test_the_epsilon_of_pooled_records_is_the_one_that_opacus_says() -> None:
    from opacus.accountants import PRVAccountant

    trained = train("opacus", fair("training.batch_fraction=0.1"), epsilon=1.0)
    own = PRVAccountant()
    own.history = [(trained.guarantee.multiplier, 0.1, 4)]
    assert trained.epsilon == pytest.approx(own.get_epsilon(0.1 / 400), rel=1e-9)
    assert 0.9 < trained.epsilon <= 1.0
    assert trained.guarantee.accountant == "opacus prv"


@pytest.mark.parametrize("name", ["opacus", "dp-fedavg"])
def test_an_accountant_of_opacus_that_says_less_than_the_truth_is_called_no_guarantee(
    name: str, tmp_path: Path
) -> None:
    experiment = fair("training.batch_fraction=0.1", "federation.clients=2")
    summary = run(name, experiment, directory=tmp_path, arguments={"accountant": "gdp"}).summary
    stated, steps = summary["guarantee"], 4 if name == "opacus" else 4 * 10
    truth = lower_epsilon({Step(0.1, 1 / stated["noise_multiplier"], "poisson"): steps}, summary["delta"])
    assert summary["epsilon"] < 0.9 * truth
    assert stated["accountant_is_guarantee"] is False
    assert stated["statement"].startswith("No guarantee: what the accountant opacus gdp says may fall below the truth.")


@pytest.mark.parametrize("name", ["dp-fedavg", "puffle"])
def test_every_client_pays_for_its_own_steps_in_every_round(name: str) -> None:
    from opacus.accountants import RDPAccountant

    experiment = fair("training.batch_fraction=0.1", "training.rounds=2", "federation.clients=3")
    trained = train(name, experiment, epsilon=1.0)
    own = RDPAccountant()
    own.history = [(trained.guarantee.multiplier, 0.1, 10 * 2)]
    assert set(trained.epsilon_by_client) == {0, 1, 2}
    assert trained.epsilon == max(trained.epsilon_by_client.values()) <= 1.0
    assert trained.epsilon == pytest.approx(own.get_epsilon(0.1 / 400), rel=1e-9)


def test_without_noise_and_with_a_wide_clip_it_is_plain_descent() -> None:
    wide = ("objective.alpha=0.0", "clip.loss=1e6", "training.batch_fraction=1.0", "training.averaging=0.0")
    experiment = fair(*wide, "training.momentum=0.5", "training.rounds=20")
    theta = train("opacus", experiment, epsilon=math.inf).theta
    torch.testing.assert_close(theta.float(), plain_descent(experiment), rtol=1e-4, atol=1e-5)
    alone = fair(*wide, "training.rounds=20")
    theta = train("dp-fedavg", alone, epsilon=math.inf).theta
    torch.testing.assert_close(theta.float(), plain_descent(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "alpha"), [("opacus", 0.75), ("dp-fedavg", 0.75), ("puffle", 0.3)])
def test_the_penalty_lowers_the_violation(name: str, alpha: float) -> None:
    settings = (
        "data.records=2000",
        "training.rounds=60",
        "training.batch_fraction=1.0",
        "clip.loss=100.0",
        "federation.clients=2",
    )
    experiment, without = fair(*settings, f"objective.alpha={alpha}"), fair(*settings, "objective.alpha=0.0")
    other = "opacus" if name == "opacus" else "dp-fedavg"
    fairer = report(experiment, train(name, experiment, epsilon=math.inf).theta)
    plain = report(without, train(other, without, epsilon=math.inf).theta)
    assert fairer["demographic_parity_difference"] < 0.6 * plain["demographic_parity_difference"]
    assert fairer["accuracy"] > 0.6


@pytest.mark.parametrize("penalty", ["squared", "absolute"])
def test_with_the_penalty_too_one_record_moves_the_clipped_sum_by_the_clip_at_most(penalty: str) -> None:
    clip = 0.3
    asked = ("training.rounds=1", "training.batch_fraction=1.0", f"clip.loss={clip}")
    experiment = fair("data.records=60", "objective.alpha=0.9", *asked)
    problem, records = Problem.from_experiment(experiment), load_dataset(experiment.record_source).train
    features, target = problem.inputs(records), records.target
    sides = contrasts(problem, records)
    scored = Scored(problem)
    assert scored.gap is not None
    torch.nn.init.constant_(scored.gap.weight, 0.4)
    private = made_private(BaselineTask(problem, records, math.inf, 1e-5), scored, Rows(features, sides, target), "rdp")

    def clipped_sum(rows: torch.Tensor) -> torch.Tensor:
        private.optimizer.zero_grad()
        found = private.module(features[rows], sides[rows])
        losses = (
            squared(scored, found, target[rows]) if penalty == "squared" else absolute(scored, found, target[rows], 0.9)
        )
        losses.mean().backward()
        private.optimizer.clip_and_accumulate()
        return torch.cat([parameter.summed_grad.reshape(-1) for parameter in private.optimizer.params])

    everyone = torch.arange(len(records))
    whole = clipped_sum(everyone)
    moved = [float((whole - clipped_sum(everyone[everyone != gone])).norm()) for gone in range(len(records))]
    assert max(moved) <= clip * (1 + 1e-4)
    assert max(moved) > 0.9 * clip


def test_a_replacement_is_one_record_less_and_one_more() -> None:
    for epsilon, sigma in ((0.5, 2.0), (1.0, 3.0), (3.0, 1.0)):
        delta = gaussian_delta(1 / sigma, epsilon)
        twice, more = replaced(epsilon, delta)
        assert twice == 2 * epsilon
        assert gaussian_delta(2 / sigma, twice) <= more


def test_a_round_in_which_a_client_samples_nobody_still_adds_noise() -> None:
    experiment = fair("data.records=40", "federation.clients=4", "training.batch_fraction=0.1", "training.rounds=1")
    trained = train("dp-fedavg", experiment, epsilon=1.0, delta=1e-3)
    assert bool(torch.isfinite(trained.theta).all())
    assert float((trained.theta - models.flatten(Problem.from_experiment(experiment).build_model())).norm()) > 0


def test_a_weight_rises_while_the_gap_is_above_its_target_and_stays_a_weight() -> None:
    experiment = fair("data.records=60")
    problem, records = Problem.from_experiment(experiment), load_dataset(experiment.record_source).train
    scored = Scored(problem)
    assert scored.gap is not None
    found = scored(problem.inputs(records), contrasts(problem, records))
    weighted = Weighted(weight=0.5, target=0.1, rate=0.2, momentum=0.5)
    for gap, rises in ((-0.3, True), (0.0, False)):
        torch.nn.init.constant_(scored.gap.weight, gap)
        weights = [weighted.weight]
        for _ in range(40):
            weighted(scored, found, records.target)
            weights.append(weighted.weight)
        assert weights[-1] == (1.0 if rises else 0.0)
        assert all(0 <= weight <= 1 for weight in weights)


def test_rows_name_their_guarantee_and_stand_apart_from_others(tmp_path: Path) -> None:
    chosen = ["central", "opacus", "dp-fedavg-fair"]
    small = ["data.records=200", "data.test_records=100", "federation.clients=2"]
    grid = make_grid("fair-classification", methods=chosen, epsilons=[1], seeds=1, rounds=2, settings=small)
    write_grid(tmp_path, grid)
    assert all(run_cell(tmp_path, cell) for cell in grid.cells)
    groups = make_table(tmp_path)["groups"]
    rows = {row["method"]: (group, row) for group in groups for row in group["rows"]}
    assert [len(group["rows"]) for group in groups] == [1, 1, 1]
    assert rows["central"][1]["guarantee"] and rows["central"][1]["relation"] == "replace-one"
    for method, words in {"opacus": "whoever pools the records", "dp-fedavg-fair": "including the server"}.items():
        group, row = rows[method]
        assert not row["guarantee"], "torch's generator is no secure one"
        assert "Mersenne" in row["why_not"]
        assert row["relation"] == ADD_REMOVE and words in row["against"] and row["accountant"].startswith("opacus ")
        assert row["relation"] in group["heading"] and row["protects"].startswith("each record of every client")
        assert row["epsilon"] <= 1 and math.isfinite(row["metrics"]["accuracy"]["mean"])


def test_without_opacus_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ExperimentError, match=r"pip install '.\[compare\]'` in fedsw's checkout"):
        make_grid("fair-classification", methods=["opacus"])
    assert "barycentre" in able("fair-classification") and "opacus" not in able("fair-classification")
    with pytest.raises(ModuleNotFoundError, match="Opacus, which is not installed"):
        train("opacus", fair(), epsilon=1.0)


@pytest.mark.parametrize(
    ("name", "experiment", "settings", "message"),
    [
        ("opacus", "ring", [], "trains classifiers"),
        ("opacus", "fair-classification-eo", [], "statistical-parity"),
        ("puffle", "fair-classification", ["training.optimizer=adam"], "steps of 'sgd'"),
        ("barycentre", "fair-classification", [], "set objective.alpha to 0"),
        ("opacus-like", "fair-classification", [], "nearest: 'opacus'"),
    ],
)
def test_what_a_baseline_cannot_train_is_refused(name: str, experiment: str, settings: list[str], message: str) -> None:
    asked = load_experiment(find_experiment(experiment), settings)
    with pytest.raises(ExperimentError, match=message):
        train(name, asked, epsilon=1.0)


def test_an_argument_that_a_baseline_does_not_take_is_refused() -> None:
    with pytest.raises(ExperimentError, match="takes no argument 'target'"):
        train("opacus", fair(), epsilon=1.0, arguments={"target": 0.1})


def test_a_penalty_needs_two_groups_with_records() -> None:
    asked = BaselineTask(Problem.from_experiment(fair()), load_dataset(fair().record_source).train, 1.0, 1e-5)
    alone = asked.records.take(torch.nonzero(asked.records.sensitive == 0)[:, 0].numpy())
    with pytest.raises(ExperimentError, match="two groups"):
        contrasts(asked.problem, alone)


def test_fair_scores_cost_the_rest_of_epsilon_and_bring_the_groups_together(tmp_path: Path) -> None:
    experiment = fair("data.records=4000", "data.test_records=4000", "training.rounds=10", "objective.alpha=0.0")
    moved: dict[str, Any] = run("barycentre", experiment, directory=tmp_path, arguments={"radius": 0.0}).summary
    with Ledger.open(tmp_path / "histograms.sqlite", read_only=True) as ledger:
        assert ledger.replay() == pytest.approx(0.1)
    problem = Problem.from_experiment(experiment)
    model = problem.build_model()
    model.load_state_dict(load_file(tmp_path / RunFile.MODEL))
    left = measure(problem, load_dataset(experiment.record_source).test, model).report
    assert moved["epsilon"] == pytest.approx(1.0, rel=1e-2) and moved["epsilon"] <= 1.0 + 1e-9
    assert moved["guarantee"]["relation"] == "replace-one" and not moved["nominal"]
    assert moved["guarantee"]["accountant"] == "pld + laplace"
    assert moved["held_out"]["w2_squared"] < 0.6 * left["w2_squared"]
    assert np.isfinite(moved["held_out"]["accuracy"]) and "loss" not in moved["held_out"]


def test_a_cell_without_privacy_never_reaches_a_baseline() -> None:
    grid = make_grid("fair-classification", methods=["none"], baselines=True, epsilons=[1, 3], seeds=1)
    baselines = [cell for cell in grid.cells if cell.method != "none"]
    assert {cell.method for cell in baselines} == {
        "opacus", "opacus-fair", "barycentre", "dp-fedavg", "dp-fedavg-fair", "puffle",
    }  # fmt: skip
    assert all(isinstance(cell, Cell) and math.isfinite(cell.epsilon) for cell in baselines)
