"""Laws of the quick steps of linear models on twins: they are the run's own steps within rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedsw.data.records import with_features
from fedsw.desk.planning import forecast
from fedsw.desk.planning.forecast import curve, is_linear, linear_sums
from fedsw.desk.planning.public_rows import LAWS, drawn
from fedsw.learning.models import flatten
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.problem import Problem
from tests.experiment.test_preset_rules import SIZES, asked

ALONE = {"objective": {"alpha": 0.0}}
CLIP = Clip(1.0, 1.0, 0.6)  # about half of the records are longer


def test_a_linear_layer_s_gradient_is_that_of_every_model_s_clip_within_rounding():
    problem = replace(Problem.from_experiment(asked(**ALONE)), clip=CLIP, ready=True)
    twins = drawn(problem.experiment.data.columns, SIZES, LAWS[1], seed=0)
    twins = twins.take(torch.argsort(twins.sensitive, stable=True))
    records, model = with_features(twins, replace(problem, ready=False).inputs(twins)), problem.build_model()
    summed = linear_sums([(problem.clipped, records)] * 2)
    for _ in range(2):
        exact, _ = problem.clipped.gradient(model, records, tuple(SIZES.values()), 1, 0)
        for total in summed([flatten(model)] * 2):
            assert torch.allclose(total, exact, rtol=1e-3, atol=1e-4 * float(exact.norm()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3)


def test_only_one_layer_that_no_penalty_pulls_at_is_linear():
    alone = Problem.from_experiment(asked(**ALONE)).objective
    pulled = Problem.from_experiment(asked(objective={"alpha": 0.2})).objective
    layer = nn.Linear(3, 1)
    assert is_linear(layer, alone) and is_linear(nn.Sequential(layer), alone)
    assert not is_linear(layer, pulled)
    assert not is_linear(nn.Linear(3, 1, bias=False), alone)
    assert not is_linear(nn.Sequential(layer, nn.ReLU()), alone)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_a_forecast_s_scores_are_those_of_the_run_s_own_steps(fraction, monkeypatch):
    experiment = asked(**ALONE, training={"preset": "auto", "batch_fraction": fraction})
    made = partial(
        curve, experiment, Problem.from_experiment(experiment), SIZES, laws=LAWS[2:], strengths=(30.0, 300.0)
    )
    quick = made()
    monkeypatch.setattr(forecast, "is_linear", lambda model, objective: False)
    slow = made()
    for point, again in zip(quick.points, slow.points, strict=True):
        assert point.scores[0].gain == pytest.approx(again.scores[0].gain, abs=2e-3)
    assert slow.points[-1].scores[0].gain > 0.1
