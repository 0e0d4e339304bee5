"""Exit codes of every command, by what was spent: the one table, of the code and of the pages."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of commands."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    BROKE_OFF = 3
    NO_VERDICT = 4
    UNREAD = 5
    ENDED_EARLY = 6
    NOT_SHOWN = 7


MEANINGS: Mapping[Exit, tuple[str, str]] = {
    Exit.DONE: ("done, and shown", "what was asked for"),
    Exit.FAILED: (
        "it could not be done: a disk, a port, a process; an audit found what contradicts the claim",
        "nothing by this command",
    ),
    Exit.REFUSED: ("bad input, or a client that refuses: the message says what to mend", "nothing"),
    Exit.BROKE_OFF: (
        "a run broke off, or some of several did; the message has the command that goes on",
        "what was released until then; going on spends the rest and no more than was planned",
    ),
    Exit.NO_VERDICT: ("an audit says neither passed nor failed", "nothing"),
    Exit.UNREAD: ("an audit could not read files of the run", "nothing"),
    Exit.ENDED_EARLY: (
        "a run ended before its last round, since its budget was used up or its model diverged; it is shown",
        "what the run says: all that it may, or less",
    ),
    Exit.NOT_SHOWN: (
        "a run ended, and what it left could not be shown or written; the message says where it lies",
        "all that was planned; showing it again costs nothing",
    ),
}
"""What happened, and what was spent, for every code but those of signals."""


def of_signal(number: int) -> int:
    """The exit code of a command that a signal has ended, as shells have it."""
    return 128 + number


def rows() -> Iterator[tuple[str, str, str]]:
    """The table: code, what happened, what was spent."""
    yield from ((str(int(code)), *MEANINGS[code]) for code in Exit)
    ended = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    codes = ", ".join(str(of_signal(interrupt)) for interrupt in ended)
    names = ", ".join(interrupt.name for interrupt in ended)
    yield codes, f"interrupted ({names})", "nothing, or what was released until then: the message says which"
