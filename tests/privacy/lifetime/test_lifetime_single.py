"""Laws of what is released on one machine and counts in an account: as runs do, before anything is drawn."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
from rich.console import Console

import fedsw
from fedsw.federation.engines.pool import settle_run
from fedsw.privacy.accounting import Charge, Ledger, LedgerReplaced, Spending, Step, Uncounted, spend_together
from fedsw.privacy.accounting.journal import Journal
from fedsw.privacy.accounting.lifetime import (
    About,
    Cost,
    DatasetAccount,
    LimitReached,
    counting,
    total_epsilon,
)
from fedsw.privacy.mechanisms import MECHANISMS
from fedsw.runs.accounts import account_record
from fedsw.runs.checkpoint import Checkpoints
from fedsw.runs.report.screens import account_view, accounts_view
from fedsw.runs.single.sketching import plan_sketch, release_sketch
from tests.federations import SMALL
from tests.learning.sketches.test_noised import CELLS, LAW, ROWS, SKETCHER, N
from tests.noises import replace_noise
from tests.privacy.lifetime.test_lifetime_runs import kinds
from tests.runs.single.examples import records
from tests.runs.single.test_trainer import Stop, plan, stopping_after, trainer

pytestmark = pytest.mark.usefixtures("accounts")

DELTA = 1e-4
SKETCH = plan_sketch(LAW, records=N, epsilon=1.0, delta=1e-3)


def secret(**other):
    """A plan whose sampling and noise nobody can repeat."""
    return plan(**{"seed": None, "epsilon": 2.0, **other})


def sketched(path, account="people", attempt=0, plan=SKETCH):
    with Ledger.open(path) if path.exists() else Ledger.create(path, plan) as ledger:
        return release_sketch(SKETCHER, ROWS, CELLS, plan, ledger, account=account, attempt=attempt)


def together(*paths):
    """Epsilon of all charges of some ledgers, composed anew."""
    costs = []
    for path in paths:
        with Ledger.open(path, read_only=True) as ledger:
            costs.append(Cost.of_ledger(ledger))
    return total_epsilon(costs, DELTA)


def test_what_is_released_on_one_machine_counts_with_runs_and_composes_exactly(people, tmp_path):
    trainer(tmp_path / "trained", secret(), account="people").fit(records())
    sketched(tmp_path / "sketch.sqlite", people.path)
    run = fedsw.run(SMALL, "data.records=300", runs=tmp_path / "runs", account="people")
    assert kinds(people) == ["reserved", "settled"] * 3  # nothing was beyond its reservation
    ledgers = (tmp_path / "trained" / "ledger.sqlite", tmp_path / "sketch.sqlite", run.directory / "ledger.sqlite")
    assert people.state().spent(DELTA) == together(*ledgers)
    record = account_record(people, DELTA)
    assert [row["kind"] for row in record["runs"]] == ["PrivateTrainer", "release_sketch", "central"]
    assert max(row["epsilon"] for row in record["runs"]) < record["epsilon"] < sum(r["epsilon"] for r in record["runs"])


def test_beyond_the_limit_nothing_is_drawn_charged_or_left(people, tmp_path, monkeypatch):
    people.limit(0.5, DELTA)
    before = people.state()
    for name in MECHANISMS:
        replace_noise(monkeypatch, lambda *_: pytest.fail("noise was drawn"), name)
    monkeypatch.setattr("fedsw.runs.single.training_plan.draw_batch", lambda *_, **__: pytest.fail("a batch was drawn"))
    with pytest.raises(LimitReached, match="data set 'people' would reach"):
        trainer(tmp_path / "trained", secret(), account="people").fit(records())
    with pytest.raises(LimitReached, match="data set 'people' would reach"):
        sketched(tmp_path / "sketch.sqlite")
    assert people.state() == before and not (tmp_path / "trained" / "ledger.sqlite").exists()
    assert not (tmp_path / "trained" / "account.json").exists() and not list(tmp_path.glob("*.account.json"))
    with Ledger.open(tmp_path / "sketch.sqlite", read_only=True) as ledger:
        assert not ledger.entries()


@pytest.mark.parametrize("without", [{"seed": 3}, {"epsilon": float("inf")}])
def test_under_a_limit_what_has_no_guarantee_is_refused_and_without_one_it_is_infinite(people, tmp_path, without):
    bare = plan_sketch(LAW, records=N, delta=1e-3, **{"epsilon": 1.0, **without})
    sketched(tmp_path / "before.sqlite", plan=bare)
    assert account_record(people, DELTA)["epsilon"] == float("inf")
    people.limit(50.0, DELTA)
    with pytest.raises(LimitReached, match="has no guarantee"):
        trainer(tmp_path / "trained", secret(**without), account="people").fit(records())
    with pytest.raises(LimitReached, match="has no guarantee"):
        sketched(tmp_path / "after.sqlite", plan=bare)


def test_a_training_that_broke_off_stays_counted_until_it_goes_on_or_is_settled(people, tmp_path):
    found, folder = secret(), tmp_path / "trained"
    with pytest.raises(Stop):
        trainer(folder, found, observer=stopping_after(2), account="people").fit(records())
    (run,) = people.state().runs.values()
    assert not run.settled and sum(run.steps.values()) == found.rounds
    assert settle_run(folder) == ["people"]
    assert people.state().spent(DELTA) == together(folder / "ledger.sqlite")
    assert sum(people.state().runs[run.run].steps.values()) == 2
    trainer(folder, found, account="people").fit(records())
    assert list(people.state().runs) == [run.run] and people.state().runs[run.run].settled
    assert sum(people.state().runs[run.run].steps.values()) == found.rounds


def test_a_training_that_fails_before_its_first_release_gives_everything_back(people, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="stratum"):
        trainer(tmp_path / "trained", secret(sizes=(20, 20)), account="people").fit(records())
    assert not people.state().runs
    monkeypatch.setattr(fedsw.Objective, "gradient", lambda *a: (_ for _ in ()).throw(Stop()))
    with pytest.raises(Stop):
        trainer(tmp_path / "trained", secret(), account="people").fit(records())
    (run,) = people.state().runs.values()
    assert run.settled and not run.steps


def test_a_training_whose_budget_is_used_up_counts_with_what_it_spent(people, tmp_path, monkeypatch):
    folder, found = tmp_path / "trained", secret(rounds=3)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Checkpoints, "take", lambda *a: (_ for _ in ()).throw(Stop()))
        trainer(folder, found, account="people").fit(records())
    with pytest.raises(fedsw.BudgetExhausted):  # the lost round took the last one's place
        trainer(folder, found, account="people").fit(records())
    (run,) = people.state().runs.values()
    assert run.settled and sum(run.steps.values()) == 3


def test_what_was_released_before_an_account_was_named_counts_in_it(people, tmp_path):
    folder, found = tmp_path / "trained", secret()
    with pytest.raises(Stop):
        trainer(folder, found, observer=stopping_after(4)).fit(records())
    trainer(folder, found, account="people").fit(records())
    sketched(tmp_path / "s.sqlite", None, plan=(both := plan_sketch(LAW, records=N, epsilon=4.0, delta=1e-3)))
    assert len(people.state().runs) == 1
    with pytest.raises(fedsw.BudgetExhausted):
        sketched(tmp_path / "s.sqlite", attempt=1, plan=both)
    assert people.state().spent(DELTA) == together(folder / "ledger.sqlite", tmp_path / "s.sqlite")


def test_what_counts_in_an_account_counts_nowhere_else(people, tmp_path):
    folder = tmp_path / "trained"
    with pytest.raises(Stop):
        trainer(folder, secret(), observer=stopping_after(1), account="people").fit(records())
    sketched(tmp_path / "s.sqlite")
    for other in (None, "others", tmp_path / "elsewhere" / "people.account"):
        with pytest.raises(ValueError, match=r"counts in the account of data set 'people'.*give account='people'"):
            trainer(folder, secret(), account=other).fit(records())
        with pytest.raises(ValueError, match=r"counts in the account of data set 'people'.*give account='people'"):
            sketched(tmp_path / "s.sqlite", other, attempt=1)
    assert list(people.folder.glob("*.account")) == [people.path]


def test_a_ledger_that_belongs_to_an_account_is_not_charged_without_it(people, tmp_path):
    """Of one release on one machine, and of a training whose folder belongs to an account."""
    large = plan_sketch(LAW, records=N, epsilon=4.0, delta=1e-3)
    sketched(tmp_path / "s.sqlite", plan=large)
    with pytest.raises(Stop):
        trainer(tmp_path / "trained", secret(), observer=stopping_after(2), account="people").fit(records())
    before = people.state()
    copy = shutil.copy(tmp_path / "s.sqlite", tmp_path / "copy.sqlite")  # without the file of the account
    for path in (tmp_path / "s.sqlite", tmp_path / "trained" / "ledger.sqlite", Path(copy)):
        with Ledger.open(path) as ledger:
            charges = [Charge(group, 1.0, 0.1) for group in ledger.groups]
            head = ledger.head()
            with pytest.raises(Uncounted, match=r"counts in the account of .*data set.*Give account='(people|NAME)'"):
                ledger.spend(9, 9, charges, 1.0)
            (refusal,) = spend_together([Spending(ledger, 9, 9, charges, 1.0)])
            assert isinstance(refusal, Uncounted) and ledger.head() == head
    assert people.state() == before


def test_what_was_not_planned_is_asked_for_release_by_release_and_makes_no_empty_plan(people, tmp_path):
    people.limit(1.0, DELTA)
    about, own = About("own", "by hand", ""), [Charge("all", 1.0, 0.1)]
    with Ledger.create(tmp_path / "own.sqlite", groups=("all",), delta=1e-3, epsilon=50.0) as ledger:
        with counting(ledger, people, {}, about):
            assert people.state().first is None
            for round_ in range(2):
                ledger.spend(round_, 0, own, 1.0)
        assert people.state().first == Cost.one({Step(1.0, 0.1): 1})
        with pytest.raises(LimitReached), counting(ledger, people, {}, about):
            ledger.spend(9, 0, [Charge("all", 1.0, 1.0)], 1.0)
    people.reserve("other", {Step(0.05, 0.2): 20}, about)
    assert people.state().limit.admits(people.state().uses())


def test_of_copies_one_goes_on(people, tmp_path):
    folder, found = tmp_path / "trained", secret()
    with pytest.raises(Stop):
        trainer(folder, found, observer=stopping_after(2), account="people").fit(records())
    shutil.copytree(folder, tmp_path / "copy")
    large = plan_sketch(LAW, records=N, epsilon=4.0, delta=1e-3)
    Ledger.create(tmp_path / "s.sqlite", large).close()
    shutil.copy(tmp_path / "s.sqlite", tmp_path / "t.sqlite")
    trainer(folder, found, account="people").fit(records())
    sketched(tmp_path / "s.sqlite", plan=large)
    before = people.state()
    with pytest.raises(LedgerReplaced, match="went on elsewhere"):
        trainer(tmp_path / "copy", found, account="people").fit(records())
    with pytest.raises(LedgerReplaced, match="went on elsewhere"):
        sketched(tmp_path / "t.sqlite", plan=large, attempt=1)
    assert people.state() == before


def _die(*_arguments, **_names):
    os.kill(os.getpid(), signal.SIGKILL)


_append = Journal.append


def _die_on(kind):
    def append(journal, key, row, **more):
        _append(journal, key, row, **more)
        if row.get("kind", "charged") == kind:
            _die()

    return append


@pytest.mark.parametrize(
    ("killed", "spent"),
    [
        ("before anything is reserved", 0),
        ("after it is reserved", 0),
        ("after it is charged", 1),
        ("while noise is drawn", 1),
        ("after it is settled", 1),
    ],
)
@pytest.mark.parametrize("what", ["training", "sketch"])
def test_whatever_is_killed_at_any_point_its_charges_count_and_it_goes_on(people, tmp_path, what, killed, spent):
    folder, path = tmp_path / "trained", tmp_path / "own" / "s.sqlite"
    path.parent.mkdir()
    found = secret(rounds=1)
    Ledger.create(path, SKETCH).close()
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))

    def released():
        if what == "training":
            return trainer(folder, found, account="people").fit(records())
        return sketched(path)

    child = os.fork()
    if not child:
        try:
            if killed == "before anything is reserved":
                DatasetAccount.reserve = _die
            elif killed == "while noise is drawn":
                for name in MECHANISMS:
                    replace_noise(pytest.MonkeyPatch(), _die, name)
            else:
                kind = {"after it is reserved": "reserved", "after it is settled": "settled"}.get(killed, "charged")
                Journal.append = _die_on(kind)
            released()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    state = people.state()
    assert sum(sum(run.steps.values()) for run in state.runs.values()) == (0 if "before" in killed else 1)
    ledger = folder / "ledger.sqlite" if what == "training" else path
    charged = 0
    if ledger.exists():
        with Ledger.open(ledger, read_only=True) as account:
            charged = account.head().sequence
    assert charged == spent
    if what == "sketch" and killed in ("while noise is drawn", "after it is settled"):
        with pytest.raises(LedgerReplaced, match="went on elsewhere"):
            sketched(copy)
    if (tmp_path / "trained" / "account.json").exists() or list(path.parent.glob("*.account.json")):
        if not killed.startswith("before"):
            assert settle_run(folder if what == "training" else path.parent) == ["people"]
        assert sum(sum(run.steps.values()) for run in people.state().runs.values()) == spent
    if not spent:
        released()
        (run,) = people.state().runs.values()
        assert run.settled and sum(run.steps.values()) == 1


def _try(folder, results):
    try:
        trainer(folder, secret(), account="people").fit(records())
        results.put(True)
    except LimitReached:
        results.put(False)


def test_of_trainings_at_the_same_time_no_more_begin_than_fit(people, tmp_path):
    people.limit(2.5, 1e-3)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    tries = [context.Process(target=_try, args=(tmp_path / str(number), results)) for number in range(2)]
    for one in tries:
        one.start()
    found = [results.get(timeout=60) for _ in tries]
    for one in tries:
        one.join()
    assert sorted(found) == [False, True]
    assert people.state().spent(1e-3) <= 2.5


def test_the_printed_guarantee_says_what_composes_it_with_other_releases(tmp_path):
    for said in (str(plan()), str(SKETCH), trainer(tmp_path).guarantee):
        assert "without an account (account=NAME) nothing composes them with others on the same records" in said
    assert trainer(tmp_path).guarantee.endswith("This training counts in no account.")
    assert trainer(tmp_path, account="people").guarantee.endswith("counts in the account of data set 'people'.")


def test_an_account_is_named_by_its_data_set_or_by_the_path_of_its_file(accounts, tmp_path):
    sketched(tmp_path / "s.sqlite", accounts / "people.account")
    assert len(DatasetAccount(accounts, "people").state().runs) == 1
    with pytest.raises(ValueError, match=r"names no account; its file is called NAME\.account"):
        sketched(tmp_path / "t.sqlite", tmp_path / "people")
    with pytest.raises(ValueError, match="needs a name of at most 100 letters"):
        trainer(tmp_path / "trained", account="a/b")
    with pytest.raises(ValueError, match="set FEDSW_ACCOUNTS to"):
        fedsw.run(SMALL, runs=tmp_path / "runs", account=tmp_path / "elsewhere" / "people.account")


def test_a_release_of_another_run_is_not_taken_for_this_one(people, tmp_path):
    """Two ledgers, also under one plan, are two runs, and both count."""
    for name in ("one", "two"):
        sketched(tmp_path / f"{name}.sqlite")
    people.reserve("run", {Step(1.0, 0.1): 1}, About("own", "central", ""))
    assert len(people.state().runs) == 3


def test_every_table_says_at_which_delta_its_epsilons_are_and_that_a_runs_own_screen_has_its_own(people):
    people.reserve("one", {Step(0.1, 0.4): 60}, About("one", "central", "runs/one"))
    for view, column in (
        (account_view(account_record(people, 1e-7)), "ε at δ = 1e-07"),
        (accounts_view([account_record(people, 1e-7)]), "shown at δ = 1e-07"),
    ):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(view)
        text = console.export_text()
        assert column in text and "a run's own screen has its ε at the δ of its experiment" in text
