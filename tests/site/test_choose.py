"""Laws of the page that chooses a trust model: its numbers are computed or measured, and its trust models are there."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from benchmarks.own_data.page import table
from fedsw.experiment import read_delta
from fedsw.experiment.trust import accounting_at_server, trust_model
from fedsw.privacy.mechanisms import gaussian_sigma

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "choose.md").read_text(encoding="utf-8")
COLUMNS, SIZES = 10, (300, 3000, 30_000, 300_000)
CLIENTS_THAT_ADD = {
    "a server adds it": 1.0,
    "10 clients add it together, masked": 10 / 9,
    "2 clients add it, each its own": 2.0,
    "10 clients add it, each its own": 10.0,
    "100 clients add it, each its own": 100.0,
}


def rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("noise", CLIENTS_THAT_ADD)
def test_the_signal_over_the_noise_is_that_of_one_release_at_the_whole_budget(noise):
    (cells,) = (row for row in rows(PAGE) if row[0] == noise)
    for size, cell in zip(SIZES, cells[1:], strict=True):
        multiplier = gaussian_sigma(1.0, read_delta("auto", records=size), 1.0)
        strength = size / (multiplier * math.sqrt((COLUMNS + 1) * CLIENTS_THAT_ADD[noise]))
        word = "probably" if strength >= 60 else "felt" if strength >= 8 else "not enough"
        assert cell == f"{strength:,.0f} ({word})"


def test_the_measured_numbers_are_the_committed_results():
    lost = {(row[0], row[2]): (row[1], row[9].split()[0]) for row in rows(table("accuracy")) if len(row) == 11}
    shown = [row for row in rows(PAGE) if len(row) == 5 and row[0] in {name for name, _ in lost}]
    assert len(shown) == 7
    for name, records, *points in shown[1:]:
        assert [lost[name, epsilon] for epsilon in ("0.5", "1", "4")] == [(records, point) for point in points]


def test_it_says_whether_a_penalty_or_thresholds_fit_by_who_may_read_the_group():
    (said,) = (line for line in PAGE.splitlines() if line.startswith("**A penalty or thresholds?**"))
    assert "reads the group in training only" in said and "the group of each predicted person" in said


def test_each_answer_leads_to_a_trust_model_that_gives_what_is_to_come_out():
    chosen = re.findall(r"^\| `(\w+)` \| `(\w+)` \| \[`([\w-]+)`\]", PAGE, flags=re.M)
    assert len(chosen) == 6
    for sums, product, name in chosen:
        model = trust_model(name, sketch=product == "table")
        assert bool(model.masks) == (sums == "masked") and model.fixed_epsilon is None
        assert (name in accounting_at_server()) is (sums == "server")
        assert model.runs.endswith("OnceRun" if product == "table" else "RoundRun")
        assert product == "table" or model.beside
