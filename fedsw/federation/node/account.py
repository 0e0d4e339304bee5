"""A client's own ledger: where it is, what it accounts for, and who holds it open."""

from __future__ import annotations

import math
import os
import resource
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.accounting import Charge, Ledger, LedgerReplaced
from fedsw.accounting.journal import memory_of, remember, remembered
from fedsw.federation.budgets.split import GROUP
from fedsw.federation.node.lifetime import limited
from fedsw.privacy.release import Bill, Paid, Part, pay_together
from fedsw.text import upward

STATE_VARIABLE = "FEDSW_STATE"
REMEDY = f"start the node with --node-config 'state-dir=\"/a/writable/folder\"' or set {STATE_VARIABLE}"
_SAME_EPSILON = 1e-6  # relative: where it follows from a noise multiplier, the last digits are those of a machine

_HANDLES = 4
"""Open files of an open ledger: the database, its log, the log's index and the lock."""
_OTHER_HANDLES = 224
_MOST_LEDGERS = 2000
_holding = threading.Lock()


class _Kept:
    """Ledgers of a folder that stay open between messages, least recently used first."""

    def __init__(self) -> None:
        self.ledgers: OrderedDict[Path, Ledger] = OrderedDict()
        self._used = Counter[Path]()
        self._places = 0

    def take(self, path: Path) -> Ledger | None:
        """A ledger that is open, for use until it is given back."""
        with _holding:
            found = self.ledgers.get(path)
            if found is None or not found.is_open:  # one that the disk failed is closed
                return None
            self.ledgers.move_to_end(path)
            self._used[path] += 1
            return found

    def give_back(self, path: Path) -> None:
        """End the use of a ledger that was taken."""
        with _holding:
            self._used[path] -= 1

    def make_room(self) -> None:
        """Close the ledgers that were not used for longest, none that is in use, until one more may be open."""
        with _holding:
            self._places += 1
            spare = len(self.ledgers) + self._places - most_open()
            idle = [path for path in self.ledgers if not self._used[path]] if spare > 0 else []
            closed = [self.ledgers.pop(path) for path in idle[:spare]]
        for ledger in closed:
            ledger.close()

    def fill(self, path: Path, ledger: Ledger | None) -> None:
        """Keep a ledger open in the room that was made for it; with None, nothing was opened."""
        with _holding:
            self._places -= 1
            if ledger is not None:
                self.ledgers[path] = ledger


_held: dict[Path, _Kept] = {}


def most_open() -> int:
    """How many ledgers a process holds open: as many as its limit of open files allows, 200 where that is 1024."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = _MOST_LEDGERS if limit == resource.RLIM_INFINITY else (limit - _OTHER_HANDLES) // _HANDLES
    return max(8, min(allowed, _MOST_LEDGERS))


@dataclass(frozen=True)
class Promise:
    """What a client's ledger accounts for: one run, and the guarantee that its records have in it."""

    run: str
    epsilon: float
    delta: float
    accountant: str
    nominal: bool
    groups: tuple[str, ...] = (GROUP,)

    def __str__(self) -> str:
        kind = ", nominal" if self.nominal else ""
        return (
            f"run {self.run[:12]!r} at ({upward(self.epsilon, 6)}, {upward(self.delta, 6)}) by {self.accountant}{kind}"
        )


def state_folder(node_config: Mapping[str, Any]) -> Path | None:
    """Where a node keeps what must outlive it: its `state-dir`, else $FEDSW_STATE; None if neither is set."""
    named = node_config.get("state-dir") or os.environ.get(STATE_VARIABLE)
    return Path(str(named)) if named else None


def ledger_path(node_config: Mapping[str, Any], client: int) -> Path:
    """The file of a client's ledger: in its node's `state-dir`, else in $FEDSW_STATE.

    Raises:
        RuntimeError: if neither is set: a ledger in a new place after every start would forget what was spent.
    """
    named = state_folder(node_config)
    if named is None:
        raise RuntimeError(
            f"client {client} has no folder for its privacy ledger; {REMEDY}, and keep it until this run is over"
        )
    return named / f"client-{client}.sqlite"


def require_writable(path: Path) -> None:
    """Check that a ledger can be written, before anything is spent.

    Raises:
        RuntimeError: naming the folder and what to set, if it cannot be written to.
        LedgerDamaged: if there is a file that is no ledger, or an older copy of it.
    """
    try:
        files.new_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as fault:
        raise RuntimeError(
            f"client {path.stem.removeprefix('client-')} cannot keep its privacy ledger in {path.parent} "
            f"({fault.strerror}); {REMEDY}"
        ) from None
    if path.exists():
        with Ledger.open(path, read_only=True) as ledger:
            _require_remembered(path, ledger)
    else:
        _require_remembered(path, None)


def spent_epsilon(path: Path, promised: Callable[[float], Promise]) -> float:
    """Epsilon that a client's ledger has spent; 0 if there is no ledger yet. Read at the greeting.

    Args:
        promised: the run's promise at the delta that the ledger holds. A delta such as "0.1/n" is known with the first
            request, which states n.

    Raises:
        RuntimeError, LedgerDamaged: as `require_writable`.
        ValueError: if it accounts for something else.
    """
    require_writable(path)
    if not path.exists():
        return 0.0
    with Ledger.open(path, read_only=True) as ledger:
        _require_same(path, ledger, promised(ledger.delta))
        return ledger.epsilon()


