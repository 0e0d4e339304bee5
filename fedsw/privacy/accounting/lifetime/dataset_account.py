"""One account for one data set: what all runs on it together have spent, on disk, under any user."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from fedsw._tools import files
from fedsw._tools.settings import ExperimentError, require_data_set
from fedsw._tools.text import downward, upward
from fedsw.privacy.accounting.composition import check_delta
from fedsw.privacy.accounting.journal import (
    Head,
    Journal,
    LedgerBusy,
    LedgerDamaged,
    LedgerReplaced,
)
from fedsw.privacy.accounting.ledger import BudgetExhausted, Ledger, account_beside
from fedsw.privacy.accounting.lifetime.chosen import AdmittedCost, Limit, Use, lacking, next_weight, room
from fedsw.privacy.accounting.lifetime.composing import (
    NO_NOISE,
    Cost,
    Counts,
    added,
    as_row,
    counted,
    from_row,
    total_epsilon,
    uncovered,
)


@dataclass(frozen=True)
class TakenRun:
    """One run on the records.

    ``unprotected`` says why its reader has no guarantee, whatever it cost; ``steps`` is what counts: the plan's until
    the run is ``settled``, then what it spent; ``parts`` the same by groups of the run; ``shares`` what it was admitted
    with, nothing once it has given all of it back, ``paid`` all of these together; ``leads`` says that the first of all
    shares is its own; ``ledger`` is the last row of its ledger when it was settled.
    """

    run: str
    label: str
    kind: str
    location: str
    begun: str
    unprotected: str | None
    steps: Counts
    settled: bool = False
    ledger: Head | None = None
    parts: tuple[Counts, ...] = ()
    shares: tuple[AdmittedCost, ...] = ()
    paid: Cost | None = None
    leads: bool = False

    @property
    def cost(self) -> Cost:
        """Steps that the account counts for the run, by its groups."""
        return Cost(self.steps, self.parts or (self.steps,))

    @property
    def use(self) -> Use:
        """The run's part of a limit: its cost, with the shares that it was admitted with."""
        return Use(self.cost, self.shares, self.leads)

    @property
    def released_nothing(self) -> bool:
        """True if it ended before its first release, and gave everything back."""
        return self.settled and not self.steps

    @property
    def unnoised(self) -> int:
        """Number of different steps of the run that had no noise."""
        return sum(math.isinf(step.mu) for step in self.steps)


@dataclass(frozen=True)
class State:
    """An account as its rows leave it: its limit, if there is one, and runs by name, in the order they began.

    ``first`` is the share that was admitted when nothing had been released or could be: it stays, whatever becomes of
    its run, until all runs have given back what they were admitted with.
    """

    data: str
    epsilon: float | None = None
    delta: float | None = None
    runs: Mapping[str, TakenRun] = field(default_factory=dict)
    first: Cost | None = None

    @property
    def limit(self) -> Limit | None:
        """The limit, with the first share."""
        return None if self.epsilon is None or self.delta is None else Limit(self.epsilon, self.delta, self.first)

    def spent(self, delta: float) -> float:
        """Epsilon of all runs together, reservations included, as if all had been planned; inf without noise."""
        return total_epsilon((run.cost for run in self.runs.values()), delta)

    def uses(self, *, without: str | None = None) -> list[Use]:
        """Uses of a limit by all runs, or by all but one."""
        return [run.use for name, run in self.runs.items() if name != without]

    def after(self, row: Mapping[str, Any]) -> State:
        """The state that one more row leaves."""
        if row["kind"] == "limit":
            return replace(self, epsilon=float(row["epsilon"]), delta=float(row["delta"]))
        name = str(row["run"])
        known = self.runs.get(name)
        steps, parts = from_row(row["steps"]), tuple(from_row(part) for part in row.get("parts", ()))
        if row["kind"] == "reserved":
            run = TakenRun(
                run=name,
                label=row["label"],
                kind=row["doing"],
                location=row["place"],
                begun=row["begun"],
                unprotected=row["unprotected"],
                steps=steps,
                parts=parts,
            )
            if known is None or known.released_nothing:  # it begins here, after whatever was released meanwhile
                return replace(self, runs={key: run for key, run in self.runs.items() if key != name})._with(run)
            run = replace(run, shares=known.shares, paid=known.paid, leads=known.leads)
        elif known is None:
            raise ValueError(f"a row of the account is about run {name!r}, which was not reserved for")
        elif row["kind"] == "extended":
            more = known.cost.and_more(steps)
            run = replace(known, steps=more.steps, parts=more.parts)
        elif row["kind"] == "settled":
            head = row["ledger"] and Head(int(row["ledger"][0]), str(row["ledger"][1]))
            run = replace(known, steps=steps, parts=parts, settled=True, ledger=head)
        else:
            raise ValueError(f"a row of the account is of the kind {row['kind']!r}, which this version does not know")
        return self._with(run)

    def _with(self, run: TakenRun) -> State:
        """The state with a run as it is now: what its shares do not pay for becomes one more of them."""
        if run.released_nothing:
            runs = {**self.runs, run.run: replace(run, shares=(), paid=None, leads=False)}
            return replace(self, runs=runs, first=self.first if any(known.shares for known in runs.values()) else None)
        rest = lacking(run.cost, run.paid)
        if rest is None:
            return replace(self, runs={**self.runs, run.run: run})
        others = [share for name, other in self.runs.items() if name != run.run for share in other.shares]
        share = AdmittedCost(rest, next_weight([*others, *run.shares]))
        paid = rest if run.paid is None else run.paid.and_more(rest.steps)
        run = replace(run, shares=(*run.shares, share), paid=paid, leads=run.leads or self.first is None)
        return replace(self, runs={**self.runs, run.run: run}, first=self.first or rest)


