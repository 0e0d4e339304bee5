"""Laws of the reference without privacy: well trained whatever the run's settings, pooled, and nobody's guarantee."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw.data.sources import load_dataset
from fedsw.desk.baselines import scikit
from fedsw.desk.baselines.reference import NAMES, refusal, well_trained
from fedsw.desk.baselines.run_baseline import run
from fedsw.desk.baselines.scikit import converged
from fedsw.desk.compare.comparison_grid import make_grid, run_cell, write_grid
from fedsw.desk.compare.table import beside_methods, make_table
from fedsw.desk.planning.forecast import HELD_OUT, reference
from fedsw.desk.planning.public_rows import LAWS, drawn, scaled
from fedsw.desk.planning.run_plan import planned, rows
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from fedsw.experiment.load import find_experiment
from fedsw.federation.engines.driver import run as run_privately
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting.lifetime import account_named
from tests.desk.compare.test_compare_own import OWN, own
from tests.experiment.test_preset_rules import COLUMNS, SIZES, asked

__all__ = ["own"]


def narrow(folder: Path, people: int = 600) -> Path:
    """Two columns that use a twentieth of their bounds, and a label that follows them."""
    chance = np.random.default_rng(0)
    for place, name in enumerate(("0/train.csv", "1/train.csv", "held-out.csv")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        x = chance.standard_normal((people, 2))
        label = np.where(x[:, 0] - x[:, 1] + 0.5 * chance.standard_normal(people) > 0, "high", "low")
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [["a", "b", "sex", "income"]]
                + [
                    [500 + 12.5 * a + 1e-6 * place, 500 + 12.5 * b, ("female", "male")[i % 2], each]
                    for i, ((a, b), each) in enumerate(zip(x, label, strict=True))
                ]
            )
    return folder


def of_narrow(folder: Path, *settings: str, alpha: float = 0.0) -> Experiment:
    text = OWN.replace("DATA", str(folder)).replace("held-out.csv", str(folder / "held-out.csv"))
    age = '{name = "age", low = 0, high = 100}'
    text = text.replace(age, ", ".join(f'{{name = "{name}", low = 0, high = 1000}}' for name in "ab"))
    path = folder / "own.toml"
    path.write_text(text)
    return load_experiment(path, ["privacy.trust=none", f"objective.alpha={alpha}", "evaluation.mode=full", *settings])


def test_it_learns_from_columns_that_use_a_small_part_of_their_bounds_where_the_private_settings_do_not(tmp_path):
    experiment = of_narrow(narrow(tmp_path), "training.rounds=50", "training.batch_fraction=1.0")
    found = run("reference", experiment, directory=tmp_path / "reference").summary
    quiet = run_privately(experiment, runs=tmp_path / "runs").summary
    assert found["held_out"]["accuracy"] > 0.85 > quiet["held_out"]["accuracy"] + 0.1
    assert found["reference"].startswith("scikit-learn's logistic regression on all records together, no privacy (C = ")
    assert float(found["epsilon"]) == float(found["epsilon_of_reader"]) == math.inf
    assert found["gain"]["claim"] == "better" and found["held_out_intervals"]["accuracy"]


def test_under_a_penalty_it_is_the_same_objective_at_rest(tmp_path):
    problem = Problem.from_experiment(of_narrow(narrow(tmp_path), alpha=0.3))
    twins = drawn(problem.experiment.data.columns, {"female": 150, "male": 150}, LAWS[2], seed=0)
    found = converged(problem, twins)
    assert found.still
    again = converged(problem, twins)
    torch.testing.assert_close(*(each.model.network[0].weight for each in (found, again)))
    assert well_trained(problem, twins).words.startswith("the same model trained to rest at α = 0.3 on all records")


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_the_more_the_penalty_weighs_the_fairer_it_is(alpha):
    settings = ("data.records=1000", "data.test_records=2000", "privacy.trust=none")
    reports = []
    for each in (0.05, alpha):
        experiment = load_experiment(find_experiment("fair-classification"), [*settings, f"objective.alpha={each}"])
        problem, dataset = Problem.from_experiment(experiment), load_dataset(experiment.record_source)
        reports.append(measure(problem, dataset.test, well_trained(problem, dataset.train).model).report)
    assert reports[1]["w2_squared"] < 0.7 * reports[0]["w2_squared"]
    assert reports[1]["loss"] > reports[0]["loss"] - 1e-3


def test_numbers_are_predicted_as_least_squares_does_and_trees_where_lines_do_not_do():
    chance = np.random.default_rng(1)
    features = chance.uniform(0.4, 0.44, (900, 3))
    line = 0.5 + 4 * (features - 0.42) @ [1.0, -1.0, 2.0] + 0.01 * chance.standard_normal(900)
    bend = 0.5 + 900 * (features[:, 0] - 0.42) ** 2
    given = {"classes": 0, "units": np.arange(900), "seed": 0}
    found = scikit.fit(features, np.stack([line, 1 - line], axis=1), trees=True, **given)
    assert found.name == "scikit-learn's ridge regression"
    assert np.square(found.predict(features)[:, 0] - line).mean() < 2e-4
    assert scikit.fit(features, bend[:, None], trees=True, **given).name == "scikit-learn's gradient boosted trees"
    assert scikit.fit(features, bend[:, None], trees=False, **given).name == "scikit-learn's ridge regression"


@pytest.mark.parametrize("classes", [0, 2])
def test_plain_linear_models_are_scikit_learn_s_within_rounding(classes):
    chance = np.random.default_rng(2)
    features = np.hstack([chance.uniform(0.4, 0.44, (400, 3)), np.ones((400, 1)), chance.integers(0, 2, (400, 2))])
    score = 40 * (features[:, 0] - 0.42) - features[:, 4] + chance.standard_normal(400)
    target = (score > np.median(score)).astype(np.int64) if classes else np.stack([score, -score], axis=1)
    given = {"classes": classes, "units": np.arange(400), "seed": 0}
    known, found = scikit.fit(features, target, trees=False, **given), scikit.fit_plain(features, target, **given)
    assert known.settings == found.settings and known.name == f"scikit-learn's {found.name}"
    assert np.allclose(found.predict(features), known.predict(features), atol=2e-3)
    if classes:  # a class that is nowhere, and one that a line divides from the other
        assert (scikit.fit_plain(features, 0 * target, **given).predict(features) == [1.0, 0.0]).all()
        apart = (features[:, 0] > 0.42).astype(np.int64)
        assert (scikit.fit_plain(features, apart, **given).predict(features).argmax(axis=1) == apart).mean() > 0.99


def test_rows_of_one_unit_are_left_out_together_and_classes_that_nobody_has_are_possible():
    units = np.repeat(np.arange(50), 4)
    folds = scikit._folds(units, 3).reshape(50, 4)
    assert (folds == folds[:, :1]).all() and set(folds[:, 0]) == {0, 1, 2}
    features = np.random.default_rng(2).standard_normal((200, 2))
    given = {"classes": 3, "units": units, "seed": 0, "trees": False}
    rare = np.where(np.arange(200) == 7, 2, 0)
    assert scikit.fit(features, rare, **given).predict(features).shape == (200, 3)
    alone = scikit.fit(features, np.zeros(200, dtype=np.int64), **given).predict(features)
    logits = scikit.Outside(lambda inputs: alone, 3)(torch.zeros(200, 2))
    assert torch.isfinite(logits).all() and (logits.argmax(dim=1) == 0).all()


def test_it_stands_in_the_table_of_a_comparison_with_its_words_its_number_and_the_constants(own, tmp_path):
    folder = tmp_path / "compared"
    grid = make_grid(str(own), methods=["reference", "central"], epsilons=(3.0,), seeds=1)
    write_grid(folder, grid)
    assert all(run_cell(folder, cell) for cell in grid.cells)
    table = make_table(folder)
    (row,) = [row for group in table["groups"] for row in group["rows"] if row["method"] == "reference"]
    assert row["what"] == table["reference"]["what"] and "trained to rest" in row["what"]  # the file's alpha is 0.5
    assert not row["guarantee"] and row["why_not"] == "no noise was added" and row["epsilon"] == math.inf
    assert set(table["reference"]["metrics"]["accuracy"]) == {"mean", "sd", "low", "high"}
    lines = [line for line in beside_methods(table) if "Without privacy" in line]
    assert len(lines) == 1 and "accuracy" in lines[0]


def test_records_that_clients_keep_are_what_it_is_measured_on_and_never_trained_on(own, tmp_path):
    kept = ["data.held_out_fraction=0.5", "data.held_out_to=everybody", "privacy.trust=none", "objective.alpha=0.0"]
    own.write_text(OWN.replace('held_out = "held-out.csv"', "").replace("DATA", str(tmp_path / "DATA")))
    found = run("reference", load_experiment(own, kept), directory=tmp_path / "x").summary
    assert found["held_out_measured_on"] == {"records": 28, "of": 28, "directions": 1}
    assert found["bytes_up"] == (60 - 28) * 3 * 4


def test_where_nobody_holds_all_records_or_an_account_has_a_limit_there_is_none(own, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    plain = load_experiment(own, ["privacy.trust=none"])
    assert refusal("reference", plain) is None
    elsewhere = plain.model_copy(update={"data": plain.data.model_copy(update={"data_dir": None})})
    assert "set data.data_dir" in (refusal("reference", elsewhere) or "")
    counted = plain.model_copy(update={"data": plain.data.model_copy(update={"account": "patients"})})
    assert refusal("reference", counted) is None
    made = counted.model_copy(update={"objective": counted.objective.model_copy(update={"task": "autoencoder"})})
    assert "would be a run that spends all of the account of data set 'patients'" in (refusal("reference", made) or "")
    account_named("patients").limit(3.0, 1e-6)
    assert "of data set 'patients' has a limit, under which nothing" in (refusal("reference", counted) or "")
    assert "without a penalty alone" in (refusal(NAMES[1], plain) or "")
    with pytest.raises(ExperimentError, match="has a limit"):
        run("reference", counted, directory=own.parent / "x")


def test_other_tasks_run_longer_without_noise(tmp_path):
    ring = parse_experiment(
        {
            "name": "ring",
            "data": {"source": "ring", "records": 100, "test_records": 50},
            "model": {"kind": "generator", "hidden": [4]},
            "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
            "training": {"rounds": 3},
            "privacy": {"trust": "none"},
        }
    )
    found = run("reference", ring, directory=tmp_path / "ring")
    assert found.summary["rounds"] == 12 and float(found.summary["epsilon"]) == math.inf
    assert (
        found.summary["reference"] == "the same task without noise or clips, 12 rounds, 4 times the run's, no privacy"
    )
    assert found.directory.joinpath("summary.json").is_file()


def test_a_plan_measures_against_it_on_public_twins_alone():
    experiment = asked(objective={"alpha": 0.0})
    columns = experiment.data.columns
    twins, held_out = drawn(columns, SIZES, LAWS[2], seed=0), drawn(columns, scaled(SIZES, HELD_OUT), LAWS[2], seed=1)
    name, score = reference(Problem.from_experiment(experiment), twins, held_out)
    assert name == "logistic regression" and score.gain > 0.1
    private = twins.take(torch.arange(len(twins)))
    with pytest.raises(TypeError, match="twins are public records"):
        reference(Problem.from_experiment(experiment), private, held_out)
    found = planned(experiment, SIZES, strengths=(30.0, 3_000.0), expect="much")
    assert found.forecast.learnt == (score,)
    said = dict(rows(found))
    assert said["without privacy"].startswith("logistic regression on all public twins together: accuracy")
    assert "logistic regression" in said["verdict"]


def test_a_forecast_says_what_settings_lose_that_no_noise_explains():
    """One small step learns nothing of numbers, however little the noise is."""
    slow = {"rounds": 1, "learning_rate": 1e-6, "batch_fraction": 1.0}
    columns = {**COLUMNS, "target": None, "targets": [{"name": "y", "low": 0, "high": 1}]}
    experiment = asked(
        data={"source": "object", "columns": columns},
        training={"preset": "auto", **slow},
        objective={"task": "regression", "alpha": 0.0},
    )
    found = planned(experiment, SIZES, strengths=(30.0, 3_000.0), expect="much")
    assert found.forecast.share_left < 0.4  # what the initial weights happen to be right by
