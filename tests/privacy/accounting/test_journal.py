"""Laws of the file under the ledger: killed, contended or meddled with, it tells the truth or refuses."""

import os
import signal
import sqlite3
import time

import pytest

from fedsw.privacy.accounting import Charge, Ledger, LedgerBusy, LedgerDamaged
from fedsw.privacy.accounting.journal import Journal
from tests.privacy.accounting.children import Child

PRELUDE = """
import os, signal, sys, time
from fedsw.privacy.accounting import *
from fedsw.privacy.accounting import journal
path = sys.argv[1]
charge = [Charge("all", 0.01, 1.0)]
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
"""
CHARGE = [Charge("all", 0.01, 1.0)]


def start(code, path):
    return Child(PRELUDE + code, path)


def run_to_death(code, path):
    child = start(code, path)
    said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said


def create(path, epsilon=100.0):
    return Ledger.create(path, groups=["all"], delta=1e-5, epsilon=epsilon, nominal=False)


def test_killed_as_soon_as_spend_returns_the_charge_is_there(path):
    create(path).close()
    run_to_death("ledger = Ledger.open(path)\nledger.spend(1, 0, charge, 5.0)\ndie()", path)
    with Ledger.open(path) as ledger:
        assert [entry.round for entry in ledger.entries()] == [1]
        assert ledger.epsilon() > 0


def test_killed_before_the_commit_nothing_is_charged_and_nothing_was_released(path):
    create(path).close()
    code = """
ledger = Ledger.open(path)
ledger.spend(1, 0, charge, 5.0)
ledger._journal._database.set_trace_callback(lambda statement: die() if statement == "COMMIT" else None)
ledger.spend(2, 0, charge, 5.0)
print("released")
"""
    run_to_death(code, path)
    with Ledger.open(path) as ledger:
        assert [entry.round for entry in ledger.entries()] == [1]
        ledger.spend(2, 0, CHARGE, 5.0)
        assert ledger.head().sequence == 2


def test_killed_at_any_moment_every_acknowledged_charge_is_there(path):
    create(path).close()
    code = """
ledger = Ledger.open(path)
for round_ in range(100_000):
    ledger.spend(round_, 0, charge, 5.0)
    print(round_, flush=True)
"""
    child = start(code, path)
    first = child.stdout.readline()
    time.sleep(0.05)
    child.kill()
    acknowledged = [int(line) for line in (first + child.communicate()).split()]
    with Ledger.open(path) as ledger:
        charged = [entry.round for entry in ledger.entries()]
        assert charged == list(range(len(charged)))
        assert len(acknowledged) <= len(charged) <= len(acknowledged) + 1


def test_killed_while_being_made_there_is_no_ledger_and_it_can_be_made_again(path):
    code = 'journal.files.os.replace = die\nLedger.create(path, groups=["all"], delta=1e-5, epsilon=1.0, nominal=False)'
    run_to_death(code, path)
    assert not path.exists()
    with create(path) as ledger:
        ledger.spend(0, 0, CHARGE, 5.0)


def test_the_log_of_a_removed_ledger_never_enters_a_new_one(path):
    path.with_name(path.name + "-wal").touch()
    with pytest.raises(FileExistsError, match="-wal exists"):
        create(path)


def test_two_processes_never_both_spend(path):
    """Both race for every round of one budget; what is charged fits it, and every round is charged once."""
    create(path).close()
    code = """
done, busy = 0, 0
while done < 9:
    try:
        with Ledger.open(path) as ledger:
            for _ in range(3):
                ledger.spend(ledger.head().sequence, 0, charge, 5.0)
                done += 1
    except LedgerBusy as refusal:
        assert "held for writing by process" in str(refusal)
        busy += 1
        time.sleep(0.002)
print(done, busy)
"""
    children = [start(code, path) for _ in range(2)]
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    with Ledger.open(path) as ledger:
        assert [entry.round for entry in ledger.entries()] == list(range(18))
        assert ledger.replay() == pytest.approx(ledger.epsilon(), rel=1e-9)


def test_a_holder_that_dies_frees_the_ledger(path):
    create(path).close()
    child = start("ledger = Ledger.open(path)\nprint(os.getpid(), flush=True)\nsignal.pause()", path)
    pid = child.stdout.readline().strip()
    try:
        with pytest.raises(LedgerBusy, match=f"process {pid}"):
            Ledger.open(path)
    finally:
        child.kill()
        child.wait()
    Ledger.open(path).close()


