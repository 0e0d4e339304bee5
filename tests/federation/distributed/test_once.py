"""Before and after the rounds with nobody trusted: moments of all records, and sums over those kept out of training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsw.audit.record import audit
from fedsw.federation import messages
from fedsw.federation.messages import MASKED_MOMENTS, MASKED_SUM, MASKED_TALLY, Broadcast, Terms
from fedsw.federation.messages.table import (
    MaskedSumAsked,
    MaskedTableAsked,
)
from fedsw.federation.node.own_ledger import HELD_OUT
from fedsw.federation.trust.budget_shares import TALLY_PART as TALLY
from fedsw.federation.trust.budget_shares import held_out_budget
from fedsw.federation.trust.distributed import site as site_of_sums
from fedsw.federation.trust.distributed.attempt_cost import attempts_at_one, planned_shares
from fedsw.learning.moments.beside_rounds import moments_layout
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.masks import MaskKey
from tests.federation import test_sums_once_moments
from tests.federation.distributed.sites import Refused, Sites, experiment_of
from tests.federation.local_runs import attempts_in, kind_of, parameters_of
from tests.federations import Saboteur, small
from tests.runs import kept_runs

NOBODY = ("privacy.trust=distributed", "privacy.delta=1e-5", "local.bins=8")
FIRST = (*NOBODY, "privacy.moments=0.3")
KEPT = ("privacy.trust=distributed", "privacy.noise_multiplier=0.8", "training.batch_fraction=0.2")


def book(folder, client: int):
    with Ledger.open(folder / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
        return ledger.entries(), ledger.epsilon(), ledger.epsilon_by_group()


@pytest.mark.parametrize("asked", ["privacy.epsilon=1.0", "privacy.noise_multiplier=4.0"])
@pytest.mark.parametrize("failing", [0.0, 0.5])
def test_all_attempts_at_moments_and_rounds_compose_to_what_was_asked_for(asked, failing):
    found = planned_shares(small(*FIRST, asked, f"local.failing={failing}", "training.rounds=20"), 1e-5)
    many, once = (30, 2) if failing else (20, 1)
    steps = {Step(0.2, 1 / found.rounds): many, Step(1.0, 1 / found.moments): once}
    assert epsilon_by("pld", steps, 1e-5) == pytest.approx(found.epsilon, rel=1e-3)
    assert epsilon_by("pld", steps, 1e-5) <= found.epsilon * (1 + 1e-9)
    if asked == "privacy.epsilon=1.0":
        assert found.epsilon == 1.0


def test_a_run_on_moments_is_charged_as_planned_everywhere_and_passes_its_audit(federation):
    experiment = small(*FIRST, "privacy.epsilon=2.0")
    summary = federation.run(experiment)
    folder = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["moments"]
    for client in range(3):
        assert attempts_in(folder, client) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
        entries, epsilon, _ = book(folder, client)
        assert entries[0].sampling_rate == 1.0 and entries[0].sensitivity >= math.sqrt(2)
        assert epsilon == pytest.approx(summary["epsilon_spent"], rel=1e-9) and 1.99 < epsilon <= 2.0
    stored = test_sums_once_moments.stored(folder)
    shared = planned_shares(experiment, 1e-5)
    assert stored["sigma"] == pytest.approx(shared.moments * entries[0].sensitivity * math.sqrt(3 / 2), rel=1e-9)
    added = (stored["values"] - test_sums_once_moments.exact(experiment)).reshape(-1) / stored["sigma"]
    assert 0.7 < float(added.std()) < 1.3
    assert audit(folder).passed


@pytest.mark.parametrize("sites", [1, 3])
def test_masks_change_no_bit_of_a_run_on_moments(federation, monkeypatch, sites):
    experiment = small(*FIRST, "privacy.epsilon=2.0", "seed=3", "training.rounds=2", f"federation.sites={sites}")
    federation.run(experiment)
    monkeypatch.setattr(MaskKey, "mask", lambda self, others, asked, length: np.zeros(length, dtype=np.uint64))
    federation.run(experiment)
    assert torch.equal(parameters_of(federation.folder / "run1"), parameters_of(federation.folder / "run2"))


def lost_once(kind: str):
    def hook(message, context):
        first = kind_of(message) == kind and message.content["config"]["attempt"] == 0
        if first and context.node_config["partition-id"] == 1:
            raise RuntimeError("power cut")

    return Saboteur(hook)


def test_an_attempt_at_moments_that_fails_is_charged_and_the_budget_is_for_it(federation):
    more = ("privacy.epsilon=2.0", "local.failing=0.1", "federation.min_clients=2", "training.rounds=2")
    summary = federation.run(small(*FIRST, *more), app=lost_once(messages.MASKED_MOMENTS.kind))
    folder = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["epsilon_spent"] <= 2.0
    assert attempts_in(folder, 0) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert audit(folder).passed


@pytest.mark.parametrize("regression", [False, True])
def test_kept_records_are_charged_whole_and_once_and_training_costs_them_nothing(tmp_path, federation, regression):
    chosen = kept_runs.kept_run(kept_runs.tables(tmp_path / "data", 40, 60, 80), *KEPT, regression=regression)
    summary = federation.run(chosen)
    folder, task = federation.folder / "run1", Problem.from_experiment(chosen)
    found = kept_runs.released(folder)
    assert summary["held_out_release"]["clients"] == 3 and summary["held_out_release"]["records"] == 44
    for client in range(3):
        entries, _, by_group = book(folder, client)
        kept = [entry for entry in entries if entry.group == HELD_OUT]
        assert [entry.sampling_rate for entry in kept] == [0.0, 0.0, 1.0] and kept[-1].round == 3
        assert all((entry.sampling_rate > 0) == (entry.round < 3) for entry in entries if entry.group != HELD_OUT)
        assert summary["epsilon"] * (1 - 1e-4) < by_group[HELD_OUT] <= summary["epsilon"] * (1 + 1e-9)
    epsilon, many = planned_shares(task.experiment, 1e-5).epsilon, attempts_at_one(task.experiment)
    budget = held_out_budget(task.experiment, task.task.tally(task.shape), epsilon, 1e-5, many)
    assert found["sigma"] == pytest.approx(budget.sigma * math.sqrt(3 / 2), rel=1e-9)
    off = (found["values"] - kept_runs.exact(chosen, folder)).reshape(-1) / found["sigma"]
    assert float(off.abs().max()) < 6 and float(off.std()) > 0.3
    assert audit(folder).passed


def test_of_a_person_one_row_is_in_every_sum(tmp_path, federation, exact):
    """Persons, moments, rounds and a tally in one run: what is summed counts persons, of whom each has three rows."""
    data = kept_runs.tables(tmp_path / "data", 40, 60, 80, rows=3)
    chosen = kept_runs.kept_run(data, *KEPT, "privacy.moments=0.2", unit="patient")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["held_out_release"]["records"] == 44
    assert sum(test_sums_once_moments.stored(folder)["records"]) == 136
    assert {round_ for round_, _ in attempts_in(folder, 0)} == {0, 1, 2, 3}
    task, vectors = Problem.from_experiment(chosen), [value for value, _, _ in exact]
    layout = moments_layout(task)
    one = (math.floor(2**14 * layout.constant / layout.bound) / 2**14) ** 2  # what a row adds to its cell's count
    moments = sum(vectors[:3]).reshape(layout.cells, layout.width)
    assert float(moments[:, 0].sum()) == pytest.approx(136 * one)
    assert float(sum(vectors[3:6]).sum()) <= 0.2 * 136
    assert float(sum(vectors[-3:]).sum()) == 66  # once by its answer, half by its probability
    assert audit(folder).passed


def test_an_attempt_at_a_tally_that_fails_is_charged_to_kept_records_alone(tmp_path, federation):
    more = ("local.failing=1.0", "federation.min_clients=2")
    chosen = kept_runs.kept_run(kept_runs.tables(tmp_path / "data", 40, 60, 80), *KEPT, *more)
    summary = federation.run(chosen, app=lost_once(messages.MASKED_TALLY.kind))
    entries, _, by_group = book(federation.folder / "run1", 0)
    kept = [entry for entry in entries if entry.group == HELD_OUT and entry.sampling_rate]
    assert [(entry.round, entry.attempt) for entry in kept] == [(3, 0), (3, 1)]
    assert by_group[HELD_OUT] <= summary["epsilon"] * (1 + 1e-9) and summary["held_out_release"]["clients"] == 2
    folder = federation.folder / "run1"
    assert audit(folder).passed


def test_a_mask_of_a_tally_is_for_the_very_model_that_is_measured(tmp_path, federation, monkeypatch):
    """Sites that are asked about different models have masks that do not cancel."""
    asked, digest = [], site_of_sums.digest_of
    monkeypatch.setattr(site_of_sums, "digest_of", lambda request: asked.append(request) or digest(request))
    federation.run(kept_runs.kept_run(kept_runs.tables(tmp_path / "data", 40, 60, 80), *KEPT))
    tallies = [request for request in asked if request["sum"] == TALLY]
    (model,) = {request["model"] for request in tallies}
    stored = sorted(parameters_of(federation.folder / "run1").float().tolist())
    measured = torch.frombuffer(bytearray(model), dtype=torch.float32)
    assert len(tallies) == 3 and sorted(measured.tolist()) == stored


def terms(sites: Sites) -> Terms:
    return Terms.of(sites.task, S=1)


def moments_of(sites: Sites, site: int, cohort, attempt: int = 0):
    asked = MASKED_MOMENTS.down(round=0, attempt=attempt, cohort=cohort.model_dump_json())
    return sites._ask(MASKED_MOMENTS, site, asked, terms(sites)).values.numpy().view(np.uint64)


def test_moments_are_answered_once_and_are_uniform_without_one_site(tmp_path, exact):
    sites = Sites(tmp_path, experiment_of("privacy.moments=0.3"))
    cohort = sites.cohort(0)
    sent = [moments_of(sites, site, cohort) for site in range(4)]
    assert np.array_equal(sum(sent), sum(rounded for _, rounded, _ in exact))
    part = sum(sent[:3])
    assert (np.abs(part.view(np.int64).astype(float)) < 2.0**52).mean() < 0.05
    with pytest.raises(Refused, match="not made ready"):
        moments_of(sites, 0, cohort)
    with pytest.raises(Refused, match="is charged in"):
        moments_of(sites, 0, sites.cohort(0))
    assert sites.charged(0) == [(0, 0)]


def test_replacing_any_record_moves_the_moments_by_at_most_what_is_charged(tmp_path, exact):
    sites = Sites(tmp_path, experiment_of("privacy.moments=0.3", "local.failing=5.0"))
    from fedsw.federation.node.replies import join
    from tests.federation.distributed.sites import RUN

    settings = sites.experiment.model_dump_json(exclude={"metrics"})
    node = join(settings, RUN, sites.run_id, {"partition-id": 0})
    draw = np.random.default_rng(0)
    moments_of(sites, 0, sites.cohort(0))
    before, moved = exact[-1][0], []
    for attempt, scale in enumerate((0.1, 1.0, 1e6), start=1):
        kept = node.records.features[0].clone()
        node.records.features[0] = torch.from_numpy(draw.normal(0, scale, len(kept))).to(kept)
        moments_of(sites, 0, sites.cohort(0, attempt), attempt)
        moved.append(float((exact[-1][0] - before).norm()))
        node.records.features[0] = kept
    assert 0.1 < max(moved) <= 1.001 * math.sqrt(2)


def test_what_a_run_does_not_release_is_refused_and_charged_to_nobody(tmp_path):
    sites = Sites(tmp_path)
    with pytest.raises(Refused, match=r"releases none \(privacy.moments\)"):
        moments_of(sites, 0, sites.cohort(0))
    cohort = sites.cohort(5)
    asked = MASKED_TALLY.down(
        round=5,
        attempt=0,
        theta=Broadcast.of(sites.theta, terms(sites)),
        cohort=cohort.model_dump_json(),
        cut=None,
    )
    with pytest.raises(Refused, match=r"releases none \(data.held_out_to\)"):
        sites._ask(MASKED_TALLY, 0, asked, terms(sites))
    assert sites.charged(0) == []


def test_features_prepared_otherwise_between_the_two_sums_are_refused(tmp_path):
    from fedsw.federation.messages import MASKED_TABLES
    from fedsw.learning.moments.preparation import Preparation

    sites = Sites(tmp_path, experiment_of("privacy.moments=0.3"))
    p = sites.task.features
    maps = [Preparation(torch.zeros(p).double(), torch.eye(p).double() * size, size) for size in (1.0, 0.5)]
    one, other = (Broadcast.exact(each.flat()) for each in maps)
    cohort = sites.cohort()
    model = Broadcast.of(sites.theta, terms(sites))
    sites._ask(MASKED_TABLES, 0, MaskedTableAsked(model, 1, 0, cohort.model_dump_json(), one), terms(sites))
    means = Broadcast.of(torch.zeros(sites.length()).double(), terms(sites))
    for prepared, match in ((other, "prepared otherwise"), (one, None)):
        asked = MaskedSumAsked(model, 1, 0, means, cohort.model_dump_json(), prepared)
        if match is None:
            sites._ask(MASKED_SUM, 0, asked, terms(sites))
        else:
            with pytest.raises(Refused, match=match):
                sites._ask(MASKED_SUM, 0, asked, terms(sites))
