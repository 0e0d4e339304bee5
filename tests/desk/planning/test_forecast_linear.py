"""Laws of the quick steps of linear models on twins: they are the run's own steps within rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedsw.desk.planning import forecast
from fedsw.desk.planning.forecast import LinearObjective, batches_of, curve, is_linear
from fedsw.desk.planning.public_rows import LAWS, drawn
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.single.objective import Objective
from fedsw.runs.single.training_plan import plan
from tests.experiment.test_preset_rules import SIZES, asked

ALONE = {"objective": {"alpha": 0.0}}
CLIP = Clip(1.0, 1.0, 0.6)  # about half of the records are longer


def of_twins(**sections):
    """A problem of no penalty, its objective in both ways, and twins."""
    experiment = asked(**(ALONE | sections))
    problem = Problem.from_experiment(experiment)
    twins = drawn(experiment.data.columns, SIZES, LAWS[1], seed=0)
    records = replace(twins, features=problem.inputs(twins).float())
    return (
        problem,
        records,
        [forecast.training_objective(problem, experiment, kind) for kind in (Objective, LinearObjective)],
    )


def planned(objective, fraction=1.0):
    sizes = [SIZES[name] for name in SIZES] if len(objective.strata) > 1 else [sum(SIZES.values())]
    return plan(objective, CLIP, sizes=sizes, rounds=2, epsilon=1.0, delta=1e-5, batch_fraction=fraction, seed=0)


def test_a_linear_layer_s_gradient_is_that_of_every_model_s_clip_within_rounding():
    problem, records, (own, quick) = of_twins()
    model = problem.build_model()
    for batch, again in zip(planned(own).batches(records), batches_of(planned(quick), records), strict=True):
        exact, close = own.gradient(model, batch, CLIP), quick.gradient(model, again, CLIP)
        assert (close.round, close.charges, close.sensitivity) == (exact.round, exact.charges, exact.sensitivity)
        wanted = exact._take()
        assert torch.allclose(close._take(), wanted, rtol=1e-3, atol=1e-4 * float(wanted.norm()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3)


def test_only_one_layer_that_no_penalty_pulls_at_is_linear():
    _, _, (alone, _) = of_twins()
    _, _, (pulled, _) = of_twins(objective={"alpha": 0.2})
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
