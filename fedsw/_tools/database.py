"""SQLite files, opened for reading on any medium."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path


class UnreadableDatabase(OSError):
    """A file is there, and neither this user nor this medium lets it be read; nothing is known of what it holds."""


def opened(path: Path, mode: str, **options: object) -> sqlite3.Connection:
    """Connect to the database of an existing file, by SQLite's mode "ro" or "rw".

    For reading only, SQLite makes an index of the write-ahead log beside the file. On a medium that takes no writing it
    cannot; without a log all rows are in the one file, and it is read as one that does not change. With a log it is
    not, since rows would be missing.

    Raises:
        UnreadableDatabase: if a database that is only to be read cannot be, naming the remedy; what is damaged is
            sqlite3.DatabaseError, when it is read.
    """
    where = f"{path.resolve().as_uri()}?mode={mode}"
    if mode != "ro":
        return sqlite3.connect(where, uri=True, **options)  # type: ignore[call-overload,no-any-return]
    try:
        return _readable(where, options)
    except sqlite3.OperationalError as fault:
        if not path.is_file():
            raise
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise UnreadableDatabase(
                f"{path} cannot be read ({fault}): rows are in {log.name} beside it, and reading them takes a folder "
                "that can be written to. Copy the whole folder to one, and look at the copy"
            ) from fault
    try:
        return _readable(f"{where}&immutable=1", options)
    except sqlite3.OperationalError as fault:
        raise UnreadableDatabase(
            f"{path} cannot be read ({fault}): let its owner allow this user to read it, or copy the whole folder to a "
            "medium that can be read"
        ) from fault


def _readable(where: str, options: Mapping[str, object]) -> sqlite3.Connection:
    """Connect, and read something: SQLite opens a file when it is first asked for anything."""
    database: sqlite3.Connection = sqlite3.connect(where, uri=True, **options)  # type: ignore[call-overload]
    try:
        database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        database.close()
        raise
    except sqlite3.DatabaseError:
        pass  # no database, or a damaged one, which whoever reads it says
    return database
