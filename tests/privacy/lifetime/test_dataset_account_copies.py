"""Laws of copies of a run: one of them goes on, and an account counts whatever any of them released."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from fedsw._tools import files
from fedsw._tools.settings import FederationError
from fedsw.federation.engines.pool import settle_run
from fedsw.privacy.accounting import Charge, Ledger, LedgerReplaced, Spending, Step, spend_together
from fedsw.privacy.accounting.journal import Journal
from fedsw.privacy.accounting.lifetime import About, Cost, DatasetAccount, Reservation
from tests.privacy.lifetime.test_lifetime_runs import counted, failing

pytestmark = pytest.mark.usefixtures("accounts")

ROUND = [Charge("all", 0.1, 0.5)]
STEP = Step(0.1, 0.5)


class Releases:
    """An observer that counts what is released."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def started(self, plan): ...
    def finished(self, summary): ...
    def round_done(self, record): ...

    def released(self, round_, theta, outcome):
        self.rounds.append(round_)


@pytest.fixture
def account(accounts):
    found = DatasetAccount(accounts, "people")
    found.reserve("run", {STEP: 10}, About("own", "central", ""))
    return found


def limited(account: DatasetAccount, path: Path) -> Ledger:
    """The run's ledger at a path, made if there is none, as a run opens it."""
    account.require_newest("run", path)
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, groups=("all",), delta=1e-5, epsilon=50.0)
    ledger.limiter = Reservation(account, "run")
    return ledger


def copied(source: Path, target: Path) -> Path:
    """A copy of a ledger that nobody has open."""
    shutil.copy(source, target)
    return target


def steps_of(account: DatasetAccount) -> int:
    (run,) = account.state().runs.values()
    return sum(run.steps.values())


@pytest.mark.parametrize(
    "settings", [(), ("privacy.trust=local-gradient", "federation.sites=1"), ("privacy.trust=local-gradient",)]
)
def test_of_copies_of_a_stopped_run_one_goes_on_and_the_account_counts_every_release(federation, accounts, settings):
    first, seen = federation.folder / "first", Releases()
    stop = "federation.max_attempts=1"
    action = "local_gradients" if settings else "outputs"
    with pytest.raises(FederationError):
        app = failing(action, 2 if len(settings) == 2 else 6)
        federation.run(counted(stop, *settings), app=app, directory=first, observer=seen)
    assert 0 < len(seen.rounds) < 4
    copies = [first, *(Path(shutil.copytree(first, federation.folder / f"copy{n}")) for n in range(3))]
    account = DatasetAccount(accounts, "people.client-0" if settings else "people")
    for place in reversed(copies):
        before = account.state()
        try:
            federation.run(counted(stop, *settings), directory=place, resume=True, observer=seen)
        except (LedgerReplaced, FederationError) as refused:
            assert "a copy, or a backup, of a run that went on elsewhere" in str(refused)
            assert account.state() == before
        else:
            assert place == copies[-1]
    assert seen.rounds == [1, 2, 3, 4][: 3 if settings else 4]  # clients paid twice for the round that failed
    with pytest.raises(LedgerReplaced, match="went on elsewhere"):
        settle_run(first)
    settle_run(copies[-1])
    assert steps_of(account) >= len(seen.rounds)


def test_a_copy_of_a_finished_run_is_refused_and_changes_nothing(federation, accounts):
    first, copies = federation.folder / "first", federation.folder / "copy"

    class Copier(Releases):
        def round_done(self, record):
            if record["round"] == 2:
                shutil.copytree(first, copies)

    federation.run(counted(), directory=first, observer=Copier())
    account = DatasetAccount(accounts, "people")
    before = account.state()
    with pytest.raises(LedgerReplaced, match=r"account of data set 'people' remembers its release 4"):
        federation.run(counted(), directory=copies, resume=True)
    assert account.state() == before and steps_of(account) == 4


def test_a_copy_whose_ledger_is_as_long_is_recognised_by_its_digest(account, tmp_path):
    with limited(account, tmp_path / "first.sqlite") as ledger:
        ledger.spend(1, 0, ROUND, 1.0)
    copy = copied(tmp_path / "first.sqlite", tmp_path / "copy.sqlite")
    with limited(account, tmp_path / "first.sqlite") as ledger:
        ledger.spend(2, 0, ROUND, 1.0)
    with Ledger.open(copy) as other:
        other.charge_lost(2, 1, ROUND, 1.0)  # for which nothing may be released, and nobody is asked
        assert other.head().sequence == 2
        for refused in (
            lambda: account.require_newest("run", copy),
            lambda: account.settle("run", Cost.of_ledger(other), other),
        ):
            with pytest.raises(LedgerReplaced, match="remembers its release 2"):
                refused()
    with pytest.raises(LedgerReplaced, match="is gone"):
        account.require_newest("run", tmp_path / "nothing.sqlite")


