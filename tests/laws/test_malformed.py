"""Every malformed input ends in a short message that names it, and before anything is spent; docs/errors.md is true."""

from __future__ import annotations

import re

import pytest

from benchmarks.malformed.case import Case, Outcome, outcome_of
from benchmarks.malformed.page import CASES, TABLE, page


@pytest.fixture(scope="module")
def outcomes() -> dict[Case, Outcome]:
    """Filled by the cases as they run."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_a_malformed_input_is_named_and_nothing_is_spent(case, outcomes):
    if "Parquet" in case.what:
        pytest.importorskip("pyarrow")
    found = outcomes[case] = outcome_of(case)
    assert found.code == 2
    assert "Traceback" not in found.error and "pydantic.dev" not in found.error
    for word in case.named:
        assert word in found.error
    assert len(found.error) < 600 and found.error.startswith("fedsw: ")
    assert found.ledgers == () and "resume" not in found.error


def test_the_page_of_errors_is_what_the_command_lines_say(outcomes):
    missing = [case.what for case in CASES if case not in outcomes]
    if missing:
        pytest.skip(f"these cases did not run here: {', '.join(missing)}")
    assert len(CASES) >= 20
    assert TABLE.read_text(encoding="utf-8") == page(outcomes)
    rows = re.findall(r"^\| .* \| (\d+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(CASES)
