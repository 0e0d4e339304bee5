"""The way of a setting is short: no setting of a run is read in more than ten files before the first round is over."""

from __future__ import annotations

import pytest

from benchmarks.ways import longest, ways


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_no_setting_enters_more_than_ten_files(trust):
    found = ways("fair-classification", trust)
    setting, files, _ = longest(found)
    assert files <= 10, (setting, found[setting])
    assert len(found["training.batch_fraction"]) >= 1 and len(found) > 40
