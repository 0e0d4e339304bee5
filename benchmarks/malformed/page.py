"""The page of what every malformed input ends with."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.malformed.case import Case, Outcome
from benchmarks.malformed.commands import COMMANDS
from benchmarks.malformed.models import MODELS
from benchmarks.malformed.settings import SETTINGS
from benchmarks.malformed.tables import TABLES
from fedsw._tools import text

TABLE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
CASES = (*TABLES, *COMMANDS, *SETTINGS, *MODELS)
_LISTS = re.compile(r"(\b[Kk]nown(?: in \[\w+\])?:(?! ')).*")
"""What is left out on the page: names of all experiments or settings, which grow."""


def page(outcomes: dict[Case, Outcome]) -> str:
    """docs/errors.md."""
    lines = [
        "# Errors",
        "",
        "For whoever meets a message: the cause, the command, and what it says, which ends in the remedy. [Exit codes](reference/commands.md#exit-codes)",
        "say what was spent. All of it is found before anything is spent: no ledger was made in any of",
        "these. `python -m benchmarks.malformed` writes the page and runs every line; `tests/laws/test_malformed.py` runs them again.",
    ]
    shown = [
        (case.what, f"`fedsw {case.command}`", _LISTS.sub(r"\1 ...", outcome.error.strip()), outcome.code)
        for case, outcome in outcomes.items()
    ]
    table = text.table(("cause", "command", "message and remedy", "exit code"), shown)
    return "\n".join(lines) + f"\n\n{table}\n"
