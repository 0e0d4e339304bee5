"""An append-only, hash-chained list of rows on disk, which one process at a time may extend."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsw._tools import database as databases
from fedsw._tools import files

_SCHEMA = """
CREATE TABLE header (body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE rows (
    sequence INTEGER PRIMARY KEY CHECK (sequence > 0),
    key TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL,
    previous TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL UNIQUE
);
CREATE TRIGGER header_stays BEFORE UPDATE ON header BEGIN SELECT RAISE(ABORT, 'the header is final'); END;
CREATE TRIGGER header_remains BEFORE DELETE ON header BEGIN SELECT RAISE(ABORT, 'the header is final'); END;
CREATE TRIGGER rows_stay BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'rows are final'); END;
CREATE TRIGGER rows_remain BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'rows are final'); END;
"""

FORMATS = (0, 1)
"""Formats of a journal that are read; the last is written. Files from before formats were written have 0."""

_BYTES = 128
"""Length of a remembered head, whatever its number: it is written over in one write."""

_STATEMENTS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"


class LedgerBusy(RuntimeError):
    """Another process holds the ledger for writing."""


class LedgerDamaged(ValueError):
    """The file is not a ledger, or its rows do not follow from one another."""


class LedgerReplaced(LedgerDamaged):
    """The file is an older copy, or another run's: charges that were made since are missing from it."""


@dataclass(frozen=True)
class Head:
    """The last row of a journal: its number, and the digest that commits to all rows and to the header."""

    sequence: int
    digest: str

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Head:
        """The head that a file stores; ValueError, LookupError or TypeError for anything else."""
        return cls(int(stored["sequence"]), str(stored["digest"]))

    @staticmethod
    def file_beside(path: Path) -> Path:
        """The small file beside a journal that remembers its head."""
        return path.with_suffix(".head")

    def remember(self, path: Path) -> None:
        """Write the head beside its journal, before anything that rests on it leaves."""
        files.overwrite(self.file_beside(path), json.dumps(asdict(self)).encode("ascii").ljust(_BYTES))

    @classmethod
    def remembered(cls, path: Path) -> Head | None:
        """The head that is remembered beside a journal; None without one, or where a dying machine emptied the file."""
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            head = cls.of(json.loads(cls.file_beside(path).read_text(encoding="ascii")))
            return head if head.sequence else None
        return None


