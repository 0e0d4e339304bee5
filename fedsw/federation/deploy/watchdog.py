"""Marked processes: finding them, ending them, and a watchdog that does so when its parent is gone.

    python -P watchdog.py NAME MARK < pipe held by the parent

Run by path and with the standard library and psutil only: it must start in a moment and survive what it guards.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import psutil

GRACE_SECONDS = 10.0


def marked(name: str, mark: str) -> list[psutil.Process]:
    """Living processes other than this one with name=mark in their environment."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(name) == mark:
                processes.append(process)
    return processes


def end(name: str, mark: str, *, grace: float = GRACE_SECONDS) -> None:
    """End all marked processes: SIGTERM once, after `grace` seconds SIGKILL, until none is left."""
    deadline = time.monotonic() + grace
    terminated = set[psutil.Process]()
    while left := marked(name, mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() >= deadline:
                    process.kill()
                elif process not in terminated:
                    process.terminate()
                    terminated.add(process)
        time.sleep(0.1)  # not psutil.wait_procs: it would take the children's exit codes from their parent


def main(name: str, mark: str) -> None:
    """Block until the parent lets go of standard input, then end what is left."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    end(name, mark)


if __name__ == "__main__":
    main(*sys.argv[1:])
