"""Numbers below the smallest normal one are zero where clients compute: on them, arithmetic takes many times as long.

Others can measure how long a client takes, so that may not follow from what a record holds. Tables lose such
numbers when they are loaded (`flushed`); those that arise later are flushed by the processor (`flushing_to_zero`). Its
switch belongs to one thread, and threads that this one starts inherit it when they are started and keep it. So a
computation on one thread throws the switch and puts it back; one on several has a thread of its own, which threw the
switch before it started any of them, and which does nothing else. Accounting and noise never run with the switch on.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedsw._tools.later import torch

if TYPE_CHECKING:
    from torch import Tensor


_P = ParamSpec("_P")
_T = TypeVar("_T")


def flushed(values: Tensor) -> Tensor:
    """Values of any shape, with 0 for those that are nearer to it than the smallest normal number of their type."""
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, 0.0, values)


def flushes() -> bool:
    """Say whether this thread flushes subnormal numbers to zero."""
    return sys.float_info.min * 0.5 == 0.0


@contextmanager
def switched_on() -> Iterator[None]:
    """Let this thread flush subnormal numbers to zero meanwhile, where the processor can."""
    before = flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushing_to_zero(compute: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same computation, with subnormal numbers flushed to zero in all threads that have a part in it."""

    @functools.wraps(compute)
    def without(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if flushes():
            return compute(*args, **kwargs)
        if (threads := torch.get_num_threads()) == 1:
            with switched_on():
                return compute(*args, **kwargs)
        if (helper := getattr(_own, "helper", None)) is None:
            helper = _own.helper = _Helper()
        result: _T = helper.do(threads, functools.partial(compute, *args, **kwargs))
        return result

    return without


class _Helper:
    """A thread that flushes from its first instruction on, and so do all that it starts; it ends with this object."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._asked,), name="fedsw-flushing", daemon=True).start()
        end = weakref.finalize(self, self._asked.put, None)
        end.atexit = False  # a thread that ends while the interpreter does may take the process down: it is left asleep

    def do(self, threads: int, compute: Callable[[], Any]) -> Any:
        """The result of a computation on that many threads; what it raises is raised."""
        answer: Future[Any] = Future()
        self._asked.put((threads, compute, answer))
        return answer.result()


_own = threading.local()  # the helper of each thread: one that hangs keeps nobody else waiting


def _serve(tasks: queue.SimpleQueue[tuple[int, Callable[[], Any], Future[Any]] | None]) -> None:
    torch.set_flush_denormal(True)
    while (work := tasks.get()) is not None:
        threads, compute, answer = work
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        try:
            answer.set_result(compute())
        except BaseException as fault:
            answer.set_exception(fault)
        del work, compute, answer
