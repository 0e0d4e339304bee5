"""Laws of what is read off moments: the map in front of a model, its folding, and where training starts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import nn

from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.experiment import parse_experiment
from fedsw.learning import models
from fedsw.learning.moments.preparation import (
    Preparation,
    closed_form,
    foldable,
    folded,
    prepare,
    started,
    whitening_of,
)
from fedsw.learning.moments.released_moments import columns_used, constant_of
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.optimizer import Trainer
from tests.learning.tasks.test_moments import problem_and_records, released

REGRESSION = "objective.task='regression'"


def noised(moments, sigma: float, seed: int = 0):
    law = np.random.default_rng(seed)
    noise = torch.from_numpy(law.normal(size=tuple(moments.values.shape)) * sigma)
    return dataclasses.replace(moments, values=moments.values + noise, sigma=sigma)


def test_prepared_inputs_have_mean_0_and_about_unit_covariance_within_classes():
    task, records = problem_and_records(count=2000)
    moments = released(task, records)
    prepared = prepare(task, moments)
    z = prepared.apply(task.inputs(records)).double().numpy()
    assert z.mean(0) == pytest.approx(0, abs=5e-3)
    y = records.target.numpy()
    within = sum(np.cov(z[y == label].T, bias=True) * (y == label).mean() for label in (0, 1))
    assert within == pytest.approx(np.trace(within) / len(within) * np.eye(len(within)), abs=2e-2)
    assert 0.9 < np.trace(within) / len(within) < 1.1
    assert prepared.scale == pytest.approx(np.sqrt(1 + (z**2).sum(1).mean()), rel=0.01)


def test_columns_that_noise_hides_are_scaled_alike_and_not_blown_up():
    task, records = problem_and_records(count=2000)
    features = records.features.clone()
    features[:, 2:] = 0.3 + 1e-4 * features[:, 2:]
    narrow = dataclasses.replace(records, features=features)
    exact, seen = released(task, narrow), noised(released(task, narrow), 3.0)
    assert exact.hidden == 0 < 1e-4 < seen.hidden
    blown, left = (np.linalg.norm(whitening_of(each), axis=0)[2:] for each in (exact, seen))
    assert blown.min() > 50 * left.max() and left.max() <= 1 / np.sqrt(seen.hidden)
    stretched = [np.linalg.norm(whitening_of(noised(exact, sigma)), 2) for sigma in (1.0, 3.0, 9.0, 27.0)]
    assert all(more > less for more, less in zip(stretched, stretched[1:], strict=False))


NOISY = ("privacy.moments=0.2", "training.rounds=50", "training.momentum=0.9", "training.averaging=0.5")


BY_NOISE = (REGRESSION, "model.inputs='by-noise'", "objective.alpha=0.0")
SHAKEN = (
    ((), 0.35),
    ((REGRESSION,), 0.173),
    ((*BY_NOISE, "training.learning_rate=0.001"), 0.346),
    ((*BY_NOISE, "training.learning_rate=0.002"), 0.692),
    ((*BY_NOISE, "training.learning_rate=0.001", "training.momentum=0.5", "clip.loss=0.6"), 0.346),
)
"""Settings, and what the noise of the rounds comes to in an answer before its sigmoid: at most, or by design."""


@pytest.mark.parametrize(("overrides", "most"), SHAKEN)
def test_the_noise_of_all_rounds_shakes_outputs_no_more_than_it_may(overrides, most):
    """The same optimizer, moved by noise alone, whose size follows from that of the moments."""
    task, records = problem_and_records(*NOISY, "training.learning_rate=0.6", "model.kind='logistic'", *overrides)
    moments = noised(released(task, records), 0.5)
    prepared = prepare(task, moments)
    moved = max(each.value for each in task.clipped.sensitivities(moments.records, task.clipped.planned_spreads()))
    round_ = np.sqrt(0.2 / 0.8 * 50) * moments.sigma / moments.layout.moved * prepared.scale * moved
    chance, trainer = np.random.default_rng(0), Trainer(torch.zeros(4000), task.experiment.training)
    for _ in range(50):
        trainer.step(torch.from_numpy(round_ * chance.standard_normal(4000)))
    z = prepared.apply(task.inputs(records)).double().numpy()
    shaken = float(trainer.model.std()) * np.sqrt(1 + (z**2).sum(1).mean())
    assert 0.7 * most < shaken < 1.3 * most


def test_inputs_by_noise_are_no_longer_than_steps_bear():
    """Without noise steps of the rate that is meant would diverge, were inputs as long as noise allows."""
    task, records = problem_and_records(*NOISY, "model.kind='logistic'", *BY_NOISE, "training.learning_rate=0.001")
    moments = released(task, records)
    z = prepare(task, moments).apply(task.inputs(records)).double().numpy()
    means = records.target.double().mean(0).numpy()
    curvature = 2 * np.mean((means * (1 - means)) ** 2) * np.linalg.eigvalsh(np.cov(z.T))[-1]
    assert 0.5 < 0.001 * curvature < 1.1


def test_without_noise_a_classifier_starts_at_the_discriminant_of_a_pooled_covariance():
    task, records = problem_and_records(count=2000)
    moments = released(task, records)
    prepared, model = prepare(task, moments), task.build_model()
    models.load_flat(model, started(task, prepared, moments, model))
    with torch.no_grad():
        logits = folded(model, prepared)(task.inputs(records)).double().numpy()[:, 0]
    known = LinearDiscriminantAnalysis(solver="lsqr").fit(task.inputs(records).numpy(), records.target.numpy())
    assert logits == pytest.approx(known.decision_function(task.inputs(records).numpy()), abs=0.05)


def test_without_noise_slopes_of_a_regression_are_those_of_least_squares():
    task, records = problem_and_records(REGRESSION, count=2000)
    moments = released(task, records)
    prepared = prepare(task, moments)
    slopes, constants = closed_form(moments, prepared)
    x, y = task.inputs(records).double().numpy(), records.target.double().numpy()
    known = Ridge(alpha=1e-6).fit(x, y).coef_
    found = (prepared.matrix.numpy() @ slopes).T
    assert found[0] / np.linalg.norm(found[0]) == pytest.approx(known[0] / np.linalg.norm(known[0]), abs=0.02)
    predicted = 1 / (1 + np.exp(-((x - moments.mean) @ prepared.matrix.numpy() @ slopes + constants)))
    assert predicted.mean(0) == pytest.approx(y.mean(0), abs=0.01)
    assert ((predicted - y) ** 2).mean() <= 1.01 * ((Ridge(alpha=1e-6).fit(x, y).predict(x) - y) ** 2).mean()


def test_of_a_target_far_off_its_middle_noise_in_the_inputs_mean_is_no_signal():
    """A covariance has the noise of the inputs' mean, too, times the target's distance from its middle."""
    task, records = problem_and_records(REGRESSION, count=2000)
    informative = dataclasses.replace(records, target=0.03 + 0.02 * records.target)
    nothing = dataclasses.replace(records, target=torch.full_like(records.target, 0.03))
    moments, empty = (released(task, one) for one in (informative, nothing))

    def seen(exact, sigma: float) -> list[float]:
        found = [noised(exact, sigma, seed) for seed in range(20)]
        return [float(np.linalg.norm(closed_form(one, prepare(task, one))[0])) for one in found]

    assert sum(norm == 0 for norm in seen(empty, 1.0)) >= 5
    assert min(seen(moments, 1e-3)) > 0


@pytest.mark.parametrize("overrides", [(), (REGRESSION,)])
def test_a_network_starts_about_the_mean_of_its_target(overrides):
    task, records = problem_and_records("model.kind='mlp'", "model.hidden=[8]", *overrides)
    if not overrides:
        records = dataclasses.replace(records, target=(records.ids < 60).long())
    moments = released(task, records)
    prepared, model = prepare(task, moments), task.build_model()
    before = models.flatten(model)
    theta = started(task, prepared, moments, model)
    assert torch.equal(models.flatten(model), before)
    models.load_flat(model, theta)
    with torch.no_grad():
        outputs = torch.sigmoid(model(prepared.apply(task.inputs(records))))
    wanted = records.target.float().mean(0)
    assert float(abs(outputs.mean(0) - wanted).max()) < 0.06


class _Residual(nn.Module):
    """A model that looks at its inputs twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        return inputs + self.layer(inputs)


MODELS = [
    (models.logistic(4), True),
    (models.mlp(4, (5, 3), 2, seed=1), True),
    (models.EncoderDecoder(4, (3,), 2), True),
    (nn.Linear(4, 1, bias=False), False),
    (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)), False),
    (nn.Sequential(nn.Tanh(), nn.Linear(4, 1)), False),
    (_Residual(), False),
]


@pytest.mark.parametrize(("model", "wanted"), MODELS)
def test_whether_a_preparation_folds_into_a_model_is_tried(model, wanted):
    assert foldable(model, 4) is wanted


def _made_up(features: int = 4) -> Preparation:
    law = torch.Generator().manual_seed(3)
    numbers = torch.randn(features + features**2, dtype=torch.float64, generator=law)
    return Preparation(numbers[:features], numbers[features:].reshape(features, features), 2.5)


@pytest.mark.parametrize("model", [model for model, folds in MODELS if folds])
def test_a_folded_model_of_raw_inputs_says_what_the_prepared_one_says(model):
    prepared, model = _made_up(), model.double()
    inputs = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = models.flatten(model)
    wanted, found = model(prepared.apply(inputs)), folded(model, prepared)(inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert torch.equal(models.flatten(model), before)


def test_a_preparation_goes_through_one_vector_and_a_broken_one_is_refused():
    one = _made_up()
    again = Preparation.of_flat(one.flat(), 4)
    assert torch.equal(again.flat(), one.flat()) and Preparation.length(4) == len(one.flat())
    for broken in (one.flat()[1:], one.flat() * torch.inf, torch.cat([one.flat()[:-1], torch.zeros(1).double()])):
        with pytest.raises(ValueError, match="preparation"):
            Preparation.of_flat(broken, 4)


def _declared(count: int) -> Columns:
    return Columns.model_validate(
        {"features": [{"name": f"x{number}", "low": 0, "high": 1} for number in range(count)]}
    )


def test_a_column_is_said_to_use_little_of_its_bounds_only_where_noise_allows_it():
    task, records = problem_and_records(count=2000)
    features = torch.rand(records.features.shape, generator=torch.Generator().manual_seed(0))
    features[:, 2] = 0.7 + 0.01 * (features[:, 2] - 0.5)
    moments = released(task, dataclasses.replace(records, features=features))
    columns = _declared(features.shape[1])
    said = columns_used(moments, columns)
    assert [each.name for each in said] == ["x2"] and said[0].part == pytest.approx(0.0115, rel=0.1)
    assert [each.name for each in columns_used(noised(moments, 0.05), columns)] == ["x2"]
    assert not columns_used(noised(moments, 30.0), columns)
    assert sum(len(columns_used(noised(moments, 3.0, seed), columns)) > 1 for seed in range(40)) <= 4
    unseen = [each for seed in range(40) for each in columns_used(noised(moments, 0.05, seed), columns)]
    assert any(each.part == 0 for each in unseen) and all(each.most > 0.2 for each in unseen)


@pytest.mark.parametrize("overrides", [(), (REGRESSION,)])
def test_intervals_of_the_constant_answer_hold_the_truth_as_often_as_they_say(overrides):
    task, records = problem_and_records(*overrides, count=2000)
    moments, held, times = released(task, records), 0, 100
    y = records.target.double().numpy()
    truth = max(y.mean(), 1 - y.mean()) if y.ndim == 1 else y.var(axis=0).sum()
    means = [1 - y.mean(), y.mean()] if y.ndim == 1 else y.mean(axis=0)
    exact = constant_of(moments)
    assert exact.score.value == pytest.approx(truth, abs=1e-3)
    assert [each.value for each in exact.means] == pytest.approx(list(means), abs=1e-3)
    for seed in range(times):
        found = constant_of(noised(moments, 5.0, seed))
        held += all(low.low <= mean <= low.high for low, mean in zip(found.means, means, strict=True))
    assert held >= 0.9 * times
    widths = [e.high - e.low for e in (constant_of(noised(moments, sigma)).score for sigma in (0.5, 5.0, 10.0))]
    assert widths[0] < widths[1] < widths[2]


def constant_first(task_name: str):
    columns = {
        "features": [{"name": "x", "low": 0, "high": 1}, {"name": "z", "low": 0, "high": 1}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
    }
    if task_name == "regression":
        columns["targets"] = [{"name": "y", "low": 0, "high": 1}]
    else:
        columns["target"] = {"name": "y", "values": ["no", "yes"]}
    experiment = parse_experiment(
        {
            "name": "own",
            "data": {"source": "object", "columns": columns},
            "model": {"kind": "logistic", "inputs": "constant-first"},
            "objective": {"task": task_name, "alpha": 0.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "moments": 0.1},
        }
    )
    chance = torch.Generator().manual_seed(4)
    target = torch.rand(200, 1, generator=chance) ** 3
    target = target if task_name == "regression" else (target[:, 0] > 0.5).long()
    features, group = torch.rand(200, 2, generator=chance), torch.arange(200) % 2
    return Problem.from_experiment(experiment), Records(features, group, target, torch.arange(200))


@pytest.mark.parametrize("name", ["regression", "classification"])
def test_moments_of_the_target_alone_leave_inputs_as_they_are_and_start_at_the_constant(name):
    task, records = constant_first(name)
    moments = released(task, records)
    prepared = prepare(task, moments)
    inputs = task.inputs(records)
    assert moments.layout.features == 0 and prepared.scale == 1.0
    assert torch.equal(prepared.apply(inputs), inputs) and float(inputs.abs().max()) > 1, "about their middle"
    model = task.prepared(task.build_model().double(), started(task, prepared, moments, task.build_model()).double())
    with torch.no_grad():
        answers = torch.sigmoid(model(inputs.double()))
    assert answers.numpy() == pytest.approx(float(records.target.double().mean()), abs=2e-3)
    assert columns_used(moments, task.experiment.data.columns) == ()
