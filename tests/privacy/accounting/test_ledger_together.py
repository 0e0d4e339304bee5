"""Laws of charging many ledgers together: what each is charged, what is on disk when, and who refuses alone."""

from __future__ import annotations

import gc
import signal

import pytest

from fedsw._tools import files
from fedsw.privacy.accounting import (
    AlreadySpent,
    BudgetExhausted,
    Charge,
    Composition,
    Ledger,
    LedgerDamaged,
    Spending,
    Step,
    epsilon,
    spend_together,
)
from tests.privacy.accounting.children import Child

CHARGE = [Charge("all", 0.1, 1.0)]


def ledgers(folder, count=3, budget=100.0):
    settings = {"groups": ["all"], "delta": 1e-5, "epsilon": budget, "nominal": True}
    return [Ledger.create(folder / f"{i}.sqlite", **settings) for i in range(count)]


def spendings(held, round_=1, sigma=5.0):
    return [Spending(each, round_, 0, CHARGE, sigma) for each in held]


def test_ledgers_charged_together_hold_what_each_would_alone(tmp_path):
    held = ledgers(tmp_path)
    alone, together = held[0], held[1:]
    for round_ in range(5):
        spent = alone.spend(round_, 0, CHARGE, 5.0 + round_ % 2)
        assert spend_together(spendings(together, round_, 5.0 + round_ % 2)) == [spent, spent]
    assert all(each.entries() == alone.entries() and each.replay() == alone.replay() for each in together)


def test_who_refuses_keeps_nobody_else_from_spending(tmp_path):
    (tmp_path / "poor").mkdir()
    held = [*ledgers(tmp_path), *ledgers(tmp_path / "poor", 1, 0.01)]
    held[1].spend(1, 0, CHARGE, 5.0)
    found = spend_together(spendings(held))
    assert [type(each) for each in found] == [float, AlreadySpent, float, BudgetExhausted]
    assert [len(each.entries()) for each in held] == [1, 1, 1, 0]
    with pytest.raises(ValueError, match="named twice"):
        spend_together(spendings([held[0], held[0]], 2))
    assert len(held[0].entries()) == 1


def test_every_row_is_written_and_then_synced_before_anything_is_returned(tmp_path, monkeypatch):
    """The files that the rows are in, and the folder that names them, wait for the disk after the last commit."""
    held, synced = ledgers(tmp_path), []
    genuine = files.sync

    def sync(path):
        with Ledger.open(held[-1]._journal.path, read_only=True) as last:
            assert len(last.entries()) == 1, "synced before the last row was written"
        synced.append(path)
        genuine(path)

    monkeypatch.setattr(files, "sync", sync)
    spend_together(spendings(held))
    assert sorted(synced) == sorted([tmp_path, *(each._journal.log for each in held)])
    assert all(each._journal.log.stat().st_size > 0 for each in held)


def test_where_the_disk_fails_nothing_is_paid_and_the_ledger_is_read_again(tmp_path, monkeypatch):
    held, genuine = ledgers(tmp_path), files.sync

    def sync(path):
        if path.name == "1.sqlite-wal":
            raise OSError(5, "Input/output error")
        genuine(path)

    monkeypatch.setattr(files, "sync", sync)
    found = spend_together(spendings(held))
    assert [type(each) for each in found] == [float, OSError, float]
    assert [each.is_open for each in held] == [True, False, True]
    with pytest.raises(ValueError, match="is closed"):
        held[1].spend(2, 0, CHARGE, 5.0)
    with Ledger.open(tmp_path / "1.sqlite") as again:
        assert [entry.round for entry in again.entries()] == [1], "counted, and never released"


def test_a_folder_that_cannot_be_synced_pays_for_nobody(tmp_path, monkeypatch):
    def sync(path):
        if path == tmp_path:
            raise OSError(5, "Input/output error")

    held = ledgers(tmp_path)
    monkeypatch.setattr(files, "sync", sync)
    assert [type(each) for each in spend_together(spendings(held))] == [OSError] * 3


def test_killed_as_soon_as_all_are_charged_every_charge_is_there(tmp_path):
    for each in ledgers(tmp_path):
        each.close()
    code = """
import os, signal, sys
from pathlib import Path
from fedsw.privacy.accounting import *
held = [Ledger.open(Path(sys.argv[1]) / f"{i}.sqlite") for i in range(3)]
spend_together([Spending(each, 1, 0, [Charge("all", 0.1, 1.0)], 5.0) for each in held])
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = Child(code, tmp_path)
    said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said
    for i in range(3):
        with Ledger.open(tmp_path / f"{i}.sqlite") as ledger:
            assert [entry.round for entry in ledger.entries()] == [1]


def test_a_spend_after_one_together_waits_for_the_disk_again(tmp_path):
    (ledger,) = ledgers(tmp_path, 1)
    spend_together(spendings([ledger]))
    ledger.spend(2, 0, CHARGE, 5.0)
    assert ledger._journal._database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_accounts_of_the_same_releases_compute_their_epsilon_once_and_others_their_own(tmp_path, monkeypatch):
    gc.collect()  # of ledgers of other tests, which share what is computed while they are there
    asked, genuine = [], Composition.epsilon
    monkeypatch.setattr(Composition, "epsilon", lambda self, delta: (asked.append(delta), genuine(self, delta))[1])
    held = ledgers(tmp_path, 4)
    for round_ in range(3):
        assert len(set(spend_together(spendings(held, round_)))) == 1
    assert len(asked) == 3
    held[3].spend(3, 0, CHARGE, 3.0)
    assert len(asked) == 4
    found = held[3].epsilon()
    assert found == pytest.approx(epsilon({Step(0.1, 0.2): 3, Step(0.1, 1 / 3): 1}, 1e-5), rel=1e-9)
    assert held[0].epsilon() == pytest.approx(epsilon({Step(0.1, 0.2): 3}, 1e-5), rel=1e-9)
    assert held[0].epsilon() < found
    (other,) = ledgers_of_another_delta(tmp_path)
    assert other.spend(0, 0, CHARGE, 5.0) == pytest.approx(epsilon({Step(0.1, 0.2): 1}, 1e-3), rel=1e-9)


def ledgers_of_another_delta(folder):
    return [Ledger.create(folder / "other.sqlite", groups=["all"], delta=1e-3, epsilon=9.0, nominal=True)]


def test_a_damaged_row_is_found_whoever_else_was_charged(tmp_path):
    held = ledgers(tmp_path, 2)
    spend_together(spendings(held))
    for each in held:
        each.close()
    content = (tmp_path / "0.sqlite").read_bytes()
    (tmp_path / "0.sqlite").write_bytes(content.replace(b'"sigma":5.0', b'"sigma":9.0'))
    with pytest.raises(LedgerDamaged):
        Ledger.open(tmp_path / "0.sqlite")
    with Ledger.open(tmp_path / "1.sqlite") as other:
        assert len(other.entries()) == 1
