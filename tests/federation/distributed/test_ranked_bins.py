"""`local.bins = "auto"`: public sizes alone choose, all sites alike; less noise and more records give finer tables."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsw._tools.settings import ExperimentError
from fedsw.audit.record import audit
from fedsw.experiment.sections import AUTO_BINS
from fedsw.federation import messages
from fedsw.federation.trust.distributed import (
    attempt_cost as budget,
)
from fedsw.federation.trust.distributed import (
    masked_rounds as server,
)
from fedsw.federation.trust.distributed import (
    ranked,
)
from fedsw.federation.trust.distributed import (
    site as client,
)
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from tests.federation.distributed.sites import experiment_of
from tests.federation.distributed.test_attempt_cost import SEVERAL, attempt
from tests.federation.local_runs import kind_of
from tests.federations import Saboteur, numbers, small

AUTO = ("objective.alpha=0.75", "clip.output=0.5", "clip.centre=0.5", "training.rounds=30", "local.bins=auto")
TASK = Problem.from_experiment(experiment_of(*AUTO))
SIZE = st.integers(20, 10**5)
NOISE = st.floats(0.1, 300.0)


def bins_of(batch, multiplier: float, task: Problem = TASK) -> int:
    return budget.bins_of(task, batch, task.clipped.directions(1, 0), multiplier)


@given(SIZE, NOISE, st.floats(1.0, 100.0))
def test_bins_fall_as_noise_grows(size, multiplier, factor):
    assert bins_of((size, size), multiplier) >= bins_of((size, size), factor * multiplier)


@given(SIZE, SIZE, NOISE, st.integers(1, 50))
def test_bins_grow_with_the_batch(one, other, multiplier, factor):
    assert bins_of((one, other), multiplier) <= bins_of((factor * one, factor * other), multiplier)


def test_there_are_never_fewer_than_four_and_never_more_than_256():
    assert (bins_of((20, 20), 300.0), bins_of((10**5, 10**5), 0.1)) == (4, 256)


def test_a_number_that_is_written_is_the_number():
    task = Problem.from_experiment(experiment_of(*AUTO, "local.bins=300"))
    assert bins_of((20, 20), 300.0, task) == 300


def test_no_other_number_makes_the_weighed_errors_less():
    """Both noises at the share that the bins get, averaged over the rounds, and the width, which is not."""
    batch, multiplier = (1500, 1200), 4.0
    directions, errors = TASK.clipped.directions(1, 0), ranked.table_errors(TASK, (1500, 1200), [1])
    bound = budget.bound_of(TASK, batch, [1.0])

    def error(bins: int) -> float:
        share = budget.table_share(TASK, batch, bound, directions, bins)
        noise = errors.noise * bins / share + TASK.parameters * bound.value**2 / (1 - share)
        return multiplier**2 * noise / 30 + errors.binning / bins**2

    assert 4 < bins_of(batch, multiplier) < 256
    assert error(bins_of(batch, multiplier)) == pytest.approx(min(map(error, AUTO_BINS)), rel=1e-12)


@pytest.mark.parametrize(("size", "multiplier"), [(1500, 3.3), (200, 3.3), (10_000, 20.0)])
def test_the_chosen_number_costs_little_more_than_the_best_one(size, multiplier):
    """Errors of the mean of 30 whole gradients against exact ranks, with Jacobians that share a direction."""
    batch, draw, goal, rounds = (size, size), torch.Generator().manual_seed(0), TASK.objective.between_groups(), 30
    directions = TASK.clipped.directions(1, 0)
    bound = budget.bound_of(TASK, batch, [1.0])
    squares = [torch.rand((size, 1), generator=draw, dtype=torch.float64).square() for _ in range(2)]
    outputs = [squares[0] - 0.5, 0.5 - squares[1]]
    jacobians = torch.randn((2 * size, TASK.parameters), generator=draw, dtype=torch.float64)
    jacobians[:, 0] = 3.0
    jacobians /= jacobians.norm(dim=1, keepdim=True)
    exact = (jacobians * torch.cat(goal.cotangents(outputs, directions[0]))).sum(dim=0)

    def error(bins: int) -> float:
        counts = [tables.histograms(each, directions[0], 0.5, bins) for each in outputs]
        share = budget.table_share(TASK, batch, bound, directions, bins)

        def wrong(sigma: float) -> float:
            noisy = [c + sigma * torch.randn(c.shape, generator=draw, dtype=torch.float64) for c in counts]
            means = tables.matched([tables.monotone(each, size) for each in noisy], goal, 0.5)
            q = [
                tables.cotangents(rows, directions[0], means[cell], goal, cell=cell, size=size, radius=0.5)
                for cell, rows in enumerate(outputs)
            ]
            return float(((jacobians * torch.cat(q)).sum(dim=0) - exact).square().sum())

        table = sum(wrong(math.sqrt(2 / share) * multiplier) for _ in range(15)) / 15
        contribution = TASK.parameters * bound.value**2 * multiplier**2 / (1 - share)
        return (table + contribution) / rounds + wrong(0.0)

    assert error(bins_of(batch, multiplier)) < 1.15 * min(error(bins) for bins in (4, 8, 16, 32, 64, 128))


@pytest.mark.parametrize("more", [(), SEVERAL, ("objective.penalty=equality-of-odds",)])
def test_all_attempts_of_one_cohort_have_as_many_bins_whatever_their_directions_and_sites(more):
    own = ("local.bins=auto", "slicing.directions=5", "slicing.scheme=iid", *more)
    strata = len(Problem.from_experiment(experiment_of(*own)).objective.cells)
    sizes = ((90,) * strata, (80,) * strata, (50,) * strata, (70,) * strata)
    task, apart = attempt(*own, sizes=sizes)
    _, together = attempt(*own, sizes=sizes, alone=False)
    noise = budget.planned_shares(task.experiment, 0.1 / 600).rounds
    found = {budget.bins_of(task, apart.batch, task.clipped.directions(round_, 1), noise) for round_ in range(1, 6)}
    assert found == {apart.bins} == {together.bins}


def test_server_and_sites_choose_one_number_and_the_run_passes_its_audit(federation, monkeypatch):
    chosen, lengths = [], set()
    for side in (server, client):
        genuine = side.attempt_of

        def noted(*asked, genuine=genuine):
            found = genuine(*asked)
            chosen.append(found.bins)
            return found

        monkeypatch.setattr(side, "attempt_of", noted)

    def keep(message, reply):
        if kind_of(message) == messages.MASKED_TABLES.kind:
            lengths.add(len(numbers(reply.content["arrays"]["masked"])))
        return reply

    experiment = small("privacy.trust=distributed", "privacy.epsilon=8.0", "local.bins=auto", "training.rounds=2")
    summary = federation.run(experiment, app=Saboteur(after=keep))
    folder = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["released_rounds"] == 2
    assert len(chosen) == 2 * (1 + 3 * 2) and len(set(chosen)) == 1
    assert chosen[0] != 32 and lengths == {2 * chosen[0]}
    assert audit(folder).passed


def test_only_masked_sums_have_their_bins_chosen():
    with pytest.raises(ExperimentError, match="bins"):
        small("privacy.trust=local-gradient", "local.bins=auto")
