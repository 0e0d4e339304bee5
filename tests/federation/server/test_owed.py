"""Laws of a server's folder that was put back: clients remember what they answered, and nothing is spent in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedsw._tools.settings import FederationError
from fedsw.experiment import parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.messages import GRADIENTS, OUTPUTS, SUM
from fedsw.federation.node.own_ledger import FIRST, LAST, AlreadyAnswered, Answered
from fedsw.federation.server.federation import Job, federate
from fedsw.federation.server.owed import Remembered, largest_rates, lost_attempts
from fedsw.federation.trust.round_plan import make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import AlreadySpent, Charge, Ledger, LedgerReplaced, epsilon
from fedsw.privacy.accounting.lifetime import DatasetAccount
from fedsw.privacy.accounting.profiles import Step
from fedsw.runs.directory import RunDirectory
from tests.federation.sketch_runs import SKETCH
from tests.federation.test_local_slices import SLICES
from tests.federations import SMALL, Saboteur, sites_of, small
from tests.privacy.lifetime.test_lifetime_runs import failing


class Machines:
    """Nodes with state folders of their own, which outlive a server and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, experiment, directory: Path, *, resume: bool = False, app=client_app, **job):
        count = experiment.federation.sites or experiment.federation.clients
        several = {"num-clients": experiment.federation.clients} if experiment.federation.sites else {}
        configs = [
            {
                "partition-id": node,
                "num-partitions": count,
                "state-dir": str(self.folder / f"node{node}"),
                "account": "*",
                **several,
            }
            for node in range(count)
        ]
        grid = InProcessGrid(app, configs)
        try:
            return federate(grid, Job(experiment, directory, resume=resume, **job))
        finally:
            grid.close()


class Backup:
    """An observer that copies the run's folder after a round."""

    def __init__(self, directory: Path, to: Path, round_: int) -> None:
        self.directory, self.to, self.round = directory, to, round_
        self.count = 0

    def started(self, plan): ...
    def finished(self, summary): ...

    def round_done(self, record):
        self.count += 1
        if record["round"] == self.round:
            shutil.copytree(self.directory, self.to)


class AtOnce(Backup):
    """An observer that copies the run's folder before the first round."""

    def started(self, plan):
        shutil.copytree(self.directory, self.to)


@pytest.fixture
def machines(tmp_path):
    return Machines(tmp_path / "machines")


def rows(directory: Path) -> list[tuple[int, int, bool]]:
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        return list(dict.fromkeys((entry.round, entry.attempt, entry.lost) for entry in ledger.entries()))


def restored(machines, tmp_path, *overrides, raw=SMALL, round_=2):
    """A run that ended, with its folder put back as it was after a round."""
    directory, backup = tmp_path / "run", tmp_path / "backup"
    experiment = parse_experiment(raw, overrides)
    machines.run(experiment, directory, observer=Backup(directory, backup, round_))
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    return experiment, directory


@pytest.mark.parametrize("settings", [(), ("objective.alpha=0",), ("federation.sites=1",), ("privacy.trust=none",)])
def test_a_server_restored_from_a_backup_is_refused_and_repeats_no_round(machines, tmp_path, settings):
    experiment, directory = restored(machines, tmp_path, *settings)
    before = rows(directory)
    with pytest.raises(LedgerReplaced, match=r"round 4, attempt 0 and 1 more attempts are not in its ledger.*backup"):
        machines.run(experiment, directory, resume=True)
    assert rows(directory) == before == [(1, 0, False), (2, 0, False)]


def test_moments_that_a_restored_folder_does_not_know_are_charged_at_their_full_cost(machines, tmp_path):
    directory, backup = tmp_path / "run", tmp_path / "backup"
    experiment = small("privacy.moments=0.3", "privacy.delta=1e-5")

    machines.run(experiment, directory, observer=AtOnce(directory, backup, 99))
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    with pytest.raises(LedgerReplaced, match="older than what the clients"):
        machines.run(experiment, directory, resume=True)
    RunDirectory(directory).agree_to_charge()
    summary = machines.run(experiment, directory, resume=True)
    found = rows(directory)
    assert found[:5] == [(0, 0, True), *((number, 0, True) for number in range(1, 5))]
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        first = [entry for entry in ledger.entries() if (entry.round, entry.attempt) == (0, 0)]
        assert all(each.sampling_rate == 1.0 and each.sensitivity >= 2**0.5 for each in first)
    assert summary["status"].startswith("stopped") and summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)