@pytest.mark.parametrize("together", [False, True])
def test_of_two_copies_at_the_same_time_the_second_releases_nothing(account, tmp_path, together):
    with limited(account, tmp_path / "first.sqlite") as ledger:
        ledger.spend(1, 0, ROUND, 1.0)
    copied(tmp_path / "first.sqlite", tmp_path / "copy.sqlite")

    def spend(ledger: Ledger, attempt: int) -> float:
        if not together:
            return ledger.spend(2, attempt, ROUND, 1.0)
        (found,) = spend_together([Spending(ledger, 2, attempt, ROUND, 1.0)])
        if isinstance(found, Exception):
            raise found
        return found

    with limited(account, tmp_path / "first.sqlite") as first, limited(account, tmp_path / "copy.sqlite") as second:
        assert spend(second, 0) > 0
        with pytest.raises(LedgerReplaced, match="went on elsewhere"):
            spend(first, 1)
        assert second.spend(3, 0, ROUND, 1.0) > 0


def test_the_runs_of_one_account_go_on_side_by_side(account, tmp_path):
    account.reserve("other", {STEP: 10}, About("own", "central", ""))
    with (
        limited(account, tmp_path / "one.sqlite") as one,
        Ledger.create(tmp_path / "two.sqlite", groups=("all",), delta=1e-5, epsilon=50.0) as two,
    ):
        two.limiter = Reservation(account, "other")
        for round_ in range(1, 5):
            one.spend(round_, 0, ROUND, 1.0)
            two.spend(round_, 0, ROUND, 1.0)
        account.settle("run", Cost.of_ledger(one), one)
        account.settle("other", Cost.of_ledger(two), two)
    assert {sum(run.steps.values()) for run in account.state().runs.values()} == {4}


def _die(*_arguments, **_names):
    os.kill(os.getpid(), signal.SIGKILL)


_after_the_row = Journal.append


def _die_after_the_row(journal, key, row, **more):
    _after_the_row(journal, key, row, **more)
    _die()


@pytest.mark.parametrize(
    ("broken", "charged"),
    [
        ("nothing", 2),
        ("before the row is written", 1),
        ("after the row is written", 2),
        ("while the account takes note", 2),
        ("before the release", 2),
    ],
)
def test_a_run_killed_at_any_point_goes_on_and_its_copies_only_if_nothing_was_released(
    account, tmp_path, broken, charged
):
    path, released = tmp_path / "first.sqlite", tmp_path / "released"
    with limited(account, path) as ledger:
        ledger.spend(1, 0, ROUND, 1.0)
    copy = copied(path, tmp_path / "copy.sqlite")
    child = os.fork()
    if not child:
        try:
            if broken == "before the row is written":
                Journal.append = _die
            elif broken == "after the row is written":
                Journal.append = _die_after_the_row
            elif broken == "while the account takes note":
                files.settle = _die
            with limited(account, path) as ledger:
                ledger.spend(2, 0, ROUND, 1.0)
                if broken == "before the release":
                    _die()
                released.touch()
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (0 if broken == "nothing" else -signal.SIGKILL)
    gone_on = broken in ("nothing", "before the release")
    if released.exists():
        assert gone_on
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.head().sequence == charged
    if gone_on:
        with pytest.raises(LedgerReplaced):
            limited(account, copy)
    else:
        assert not released.exists()
    with limited(account, path) as ledger:
        ledger.spend(3, 0, ROUND, 1.0)
        account.settle("run", Cost.of_ledger(ledger), ledger)
    assert steps_of(account) == charged + 1
    with pytest.raises(LedgerReplaced):
        limited(account, copy)


def test_an_account_whose_last_rows_are_gone_or_older_lets_no_copy_go_on(account, accounts, tmp_path):
    rows = accounts / "people.heads"
    with limited(account, tmp_path / "first.sqlite") as ledger:
        ledger.spend(1, 0, ROUND, 1.0)
    copy = copied(tmp_path / "first.sqlite", tmp_path / "copy.sqlite")
    older = shutil.copytree(rows, tmp_path / "older")
    with limited(account, tmp_path / "first.sqlite") as ledger:
        for round_ in range(2, 6):
            ledger.spend(round_, 0, ROUND, 1.0)
        account.settle("run", Cost.of_ledger(ledger), ledger)
    before = account.state()
    for put_back in (None, older):
        shutil.rmtree(rows, ignore_errors=True)
        if put_back is not None:
            shutil.copytree(put_back, rows)
        says = "is missing" if put_back is None else "says release 1, which is not the last one settled"
        with pytest.raises(LedgerReplaced, match=says):
            account.require_newest("run", copy)
        with Ledger.open(copy) as other, pytest.raises(LedgerReplaced, match=says):
            account.settle("run", Cost.of_ledger(other), other)
    shutil.rmtree(rows)
    with Ledger.open(copy) as other, pytest.raises(LedgerReplaced, match="is missing"):
        other.limiter = Reservation(account, "run")
        other.spend(2, 1, ROUND, 1.0)
    with Ledger.open(copy) as other, pytest.raises(LedgerReplaced, match="is missing"):
        account.newest.take_over("run", other)
    assert account.state() == before


def test_the_last_rows_of_a_run_begin_with_its_reservation(account, accounts):
    assert account.newest.of("run").sequence == 0 and account.newest.of("another") is None
    account.require_newest("another", accounts / "nothing.sqlite")
    (accounts / "people.heads").rename(accounts / "elsewhere")
    with pytest.raises(LedgerReplaced, match="is missing"):
        account.require_newest("run", accounts / "nothing.sqlite")
