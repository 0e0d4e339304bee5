"""The pages for people who come from POT or Flower run as they are written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run(code: list[str]) -> dict:
    names: dict = {}
    for block in code:
        exec(compile(block, "page", "exec"), names)
    return names


def test_the_page_for_users_of_pot_runs_as_written(capsys):
    names = run(blocks("from-pot.md"))
    assert names["clean"].shape == (50, 3) and float(names["distance"]) > 0
    assert len(capsys.readouterr().out.split()) == 3


def test_private_updates_of_the_page_for_users_of_flower_have_the_printed_guarantee(capsys):
    run(blocks("from-flower.md")[1:])
    assert "differential privacy of each client's update as a whole" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_for_users_of_flower_runs_as_written(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        run(blocks("from-flower.md"))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "digits"]:
            del sys.modules[name]
    assert float(capsys.readouterr().out.split()[0]) > 0.3, "of ten digits; the noise is secret, and .5 was missed once"
