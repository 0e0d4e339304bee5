"""Databases are read on a medium that takes no writing, and never without the rows of their log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedsw._tools.database import UnreadableDatabase, opened


@pytest.fixture
def written(tmp_path) -> Path:
    """A database of one row in write-ahead mode, closed, beside which SQLite can make no index of a log."""
    path = tmp_path / "a file?.sqlite"
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE rows (number); INSERT INTO rows VALUES (7);")
    database.close()
    path.with_name(path.name + "-shm").mkdir()  # as on a read-only medium, for root too
    return path


def test_without_a_log_a_database_is_read_where_nothing_can_be_written(written):
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(f"file:{written}?mode=ro", uri=True).execute("SELECT * FROM rows")
    database = opened(written, "ro")
    assert database.execute("SELECT number FROM rows").fetchall() == [(7,)]
    database.close()


def test_with_a_log_that_cannot_be_read_nothing_is_read_and_the_remedy_is_named(written, monkeypatch):
    written.with_name(written.name + "-wal").write_bytes(b"rows that are not in the file yet")

    def refused(where, options):
        assert "immutable" not in where, "rows of the log would be missing"
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("fedsw._tools.database._readable", refused)  # SQLite itself tries for ten seconds
    with pytest.raises(UnreadableDatabase, match=r"rows are in a file\?.sqlite-wal .* Copy the whole folder"):
        opened(written, "ro")


def test_what_the_system_lets_nobody_read_is_named_with_the_remedy(written, monkeypatch):
    def refused(where, options):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("fedsw._tools.database._readable", refused)
    with pytest.raises(UnreadableDatabase, match=r"disk I/O error.*let its owner allow"):
        opened(written, "ro")


def test_no_file_and_no_database_are_told_by_who_reads_them(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        opened(tmp_path / "none.sqlite", "ro")
    (tmp_path / "text.sqlite").write_text("no database " * 100)
    database = opened(tmp_path / "text.sqlite", "ro")
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        database.execute("SELECT 1 FROM sqlite_master")
    database.close()
