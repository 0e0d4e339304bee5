"""Laws of units on one machine: persons are drawn as in a federation, and the plan says so."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

import fedsw
from fedsw.data import BadRecords
from fedsw.federation.node.node import Node
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.problem import Problem
from tests.federations import small
from tests.runs.single.examples import Scores, model, records

OBJECTIVE = fedsw.Objective(Scores(), [fedsw.Parity(0.5)])


def visits(n: int = 48):
    """Two records a person, but for the first two, who have all others of their groups."""
    index = torch.arange(n)
    return replace(records(n), unit=torch.where(index < 8, index, index % 2))


def plan(**other):
    asked = {"sizes": (4, 4), "batch_fraction": 0.5, "rounds": 40, "epsilon": 50.0, "delta": 1e-3, "unit": "patient"}
    return fedsw.plan(OBJECTIVE, Clip(output=0.5, jacobian=1.0, loss=1.0), **{**asked, **other})


@pytest.mark.parametrize("seed", [None, 3])
def test_a_batch_holds_one_row_of_each_drawn_person_and_is_drawn_anew(seed):
    batches = [batch.records for batch in plan(seed=seed).batches(visits())]
    assert all(len(set(batch.unit.tolist())) == len(batch) == 4 for batch in batches)
    assert len({tuple(batch.ids.tolist()) for batch in batches}) > 20  # about 36 of 40


def test_the_plan_speaks_of_persons_and_fits_no_records_of_nobody():
    said = plan().guarantee
    assert "of each 'patient', for the replacement of all of its records by any other within its stratum" in said
    with pytest.raises(ValueError, match="the plan is for 'patient', and these records lack privacy units"):
        next(plan().batches(records(8)))
    with pytest.raises(ValueError, match="the plan is for records, and these records have privacy units"):
        next(plan(unit=None).batches(visits()))
    with pytest.raises(ValueError, match="has 4 units and the plan is for 24"):
        next(plan(sizes=(24, 24)).batches(visits()))


def test_a_person_in_two_strata_is_refused():
    torn = replace(visits(), unit=torch.arange(48) // 2)
    with pytest.raises(BadRecords, match="rows 0 and 1 .* are of one unit and differ in stratum"):
        next(plan().batches(torn))


def test_a_seeded_draw_is_that_of_a_federation_of_the_same_persons():
    experiment = small("federation.clients=1", "data.records=48", "seed=3", "data.seed=2")
    task = Problem.from_experiment(experiment)
    own = visits()
    wide = replace(own, features=torch.zeros((48, task.features)))
    node = Node(task, wide, tuple(torch.arange(8).numpy()[group::2] for group in range(2)), task.build_model())
    batch = next(plan(seed=3).batches(own))
    key = task.seeded_batch_key(1, batch.attempt)
    assert node.draw(key, list(batch.sizes)).ids.tolist() == batch.records.ids.tolist()


def test_a_trainer_learns_from_persons(tmp_path):
    frame = pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.4] * 6, "y": list("abab") * 6, "g": list("ffmm") * 6})
    found = fedsw.as_records(
        frame.assign(z=1.0, w=2.0), group="g", target="y", unit=[f"{row % 4}{row // 8}" for row in range(24)]
    )
    assert list(found.rows_by_group.values()) == [6, 6]
    net = model()
    asked = plan(sizes=list(found.rows_by_group.values()), rounds=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = fedsw.PrivateTrainer(
        net, optimizer, OBJECTIVE, Clip(output=0.5, jacobian=1.0, loss=1.0), asked, directory=tmp_path
    )
    trainer.fit(found)
    assert trainer.rounds == 2
