"""The ledger of a run: every charge is on disk before anything that it pays for is released.

The columns of a row are those of `as_row`; `journal` chains and appends it.
"""

from __future__ import annotations

import json
import math
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakValueDictionary

from fedsw._tools import files
from fedsw._tools.later import torch
from fedsw._tools.text import installed_version, upward
from fedsw.privacy.accountants import GAUSSIAN, LAPLACE, accountant_named, is_proven, own_noise, require_noise
from fedsw.privacy.accounting.composition import Composition, check_delta
from fedsw.privacy.accounting.epsilons import epsilon_by
from fedsw.privacy.accounting.journal import Head, Journal, LedgerDamaged, LedgerReplaced
from fedsw.privacy.accounting.profiles import Step, stated_step
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.accounting.slicing import Slicing
from fedsw.privacy.accounting.stated import Pure
from fedsw.privacy.relations import RELATIONS, REPLACE_ONE, Sampling, require_sampling


@dataclass(frozen=True)
class Charge:
    """Charge of one release to one group: the sampling rate of its records, and how far one of them moves the sum.

    The rate p is in [0, 1], 0 if no record of the group was sampled. The sensitivity is the full Delta >= 0 of the
    released sum, in the units of sigma; for slices the diameter of the features, before slicing. See `Step`.
    """

    group: str
    sampling_rate: float
    sensitivity: float
    sampling: Sampling = "without-replacement"
    slicing: Slicing | None = None


@dataclass(frozen=True)
class Entry:
    """One group's part of one release, as it stands in the ledger.

    It is ``lost`` if ``Ledger.charge_lost`` charged it, ``counted`` if the account of the data set agreed to it.
    """

    sequence: int
    round: int
    attempt: int
    group: str
    sampling_rate: float
    sensitivity: float
    sampling: Sampling
    sigma: float
    slicing: Slicing | None = None
    lost: bool = False
    counted: bool = False


ADDED: dict[str, Any] = {"lost": False, "counted": False}
"""Columns that rows have had since a later version than the first, and what a row without one says: it opens."""

_FIRST = frozenset({"round", "attempt", "sigma", "charges"})


def whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add the columns that a row of an older version lacks; LedgerDamaged for unknown ones, which may be costs."""
    if unknown := sorted(row.keys() - _FIRST - ADDED.keys()):
        raise LedgerDamaged(
            f"a row of the ledger has the column {unknown[0]!r}, which fedsw {installed_version()} does not know; open "
            "it with the version that wrote it, or a later one"
        )
    return {**ADDED, **row}


def as_steps(charges: Sequence[Charge], sigma: float, groups: Sequence[str]) -> dict[str, Step]:
    """The step every group takes; ValueError unless every group is charged once, with numbers in range."""
    if not 0.0 <= sigma < math.inf:
        raise ValueError(f"sigma is {sigma}; it must be >= 0 and finite.")
    named = [charge.group for charge in charges]
    if sorted(named) != sorted(groups):
        raise ValueError(
            f"charges are for groups {named}; the ledger accounts for {list(groups)}. Charge each once, with "
            "sampling_rate 0 where no record was sampled."
        )
    for charge in charges:
        if not 0.0 <= charge.sensitivity < math.inf:
            raise ValueError(
                f"sensitivity of group {charge.group} is {charge.sensitivity}; it must be >= 0 and finite."
            )
    return {
        charge.group: Step(
            float(charge.sampling_rate), mu_of(charge.sensitivity, sigma), charge.sampling, charge.slicing
        )
        for charge in charges
    }


def as_row(round_: int, attempt: int, charges: Sequence[Charge], sigma: float) -> dict[str, Any]:
    """Row of one release for a ledger's file; ValueError if the round or the attempt is negative."""
    if operator.index(round_) < 0 or operator.index(attempt) < 0:
        raise ValueError(f"round is {round_} and attempt {attempt}; both must be >= 0.")
    return {
        "round": operator.index(round_),
        "attempt": operator.index(attempt),
        "sigma": float(sigma),
        "charges": [
            asdict(charge) | {"sampling_rate": float(charge.sampling_rate), "sensitivity": float(charge.sensitivity)}
            for charge in charges
        ],
    }


def entries_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    """The charges of rows 1, 2, ... one by one."""
    for sequence, row in enumerate(rows, start=1):
        release = {name: whole(row)[name] for name in ("round", "attempt", "sigma", *ADDED)}
        for charge in charges_of(row):
            yield Entry(sequence=sequence, **release, **vars(charge))


def charges_of(row: Mapping[str, Any]) -> list[Charge]:
    """The charges of one row; rows from before slices could be charged have no ``slicing``."""
    return [
        Charge(**{**charge, "slicing": Slicing(**charge["slicing"]) if charge.get("slicing") else None})
        for charge in whole(row)["charges"]
    ]


def mu_of(sensitivity: float, sigma: float) -> float:
    """Sensitivity / sigma: 0 if nothing moves, infinite if something does and there is no noise."""
    if sensitivity == 0.0:
        return 0.0
    return float(sensitivity) / float(sigma) if sigma > 0.0 else math.inf


_Steps = tuple[tuple[str, Step], ...]


