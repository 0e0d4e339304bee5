"""Laws of histograms of columns, released before moments: what leaves, at what cost, once, and the bins that follow."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from fedsw.audit.record import audit
from fedsw.desk.use.trained import load
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation import messages
from fedsw.federation.client import require_same_run
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.replies import STATE
from fedsw.federation.server.owed import charge_lost_attempt
from fedsw.federation.trust.budget_shares import budget_split, shares
from fedsw.federation.trust.distributed.attempt_cost import planned_shares
from fedsw.federation.trust.round_plan import make_plan
from fedsw.learning.moments.beside_rounds import binned, histograms_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.accounting.lifetime import DatasetAccount, accounts_folder
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import kept_histograms
from tests.federations import Federation, Saboteur, array, numbers, sites_of

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

TRUSTS = [(), ("privacy.trust=local-gradient",), ("privacy.trust=distributed",)]
KINDS = {messages.HISTOGRAMS.kind, messages.NOISY_HISTOGRAMS.kind, messages.MASKED_HISTOGRAMS.kind}
SITE = {"partition-id": 0, "num-partitions": 1}
EACH = 200
HERE = (__name__,)


def everybody(client: int, clients: int) -> pd.DataFrame:
    """A client's records: a column that is mostly 0 and tells the class where it is not, an even one, a category."""
    rng = np.random.default_rng(client)
    gain = np.where(rng.random(EACH) < 0.7, 0, rng.integers(1, 90_001, EACH))
    ward = rng.choice(["a", "b", "c"], EACH)
    age = rng.integers(17, 91, EACH)
    label = np.where((gain > 40_000) | (ward == "b"), "high", "low")
    return pd.DataFrame({"gain": gain, "age": age, "ward": ward, "income": label})


SETTINGS = {
    "name": "own",
    "data": {
        "source": f"{__name__}:everybody",
        "columns": {
            "features": [
                {"name": "gain", "kind": "integer", "low": 0, "high": 100_000},
                {"name": "age", "kind": "integer", "low": 17, "high": 90},
                {"name": "ward", "categories": ["a", "b", "c"]},
            ],
            "target": {"name": "income", "values": ["low", "high"]},
        },
    },
    "model": {"kind": "additive", "knots": 5},
    "objective": {"alpha": 0.0},
    "training": {"rounds": 3, "batch_fraction": 0.5, "learning_rate": 0.5},
    "privacy": {"epsilon": 20.0, "delta": 1e-5, "histograms": 0.1, "moments": 0.3},
    "calibration": {"share": 0.1},
    "federation": {"clients": 3, "timeout": 20.0},
}
"""A run of three clients in three rounds that releases histograms, moments and scores."""


def asked(*overrides: str):
    """That run with other settings."""
    return parse_experiment(SETTINGS, overrides)


def stored(directory):
    return json.loads((directory / "histograms.json").read_text())


def books(directory) -> list:
    paths = [*directory.glob("clients/*.sqlite"), *directory.glob("ledger.sqlite")]
    found = []
    for path in paths:
        with Ledger.open(path, read_only=True) as ledger:
            found.append((ledger.entries(), ledger.epsilon()))
    return found


@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("target", ["privacy.epsilon=1.0", "privacy.noise_multiplier=4.0"])
def test_histograms_moments_rounds_and_scores_compose_to_the_promised_epsilon(rate, target):
    chosen = asked(target, "training.rounds=40")
    found = shares(chosen, rate=rate, delta=1e-5)
    steps = [(Step(1.0, 1 / multiplier), 1) for multiplier in found.once] + [(Step(rate, 1 / found.rounds), 40)]
    assert len(steps) == 4
    epsilon = epsilon_by("pld", steps, 1e-5)
    assert found.epsilon * (1 - 1e-4) < epsilon <= found.epsilon * (1 + 1e-9)
    if rate == 1.0:  # squares of mu add
        total = sum(count * step.mu**2 for step, count in steps)
        assert 1 / found.histograms**2 / total == pytest.approx(0.1, rel=1e-3)
    own = asked(target, "training.rounds=40", "privacy.trust=local-gradient")
    assert budget_split(own, rate=rate, delta=1e-5).histograms == found.histograms
    masked = asked("training.rounds=4", "privacy.trust=distributed", "local.failing=0.5")
    planned = planned_shares(masked, 1e-5)
    whole = [(Step(1.0, 1 / multiplier), 2) for multiplier in planned.once] + [(Step(0.5, 1 / planned.rounds), 6)]
    assert epsilon_by("pld", whole, 1e-5) <= 20.0 * (1 + 1e-9)


