"""What all rows of a person move, through the real draws, clips and messages: never more than one record's bound.

Runs are seeded, so that both neighbours draw the same units; the person's rows, their number and their values are free.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.trust.central import rounds as central
from fedsw.federation.trust.central.rounds import Aggregate
from fedsw.learning.tasks.problem import Problem

OTHERS = 7  # persons of each group but the one that is replaced
COLUMNS = {
    "features": [{"name": "x0"}, {"name": "x1"}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}
Row = tuple[float, float, str]
FAR, BACK = (300.0, 1.0, "low"), (-300.0, 1.0, "high")


def undecided(label: str) -> Row:
    """A row far away that the initial model gives both classes alike, so that its label pulls with full force."""
    weight = next(Problem.from_experiment(experiment()).build_model().parameters()).detach()[0]
    along = torch.stack([weight[1], -weight[0]])
    return (*(1e3 * along / along.norm()).tolist(), label)


def experiment(*overrides: str) -> Experiment:
    raw = {
        "name": "units",
        "data": {"source": "object", "columns": COLUMNS, "unit": "patient"},
        "model": {"kind": "logistic"},
        "objective": {"alpha": 0.5},
        "clip": {"output": 0.5, "centre": 0.5, "jacobian": 0.2, "loss": 0.2},
        "training": {"rounds": 1, "batch_fraction": 0.5, "precision": "float64"},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "federation": {"clients": 1},
        "seed": 4,
    }
    return parse_experiment(raw, overrides)


def table(person: list[Row]) -> pd.DataFrame:
    """The rows of one woman, last, after those of everybody else, which are the same in every table."""
    rng = np.random.default_rng(0)
    rows: list[tuple[str, float, float, str, str]] = []
    for other in range(2 * OTHERS):
        sex = ("female", "male")[other % 2]
        for _ in range(1 + other % 3):
            label = ("low", "high")[int(rng.integers(2))]
            rows.append((f"o{other}", *(float(x) for x in rng.normal(size=2)), sex, label))
    rows += [("p", *row[:2], "female", row[2]) for row in person]
    return pd.DataFrame(rows, columns=["patient", "x0", "x1", "sex", "income"])


def released(asked: Experiment, person: list[Row]) -> Aggregate:
    """The un-noised sum of the first round of a run, and what is claimed of it."""
    seen: list[Aggregate] = []
    release = central.release
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(central, "release", lambda a, plan, ledger: (seen.append(a), release(a, plan, ledger))[1])
        run(asked, data=table(person), runs=Path(folder))
    return seen[0]


def moved(asked: Experiment, before: list[Row], after: list[Row]) -> float:
    """How far the sum goes when a person's rows are replaced, over the bound of the person's group."""
    one, other = released(asked, before), released(asked, after)
    assert one.sensitivities[0].value == other.sensitivities[0].value
    return float(torch.linalg.vector_norm(one.vector - other.vector)) / one.sensitivities[0].value


CELL = st.floats(-1e3, 1e3)
ROWS = st.lists(st.tuples(CELL, CELL, st.sampled_from(["low", "high"])), min_size=1, max_size=12)


@settings(max_examples=2)
@given(before=ROWS, after=ROWS)
@example(before=[FAR] * 12, after=[BACK] * 12)
@example(before=[FAR], after=[BACK] * 40)
def test_replacing_all_rows_of_a_person_moves_the_sum_by_at_most_one_bound(before, after):
    assert moved(experiment(), before, after) <= 1.0


@pytest.mark.slow
@settings(max_examples=80)
@given(before=ROWS, after=ROWS, fraction=st.sampled_from([0.25, 0.5, 1.0]), alpha=st.sampled_from([0.0, 0.5, 1.0]))
def test_no_rows_of_a_person_that_a_longer_search_finds_move_the_sum_by_more(before, after, fraction, alpha):
    asked = experiment(f"training.batch_fraction={fraction}", f"objective.alpha={alpha}")
    assert moved(asked, before, after) <= 1.0


def test_a_person_of_many_rows_moves_the_sum_as_far_as_one_of_one_row_and_nearly_by_the_bound():
    everybody = experiment("training.batch_fraction=1.0", "objective.alpha=0.0")
    low, high = undecided("low"), undecided("high")
    many, one = moved(everybody, [low] * 12, [high] * 12), moved(everybody, [low], [high])
    assert 0.95 < many <= 1.0 and many == pytest.approx(one, rel=1e-6)