def state_of(data: str, rows: Iterable[Mapping[str, Any]]) -> State:
    """The state that all rows leave, in their order."""
    state = State(data)
    for row in rows:
        state = state.after(row)
    return state


_FOLDER = ".heads"
_PATIENCE = 60.0


class NewestRows:
    """The last row that each run's ledger had when something was released, in a small file a run beside the account.

    Guarantee: rows that :meth:`follow` was given for one run lie on one chain, each after the one before. So whatever
    was released after its row had been taken here is in every ledger that is taken later. A file that is missing, or
    older than the account says, stops the run: it is made when the run is first reserved for, and never taken away.
    """

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self._data = folder / f"{data}{_FOLDER}", data

    def of(self, run: str) -> Head | None:
        """The row that is remembered for a run, 0 before its first release; None before it was reserved for."""
        path = self._file(run)
        try:
            return Head.of(json.loads(path.read_text(encoding="ascii")))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as fault:
            raise LedgerDamaged(f"{path} does not say where the ledger of run {run[:12]!r} ends: {fault}") from None

    def begin(self, run: str) -> None:
        """Make the file of a run that is reserved for the first time, before the account says that it is."""
        if self.of(run) is None:
            self._write(run, Head(0, ""))

    def require(self, run: str, ledger: Ledger | None, known: TakenRun | None) -> None:
        """Refuse a ledger that does not hold what the run has released; None if there is no ledger.

        ``known`` is what the account says of the run. LedgerReplaced for a copy of the run that did not go on, or was
        put back, or if the file here is not the newest; LedgerDamaged as `of`.
        """
        newest = self.of(run)
        if known is None and newest is None:
            return
        settled = 0 if known is None or known.ledger is None else known.ledger.sequence
        if newest is None or newest.sequence < settled:
            self._refuse_forgotten(run, newest)
        if newest.sequence and not (ledger is not None and ledger.passes(newest)):
            self._refuse(run, newest, ledger)

    def _refuse_forgotten(self, run: str, newest: Head | None) -> NoReturn:
        ends = "is missing" if newest is None else f"says release {newest.sequence}, which is not the last one settled"
        raise LedgerReplaced(
            f"{self._file(run)} {ends}: it says where the ledger of run {run[:12]!r} ends, and without it a copy of "
            f"the run would forget what was released elsewhere. Put {self.folder.name}/ back as it was, from the same "
            "moment as the account or later; if it is lost, start a new run, which counts by itself"
        )

    def _refuse(self, run: str, newest: Head, ledger: Ledger | None) -> NoReturn:
        ends = "is gone" if ledger is None else f"ends at release {ledger.head().sequence} of another course"
        raise LedgerReplaced(
            f"the ledger of run {run[:12]!r} {ends}; the account of data set {self._data!r} remembers its release "
            f"{newest.sequence} (digest {newest.digest[:12]}): this folder is a copy, or a backup, of a run that went "
            "on elsewhere, and would forget what was released there. Go on in the folder that was used last; if it is "
            "lost, nothing more may be released in this run: start a new one, which counts by itself"
        )

    def take_over(self, run: str, ledger: Ledger) -> None:
        """Remember another ledger of a run, charged for what the one before released; LedgerReplaced if shorter."""
        before = self.of(run)
        if before is None:
            self._refuse_forgotten(run, None)
        if ledger.head().sequence < before.sequence:
            self._refuse(run, before, ledger)
        self._write(run, ledger.head())

    def follow(self, run: str, ledger: Ledger) -> None:
        """Remember a ledger's last row, on the disk, before anything that it paid for is released.

        LedgerReplaced if the run released elsewhere what is not in this ledger, or its file is gone: nothing may then
        be released. LedgerBusy if another process holds the file for a minute.
        """
        with self._locked(run):
            newest = self.of(run)
            if newest is None:
                self._refuse_forgotten(run, None)
            if newest.sequence and not ledger.passes(newest):
                self._refuse(run, newest, ledger)
            self._replace(run, ledger.head())

    def _write(self, run: str, head: Head) -> None:
        with self._locked(run):
            self._replace(run, head)

    @contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        files.new_folder(self.folder)
        path = self._file(run)
        try:
            with files.locked(path.with_suffix(".lock"), _PATIENCE):
                yield
        except BlockingIOError:
            raise LedgerBusy(f"{path} is held by another process; try again when it ends") from None

    def _replace(self, run: str, head: Head) -> None:
        files.replace(self._file(run), json.dumps({"run": run, **asdict(head)}).encode("ascii"))

    def _file(self, run: str) -> Path:
        return self.folder / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.json"


