"""Laws of runs on a data set with an account: refused before they spend, counted whatever becomes of them."""

from __future__ import annotations

import json
import shutil

import pytest

from fedsw._tools.settings import FederationError
from fedsw.audit.record import published, read_folder
from fedsw.cli.app import main
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines import driver
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.engines.pool import settle_run
from fedsw.federation.server.federation import Job, federate
from fedsw.privacy.accounting import Ledger, LedgerReplaced, Step
from fedsw.privacy.accounting.journal import Journal
from fedsw.privacy.accounting.lifetime import About, Cost, DatasetAccount, LimitReached, Reservation
from fedsw.runs.accounts import Budgeted, account_record, together_record
from tests.federation.sketch_runs import SKETCH
from tests.federation.test_local_slices import RELEASE, SLICES
from tests.federations import SMALL, Saboteur

pytestmark = pytest.mark.usefixtures("accounts")

DELTA = 1e-4


def counted(*overrides: str, raw=SMALL) -> Experiment:
    return parse_experiment(raw, ["data.account=people", "data.records=300", *overrides])


def kinds(account: DatasetAccount) -> list[str]:
    journal = Journal.open(account.path, read_only=True)
    try:
        return [row["kind"] for row in journal.rows()]
    finally:
        journal.close()


def failing(action: str, count: int) -> Saboteur:
    """Clients that fail from their `count`-th message of a kind on."""
    seen = []

    def hook(message, context):
        if message.metadata.message_type.endswith(action):
            seen.append(message)
            if len(seen) > count:
                raise RuntimeError("broken")

    return Saboteur(hook)


def test_runs_under_a_trusted_server_add_up_and_one_beyond_the_limit_spends_nothing(federation, people):
    summary = federation.run(counted())
    assert summary["account"]["epsilon"] == pytest.approx(summary["epsilon_spent"], rel=1e-2)
    together = federation.run(counted())["account"]
    assert together["runs"] == 2
    assert summary["epsilon_spent"] < together["epsilon"] < 2 * summary["epsilon_spent"]
    assert kinds(people) == ["reserved", "settled"] * 2  # no release was beyond its reservation
    people.limit(together["epsilon"] + 0.1, together["delta"])
    with pytest.raises(LimitReached, match="data set 'people' would reach"):
        federation.run(counted(), directory=federation.folder / "refused")
    assert not (federation.folder / "refused" / "ledger.sqlite").exists()
    assert len(people.state().runs) == 2


def test_a_run_that_counts_in_an_account_publishes_nothing_secret(federation):
    directory = federation.folder / "run"
    federation.run(counted(), directory=directory)
    assert published.check(read_folder(directory)).passed


def test_a_run_that_breaks_off_stays_counted_until_it_is_settled_or_goes_on(federation, people):
    directory = federation.folder / "run"
    with pytest.raises(FederationError):
        federation.run(counted("federation.max_attempts=1"), app=failing("outputs", 6), directory=directory)
    broken = people.state()
    (run,) = broken.runs.values()
    assert not run.settled and sum(run.steps.values()) == 4
    assert settle_run(directory) == ["people"]
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        released = ledger.released_rounds()
    assert 0 < released < 4 and sum(people.state().runs[run.run].steps.values()) == released
    assert people.state().spent(DELTA) < broken.spent(DELTA)
    assert (
        federation.run(counted("federation.max_attempts=1"), directory=directory, resume=True)["account"]["runs"] == 1
    )
    assert sum(people.state().runs[run.run].steps.values()) == 4


def test_a_new_run_that_fails_before_its_first_release_gives_everything_back(federation, people):
    with pytest.raises(FederationError):
        federation.run(counted("federation.max_attempts=1"), app=failing("outputs", 0))
    (run,) = people.state().runs.values()
    assert run.settled and not run.steps


def test_a_resumed_run_whose_ledger_was_put_back_gives_nothing_back(federation, people):
    directory = federation.folder / "run"
    federation.run(counted(), directory=directory)
    spent = people.state().spent(DELTA)
    for path in directory.glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(LedgerReplaced):
        federation.run(counted(), directory=directory, resume=True)
    assert people.state().spent(DELTA) >= spent


def test_a_run_that_breaks_off_gives_back_what_it_reserved_unless_it_had_begun_before(people, tmp_path):
    """Where neither its ledger nor the account's memory of it is left, as after a lost disk."""
    for name, resumed in (("new", False), ("resumed", True)):
        people.reserve(name, {Step(1.0, 0.3): 4}, About("own", "central", ""))
        Budgeted(tmp_path, people, name, resumed=resumed).give_back()
    found = people.state().runs
    assert sum(found["new"].steps.values()) == 0 and sum(found["resumed"].steps.values()) == 4


