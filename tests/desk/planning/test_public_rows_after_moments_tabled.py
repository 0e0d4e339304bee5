"""Laws of twins where nobody is trusted: they get the noise that all clients add, and ranks from noised histograms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsw.desk.planning.forecast import trained
from fedsw.desk.planning.public_rows import LAWS, TabledClipped, drawn, summed_noise
from fedsw.desk.planning.run_plan import planned
from fedsw.experiment import Experiment
from fedsw.federation.trust import budget_shares as split
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.problem import Problem
from tests.desk.planning.test_forecast import FEW
from tests.experiment.test_preset_rules import SIZES, asked

BATCH = (400, 600)


def local(clients: int, alpha: float, **changes) -> Experiment:
    return asked(
        privacy={"trust": "local-gradient", "noise_multiplier": 3.0},
        federation={"clients": clients},
        objective={"penalty": "statistical-parity", "alpha": alpha},
        **{"training": {"rounds": 8, "learning_rate": 2.0}, **changes},
    )


def score(experiment: Experiment, multiplier: float):
    problem = Problem.from_experiment(experiment)
    twins, held_out = (drawn(experiment.data.columns, SIZES, LAWS[2], seed=seed) for seed in (0, 1))
    return trained(problem, (twins, held_out), multiplier=multiplier)[0]


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_noise_adds_up_over_clients_each_with_that_of_the_protocol(alpha):
    experiment = local(25, alpha)
    problem, clip = Problem.from_experiment(experiment), Clip(0.5, 0.2, 0.3)
    divided = split.budget_split(experiment, rate=1.0, delta=1e-6)
    one = split.noise(divided, problem.objective.parts[0], clip, sizes=BATCH, own_sizes=BATCH, spread=1.0, k=1)
    found = summed_noise(problem, experiment, clip, BATCH, multiplier=3.0)
    assert (found.count, found.gradient) == pytest.approx((5 * one.table, 5 * one.contribution))
    assert (found.count > 0) == (alpha > 0)


def test_without_a_penalty_clients_of_their_own_noise_are_a_server_with_the_root_of_their_number_as_much():
    given = {"training": {"rounds": 8, "learning_rate": 2.0, "preset": "none"}}
    trusted = asked(objective={"alpha": 0.0}, privacy={"noise_multiplier": 3.0}, **given)
    assert score(local(16, 0.0), 3.0).model == pytest.approx(score(trusted, 12.0).model, abs=1e-9)
    assert score(local(16, 0.0), 3.0).model != pytest.approx(score(trusted, 3.0).model, abs=1e-9)


def test_ranks_from_fine_histograms_without_noise_pull_like_the_ranks_themselves():
    experiment = local(4, 1.0)
    problem = replace(Problem.from_experiment(experiment), clip=Clip(0.5, 1.0, 1.0))
    twins = drawn(experiment.data.columns, SIZES, LAWS[0], seed=0)
    records, model = twins.take(torch.argsort(twins.sensitive, stable=True)), problem.build_model()

    def pulled(bins: int, deviation: float) -> torch.Tensor:
        tabled = TabledClipped(**vars(problem.clipped), bins=bins, deviation=deviation, seed=0)
        return tabled.gradient(model, records, BATCH, 1, 0)[0]

    true, _ = problem.clipped.gradient(model, records, BATCH, 1, 0)
    far = {bins: float((pulled(bins, 0.0) - true).norm() / true.norm()) for bins in (64, 65536)}
    assert far[65536] < 0.02 < far[64]
    assert float((pulled(64, 50.0) - true).norm() / true.norm()) > 2 * far[64]


@pytest.mark.slow
def test_a_plan_expects_less_of_more_clients_and_of_a_penalty_among_many():
    def kept(clients: int, alpha: float) -> float:
        experiment = asked(
            privacy={"trust": "local-gradient", "epsilon": 10.0},
            federation={"clients": clients},
            objective={"penalty": "statistical-parity", "alpha": alpha},
            training={"rounds": 10, "learning_rate": 2.0},
        )
        return planned(experiment, SIZES, strengths=FEW, expect="much").forecast.share_left

    assert kept(2, 0.0) > kept(200, 0.0) + 0.1
    assert kept(50, 0.0) > kept(50, 0.5) + 0.05
