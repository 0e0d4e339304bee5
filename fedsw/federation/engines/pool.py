"""Many pieces of work in processes of their own, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Protocol, TypeVar

from fedsw.privacy.accounting.lifetime import Binding, Cost
from fedsw.runs import checkpoint, recovery
from fedsw.runs.accounts import kept_account
from fedsw.runs.directory import RunDirectory

_KILLED = "the process that ran it, or one beside it, was killed (out of memory?)"
_LOOK_SECONDS = 0.5
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Piece = TypeVar("Piece")


class Watcher(Protocol):
    """Receiver of progress reports."""

    def running(self, pieces: int) -> None:
        """Report the number of pieces that run now."""

    def ended(self, *, failed: bool) -> None:
        """Report that a piece ended."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    pieces: Sequence[Piece],
    work: Callable[[Piece], bool],
    *,
    jobs: int,
    watcher: Watcher,
    failed: Callable[[Piece, str], None],
    open_pool: Callable[[int], Executor] | None = None,
) -> None:
    """Do every piece, `jobs` at a time, in processes with one thread each.

    `work`, which is picklable, says whether a piece came to a result. One that raises, or dies with its process, is
    reported to `failed`, and the others go on. Interrupting ends the processes.
    """
    waiting, running = deque(pieces), dict[Future[bool], Piece]()
    pool: Executor | None = None
    broken = False
    others = set(multiprocessing.active_children())
    with environment(_ONE_THREAD):  # several processes at a time share the cores
        try:
            while waiting or running:
                pool = pool or (open_pool or _processes)(jobs)
                while waiting and len(running) < jobs and not broken:
                    try:
                        with _deaf_to_interrupts():
                            running[pool.submit(work, waiting[0])] = waiting[0]
                        waiting.popleft()
                    except BrokenExecutor:
                        broken = True
                watcher.running(len(running))
                for future in wait(running, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done:
                    fault = future.exception()
                    piece = running.pop(future)
                    if fault is not None:
                        broken = broken or isinstance(fault, BrokenExecutor)
                        failed(piece, _KILLED if broken else f"{type(fault).__name__}: {fault}")
                    watcher.ended(failed=fault is not None or not future.result())
                if broken and not running:
                    pool.shutdown()
                    pool, broken = None, False
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise
        finally:
            if pool is not None:
                pool.shutdown(wait=not running, cancel_futures=True)


def _processes(jobs: int) -> Executor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_process)


def _begin_process() -> None:
    """Write nothing to the terminal, and end when the parent does."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment for this process, and for those that start inside."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let processes that start inside ignore Ctrl-C: it is for the parent, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def settle_run(directory: Path) -> list[str]:
    """Let a run count with what its ledgers say, and give back the rest of what was set aside for it.

    The folder is of a run under a trusted server, of a `PrivateTrainer`, or one with ledgers that count by themselves:
    of clients (a run's, or a state folder), of releases on one machine. Returns the names of the data sets.

    Raises:
        FileNotFoundError: if nothing in the folder belongs to an account.
        RunBusy, LedgerBusy: while the run goes on. LedgerReplaced: if a ledger is older than what remembers it.
    """
    settled = []
    account = kept_account(directory)
    if account is not None:
        with recovery.held(directory):
            stored = RunDirectory(directory)
            ledger = recovery.reopened(stored.ledger, stored.summary, checkpoint.load(directory))
            if ledger is None:
                account.settle(stored.name(), {}, None)
            else:
                with ledger:
                    account.settle(stored.name(), Cost.of_ledger(ledger), ledger)
        settled.append(account.data)
    for folder in (directory, directory / "clients", *sorted(directory.glob("nodes/*"))):
        settled += Binding.settle_in(folder)
    if not settled:
        raise FileNotFoundError(
            f"nothing in {directory} belongs to an account; give the folder of a run or training that counts in one, a "
            "client's state folder, or the folder of a ledger"
        )
    return settled
