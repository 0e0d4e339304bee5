"""A law of tables that others complain of: each is declared right, or somebody is asked."""

from __future__ import annotations

import pytest

from benchmarks.complaints import COMPLAINTS, REPORTED, outcome


@pytest.mark.parametrize("complaint", COMPLAINTS, ids=[complaint.kind for complaint in COMPLAINTS])
def test_a_table_of_a_kind_that_others_complain_of_is_declared_right_or_asked_about(complaint):
    if "Parquet" in complaint.kind:
        pytest.importorskip("pyarrow")
    found = outcome(complaint)
    assert found["verdict"] in ("right", "asked"), found["said"]


def test_complaints_are_of_ten_public_reports_and_of_variants():
    assert len({complaint.kind for complaint in COMPLAINTS}) == len(COMPLAINTS)
    assert len({complaint.report for complaint in REPORTED}) == len(REPORTED) >= 10
