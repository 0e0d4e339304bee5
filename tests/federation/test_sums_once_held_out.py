"""Laws of records that are kept out of training and measured in the federation: what leaves, at what cost, once."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw.desk.own_data.evaluate import evaluate
from fedsw.experiment import ExperimentError
from fedsw.federation.engines import inprocess
from fedsw.federation.messages import HELLO, NOISY_TALLY, TALLY, trusts_of
from fedsw.federation.node import replies
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_out_records, held_records
from fedsw.federation.node.own_ledger import HELD_OUT, spent_epsilon
from fedsw.federation.server.releases_once import keep
from fedsw.federation.trust import promise, sums_once
from fedsw.federation.trust.budget_shares import held_out_budget
from fedsw.federation.trust.sums_once import TallySum
from fedsw.learning.moments.beside_rounds import tally_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Counts, Cut, RegressionSums
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Ledger
from fedsw.privacy.accounting.lifetime import (
    DatasetAccount,
    LimitReached,
    accounts_folder,
    composed_epsilon,
    total_epsilon,
)
from fedsw.runs.recovery import StorageFault
from tests.federation.node.releases import summed
from tests.federations import Federation, Saboteur, array, numbers, small
from tests.noises import require_gaussian
from tests.runs.kept_runs import LOCAL, NOBODY, SITE, entries, exact, frame, kept_run, released, tables, written

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")


@pytest.mark.parametrize("moments", [(), ("privacy.moments=0.3",)], ids=["", "moments"])
@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize("regression", [False, True])
def test_without_noise_the_metrics_are_those_of_all_kept_records(tmp_path, federation, sites, regression, moments):
    data = tables(tmp_path / "data", 40, 60, 80)
    chosen = kept_run(data, *NOBODY, *moments, f"federation.sites={sites}", regression=regression)
    summary = federation.run(chosen)
    directory = federation.folder / "run1"
    assert torch.allclose(released(directory)["values"], exact(chosen, directory), atol=1e-5, rtol=0)  # float32 outputs
    (*_, everybody) = evaluate(directory, None)
    assert summary["held_out_measured_on"]["records"] == everybody.count == 2 * (5 + 7 + 10)
    for name, value in summary["held_out"].items():
        by_bins = {"loss": 0.05, "auc": 0.1, "calibration_error": 0.15}  # ten of them; else float32
        close = {"abs": by_bins[name]} if name in by_bins else {"rel": 1e-5, "abs": 1e-7}
        assert name == "ks" or value == pytest.approx(everybody.worth.metrics[name], **close)
    for name in summary["held_out"].keys() & everybody.worth.quality.constant.keys():
        assert summary["constant"][name] == pytest.approx(everybody.worth.quality.constant[name], rel=1e-5, abs=1e-7)
    assert summary["epsilon_of_reader"] == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("trust", [(), LOCAL])
def test_what_is_added_to_the_sums_is_noise_of_the_planned_scale_in_every_number(tmp_path, federation, trust):
    chosen, added = kept_run(tables(tmp_path / "data", 40, 60, 80), *trust), []
    for _ in range(12):
        summary = federation.run(chosen)
        directory = federation.folder / f"run{federation.runs}"
        found = released(directory)
        added.append((found["values"] - exact(chosen, directory)).reshape(-1))
    task = Problem.from_experiment(chosen)
    budget = held_out_budget(chosen, tally_of(task), summary["epsilon"], 1e-5)
    if not trust:
        assert found["sigma"] == pytest.approx(budget.sigma, rel=1e-9)
    else:  # of three clients, each at its own epsilon, no larger than the largest
        assert found["sigma"] >= budget.sigma * math.sqrt(3) * (1 - 1e-9)
    require_gaussian(torch.stack(added), found["sigma"])


@pytest.mark.parametrize("trust", [(), ("privacy.trust=local-gradient", "training.batch_fraction=0.2")])
def test_kept_records_are_measured_as_they_are_after_moments_too(tmp_path, federation, trust):
    little = ("privacy.moments=0.3", "privacy.noise_multiplier=0.05")
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), *trust, *little, regression=True)
    federation.run(chosen)
    found = released(federation.folder / "run1")
    cut = Cut.of_flat(torch.tensor(found["cut"]).reshape(-1))
    assert cut != Cut.whole(1)
    off = (found["values"] - exact(chosen, federation.folder / "run1", cut=cut)).abs().max()
    assert off < 6 * found["sigma"] < 1.5


def test_what_masks_know_of_a_tally_is_its_cut_too(tmp_path):
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), regression=True)
    task = Problem.from_experiment(chosen)
    theta, cuts = torch.zeros(task.parameters), (Cut.whole(1), Cut.about([0.4], [0.01]))
    known = [TallySum.at(task, 5, torch.cat([theta.double(), cut.flat()])).known for cut in cuts]
    assert known[0]["model"] == known[1]["model"] and known[0] != known[1]


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_kept_records_are_charged_once_and_whole_and_training_costs_them_nothing(tmp_path, federation, trust):
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), *trust)
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    ledgers = sorted(folder.glob("clients/*.sqlite")) if trust else [folder / "ledger.sqlite"]
    assert len(ledgers) == (3 if trust else 1)
    for path in ledgers:
        kept = [entry for entry in entries(path) if entry.group == HELD_OUT]
        others = [entry for entry in entries(path) if entry.group != HELD_OUT]
        assert [entry.sampling_rate for entry in kept] == [0.0, 0.0, 1.0]
        assert kept[-1].round == 3 and kept[-1].sensitivity >= math.sqrt(2.5)
        assert all((entry.sampling_rate > 0) == (entry.round < 3) for entry in others)
        with Ledger.open(path, read_only=True) as ledger:
            by_group = ledger.epsilon_by_group()
            assert ledger.budget * (1 - 1e-4) < by_group[HELD_OUT] <= ledger.budget * (1 + 1e-9)
            assert ledger.epsilon() == max(by_group.values())
    assert summary["released_rounds"] == 2 and summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert "kept out of training have the same guarantee" in summary["guarantee"]["statement"]


def test_sums_over_kept_records_that_no_ledger_has_a_row_of_stay_at_the_client(tmp_path, monkeypatch):
    chosen, config = kept_run(tables(tmp_path / "data", 40, 60, 80), *LOCAL), {"partition-id": 0, "num-partitions": 3}
    node = nodes.join(chosen.model_dump_json(), "run", 1, config)
    monkeypatch.setattr(replies, "join_of", lambda context: node)
    inprocess.identify(1)
    request = Message(RecordDict({"config": ConfigRecord({"round": 3})}), 7, NOISY_TALLY.kind, ttl=60.0)
    reply = Message(RecordDict({"metrics": ConfigRecord({"epsilon": 0.5})}), reply_to=request)
    context = inprocess.context(1, 7, {**config, "state-dir": str(tmp_path)})
    with pytest.raises(RuntimeError, match="something would leave in round 3 .*client-0 has no row of it"):
        replies.require_charged(NOISY_TALLY.kind, request, reply, context)
    replies.require_charged(HELLO.kind, request, reply, context)  # which releases nothing


def test_no_record_is_both_trained_on_and_counted_and_neither_moves_the_other(tmp_path):
    data = tables(tmp_path / "data", 40, 60, 80)
    chosen = kept_run(data)
    task = Problem.from_experiment(chosen)
    trained, kept = held_records(task, SITE), held_out_records(task, SITE)
    assert not set(trained.records.ids.tolist()) & set(kept.records.ids.tolist())
    frames = []
    for number, size in enumerate((40, 60, 80)):
        own = frame(number, size)
        rows = trained.records.ids[trained.owner == number].numpy() // 3
        own.loc[rows, ["x0", "x1"]] += 50.0
        own.loc[rows, "income"] = "high"
        frames.append(own)
    other = kept_run(written(tmp_path / "other", frames))
    theta, found = torch.randn(task.parameters, dtype=torch.float64), []
    for asked in (chosen, other):
        nodes._nodes.clear()
        node = nodes.join(asked.model_dump_json(), "run", 1, SITE)
        found.append(TallySum(node.task, theta).steps(node, range(3), Stream(bytes(32))))
    assert torch.equal(*found)


@pytest.mark.parametrize("trust", [(), LOCAL])
@pytest.mark.parametrize("unit", [None, "patient"])
def test_replacing_one_kept_unit_moves_the_sums_by_no_more_than_is_charged(tmp_path, trust, unit):
    sizes, rows = (40, 40, 40), 1 if unit is None else 3
    data = tables(tmp_path / "data", *sizes, rows=rows)
    more = {} if unit is None else {"unit": unit}
    chosen = kept_run(data, *trust, **more)
    task = Problem.from_experiment(chosen)
    kept = held_out_records(task, SITE)
    first = int(kept.records.ids[0]) // 3 // rows * rows  # row of client 0's file that begins a kept unit
    frames = [frame(number, size, rows=rows) for number, size in enumerate(sizes)]
    worst = 0.0
    for place, (x0, income) in enumerate([(9.0, "high"), (-9.0, "low"), (9.0, "low"), (-9.0, "high")]):
        frames[0].loc[range(first, first + rows), "x0"] = x0
        frames[0].loc[range(first, first + rows), "income"] = income
        other = kept_run(written(tmp_path / f"other{place}", frames), *trust, **more)
        theta, found = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)[: task.parameters], []
        for asked in (chosen, other):
            nodes._nodes.clear()
            node = nodes.join(asked.model_dump_json(), "run", 1, SITE)
            found.append(TallySum(node.task, theta).steps(node, range(3), Stream(bytes(32))))
        worst = max(worst, float(torch.linalg.vector_norm((found[0] - found[1]).double())) * 2.0**-26)
    budget = held_out_budget(chosen, tally_of(task), 1.0, 1e-5)
    assert 0.99 * budget.sensitivity.value / 1.001 < worst <= budget.sensitivity.value


def test_a_clients_own_counts_are_of_one_row_of_each_kept_person(tmp_path, monkeypatch):
    seen, genuine = [], sums_once.tally_of_records
    monkeypatch.setattr(sums_once, "tally_of_records", lambda *given: (seen.append(given[2]), genuine(*given))[1])
    chosen = kept_run(tables(tmp_path / "data", 40, 40, 40, rows=3), *LOCAL, unit="patient")
    node = nodes.join(chosen.model_dump_json(), "run", 1, {"partition-id": 0, "num-partitions": 3})
    theta = torch.zeros(node.task.parameters, dtype=torch.float64)
    summed(TallySum(node.task, theta), node, tmp_path / "client-0.sqlite", 3, 0, 120)
    assert len(seen[0]) == len(seen[0].unit.unique()) == len(node.held_out.units) == 10 < len(node.held_out.records)


def test_sites_that_sum_for_many_clients_release_what_the_clients_would(tmp_path):
    data, found = tables(tmp_path / "data", 40, 60, 80), []
    for sites in (1, 3):
        for trust in ((), LOCAL):
            chosen = kept_run(data, *trust, f"federation.sites={sites}", "seed=5")
            Federation(tmp_path).run(chosen, directory=tmp_path / f"{sites}{len(trust)}")
            found.append(released(tmp_path / f"{sites}{len(trust)}"))
    assert torch.equal(found[0]["values"], found[2]["values"])
    assert torch.allclose(found[1]["values"], found[3]["values"], atol=1e-9)


def test_who_is_lost_after_training_is_not_in_the_sums_and_not_among_the_records(tmp_path, federation):
    def hook(message, context):
        if message.metadata.message_type.startswith("evaluate.") and message.metadata.dst_node_id == 1001:
            raise OSError("gone")

    data = tables(tmp_path / "data", 40, 60, 80)
    for number, trust in enumerate(((), LOCAL), start=1):
        chosen = kept_run(data, *trust, "federation.min_clients=2")
        summary = federation.run(chosen, app=Saboteur(hook))
        said = summary["held_out_release"]
        assert said["clients"] == 2 and said["records"] in (2 * (5 + 7), 2 * (5 + 10), 2 * (7 + 10))
        directory = federation.folder / f"run{number}"
        assert sum(released(directory)["records"]) == said["records"]


def test_with_too_few_clients_the_run_keeps_its_model_says_why_and_gets_metrics_when_it_goes_on(tmp_path):
    away, directory = [True], tmp_path / "run"

    def hook(message, context):
        if message.metadata.message_type.startswith("evaluate.") and away:
            raise OSError("gone")

    chosen, app = kept_run(tables(tmp_path / "data", 40, 60, 80), "federation.max_attempts=1"), Saboteur(hook)
    summary = Federation(tmp_path).run(chosen, directory=directory, app=app)
    assert summary["status"] == "completed" and summary["held_out"] == {} and (directory / "model.safetensors").exists()
    assert "nothing is known of the records that clients kept out of training" in summary["warnings"][0]
    assert [entry.sampling_rate for entry in entries(directory / "ledger.sqlite") if entry.group == HELD_OUT] == [0, 0]
    away.clear()
    summary = Federation(tmp_path).run(chosen, directory=directory, app=app, resume=True)
    assert summary["held_out_release"]["attempt"] == 1 and math.isfinite(summary["held_out"]["accuracy"])
    before = released(directory)["values"]
    again = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert torch.equal(released(directory)["values"], before) and again["held_out"] == summary["held_out"]


@pytest.mark.parametrize(
    ("trust", "ledgers", "measured"),
    [((), "ledger.sqlite", False), (LOCAL, "clients/*.sqlite", True)],
    ids=["", "what clients released themselves is on disk"],
)
def test_a_release_that_was_charged_and_lost_is_not_made_again(tmp_path, monkeypatch, trust, ledgers, measured):
    def failing(*_):
        raise OSError(28, "no space left on device")

    directory, chosen = tmp_path / "run", kept_run(tables(tmp_path / "data", 40, 60, 80), *trust)
    with monkeypatch.context() as patch, pytest.raises(StorageFault):
        patch.setattr("fedsw.federation.server.releases_once.keep", failing)
        Federation(tmp_path).run(chosen, directory=directory)
    assert keep is not failing
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert summary["status"] == "completed" and bool(summary["held_out"]) == measured
    assert measured or "the budget is" in summary["warnings"][0]
    for path in directory.glob(ledgers):
        assert sum(entry.sampling_rate for entry in entries(path) if entry.group == HELD_OUT) == 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda steps: steps + 1, "its sums are none of 14 kept records"),
        (lambda steps: 3 * steps, "its sums are none of 14 kept records"),
        (lambda steps: steps[:, 1:], "unreadable answer"),
        (lambda steps: -steps, "unreadable answer"),
    ],
)
def test_sums_that_kept_records_cannot_make_are_refused_and_never_quoted(tmp_path, federation, caplog, change, reason):
    def after(message, reply):
        if message.metadata.message_type == TALLY.kind and message.metadata.dst_node_id == 1001:
            reply.content["arrays"]["steps"] = array(change(numbers(reply.content["arrays"]["steps"])))
        return reply

    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), "federation.max_attempts=1")
    summary = federation.run(chosen, app=Saboteur(after=after))
    assert summary["held_out"] == {} and reason in caplog.text
    assert not (federation.folder / "run1" / "held_out.json").exists()


def test_a_client_gives_exact_sums_to_no_server_that_it_does_not_trust(tmp_path, federation):
    refused = []

    def hook(message, context):
        if message.metadata.message_type == "evaluate.noisy_tally":
            message.metadata.message_type = TALLY.kind

    def after(message, reply):
        if message.metadata.message_type == TALLY.kind:
            refused.append(reply.has_error() or "steps" not in reply.content.get("arrays", {}))
        return reply

    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), *LOCAL)
    assert chosen.privacy.trust not in trusts_of(TALLY)
    summary = federation.run(chosen, app=Saboteur(hook, after))
    assert summary["held_out"] == {} and all(refused)


def test_a_client_answers_nothing_of_kept_records_in_a_run_that_releases_nothing_of_them(tmp_path):
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), held_out_to="operator")
    nodes._nodes.clear()
    node = nodes.join(chosen.model_dump_json(), "run", 1, SITE)
    theta = torch.zeros(node.task.parameters, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="agreed to a run that releases none"):
        TallySum(node.task, theta).steps(node, range(3), Stream(bytes(32)))


def test_a_client_that_is_asked_twice_under_any_number_releases_once(tmp_path):
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), *LOCAL)
    nodes._nodes.clear()
    node = nodes.join(chosen.model_dump_json(), "run", 1, {"partition-id": 0, "num-partitions": 3})
    theta, place = torch.zeros(node.task.parameters, dtype=torch.float64), tmp_path / "client-0.sqlite"
    released = summed(TallySum(node.task, theta), node, place, 3, 0, 180)
    assert released.value.shape == (2, 24) and released.sigma > 0
    for round_, attempt in ((3, 0), (3, 1), (1, 0), (9, 5)):
        with pytest.raises((BudgetExhausted, AlreadySpent)):
            summed(TallySum(node.task, theta), node, place, round_, attempt, 180)
    assert sum(entry.sampling_rate for entry in entries(place) if entry.group == HELD_OUT) == 1.0


@pytest.mark.parametrize("change", [{"seed": 1}, {"held_out_fraction": 0.5}])
def test_a_run_does_not_go_on_under_another_split_so_nobody_is_both_trained_on_and_counted(tmp_path, change):
    """Whom a client trained on, a server that is not trusted could else have counted under the same run's name."""
    data, place = tables(tmp_path / "data", 40, 60, 80), tmp_path / "client-0.sqlite"
    config = {"partition-id": 0, "num-partitions": 3}
    first = nodes.join(kept_run(data, *LOCAL).model_dump_json(), "run", 1, config)
    theta = torch.zeros(first.task.parameters, dtype=torch.float64)
    summed(TallySum(first.task, theta), first, place, 3, 0, 180)
    other = nodes.join(kept_run(data, *LOCAL, **change).model_dump_json(), "run", 2, config)
    with pytest.raises(ValueError, match="accounts for another run"):
        summed(TallySum(other.task, theta), other, place, 3, 1, 180)
    with pytest.raises(ValueError, match="accounts for another run"):
        spent_epsilon(place, lambda delta: promise(other, delta))


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_the_account_sets_aside_what_either_part_of_the_records_may_cost(tmp_path, federation, trust):
    name = f"kept-{len(trust)}"
    chosen = kept_run(tables(tmp_path / "data", 40, 60, 80), *trust, account=name)
    summary = federation.run(chosen)
    own = name if not trust else f"{name}.client-0"
    state = DatasetAccount(accounts_folder(), own).state()
    (run,) = state.runs.values()
    once = held_out_budget(chosen, tally_of(Problem.from_experiment(chosen)), summary["epsilon"], 1e-5)
    assert max(step.mu for step in run.steps if step.sampling_rate == 1) >= 1 / once.multiplier * (1 - 1e-6)
    assert state.spent(1e-5) > 0.9 * summary["epsilon"]


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_one_run_costs_no_record_more_than_its_epsilon(tmp_path, federation, trust):
    name = f"alone-{len(trust)}"
    data = tables(tmp_path / "data", 40, 60, 80)
    accounts = [name] if not trust else [f"{name}.client-{number}" for number in range(3)]
    epsilon = federation.run(kept_run(data, *trust))["epsilon"]
    for own in accounts:
        DatasetAccount(accounts_folder(), own).limit(1.001 * epsilon, 1e-5)
    federation.run(kept_run(data, *trust, account=name))
    spent = [DatasetAccount(accounts_folder(), own).state().spent(1e-5) for own in accounts]
    assert max(spent) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_a_limit_that_one_part_alone_would_fit_refuses_the_run_before_anything_is_spent(tmp_path, federation, trust):
    name = f"limited-{len(trust)}"
    data = tables(tmp_path / "data", 40, 60, 80)
    federation.run(kept_run(data, *trust, account=name))
    names = [name] if not trust else [f"{name}.client-{number}" for number in range(3)]
    accounts = [DatasetAccount(accounts_folder(), own) for own in names]
    for account in accounts:
        (cost,) = (run.cost for run in account.state().runs.values())
        cheaper = min(composed_epsilon([part] * 2, 1e-8) for part in cost.parts)
        together = total_epsilon([cost] * 2, 1e-8)
        assert cheaper < 0.98 * together < composed_epsilon([cost.steps] * 2, 1e-8)
        account.limit((cheaper + 3 * together) / 4, 1e-8)
    with pytest.raises((LimitReached, FederationError), match="would reach epsilon"):
        federation.run(kept_run(data, *trust, account=name))
    assert not list((federation.folder / "run2").rglob("*.sqlite"))
    for account in accounts:
        cost = next(run.cost for run in account.state().runs.values() if run.steps)
        account.limit(1.4 * total_epsilon([cost] * 2, 1e-8), 1e-8)  # a run that may be chosen costs more
    federation.run(kept_run(data, *trust, account=name))