def test_moments_that_no_node_remembers_are_charged_with_the_rounds_after_them(machines, tmp_path):
    directory, backup = tmp_path / "run", tmp_path / "backup"
    experiment = small("privacy.moments=0.3", "privacy.delta=1e-5")

    machines.run(experiment, directory, observer=AtOnce(directory, backup, 99))
    for answered in machines.folder.glob("*/answered-*.log"):
        lines = answered.read_text().splitlines(keepends=True)
        answered.write_text("".join(line for line in lines if not line.startswith("0 ")))
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    RunDirectory(directory).agree_to_charge()
    machines.run(experiment, directory, resume=True)
    assert (0, 0, True) in rows(directory)


def test_lost_rounds_are_charged_from_what_clients_remember_and_numbering_goes_on_after_them(machines, tmp_path):
    directory, backup = tmp_path / "run", tmp_path / "backup"
    experiment = small("training.rounds=6", "federation.max_attempts=1")
    first = Backup(directory, backup, 1)
    with pytest.raises(FederationError):
        machines.run(experiment, directory, observer=first, app=failing("gradients", 9))
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    RunDirectory(directory).agree_to_charge()
    second = Backup(directory, backup, 99)
    summary = machines.run(experiment, directory, resume=True, observer=second)
    found = rows(directory)
    assert found[:3] == [(1, 0, False), (2, 0, True), (3, 0, True)]
    assert found[3:] == [(2, 1, False), (3, 1, False), (4, 1, False)]  # the fourth round was answered in part
    assert (first.count, second.count) == (3, 3) and summary["status"].startswith("stopped before round 5")
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        steps = {Step(e.sampling_rate, e.sensitivity / e.sigma) for e in ledger.entries() if not e.lost}
        true = max(epsilon({step: 6}, ledger.delta) for step in steps)
    assert summary["epsilon_spent"] >= true * (1 - 1e-9)
    assert not RunDirectory(directory).agreed_to_charge
    again = machines.run(experiment, directory, resume=True)
    assert again["epsilon_spent"] == summary["epsilon_spent"] and rows(directory) == found


def test_a_backup_of_a_run_in_an_account_goes_on_once_its_lost_rounds_are_charged(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    experiment, directory = restored(machines, tmp_path, "data.account=people")
    account = DatasetAccount(tmp_path / "accounts", "people")
    with pytest.raises(LedgerReplaced, match="account of data set"):
        machines.run(experiment, directory, resume=True)
    RunDirectory(directory).agree_to_charge()
    machines.run(experiment, directory, resume=True)
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.head().sequence == 4
        (run,) = account.state().runs.values()
        assert run.settled and sum(run.steps.values()) == 4


@pytest.mark.parametrize("remembered", [0, 6])
def test_agreeing_to_charge_does_not_help_where_clients_remember_less_than_the_account(
    machines, tmp_path, monkeypatch, remembered
):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    experiment, directory = restored(machines, tmp_path, "data.account=people")
    for log in machines.folder.glob("*/answered-*.log"):
        lines = log.read_bytes().splitlines(keepends=True)
        assert len(lines) == 8
        log.write_bytes(b"".join(lines[:remembered]))
    RunDirectory(directory).agree_to_charge()
    with pytest.raises(LedgerReplaced, match="remembers its release 4"):
        machines.run(experiment, directory, resume=True)


def test_a_crash_after_clients_answered_goes_on_with_a_fresh_attempt_and_no_charge(machines, tmp_path, monkeypatch):
    directory = tmp_path / "run"

    def crash(*_arguments, **_names):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "spend", crash)
        with pytest.raises(KeyboardInterrupt):
            machines.run(small(), directory)
    assert rows(directory) == []
    assert machines.run(small(), directory, resume=True)["status"] == "completed"
    assert rows(directory) == [(1, 1, False), (2, 0, False), (3, 0, False), (4, 0, False)]


