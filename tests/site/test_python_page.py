"""The examples of docs/python.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fedsw.learning.models import flatten
from fedsw.runs import checkpoint

ROOT = Path(__file__).resolve().parents[2]


def _examples() -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )


def test_one_machine_and_its_federated_twin_end_at_the_same_parameters(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for example in _examples()[:2]:
        exec(compile(example, "python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "noise multiplier" in printed and printed.count("differential privacy") == 2
    theirs = checkpoint.load(names["result"].directory).theta
    ours = flatten(names["net"]).double()
    assert float((ours - theirs).abs().max()) <= 1e-6
    assert float((ours - flatten(names["twin"]).double()).abs().max()) > 1e-2, "something was learnt"
    held = names["records"]
    right = names["net"](held.features.double()).argmax(1) == held.target
    assert float(right.double().mean()) > 0.6


def test_the_mathematics_example_clips_every_jacobian():
    names: dict = {}
    exec(compile(_examples()[2], "python.md", "exec"), names)
    bound = float(names["q"].norm(dim=1).sum())
    assert 0 < float(names["gradient"].norm()) <= bound


def test_the_first_example_has_no_more_than_20_lines_of_a_user_s_own():
    lines = [line for line in _examples()[0].splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 20


def test_whatever_the_package_names_is_there():
    import fedsw

    for name in fedsw.__all__:
        assert getattr(fedsw, name).__doc__, name
    assert set(fedsw.__all__) <= set(dir(fedsw)) and torch is not None
