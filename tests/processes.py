"""The processes of the test at hand, whoever started them: each inherits a mark that the test sets.

A search by name would find those of a test that runs beside it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time

import psutil
import pytest

_TEST = "FEDSW_TEST_AT_HAND"


def mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all processes started from now on be found by `of_this_test`."""
    monkeypatch.setenv(_TEST, secrets.token_hex(8))


def interruptible() -> None:
    """Before a program starts: heed the signals that whoever runs the tests in the background has switched off."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def of_this_test(having: str = _TEST) -> dict[int, str]:
    """Command lines of the living processes, started since `mark`, that have the variable `having`."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                environment = process.environ()
                if having in environment and environment.get(_TEST) == os.environ[_TEST]:
                    found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:
            continue
    return found


def left_of_this_test(seconds: float = 60.0) -> dict[int, str]:
    """What still runs of it when everything was given that long to end.

    One look decides: a thread of Flower's that describes the machine starts a process of a few milliseconds for it,
    which may come and go between two.
    """
    deadline = time.monotonic() + seconds
    while (left := of_this_test()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
