"""One account for one data set: what all runs on it together have spent, on disk, under any user."""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedsw._tools import files
from fedsw._tools.settings import require_data_set
from fedsw._tools.text import downward, upward
from fedsw.privacy.accounting.composition import check_delta
from fedsw.privacy.accounting.journal import (
    Head,
    Journal,
    LedgerBusy,
    LedgerDamaged,
    LedgerReplaced,
)
from fedsw.privacy.accounting.ledger import BudgetExhausted, Ledger
from fedsw.privacy.accounting.lifetime.chosen import room
from fedsw.privacy.accounting.lifetime.composing import (
    Cost,
    Counts,
    added,
    as_row,
    counted,
    total_epsilon,
    uncovered,
)
from fedsw.privacy.accounting.lifetime.state import NewestRows, State, state_of

ACCOUNTS_VARIABLE = "FEDSW_ACCOUNTS"
SUFFIX = ".account"
_CLIENT = ".client-"


def accounts_folder() -> Path:
    """The folder of this machine's accounts: $FEDSW_ACCOUNTS, else ~/.fedsw/accounts."""
    named = os.environ.get(ACCOUNTS_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".fedsw" / "accounts"


_FORMAT = 1
_PATIENCE = 60.0
_LOOK_SECONDS = 0.02


class LimitReached(BudgetExhausted, ValueError):
    """A plan that does not fit below the limit of its data set; nothing was reserved or spent."""


@dataclass(frozen=True)
class About:
    """A run as an account lists it, beside its steps: the experiment's name, what it does, where its files are.

    `unprotected` says why its reader has no guarantee (a seed, no noise, metrics without noise); None if there is one.
    """

    label: str
    kind: str
    location: str
    unprotected: str | None = None


class DatasetAccount:
    """Account of one data set: what all runs on its records spent, in one file, which is made at the first writing.

    The records are identified by the name that their owner gives them, which is public. Every writing is one
    transaction of one process at a time: what it looks at cannot change before it is on disk. The file holds no data.

    Guarantee: with a limit (epsilon, delta), whatever was released by runs that were reserved for here satisfies it
    together, for the replacement of one record within its groups, as long as no run releases more than its reservation
    or goes on in two copies (`Reservation` sees to both) and no older copy of the files is put back unseen. What a run
    costs, and where it stops, may follow from what earlier ones released (`Limit`); which limits are set may not.

    The account of one client's records may be `within` that of all clients' records, beside it. A run with clients that
    keep their own ledgers then counts in that, too: once, with what it costs the client that a record is at,
    whichever that is in this run.

    Attributes:
        newest: the last row of every run's ledger.

    Source: docs/guarantees/ledger.md.
    """

    def __init__(self, folder: Path, data: str, within: DatasetAccount | None = None) -> None:
        self.data, self.folder, self.within = require_data_set(data), folder, within
        self.path = folder / f"{data}{SUFFIX}"
        self.newest = NewestRows(folder, data)

    def state(self) -> State:
        """Read the account's file, opened for reading only.

        LedgerReplaced if it is older than what is remembered beside it, or gone; LedgerDamaged if it is no account, or
        its rows do not follow from one another.
        """
        if not self.path.exists():
            self._require_remembered(None)
            return State(self.data)
        journal = Journal.open(self.path, read_only=True)
        try:
            return self._state(journal)
        finally:
            journal.close()

    def limit(self, epsilon: float, delta: float) -> None:
        """Set the limit of all runs together, from now on: ValueError for an epsilon or delta out of range."""
        check_delta(delta)
        if not 0.0 < epsilon < math.inf:
            raise ValueError(f"epsilon is {epsilon}; a limit is positive and finite")
        with self._writing() as (journal, _):
            self._append(journal, {"kind": "limit", "epsilon": float(epsilon), "delta": float(delta)})

    @classmethod
    def of_client(cls, folder: Path, data: str, client: int) -> DatasetAccount:
        """The account of one client's records, within that of the data set."""
        return cls(folder, f"{data}{_CLIENT}{client}", within=cls(folder, data))

    @property
    def around(self) -> DatasetAccount | None:
        """The enclosing account, by this one's name, or None: its limit holds here, too."""
        data, mark, client = self.data.rpartition(_CLIENT)
        whole = DatasetAccount(self.folder, data) if mark and client.isdecimal() else None
        return whole if whole is not None and whole.path.exists() else None

    def reserve(
        self,
        run: str,
        steps: Counts | Cost,
        about: About,
        witnesses: Sequence[tuple[Head, str]] = (),
        *,
        among: bool = False,
    ) -> Head:
        """Set aside what a run will spend at most, before it spends anything; again when it is resumed.

        What the run counts with already stays. Its name is the same when it is resumed; the steps are of all its
        releases, by groups, of which a record is in one; witnesses are rows that this file had at some time, with who
        remembers each. `among` others of the run's clients, with other records, the steps are those of one
        more group.

        Raises:
            LimitReached: if all runs together would exceed the limit, or the run has no guarantee and there is a limit.
            LedgerReplaced, LedgerDamaged: as `state`; also if a witness's row is not in the file.
            LedgerBusy: if another process writes for a minute.
        """
        planned = Cost.one(steps).counted()
        with self._writing() as (journal, state):
            for head, by in witnesses:
                self._require(journal, head, by)
            known = state.runs.get(run)
            if known is None:
                wanted = planned
            else:
                wanted = Cost.of([*known.cost.parts, *planned.parts]) if among else _with_taken(planned, known.cost)
            if known is not None and not known.settled and wanted == known.cost:
                return journal.head
            row = {
                "kind": "reserved",
                "run": run,
                "label": about.label,
                "doing": about.kind,
                "place": about.location,
                "unprotected": about.unprotected,
                "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                **_as_row(wanted),
            }
            self._require_room(state, row, about)
            if known is None:
                self.newest.begin(run)
            self._append(journal, row)
            return journal.head

    def extend(self, run: str, steps: Counts) -> None:
        """Set aside more for a run, for a release that its reservation does not cover; raises as `reserve`."""
        with self._writing() as (journal, state):
            known = state.runs[run]
            about = About(known.label, known.kind, "", known.unprotected)
            row = {"kind": "extended", "run": run, "steps": as_row(steps)}
            self._require_room(state, row, about)
            self._append(journal, row)

    def require_newest(self, run: str, ledger: Path) -> None:
        """Raise LedgerReplaced if a run's ledger, which need not exist, lacks what the run has released."""
        known = self.state().runs.get(run)
        if not ledger.exists():
            self.newest.require(run, None, known)
            return
        with Ledger.open(ledger, read_only=True) as opened:
            self.newest.require(run, opened, known)

    def settle(self, run: str, spent: Counts | Cost, ledger: Ledger | None) -> Head:
        """Let a run that has ended count with what it spent, and give back the rest of its reservation.

        ``spent`` is by the run's own ledger, checked; ``ledger`` is that one, None if there was none. LedgerReplaced as
        `state`, or if the ledger lacks what the run has released, here or in another copy; ValueError if nothing was
        reserved for the run.
        """
        with self._writing() as (journal, state):
            if run not in state.runs:
                raise ValueError(f"nothing was reserved for run {run[:12]!r} in the account of {self.data!r}")
            head = None
            self.newest.require(run, ledger, state.runs[run])
            if ledger is not None:
                self.newest.follow(run, ledger)
                head = [ledger.head().sequence, ledger.head().digest]
            row = {"kind": "settled", "run": run, **_as_row(Cost.one(spent).counted()), "ledger": head}
            self._append(journal, row)
            settled = journal.head
        if self.within is not None:
            self.within.settle_among(run)
        return settled

    def settle_among(self, run: str) -> None:
        """Count a run with what it cost the clients with accounts within this one, once all have settled."""
        if run not in self.state().runs:
            return
        parts: list[Counts] = []
        for path in sorted(self.folder.glob(f"{self.data}{_CLIENT}*{SUFFIX}"), reverse=True):
            known = DatasetAccount(self.folder, path.stem).state().runs.get(run)
            if known is not None and not known.settled:
                return
            parts += [] if known is None else known.cost.parts
        self.settle(run, Cost.of(parts), None)

    def _require_room(self, state: State, row: Mapping[str, Any], about: About) -> None:
        """Refuse a row that would take a run beyond the limit."""
        run, after = str(row["run"]), state.after(row)
        limit = after.limit
        if limit is None:
            return
        if about.unprotected:
            raise LimitReached(
                f"{about.unprotected}: such a run has no guarantee, and the account of data set {self.data!r} has a "
                f"limit, epsilon {upward(limit.epsilon, 6)} at delta {upward(limit.delta, 6)}; nothing was spent"
            )
        if limit.admits(after.uses()):
            return
        wanted, others = after.runs[run].cost, state.uses(without=run)
        before = total_epsilon([use.cost for use in others], limit.delta)
        total = limit.chosen(after.uses()) if before else total_epsilon([wanted], limit.delta)
        chosen = ", whatever made you choose it" if before else ""
        left = 0.0
        if math.isfinite(total) and all(step.stated is None for step in wanted.steps):
            left = room(replace(limit, first=state.first), others, like=wanted)
        waiting = sum(not other.settled for name, other in state.runs.items() if name != run)
        advice = f"A run like it of epsilon {downward(left)} still fits: lower its epsilon (privacy.epsilon)"
        alone = "" if limit.shared or not before else ": the plan of the first run takes the limit whole"
        fits = advice if left else f"Nothing more fits{alone}"
        stopped = f" (by {waiting} runs that have not ended, too)" if waiting else ""
        remedy = ", settle runs that stopped (`fedsw account settle`)" if waiting else ""
        raise LimitReached(
            f"the account of data set {self.data!r} would reach epsilon {upward(total, 4)} at delta "
            f"{upward(limit.delta, 6)} with this run{chosen}; its limit is "
            f"{upward(limit.epsilon, 6)}, and {upward(before, 4)} is taken{stopped}. Nothing was spent. {fits}"
            f"{remedy}, or ask the owner of the data to raise the limit (`fedsw account limit`)"
        )

    @contextmanager
    def _writing(self) -> Iterator[tuple[Journal, State]]:
        journal = self._open()
        try:
            yield journal, self._state(journal)
        finally:
            journal.close()

    def _open(self) -> Journal:
        """The journal, held for writing; other processes hold it for moments only."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if self.path.exists():
                    return Journal.open(self.path)
                self._require_remembered(None)
                self._make_folder()
                return Journal.create(self.path, {"format": _FORMAT, "account": uuid4().hex, "data": self.data})
            except (LedgerBusy, FileExistsError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)

    def _make_folder(self) -> None:
        """Make the folder of the accounts; OSError that says how to name another, as where HOME is not there."""
        try:
            files.new_folder(self.folder)
        except OSError as fault:
            said = f"accounts are kept in {self.folder}, which cannot be made ({fault.strerror or fault})"
            remedy = f"{ACCOUNTS_VARIABLE} names another folder, as for a service whose HOME is not there"
            raise OSError(fault.errno, f"{said}; {remedy}") from None

    def _state(self, journal: Journal) -> State:
        header = journal.header
        if header.get("format") != _FORMAT or header.get("data") != self.data:
            raise LedgerDamaged(f"{self.path} is not the account of data set {self.data!r}; put its own file back")
        self._require_remembered(journal)
        return state_of(self.data, journal.rows())

    def _append(self, journal: Journal, row: Mapping[str, Any]) -> None:
        journal.append(f"{journal.head.sequence + 1}/{row['kind']}", dict(row))
        journal.head.remember(self.path)

    def _require_remembered(self, journal: Journal | None) -> None:
        head = Head.remembered(self.path)
        if head is None:
            return
        if journal is None:
            raise LedgerReplaced(
                f"{self.path} is gone, but {Head.file_beside(self.path).name} remembers its row {head.sequence}; put "
                "the account back: without it nobody knows what was spent"
            )
        self._require(journal, head, Head.file_beside(self.path).name)

    def _require(self, journal: Journal, head: Head, by: str) -> None:
        if not journal.passes(head):
            raise LedgerReplaced(
                f"{self.path} ends at row {journal.head.sequence}, but {by} remembers row {head.sequence} (digest "
                f"{head.digest[:12]}): an older copy, or another account, is in its place, and would forget what was "
                "spent. Put the newest account back"
            )


class Reservation:
    """A run's reservation in its data set's account, as a ledger's limiter; ``asked`` once the ledger has asked it."""

    def __init__(self, account: DatasetAccount, run: str) -> None:
        self.account, self.run, self.asked = account, run, False
        self._cost = account.state().runs[run].cost
        within = account.within
        self._within = None if within is None or run not in within.state().runs else Reservation(within, run)

    def admit(self, taken: Mapping[str, Counts]) -> None:
        """Agree to what a run has taken, the next release included, by group of its records.

        More is set aside where the reservation does not cover it: a fresh attempt, or clients that are away. Where the
        account has no room for that, or the one that it is within, LimitReached, and nothing may be released.
        """
        self.asked = True
        if self._within is not None:
            self._within.admit(taken)
        for steps in taken.values():
            counts = counted(steps.items())
            if not self._cost.lacks(counts):
                continue
            self._cost = self.account.state().runs[self.run].cost  # as the run's other ledgers left it
            if rest := self._cost.lacks(counts):
                self.account.extend(self.run, rest)
                self._cost = self._cost.and_more(rest)

    def charged(self, ledger: Ledger) -> None:
        """Take note of what a run's ledger was charged last, before it is released, as `NewestRows.follow`."""
        self.account.newest.follow(self.run, ledger)


def _with_taken(planned: Cost, taken: Cost) -> Cost:
    """The plan of a resumed run with what it counts with already; by groups where those cover what was taken."""
    if all(not planned.lacks(part) for part in taken.parts):
        return planned
    return Cost.one(added(planned.steps, uncovered(taken.steps, planned.steps)))


def _as_row(cost: Cost) -> dict[str, Any]:
    parts = [as_row(part) for part in cost.parts]
    return {"steps": as_row(cost.steps)} | ({"parts": parts} if len(parts) > 1 else {})


def accounts_in(folder: Path) -> list[DatasetAccount]:
    """The accounts of a folder, by name."""
    paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    return [DatasetAccount(folder, path.stem) for path in paths]


def account_named(named: str | Path) -> DatasetAccount:
    """A data set's account, by its name (in `accounts_folder`), or by the `Path` of its file, FOLDER/NAME.account."""
    if not isinstance(named, Path):
        return DatasetAccount(accounts_folder(), named)
    if named.suffix != SUFFIX:
        raise ValueError(f"{named} names no account; its file is called NAME{SUFFIX}, with the data set's name")
    return DatasetAccount(named.expanduser().parent, named.stem)
