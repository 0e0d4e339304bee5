"""What came out of the code when the goldens were made comes out of it today; `python -m tests.goldens` makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.goldens.made import PARTS, alike, stored

SLOW = {"runs"}


@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] * (part in SLOW)) for part in PARTS])
def test_what_came_out_comes_out(part: str, tmp_path: Path) -> None:
    then, now = stored()[part], json.loads(json.dumps(PARTS[part](tmp_path)))
    assert now.keys() == then.keys()
    assert {name: (now[name], then[name]) for name in then if not alike(now[name], then[name])} == {}


def test_a_number_another_bit_or_another_name_is_noticed() -> None:
    run = {"numbers": [1.0], "bits": "a", "machine": "this", "rows": [[1, 0.5]]}
    assert alike(run, run) and alike({**run, "machine": "that", "bits": "b"}, run)
    for other in ({"bits": "b"}, {"numbers": [1.1]}, {"rows": [[1, 0.5001]]}, {"rows": []}):
        assert not alike({**run, **other}, run)
    assert not alike({**run, "numbers": [1.1], "machine": "that"}, run) and not alike("", "ExperimentError")
