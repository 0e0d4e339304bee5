"""The example of synthetic digits: what is learned from one noised sketch carries over to real digits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
FILE = Path(__file__).parents[3] / "docs" / "examples" / "synthetic_digits.py"


def example():
    spec = importlib.util.spec_from_file_location("synthetic_digits", FILE)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow
def test_a_classifier_of_generated_digits_knows_real_ones_and_says_whom_the_guarantee_protects(capsys):
    assert example().main(epsilon=10.0, steps=200) > 0.65
    assert "label and group included" in capsys.readouterr().out


@pytest.mark.slow
def test_noise_that_hides_everything_leaves_nothing_to_learn():
    assert example().main(epsilon=0.003, steps=30) < 0.45