def test_a_restored_sketch_is_not_made_again(machines, tmp_path):
    directory, backup = tmp_path / "run", tmp_path / "backup"
    experiment = parse_experiment(SKETCH, [])

    class Copier(Saboteur):
        def __call__(self, message, context):
            if message.metadata.message_type == "train.records_sum" and not backup.exists():
                shutil.copytree(directory, backup)
                (backup / "attempts.log").write_text("")  # of just before
            return super().__call__(message, context)

    machines.run(experiment, directory, app=Copier())
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    with pytest.raises(LedgerReplaced, match="round 1, attempt 0 are not in its ledger"):
        machines.run(experiment, directory, resume=True)
    RunDirectory(directory).agree_to_charge()
    assert machines.run(experiment, directory, resume=True)["status"].startswith("stopped")
    assert rows(directory) == [(1, 0, True)]


ONE_ROUND = ("training.rounds=1",)


@pytest.mark.parametrize(
    ("raw", "settings"),
    [
        (SMALL, ONE_ROUND),
        (SMALL, ("objective.alpha=0", *ONE_ROUND)),
        (SMALL, ("privacy.trust=none", *ONE_ROUND)),
        (SMALL, ("privacy.trust=local-gradient", *ONE_ROUND)),
        (SLICES, ONE_ROUND),
        (SKETCH, ()),
        (SKETCH, ("privacy.trust=sketch-local",)),
    ],
    ids=["central", "central, one exchange", "none", "local-gradient", "local-slices", "sketch", "sketch-local"],
)
def test_a_client_refuses_an_attempt_that_it_has_answered(machines, tmp_path, raw, settings):
    refused = []

    class Replayer(Saboteur):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            if message.metadata.message_type != "query.hello":
                try:
                    assert not client_app(message, context).has_content()
                except (AlreadyAnswered, AlreadySpent, RuntimeError) as fault:
                    assert str(fault)
                refused.append(True)
            return reply

    machines.run(parse_experiment(raw, settings), tmp_path / "run", app=Replayer())
    assert refused


def test_what_a_node_answered_outlives_it_and_each_exchange_is_answered_once(tmp_path):
    for place in (None, tmp_path / "state" / "answered.log"):
        memory: dict = {}
        Answered(place, memory).note(OUTPUTS, 12, 0)
        Answered(place, memory).note(GRADIENTS, 12, 0)
        Answered(place, memory).note(SUM, 2, 0)
        for kind, round_ in ((OUTPUTS, 12), (GRADIENTS, 12), (SUM, 2), (OUTPUTS, 2)):
            with pytest.raises(AlreadyAnswered, match=f"round {round_}, attempt 0"):
                Answered(place, memory).note(kind, round_, 0)
        assert Answered(place, memory).all().tolist() == [[12, 0, FIRST], [12, 0, LAST], [2, 0, LAST]]
    place.write_bytes(place.read_bytes() + b"13 0")  # cut short by a machine that died
    Answered(place, {}).note(SUM, 13, 1)
    assert Answered(place, {}).all().tolist()[-1] == [13, 1, LAST]


def test_what_is_lost_follows_from_ledger_log_and_answers():
    def remembered(*rows: tuple[int, int, int]) -> Remembered:
        return Remembered(frozenset(row[:2] for row in rows), frozenset(row[:2] for row in rows if row[2] == LAST))

    answered = remembered((1, 0, LAST), (2, 0, LAST), (2, 1, LAST), (3, 0, FIRST))
    assert lost_attempts(answered, [(1, 0), (2, 1)], [(1, 0), (2, 0), (2, 1), (3, 0)], 5) == []  # (2, 0) was given up
    assert lost_attempts(answered, [(1, 0), (2, 1)], [(1, 0), (2, 0), (2, 1)], 5) == []  # of (3, 0) nothing can be out
    assert lost_attempts(answered, [(1, 0)], [(1, 0), (2, 0)], 5) == [(2, 1)]
    assert lost_attempts(answered, [(1, 0)], [(1, 0)], 5) == [(2, 0), (2, 1)]
    assert lost_attempts(remembered((4, 0, FIRST)), [(1, 0)], [(1, 0)], 5) == [(2, 0), (3, 0)]  # or there were no 4th
    assert lost_attempts(remembered(), [(1, 0)], [(1, 0), (2, 0), (3, 0)], 5) == [(2, 1)]  # a log newer than the ledger
    assert lost_attempts(remembered((6, 0, LAST)), [(1, 0)], [(1, 0)], 5) == [(6, 0)]  # after an early stop
    assert lost_attempts(remembered((2, 0, LAST)), [], [], 5, first=0) == [(0, 0), (1, 0), (2, 0)]  # moments came first
    assert lost_attempts(remembered((2, 0, LAST)), [(0, 0), (1, 0)], [], 5, first=0) == [(2, 0)]
    again = remembered((2, 0, LAST), (2, 1, LAST), (3, 0, FIRST))  # (2, 0) was charged by a server that then died
    assert lost_attempts(again, [(1, 0), (2, 0)], [(1, 0), (2, 0), (2, 1), (3, 0)], 5) == [(2, 1)]
    assert lost_attempts(again, [(1, 0), (2, 0), (2, 1)], [(1, 0), (2, 0), (2, 1)], 5) == []


