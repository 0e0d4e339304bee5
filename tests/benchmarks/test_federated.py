"""Laws of the comparison of many parties' synthetic tables: what masks lose is reported, and a row is measured once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.sections import LOST, federated_tables
from benchmarks.synthetic_tables import federated
from benchmarks.synthetic_tables.sets import Table
from fedsw.data.codes import records_of_table
from fedsw.data.columns.declaration import Columns, coded_columns

SCORES = ("logistic_accuracy", "logistic_auc", "boosting_accuracy", "boosting_auc")


def row(trust: str, parties: int, seed: int, score: float) -> dict[str, Any]:
    facts = {"sigma": 9.0, "megabytes_up": 0.1 * parties, "cpu_seconds": 20.0}
    return {"trust": trust, "parties": parties, "seed": seed, **dict.fromkeys(SCORES, score), **facts}


@pytest.mark.parametrize(("lost", "word"), [(LOST / 2, "met"), (2 * LOST, "MISSED")])
def test_the_goal_is_of_the_number_of_parties_that_lose_most(lost: float, word: str) -> None:
    rows = [row("central", 5, seed, 0.8 + 0.1 * seed) for seed in (0, 1)]
    rows += [row("distributed", 5, seed, 0.8 + 0.1 * seed) for seed in (0, 1)]
    rows += [row("distributed", 150, seed, 0.8 + 0.1 * seed - lost) for seed in (0, 1)]
    rows += [row("sketch-local", 5, 0, 0.1), row("central", 150, 2, 0.8)]  # which nothing is compared with
    said = federated_tables({"epsilon": 1.0, "delta": 1e-9, "rows": rows})
    assert said.splitlines()[-1] == (
        f"Masks lose at most 0.005 of every score: {word} (seeds: 2; most: 0.0000 at 5, {lost:.4f} at 150)."
    )
    assert [said.count(f"| {parties} |") for parties in ("any", 5, 150)] == [1, 2, 1] and "0.850 ± 0.071" in said


def clinic() -> Table:
    """A table of three columns, two of which tell of the class."""
    declared = {
        "features": [
            {"name": "age", "kind": "integer", "low": 18, "high": 90},
            {"name": "smokes", "categories": ["no", "yes"]},
        ],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["no", "yes"]},
    }
    columns, draw = Columns.model_validate(declared), np.random.default_rng(3)

    def records(many: int) -> Any:
        age, smokes, sex = draw.integers(18, 91, many), draw.random(many) < 0.4, draw.random(many) < 0.5
        ill = draw.random(many) < np.where(age > 55, 0.75, 0.15) + 0.1 * smokes
        cells = {"age": [str(years) for years in age], "smokes": ["yes" if one else "no" for one in smokes]}
        cells |= {"sex": ["f" if one else "m" for one in sex], "ill": ["yes" if one else "no" for one in ill]}
        return records_of_table(cells, columns)

    coded = coded_columns(columns, bins=16, group_in_cell=False)
    return Table(columns, coded, records(3000), records(500))


@pytest.mark.slow
def test_the_smallest_comparison_measures_the_same_sum_under_every_trust_model() -> None:
    table = clinic()
    rows = {
        trust: federated.measured(table, trust, 4, 1, "training.rounds=40", "sketch.batch=50")
        for trust in federated.TRUST
    }
    central = rows["central"]
    assert rows["distributed"]["sigma"] == pytest.approx(central["sigma"] * math.sqrt(4 / 3), rel=1e-9)
    assert rows["sketch-local"]["sigma"] == pytest.approx(central["sigma"] * 2, rel=1e-9)
    for measured in rows.values():
        assert measured["numbers"] == central["numbers"] and measured["megabytes_up"] > 0
        assert all(measured[name] > 0.7 for name in SCORES), measured
