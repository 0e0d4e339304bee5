"""One malformed input, and how a command line ends with it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsw.cli.app import main as fedsw


@dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
        what: the fault, in words.
        command: the words after `fedsw`.
        prepare: makes the files of the case in the current directory.
        named: what the message must name.
    """

    what: str
    command: str
    prepare: Callable[[], object]
    named: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a command line ended: its exit code, what it wrote, and the ledgers that appeared."""

    code: int
    output: str
    error: str
    ledgers: tuple[str, ...]


def invoke(command: str) -> Outcome:
    """Run a command line in the current directory."""
    before = set(Path.cwd().rglob("*.sqlite"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = fedsw(command.split())
    new = sorted(path.name for path in set(Path.cwd().rglob("*.sqlite")) - before)
    here = f"{Path.cwd()}/"
    return Outcome(code, out.getvalue().replace(here, ""), err.getvalue().replace(here, ""), tuple(new))


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """A fresh current directory; wide enough for messages in one line."""
    before, kept = Path.cwd(), {name: os.environ.get(name) for name in ("COLUMNS", "FEDSW_ACCOUNTS")}
    with tempfile.TemporaryDirectory() as fresh:
        os.chdir(fresh)
        os.environ |= {"COLUMNS": "1000", "FEDSW_ACCOUNTS": "accounts"}
        try:
            yield
        finally:
            os.chdir(before)
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def outcome_of(case: Case) -> Outcome:
    """Prepare a case in a folder of its own and run it."""
    with folder():
        case.prepare()
        return invoke(case.command)