def test_an_attempt_within_which_the_folder_was_copied_is_lost_once_clients_answered_another():
    def remembered(*attempts: tuple[int, int]) -> Remembered:
        return Remembered(frozenset(attempts), frozenset(attempts))

    histograms = remembered((0, 0), (0, 1), (1, 0))  # and moments after them, in the same round
    assert lost_attempts(histograms, [], [(0, 0)], 5, first=0) == [(0, 0), (0, 1), (1, 0)]
    assert lost_attempts(remembered((1, 0), (4, 0)), [], [(1, 0)], 1) == [
        (1, 0),
        (4, 0),
    ]  # then scores
    kept = remembered((1, 0), (3, 0), (2, 0))  # which follow scores, under a smaller number
    assert lost_attempts(kept, [(1, 0)], [(1, 0), (3, 0)], 1) == [(2, 0), (3, 0)]
    assert lost_attempts(remembered((1, 0), (3, 0)), [(1, 0)], [(1, 0), (3, 0)], 1) == []  # or the server died before


@pytest.mark.parametrize("last", [1, 2])
def test_a_server_that_dies_while_it_charges_what_was_lost_charges_the_rest_when_it_goes_on(
    machines, tmp_path, monkeypatch, last
):
    experiment, directory = restored(machines, tmp_path)
    RunDirectory(directory).agree_to_charge()
    charge, left = Ledger.charge_lost, iter(range(1, last))

    def crash(ledger, *row):
        if next(left, None) is None:
            raise KeyboardInterrupt
        charge(ledger, *row)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge_lost", crash)
        with pytest.raises(KeyboardInterrupt):
            machines.run(experiment, directory, resume=True)
    machines.run(experiment, directory, resume=True)
    assert rows(directory)[:4] == [(1, 0, False), (2, 0, False), (3, 0, True), (4, 0, True)]


def test_no_attempt_has_a_larger_rate_than_a_lost_one_is_charged_at():
    sites = sites_of((30, 10), (20, 40), (50, 60))
    for settings, expected in (
        (("federation.min_clients=2",), (0.2, 0.2)),
        (("federation.min_clients=1", "training.batch_fraction=0.05"), (0.05, 0.1)),
        (("federation.min_clients=2", "training.batch_size=20"), (0.4, 0.4)),
    ):
        task = Problem.from_experiment(small(*settings))
        found = largest_rates(make_plan(task, sites), sites)
        assert tuple(found.values()) == pytest.approx(expected)
        assert np.all(np.array(list(found.values())) <= 1)


