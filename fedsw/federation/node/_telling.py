"""What a server that is not trusted learns of an error at a client: what fedsw itself refuses, and nothing else."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import TracebackType

WITHHELD = "what went wrong is withheld from a server that is not trusted; this client's own log says it"
_RAISE = dis.opmap["RAISE_VARARGS"]


def may_be_told(fault: BaseException) -> bool:
    """Whether an error's words are about a request and settings alone: a statement of fedsw raised it.

    Whatever else raises beside the records may quote one of them: a task, map or network of the experiment's own, and
    every library that they, or fedsw, hand records to. An error of fedsw that repeats such words is none of fedsw's.
    """
    if not _raised_here(fault):
        return False
    others = [other for other in chain(fault) if other is not fault and not _raised_here(other)]
    return not any(str(other) and str(other) in str(fault) for other in others)


def chain(fault: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it followed from, the latest first."""
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def _raised_here(fault: BaseException) -> bool:
    trace: TracebackType | None = fault.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package == "fedsw" and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE
