"""Coefficients off released moments: their intervals hold the truth, and they are read off what was released alone."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

import fedsw
from fedsw.data import Records
from fedsw.experiment import parse_experiment
from fedsw.learning.moments.moments_sum import STEP, layout_of, sums_of
from fedsw.learning.moments.released_moments import Moments, coefficients_of
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import kept_moments
from fedsw.runs.report import facts

FEATURES = [
    {"name": "age", "low": 20, "high": 80},
    {"name": "work", "categories": ["a", "b", "c"]},
    {"name": "fee", "low": -5, "high": 5, "scale": "signed"},
    {"name": "seen", "kind": "boolean", "missing": [""], "fill": 0},
]
TARGETS = {
    "regression": {"targets": [{"name": "y", "low": 100, "high": 200}]},
    "two": {"target": {"name": "y", "values": ["yes", "no"], "positive": "yes"}},
    "three": {"target": {"name": "y", "values": ["low", "mid", "high"]}},
}
NAMES = ["age", "work=b", "work=c", "fee", "seen", "seen is missing"]
MODELS = ({"kind": "logistic"}, {"kind": "logistic", "inputs": "centred"}, {"kind": "additive", "knots": 3})
SMALL, MANY = 3_000, 200_000


def problem_of(kind: str, model: dict) -> Problem:
    task = "regression" if kind == "regression" else "classification"
    raw = {
        "name": "own",
        "data": {"source": "object", "columns": {"features": FEATURES, **TARGETS[kind]}},
        "model": model,
        "objective": {"task": task, "alpha": 0.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "moments": 0.2},
    }
    return Problem.from_experiment(parse_experiment(raw))


def drawn(kind: str, count: int, seed: int) -> tuple[Records, np.ndarray, np.ndarray]:
    """Records; and beside them their columns in units of their own (n, 6), and targets in theirs (n, t)."""
    chance = np.random.default_rng(seed)
    trait = chance.standard_normal(count)
    age = np.clip(50 + 15 * (0.6 * trait + 0.8 * chance.standard_normal(count)), 20, 80)
    work = np.eye(3)[chance.choice(3, count, p=[0.3, 0.3, 0.4])]
    fee, missing = chance.uniform(-5, 5, count), (chance.random(count) < 0.3).astype(float)
    seen = (chance.random(count) < 0.5) * (1 - missing)
    score = 0.02 * (age - 50) + 0.5 * work[:, 1] - 0.1 * fee + 0.3 * seen + 0.5 * chance.standard_normal(count)
    features = np.column_stack([(age - 20) / 60, work, fee / 5, seen, missing])
    own = np.column_stack([age, work[:, 1:], fee, seen, missing])
    if kind == "regression":
        number = np.clip(0.45 + 0.12 * score, 0, 1)
        target, said = torch.from_numpy(number[:, None].astype(np.float32)), 100 * (1 + number[:, None])
    else:
        classes = np.digitize(score, [0.2] if kind == "two" else [-0.2, 0.6])
        indicators = np.eye(2 if kind == "two" else 3)[classes]
        target, said = torch.from_numpy(classes), indicators[:, :1] if kind == "two" else indicators
    numbers = torch.arange(count)
    return Records(torch.from_numpy(features.astype(np.float32)), numbers * 0, target, numbers), own, said


def as_table(records: Records) -> dict[str, list[object]]:
    """The columns that records of a number come of, as cells."""
    rows = records.features.double().numpy()
    return {
        "age": list(20 + 60 * rows[:, 0]),
        "work": ["abc"[number] for number in rows[:, 1:4].argmax(axis=1)],
        "fee": list(5 * rows[:, 4]),
        "seen": ["" if missing else ("no", "yes")[int(seen)] for seen, missing in rows[:, 5:]],
        "y": list(100 * (1 + records.target[:, 0].double().numpy())),
    }


def released(problem: Problem, records: Records, multiplier: float, seed: int) -> Moments:
    layout = layout_of(problem)
    sums = sums_of(problem, layout, records).double() * STEP
    sigma = multiplier * layout.moved
    noise = np.random.default_rng([1, seed]).standard_normal(tuple(sums.shape))
    return Moments(layout, sums + sigma * torch.from_numpy(noise), sigma, (len(records),))


def told(problem: Problem, moments: Moments):
    coding = problem.coding
    return coefficients_of(moments, problem.experiment.data.columns, None if coding is None else coding.line)


def least_squares(columns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Slopes (t, q) of exact least squares, by another way than the module's."""
    centred, away = columns - columns.mean(axis=0), targets - targets.mean(axis=0)
    return np.linalg.lstsq(centred, away, rcond=None)[0].T


