"""Errors of a client that an untrusted server may see: refusals that fedsw itself raised, and no others."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import TracebackType

WITHHELD = "what went wrong is withheld from a server that is not trusted; this client's own log says it"
_RAISE = dis.opmap["RAISE_VARARGS"]


def may_be_reported(fault: BaseException) -> bool:
    """True if an error speaks of a request and settings only: a `raise` statement of fedsw made it.

    Other code that handles records may quote one in its errors: a task, map or network of the experiment's own, and
    every library. An error of fedsw that repeats the text of such an error is withheld, too.
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