def test_an_account_that_was_put_back_is_seen_by_the_runs_that_remember_it(federation, people, tmp_path):
    federation.run(counted())
    shutil.copytree(people.folder, tmp_path / "copy")
    federation.run(counted())
    shutil.rmtree(people.folder)
    shutil.copytree(tmp_path / "copy", people.folder)  # with what is remembered beside it
    with pytest.raises(LedgerReplaced, match=r"account\.json remembers row 4"):
        federation.run(counted())


@pytest.mark.parametrize("reason", ["seed=1", "unsafe_metrics=true", 'privacy.trust="none"'])
def test_a_run_without_a_guarantee_is_refused_under_a_limit(federation, people, reason):
    people.limit(5.0, DELTA)
    with pytest.raises(LimitReached, match="has no guarantee"):
        federation.run(counted(reason))
    assert not people.state().runs


LAPLACE = ("local.mechanism=laplace", "local.norm=l1", "privacy.epsilon=4.0")


@pytest.mark.parametrize(
    ("raw", "settings"),
    [
        (SMALL, ("privacy.trust=local-gradient",)),
        (SKETCH, ("privacy.trust=sketch-local",)),
        (SKETCH, ("privacy.trust=distributed",)),
        (SLICES, ()),
        (RELEASE, LAPLACE),
    ],
    ids=["gradients", "sketch", "masked sketch", "slices", "records"],
)
def test_under_local_trust_every_client_has_an_account_that_its_ledger_keeps_to(tmp_path, accounts, raw, settings):
    found = driver.run(counted(*settings, raw=raw), runs=tmp_path / "runs")
    assert found.summary["status"] == "completed"
    for client in range(3):
        account = DatasetAccount(accounts, f"people.client-{client}")
        assert kinds(account) == ["reserved", "settled"]
        (run,) = account.state().runs.values()
        with Ledger.open(found.directory / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
            assert account.state().spent(ledger.delta) == pytest.approx(ledger.epsilon(), rel=1e-4)
        assert run.settled


def test_a_client_without_room_refuses_at_the_greeting_and_nobody_stays_reserved(tmp_path, accounts):
    DatasetAccount(accounts, "people.client-1").limit(0.1, DELTA)
    with pytest.raises(FederationError, match=r"people.client-1' would reach"):
        driver.run(counted("privacy.trust=local-gradient"), runs=tmp_path / "runs")
    assert not list((tmp_path / "runs" / "small").iterdir())
    assert all(
        not run.steps
        for client in range(3)
        for run in DatasetAccount(accounts, f"people.client-{client}").state().runs.values()
    )


LOCAL = ("privacy.trust=local-gradient", "privacy.epsilon=0.9", f"privacy.delta={DELTA}")


@pytest.mark.parametrize("trust", ["local-gradient", "distributed"])
def test_a_limit_binds_runs_that_trust_nobody_together_with_those_that_trust_the_server(tmp_path, people, trust):
    central = ("privacy.epsilon=0.9", f"privacy.delta={DELTA}")
    nobody = (*central, f"privacy.trust={trust}")
    found = driver.run(counted(*nobody), runs=tmp_path / "runs")
    clients = [DatasetAccount(people.folder, f"people.client-{client}").state() for client in range(3)]
    assert found.summary["account"]["runs"] == len(people.state().runs) == 1
    assert people.state().spent(DELTA) == max(state.spent(DELTA) for state in clients)
    assert all(run.settled for run in people.state().runs.values())
    people.limit(1.0, DELTA)
    for settings in (central, nobody):
        with pytest.raises((LimitReached, FederationError), match="data set 'people' would reach"):
            driver.run(counted(*settings), runs=tmp_path / "runs")
        assert people.state().spent(DELTA) <= 1.0
    people.limit(1.6, DELTA)
    driver.run(counted(*central), runs=tmp_path / "runs")
    client = DatasetAccount(people.folder, "people.client-0")
    assert account_record(client)["within"] == {"data": "people", "limit": {"epsilon": 1.6, "delta": DELTA}}
    together = together_record([people, client], DELTA)
    assert together["runs"] == 2 and 0.9 < together["epsilon"] <= people.state().spent(DELTA) < 1.6


@pytest.mark.parametrize("names", [("north", "south"), ("people.client-0", "people.client-1")])
def test_a_record_at_two_clients_of_one_run_paid_for_both(tmp_path, names):
    """Neither account is around the other: what the run cost in each adds up, and no account counts twice."""
    costs, about = [{Step(1.0, 0.3): 4}, {Step(1.0, 0.4): 2}], About("own", "local", "")
    *clients, both = (DatasetAccount(tmp_path, name) for name in (*names, "both"))
    for account, cost in zip((*clients, both), (*costs, {**costs[0], **costs[1]}), strict=True):
        account.reserve("run", cost, about)
    together = together_record([*clients, DatasetAccount(tmp_path, names[0])], DELTA)["epsilon"]
    assert together == pytest.approx(both.state().spent(DELTA), rel=1e-3)
    assert together > 1.2 * max(account.state().spent(DELTA) for account in clients)


def test_a_run_that_clients_settle_one_by_one_counts_in_full_until_the_last(tmp_path, people):
    clients = [DatasetAccount.of_client(people.folder, "people", client) for client in range(2)]
    costs, about = [{Step(0.1, 0.4): 60}, {Step(0.2, 0.3): 50}], About("own", "local", "")
    people.reserve("run", Cost.of(costs), about, among=True)
    for client, cost in zip(clients, costs, strict=True):
        client.reserve("run", cost, about)
    whole = people.state().spent(DELTA)
    clients[0].settle("run", {Step(0.1, 0.4): 1}, None)
    assert people.state().spent(DELTA) == whole and not people.state().runs["run"].settled
    clients[1].settle("run", {Step(0.2, 0.3): 2}, None)
    (run,) = people.state().runs.values()
    assert run.settled and list(run.cost.parts) == [{Step(0.2, 0.3): 2}, {Step(0.1, 0.4): 1}]


def test_what_a_client_releases_beyond_its_plan_is_asked_of_its_data_set_too(people):
    people.limit(1.0, DELTA)
    client, about = DatasetAccount.of_client(people.folder, "people", 0), About("own", "local", "")
    people.reserve("central", {Step(1.0, 0.1): 1}, about)
    people.reserve("run", {Step(1.0, 0.1): 1}, about, among=True)
    client.reserve("run", {Step(1.0, 0.1): 1}, about)
    reservation = Reservation(client, "run")
    reservation.admit({"records": {Step(1.0, 0.1): 2}})
    assert people.state().runs["run"].steps == client.state().runs["run"].steps == {Step(1.0, 0.1): 2}
    with pytest.raises(LimitReached, match="data set 'people' would reach"):
        reservation.admit({"records": {Step(1.0, 0.1): 40}})
    assert client.state().runs["run"].steps == {Step(1.0, 0.1): 2}


def test_a_limit_that_clients_elsewhere_cannot_know_of_refuses_their_run(tmp_path, people):
    """On machines of their own they name no account, or another: what the limit leaves for them, nobody can say."""
    people.limit(5.0, DELTA)
    states = [{"partition-id": part, "num-partitions": 3, "own-data": 1, "trust": "any"} for part in range(3)]
    grid = InProcessGrid(client_app, [{**node, "state-dir": str(tmp_path / str(i))} for i, node in enumerate(states)])
    try:
        with pytest.raises(LimitReached, match="keep their accounts on other machines.*Nothing was spent"):
            federate(grid, Job(counted(*LOCAL), tmp_path / "run", engine="served"))
    finally:
        grid.close()
    assert not list(tmp_path.glob("*/client-*.sqlite")) and not people.state().runs


def test_the_command_shows_limits_and_settles(federation, people, capsys):
    directory = federation.folder / "run"
    with pytest.raises(FederationError):
        federation.run(counted("federation.max_attempts=1"), app=failing("outputs", 6), directory=directory)
    assert main(["account", "limit", "people", "--epsilon", "3", "--delta", "1e-5", "--json"]) == 0
    limited = json.loads(capsys.readouterr().out)
    assert limited["limit"] == {"epsilon": 3.0, "delta": 1e-5} and 0 < limited["left"] < 3
    assert main(["account", "settle", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"settled": ["people"]}
    assert main(["account", "show", "people", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["epsilon"] < limited["epsilon"] and shown["runs"][0]["settled"] and shown["left"] > limited["left"]
    assert main(["account", "--json"]) == 0
    assert [each["data"] for each in json.loads(capsys.readouterr().out)["accounts"]] == ["people"]
    DatasetAccount(people.folder, "people.client-0").reserve("own", {Step(1.0, 0.3): 1}, About("own", "local", ""))
    assert main(["account", "show", "people", "people.client-0", "--delta", "1e-5", "--json"]) == 0
    together = json.loads(capsys.readouterr().out)
    apart = [each["epsilon"] for each in together["accounts"]]
    assert max(apart) < together["epsilon"] < sum(apart)
    assert main(["account", "show", "peeple"]) == 2
    assert "nearest: 'people'" in capsys.readouterr().err
    assert main(["account"]) == 0 and main(["account", "show", "people", "people.client-0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a run like one of these, or one release of all records, of ε = " in shown and "together: ε" in shown
