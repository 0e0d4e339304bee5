"""Commands that fail at a statement: forked, one by one, from a process that has trained nothing itself.

Run as `python -m tests.runs.statements`: every line of standard input is a JSON object of arguments for `_process`; the
answer is the command's exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

# Everything that a process needs, once.
import sklearn.metrics  # noqa: F401
import torch._dynamo  # noqa: F401

import fedsw.desk.own_data.rehearsal
import fedsw.federation.engines.driver
import fedsw.runs.write
from fedsw.cli import app, execution
from fedsw.learning.tasks import Classification  # noqa: F401
from fedsw.privacy.accounting.journal import Journal

PACKAGE = str(Path(fedsw.__file__).parent)
SAID = "said.txt"
"""What the command printed, in its folder."""

Place = tuple[str, int]
"""A file of the package, from its folder, and a line."""


class InjectedError(Exception):
    """What a statement raises that did not fail by itself."""


FAULTS: dict[str, type[BaseException]] = {"an error": InjectedError, "Ctrl-C": KeyboardInterrupt}


class Statements:
    """Follows the package's statements once something is charged; raises at one of them, the first time it comes."""

    def __init__(self, at: Place | None, fault: str) -> None:
        self.seen: dict[Place, None] = {}
        self._at, self._fault, self._charged, self._raised = at, FAULTS[fault], False, False

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self._charged and frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "line" or self._raised:
            return self._line
        place = (frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno)
        self.seen[place] = None
        if place == self._at:
            self._raised = True
            raise self._fault(f"at {place[0]}, line {place[1]}")
        return self._line

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow all that is called inside, from the first row that is on the disk."""
        transaction = Journal._transaction

        @contextlib.contextmanager
        def watched(journal: Journal) -> Iterator[Any]:
            with transaction(journal) as database:
                yield database
            if not self._charged:
                self._charged, frame = True, sys._getframe()
                while frame := frame.f_back:  # functions that were called before go on, too
                    if frame.f_code.co_filename.startswith(PACKAGE):
                        frame.f_trace = self._line

        Journal._transaction = watched  # type: ignore[method-assign]
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)


class Host:
    """A process that runs commands, one by one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.statements"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder: Path, *line: str, at: Place | None = None, fault: str = "an error", seen: str = "") -> int:
        """Exit code of a command line in a folder; `seen` names a file for the statements that came after a charge."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"folder": str(folder), "line": line, "at": at, "fault": fault, "seen": seen}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _process(folder: str, line: list[str], at: list[Any] | None, fault: str, seen: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        os.chdir(folder)
        with open(SAID, "a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        statements = Statements(None if at is None else (at[0], at[1]), fault)
        with statements.following() if at is not None or seen else contextlib.nullcontext():
            code = app.main(line)
        if seen:
            Path(seen).write_text(json.dumps(list(statements.seen)))
    except BaseException as failure:
        Path(SAID).write_text("".join(traceback.format_exception(failure)))
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Answer every line."""
    execution.draw_run = lambda *_: []  # type: ignore[assignment]
    fedsw.desk.own_data.rehearsal.rehearse = lambda *_: None  # type: ignore[assignment]
    for line in sys.stdin:
        print(_process(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
