"""The ledger of a run: every charge is on disk before anything that it pays for is released.

The columns of a row are those of `charges.as_row`; `journal` chains and appends it.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from fedsw._tools import files
from fedsw._tools.later import torch
from fedsw._tools.text import upward
from fedsw.privacy.accountants import accountant_named, is_proven, own_noise, require_noise
from fedsw.privacy.accounting.charges import (
    Account,
    Charge,
    Entry,
    SelectedAccount,
    as_row,
    as_steps,
    charges_of,
    entries_of,
    whole,
)
from fedsw.privacy.accounting.composition import check_delta
from fedsw.privacy.accounting.journal import Head, Journal, LedgerDamaged, LedgerReplaced
from fedsw.privacy.accounting.profiles import Step
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.relations import RELATIONS, REPLACE_ONE, require_sampling

_FORMAT = 1
_SUFFIX = ".sqlite"


def account_beside(path: Path) -> Path:
    """The file beside a ledger that says which account it belongs to, whether it is there or not."""
    return path.with_name(f"{path.name.removesuffix(_SUFFIX)}.account.json")


def _belonging(path: Path) -> str | None:
    """The data set that a ledger's account is of, by the files beside it: its own, or that of its run's folder."""
    in_run = path.name == files.LEDGER_OF_A_RUN
    beside = [account_beside(path), *([path.with_name(files.ACCOUNT_OF_A_RUN)] if in_run else [])]
    for file in beside:
        if file.exists():
            return str(json.loads(file.read_text(encoding="utf-8"))["data"])
    return None


class BudgetExhausted(RuntimeError):
    """The next release would cost more than the ledger's epsilon; nothing was written."""


class _Plan(Protocol):
    @property
    def strata(self) -> tuple[str, ...]: ...

    @property
    def delta(self) -> float: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def accountant(self) -> str: ...

    @property
    def mechanism(self) -> str: ...

    @property
    def relation(self) -> str: ...

    @property
    def nominal(self) -> bool: ...


class Limiter(Protocol):
    """A second limit on charges, beside the ledger's own budget: the account of the data set."""

    def admit(self, taken: Mapping[str, Mapping[Step, int]]) -> None:
        """Agree to what each group has taken, the next release included, or raise before anything is written."""

    def charged(self, ledger: Ledger) -> None:
        """Take note of the ledger's last row, which is on disk, or raise before anything is released for it."""


class Uncounted(ValueError):
    """A charge would have bypassed the account of the data set that the ledger belongs to; nothing was written."""


class AlreadySpent(ValueError):
    """This attempt at this round is in the ledger; a replayed batch is not a new step."""


