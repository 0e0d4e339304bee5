"""Child processes of a test that run a few lines of Python: forked, so that none of them imports everything again."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback

import torch

_PATIENCE = 120.0


class Child:
    """A forked process that runs code with one argument; what it prints and how it ends can be read.

    Attributes:
        stdout: what it prints, also of a failure.
        returncode: None before it was waited for; 0, 1 after an exception, or negative for a signal.
    """

    def __init__(self, code: str, argument: object) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            _run(code, str(argument), writing)
        os.close(writing)
        self.stdout: io.TextIOBase = os.fdopen(reading)
        self.returncode: int | None = None
        self._limit = threading.Timer(_PATIENCE, self.kill)
        self._limit.daemon = True
        self._limit.start()

    def communicate(self) -> str:
        """What it has printed when it has ended."""
        found = self.stdout.read()
        self.wait()
        return found

    def kill(self) -> None:
        """Kill it; nothing happens if it has been waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """How it ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._limit.cancel()
            self.stdout.close()
        return self.returncode


def _run(code: str, argument: str, writing: int) -> None:
    status = 1
    try:
        torch.set_num_threads(1)  # threads of the parent are not there
        sys.argv, sys.stdout = ["child", argument], os.fdopen(writing, "w")
        exec(compile(code, "child", "exec"), {"__name__": "child"})
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(status)
