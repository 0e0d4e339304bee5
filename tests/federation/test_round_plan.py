"""Laws of the plan: what a round costs every group, and what a record may move it by."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.federation.exchange.participants import whole
from fedsw.federation.trust.round_plan import charges, draw, make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Step
from fedsw.privacy.accounting import epsilon as epsilon_of
from fedsw.privacy.sensitivity import SLACK
from tests.federations import sites_of, small


def _plan(*overrides: str, sizes: tuple[tuple[int, ...], ...] = ((300, 20), (200, 30))):
    task = Problem.from_experiment(small(*overrides))
    sites = sites_of(*sizes)
    return make_plan(task, sites), whole(sites)


def test_every_group_is_charged_its_own_rate_and_never_a_luckier_groups():
    """Batches of one size from groups of 500 and 50: a record of the small group is met ten times as often."""
    plan, members = _plan("training.batch_size=25")
    drawn = draw(plan, members, round_=1, attempt=0)
    found = charges(plan, drawn, plan.task.clipped.sensitivities(drawn.batch, [1.0]))
    assert {charge.group: charge.sampling_rate for charge in found} == {"A=0": 25 / 500, "A=1": 25 / 50}


def test_noise_is_planned_for_the_group_that_is_sampled_most():
    plan, _ = _plan("training.batch_size=25", "privacy.epsilon=2.0")
    rounds = plan.task.experiment.training.rounds
    spent = [epsilon_of({Step(rate, 1 / plan.multiplier): rounds}, plan.delta) for rate in plan.rates]
    assert spent[0] < spent[1] <= 2.0


def test_a_group_is_charged_at_its_own_size_in_the_batch():
    """Of 100 and 10 records: the small group's record moves its mean ten times as far."""
    plan, members = _plan("objective.alpha=1.0")
    drawn = draw(plan, members, round_=1, attempt=0)
    found = charges(plan, drawn, plan.task.clipped.sensitivities(drawn.batch, [1.0]))
    assert drawn.batch == (100, 10)
    assert found[1].sensitivity == pytest.approx(10 * found[0].sensitivity, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
@pytest.mark.parametrize("bound", ["auto", "paper"])
def test_what_is_charged_and_noised_leaves_room_for_single_precision(alpha, penalty, bound):
    """A thousandth more than what is proved in exact arithmetic: docs/guarantees/sampling.md."""
    choices = (f"objective.alpha={alpha}", f"objective.penalty={penalty}", f"privacy.bound={bound}")
    cells = 4 if penalty == "equality-of-odds" else 2
    plan, members = _plan(*choices, sizes=((100,) * cells, (150,) * cells))
    drawn = draw(plan, members, round_=1, attempt=0)
    task = plan.task
    exact = task.objective.parts[0].sensitivities(drawn.batch, task.clip, d=task.dimension, spread=1.0, bound=bound)
    charged = charges(plan, drawn, task.clipped.sensitivities(drawn.batch, [1.0]))
    for proved, charge, planned in zip(exact, charged, plan.sensitivities, strict=True):
        assert charge.sensitivity >= proved.value * SLACK * (1 - 1e-12)
        assert planned.value >= proved.value * SLACK * (1 - 1e-12)
    assert SLACK >= 1.001


def test_counts_of_a_private_run_are_drawn_anew_and_follow_from_nothing_that_is_known():
    """Two clients with half of 500 records each: 40 draws of one attempt agree with chance below 1e-40."""
    plan, members = _plan(sizes=((250, 25), (250, 25)))
    drawn = [np.concatenate(draw(plan, members, round_=1, attempt=0).counts) for _ in range(40)]
    assert len({counts.tobytes() for counts in drawn}) > 1
    assert all(tuple(counts.sum(axis=0)) == plan.batch == (100, 10) for counts in drawn)
