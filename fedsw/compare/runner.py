"""Running what is missing of a comparison: cells in processes of their own, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Protocol

from fedsw.compare.grid import Cell, Grid, missing, write_failure, write_result

Work = Callable[[Path, Cell], bool]

_KILLED = "the process that ran it, or one beside it, was killed (out of memory?)"
_LOOK_SECONDS = 0.5
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Watcher(Protocol):
    """Receives how the grid goes on."""

    def running(self, cells: int) -> None:
        """How many cells run now."""

    def ended(self, *, failed: bool) -> None:
        """A cell ended."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_missing(
    folder: Path,
    grid: Grid,
    *,
    jobs: int,
    watcher: Watcher,
    work: Work | None = None,
    open_pool: Callable[[int], Executor] | None = None,
) -> None:
    """Run the cells of the grid that have no result yet, `jobs` at a time; each leaves its result in the folder.

    A cell that fails leaves its reason, and the others go on; so they do if a process dies. Interrupting ends the
    processes; a cell that was cut short starts again when the comparison is resumed.

    Args:
        work: runs a cell and says whether it came to a result; `run_cell` by default.
        open_pool: what the cells run in; processes with one thread each by default.
    """
    waiting, running = deque(missing(folder, grid)), dict[Future[bool], Cell]()
    pool: Executor | None = None
    broken = False
    others = set(multiprocessing.active_children())
    with _one_thread_each():
        try:
            while waiting or running:
                pool = pool or (open_pool or _processes)(jobs)
                while waiting and len(running) < jobs and not broken:
                    try:
                        with _deaf_to_interrupts():
                            running[pool.submit(work or run_cell, folder, waiting[0])] = waiting[0]
                        waiting.popleft()
                    except BrokenExecutor:
                        broken = True
                watcher.running(len(running))
                for future in wait(running, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done:
                    fault = future.exception()
                    cell = running.pop(future)
                    if fault is not None:
                        broken = broken or isinstance(fault, BrokenExecutor)
                        write_failure(folder, cell, _KILLED if broken else f"{type(fault).__name__}: {fault}")
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


def run_cell(folder: Path, cell: Cell) -> bool:
    """Train one cell under `folder`/runs and leave its result, or the reason why there is none.

    Returns:
        Whether there is a result.
    """
    from fedsw.engines.driver import run

    try:
        result = run(cell.experiment, runs=folder / "runs")
    except Exception as fault:
        write_failure(folder, cell, f"{type(fault).__name__}: {fault}")
        return False
    write_result(folder, cell, summary=result.summary, directory=result.directory)
    return True


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
def _one_thread_each() -> Iterator[None]:
    """Processes started here compute with one thread each: several at a time share the cores."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
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
    """Processes started here inherit that Ctrl-C is ignored: it is for the parent, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