def test_a_client_that_keeps_nobody_is_not_asked(tmp_path, federation):
    for number, trust in enumerate(((), LOCAL), start=1):
        data = tables(tmp_path / f"data{number}", 6, 60, 80)  # 3 of each group: a quarter is none
        summary = federation.run(kept_run(data, *trust))
        assert summary["held_out_release"]["records"] == 2 * (7 + 10)


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        ({"held_out": "t.csv"}, (), "held_out names a table already"),
        ({"held_out_fraction": 0.0}, (), "held_out_fraction is 0"),
        ({}, ("objective.task=synthesis", "privacy.trust=sketch", "model.kind=vector-generator"), "asks them once"),
    ],
)
def test_what_cannot_be_released_is_refused_with_what_would_do(tmp_path, data, settings, words):
    more = ("objective.penalty=distribution-matching", "objective.alpha=1.0") if settings else ()
    with pytest.raises(ExperimentError, match=words):
        kept_run(tables(tmp_path / "data", 8, 8, 8), *settings, *more, **data)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(("tally", tally) for tally in (None, Counts(1, 2), Counts(2, 3), RegressionSums(2, 1))),
        ("tally", type("Derived", (Counts,), {})(2, 2)),
        ("dimension", 3),
    ],
)
def test_a_task_that_names_no_counts_with_a_bound_is_refused_before_anything_is_spent(
    tmp_path, monkeypatch, name, said
):
    chosen = kept_run(tables(tmp_path / "data", 8, 8, 8))
    monkeypatch.setattr(type(Problem.from_experiment(chosen).task), name, lambda self, *given: said)
    with pytest.raises(ExperimentError, match="names nothing"):
        Problem.from_experiment(chosen)


def test_a_named_data_set_has_a_held_out_part_and_takes_no_release():
    with pytest.raises((ExperimentError, FederationError), match="held_out_to"):
        small("data.held_out_to=everybody")
