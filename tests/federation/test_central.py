"""Laws of the trusted server's release: noise on everything, from nowhere that anybody could look."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.federation.exchange.participants import Site, whole
from fedsw.federation.trust.central.rounds import Aggregate, release
from fedsw.federation.trust.round_plan import draw, make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.mechanisms import spacing
from tests.federations import sites_of, small
from tests.noises import require_gaussian

DRAWS = 30


def _plan(*overrides: str):
    task = Problem.from_experiment(small("privacy.epsilon=inf", "privacy.noise_multiplier=2.0", *overrides))
    sites = sites_of((200, 100), (100, 100))
    return make_plan(task, sites), whole(sites)


def _aggregate(plan, members, round_: int, attempt: int = 0) -> Aggregate:
    """A sum of ones: what is released of it, less one, is the noise."""
    drawn = draw(plan, members, round_=round_, attempt=attempt)
    bounds = plan.task.clipped.sensitivities(drawn.batch, [1.0])
    vector = torch.ones(plan.task.parameters, dtype=torch.float64)
    return Aggregate(round_, attempt, vector, drawn, bounds, 2, None)


def _ledger(path, plan) -> Ledger:
    groups, nominal = plan.task.objective.cells, plan.nominal
    return Ledger.create(path, groups=groups, delta=plan.delta, epsilon=float("inf"), nominal=nominal)


def test_every_coordinate_of_every_release_has_noise_of_its_own_and_of_the_declared_scale(tmp_path):
    plan, members = _plan("model.kind=mlp", "model.hidden=[5]")
    with _ledger(tmp_path / "l.sqlite", plan) as ledger:
        released = [release(_aggregate(plan, members, number), plan, ledger) for number in range(1, DRAWS + 1)]
    sigma = released[0].sigma
    assert sigma == 2.0 * max(bound.value for bound in plan.task.clipped.sensitivities(plan.batch, [1.0]))
    require_gaussian(torch.stack([each.value for each in released]) - 1.0, sigma)
    for each in released:
        assert torch.equal(each.value, (each.value / spacing(sigma)).round() * spacing(sigma))


def test_the_noise_of_a_release_without_a_seed_follows_from_nothing_that_is_known(tmp_path, monkeypatch):
    """The same sum, round and attempt, released twice; and no stream that a number reproduces is ever made."""
    plan, members = _plan()
    monkeypatch.setattr(Stream, "seeded", lambda *known: pytest.fail(f"a stream of {known} is reproducible"))
    released = []
    for name in ("first", "second"):
        with _ledger(tmp_path / f"{name}.sqlite", plan) as ledger:
            released.append(release(_aggregate(plan, members, 1), plan, ledger))
    added = torch.stack([each.value - 1.0 for each in released])
    require_gaussian(added, released[0].sigma)


def test_seeded_releases_of_two_attempts_or_rounds_share_no_noise(tmp_path):
    task = Problem.from_experiment(small("seed=3", "privacy.epsilon=inf", "privacy.noise_multiplier=2.0"))
    ids = tuple(torch.arange(start, start + 100).numpy() for start in (0, 100))
    sites = [Site(1, np.array([0]), np.array([[100, 100]]), ids, None)]
    plan, members = make_plan(task, sites), whole(sites)
    with _ledger(tmp_path / "l.sqlite", plan) as ledger:
        released = [
            release(_aggregate(plan, members, round_, attempt), plan, ledger)
            for round_ in range(1, 4)
            for attempt in range(3)
        ]
    require_gaussian(torch.stack([each.value for each in released]) - 1.0, released[0].sigma)


def test_the_noise_is_for_the_group_that_moves_the_sum_most_and_every_group_is_charged_as_it_moves(tmp_path):
    plan, members = _plan()
    aggregate = _aggregate(plan, members, 1)
    with _ledger(tmp_path / "l.sqlite", plan) as ledger:
        sigma = release(aggregate, plan, ledger).sigma
        charged = {entry.group: entry for entry in ledger.entries()}
    values = [bound.value for bound in aggregate.sensitivities]
    assert values[0] < values[1]  # of 300 and 200 records
    assert sigma == 2.0 * values[1]
    for cell, value, rate in zip(plan.task.objective.cells, values, aggregate.draw.rates, strict=True):
        assert (charged[cell].sensitivity, charged[cell].sampling_rate) == (value, rate)
