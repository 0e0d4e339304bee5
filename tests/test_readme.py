"""The README's examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_the_federated_example_trains_and_prints_its_guarantee(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(_examples()[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "differential privacy" in printed and printed.count("500 ") >= 1


def test_the_mathematics_example_clips_every_jacobian():
    names: dict = {}
    exec(compile(_examples()[1], "README.md", "exec"), names)
    bound = float(names["q"].norm(dim=1).sum())
    assert 0 < float(names["gradient"].norm()) <= bound


def test_the_first_example_has_no_more_than_20_lines():
    assert len(_examples()[0].strip().splitlines()) <= 20
