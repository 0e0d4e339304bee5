"""Laws of own tables' results: who is below a constant is named, and a group that is compared is no input."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.own_data import by_group
from benchmarks.rivals import sets


def drafted(*above: float) -> list[dict]:
    known = {"records": 9, "group": "sex", "clients": 4, "alpha": 0.0, "model": "additive", "constant": 0.8}
    return [{**known, "cell": ["made-up", seed], "accuracy": 0.8 + each} for seed, each in enumerate(above)]


@pytest.mark.parametrize(
    ("above", "words"),
    [((-0.02, -0.03, -0.01), "made-up"), ((0.02, 0.01, 0.03), "nowhere"), ((-0.05, 0.0, 0.04), "nowhere")],
)
def test_runs_below_a_constant_by_more_than_a_standard_error_of_the_differences_are_named(above, words):
    rows = drafted(*above)
    assert by_group.drafted_table(rows).endswith(f"Below a constant by more than a standard error: {words}.")
    moved = [{**row, "accuracy": row["accuracy"] + 0.1 * seed} for seed, row in enumerate(rows)]
    moved = [{**row, "constant": row["constant"] + 0.1 * seed} for seed, row in enumerate(moved)]
    assert by_group.drafted_table(moved).endswith(f"error: {words}.")  # what a split makes hard is hard for both


def shipped(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """A made-up set in place of one that a package ships; the cells of its groups."""
    monkeypatch.setattr(sets, "gettempdir", lambda: str(folder))
    (folder / "fedsw-rivals").mkdir()
    cells = [("no", "yes")[place % 3 == 0] for place in range(count)]
    with (folder / "fedsw-rivals" / "hmda.csv").open("w", newline="") as file:
        ratios = [0.7 * (place % 30) for place in range(count)]
        csv.writer(file).writerows([["deny", "afam", "lvrat"], *zip(cells[::-1], cells, ratios, strict=True)])
    return cells


@pytest.mark.slow
def test_a_set_is_measured_with_thresholds_and_as_it_is_drafted(tmp_path, monkeypatch):
    shipped(tmp_path, monkeypatch, 400)
    python = {"python": str(tmp_path)}
    _, with_thresholds = by_group.thresholds(tiny=False, **python)
    row = with_thresholds("hmda", "central", 0.2, "parity", 0)
    assert 0 <= row["accuracy"] <= 1 and len(row["bands"]) == 2 and row["records"] == 300
    _, as_drafted = by_group.drafted(tiny=False, **python)
    row = as_drafted("hmda", 0)
    assert (row["clients"], row["alpha"], row["epsilon"], row["records"]) == (4, 0.0, 1.0, 300)


@pytest.mark.parametrize(("grouped", "groups"), [(False, ("a", "b")), (True, ("no", "yes"))])
def test_a_group_that_is_compared_is_no_input(tmp_path, monkeypatch, grouped, groups):
    cells = shipped(tmp_path, monkeypatch, 40)
    of = sets.parted("hmda", 0, str(tmp_path), grouped=grouped)
    assert of.columns.groups == groups and of.columns.inputs == (1 if grouped else 3)
    private, held_out = sets.halves(40, 0)
    assert sorted([*private, *held_out]) == list(range(40)) and len(held_out) == 10
    if grouped:
        assert of.private.sensitive.tolist() == [int(cells[row] == "yes") for row in private]