@contextmanager
def ledgers_in(folder: Path) -> Iterator[None]:
    """Set the folder of ledgers for client processes that start inside this context."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = before


@contextmanager
def held_open(folder: Path) -> Iterator[None]:
    """Hold the ledgers of a folder open from one message to the next: opening one replays all of its rows.

    Only where this process answers every message of the folder's clients: nobody else can write meanwhile. At most
    `most_open` of them are held; beyond, those that were not used for longest are closed, and opened again when needed.
    """
    folder = folder.resolve()
    _held[folder] = _Kept()
    try:
        yield
    finally:
        with _holding:
            held = _held.pop(folder)
        for ledger in held.ledgers.values():
            ledger.close()


@contextmanager
def opened(path: Path, promise: Promise) -> Iterator[Ledger]:
    """A client's ledger, made if there is none: one writer at a time, by the file's lock.

    Raises:
        ValueError: if the file accounts for another run, or for another guarantee.
        LedgerBusy: if another process holds it.
    """
    kept = _held.get(path.parent)
    if kept is not None and (held := kept.take(path)) is not None:
        try:
            _require_same(path, held, promise)
            yield held
            remember(path, held.head())
        finally:
            kept.give_back(path)
        return
    if kept is not None:
        kept.make_room()
    ledger = None
    try:
        ledger = _open(path, promise)
        _require_same(path, ledger, promise)
        yield ledger
        remember(path, ledger.head())
    except BaseException:
        if ledger is not None:
            ledger.close()
        if kept is not None:
            kept.fill(path, None)
        raise
    if kept is not None and _held.get(path.parent) is kept:
        kept.fill(path, ledger)
    else:
        ledger.close()


def _open(path: Path, promise: Promise) -> Ledger:
    """A client's ledger, made if there is none; one that lacks the row remembered beside it is refused."""
    if not path.exists():
        _require_remembered(path, None)
        files.new_folder(path.parent)
        return limited(path, Ledger.create(path, **asdict(promise)))
    ledger = Ledger.open(path)
    try:
        _require_remembered(path, ledger)
        limited(path, ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


@dataclass(frozen=True)
class Due:
    """What a client has to pay for an attempt, by its ledger's file; see `fedsw.privacy.release.pay`."""

    place: Path
    promise: Promise
    round: int
    attempt: int
    charges: Sequence[Charge]
    sigma: float
    parts: Sequence[Part]


def paid_together(dues: Sequence[Due]) -> list[Paid | Exception]:
    """Charge an attempt to the ledgers of many clients, with one wait for the disk for up to `most_open` of them.

    Guarantee: that of `fedsw.privacy.release.pay_together`; who cannot pay keeps nobody else from paying.

    Args:
        dues: one for each client.

    Returns:
        For each, in their order, the payment, which is on disk, or why there is none: what `opened` and `pay` raise.
    """
    found: list[Paid | Exception] = []
    size = max(1, most_open() // 2)
    for start in range(0, len(dues), size):
        found += _paid(dues[start : start + size])
    return found


def _paid(dues: Sequence[Due]) -> list[Paid | Exception]:
    found: dict[int, Paid | Exception] = {}
    uses: dict[int, AbstractContextManager[Ledger]] = {}
    bills: dict[int, Bill] = {}
    try:
        for place, due in enumerate(dues):
            use: AbstractContextManager[Ledger] = opened(due.place, due.promise)
            try:
                ledger = use.__enter__()
            except Exception as fault:
                found[place] = fault
                continue
            uses[place] = use
            bills[place] = Bill(ledger, due.round, due.attempt, due.charges, due.sigma, due.parts)
        found |= dict(zip(bills, pay_together(list(bills.values())), strict=True))
    finally:
        for place, used in uses.items():
            try:
                used.__exit__(None, None, None)
            except Exception as fault:  # what is charged is charged; without its memory beside it nothing leaves
                found[place] = fault
    return [found[place] for place in range(len(dues))]


def _require_same(path: Path, ledger: Ledger, promise: Promise) -> None:
    """Refuse a ledger that accounts for something else than this run's guarantee.

    Raises:
        ValueError: naming what it accounts for and what this run asks.
    """
    kept = Promise(ledger.run, ledger.budget, ledger.delta, ledger.accountant, ledger.nominal, ledger.groups)
    close = math.isclose(kept.epsilon, promise.epsilon, rel_tol=_SAME_EPSILON)
    if not close or replace(kept, epsilon=promise.epsilon) != promise:
        raise ValueError(
            f"{path} accounts for another run: it holds {kept} for {', '.join(ledger.groups)}, and this is {promise} "
            f"for {', '.join(promise.groups)}. Give every run a folder of its own: {REMEDY}"
        )


def _require_remembered(path: Path, ledger: Ledger | None) -> None:
    """Refuse a ledger that lacks the row remembered beside it, or is gone.

    Raises:
        LedgerReplaced: if so.
    """
    head, beside = remembered(path), memory_of(path).name
    if head is None:
        return
    if ledger is None:
        raise LedgerReplaced(
            f"{path} is gone, but {beside} remembers its release {head.sequence}; put the ledger back, nothing "
            "more may be released without it"
        )
    ledger.require(head, beside)
