"""A process that has imported other people's packages, and forks a run of pytest for every line it reads.

Most of a short run of tests is spent on imports. None of this project's code is imported here, so that every fork
reads it anew, as it stands in the copy then.

Its arguments are the packages to import; one that is not installed is left out. A line is JSON: the arguments of
pytest, its environment, the folder to run in, the file for what it says, and the patience in seconds. The answer is
the exit code of the run, or null if it was not done in time. A run with a connection of its own (`kept`) is not waited
for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import signal
import sys
import time
import warnings


def main() -> None:
    """Serve until the input ends."""
    plugins = [point.module for point in importlib.metadata.entry_points(group="pytest11")]
    for name in [*sys.argv[1:], "pytest", *plugins]:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pytest collects garbage at its end: the forks need not look through what was imported here
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _run(asked)
        if "kept" in asked:
            os.close(asked["kept"])  # so that its other end hears when the run has ended
        print(json.dumps(None if "kept" in asked else ended(child, asked["patience"])), flush=True)


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


def ended(child: int, patience: float) -> int | None:
    """The exit code of a fork that leads a session of its own, or None if it was not done in time and is killed."""
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