ACCOUNTS_VARIABLE = "FEDSW_ACCOUNTS"
SUFFIX = ".account"
_CLIENT = ".client-"


def accounts_folder() -> Path:
    """The folder of this machine's accounts: $FEDSW_ACCOUNTS, else ~/.fedsw/accounts.

    ExperimentError for a relative path: started elsewhere, runs on the same records would begin another account.
    """
    named = os.environ.get(ACCOUNTS_VARIABLE)
    if not named:
        return Path.home() / ".fedsw" / "accounts"
    folder = Path(named).expanduser()
    if not folder.is_absolute():
        raise ExperimentError(
            f"{ACCOUNTS_VARIABLE} is {named!r}, which is another folder wherever a command is started: runs on the "
            "same records would count in accounts that know nothing of each other. Write the whole path, "
            f"{folder.resolve()}"
        )
    return folder


_FORMAT = 1
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

        LedgerReplaced if it is older than what is remembered beside it, or gone; LedgerDamaged if it is not an account,
        or its rows do not follow from one another.
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
                try:
                    files.new_folder(self.folder)
                except OSError as fault:
                    said = f"accounts are kept in {self.folder}, which cannot be made ({fault.strerror or fault})"
                    remedy = f"{ACCOUNTS_VARIABLE} names another folder, as for a service without a HOME"
                    raise OSError(fault.errno, f"{said}; {remedy}") from None
                return Journal.create(self.path, {"format": _FORMAT, "account": uuid4().hex, "data": self.data})
            except (LedgerBusy, FileExistsError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)

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
                "the account back: without it what was spent is unknown"
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


_BOUND = ".account.json"
_LEDGER = ".sqlite"


