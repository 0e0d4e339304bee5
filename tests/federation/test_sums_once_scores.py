"""Laws of counts of scores, released after the last round: what leaves, at what cost, once, and what follows."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw.audit.record import audit
from fedsw.desk.use.trained import load
from fedsw.experiment import ExperimentError, load_experiment, parse_experiment
from fedsw.federation import messages
from fedsw.federation.exchange import participants
from fedsw.federation.exchange.participants import Site
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_records
from fedsw.federation.server import releases_once as server
from fedsw.federation.trust.budget_shares import SCORES_PART, budget_split, rounds_beside, shares
from fedsw.federation.trust.distributed.attempt_cost import planned_shares
from fedsw.federation.trust.sums_once import ScoreSum
from fedsw.learning.models.outer_layers import made_up_inputs, rescalable, rescaled
from fedsw.learning.moments.beside_rounds import require_scorable, scores_of, tally_of
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks import Classification, calibration
from fedsw.learning.tasks.measures import tally_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores
from fedsw.privacy.accounting import BudgetExhausted, Ledger, Step, epsilon_by
from fedsw.privacy.accounting.lifetime import DatasetAccount, LimitReached, accounts_folder
from fedsw.runs.checkpoint import Checkpoints
from fedsw.runs.evaluation import verdict
from fedsw.runs.evaluation.group_thresholds import cuts_of, kept
from fedsw.runs.report import facts
from fedsw.runs.view import read_outputs
from tests.federation.node.releases import summed
from tests.federations import Federation, Saboteur, array, numbers, small
from tests.runs.kept_runs import kept_run, tables

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

LAST = ("thresholds.share=0.3", "privacy.delta=1e-5")
CALIBRATED = ("calibration.share=0.3", "privacy.delta=1e-5")
LOCAL = ("privacy.trust=local-gradient",)
MASKED = ("privacy.trust=distributed", "local.bins=8")
TRUSTS = [(), LOCAL, MASKED]
KINDS = {messages.SCORES.kind, messages.NOISY_SCORES.kind, messages.MASKED_SCORES.kind}
SITE = {"partition-id": 0, "num-partitions": 1}
ALONE = {"partition-id": 0, "num-partitions": 3}


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """Models that are calibrated, however little of a signal their few records have."""
    monkeypatch.setattr(calibration, "TELLS", -math.inf)


def exact(chosen, directory) -> np.ndarray:
    """Counts of all records under the rounds' model (groups, width), without noise."""
    task = Problem.from_experiment(chosen)
    model = task.build_model()
    model.load_state_dict(load_file(directory / "model.safetensors"))
    if said := stored(directory).get("calibration"):
        back = 1 / said["scale"]
        model = rescaled(model.double(), task.features, back, [-back * shift for shift in said["shift"]]).float()
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
@pytest.mark.parametrize(
    "asked", [LAST, CALIBRATED, (*LAST, "calibration.share=0.1"), (*LAST, "objective.penalty=none")]
)
def test_counts_are_charged_once_and_whole_after_the_rounds_and_the_run_passes_its_audit(federation, trust, asked):
    chosen = small(*asked, *trust, "privacy.epsilon=4.0")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    for entries, epsilon in books(folder, trust):
        last = [entry for entry in entries if entry.round == rounds_beside(chosen)[SCORES_PART]]
        assert entries[-len(last) :] == last and {entry.sampling_rate for entry in last} == {1.0}
        assert all(entry.sensitivity >= math.sqrt(2) for entry in last)
        steps = [(Step(e.sampling_rate, e.sensitivity / e.sigma), 1) for e in entries if e.group == last[0].group]
        assert len(steps) == 5 and epsilon_by("pld", steps, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    assert 0.99 * summary["epsilon"] < summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["released_rounds"] == 4 and "scores' counts after them" in summary["guarantee"]["statement"]
    noise = (np.array(stored(folder)["values"]) - exact(chosen, folder)) / stored(folder)["sigma"]
    assert (0.75 if noise.size > 20 else 0.3) < noise.std() < (1.25 if noise.size > 20 else 2.0)
    assert ("calibration" in summary) == bool(chosen.calibration.share) and audit(folder).passed


def test_without_noise_counts_are_those_of_all_records_after_moments_and_held_out_records_too(tmp_path, federation):
    data = tables(tmp_path / "data", 40, 60, 80)
    chosen = kept_run(data, "privacy.trust=none", "privacy.moments=0.2", "thresholds.share=0.2")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    assert np.array_equal(np.array(stored(folder)["values"]).astype(int), exact(chosen, folder))
    assert summary["thresholds"]["sigma"] == 0.0 and summary["held_out_release"]["records"] == 44
    assert audit(folder).passed


@pytest.mark.parametrize("classes", [2, 10])
def test_without_noise_the_released_model_is_the_rounds_one_with_its_logits_scaled(federation, classes):
    settings = ["privacy.trust=none", "privacy.epsilon=inf", "seed=1", *CALIBRATED]
    raw = {"name": "ten", "data": {"source": "digits"}, "objective": {"alpha": 0.0}, "training": {"rounds": 20}}
    chosen = small(*settings) if classes == 2 else parse_experiment(raw, ["federation.clients=3", *settings])
    summary = federation.run(chosen)
    plain = federation.run(chosen.with_sections(calibration={"share": 0.0}))
    task, models = Problem.from_experiment(chosen), []
    for number in (1, 2):
        models.append(task.build_model().double())
        models[-1].load_state_dict(load_file(federation.folder / f"run{number}" / "model.safetensors"))
    made_up, said = made_up_inputs(task.features, models[0]), summary["calibration"]
    with torch.no_grad():
        after, before = (model(made_up) for model in models)
    assert torch.allclose(after, said["scale"] * before + torch.tensor(said["shift"]), atol=1e-4)
    assert "calibration" not in plain and not (federation.folder / "run2" / "scores.json").exists()
    assert said["log_loss"]["value"] == pytest.approx(summary["held_out"]["loss"], rel=0.2)
    assert audit(federation.folder / "run1").passed


def test_a_release_for_thresholds_serves_calibration_too_at_the_larger_share(federation):
    """One sum: its cost is that of thresholds alone, and thresholds are of the calibrated probability."""
    asked = ("thresholds.share=0.3", "calibration.share=0.1", "privacy.delta=1e-5")
    both, alone = (shares(small(*settings), rate=1.0, delta=1e-5) for settings in (asked, LAST))
    assert both == alone
    summary = federation.run(small(*asked, "privacy.trust=none", "privacy.epsilon=inf"))
    folder = federation.folder / "run1"
    scores, said = kept(folder), summary["calibration"]
    raw = cuts_of(replace(scores, calibration=None), "parity").by_group
    logits = said["scale"] * np.log(np.array(raw) / (1 - np.array(raw))) + said["shift"][0]
    found = [group["threshold"] for group in summary["thresholds"]["by_group"].values()]
    assert found == pytest.approx(1 / (1 + np.exp(-logits)))
    assert load(folder, thresholds="parity").thresholds.by_group == dict(
        zip(summary["thresholds"]["by_group"], found, strict=True)
    )


@pytest.mark.parametrize("trust", TRUSTS)
def test_where_the_counts_do_not_bear_the_model_out_it_predicts_the_class_shares(federation, monkeypatch, trust):
    """So do its thresholds, its screen says so, and it passes its audit; a run that goes on stays with them."""
    monkeypatch.setattr(calibration, "TELLS", math.inf)
    chosen = small("thresholds.share=0.3", *CALIBRATED, *trust, "privacy.epsilon=4.0")
    summary = federation.run(chosen)
    folder, said = federation.folder / "run1", summary["calibration"]
    share = 1 / (1 + math.exp(-said["shift"][0]))
    assert said["scale"] == 0 and read_outputs(folder / "outputs.npz").values == pytest.approx(share, abs=1e-6)
    assert {each["threshold"] for each in summary["thresholds"]["by_group"].values()} == {0.5}
    assert summary["thresholds"]["accuracy"] == pytest.approx(max(share, 1 - share))
    assert all(verdict.SHARES_ALONE in words for words in (str(summary["warnings"]), facts.probabilities(summary)))
    assert summary["held_out"]["loss"] == pytest.approx(summary["constant"]["loss"], abs=0.08) and audit(folder).passed


def test_kept_records_are_counted_under_the_calibrated_model(tmp_path, federation):
    data = tables(tmp_path / "data", 40, 60, 80)
    chosen = kept_run(data, "privacy.trust=none", "calibration.share=0.2")
    federation.run(chosen)
    folder = federation.folder / "run1"
    task = Problem.from_experiment(chosen)
    model = task.build_model()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    holder = nodes.join(chosen.model_dump_json(), "run", 1, SITE).held_out
    wanted = tally_of_records(task, tally_of(task), holder.everybody(Stream.secure()), model).double() * STEP
    assert np.allclose(json.loads((folder / "held_out.json").read_text())["values"], wanted)


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


@pytest.mark.parametrize(("asked", "name"), [(LAST, "thresholds"), (CALIBRATED, "calibration")])
def test_counts_that_were_charged_and_are_not_on_file_are_not_released_again(tmp_path, monkeypatch, asked, name):
    """Even where the budget would pay for it: the rounds had ended early."""

    def killed(*_):
        raise Killed

    chosen, directory, sent = small(*asked), tmp_path / "run", []
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(server.thresholds, "keep", killed)
        Federation(tmp_path).run(chosen, directory=directory)
    ((before, spent),) = books(directory, ())
    app = Saboteur(lambda message, context: sent.append(message.metadata.message_type))
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True, app=app)
    assert "not released again" in summary[name]["missing"] and not KINDS & set(sent)
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
def test_a_run_that_goes_on_has_the_counts_and_the_model_that_it_had(tmp_path, trust):
    settings = (*LAST, "calibration.share=0.1", *trust, "privacy.epsilon=4.0")
    chosen, directory, asked = small(*settings), tmp_path / "run", []
    summary = Federation(tmp_path).run(chosen, directory=directory)
    before, model = ((directory / name).read_bytes() for name in ("scores.json", "model.safetensors"))
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    again = Federation(tmp_path).run(chosen, directory=directory, resume=True, app=app)
    assert (directory / "scores.json").read_bytes() == before and not KINDS & set(asked)
    assert (directory / "model.safetensors").read_bytes() == model
    assert again["calibration"] == summary["calibration"] and again["held_out"] == summary["held_out"]
    assert again["thresholds"] == summary["thresholds"] and again["epsilon_spent"] == summary["epsilon_spent"]


