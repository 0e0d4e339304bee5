"""Conditions to resume a run: one process, the ledger that its files remember, and room on the disk."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedsw._tools import files
from fedsw._tools.later import torch
from fedsw._tools.settings import FederationError
from fedsw._tools.text import upward
from fedsw.privacy.accounting import Head, Ledger, LedgerReplaced
from fedsw.runs.checkpoint import NAME, RELEASED, Checkpoint, CheckpointDamaged
from fedsw.runs.commands import command_for, command_to_go_on
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile, found_json
from fedsw.runs.telemetry import event

_log = logging.getLogger("fedsw.server")

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_SQLITE_DISK_FAULTS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
_LEAST_FREE = 2**22  # bytes: the rows, lines and log of a round take some thousands


class StorageFault(RuntimeError):
    """The disk is full or fails; the message says what to do."""


class RunBusy(RuntimeError):
    """Another process is running this run."""


@contextlib.contextmanager
def held(directory: Path, lock: str = RunFile.LOCK) -> Iterator[None]:
    """Be the only server of a run; the kernel releases the lock when the process dies.

    Another name is another lock on the same run.

    Raises:
        RunBusy: if another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(directory / lock, seconds=0.0))
        except BlockingIOError:
            raise _busy(directory) from None
        yield


def is_running(directory: Path) -> bool:
    """Say whether a process of this machine is running the run."""
    return files.is_locked(directory / RunFile.LOCK)


def require_free(directory: Path) -> None:
    """Refuse a run that another process is running; the server takes the lock later."""
    if is_running(directory):
        raise _busy(directory)


def reopened(
    path: Path, summary: Path, state: Checkpoint | None, *, device: torch.device | str = "cpu"
) -> Ledger | None:
    """The ledger that a run resumes with, on the device; None if it had not begun one.

    Guarantee: the ledger holds every charge that the checkpoint or the summary recorded, in the same order. Charges
    that are newer than both are kept: their rounds are done again as fresh attempts and charged again. An older copy
    of the whole folder is consistent in itself; clients and accounts detect it (`fedsw.federation.server.owed`).

    Raises:
        LedgerReplaced: if it is older than the last recorded row, of another run, or gone.
        LedgerBusy, LedgerDamaged: see `Ledger.open`.
    """
    remembered = [] if state is None or state.last.ledger is None else [("the checkpoint", state.last.ledger)]
    remembered += _by_summary(summary)
    if not path.exists():
        _require_unspent(path, remembered)
        return None
    ledger = Ledger.open(path, device=device)
    try:
        for by, head in remembered:
            ledger.require(head, by)
    except BaseException:
        ledger.close()
        raise
    return ledger


def require_remembered(directory: Path, *, missing_ok: bool = False) -> None:
    """Refuse a ledger without the last row that the run's summary recorded: it would show less than was spent.

    A folder that was passed on may lack the ledger, if `missing_ok`.

    Raises:
        LedgerReplaced: if the ledger is older, of another run, or gone. LedgerDamaged: if it is no ledger.
    """
    path, remembered = directory / RunFile.LEDGER, _by_summary(directory / RunFile.SUMMARY)
    if not path.exists():
        _require_unspent(path, [] if missing_ok else remembered)
    elif remembered:
        with Ledger.open(path, read_only=True) as ledger:
            for by, head in remembered:
                ledger.require(head, by)


def _require_unspent(path: Path, remembered: Iterable[tuple[str, Head]]) -> None:
    for by, head in remembered:
        if head.sequence:
            raise LedgerReplaced(
                f"{path} is gone, but {by} remembers release {head.sequence} (digest {head.digest[:12]}). Put the "
                "ledger back; without it the spent budget is unknown, and nothing more may be released"
            )


