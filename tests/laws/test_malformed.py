"""Every malformed input ends in a short message that names it, before anything is spent."""

from __future__ import annotations

import pytest

from benchmarks.malformed import CASES
from benchmarks.malformed.case import outcome_of


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_a_malformed_input_is_named_and_nothing_is_spent(case):
    if "Parquet" in case.what:
        pytest.importorskip("pyarrow")
    outcome = outcome_of(case)
    assert outcome.code == 2
    assert "Traceback" not in outcome.error and "pydantic.dev" not in outcome.error
    for word in case.named:
        assert word in outcome.error
    assert len(outcome.error) < 600 and outcome.error.startswith("fedsw: ")
    assert outcome.ledgers == () and "resume" not in outcome.error


def test_cases_are_of_tables_commands_settings_and_models():
    assert len({case.what for case in CASES}) == len(CASES) >= 90
