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
from fedsw.privacy.accounting._ledger import Ledger, account_beside
from fedsw.privacy.accounting.journal import memory_of, remembered
from fedsw.privacy.accounting.lifetime._dataset_account import About, DatasetAccount, Reservation
from fedsw.privacy.accounting.lifetime.composing import NO_NOISE, Counts, cost_of_ledger

_BOUND = ".account.json"
_LEDGER = ".sqlite"


@dataclass(frozen=True)
class Bound:
    """The account that a ledger belongs to, and the run that it is there.

    A run without noise has no ledger: the file ``answers`` exists from its first release on.
    """

    account: DatasetAccount
    run: str
    answers: Path | None = None


def bind(path: Path, account: DatasetAccount, run: str, answers: Path | None = None) -> None:
    """Write down beside a ledger, which need not exist, that it belongs to an account."""
    files.new_folder(path.parent)
    content = {"data": account.data, "folder": str(account.folder.resolve()), "run": run, "ledger": path.name}
    if account.within is not None:
        content["within"] = account.within.data
    if answers is not None:
        content["answers"] = str(answers.resolve())
    files.replace(account_beside(path), json.dumps(content).encode())


def bind_again(path: Path, account: DatasetAccount, run: str, answers: Path | None = None) -> None:
    """Write down that a ledger belongs to an account as this run, and to no other: one ledger has one run.

    What another run set aside, whose ledger never began here, is given back.

    Raises:
        ValueError: if the ledger has begun, as another run or in another account. LedgerReplaced: if it is gone.
    """
    before = bound_to(path)
    if before is not None and (before.run, before.account.path) != (run, account.path):
        if before.answers is None and _begun(path):
            raise ValueError(
                f"{path} has begun as the ledger of run {before.run[:12]!r} in the account of data set "
                f"{before.account.data!r}, and this is run {run[:12]!r} in that of {account.data!r}; give every run a "
                "folder of its own"
            )
        settle(path)
    bind(path, account, run, answers)


def unbind(path: Path) -> None:
    """Forget that a ledger that was never begun belongs to an account."""
    account_beside(path).unlink(missing_ok=True)


def _begun(path: Path) -> bool:
    return path.exists() or remembered(path) is not None


def bound_to(path: Path) -> Bound | None:
    """The account that a ledger belongs to; None if it belongs to none."""
    try:
        content = json.loads(account_beside(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    folder, within = Path(content["folder"]), content.get("within")
    around = None if within is None else DatasetAccount(folder, within)
    answers = content.get("answers")
    return Bound(
        DatasetAccount(folder, content["data"], around), content["run"], None if answers is None else Path(answers)
    )


def bound_in(folder: Path) -> list[Path]:
    """The ledgers of a folder that belong to an account, whether they were begun or not."""
    ledgers = []
    for beside in sorted(folder.glob(f"?*{_BOUND}")):
        named = json.loads(beside.read_text(encoding="utf-8")).get("ledger")
        ledgers.append(beside.with_name(named or beside.name.removesuffix(_BOUND) + _LEDGER))
    return ledgers


def settle(path: Path) -> bool:
    """Make a ledger's run count with what its newest ledger says it spent; False if it belongs to no account."""
    bound = bound_to(path)
    if bound is None:
        return False
    if bound.answers is not None or not _begun(path):
        if bound.run in bound.account.state().runs:
            released = bound.answers is not None and bound.answers.exists()
            bound.account.settle(bound.run, NO_NOISE if released else {}, None)
        elif bound.account.within is not None:  # it was refused, or its process ended, before it set anything aside
            bound.account.within.settle_among(bound.run)
        return True
    head = remembered(path)
    with Ledger.open(path) as ledger:
        if head is not None:
            ledger.require(head, memory_of(path).name)
        bound.account.settle(bound.run, cost_of_ledger(ledger), ledger)
    return True


def require_same(named: DatasetAccount | None, bound: DatasetAccount | None, path: Path) -> None:
    """Raise ValueError if an account other than the one that a place counts in (``kept``) is named, or none."""
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
    charged. Where the process is killed, what was set aside stays (`fedsw account settle`). Of copies of the ledger one
    goes on.

    LimitReached if it does not fit below the limit: nothing is then charged; LedgerReplaced if the ledger is a copy, or
    a backup, of one that went on elsewhere; ValueError if it counts in another account, or in one where none is named.
    """
    bound = bound_to(ledger.path)
    require_same(account, None if bound is None else bound.account, ledger.path)
    if account is None:
        yield
        return
    run = ledger.identity
    account.newest.require(run, ledger, account.state().runs.get(run))
    bind(ledger.path, account, run)
    try:
        account.reserve(run, cost_of_ledger(ledger).and_more(more), about)
    except BaseException:
        if bound is None:
            unbind(ledger.path)
        raise
    before, ledger.limiter = ledger.limiter, Reservation(account, run)
    try:
        yield
    finally:
        ledger.limiter = before
        account.settle(run, cost_of_ledger(ledger), ledger)
