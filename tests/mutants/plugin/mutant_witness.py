"""A pytest plugin that says what a run saw: which test failed first and how, and whose modules it ran on."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

_seen: dict[str, Any] = {"passed": 0, "failed": None}
_real = cache(Path.resolve)  # of a folder: of each module's file it would be a third of the time of a fork


def pytest_configure() -> None:
    """That an example fails is all that is asked: none is made smaller or stays for the next mutant."""
    quick = {"phases": (Phase.explicit, Phase.generate), "report_multiple_bugs": False, "database": None}
    settings.register_profile("mutants", settings(), **quick)
    settings.load_profile("mutants")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    outcome = yield
    report = outcome.get_result()
    if report.failed and _seen["failed"] is None:
        kind = type(call.excinfo.value).__name__ if call.excinfo else ""
        _seen["failed"] = {"test": item.nodeid, "when": report.when, "kind": kind, "said": str(call.excinfo)[:400]}
    _seen["passed"] += report.passed and report.when == "call"


def pytest_sessionfinish(session: pytest.Session) -> None:
    root = Path.cwd().resolve()
    own = {path.stem for path in root.iterdir()}
    _seen["foreign"] = sorted(
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in own
        and getattr(module, "__file__", None)
        and not _real(Path(str(module.__file__)).parent).is_relative_to(root)
    )
    Path(os.environ["MUTANT_WITNESS"]).write_text(json.dumps(_seen), encoding="utf-8")
