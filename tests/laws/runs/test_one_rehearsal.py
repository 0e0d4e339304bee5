"""Code of a user's own is tried on records of many magnitudes, the same at every door, before anything is charged."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import fedsw
from fedsw.learning.sketches.maps import OwnMap
from fedsw.mathematics.clipping import UnsupportedModule, record

SETTINGS = {
    "name": "mixed",
    "objective": {"alpha": 0.25},
    "clip": {"output": 1.0, "jacobian": 0.1, "loss": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "training": {"rounds": 2, "batch_fraction": 0.2},
    "federation": {"clients": 2},
}
MIXING = {
    "a divisor above 1": lambda x: x / x.abs().max().clamp(min=1),
    "a divisor above 10": lambda x: x / x.max().clamp(min=10),
    "a divisor above 100 000": lambda x: x / x.max().clamp(min=1e5),
    "centred above 10": lambda x: x - torch.where(x.abs().max() > 10, x.mean(0), 0 * x[0]),
    "centred between 30 and 100": lambda x: x - x.mean(0) if 30 < float(x.detach().max()) < 100 else x,
    "centred below 0": lambda x: x - x.mean(0) if float(x.detach().min()) < 0 else x,
    "shifted by an outlier": lambda x: x - torch.relu(x.max() - 1e3),
    "a share of the rest": lambda x: x / torch.relu(x.sum(0) - 30).add(1),
    "gradients divided by the batch": lambda x: _cut(x),
}


def _cut(x):
    x = x * 1.0
    if x.requires_grad:
        size = x.detach().norm().clamp(min=30)
        x.register_hook(lambda gradient: gradient / size)
    return x


class Mixing(nn.Module):
    def __init__(self, how, dtype=torch.float64):
        super().__init__()
        self.first, self.layer, self.how = nn.Linear(6, 6).to(dtype), nn.Linear(6, 1).to(dtype), how
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(6))
            self.first.bias.zero_()

    def forward(self, x):
        return self.layer(MIXING[self.how](self.first(x)))


def records(count=80):
    x = torch.rand(count, 6, generator=torch.Generator().manual_seed(0)) * 100
    return fedsw.as_records(x, group=torch.arange(count) % 2, groups=[0, 1], target=x[:, 0] > 50, classes=[0, 1])


@pytest.mark.parametrize("how", MIXING)
def test_records_that_are_mixed_beyond_the_unit_cube_are_refused_at_every_door(how):
    objective, clip = fedsw.Objective("classification", [fedsw.Parity(0.25)]), fedsw.Clip(1.0, 0.1, 1.0)
    plan = fedsw.plan(objective, clip, sizes=(40, 40), batch_fraction=0.5, rounds=1, epsilon=1, delta=1e-5, seed=1)
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        objective.gradient(Mixing(how), next(iter(plan.batches(records()))), clip)
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        record(Mixing(how), torch.rand(3, 6).double())


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_what_mixes_beyond_the_unit_cube_is_refused_before_anybody_is_greeted_or_charged(trust, tmp_path):
    """Each client had paid most of the budget, and the round that refused it gave nothing."""
    settings = SETTINGS | {"privacy": SETTINGS["privacy"] | {"trust": trust}}
    with pytest.raises(UnsupportedModule, match="your Mixing.*differs between the batch and the record alone"):
        fedsw.run(settings, model=Mixing("a divisor above 1", torch.float32), data=records(), runs=tmp_path)
    assert not list(tmp_path.rglob("*.sqlite"))


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_a_model_that_passed_at_the_door_is_not_tried_again_in_a_round(trust, tmp_path, monkeypatch):
    from fedsw.mathematics.clipping import refusals

    settings = SETTINGS | {"privacy": SETTINGS["privacy"] | {"trust": trust, "epsilon": 8.0}}
    monkeypatch.setattr(refusals, "_made_up", lambda *given: pytest.fail("tried again"))
    MIXING["nothing"] = lambda x: x
    model = Mixing("nothing", torch.float32)
    assert fedsw.run(settings, model=model, data=records(), runs=tmp_path).summary["status"] == "completed"


class Scaled:
    def __init__(self, bound):
        self.bound = bound

    def width(self, features):
        return features

    def built(self, features, stream):
        bound = self.bound

        class Map(nn.Module):
            def forward(self, x):
                return x / x.abs().max().clamp(min=bound)

        return Map()


def test_a_map_of_a_sketch_that_mixes_rows_beyond_the_unit_cube_is_refused():
    with pytest.raises(ValueError, match="map 'own' mixes rows"):
        OwnMap("own", "{}", Scaled(10.0)).built(4, None)
    assert OwnMap("own", "{}", Scaled(1e9)).built(4, None)


def test_code_that_takes_no_large_values_is_tried_on_those_that_it_takes():
    """An index beyond a table raises in the code of the user, and is no fault of it."""

    class Wards(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(2, 3).double().requires_grad_(False), nn.Linear(3, 1).double()

        def forward(self, x):
            return self.layer(self.table(x[:, 0].long()))

    objective, clip = fedsw.Objective("classification", [fedsw.Parity(0.25)]), fedsw.Clip(1.0, 0.1, 1.0)
    plan = fedsw.plan(objective, clip, sizes=(40, 40), batch_fraction=0.5, rounds=1, epsilon=1, delta=1e-5, seed=1)
    own = records()
    few = fedsw.as_records(own.features / 100, group=own.sensitive, groups=[0, 1], target=own.target, classes=[0, 1])
    assert objective.gradient(Wards(), next(iter(plan.batches(few))), clip)


class OneHot(nn.Module):
    """Centres records whose first inputs say one category: none of those that are made up without the declaration."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        one = ((x == 0) | (x == 1)).all()
        return self.layer(x - torch.where(one, x.mean(0), torch.zeros_like(x[0])))


def test_records_are_made_up_as_columns_are_declared_too(tmp_path):
    columns = {
        "features": [{"name": "job", "categories": ["a", "b", "c"]}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["n", "y"]},
    }
    table = pd.DataFrame({"job": list("abc") * 20, "sex": list("fm") * 30, "ill": list("nnyy") * 15})
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        fedsw.run(
            SETTINGS | {"data": {"source": "object", "columns": columns}}, model=OneHot(), data=table, runs=tmp_path
        )
    assert not list(tmp_path.rglob("*.sqlite"))
