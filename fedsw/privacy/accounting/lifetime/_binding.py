"""Bind a ledger to the account of its data set, by a file beside it, and count there what the ledger is charged.

Source: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedsw._tools import files
from fedsw.privacy.accounting.journal import Head
from fedsw.privacy.accounting.ledger import Ledger, account_beside
from fedsw.privacy.accounting.lifetime.composing import NO_NOISE, Cost, Counts
from fedsw.privacy.accounting.lifetime.dataset_account import About, DatasetAccount, Reservation

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
