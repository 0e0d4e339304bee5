"""Laws of counts for thresholds, released after the last round: what leaves, at what cost, once, and what follows."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedsw._tools.settings import FederationError
from fedsw.audit.record import audit
from fedsw.desk.use.trained import load
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.federation import messages
from fedsw.federation.node import joining as nodes
from fedsw.federation.node.held_records import held_records
from fedsw.federation.server import _releases_once as server
from fedsw.federation.trust._scores_last import ScoreSum
from fedsw.federation.trust.budget_shares import scores_round, shares
from fedsw.federation.trust.budget_split import budget_split
from fedsw.federation.trust.distributed.attempt_cost import planned_shares
from fedsw.learning.moments.beside_rounds import require_thresholds, scores_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores
from fedsw.privacy.accounting import BudgetExhausted, Ledger, Step, epsilon_by
from fedsw.privacy.accounting.lifetime import DatasetAccount, LimitReached, accounts_folder
from fedsw.runs.checkpoint import Checkpoints
from tests.federation.node.releases import summed
from tests.federations import Federation, Saboteur, array, numbers, small
from tests.runs.kept_runs import kept_run, tables

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

LAST = ("thresholds.share=0.3", "privacy.delta=1e-5")
LOCAL = ("privacy.trust=local-gradient",)
MASKED = ("privacy.trust=distributed", "local.bins=8")
TRUSTS = [(), LOCAL, MASKED]
KINDS = {messages.SCORES.kind, messages.NOISY_SCORES.kind, messages.MASKED_SCORES.kind}
SITE = {"partition-id": 0, "num-partitions": 1}
ALONE = {"partition-id": 0, "num-partitions": 3}


def exact(chosen, directory) -> np.ndarray:
    """Counts of all records under the released model (groups, width), without noise."""
    task = Problem.from_experiment(chosen)
    model = task.build_model()
    model.load_state_dict(load_file(directory / "model.safetensors"))
    return counts_of_scores(task, scores_of(task), held_records(task, SITE).records, model).numpy()


def stored(directory):
    return json.loads((directory / "scores.json").read_text())


def books(directory, trust) -> list:
    paths = sorted(directory.glob("clients/*.sqlite")) if trust else [directory / "ledger.sqlite"]
    found = []
    for path in paths:
        with Ledger.open(path, read_only=True) as ledger:
            found.append((ledger.entries(), ledger.epsilon()))
    return found


@pytest.mark.parametrize("moments", [0.0, 0.2])
@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("asked", ["privacy.epsilon=1.0", "privacy.noise_multiplier=4.0"])
def test_what_comes_before_and_after_all_rounds_composes_with_them_to_the_promised_epsilon(moments, rate, asked):
    chosen = small(*LAST, asked, f"privacy.moments={moments}", "training.rounds=40")
    found = shares(chosen, rate=rate, delta=1e-5)
    steps = [(Step(1.0, 1 / found.scores), 1), (Step(rate, 1 / found.rounds), 40)]
    steps += [(Step(1.0, 1 / found.moments), 1)] if moments else []
    epsilon = epsilon_by("pld", steps, 1e-5)
    assert found.epsilon * (1 - 1e-4) < epsilon <= found.epsilon * (1 + 1e-9)
    if rate == 1.0:  # squares of mu add
        total = sum(count * step.mu**2 for step, count in steps)
        assert 1 / found.scores**2 / total == pytest.approx(0.3, rel=1e-3)
    own = small(*LAST, *LOCAL, asked, f"privacy.moments={moments}", "training.rounds=40")
    assert budget_split(own, rate=rate, delta=1e-5).scores == found.scores


@pytest.mark.parametrize("trust", TRUSTS)
def test_counts_are_charged_once_and_whole_after_the_rounds_and_the_run_passes_its_audit(federation, trust):
    chosen = small(*LAST, *trust, "privacy.epsilon=4.0")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    for entries, epsilon in books(folder, trust):
        last = [entry for entry in entries if entry.round == scores_round(chosen)]
        assert entries[-len(last) :] == last and {entry.sampling_rate for entry in last} == {1.0}
        assert all(entry.sensitivity >= math.sqrt(2) for entry in last)
        steps = [(Step(e.sampling_rate, e.sensitivity / e.sigma), 1) for e in entries if e.group == last[0].group]
        assert len(steps) == 5 and epsilon_by("pld", steps, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    assert 0.99 * summary["epsilon"] < summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["released_rounds"] == 4 and "scores' counts after them" in summary["guarantee"]["statement"]
    noise = (np.array(stored(folder)["values"]) - exact(chosen, folder)) / stored(folder)["sigma"]
    assert 0.75 < noise.std() < 1.25
    assert audit(folder).passed


def test_without_noise_counts_are_those_of_all_records_after_moments_and_held_out_records_too(tmp_path, federation):
    data = tables(tmp_path / "data", 40, 60, 80)
    chosen = kept_run(data, "privacy.trust=none", "privacy.moments=0.2", "thresholds.share=0.2")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    assert np.array_equal(np.array(stored(folder)["values"]).astype(int), exact(chosen, folder))
    assert summary["thresholds"]["sigma"] == 0.0 and summary["held_out_release"]["records"] == 44
    assert audit(folder).passed


def test_seeded_counts_are_the_same_however_clients_are_spread_over_sites(tmp_path):
    for trust in ((), LOCAL):
        values = []
        for sites in (1, 3):
            directory = tmp_path / f"{len(trust)}{sites}"
            settings = (*LAST, *trust, "privacy.epsilon=4.0", f"federation.sites={sites}", "seed=3")
            Federation(tmp_path).run(small(*settings), directory=directory)
            values.append(np.array(stored(directory)["values"]))
        assert np.allclose(*values, atol=1e-9)


class Killed(BaseException):
    """What ends a process at once."""


def test_counts_that_were_charged_and_are_not_on_file_are_not_released_again(tmp_path, monkeypatch):
    """Even where the budget would pay for it: the rounds had ended early."""

    def killed(*_):
        raise Killed

    chosen, directory, asked = small(*LAST), tmp_path / "run", []
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(server.thresholds, "keep", killed)
        Federation(tmp_path).run(chosen, directory=directory)
    ((before, spent),) = books(directory, ())
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True, app=app)
    assert "not released again" in summary["thresholds"]["missing"] and not KINDS & set(asked)
    assert books(directory, ()) == [(before, spent)] and not (directory / "scores.json").exists()
    assert audit(directory).passed


@pytest.mark.parametrize("round_", [2, 4])
@pytest.mark.parametrize("trust", TRUSTS)
def test_a_round_that_was_charged_and_lost_takes_the_place_of_the_last_one_and_not_of_the_counts(
    tmp_path, trust, round_, monkeypatch
):
    chosen, directory, take = small(*LAST, *trust), tmp_path / "run", Checkpoints.take

    def killed(self, number, vector):
        if number == round_:
            raise Killed
        take(self, number, vector)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "take", killed)
        Federation(tmp_path).run(chosen, directory=directory)
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert "stopped before round 4: attempts that came to nothing" in summary["status"]
    assert summary["thresholds"].get("missing") is None and (directory / "scores.json").exists()
    assert summary["epsilon_spent"] <= 1.0 + 1e-9 and audit(directory).passed


def test_a_run_that_promises_nothing_makes_all_its_rounds_whatever_was_lost(tmp_path, monkeypatch):
    chosen, directory, take = (
        small(*LAST, "privacy.trust=none", "privacy.epsilon=inf"),
        tmp_path / "run",
        Checkpoints.take,
    )

    def killed(self, number, vector):
        if number == 2:
            raise Killed
        take(self, number, vector)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "take", killed)
        Federation(tmp_path).run(chosen, directory=directory)
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert summary["status"] == "completed" and (directory / "scores.json").exists()


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_that_goes_on_has_the_counts_that_it_had(tmp_path, trust):
    chosen, directory, asked = small(*LAST, *trust, "privacy.epsilon=4.0"), tmp_path / "run", []
    summary = Federation(tmp_path).run(chosen, directory=directory)
    before = (directory / "scores.json").read_bytes()
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    again = Federation(tmp_path).run(chosen, directory=directory, resume=True, app=app)
    assert (directory / "scores.json").read_bytes() == before and not KINDS & set(asked)
    assert again["thresholds"] == summary["thresholds"] and again["epsilon_spent"] == summary["epsilon_spent"]


def test_clients_that_noise_their_own_are_asked_once_even_if_the_server_is_killed_between(tmp_path, monkeypatch):
    def killed(*_):
        raise Killed

    chosen, directory = small(*LAST, *LOCAL, "privacy.epsilon=4.0"), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(server.thresholds, "keep", killed)
        Federation(tmp_path).run(chosen, directory=directory)
    before = books(directory, LOCAL)
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert books(directory, LOCAL) == before and summary["thresholds"]["clients"] == 3
    assert audit(directory).passed


def test_a_client_counts_scores_once_and_no_more_often_than_was_planned(tmp_path):
    node = nodes.join(small(*LAST, *LOCAL, "training.rounds=3").model_dump_json(), "run", 1, ALONE)
    total = ScoreSum(node.task, torch.zeros(node.task.parameters, dtype=torch.float64))
    place = tmp_path / "client-0.sqlite"
    summed(total, node, place, 5, 0, 600)
    for attempt in (1, 2):
        with pytest.raises(BudgetExhausted, match="not for this, or not once more"):
            summed(total, node, place, 5, attempt, 600)


def test_a_client_answers_nothing_about_scores_in_a_run_that_releases_none():
    node = nodes.join(small().model_dump_json(), "run", 1, SITE)
    with pytest.raises(RuntimeError, match="agreed to a run that releases none"):
        ScoreSum(node.task, torch.zeros(node.task.parameters))


@pytest.mark.parametrize("change", [lambda steps: steps + 1, lambda steps: 2 * steps, lambda steps: -steps])
def test_counts_that_records_cannot_make_are_refused_and_the_model_stays(federation, caplog, change):
    def after(message, reply):
        if message.metadata.message_type == messages.SCORES.kind and message.metadata.dst_node_id == 1001:
            reply.content["arrays"]["steps"] = array(change(numbers(reply.content["arrays"]["steps"])))
        return reply

    summary = federation.run(small(*LAST, "federation.max_attempts=1"), app=Saboteur(after=after))
    folder = federation.folder / "run1"
    assert "there are no thresholds by group" in summary["thresholds"]["missing"]
    assert summary["status"] == "completed" and (folder / "model.safetensors").exists()
    assert all(entry.round <= 4 for entry in books(folder, ())[0][0]) and audit(folder).passed


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_an_audit_fails_where_counts_have_no_noise_or_cost_less(federation, trust):
    federation.run(small(*LAST, *trust, "privacy.epsilon=4.0"))
    folder = federation.folder / "run1"
    content = stored(folder)
    for change in (
        {"sigma": 2 * content["sigma"]},
        {"values": [[round(value) for value in row] for row in content["values"]]},
        {"seconds": 3},
    ):
        (folder / "scores.json").write_text(json.dumps(content | change))
        assert not audit(folder).passed
    os.unlink(folder / "scores.json")
    assert not audit(folder).passed


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_account_sets_aside_the_counts_too(federation, trust):
    name = f"scores-{len(trust)}-{'l' if trust == LOCAL else ''}"
    own = f"{name}.client-0" if trust else name
    summary = federation.run(small(*LAST, *trust, "privacy.epsilon=4.0", f"data.account={name}"))
    state = DatasetAccount(accounts_folder(), own).state()
    (run,) = state.runs.values()
    assert sum(run.steps.values()) == 5 and state.spent(1e-5) == pytest.approx(summary["epsilon"], rel=0.02)


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_a_limit_that_the_rounds_alone_would_fit_refuses_the_run_before_anything_is_spent(federation, trust):
    name = f"limited-scores-{len(trust)}"
    for own in [name] if not trust else [f"{name}.client-{number}" for number in range(3)]:
        DatasetAccount(accounts_folder(), own).limit(0.97, 1e-5)
    with pytest.raises((LimitReached, FederationError), match="would reach epsilon"):
        federation.run(small(*LAST, *trust, f"data.account={name}"))
    assert not list(federation.folder.rglob("*.sqlite"))


def test_attempts_that_fail_under_masks_are_planned_for():
    found = planned_shares(small(*LAST, *MASKED, "local.failing=0.5", "training.rounds=20"), 1e-5)
    steps = {Step(0.2, 1 / found.rounds): 30, Step(1.0, 1 / found.scores): 2}
    assert 0.999 < epsilon_by("pld", steps, 1e-5) <= 1.0 + 1e-9


def test_predictions_use_the_counts_of_the_run_and_look_at_no_held_out_record(federation):
    summary = federation.run(small(*LAST, "privacy.epsilon=4.0"))
    folder = federation.folder / "run1"
    os.unlink(folder / "outputs.npz")
    model = load(folder, thresholds="parity")
    cuts = {name: each["threshold"] for name, each in summary["thresholds"]["by_group"].items()}
    assert model.thresholds.by_group == cuts
    words = str(model.thresholds)
    assert "within the run's guarantee" in words and "the group is read of every record" in words
    assert not load(folder, thresholds="best").thresholds.by_group


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("thresholds.share=0.6",), "less than or equal to 0.5"),
        (("thresholds.share=0.2", "thresholds.rule=fair"), "'parity' or 'odds'"),
        (("thresholds.rule=odds",), "no counts are released"),
        (("thresholds.bins=3", "thresholds.share=0.2"), "thresholds.bins"),
        (("thresholds.share=0.5", "privacy.moments=0.5"), "less than 0.05 of the budget"),
    ],
)
def test_settings_of_thresholds_that_are_none_are_refused_by_name(changes, reason):
    with pytest.raises(ExperimentError, match=reason):
        small(*changes)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fair-regression", "objective.task 'regression' is no classification of records by group: use"),
        ("sketch-digits", "has no rounds that a model comes out of: use 'none', 'central'"),
    ],
)
def test_thresholds_of_a_task_or_trust_model_without_such_a_model_are_refused(name, reason):
    with pytest.raises(ExperimentError, match=reason):
        load_experiment(name, ["thresholds.share=0.2"])


@pytest.mark.parametrize(("classes", "groups"), [(3, 2), (2, 1)])
def test_thresholds_of_more_classes_or_one_group_are_refused_before_anything_is_spent(classes, groups):
    task = Problem.from_experiment(small(*LAST, "objective.alpha=0.0"))
    other = replace(task, shape=replace(task.shape, classes=classes, groups=("a", "b")[:groups]))
    with pytest.raises(ExperimentError, match="two classes" if classes > 2 else "are by group, and the data have 1"):
        require_thresholds(other)


def test_settings_without_thresholds_are_written_as_they_were():
    assert "thresholds" not in small().model_dump() and "thresholds" in small(*LAST).model_dump()
