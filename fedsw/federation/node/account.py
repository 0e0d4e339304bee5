"""A client's own ledger: where it is, what it accounts for, and who holds it open."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.accounting import Head, Ledger, LedgerReplaced
from fedsw.federation.budgets.split import GROUP

STATE_VARIABLE = "FEDSW_STATE"
_REMEDY = f"start the node with --node-config 'state-dir=\"/a/writable/folder\"' or set {STATE_VARIABLE}"
_SAME_EPSILON = 1e-6  # relative: where it follows from a noise multiplier, the last digits are those of a machine

_held: dict[Path, dict[Path, Ledger]] = {}
_holding = threading.Lock()


@dataclass(frozen=True)
class Promise:
    """What a client's ledger accounts for: one run, and the guarantee that its records have in it."""

    run: str
    epsilon: float
    delta: float
    accountant: str
    nominal: bool

    def __str__(self) -> str:
        kind = ", nominal" if self.nominal else ""
        return f"run {self.run[:12]!r} at ({self.epsilon:.6g}, {self.delta:.6g}) by {self.accountant}{kind}"


def ledger_path(node_config: Mapping[str, Any], client: int) -> Path:
    """The file of a client's ledger: in its node's `state-dir`, else in $FEDSW_STATE.

    Raises:
        RuntimeError: if neither is set: a ledger in a new place after every start would forget what was spent.
    """
    named = node_config.get("state-dir") or os.environ.get(STATE_VARIABLE)
    if not named:
        raise RuntimeError(
            f"client {client} has no folder for its privacy ledger; {_REMEDY}, and keep it until this run is over"
        )
    return Path(str(named)) / f"client-{client}.sqlite"


def require_writable(path: Path) -> None:
    """Check that a ledger can be written, before anything is spent.

    Raises:
        RuntimeError: naming the folder and what to set, if it cannot be written to.
        LedgerDamaged: if there is a file that is no ledger, or an older copy of it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as fault:
        raise RuntimeError(
            f"client {path.stem.removeprefix('client-')} cannot keep its privacy ledger in {path.parent} "
            f"({fault.strerror}); {_REMEDY}"
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

    Only where this process answers every message of the folder's clients: nobody else can write meanwhile.
    """
    folder = folder.resolve()
    _held[folder] = {}
    try:
        yield
    finally:
        with _holding:
            held = _held.pop(folder)
        for ledger in held.values():
            ledger.close()


@contextmanager
def opened(path: Path, promise: Promise) -> Iterator[Ledger]:
    """A client's ledger, made if there is none: one writer at a time, by the file's lock.

    Raises:
        ValueError: if the file accounts for another run, or for another guarantee.
        LedgerBusy: if another process holds it.
    """
    held = _held.get(path.parent, {})
    if path in held:
        _require_same(path, held[path], promise)
        yield held[path]
        _remember(path, held[path])
        return
    if path.exists():
        ledger = Ledger.open(path)
    else:
        _require_remembered(path, None)
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.create(path, groups=(GROUP,), **asdict(promise))
    try:
        _require_remembered(path, ledger)
        _require_same(path, ledger, promise)
        yield ledger
        _remember(path, ledger)
    except BaseException:
        ledger.close()
        raise
    with _holding:
        if path.parent in _held:
            _held[path.parent][path] = ledger
            return
    ledger.close()


def _require_same(path: Path, ledger: Ledger, promise: Promise) -> None:
    """Refuse a ledger that accounts for something else than this run's guarantee.

    Raises:
        ValueError: naming what it accounts for and what this run asks.
    """
    kept = Promise(ledger.run, ledger.budget, ledger.delta, ledger.accountant, ledger.nominal)
    close = math.isclose(kept.epsilon, promise.epsilon, rel_tol=_SAME_EPSILON)
    if ledger.groups != (GROUP,) or not close or replace(kept, epsilon=promise.epsilon) != promise:
        raise ValueError(
            f"{path} accounts for another run: it holds {kept} for {', '.join(ledger.groups)}, and this is {promise} "
            f"for {GROUP}. Give every run a folder of its own: {_REMEDY}"
        )


def _remember(path: Path, ledger: Ledger) -> None:
    """Write the ledger's last row to a file beside it, before an answer leaves: an older copy is then refused."""
    files.replace(_memory(path), json.dumps(asdict(ledger.head())).encode("ascii"), durable=False)


def _require_remembered(path: Path, ledger: Ledger | None) -> None:
    """Refuse a ledger that lacks the row remembered beside it, or is gone.

    Raises:
        LedgerReplaced: if so.
    """
    beside = _memory(path)
    head = None
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):  # a machine that died may have emptied it
        kept = json.loads(beside.read_text(encoding="ascii"))
        head = Head(int(kept["sequence"]), str(kept["digest"]))
    if head is None or not head.sequence:
        return
    if ledger is None:
        raise LedgerReplaced(
            f"{path} is gone, but {beside.name} remembers its release {head.sequence}; put the ledger back, nothing "
            "more may be released without it"
        )
    ledger.require(head, beside.name)


def _memory(path: Path) -> Path:
    return path.with_suffix(".head")
