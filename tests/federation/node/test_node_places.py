"""A node of an additive model keeps places of columns: whatever leaves it is that of the linear model of all hats."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedsw._tools.randomness import Stream
from fedsw.desk.own_data.rehearsal import made_up, on_objects
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.node import Node
from fedsw.federation.server.releases_once import unprepared
from fedsw.federation.trust.sums_once import ScoreSum, TallySum
from fedsw.learning.moments.beside_rounds import moments_layout, scores_of, tally_of
from fedsw.learning.moments.moments_sum import sums_of
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.tasks import problem as problems
from fedsw.learning.tasks.measures import tally_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores

FEATURES = [
    {"name": "age", "low": 0, "high": 100},
    {"name": "pay", "low": 10, "high": 2000, "missing": [""], "fill": 15},
    {"name": "work", "categories": ["a", "b", "c"]},
    {"name": "home", "categories": ["own", "rent"], "missing": ["?"], "fill": "own"},
    {"name": "kids", "kind": "integer", "low": 0, "high": 3},
    {"name": "at", "count": 2, "low": 0, "high": 1, "knots": [0.1, 0.2, 0.9]},
]
TASKS = {
    "two classes": {"target": {"name": "ill", "values": ["no", "yes"]}},
    "three classes": {"target": {"name": "ill", "values": ["no", "some", "yes"]}},
    "numbers": {"targets": [{"name": "cost", "low": 0, "high": 9}, {"name": "days", "low": 0, "high": 5}]},
}
SIZES = (60, 40)


def experiment_of(task: str, **training) -> Experiment:
    columns = {"features": FEATURES, "sensitive": {"name": "sex", "values": ["f", "m"]}, **TASKS[task]}
    return parse_experiment(
        {
            "name": "places",
            "data": {"source": "files", "columns": columns, "held_out_to": "everybody", "held_out_fraction": 0.2},
            "model": {"kind": "additive", "knots": 5},
            "objective": {"alpha": 0.2, "task": "regression" if task == "numbers" else "classification"},
            "training": {"rounds": 3, "batch_fraction": 1.0, **training},
            "federation": {"clients": 2},
            "clip": {"loss": 0.05, "jacobian": 0.05},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "moments": 0.2},
        }
        | ({"thresholds": {"share": 0.1}} if task == "two classes" else {})
    )


def node_of(task: str, **training) -> tuple[Node, Problem]:
    """A node of two clients, and the same problem of somebody who writes all hats."""
    experiment = experiment_of(task, **training)
    problem, columns = Problem.from_experiment(experiment), experiment.data.columns
    records, kept = (made_up(columns, dict(zip(columns.groups, SIZES, strict=True)), seed=seed) for seed in (0, 1))
    clients, owner = np.arange(2), np.arange(sum(SIZES)) % 2
    node, held_out = (Node.of(problem, Held(each, owner, clients), "run") for each in (records, kept))
    node.held_out = held_out
    return node, problem


def prepared(node: Node, problem: Problem) -> Problem:
    """The problem under a preparation that the node gets, too."""
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(Preparation.length(problem.features), generator=generator, dtype=torch.float64) / 3
    vector[-1] = 2.0
    node.prepare(vector)
    return problem.under(Preparation.of_flat(vector, problem.features))


def random(count: int, *, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("task", TASKS)
def test_outputs_and_contributions_are_those_of_the_linear_model_of_hats(task, precision):
    node, problem = node_of(task, precision=precision)
    near = 3e-5 if precision == "float32" else 1e-6
    for mapped in (False, True):
        where = prepared(node, problem) if mapped else problem
        theta = random(where.parameters, seed=4)
        plain = Node.of(problem, Held(node.records, np.arange(sum(SIZES)) % 2, np.arange(2)), "run")
        plain.task, plain.model = where, where.build_model()  # which nobody does
        assert not plain.task.ready and node.task.ready and node.task.places
        drawn = node.everybody(Stream(bytes(32)))
        assert drawn.features.dtype == torch.int32 and len(drawn.features[0]) == 8
        batch, outputs = node.forward(theta, drawn, 1, 0)
        expected, outputs_expected = plain.forward(theta, node.records, 1, 0)
        torch.testing.assert_close(outputs, outputs_expected, atol=near, rtol=near)
        q = random(outputs.numel(), seed=5).reshape(outputs.shape)
        found, loss = node.task.clipped.contribution(batch, q, 0.01)
        other, loss_expected = plain.task.clipped.contribution(expected, q, 0.01)
        assert float((found - other).norm() / other.norm()) < 2 * near
        assert loss == loss_expected == 0.0  # which is of unsafe metrics alone


@pytest.mark.parametrize("task", TASKS)
def test_moments_are_those_of_the_hats(task):
    node, problem = node_of(task)
    layout = moments_layout(problem)
    assert layout is not None
    found = sums_of(node.task, layout, node.everybody(Stream(bytes(32))))
    expected = sums_of(problem, layout, node.records)
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_kept_records_are_tallied_under_the_released_model_whatever_map_the_others_went_through():
    node, problem = node_of("two classes")
    theta = random(problem.parameters, seed=4)
    released = unprepared(prepared(node, problem), theta)
    tally, kept = tally_of(problem), node.held_out
    assert tally is not None and kept is not None
    found = TallySum(problem, released).steps(node, range(2), Stream(bytes(32)))
    model = problem.prepared(problem.build_model(), released)
    assert torch.equal(found, tally_of_records(problem, tally, kept.records, model))


def test_scores_are_counted_under_the_released_model_whatever_map_the_rounds_had():
    node, problem = node_of("two classes")
    released = unprepared(prepared(node, problem), random(problem.parameters, seed=4))
    counts = scores_of(problem)
    assert counts is not None
    found = ScoreSum(problem, released).steps(node, range(2), Stream(bytes(32)))
    model = problem.prepared(problem.build_model(), released)
    expected = counts_of_scores(problem, counts, node.records, model)
    assert (found - expected).abs().sum() <= 4  # a score at the edge of a bin is on either side of it


@pytest.mark.parametrize("task", TASKS)
def test_a_contribution_weighs_no_more_than_its_clips_whatever_records_hold(task):
    node, problem = node_of(task)
    features = node.records.features.clone()
    features[::7] = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30])[torch.randint(5, features[::7].shape)]
    node.records = replace(node.records, features=torch.randn_like(features).where(features == 0, features))
    for mapped in (False, True):
        where = prepared(node, problem) if mapped else problem
        theta = random(where.parameters, seed=4)
        batch, outputs = node.forward(theta, node.everybody(Stream(bytes(32))), 1, 0)
        q = random(outputs.numel(), seed=5).reshape(outputs.shape)
        weights = torch.full((len(q),), 0.5, dtype=torch.float64)
        found = torch.linalg.vector_norm(node.task.clipped.contributions(batch, q, weights, [1] * len(q))[0], dim=1)
        most = where.clip.jacobian * q.norm(dim=1) + 0.5 * where.clip.loss
        assert bool((found <= most).all()) and float((found / most).max()) > 0.9


def test_a_client_by_itself_goes_through_the_map_of_its_site():
    node, problem = node_of("two classes")
    before = node.alone(1)
    prepared(node, problem)
    alone, theta = node.alone(1), random(problem.parameters, seed=4)
    assert alone is before and alone.task is node.task
    _, outputs = alone.forward(theta, alone.everybody(Stream(bytes(32))), 1, 0)
    rows = node.records.take(np.arange(sum(SIZES)) % 2 == 1)
    mapped = node.task.readied(rows)
    _, expected = node.forward(theta, mapped, 1, 0)
    assert torch.equal(outputs, expected)


def test_code_of_a_users_own_gets_all_hats():
    problem = Problem.from_experiment(experiment_of("two classes"))
    assert problem.of_holder().places

    class Own(type(problem.task)):
        """A task that may look at inputs."""

    assert not replace(problem, task=Own()).of_holder().places
    penalty = replace(problem.objective.penalties[0], outputs=lambda raw, batch: raw, dimension=1)
    assert not replace(problem, objective=type(problem.objective)((penalty,))).of_holder().places
    normed = problem.experiment.data.model_copy(update={"row_norm": 1.0})
    assert not replace(problem, experiment=problem.experiment.model_copy(update={"data": normed})).of_holder().places


def trained(experiment: Experiment, folder: Path) -> dict[str, np.ndarray]:
    columns = experiment.data.columns
    parts = [made_up(columns, {"f": 150, "m": 120}, seed=client) for client in range(3)]
    run(on_objects(experiment, 3, 3), data=parts, runs=folder)
    (weights,) = folder.rglob("model.safetensors")
    return load_file(weights)


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_is_remembered")
@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_a_run_of_places_ends_with_the_model_of_all_hats(tmp_path, trust, monkeypatch):
    settings = experiment_of("two classes").model_dump(mode="json", exclude_unset=True)
    settings["privacy"]["trust"] = trust
    settings |= {"seed": 1, "federation": {"clients": 3}}
    del settings["thresholds"], settings["data"]["held_out_to"], settings["data"]["held_out_fraction"]
    experiment = parse_experiment(settings)
    found = trained(experiment, tmp_path / "places")
    monkeypatch.setattr(problems, "reads_places", lambda *_: False)
    expected = trained(experiment, tmp_path / "hats")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() <= 1e-3 * np.abs(values).max(), name