@pytest.mark.parametrize("model", MODELS, ids=["plain", "centred", "hats"])
@pytest.mark.parametrize("kind", TARGETS)
def test_without_noise_coefficients_are_those_of_least_squares_in_the_columns_own_units(kind, model):
    problem = problem_of(kind, model)
    records, own, said = drawn(kind, SMALL, 3)
    found = told(problem, released(problem, records, 0.0, 0))
    slopes, cut = least_squares(own, said), 0.01 if problem.coding is None or "knots" not in model else 0.04
    assert [one.name for one in found.seen] == NAMES * len(slopes) and not found.hidden
    of = {"regression": ["y"], "two": ["yes"], "three": ["low", "mid", "high"]}[kind]
    assert list(dict.fromkeys(one.target for one in found.seen)) == of
    assert [one.value for one in found.seen] == pytest.approx(
        slopes.reshape(-1), rel=cut, abs=0.2 * cut * abs(slopes).max()
    )
    centred, away = own - own.mean(axis=0), said - said.mean(axis=0)
    left = ((away - centred @ slopes.T) ** 2).mean(axis=0)
    errors = np.sqrt(left[:, None] * np.diag(np.linalg.inv(centred.T @ centred)))
    assert [one.error for one in found.seen] == pytest.approx(errors.reshape(-1), rel=2 * cut)


def slopes_of(problem: Problem, everybody: Moments, columns: list[int], lengths: list[float]) -> np.ndarray:
    """The population's slopes (t, q) on some columns in their own units, as the sums have its records."""
    inputs = [0, 2, 3, 4, 5, 6]  # without the first category
    line = (np.eye(7) if problem.coding is None else problem.coding.line)[:, [inputs[column] for column in columns]]
    solved = np.linalg.solve(line.T @ everybody.covariance @ line, line.T @ everybody.cross).T
    return solved / np.array([lengths[column] for column in columns])


@pytest.mark.parametrize("multiplier", [0.0, 1.5, 6.0])
@pytest.mark.parametrize(("kind", "model"), [(kind, model) for kind in TARGETS for model in (MODELS[0], MODELS[2])])
def test_intervals_hold_the_populations_slope_as_often_as_they_say_whatever_the_noise(kind, model, multiplier):
    problem = problem_of(kind, model)
    everybody = released(problem, drawn(kind, MANY, 0)[0], 0.0, 0)
    held = []
    for seed in range(1, 41):
        found = told(problem, released(problem, drawn(kind, SMALL, seed)[0], multiplier, seed))
        columns = sorted({NAMES.index(one.name) for one in found.seen})
        if columns:
            truth = slopes_of(problem, everybody, columns, [60, 1, 1, 5, 1, 1])
            truth = truth[:1] if kind == "two" else truth * (100 if kind == "regression" else 1)
            held += [one.low <= slope <= one.high for one, slope in zip(found.seen, truth.reshape(-1), strict=True)]
    assert multiplier > 2 or len(held) > 100, "most are told where noise is little"
    # one release's intervals share its noise, so that forty of them say less than their number
    assert np.mean(held or [1.0]) > 0.9 and (len(held) < 500 or np.mean(held) < 0.995)


def test_what_noise_hides_has_no_coefficient_and_is_named():
    problem = problem_of("regression", MODELS[0])
    records, *_ = drawn("regression", SMALL, 3)
    least = told(problem, released(problem, records, 300.0, 0))
    assert least.seen == () and sorted(least.hidden) == sorted(NAMES)
    some = told(problem, released(problem, records, 12.0, 0))
    assert some.seen and some.hidden and {one.name for one in some.seen} | {*some.hidden} == {*NAMES}
    widths = [told(problem, released(problem, records, multiplier, 0)).seen[0].error for multiplier in (0.0, 1.5, 6.0)]
    assert widths == sorted(widths)


def test_an_input_that_the_others_add_up_to_is_left_out_though_there_is_no_noise():
    problem = problem_of("regression", MODELS[0])
    records, *_ = drawn("regression", SMALL, 3)
    features = records.features.clone()
    features[:, 4] = 2 * features[:, 0] - 1  # the fee follows the age
    found = told(problem, released(problem, dataclasses.replace(records, features=features), 0.0, 0))
    assert len(found.hidden) == 1 and found.hidden[0] in ("age", "fee")
    assert all(math.isfinite(number) for one in found.seen for number in (one.value, one.error))


@pytest.mark.parametrize("inputs", ["as-they-are", "constant-first"])
def test_a_runs_coefficients_are_read_off_what_its_folder_has_released_and_nothing_else(tmp_path, inputs):
    rows = drawn("regression", 400, 5)[0]
    raw = {
        "name": "own",
        "data": {"source": "object", "columns": {"features": FEATURES, **TARGETS["regression"]}},
        "model": {"kind": "logistic", "inputs": inputs} if inputs != "as-they-are" else {"kind": "logistic"},
        "objective": {"task": "regression", "alpha": 0.0},
        "training": {"rounds": 1, "batch_fraction": 1.0},
        "federation": {"clients": 2},
        "privacy": {"epsilon": 300.0, "delta": 1e-6, "moments": 0.5},
    }
    result = fedsw.run(raw, runs=tmp_path, data=as_table(rows), moments_alone=True)
    said = result.summary["moments"]["coefficients"]
    experiment, _ = RunDirectory(result.directory).read_config()
    problem = Problem.from_experiment(experiment)
    again = dataclasses.asdict(told(problem, kept_moments(problem, RunDirectory(result.directory))))
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(said))
    table, sentences = facts.coefficients(result.summary), facts.coefficient_sentences(result.summary)
    if inputs == "constant-first":
        assert said == {"seen": [], "hidden": []} and not table.rows and not sentences
    else:
        assert len(table.rows) + len(said["hidden"]) == len(NAMES) and sentences
