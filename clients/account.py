"""A client's own ledger: where it is, and who holds it open."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsw.accounting import Head, Ledger, LedgerReplaced

STATE_VARIABLE = "FEDSW_STATE"
_kept: dict[Path, Ledger] | None = None


def ledger_path(node_config: Mapping[str, Any], run_id: int) -> Path:
    """The file of a node's ledger: in its `state-dir`, else in $FEDSW_STATE, else in ~/.fedsw/<run id>."""
    named = node_config.get("state-dir") or os.environ.get(STATE_VARIABLE)
    folder = Path(str(named)) if named else Path.home() / ".fedsw" / str(run_id)
    return folder / f"client-{int(node_config['partition-id'])}.sqlite"


def require_writable(path: Path) -> None:
    """Find out whether a ledger can be kept, before anything is spent.

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
            f"({fault.strerror}); start the node with --node-config 'state-dir=\"/a/writable/folder\"' or set "
            f"{STATE_VARIABLE}"
        ) from None
    if path.exists():
        with Ledger.open(path, read_only=True) as ledger:
            _require_remembered(path, ledger)
    else:
        _require_remembered(path, None)


@contextmanager
def ledgers_in(folder: Path, *, alone: bool) -> Iterator[None]:
    """Let the simulated clients of a run keep their ledgers in the run's folder meanwhile.

    Args:
        alone: this process answers every message of its clients, so that ledgers stay open from one to the next
            (opening one replays all of its rows). Elsewhere (Ray, Flower's own nodes) another process may answer a
            client's next message, and a ledger is let go of after each.
    """
    global _kept
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(folder.resolve())
    _kept = {} if alone else None
    try:
        yield
    finally:
        held, _kept = _kept, None
        for ledger in (held or {}).values():
            ledger.close()
        if before is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = before


@contextmanager
def opened(path: Path, *, group: str, delta: float, epsilon: float, accountant: str, nominal: bool) -> Iterator[Ledger]:
    """A client's ledger, made if there is none: one writer at a time, by the file's lock.

    A ledger that is there keeps its own delta: the first request of a run settled it.

    Raises:
        ValueError: if the file belongs to another guarantee.
        LedgerBusy: if another process holds it.
    """
    if _kept is not None and path in _kept:
        yield _kept[path]
        _remember(path, _kept[path])
        return
    if path.exists():
        ledger = Ledger.open(path)
    else:
        _require_remembered(path, None)
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.create(
            path, groups=(group,), delta=delta, epsilon=epsilon, accountant=accountant, nominal=nominal
        )
    try:
        _require_remembered(path, ledger)
        if (ledger.groups, ledger.accountant, ledger.nominal) != ((group,), accountant, nominal):
            raise ValueError(
                f"{path} accounts for another run (groups {ledger.groups}, accountant {ledger.accountant}, nominal "
                f"{ledger.nominal}); give this run a folder of its own (state-dir or {STATE_VARIABLE})"
            )
        yield ledger
        _remember(path, ledger)
    except BaseException:
        ledger.close()
        raise
    if _kept is None:
        ledger.close()
    else:
        _kept[path] = ledger


def _remember(path: Path, ledger: Ledger) -> None:
    """Keep the ledger's position beside it, before an answer leaves: an older copy put in its place is then refused."""
    beside = _memory(path)
    part = beside.with_suffix(".part")
    part.write_text(json.dumps(asdict(ledger.head())), encoding="ascii")
    part.replace(beside)


def _require_remembered(path: Path, ledger: Ledger | None) -> None:
    """Refuse a ledger that is older than the position beside it, or gone.

    Raises:
        LedgerReplaced: if so.
    """
    beside = _memory(path)
    head = None
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):  # a machine that died may have emptied it
        told = json.loads(beside.read_text(encoding="ascii"))
        head = Head(int(told["sequence"]), str(told["digest"]))
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