class Ledger:
    """The account of one run: its groups of records, one (epsilon, delta), one writer.

    Guarantee: when :meth:`spend` returns, its charge is on disk (SQLite, WAL, fsynced); a process killed at any
    instant leaves every charge for which ``spend`` returned. The total never exceeds the ledger's epsilon, but for
    rounding (`Accountant.may_differ`). Epsilon is that of the worst group, for the neighbouring relation of the
    charges. The file holds no data: rates, sensitivities, noise, public group names.

    Attributes:
        groups: public names of the groups; every spend charges each of them.
        delta, budget: of the guarantee; an epsilon of inf for a run without one.
        accountant: "pld", or the comparison accountant that decides instead.
        mechanism: the noise that its charges are accounted for as, one that the accountant takes.
        relation: the neighbours that epsilon is for.
        nominal: sampling and noise are reproducible: epsilon is what a secret seed would give.
        run: its name, which stays when it is resumed; "" where the place says it.
        selection: what the run costs if it is the best of several: its epsilon is then the selection's from the first
            release on, and more releases than were planned are refused; None for any other run.
        device: where epsilon is computed (:class:`fedsw.privacy.accounting.Composition`); no part of the file.
        limiter: who else must agree before a charge is written; no part of the file.

    Source: docs/guarantees/ledger.md.
    """

    def __init__(self, journal: Journal, device: torch.device | str = "cpu") -> None:
        header = journal.header
        self.device = device
        self.limiter: Limiter | None = None
        self.groups: tuple[str, ...] = tuple(header["groups"])
        self.delta = float(header["delta"])
        self.budget = float(header["epsilon"])
        self.accountant = str(header["accountant"])
        self.mechanism = str(header["mechanism"]) if "mechanism" in header else own_noise(self.accountant)
        self.relation = RELATIONS.get(str(header.get("relation", REPLACE_ONE))).name
        self.nominal = bool(header["nominal"])
        self.run = str(header.get("run", ""))
        selection = header.get("selection")
        self.selection = None if selection is None else Selection.of(selection)
        self._journal = journal
        self._mutex = threading.RLock()
        self._account: Account | None = self._replayed()

    @classmethod
    def create(
        cls,
        path: Path | str,
        plan: _Plan | None = None,
        *,
        groups: Sequence[str] = (),
        delta: float = math.nan,
        epsilon: float = math.nan,
        accountant: str = "pld",
        mechanism: str | None = None,
        relation: str = REPLACE_ONE,
        nominal: bool = False,
        run: str = "",
        selection: Selection | None = None,
        device: torch.device | str = "cpu",
    ) -> Ledger:
        """Make a new account at ``path`` and hold it for writing; ``path`` + ".lock" is made beside it.

        Groups, delta, epsilon, accountant, mechanism, relation and ``nominal`` are the plan's if there is one; the
        mechanism is otherwise the accountant's own. ValueError for no, an empty or a repeated group, numbers out of
        range, a mechanism that the accountant does not take, an unknown relation, or an (epsilon, delta) that is not
        the selection's; FileExistsError; LedgerBusy if another process is making it.
        """
        if plan is not None:
            groups, delta, epsilon = plan.strata, plan.delta, plan.epsilon
            accountant, nominal = plan.accountant, plan.nominal
            mechanism, relation = plan.mechanism, plan.relation
        check_delta(delta)
        if not epsilon > 0.0:
            raise ValueError(f"epsilon is {epsilon}; it must be > 0 (inf for a run without guarantee).")
        if not groups or len(set(groups)) != len(groups) or not all(groups):
            raise ValueError(f"groups are {list(groups)}; name at least one, each once.")
        mechanism = own_noise(accountant) if mechanism is None else mechanism
        require_noise(accountant, mechanism)
        header = {
            "format": _FORMAT,
            "ledger": uuid4().hex,
            "groups": list(groups),
            "delta": float(delta),
            "epsilon": "inf" if math.isinf(epsilon) else float(epsilon),  # JSON has no infinity
            "accountant": accountant,
            "mechanism": mechanism,
            "relation": RELATIONS.get(relation).name,
            "nominal": bool(nominal),
            "run": run,
        }
        if selection is not None:
            if (epsilon, delta) != (selection.epsilon, selection.delta):
                raise ValueError(
                    f"the ledger of a selected run has the selection's epsilon {selection.epsilon} and delta "
                    f"{selection.delta}, not {epsilon} and {delta}."
                )
            header["selection"] = selection.as_dict()
        return cls(Journal.create(Path(path), header), device)

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, device: torch.device | str = "cpu") -> Ledger:
        """Open an account: for writing, one process at a time; for reading only, any number at any time.

        FileNotFoundError if there is none; LedgerBusy if another process holds it for writing; LedgerDamaged if it is
        no ledger, of another format, or its rows do not follow from one another.
        """
        journal = Journal.open(Path(path), read_only=read_only)
        try:
            if journal.header.get("format") != _FORMAT:
                raise LedgerDamaged(f"{path} has format {journal.header.get('format')}; this version reads {_FORMAT}.")
            return cls(journal, device)
        except BaseException:
            journal.close()
            raise

    def spend(self, round: int, attempt: int, charges: Sequence[Charge], sigma: float) -> float:
        """Charge one release before it is made; returns the epsilon spent so far, this release included.

        ``charges`` are one for every group of the ledger; ``sigma`` is the noise's standard deviation in each
        coordinate, in the units of the sensitivities; 0 costs an infinite epsilon. Every attempt, a number >= 0 as its
        round is, has its own batch, directions and noise.

        Raises:
            BudgetExhausted: if the total would exceed the ledger's epsilon.
            AlreadySpent: if this (round, attempt) was charged before.
            Uncounted: if the ledger belongs to an account that is not asked (`limiter`).
            ValueError: if a group is missing, repeated or unknown, or a number is out of range.
            LedgerBusy: if this process may not write. In all these cases nothing is written.
            LedgerReplaced: if the run went on in another copy of its folder. The charge stays, and nothing may be
                released for it.
        """
        with self._mutex:
            total = self._charge(round, attempt, charges, sigma)
            self._announce()
        return total

    def charge_lost(self, round: int, attempt: int, charges: Sequence[Charge], sigma: float) -> None:
        """Charge what may have been released before, by a row that is lost; it counts although it exceeds the budget.

        Nothing may be released for it. The row is marked. Raises as `spend`, except BudgetExhausted.
        """
        self._charge(round, attempt, charges, sigma, lost=True)

    def _announce(self) -> None:
        """Report the ledger's last row to its limiter, before anything is released for it."""
        if self.limiter is not None:
            self.limiter.charged(self)

    def _charge(
        self,
        round: int,
        attempt: int,
        charges: Sequence[Charge],
        sigma: float,
        *,
        lost: bool = False,
        synced: bool = True,
    ) -> float:
        """Write the row of a release; unless it is lost, within the budget, and returns the epsilon spent then."""
        with self._mutex:
            self._journal.require_writer()
            if not lost:
                self._require_counted()
            steps = as_steps(charges, sigma, self.groups)
            require_sampling(self.relation, [charge.sampling for charge in charges])
            row = as_row(round, attempt, charges, sigma) | ({"lost": True} if lost else {})
            if self.limiter is not None:
                row["counted"] = self._counted = True
            with self._current() as account:
                self._require_fresh(account, round, attempt)
                account.add(round, attempt, steps)
                total = math.nan if lost else self._affordable(account, round, sigma)
                self._journal.append(f"{row['round']}/{row['attempt']}", row, synced=synced)
            return total

    def attempts(self) -> frozenset[tuple[int, int]]:
        """Every (round, attempt) of which a release was charged."""
        with self._mutex, self._current() as account:
            return frozenset(account.spent)

    def _require_counted(self) -> None:
        """Refuse a charge without a limiter where a file beside the ledger, or its rows, say that it has an account."""
        if self.limiter is not None:
            return
        data = _belonging(self.path)
        if data is not None or self._counted:
            named = "a data set" if data is None else f"data set {data!r}"
            name = "NAME" if data is None else data
            raise Uncounted(
                f"{self.path} counts in the account of {named}, and is charged here without it; nothing was released. "
                f"Give account={name!r} (or the Path of its file) to what releases, or count by hand: "
                f"`with fedsw.privacy.accounting.lifetime.counting(ledger, account_named({name!r}), more, about): ...`"
            )

    def require_fresh(self, round: int, attempt: int) -> None:
        """Raise AlreadySpent if this (round, attempt) was charged before."""
        with self._mutex, self._current() as account:
            self._require_fresh(account, round, attempt)

    def _require_fresh(self, account: Account, round: int, attempt: int) -> None:
        if (round, attempt) in account.spent:
            raise AlreadySpent(f"round {round}, attempt {attempt} is charged in {self.path}; make a fresh attempt.")

    def _affordable(self, account: Account, round: int, sigma: float) -> float:
        """Epsilon of an account with its last release; an error beyond the budget, or where the limiter refuses."""
        total = account.epsilon(self.delta)
        if total > self.budget * (1 + accountant_named(self.accountant).may_differ(self.delta)):
            used_up = " (which round-off uses up)" if math.isinf(total) and sigma > 0 else ""
            raise BudgetExhausted(
                f"round {round} would bring epsilon to {upward(total, 5)} at delta {upward(self.delta, 6)}{used_up}; "
                f"the budget is {upward(self.budget, 6)}. Stop here, or plan a new run with more noise or fewer rounds."
            )
        if self.limiter is not None:
            self.limiter.admit(account.steps_by_group())
        return total

    def epsilon(self) -> float:
        """Epsilon spent so far at the ledger's delta by the worst group; 0 before the first release."""
        with self._mutex, self._current() as account:
            return account.epsilon(self.delta)

    def epsilon_by_group(self) -> dict[str, float]:
        """Epsilon spent so far by each group."""
        with self._mutex, self._current() as account:
            return account.by_group(self.delta)

    def steps_by_group(self) -> dict[str, dict[Step, int]]:
        """Number of times that each group was charged for each step."""
        with self._mutex, self._current() as account:
            return account.steps_by_group()

    @property
    def path(self) -> Path:
        """Path of its file."""
        return self._journal.path

    @property
    def identity(self) -> str:
        """A random name that the ledger was made with; its copies have it, too."""
        return str(self._journal.header["ledger"])

    @property
    def is_open(self) -> bool:
        """False once it is closed."""
        return self._journal.is_open

    @property
    def guarantee(self) -> bool:
        """True if the accountant's epsilon is proven to be an upper bound for the ledger's noise."""
        return is_proven(self.accountant, self.mechanism)

    def entries(self) -> list[Entry]:
        """Every charge of every release, oldest first, as on disk."""
        with self._mutex:
            return list(entries_of(self._journal.rows()))

    def released_rounds(self) -> int:
        """Number of different rounds of which a release was charged."""
        with self._mutex, self._current() as account:
            return len({round_ for round_, _ in account.spent})

    def replay(self) -> float:
        """Recompute the epsilon spent from the rows on disk; LedgerDamaged if one does not follow from another."""
        with self._mutex:
            return self._replayed().epsilon(self.delta)

    def head(self) -> Head:
        """Number of releases and the digest that commits to all of them: an older copy has another."""
        with self._mutex, self._current():
            return self._journal.head

    def passes(self, head: Head) -> bool:
        """Say whether a row is in this ledger: False for an older copy, and for one that went on otherwise."""
        with self._mutex:
            return self._journal.passes(head)

    def require(self, head: Head, by: str) -> None:
        """Refuse a file that was put back from an earlier copy, or that belongs to another run: LedgerReplaced.

        ``head`` is the last row that this account had at some time, as ``by`` remembers it.
        """
        with self._mutex:
            if not self._journal.passes(head):
                now = self._journal.head
                raise LedgerReplaced(
                    f"{self.path} ends at release {now.sequence} (digest {now.digest[:12]}), but {by} remembers "
                    f"release {head.sequence} (digest {head.digest[:12]}): an older copy or another run's ledger is in "
                    "its place, and would forget what was spent. Put the newest ledger back; if it is lost, so is the "
                    "account of this run, and nothing more may be released from its records on its budget."
                )

    def close(self) -> None:
        """Let another process write."""
        with self._mutex:
            self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _replayed(self) -> Account:
        account = (
            Account(self.groups, self.accountant, self.mechanism, self.device)
            if self.selection is None
            else SelectedAccount(self.groups, self.accountant, self.mechanism, self.selection)
        )
        self._counted = False
        for row in self._journal.rows():
            self._counted = self._counted or bool(whole(row)["counted"])
            account.add(row["round"], row["attempt"], as_steps(charges_of(row), row["sigma"], self.groups))
        return account

    @contextmanager
    def _current(self) -> Iterator[Account]:
        """The account in memory; whatever interrupts its use, the next use reads it from disk again."""
        account, self._account = self._account, None
        if account is None or self._journal.read_only:
            self._journal.refresh()
            account = self._replayed()
        yield account
        self._account = account


