"""Laws of the benchmark of one's own data: rows are stored as they come, and the page holds what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.own_data import claims
from benchmarks.own_data.lost import accuracy_table, fairness_table, rates_table
from benchmarks.own_data.page import SUBJECTS, table
from benchmarks.own_data.sets import MADE_UP, split
from benchmarks.own_data.store import measure_missing, rows_of


def test_every_subject_has_a_table_of_what_is_stored() -> None:
    for name in SUBJECTS:
        assert table(name).count("\n|") > 2, name


def test_a_row_is_stored_as_it_comes_and_never_measured_again(tmp_path: Path) -> None:
    seen: list[int] = []

    def work(number: int) -> dict[str, float]:
        seen.append(number)
        if number == 2 and seen.count(2) == 1:
            raise KeyboardInterrupt
        return {"value": number / 2}

    subject = ([(number,) for number in range(4)], work)
    with pytest.raises(KeyboardInterrupt):
        measure_missing("x", subject, tmp_path)
    assert [row["value"] for row in rows_of("x", tmp_path)] == [0.0, 0.5]
    measure_missing("x", subject, tmp_path)
    assert seen == [0, 1, 2, 2, 3] and len(rows_of("x", tmp_path)) == 4
    for row in rows_of("x", tmp_path):
        assert {"processor", "cores", "versions"} <= set(row["measured_on"]) and row["date"]


@pytest.mark.parametrize("name", ["claims", "coverage"])
def test_the_checks_of_what_is_printed_run_under_every_trust_model_that_trains(name: str, tmp_path: Path) -> None:
    made, shown = SUBJECTS[name]
    cells, work = made(tiny=True)
    chosen = [cell for cell in cells if cell[-1] == 0 and (cell[0] != "classification" or cell[1] == "central")][:4]
    measure_missing(name, (chosen, work), tmp_path)
    rows = rows_of(name, tmp_path)
    assert len(rows) == 4 and shown(rows).count("\n") > 4
    if name == "claims":
        assert all(row["claim"] in ("better", "worse", "cannot be told") for row in rows)
    else:
        assert all(isinstance(held, bool) for row in rows for held in row["covered"].values())
        assert all(row["covered"] for row in rows)


def test_enough_runs_are_made_of_every_trust_model() -> None:
    for made in (claims.false_claims, claims.coverage):
        cells, _ = made(tiny=False)
        for trust in claims.TRUSTS:
            for where in claims.WHERE:
                own = [cell for cell in cells if trust in cell and where in cell]
                assert len(own) >= 200


def test_the_made_up_law_uses_a_small_part_of_its_bounds_and_leaves_something_to_learn() -> None:
    of = split(MADE_UP, 0, 20_000)
    spread = of.private.features.std(dim=0)
    assert float(spread.min()) > 0.005 and float(spread.max()) < 0.06
    assert 0.57 < float(of.private.target.float().mean()) < 0.61
    again, other = split(MADE_UP, 0, 100), split(MADE_UP, 1, 100)
    assert np.array_equal(again.private.features, split(MADE_UP, 0, 100).private.features)
    assert not np.array_equal(again.private.features, other.private.features)


def test_small_sets_lie_within_their_bounds_and_no_record_measures_what_it_trained() -> None:
    for name in ("wine", "diabetes", "breast-cancer"):
        of = split(name, 3)
        assert float(of.private.features.min()) >= 0 and float(of.private.features.max()) <= 1
        rows = {tuple(row) for row in of.private.features.tolist()}
        assert len(rows & {tuple(row) for row in of.held_out.features.tolist()}) == 0
        assert of.experiment(1.0).objective.task == ("regression" if name == "diabetes" else "classification")


def test_tables_are_of_means_over_seeds() -> None:
    def row(seed: int, score: float) -> dict[str, object]:
        known = {"words": "x", "score": 0.9}
        return {
            "cell": ["wine", 1.0, seed], "records": 133, "score": score, "constant": 0.4,
            "reference_same": known, "reference_any": known,
        }  # fmt: skip

    assert "| +5.0 (+4.0 to +6.0) | 2 |" in accuracy_table([row(0, 0.86), row(1, 0.84)])
    found = rates_table([{"cell": ["adult", f, 0], "score": s} for f, s in ((1.0, 0.85), (4.0, 0.84))])
    assert "| adult | +0.00 | +1.00 |" in found
    ours = {"error": 0.2, "violation": 0.05, "disparate_impact": 0.85}
    theirs = {f"reference_{key}": value for key, value in ours.items()}
    assert "| 2 | 1 | 1 |" in fairness_table([{"cell": [1.0, 0], **ours, **theirs}])
    json.dumps(row(0, 0.8))


def test_what_round_off_leaves_of_a_constants_r2_is_printed_as_0() -> None:
    row = {"cell": ["diabetes", 1.0, 0], "records": 332, "constant": -2.22e-15, "score": 0.25}
    scores = {f"reference_{kind}": {"score": 0.5} for kind in ("same", "any")}
    assert "| 0 | 0.25 | – | – | 0.5 | 0.5 |" in SUBJECTS["accuracy"][1]([row | scores])
    assert "e-1" not in table("accuracy")
