"""Laws of the Python call behind `fedsw run`: what it returns is what the run left."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsw.federation.engines.driver import run
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.runs.view import read_run
from tests.federations import small


def test_a_run_that_stops_before_its_first_round_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spend(*_: object, **__: object) -> None:
        raise BudgetExhausted("epsilon would be 1.2, above 1")

    monkeypatch.setattr(Ledger, "spend", spend)
    result = run(small(), runs=str(tmp_path))  # a text is a path
    assert (result.summary["status"], result.history) == ("stopped before round 1: epsilon would be 1.2, above 1", [])
    assert not (result.directory / "metrics.jsonl").exists() and read_run(result.directory).history == []
