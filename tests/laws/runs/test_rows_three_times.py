"""A table with every row three times is said to be one: its persons' epsilon is three times a row's."""

from __future__ import annotations

import csv
import logging
import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fedsw
from fedsw.data.units import repeats_of_records
from fedsw.desk.own_data import examine as examine_module
from fedsw.desk.own_data.examine import examine
from fedsw.experiment import parse_experiment

SETTINGS = {
    "name": "thrice",
    "objective": {"alpha": 0.25},
    "privacy": {"epsilon": 8.0, "delta": 1e-4},
    "training": {"rounds": 1, "batch_fraction": 0.2},
    "federation": {"clients": 2},
}


def records(times, count=40, coarse=False, unit=False):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, (count, 3)) if coarse else draw.normal(size=(count, 3))
    rows = np.tile(np.arange(count), times)
    named = {"unit": [str(row) for row in rows]} if unit else {}
    return fedsw.as_records(
        torch.tensor(x[rows]).float(), group=rows % 2, groups=[0, 1], target=(rows // 2) % 2, classes=[0, 1], **named
    )


def fit(own, folder):
    objective, clip = fedsw.Objective("classification", [fedsw.Parity(0.25)]), fedsw.Clip(1.0, 0.1, 1.0)
    sizes = tuple(int((own.sensitive == group).sum()) for group in (0, 1))
    plan = fedsw.plan(objective, clip, sizes=sizes, batch_fraction=0.2, rounds=1, epsilon=8, delta=1e-4)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fedsw.PrivateTrainer(model, optimizer, objective, clip, plan, directory=folder).fit(own)


def test_rows_that_equal_others_are_counted_with_what_it_means():
    said = repeats_of_records(records(3))
    assert said.startswith("120 of 120 rows equal another one exactly, one of them 3 times: epsilon is for one row.")
    assert said.endswith("it is up to 3 times as large for that person")
    assert repeats_of_records(records(1)) is None and repeats_of_records(records(3, unit=True)) is None
    assert repeats_of_records(records(1, count=20, coarse=True)) is None  # few rows of 27 kinds are equal by chance
    assert "120 of 120" in repeats_of_records(records(3, coarse=True))


def test_a_private_trainer_warns_of_rows_that_equal_others_and_names_unit(tmp_path):
    with pytest.warns(UserWarning, match=r"120 of 120 rows equal another one.*as_records\(..., unit=...\)"):
        fit(records(3), tmp_path / "thrice")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(records(1), tmp_path / "once")


def test_a_client_writes_it_in_its_own_log_and_the_server_hears_nothing(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedsw.clients"):
        result = fedsw.run(SETTINGS, data=records(3), runs=tmp_path)
    said = [line.getMessage() for line in caplog.records if "rows equal others exactly" in line.getMessage()]
    assert said and not any(re.search(r"\d", text) for text in said)
    written = [path.read_bytes() for path in result.directory.rglob("*") if path.is_file()]
    assert not any(b"equal another one" in text for text in written)


@pytest.mark.parametrize("times", [1, 3])
def test_check_says_it_of_a_file(times, tmp_path):
    draw = random.Random(0)
    rows = [[draw.randint(18, 90), round(draw.random(), 3), draw.choice("fm"), draw.choice("yn")] for _ in range(50)]
    (tmp_path / "0").mkdir()
    with (tmp_path / "0" / "records.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "dose", "sex", "ill"], *(rows * times)])
    columns = {
        "features": [{"name": "age", "low": 18, "high": 90}, {"name": "dose", "low": 0, "high": 1}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["n", "y"]},
    }
    data = {"source": "files", "columns": columns}
    experiment = parse_experiment({**SETTINGS, "data": data, "federation": {"clients": 1}})
    said = examine(experiment, tmp_path).files[0].warnings
    assert bool(said) == (times == 3)
    assert times == 1 or "150 of 150 rows equal another one" in said[0] and "unit in [data]" in said[0]


@pytest.mark.parametrize("doubled", [0, 300])
def test_check_tells_rows_of_whole_numbers_and_gaps_apart_and_counts_those_that_are_equal(doubled, tmp_path):
    rows = [
        [a, "" if b == 0 else b, c, "fm"[c % 2], "yn"[a % 2]] for a in range(20) for b in range(24) for c in range(20)
    ]
    random.Random(0).shuffle(rows)
    (tmp_path / "0").mkdir()
    with (tmp_path / "0" / "records.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "sex", "ill"], *rows, *rows[:doubled]])
    whole = {"kind": "integer", "low": 0, "high": 30}
    columns = {
        "features": [{"name": name, **whole} for name in "ac"]
        + [{"name": "b", "low": 0, "high": 30, "missing": [""], "fill": 0}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["n", "y"]},
    }
    raw = {**SETTINGS, "data": {"source": "files", "columns": columns}, "federation": {"clients": 1}}
    heard = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine_module, "repeats_said", lambda marks, **more: heard.append((len(np.unique(marks)), more)))
        examine(parse_experiment(raw), tmp_path)
    assert heard == [(9600, {"most_values": 24})] and len(rows) == 9600