def test_a_removed_lock_file_does_not_let_two_writers_through(path):
    """The second writer gets the lock of a new file; whoever writes second gets an error."""
    with create(path) as first:
        first.spend(0, 0, CHARGE, 5.0)
        os.unlink(f"{path}.lock")
        with Ledger.open(path) as second:
            second.spend(1, 0, CHARGE, 5.0)
            with pytest.raises(LedgerBusy, match="somebody else"):
                first.spend(2, 0, CHARGE, 5.0)
            assert [entry.round for entry in second.entries()] == [0, 1]


def meddle(path, statement):
    """Change a ledger as who drops its triggers can, and puts them back."""
    database = sqlite3.connect(path)
    triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute(statement)
    if not statement.startswith("DROP"):
        for _, trigger in triggers:
            database.execute(trigger)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        """UPDATE rows SET body = replace(body, '"sigma":5.0', '"sigma":50.0') WHERE sequence = 2""",
        "DELETE FROM rows WHERE sequence = 2",
        "DELETE FROM rows WHERE sequence = 1",
        "UPDATE rows SET sequence = 9 WHERE sequence = 3",
        "UPDATE rows SET key = '7/0' WHERE sequence = 3",
        """UPDATE header SET body = replace(body, '"epsilon":100.0', '"epsilon":900.0')""",
        "DELETE FROM header",
        "DROP TABLE rows",
    ],
)
def test_a_changed_row_is_found_at_the_next_opening(path, statement):
    with create(path) as ledger:
        for round_ in range(3):
            ledger.spend(round_, 0, CHARGE, 5.0)
    meddle(path, statement)
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)
    with pytest.raises(LedgerDamaged):
        Ledger.open(path, read_only=True)


@pytest.mark.parametrize("statement", ["UPDATE rows SET key = 'x'", "DELETE FROM rows", "DELETE FROM header"])
def test_rows_are_final_in_the_database_itself(path, statement):
    with create(path) as ledger:
        ledger.spend(0, 0, CHARGE, 5.0)
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="final"):
        database.execute(statement)
    database.close()


def test_a_ledger_copied_back_from_before_has_an_older_head(path, tmp_path):
    """Whoever remembers the head (a checkpoint) can tell: the sequence is behind, or the digest another."""
    with create(path) as ledger:
        ledger.spend(0, 0, CHARGE, 5.0)
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        ledger.spend(1, 0, CHARGE, 5.0)
        remembered = ledger.head()
    path.write_bytes(before)
    with Ledger.open(path) as ledger:
        assert ledger.head().sequence < remembered.sequence
        ledger.spend(1, 1, CHARGE, 5.0)
        assert ledger.head().sequence == remembered.sequence and ledger.head() != remembered


def test_two_ledgers_of_one_plan_differ_from_their_first_digest(tmp_path):
    heads = set()
    for name in ("one.sqlite", "two.sqlite"):
        with create(tmp_path / name) as ledger:
            heads.add(ledger.head().digest)
    assert len(heads) == 2


def test_commits_wait_for_the_disk(path):
    with create(path) as ledger:
        database = ledger._journal._database
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        for round_ in range(2):
            assert database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL: fsync at every commit
            ledger.spend(round_, 0, CHARGE, 5.0)


def test_a_key_is_written_once(path):
    journal = Journal.create(path, {"format": 1})
    journal.append("0/0", {"a": 1})
    with pytest.raises(sqlite3.IntegrityError):
        journal.append("0/0", {"a": 2})
    assert journal.rows() == [{"a": 1}]
    journal.append("0/1", {"a": 2})
    journal.close()


@pytest.mark.parametrize(("format_", "reads"), [(0, True), (1, True), (2, False), (-1, False)])
def test_a_ledger_of_the_last_two_formats_is_read_and_a_newer_one_is_refused(path, format_, reads):
    create(path).close()
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        database.execute(f"PRAGMA user_version = {format_}")
    database.close()
    if reads:
        with Ledger.open(path) as ledger:
            assert ledger.spend(1, 0, CHARGE, 5.0) is None or ledger.epsilon() > 0
    else:
        with pytest.raises(LedgerDamaged, match=f"has format {format_}, and this version of fedsw reads 0 to 1"):
            Ledger.open(path)
