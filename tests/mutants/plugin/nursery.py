"""A process that has imported other people's packages, and forks a run of pytest for every line it reads.

Most of a short run of tests is spent on imports. None of this project's code is imported here, so that every fork
reads it anew, as it stands in the copy then.

A line is {"arguments": [...], "environment": {...}, "folder": "...", "patience": seconds}; the answer is the exit code
of the run, or null if it was not done in time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time

_PACKAGES = (
    "torch numpy scipy.stats scipy.optimize scipy.fft hypothesis.extra.numpy flwr.app flwr.clientapp flwr.serverapp "
    "pydantic cryptography.hazmat.primitives.ciphers safetensors.torch rich.table typer ot mpmath "
    "psutil pytest"
)


def main() -> None:
    """Serve until the input ends."""
    for name in _PACKAGES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _run(asked)
        print(json.dumps(_ended(child, asked["patience"])), flush=True)


def _run(asked: dict) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(asked["folder"])
        os.environ.update(asked["environment"])
        sys.path[:0] = asked["environment"]["PYTHONPATH"].split(os.pathsep)
        said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for here, there in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(here, there)
        import pytest

        code = int(pytest.main(asked["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