@dataclass(frozen=True)
class Spending:
    """One charge of one ledger; see :meth:`Ledger.spend`."""

    ledger: Ledger
    round: int
    attempt: int
    charges: Sequence[Charge]
    sigma: float


def spend_together(spendings: Sequence[Spending]) -> list[float | Exception]:
    """:meth:`Ledger.spend` for many ledgers with one wait for the disk.

    Guarantee: that of `spend`, for every ledger of which an epsilon is returned: its charge is on disk. One that
    refuses, or that the disk does not take, keeps no other ledger from spending. If the disk failed, the ledger is
    closed. The charge may be in the file all the same: it is then counted, and nothing is released for it.

    Returns, for each, in their order, epsilon or what `spend` raises (OSError if the disk failed). ValueError if a
    ledger is named twice; nothing is then written.
    """
    if len({id(spending.ledger) for spending in spendings}) < len(spendings):
        raise ValueError("a ledger is named twice; one release is charged to each at a time")
    outcomes: list[float | Exception] = []
    for spending in spendings:
        try:
            outcomes.append(
                spending.ledger._charge(
                    spending.round, spending.attempt, spending.charges, spending.sigma, synced=False
                )
            )
        except Exception as fault:
            outcomes.append(fault)
    written = [index for index, spent in enumerate(outcomes) if not isinstance(spent, Exception)]
    synced = files.sync_all([spendings[index].ledger._journal.log for index in written])
    for index, lost in zip(written, synced, strict=True):
        if lost is not None:
            spendings[index].ledger.close()  # its file is read again before anything more is charged to it
            outcomes[index] = lost
    limited = [p for p in written if not isinstance(outcomes[p], Exception) and spendings[p].ledger.limiter is not None]
    with ThreadPoolExecutor(min(files.AT_ONCE, len(limited)) or 1) as waiting:
        refusals = waiting.map(_refusal, [spendings[index].ledger for index in limited])
        for index, refusal in zip(limited, refusals, strict=True):
            outcomes[index] = refusal or outcomes[index]
    return outcomes


def _refusal(ledger: Ledger) -> Exception | None:
    """Error of a limiter that forbids a release for the ledger's last row; None if it agrees."""
    try:
        ledger._announce()
    except Exception as fault:
        return fault
    return None