@dataclass(frozen=True)
class Binding:
    """The account that a ledger belongs to, and the name of its run in that account.

    A run without noise has no ledger: the file ``answers`` exists from its first release on.
    """

    account: DatasetAccount
    run: str
    answers: Path | None = None

    @classmethod
    def of(cls, path: Path) -> Binding | None:
        """The account and run that a ledger is bound to; None if it belongs to no account."""
        try:
            content = json.loads(account_beside(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        folder, within = Path(content["folder"]), content.get("within")
        around = None if within is None else DatasetAccount(folder, within)
        answers = content.get("answers")
        account = DatasetAccount(folder, content["data"], around)
        return cls(account, content["run"], None if answers is None else Path(answers))

    def write(self, path: Path) -> None:
        """Write this binding beside a ledger, which need not exist yet."""
        files.new_folder(path.parent)
        account = self.account
        content = {"data": account.data, "folder": str(account.folder.resolve()), "run": self.run, "ledger": path.name}
        if account.within is not None:
            content["within"] = account.within.data
        if self.answers is not None:
            content["answers"] = str(self.answers.resolve())
        files.replace(account_beside(path), json.dumps(content).encode())

    def write_alone(self, path: Path) -> None:
        """Write this down beside a ledger in place of any other run: one ledger has one run.

        A reservation of another run, if its ledger never began here, is given back.

        Raises:
            ValueError: if the ledger has begun, as another run or in another account. LedgerReplaced: if it is gone.
        """
        before = Binding.of(path)
        if before is not None and (before.run, before.account.path) != (self.run, self.account.path):
            if before.answers is None and _begun(path):
                raise ValueError(
                    f"{path} has begun as the ledger of run {before.run[:12]!r} in the account of data set "
                    f"{before.account.data!r}, and this is run {self.run[:12]!r} in that of {self.account.data!r}; "
                    "give every run a folder of its own"
                )
            before.settle(path)
        self.write(path)

    def settle(self, path: Path) -> None:
        """Make a ledger's run count with what its newest ledger says it spent."""
        if self.answers is not None or not _begun(path):
            if self.run in self.account.state().runs:
                released = self.answers is not None and self.answers.exists()
                self.account.settle(self.run, NO_NOISE if released else {}, None)
            elif self.account.within is not None:  # it was refused, or ended, before it set anything aside
                self.account.within.settle_among(self.run)
            return
        head = Head.remembered(path)
        with Ledger.open(path) as ledger:
            if head is not None:
                ledger.require(head, Head.file_beside(path).name)
            self.account.settle(self.run, Cost.of_ledger(ledger), ledger)

    @staticmethod
    def settle_in(folder: Path) -> list[str]:
        """Settle every ledger of a folder that belongs to an account; returns the data sets' names, one a ledger."""
        settled = []
        for path in _bound_in(folder):
            if (binding := Binding.of(path)) is not None:
                binding.settle(path)
                settled.append(binding.account.data)
        return settled

    @staticmethod
    def give_back_in(folder: Path) -> None:
        """Give back what was set aside for ledgers of a folder that were never begun: their run was refused."""
        for path in _bound_in(folder):
            if not _begun(path):
                if (binding := Binding.of(path)) is not None:
                    binding.settle(path)
                _unbind(path)


def _unbind(path: Path) -> None:
    """Forget that a ledger that was never begun belongs to an account."""
    account_beside(path).unlink(missing_ok=True)


def _begun(path: Path) -> bool:
    return path.exists() or Head.remembered(path) is not None


def _bound_in(folder: Path) -> list[Path]:
    """The ledgers of a folder that belong to an account, whether they were begun or not."""
    ledgers = []
    for beside in sorted(folder.glob(f"?*{_BOUND}")):
        named = json.loads(beside.read_text(encoding="utf-8")).get("ledger")
        ledgers.append(beside.with_name(named or beside.name.removesuffix(_BOUND) + _LEDGER))
    return ledgers


def require_same(named: DatasetAccount | None, bound: DatasetAccount | None, path: Path) -> None:
    """Raise ValueError unless the named account is the one that a path is bound to, if it is bound."""
    if bound is None or (named is not None and named.path.resolve() == bound.path.resolve()):
        return
    naming = "none was named" if named is None else f"{named.path} was named"
    raise ValueError(
        f"{path} counts in the account of data set {bound.data!r}, {bound.path}, and {naming}: give account="
        f"{bound.data!r} (or the Path of its file), or another place for releases that do not count there"
    )


@contextmanager
def counting(ledger: Ledger, account: DatasetAccount | None, more: Counts, about: About) -> Iterator[None]:
    """Count what a ledger is charged for inside in the account of its data set: `with counting(...): release(...)`.

    Guarantee: the most that it may cost is set aside before it begins; every charge is on the ledger's disk, and its
    row in the account, before its noise is drawn; at the end, however it comes, the ledger counts with what it was
    charged. Where the process is killed, what was set aside stays (`fedsw account settle`). Of several
    copies of the ledger only one can go on.

    LimitReached if it does not fit below the limit: nothing is then charged; LedgerReplaced if the ledger is a copy, or
    a backup, of one that went on elsewhere; ValueError if it counts in another account, or in one where none is named.
    """
    binding = Binding.of(ledger.path)
    require_same(account, None if binding is None else binding.account, ledger.path)
    if account is None:
        yield
        return
    run = ledger.identity
    account.newest.require(run, ledger, account.state().runs.get(run))
    Binding(account, run).write(ledger.path)
    try:
        account.reserve(run, Cost.of_ledger(ledger).and_more(more), about)
    except BaseException:
        if binding is None:
            _unbind(ledger.path)
        raise
    before, ledger.limiter = ledger.limiter, Reservation(account, run)
    try:
        yield
    finally:
        ledger.limiter = before
        account.settle(run, Cost.of_ledger(ledger), ledger)