class Journal:
    """Rows of JSON with unique keys; a row is on disk, fsynced, when :meth:`append` returns.

    The sequence counts 1, 2, ...; each digest is the SHA-256 of the previous digest and the row, the first of the
    header's. A remembered :class:`Head` detects a file that was restored from an earlier copy.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.head: Head
        self.path = path
        self._lock = lock
        self._owner = os.getpid()
        self._database: sqlite3.Connection | None = None
        try:
            self._database = _connect(path, "ro" if lock is None else "rw")
            [(format_,)] = self._query("PRAGMA user_version")
            if format_ not in FORMATS:
                raise LedgerDamaged(
                    f"{self.path} has format {format_}, and this version of fedsw reads {FORMATS[0]} to {FORMATS[-1]}: "
                    "a newer version wrote it. Use that version; nothing was spent."
                )
            # other tables, views or triggers than a ledger's: their statements would run here
            statements, expected = {str(name): text for name, text in self._query(_STATEMENTS)}, _expected()
            if other := sorted(
                name for name in statements.keys() | expected.keys() if statements.get(name) != expected.get(name)
            ):
                raise LedgerDamaged(f"{self.path} is not a ledger of fedsw: {', '.join(other)} differ from its tables.")
            headers = self._query("SELECT body, digest FROM header")
            if len(headers) != 1 or hashlib.sha256(headers[0][0].encode()).hexdigest() != headers[0][1]:
                raise LedgerDamaged(f"the header of {self.path} was changed. Restore the file from its newest copy.")
            self.header: dict[str, Any] = json.loads(headers[0][0])
            self._origin = str(headers[0][1])
            self.refresh()
            self._synchronous = "FULL"
            self._database.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Journal:
        """Make a journal, complete or not at all, and hold it for writing; FileExistsError, LedgerBusy."""
        path = path.resolve()
        lock = _hold(path)
        try:
            for part in (path, *_companions(path)):  # a write-ahead log left alone would enter the new file
                if part.exists():
                    raise FileExistsError(f"{part} exists; open {path} to go on with its run, or choose another path.")
            _write_new(path, header)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Open a journal, and hold it for writing unless ``read_only``; raises as :meth:`Ledger.open`."""
        path = path.resolve()
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; create the ledger first, or correct the path.")
        return cls(path, None if read_only else _hold(path))

    @property
    def log(self) -> Path:
        """SQLite's write-ahead log: rows since the last checkpoint, which itself waits for the disk."""
        return _companions(self.path)[0]

    def append(self, key: str, row: dict[str, Any], *, synced: bool = True) -> None:
        """Add one row and wait until the disk has it; if not ``synced``, it is there once the `log` was synced.

        Raises:
            LedgerBusy: if this process does not hold the journal, or another one wrote to it.
            sqlite3.Error: if the disk refuses, or the key exists; the row is then there in full or not at all.
        """
        self.require_writer()
        synchronous = "FULL" if synced else "NORMAL"
        if self._synchronous != synchronous:
            self._open_database().execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        body = _canonical(row)
        sequence, previous = self.head.sequence + 1, self.head.digest
        digest = _digest(previous, sequence, key, body)
        with self._transaction() as database:
            last = database.execute("SELECT sequence, digest FROM rows ORDER BY sequence DESC LIMIT 1").fetchone()
            if (last or (0, self._origin)) != (self.head.sequence, self.head.digest):
                raise LedgerBusy(f"{self.path} was written to by somebody else; close it and open it again.")
            database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (sequence, key, body, previous, digest))
        self.head = Head(sequence, digest)

    def rows(self) -> list[dict[str, Any]]:
        """All rows from the disk; LedgerDamaged names the first that does not follow from the one before."""
        return self._checked()[0]

    def refresh(self) -> None:
        """Read the last row on disk again, to append after it; LedgerDamaged as :meth:`rows`."""
        self.head = self._checked()[1]

    def passes(self, head: Head) -> bool:
        """Say whether the chain goes through a head: False for an older copy and for another file."""
        if head.sequence == 0:
            return head.digest == self._origin
        return self._query("SELECT 1 FROM rows WHERE sequence = ? AND digest = ?", head.sequence, head.digest) != []

    @property
    def is_open(self) -> bool:
        """False once it is closed."""
        return self._database is not None

    @property
    def read_only(self) -> bool:
        """True if it was opened for reading only."""
        return self._lock is None

    def _checked(self) -> tuple[list[dict[str, Any]], Head]:
        rows, head = [], Head(0, self._origin)
        for sequence, key, body, previous, digest in self._query("SELECT * FROM rows ORDER BY sequence"):
            follows = sequence == head.sequence + 1 and previous == head.digest
            if not follows or digest != _digest(previous, sequence, key, body):
                raise LedgerDamaged(
                    f"row {sequence} of {self.path} does not follow from row {head.sequence}: the file was changed by "
                    "something else. Restore it from the newest copy, and do not spend from it."
                )
            rows.append(json.loads(body))
            head = Head(sequence, digest)
        return rows, head

    def require_writer(self) -> None:
        """Raise LedgerBusy in a process that did not open the journal for writing (a fork included)."""
        self._open_database()
        if self._lock is None:
            raise LedgerBusy(f"{self.path} is open for reading only; open it for writing.")
        if os.getpid() != self._owner:
            raise LedgerBusy(f"{self.path} is held by process {self._owner}, not by its child {os.getpid()}.")

    def close(self) -> None:
        """Let go of the file and of the lock."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._open_database().execute(statement, values).fetchall()
        except sqlite3.DatabaseError as fault:
            if isinstance(fault, sqlite3.OperationalError) and "no such table" not in str(fault):
                raise
            raise LedgerDamaged(f"{self.path} is not a ledger of fedsw: {fault}.") from fault

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._open_database()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _open_database(self) -> sqlite3.Connection:
        if self._database is None:
            raise ValueError(f"{self.path} is closed; open the ledger again.")
        return self._database


def _hold(path: Path) -> int:
    """Take the lock that one process holds for as long as it may write; the kernel frees it when the process dies."""
    beside = path.with_name(path.name + ".lock")
    try:
        lock = files.lock(beside)
    except BlockingIOError:
        holder = beside.read_bytes()[:32].decode(errors="replace").strip() or "unknown"
        raise LedgerBusy(
            f"{path} is held for writing by process {holder}. Wait until it ends; to look at it, open it for "
            "reading only."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _write_new(path: Path, header: dict[str, Any]) -> None:
    """Build the file under another name, sync it, and rename it: never half a journal under its own name."""
    draft = path.with_name(path.name + ".new")
    for leftover in (draft, *_companions(draft)):
        leftover.unlink(missing_ok=True)
    files.opened(draft).close()  # SQLite gives its log and index the mode of the database
    body = _canonical(header)
    database = _connect(draft, "rw")
    try:
        database.execute("PRAGMA synchronous = OFF")  # a draft: no reader relies on it before it has its name
        database.executescript(f"BEGIN;{_SCHEMA}")
        database.execute(f"PRAGMA user_version = {FORMATS[-1]}")
        database.execute("INSERT INTO header VALUES (?, ?)", (body, hashlib.sha256(body.encode()).hexdigest()))
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()
    files.settle(draft, path)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return databases.opened(path, mode, isolation_level=None, check_same_thread=False)


@functools.cache
def _expected() -> dict[str, str]:
    """SQL statements of all tables and triggers of a journal, by name, as SQLite stores them."""
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(_SCHEMA)
        return dict(database.execute(_STATEMENTS))
    finally:
        database.close()


def _companions(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(previous: str, sequence: int, key: str, body: str) -> str:
    return hashlib.sha256(json.dumps([previous, sequence, key, body]).encode()).hexdigest()