class _History:
    """A sequence of releases and its epsilon by delta, computed once for all ledgers of this process."""

    __slots__ = ("__weakref__", "_next", "epsilons")

    def __init__(self) -> None:
        self.epsilons: dict[float, float] = {}
        self._next: WeakValueDictionary[_Steps, _History] = WeakValueDictionary()

    def after(self, steps: _Steps) -> _History:
        """The history that follows this one after one more release."""
        following = self._next.get(steps)
        if following is None:
            following = self._next[steps] = _History()
        return following


_beginnings: WeakValueDictionary[tuple[tuple[str, ...], str, str], _History] = WeakValueDictionary()


def _pure(step: Step) -> Step:
    """A release with Laplace noise as a mechanism of pure epsilon, for a replacement."""
    replaced = step.mu if step.relation == REPLACE_ONE else 2 * step.mu
    return stated_step(Pure(replaced)) if replaced else step


def _exact(step: Step) -> Step:
    """A release with a noise without a proven bound, counted as one without noise."""
    return replace(step, mu=math.inf) if step.mu else step


_COUNTED_AS: Mapping[str, Callable[[Step], Step]] = {GAUSSIAN: lambda step: step, LAPLACE: _pure}


def counted_as(mechanism: str) -> Callable[[Step], Step]:
    """Conversion of a mechanism's steps before they are composed with others; a user's own noise counts as none.

    An account of a data set relies on proofs only, so that a release with such a noise costs it an infinite epsilon.
    """
    return _COUNTED_AS.get(mechanism, _exact)


class Account:
    """The attempts that were charged, and the cost of each group's steps by the ledger's accountant."""

    def __init__(
        self, groups: Iterable[str], accountant: str, mechanism: str, device: torch.device | str = "cpu"
    ) -> None:
        self.spent: set[tuple[int, int]] = set()
        self._accountant, self._device = accountant, device
        self._numeric = accountant_named(accountant).numeric
        self._counted_as = counted_as(mechanism)
        self._counts = {group: Counter[Step]() for group in groups}
        self._compositions = {group: Composition(device=device) for group in self._counts}
        self._worst = next(iter(self._counts))  # at the last reading
        self._waiting: list[Mapping[str, Step]] = []  # releases that the compositions have not taken yet
        beginning = (tuple(self._counts), accountant, str(device))
        self._history = _beginnings.setdefault(beginning, _History())

    def add(self, round_: int, attempt: int, steps: Mapping[str, Step]) -> None:
        """Add one release: the step that every group takes in it."""
        self.spent.add((round_, attempt))
        for group, step in steps.items():
            self._counts[group][step] += 1
        if self._numeric:
            self._waiting.append(steps)
        self._history = self._history.after(tuple(steps.items()))

    def steps_by_group(self) -> dict[str, dict[Step, int]]:
        """Number of times that each group took each step, converted by `counted_as` for the ledger's noise."""
        steps = {group: Counter[Step]() for group in self._counts}
        for group, counts in self._counts.items():
            for step, times in counts.items():
                steps[group][self._counted_as(step)] += times
        return {group: dict(counts) for group, counts in steps.items()}

    def by_group(self, delta: float) -> dict[str, float]:
        """Epsilon of each group at delta."""
        if self._numeric:
            return {group: composition.epsilon(delta) for group, composition in self._composed().items()}
        return {
            group: epsilon_by(self._accountant, counts, delta, device=self._device)
            for group, counts in self._counts.items()
        }

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta."""
        if delta in self._history.epsilons:
            return self._history.epsilons[delta]
        if not self._numeric:
            most = max(self.by_group(delta).values())
        else:
            # The worst group of the last reading is mostly the worst again: that the others are within its epsilon is
            # quicker to see than what theirs are.
            compositions = self._composed()
            most = compositions[self._worst].epsilon(delta)
            for group, composition in compositions.items():
                if group == self._worst or composition.within(most, delta):
                    continue
                if (epsilon := composition.epsilon(delta)) > most:
                    most, self._worst = epsilon, group
        self._history.epsilons[delta] = most
        return most

    def _composed(self) -> Mapping[str, Composition]:
        """The compositions of the groups, with all releases in them."""
        for steps in self._waiting:
            for group, step in steps.items():
                self._compositions[group].add(step)
        self._waiting.clear()
        return self._compositions


class SelectedAccount(Account):
    """The account of a run that is the best of several: its epsilon and only delta are the selection's."""

    def __init__(self, groups: Iterable[str], accountant: str, mechanism: str, selection: Selection) -> None:
        super().__init__(groups, accountant, mechanism)
        self._selection = selection

    def by_group(self, delta: float) -> dict[str, float]:
        """The selection's epsilon for each group that took a step; inf where it took more than was planned."""
        return {group: self._selection.epsilon_of(counts) for group, counts in self._counts.items()}

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta."""
        return max(self.by_group(delta).values())


_FORMAT = 1
_SUFFIX = ".sqlite"


def account_beside(path: Path) -> Path:
    """The file beside a ledger that says which account it belongs to, whether it is there or not."""
    return path.with_name(f"{path.name.removesuffix(_SUFFIX)}.account.json")


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
        # The files beside it say the account: its own, or that of its run's folder.
        beside, data = [account_beside(self.path)], None
        if self.path.name == files.LEDGER_OF_A_RUN:
            beside.append(self.path.with_name(files.ACCOUNT_OF_A_RUN))
        if (account := next((file for file in beside if file.exists()), None)) is not None:
            data = str(json.loads(account.read_text(encoding="utf-8"))["data"])
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