@pytest.mark.parametrize("trust", TRUSTS)
def test_histograms_are_charged_once_and_whole_before_moments_and_the_run_passes_its_audit(federation, trust):
    chosen = asked(*trust)
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    for entries, epsilon in books(folder):
        first, second, *rounds = entries
        assert (first.round, second.round) == (0, 0) and first.attempt < second.attempt
        assert first.sampling_rate == 1.0 and first.sensitivity >= math.sqrt(4) > second.sensitivity >= math.sqrt(2)
        steps = [(Step(entry.sampling_rate, entry.sensitivity / entry.sigma), 1) for entry in entries]
        assert len(rounds) == 4 and epsilon_by("pld", steps, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    assert 0.99 * summary["epsilon"] < summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["released_rounds"] == 3 and "histograms before them" in summary["guarantee"]["statement"]
    task = Problem.from_experiment(chosen)
    exact = histograms_of(task).counted(held_records(task, SITE).records.features).numpy()
    noise = (np.array(stored(folder)["values"]) - exact) / stored(folder)["sigma"]
    assert 0.8 < noise.std() < 1.2 and audit(folder, HERE).passed


def test_without_noise_counts_are_those_of_all_records_and_the_model_predicts_with_their_bins(federation):
    chosen = asked("privacy.trust=none", "privacy.epsilon=inf", "training.rounds=30")
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    task = Problem.from_experiment(chosen)
    exact = histograms_of(task).counted(held_records(task, SITE).records.features)
    assert np.array_equal(np.array(stored(folder)["values"]), exact.numpy())
    refined, _ = RunDirectory(folder).read_config(HERE)
    assert {column.column for column in refined.model.bins} == {"gain"} == summary["histograms"]["bins"].keys()
    assert refined.with_sections(model={"bins": ()}) == chosen
    rows = pd.DataFrame({"gain": [0, 90_000], "age": [40, 40], "ward": ["a", "a"]})
    low, high = load(folder, allow_modules=HERE).predict(rows).iloc[:, -1]
    assert low < 0.5 < high and audit(folder, HERE).passed


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_that_breaks_off_after_its_histograms_has_them_and_its_bins_and_is_not_charged_again(tmp_path, trust):
    chosen, kinds = asked(*trust), []

    def broken(message, context):
        kinds.append(message.metadata.message_type)
        if "moments" in message.metadata.message_type:
            raise RuntimeError("the client is off")

    with pytest.raises(Exception, match="off|left|attempt"):
        Federation(tmp_path).run(chosen, directory=tmp_path / "run", app=Saboteur(broken))
    before, (refined, _) = stored(tmp_path / "run"), RunDirectory(tmp_path / "run").read_config(HERE)
    assert refined.model.bins and KINDS & {*kinds}
    again: list[str] = []
    app = Saboteur(lambda message, context: again.append(message.metadata.message_type))
    summary = Federation(tmp_path).run(refined, directory=tmp_path / "run", resume=True, app=app)
    assert summary["status"].startswith(("completed", "stopped")) and not KINDS & {*again}
    assert stored(tmp_path / "run") == before and RunDirectory(tmp_path / "run").read_config(HERE)[0] == refined
    sensitivity = 1.001 * math.sqrt(4)
    assert all(
        sum(entry.sensitivity == pytest.approx(sensitivity) for entry in entries if entry.round == 0) == 1
        for entries, _ in books(tmp_path / "run")
    )
    assert audit(tmp_path / "run", HERE).passed


def test_a_client_agrees_to_other_bins_in_its_run_and_to_no_other_change(federation):
    """Nor to bins in a run without histograms: bins are then settings like all others."""
    chosen, refused = asked(), {}

    def hook(message, context):
        if message.metadata.message_type == messages.HISTOGRAMS.kind and not refused:
            state = context.state[STATE]
            bins = [{"column": "gain", "edges": [10.0, 20.0]}]
            for name, changes in {
                "bins": {"model": {"bins": bins}},
                "more": {"model": {"bins": bins}, "privacy": {**chosen.privacy.model_dump(), "moments": 0.2}},
                "knots": {"model": {"knots": 3}},
            }.items():
                raw = json.loads(str(state["experiment"]))
                other = json.dumps({**raw, **{key: {**raw[key], **value} for key, value in changes.items()}})
                try:
                    require_same_run(other, str(state["run"]), context)
                except RuntimeError as fault:
                    refused[name] = str(fault)
            refused["asked"] = ""

    federation.run(chosen, app=Saboteur(hook))
    assert refused.keys() == {"more", "knots", "asked"} and "another experiment" in refused["knots"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["values"][0].reverse(), "bins are not what the counts"),
        (lambda content: content.update(values=np.round(content["values"]).tolist()), "whole numbers"),
        (lambda content: content.update(sigma=content["sigma"] / 2), "its rows"),
        (lambda content: content.update(rows=[]), "holds"),
    ],
    ids=["other counts", "no noise", "less noise", "more"],
)
def test_an_audit_fails_where_histograms_are_others_than_the_ledger_and_the_bins_say(federation, change, reason):
    federation.run(asked())
    path = federation.folder / "run1" / "histograms.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    found = audit(federation.folder / "run1", HERE)
    assert not found.passed and any(reason in line for _, line in found.rows)