def test_what_is_lost_is_charged_beyond_the_budget_and_marked(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite", groups=("all",), delta=1e-5, epsilon=0.5) as ledger:
        ledger.spend(1, 0, [Charge("all", 1.0, 0.1)], 1.0)
        ledger.charge_lost(2, 0, [Charge("all", 1.0, 1.0)], 1.0)
        assert ledger.epsilon() > 3 and [entry.lost for entry in ledger.entries()] == [False, True]
        with pytest.raises(AlreadySpent):
            ledger.charge_lost(2, 0, [Charge("all", 1.0, 1.0)], 1.0)
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        assert ledger.epsilon() > 3


def test_a_new_run_is_asked_nothing_of_the_runs_before_it(machines, tmp_path):
    machines.run(small(), tmp_path / "one")
    assert machines.run(small(), tmp_path / "two")["status"] == "completed"
    with pytest.raises(FederationError, match="cannot write down"):
        for node in (tmp_path / "machines").iterdir():
            shutil.rmtree(node)
            node.write_text("no folder")
        machines.run(small("federation.max_attempts=1"), tmp_path / "three")


class Liar:
    """A client app of which one node says at the greeting that it has answered what it has not."""

    def __init__(self, monkeypatch, said: list[list[int]]) -> None:
        self.told = 0
        true = Answered.all

        def forged(answered: Answered) -> np.ndarray:
            if "answered-0-" not in str(answered._path):
                return true(answered)
            self.told += 1
            return np.array(said, dtype=np.int64)

        monkeypatch.setattr(Answered, "all", forged)


@pytest.mark.parametrize(
    ("said", "trust"),
    [([[1, 2**40, 2]], "central"), ([[1, 0, 2]], "central"), ([[0, 0, 1]], "central"), ([[1, 0, 2]], "local-gradient")],
)
def test_who_says_that_it_answered_in_a_new_run_is_lost_alone_and_by_name(
    machines, tmp_path, monkeypatch, caplog, said, trust
):
    liar = Liar(monkeypatch, said)
    summary = machines.run(small("federation.min_clients=2", f"privacy.trust={trust}"), tmp_path / "run")
    assert liar.told and summary["status"] == "completed" and summary["released_rounds"] == 4
    assert "client 0 says that it has answered in this run before" in caplog.text
    assert {line.split()[1] for line in (tmp_path / "run" / "attempts.log").read_text().splitlines()} == {"0"}


@pytest.mark.parametrize(
    ("said", "why"), [([[1, 10_001, 2]], "attempt 10001 of round 1"), ([[7, 0, 2]], "in round 7 of a run of 4")]
)
def test_who_says_that_it_answered_what_nobody_asked_is_lost_when_a_run_goes_on(
    machines, tmp_path, monkeypatch, caplog, said, why
):
    experiment, directory = restored(machines, tmp_path, "federation.min_clients=2", "privacy.delta=1e-5", round_=4)
    Liar(monkeypatch, said)
    assert machines.run(experiment, directory, resume=True)["status"] == "completed"
    assert why in caplog.text


def test_who_alone_says_that_something_was_lost_is_named_before_anything_is_charged(machines, tmp_path, monkeypatch):
    experiment, directory = restored(machines, tmp_path, round_=4)
    Liar(monkeypatch, [[4, 3, 2]])
    before = rows(directory)
    says = r"as client 0 of 3 nodes says \(to go on without, take its key away first"
    with pytest.raises(LedgerReplaced, match=says):
        machines.run(experiment, directory, resume=True)
    assert rows(directory) == before


def test_two_nodes_that_claim_one_client_are_both_lost_and_the_others_go_on(machines, tmp_path, caplog):
    class Claims(Saboteur):
        def __call__(self, message, context):
            if context.node_config["partition-id"] == 1 and message.metadata.message_type == "query.hello":
                context.node_config["partition-id"] = 0
            return super().__call__(message, context)

    experiment = small("federation.min_clients=1")
    assert machines.run(experiment, tmp_path / "run", app=Claims())["status"] == "completed"
    assert "two nodes claim the same partition-id: clients [0]" in caplog.text
    with pytest.raises(FederationError, match=r"two nodes claim the same partition-id: clients \[0\]"):
        machines.run(small(), tmp_path / "another", app=Claims())


@pytest.mark.parametrize("where", ["environment", "nowhere"])
def test_a_real_node_remembers_what_it_answered_or_answers_nothing(tmp_path, monkeypatch, where):
    class Bare(Machines):
        def run(self, experiment, directory, *, resume=False, **job):
            configs = [{"partition-id": node, "num-partitions": 3, "trust": "any"} for node in range(3)]
            grid = InProcessGrid(client_app, configs)
            try:
                return federate(grid, Job(experiment, directory, resume=resume, **job))
            finally:
                grid.close()

    monkeypatch.delenv("FEDSW_STATE", raising=False)
    if where == "nowhere":
        with pytest.raises(FederationError, match="has no folder to write down what it answers"):
            Bare(tmp_path).run(small(), tmp_path / "run")
        return
    monkeypatch.setenv("FEDSW_STATE", str(tmp_path / "state"))
    experiment, directory = restored(Bare(tmp_path), tmp_path)
    with pytest.raises(LedgerReplaced, match="are not in its ledger"):
        Bare(tmp_path).run(experiment, directory, resume=True)