def require_promised(promised: tuple[float, float], planned: tuple[float, float], *, records: int, by: Path) -> None:
    """Refuse to resume with another guarantee (epsilon, delta): all rounds are paid for at one delta.

    Group sizes, and with them sampling rates and noise, may change: each round is charged at its own. The epsilons may
    differ by a millionth.
    """
    if math.isclose(promised[0], planned[0], rel_tol=1e-6) and promised[1] == planned[1]:
        return
    was, is_now = (
        f"epsilon {upward(epsilon, 6)} at delta {upward(delta, 6)}" for epsilon, delta in (promised, planned)
    )
    raise FederationError(
        f"{by} keeps a run of {was}; with the {records} records of the clients that joined now the plan is {is_now}. A "
        "run has one guarantee, and what it has spent is accounted for at that one. Resume with the clients and "
        "records that it began with, or start a new run; on the same records the two add up"
    )


def require_no_gap(directory: RunDirectory, state: Checkpoint | None, ledger: Ledger | None, *, rounds: int) -> None:
    """Refuse to release rounds again that the checkpoint lacks, and that metrics, attempts or the ledger have.

    A process that dies between a charge and the checkpoint of its round leaves one round that is not on file, and that
    no other party has seen. More are missing if a file was damaged, cut or removed, or the machine died within the
    second before its file was synchronised. A release after the planned ``rounds`` has no checkpoint; it shows that all
    of these were done.

    Raises:
        CheckpointDamaged: if the operator did not agree (`RunDirectory.agree_to_go_on`); nothing was charged.
    """
    on_file = 0 if state is None else state.last.round
    done = max((int(record["round"]) for record in directory.read_metrics()), default=0)
    begun = [round_ for round_, _ in directory.begun_attempts()]
    begun += [entry.round for entry in (() if ledger is None else ledger.entries())]
    done = max(done, min(max(begun, default=0) - 1, rounds))  # the last round begun may not have been released
    accepted = directory.accepted_gap()
    if done <= max(on_file, accepted) and not math.isinf(accepted):
        return
    missing = f"round {done}" if done == on_file + 1 else f"rounds {on_file + 1} to {done}"
    if not math.isinf(accepted):
        raise CheckpointDamaged(
            f"the checkpoint in {directory.path} ({NAME}, {RELEASED}) has what was released up to round {on_file}, and "
            f"{missing} were released, too: it was damaged, cut or removed, or is an older one. Resuming from there "
            "would release and charge them once more. Put its files back as they were; or "
            f"`{command_to_go_on(directory.path)}` goes on from round {on_file} with what is left of the budget"
        )
    directory.accept_gap(max(done, on_file))
    if done > on_file:
        _log.warning("%s are released and charged once more: no checkpoint has them", missing, extra=event("gap"))


def require_space(directory: Path, size: int) -> None:
    """Check, before a round is charged, that the disk has room for its checkpoint of `size` bytes, and some more."""
    free, needed = shutil.disk_usage(directory).free, 2 * size + _LEAST_FREE
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free} bytes are free, and a round needs up to {needed}", str(directory))


@contextlib.contextmanager
def explaining_storage(directory: Path) -> Iterator[None]:
    """Turn errors of a full or failing disk into a `StorageFault` with the consequence for the run."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as fault:
        if not is_of_disk(fault):
            raise
        raise StorageFault(
            f"the disk does not take what this run must keep in {directory}: {fault}. Nothing of the round at hand was "
            f"released; all before it is kept. Make room, then `{command_for(directory)}`"
        ) from fault


def is_of_disk(fault: BaseException) -> bool:
    """Say whether an error is that of a full or failing disk."""
    if isinstance(fault, sqlite3.Error):
        return (getattr(fault, "sqlite_errorcode", None) or 0) & 0xFF in _SQLITE_DISK_FAULTS
    return isinstance(fault, OSError) and fault.errno in _DISK_FAULTS


def _busy(directory: Path) -> RunBusy:
    return RunBusy(f"{directory} is being run by another process; wait until it ends, or stop it")


def _by_summary(path: Path) -> list[tuple[str, Head]]:
    """The ledger's last row as a summary recorded it, with the summary's name; empty for clients' ledgers."""
    ledger = found_json(path).get("ledger")
    return [(RunFile.SUMMARY, Head(int(ledger["sequence"]), str(ledger["digest"])))] if ledger else []
