"""An account's state, as its rows leave it: its limit, and what every run counts with."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from fedsw._tools import files
from fedsw.privacy.accounting.journal import Head, LedgerBusy, LedgerDamaged, LedgerReplaced
from fedsw.privacy.accounting.ledger import Ledger
from fedsw.privacy.accounting.lifetime.chosen import AdmittedCost, Limit, Use, lacking, next_weight
from fedsw.privacy.accounting.lifetime.composing import Cost, Counts, from_row, total_epsilon


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
