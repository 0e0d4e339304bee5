"""What an attempt costs, and how much noise it has: worked out by every site from the same public numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsw.desk.planning.public_rows import summed_noise
from fedsw.experiment.trust import trust_model
from fedsw.federation.trust.distributed import attempt_cost as budget
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.members import Cohort, Party, own_counts, rate_of
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.objectives.histograms import contribution_sensitivity
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.sensitivity import SLACK
from tests.federation.distributed.sites import Sites, experiment_of

SEVERAL = (
    "objective.also=[{penalty='equality-of-odds', weight=0.2}, {penalty='prior-matching', weight=0.2, prior_radius=2}]",
)


def cohort_of(*sizes: tuple[int, ...], records: int | None = None, alone: bool = True) -> Cohort:
    """One site for each client, or one for all."""
    rows = [list(row) for row in sizes]
    places = [[place] for place in range(len(rows))] if alone else [list(range(len(rows)))]
    parties = [
        Party(site=own[0], key=f"{own[0]:064x}", nonce="0" * 64, clients=own, sizes=[rows[place] for place in own])
        for own in places
    ]
    return Cohort(records=records or sum(map(sum, rows)), parties=parties)


def attempt(*overrides: str, sizes=((70, 90), (60, 80), (100, 50), (50, 100)), alone=True):
    task = Problem.from_experiment(experiment_of(*overrides, clients=len(sizes)))
    return task, budget.attempt_of(task, cohort_of(*sizes, alone=alone), task.clipped.directions(1, 0))


def share_of(task, batch):
    bound, directions = budget.bound_of(task, batch, [1.0]), task.clipped.directions(1, 0)
    return budget.table_share(task, batch, bound, directions, task.experiment.local.bins)


@given(st.floats(1e-4, 1.0), st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_no_client_is_sampled_at_a_larger_rate_than_is_charged(fraction, sizes):
    counts = own_counts([[size] for size in sizes], fraction)[:, 0]
    for count, size in zip(counts, sizes, strict=True):
        assert size == 0 or count / size <= rate_of(fraction) <= 1


@pytest.mark.parametrize("overrides", [(), ("objective.alpha=0.0",), ("local.failing=0.5",), ("objective.alpha=1.0",)])
def test_all_planned_attempts_together_cost_what_was_asked_for(overrides):
    task, found = attempt(*overrides, "privacy.epsilon=2.0", "training.rounds=20")
    mu = math.hypot(*(part.sensitivity / part.scale for part in found.parts))
    assert found.charges[0].sensitivity / found.sigma == pytest.approx(mu, rel=1e-9)
    steps = {Step(found.charges[0].sampling_rate, mu): 30 if "failing" in str(overrides) else 20}
    assert 1.99 < epsilon_by("pld", steps, 0.1 / 600) <= 2.0


def test_each_sum_has_the_noise_of_its_own_sensitivity():
    task, found = attempt()
    worst = max(
        contribution_sensitivity(task.objective.parts[0], found.batch, task.clip, cell=cell, spread=1.0).value
        for cell in (0, 1)
    )
    assert found.noise.of_contribution.value == pytest.approx(SLACK * worst)
    assert found.noise.of_table.value == math.sqrt(2)
    assert found.batch == (56, 64) and found.honest == 3


def test_one_site_of_all_clients_has_the_noise_of_all_of_them():
    _, apart = attempt()
    _, together = attempt(alone=False)
    assert apart.noise == together.noise
    for name in ("table", "contribution"):
        sigma = apart.scale(name)
        parts = [share.scale(sigma) for share in apart.shares(name)]
        (whole,) = (share.scale(sigma) for share in together.shares(name))
        assert math.hypot(*parts) == pytest.approx(whole) == pytest.approx(sigma * math.sqrt(4 / 3))


def test_no_batch_weighs_more_than_the_grid_is_for(tmp_path, exact):
    sites = Sites(tmp_path)
    cohort = sites.cohort()
    found = sites.attempt(cohort)
    for ask in (sites.table, sites.contribution):
        ask(0, cohort)
    for (value, _, _), name in zip(exact, ("table", "contribution"), strict=True):
        assert float(value.abs().max()) <= found.shares(name)[0].most


def test_a_group_without_a_record_in_the_batch_is_refused():
    with pytest.raises(ValueError, match="no record of group"):
        attempt(sizes=((4, 90), (4, 80)))


def test_the_tables_share_is_the_best_of_the_two_errors_that_it_weighs():
    """x / a + y / (1 - a) is least there; more bins ask for a larger share, more parameters for a smaller one."""
    task, found = attempt()
    share = share_of(task, found.batch)
    more, _ = attempt("local.bins=128")
    wide, _ = attempt("model.kind=mlp", "model.hidden=[256]")
    assert share_of(more, found.batch) > share > share_of(wide, found.batch)
    worst = max(
        contribution_sensitivity(task.objective.parts[0], found.batch, task.clip, cell=cell, spread=1.0).value
        for cell in (0, 1)
    )
    y = task.parameters * (SLACK * worst) ** 2
    x = y * (share / (1 - share)) ** 2
    grid = np.linspace(0.01, 0.99, 981)
    assert grid[np.argmin(x / grid + y / (1 - grid))] == pytest.approx(share, abs=2e-3)


@pytest.mark.parametrize("bins", [32, 128])
def test_the_tables_share_costs_little_more_than_the_best_one(bins):
    """Errors of whole gradients, with logistic Jacobians that share a direction, against a grid of shares."""
    task, _ = attempt("objective.alpha=0.75", f"local.bins={bins}", "clip.output=0.5", "clip.centre=0.5")
    n, mu, draw, r = (1500, 1500), 0.1, torch.Generator().manual_seed(0), task.parameters
    directions, goal = task.clipped.directions(1, 0)[0], task.objective.parts[0]
    squares = [torch.rand((size, 1), generator=draw, dtype=torch.float64).square() for size in n]
    outputs = [squares[0] - 0.5, 0.5 - squares[1]]
    jacobians = torch.randn((sum(n), r), generator=draw, dtype=torch.float64)
    jacobians[:, 0] = 3.0
    jacobians /= jacobians.norm(dim=1, keepdim=True)
    counts = [tables.histograms(each, directions, 0.5, bins) for each in outputs]

    def gradient(noisy):
        means = tables.matched([tables.monotone(each, size) for each, size in zip(noisy, n, strict=True)], goal, 0.5)
        q = [
            tables.cotangents(each, directions, means[cell], goal, cell=cell, size=n[cell], radius=0.5)
            for cell, each in enumerate(outputs)
        ]
        return (jacobians * torch.cat(q)).sum(dim=0)

    worst = max(contribution_sensitivity(goal, n, task.clip, cell=cell, spread=1.0).value for cell in (0, 1))

    def error(share):
        sigma = math.sqrt(2 / share) / mu
        moved = [
            gradient([each + sigma * torch.randn(each.shape, generator=draw, dtype=torch.float64) for each in counts])
            for _ in range(40)
        ]
        table = (torch.stack(moved) - gradient(counts)).square().sum(dim=1).mean()
        return float(table) + r * worst**2 / (mu**2 * (1 - share))

    chosen = share_of(task, n)
    assert error(chosen) < 1.2 * min(error(share) for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7))


def test_a_ledger_says_what_the_attempt_costs(tmp_path):
    sites = Sites(tmp_path)
    cohort = sites.cohort()
    sites.table(0, cohort)
    found = sites.attempt(cohort)
    with Ledger.open(sites.ledger(0), read_only=True) as ledger:
        (entry,) = ledger.entries()
        assert (entry.sampling_rate, entry.sensitivity, entry.sigma) == (
            found.charges[0].sampling_rate,
            found.charges[0].sensitivity,
            found.sigma,
        )
        assert ledger.budget == 8.0 and ledger.delta == pytest.approx(0.1 / sites.records)


def test_a_prior_in_a_larger_ball_moves_a_contribution_further():
    """d = 1: an output at M that sees -A everywhere, and a Jacobian turned round: 4 L w (M + A) / n, attained."""
    task, found = attempt("objective.also=[{penalty='prior-matching', weight=0.2, prior_radius=2.0}]")
    prior, n = ranked.ranked_by(task)[1], sum(found.batch)
    one, means = torch.ones((1, 1), dtype=torch.float64), torch.full((1, 8), -1e3, dtype=torch.float64)
    q = tables.cotangents(one, one, means, prior.part, cell=0, size=n, radius=prior.clip.output)
    claimed = tables.pulled_sensitivity(prior.part, [n], prior.clip, cell=0, spread=1.0).value
    assert claimed == pytest.approx(2 * float(q)) == pytest.approx(4 * 0.2 * (1 + 2) / n)
    alone = contribution_sensitivity(task.objective.parts[0], found.batch, task.clip, cell=0, spread=1.0).value
    whole = ranked.sensitivity_of_contributions(task, found.batch, [1.0, 1.0], 0).value
    assert whole == pytest.approx(alone + claimed - 0.2 * 2 * task.clip.loss / n)


@pytest.mark.parametrize("more", [(), SEVERAL])
def test_replacing_a_record_moves_both_sums_by_at_most_what_is_charged(tmp_path, exact, more):
    """Neighbours at one site, under one model, table and batch: the worst of many replacements."""
    same = ("training.batch_fraction=1.0", "training.rounds=60", "privacy.epsilon=1e4")
    sites = Sites(tmp_path, experiment_of(*same, *more))
    from fedsw.federation.node.replies import join

    node = join(
        sites.experiment.model_dump_json(exclude={"metrics"}), "a77ac4ed" * 4, sites.run_id, {"partition-id": 0}
    )
    draw = np.random.default_rng(0)
    kept, moved = node.records.features.clone(), {"table": [], "contribution": []}
    for round_ in range(1, 7):
        cohort = sites.cohort(round_)
        table = torch.from_numpy(draw.uniform(-3, 3, sites.length()))
        exact.clear()
        sites.table(0, cohort, round_=round_)
        sites.contribution(0, cohort, table, round_=round_)
        moved["table"].append(exact[0][0])
        moved["contribution"].append(exact[1][0])
        sites.contexts[0].state["fedsw-site"].clear()
        other = sites.cohort(round_ + 20)
        place = int(draw.integers(len(kept)))
        node.records.features[place] = torch.from_numpy(draw.normal(0, 50, kept.shape[1])).to(kept)
        node.records.target[place] = 1 - node.records.target[place]
        exact.clear()
        sites.table(0, other, round_=round_ + 20)
        sites.contribution(0, other, table, round_=round_ + 20)
        found = sites.attempt(cohort, round_)
        changes = [float((one[0] - two[-1]).norm()) for one, two in zip(exact, moved.values(), strict=True)]
        assert changes[0] <= found.noise.of_table.value * (1 + 1e-9)
        assert 0 < changes[1] <= found.noise.of_contribution.value * (1 + 1e-9)
        node.records.features[place] = kept[place]
        node.records.target[place] = 1 - node.records.target[place]


def test_a_forecast_counts_shares_and_not_whole_noises():
    model = trust_model("distributed")
    assert model.summed(experiment_of("local.colluding=1", clients=16)) == pytest.approx(math.sqrt(16 / 15))
    few = experiment_of("local.colluding=2", "federation.min_clients=10", clients=16)
    assert model.summed(few) == pytest.approx(math.sqrt(16 / 8))
    assert trust_model("local-gradient").summed(few) == 4.0


@pytest.mark.parametrize("bins", ["8", "auto"])
def test_a_forecast_divides_the_budget_as_the_sites_do(bins):
    task, found = attempt("privacy.epsilon=inf", "privacy.noise_multiplier=2.0", f"local.bins={bins}")
    forecast = summed_noise(task, task.experiment, task.clip, found.batch, multiplier=2.0)
    price = math.sqrt(4 / 3)
    assert forecast.bins == found.bins
    assert forecast.count == pytest.approx(price * found.noise.table)
    assert forecast.gradient == pytest.approx(price * found.noise.contribution)