def test_counts_that_records_cannot_make_are_refused_and_never_quoted(federation):
    def after(message, reply):
        if message.metadata.message_type == messages.HISTOGRAMS.kind:
            steps = numbers(reply.content["arrays"]["steps"]).copy()
            steps[0, 0] += 1
            reply.content["arrays"]["steps"] = array(steps)
        return reply

    with pytest.raises(Exception, match="its counts are none of its records"):
        federation.run(asked("federation.max_attempts=1"), app=Saboteur(after=after))


def test_an_attempt_before_the_rounds_that_is_lost_is_charged_what_the_dearer_release_costs():
    """Nobody knows which of the two it was: mu of the charge is the larger one."""
    sites, charged = sites_of((200,), (200,), (200,)), []

    class Taken:
        def charge_lost(self, round_, attempt, charges, sigma):
            charged.append(max(charge.sensitivity for charge in charges) / sigma)

    for overrides in (("privacy.histograms=0.3", "privacy.moments=0.1"), ()):
        plan = make_plan(Problem.from_experiment(asked(*overrides)), sites)
        charge_lost_attempt(plan, Taken(), sites, (0, 1))
        assert charged[-1] == pytest.approx(max(1 / plan.histograms, 1 / plan.moments))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("model.kind=logistic",), "set it to 0"),
        (("privacy.moments=0",), "set a share"),
        (("privacy.histograms=0.5", "privacy.moments=0.45"), "to the rounds"),
        (('model.bins=[{column = "none", edges = [1.0]}]',), "no declared column"),
        (('model.bins=[{column = "gain", edges = [0.0]}]',), "out of its bounds"),
        (('model.bins=[{column = "gain", edges = [5.0, 5.0]}]',), "must increase"),
        (('model.bins=[{column = "gain", edges = [5.0]}, {column = "gain", edges = [6.0]}]',), "twice"),
    ],
)
def test_histograms_and_bins_that_nothing_could_use_are_refused_at_load_time(overrides, reason):
    with pytest.raises(ExperimentError, match=reason):
        asked(*overrides)


def test_histograms_of_columns_that_have_a_knot_each_are_refused_before_anything_is_spent(federation):
    raw = json.loads(asked().model_dump_json())
    raw["data"]["columns"]["features"] = [{"name": "ward", "categories": ["a", "b", "c"]}]
    with pytest.raises(ExperimentError, match="more values than knots"):
        federation.run(parse_experiment(raw))
    assert not [*federation.folder.rglob("*.sqlite")]


@pytest.mark.parametrize("trust", TRUSTS)
def test_an_account_sets_aside_what_histograms_cost(federation, trust):
    name = f"histograms-{''.join(trust)[-5:]}"
    own = f"{name}.client-0" if trust else name
    DatasetAccount(accounts_folder(), own).limit(20.5, 1e-5)
    summary = federation.run(asked(*trust, f"data.account={name}"))
    state = DatasetAccount(accounts_folder(), own).state()
    (run,) = state.runs.values()
    assert sum(run.steps.values()) == 6 and state.spent(1e-5) == pytest.approx(summary["epsilon"], rel=0.02)


def test_a_share_that_is_written_waits_for_the_preset_to_choose_an_additive_model(federation):
    raw = {**json.loads(asked().model_dump_json(exclude_unset=True)), "model": {}, "training": {"preset": "auto"}}
    raw["privacy"] |= {"epsilon": 100.0}
    federation.run(parse_experiment(raw, ["training.rounds=2"]))
    refined, _ = RunDirectory(federation.folder / "run1").read_config(HERE)
    assert refined.model.kind == "additive" and refined.model.bins


def test_bins_follow_from_what_is_kept_and_are_left_out_where_moments_would_be_too_many(federation, monkeypatch):
    federation.run(asked())
    directory = RunDirectory(federation.folder / "run1")
    task = Problem.from_experiment(directory.read_config(HERE)[0])
    histograms = kept_histograms(task, directory)
    assert binned(task, histograms) == task.experiment and task.experiment.model.bins
    monkeypatch.setattr("fedsw.learning.moments.moments_sum.MOST_FEATURES", 12)
    assert binned(task, histograms).model.bins == ()


def test_written_bins_need_no_release_and_a_config_with_them_is_read_again(tmp_path, federation):
    chosen = asked("privacy.histograms=0", 'model.bins=[{column = "gain", edges = [1.0, 40000.0]}]')
    federation.run(chosen)
    assert not (federation.folder / "run1" / "histograms.json").exists()
    assert RunDirectory(federation.folder / "run1").read_config(HERE)[0] == chosen
    names = Problem.from_experiment(chosen).coding.names
    assert names[:3] == ("gain at 0", "gain at 1 to 39999", "gain at 40000 to 100000")