def test_a_real_node_that_answered_the_releases_after_the_rounds_is_taken_back():
    """A run with scores could not be resumed where nodes keep on disk what they answered."""
    task = Problem.from_experiment(small(*LAST))
    rounds = sorted(set(rounds_beside(task.experiment).values()))
    answered = np.array([[number, 0, 2] for number in rounds])
    site = Site(0, np.zeros(1, dtype=np.int64), np.array([[60]]), None, None, None, answered)
    participants._refuse_invented(site, task, {number: 1 for number in rounds})
    beyond = replace(site, answered=answered + [1, 0, 0])
    with pytest.raises(FederationError, match=f"has answered in round {rounds[-1] + 1} of a run of"):
        participants._refuse_invented(beyond, task, {number + 1: 1 for number in rounds})


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
@pytest.mark.parametrize("asked", [LAST, CALIBRATED])
def test_an_audit_fails_where_counts_have_no_noise_or_cost_less(federation, trust, asked):
    federation.run(small(*asked, *trust, "privacy.epsilon=4.0"))
    folder = federation.folder / "run1"
    content = stored(folder)
    said = content.get("calibration", {"scale": 1.0, "shift": [0.0]})
    for change in (
        {"calibration": {**said, "scale": 1.01 * said["scale"]}},
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


@pytest.mark.parametrize("share", ["thresholds.share", "calibration.share"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fair-regression", "objective.task 'regression' is no classification of records: use"),
        ("sketch-digits", "has no rounds that a model comes out of: use 'none', 'central'"),
    ],
)
def test_scores_of_a_task_or_trust_model_without_such_a_model_are_refused(name, reason, share):
    with pytest.raises(ExperimentError, match=reason):
        load_experiment(name, [f"{share}=0.2"])


@pytest.mark.parametrize(("classes", "groups"), [(3, 2), (2, 1)])
def test_thresholds_of_more_classes_or_one_group_are_refused_before_anything_is_spent(classes, groups):
    task = Problem.from_experiment(small(*LAST, "objective.alpha=0.0"))
    other = replace(task, shape=replace(task.shape, classes=classes, groups=("a", "b")[:groups]))
    with pytest.raises(ExperimentError, match="two classes" if classes > 2 else "are by group, and the data have 1"):
        require_scorable(other)


class Doubled(Classification):
    """A classifier whose probabilities are not those of its logits."""

    def outputs(self, raw, batch):
        return super().outputs(2 * raw, batch)


def test_a_model_without_a_last_layer_to_scale_is_refused_before_anything_is_spent():
    task = Problem.from_experiment(small(*CALIBRATED))
    require_scorable(task)
    with pytest.raises(ExperimentError, match="makes other outputs of what a model returns: set it to 0"):
        require_scorable(replace(task, task=Doubled()))
    for network in (nn.Sequential(nn.Linear(4, 1), nn.Tanh()), nn.Linear(4, 1, bias=False)):
        assert not rescalable(network, 4)
    assert rescalable(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), 4)


def test_settings_without_scores_are_written_as_they_were():
    assert not {"thresholds", "calibration"} & small().model_dump().keys()
    assert "thresholds" in small(*LAST).model_dump() and "calibration" in small(*CALIBRATED).model_dump()
