"""Laws of plans that are made from a run's released moments: free, cautious, and right about what is there to learn."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsw
from fedsw.cli.app import main
from fedsw.desk.planning.public_rows import after_moments, hidden_by_noise, public_columns, twins_of
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.engines.driver import resume
from fedsw.learning.moments.moments_sum import STEP, layout_of, sums_of
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger

pytestmark = pytest.mark.slow

COLUMNS = {
    "features": [{"name": "x0", "low": 0, "high": 1}, {"name": "x1", "low": 0, "high": 1}],
    "sensitive": {"name": "sex", "values": ["f", "m"]},
}
CLASSES = {**COLUMNS, "target": {"name": "y", "values": ["no", "yes"]}}
NUMBERS = {**COLUMNS, "targets": [{"name": "y", "low": 0, "high": 1}]}


def table(rows: int, *, numbers: bool = False) -> dict:
    """Columns that use a tenth of their bounds, off the middle; the first tells the target."""
    rng = np.random.default_rng(0)
    x0, x1 = np.clip(0.2 + 0.03 * rng.standard_normal((2, rows)), 0, 1)
    sex = np.where(rng.random(rows) < 0.3, "f", "m")
    score = (x0 - 0.2) / 0.03
    if numbers:
        return {
            "x0": x0,
            "x1": x1,
            "sex": sex,
            "y": np.clip(0.7 + 0.06 * score + 0.03 * rng.standard_normal(rows), 0, 1),
        }
    return {"x0": x0, "x1": x1, "sex": sex, "y": np.where(score + 0.3 * rng.standard_normal(rows) > 1.2, "yes", "no")}


def chosen(columns: dict = CLASSES, **privacy):
    task = "regression" if "targets" in columns else "classification"
    raw = {"name": "own", "data": {"source": "object", "columns": columns}, "objective": {"task": task, "alpha": 0.0}}
    settings = {"epsilon": 1.0, "delta": "auto", "moments": 0.2, **privacy}
    rest = {"training": {"preset": "auto"}, "federation": {"clients": 1}, "seed": 6}
    return parse_experiment(raw | {"privacy": settings, **rest})


def stopped(tmp_path: Path, rows: int = 4_000, columns: dict = CLASSES, **privacy) -> Path:
    records = table(rows, numbers="targets" in columns)
    result = fedsw.run(chosen(columns, **privacy), data=records, runs=tmp_path / "runs", moments_alone=True)
    return result.directory


def test_a_run_that_stops_after_its_moments_has_spent_their_share_alone_and_goes_on(tmp_path):
    folder = stopped(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"].startswith("stopped after moments") and summary["released_rounds"] == 0
    assert 0 < summary["epsilon_spent"] < 0.6 and summary["epsilon"] == 1.0
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        assert {entry.round for entry in ledger.entries()} == {0}
    ended = resume(folder, data=table(4_000))
    assert ended.summary["status"] == "completed" and 0.99 < ended.summary["epsilon_spent"] <= 1.0
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        assert sum(entry.round == 0 for entry in ledger.entries()) == 2, "one row a group: moments were released once"


def test_a_summary_says_what_moments_tell_without_a_held_out_record_and_the_truth_is_in_its_intervals(tmp_path, capsys):
    folder, rows = stopped(tmp_path, 40_000, epsilon=8.0), table(40_000)
    told = json.loads((folder / "summary.json").read_text())["moments"]
    share = float(np.mean(rows["y"] == "no"))
    assert told["constant"]["low"] <= max(share, 1 - share) <= told["constant"]["high"] < told["constant"]["low"] + 0.05
    for each in told["narrow_columns"]:
        assert each["part"] <= each["most"] < 0.25 and 4 * float(np.std(rows[each["name"]])) <= each["most"]
    assert told["narrow_columns"]
    assert main(["show", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "by them a constant has accuracy" in shown and "use little of their declared bounds: x" in shown


def test_moments_that_are_left_to_be_chosen_can_be_asked_for_alone(tmp_path):
    asked = chosen().model_dump()
    asked["privacy"]["moments"] = "auto"
    result = fedsw.run(parse_experiment(asked), data=table(4_000), runs=tmp_path, moments_alone=True)
    assert result.summary["status"].startswith("stopped after moments")
    assert json.loads((result.directory / "config.json").read_text())["experiment"]["privacy"]["moments"] > 0


def test_a_plan_after_moments_charges_nothing_and_reads_no_record(tmp_path, monkeypatch, capsys):
    folder = stopped(tmp_path, 40_000, epsilon=4.0)
    before = (folder / "ledger.sqlite").read_bytes()

    def read(*_, **__):
        raise AssertionError("a private record was read")

    monkeypatch.setattr("fedsw.data.read_table", read)
    assert main(["plan", "--after-moments", str(folder), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forecast"]["feasible"] and found["settings"]["privacy"]["moments"] == 0.2
    assert (folder / "ledger.sqlite").read_bytes() == before


def test_without_noise_twins_have_the_moments_that_were_released(tmp_path):
    for columns in (CLASSES, NUMBERS):
        problem = Problem.from_experiment(chosen(columns))
        records = fedsw.data.as_records(
            table(20_000, numbers=columns is NUMBERS), columns=problem.experiment.data.columns
        )
        layout = layout_of(problem)
        cells = tuple(problem.objective.cell_of(records.sensitive, records.target).bincount(minlength=2).tolist())
        moments = Moments(layout, sums_of(problem, layout, records).double() * STEP, 0.0, cells)
        twins = twins_of(moments, problem, public_columns(problem.experiment))
        assert np.allclose(twins.features.mean(0), records.features.mean(0), atol=0.003)
        assert np.allclose(twins.features.std(0), records.features.std(0), rtol=0.06)
        share = [float(each.sensitive.double().mean()) for each in (twins, records)]
        assert share[0] == pytest.approx(share[1], abs=0.01)
        means = [float(each.target.double().mean()) for each in (twins, records)]
        assert means[0] == pytest.approx(means[1], abs=0.02)
        told = [
            float(np.corrcoef(each.features[:, 0].double(), each.target.double().reshape(-1))[0, 1])
            for each in (twins, records)
        ]
        assert told[0] == pytest.approx(told[1], abs=0.03)


def test_noise_alone_is_not_taken_for_something_to_learn():
    problem = Problem.from_experiment(chosen())
    layout = layout_of(problem)
    rng, gains = np.random.default_rng(1), []
    for seed in range(4):
        half = {"x0": rng.random(400), "x1": rng.random(400), "sex": rng.choice(["f", "m"], 400)}
        half["y"] = rng.choice(["no", "yes"], 400)
        records = fedsw.data.as_records(half, columns=problem.experiment.data.columns)
        cells = tuple(problem.objective.cell_of(records.sensitive, records.target).bincount(minlength=2).tolist())
        sigma = 8.0
        noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((layout.cells, layout.width)))
        moments = Moments(layout, sums_of(problem, layout, records).double() * STEP + sigma * noise, sigma, cells)
        twins = twins_of(moments, problem, public_columns(problem.experiment), seed=seed)
        features, target = twins.features.double().numpy(), twins.target.numpy()
        signs = 2.0 * target - 1
        weights = np.linalg.lstsq(np.c_[features, np.ones(len(features))], signs, rcond=None)[0]
        right = float(((np.c_[features, np.ones(len(features))] @ weights > 0) == (signs > 0)).mean())
        gains.append(right - max(target.mean(), 1 - target.mean()))
    assert np.mean(gains) < 0.05


def test_where_noise_hides_how_much_the_target_varies_nothing_is_promised(tmp_path, capsys):
    for rows, epsilon, told in ((40_000, 8.0, True), (1_000, 0.3, False)):
        folder = stopped(tmp_path / str(rows), rows, NUMBERS, epsilon=epsilon)
        assert main(["plan", "--after-moments", str(folder), "--json", "--quiet"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["forecast"] is not None) == told
    assert "hides how much the target varies (a constant's squared error is between 0 and" in found["verdict"]
    assert "cannot be told" in found["verdict"] and "left of" not in found["verdict"]


def test_where_noise_hides_how_rare_the_rarer_class_is_nothing_is_promised():
    problem = Problem.from_experiment(chosen())
    rows = table(4_000)
    rows["y"] = np.where(np.arange(4_000) % 100 == 0, "yes", "no")
    records = fedsw.data.as_records(rows, columns=problem.experiment.data.columns)
    layout = layout_of(problem)
    cells = tuple(problem.objective.cell_of(records.sensitive, records.target).bincount(minlength=2).tolist())
    exact = Moments(layout, sums_of(problem, layout, records).double() * STEP, 0.0, cells)
    assert hidden_by_noise(exact) == ""
    assert "hides how rare the rarer classes are" in hidden_by_noise(dataclasses.replace(exact, sigma=400.0))


@pytest.mark.parametrize("arguments", [[], ["fair-classification", "--after-moments", "RUN"]])
def test_a_plan_is_of_an_experiment_or_of_a_run_and_not_of_both(tmp_path, arguments, capsys):
    folder = stopped(tmp_path, 400)
    given = [str(folder) if each == "RUN" else each for each in arguments]
    assert main(["plan", *given]) == 2 and "give an EXPERIMENT, or the run" in capsys.readouterr().err


def test_a_run_without_moments_is_named_with_the_remedy(tmp_path):
    with pytest.raises(ExperimentError, match="set a share of the budget, as in privacy.moments=0.1"):
        fedsw.run(chosen(moments=0.0), data=table(300), runs=tmp_path, moments_alone=True)
    assert not list(tmp_path.rglob("ledger.sqlite"))
    done = fedsw.run(chosen(moments=0.0), data=table(300), runs=tmp_path)
    with pytest.raises(ExperimentError, match="--moments-alone"):
        after_moments(done.directory)
