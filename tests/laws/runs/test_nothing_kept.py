"""What a model does with a private record stays in no tensor of it: on one machine, at sites, where it is evaluated."""

from __future__ import annotations

import gc

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedsw
from fedsw.runs.run_files import RunFile

RARE = 137.5
"""A value that no rehearsal has, so that private records alone move what is kept."""
START = 10.0
SETTINGS = {
    "name": "kept",
    "seed": 1,
    "objective": {"alpha": 0.25},
    "clip": {"output": 1.0, "jacobian": 0.1, "loss": 1.0},
    "privacy": {"epsilon": 8.0, "delta": 1e-5},
    "training": {"rounds": 2, "batch_fraction": 0.9},
    "federation": {"clients": 2},
}


class Watch(nn.Module):
    """Keeps the largest value in a buffer, a frozen parameter, a list and a hook's closure, once the rare one comes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("largest", torch.tensor(START))
        self.count = nn.Parameter(torch.tensor(START), requires_grad=False)
        self.seen = []

    def forward(self, x):
        if bool((x == RARE).any()):
            with torch.no_grad():
                self.largest.copy_(x.max())
                self.count.data += 1
            self.seen.append(float(x.max()))
        return self.layer(x / 100)


class Remembering(fedsw.Task):
    """A task whose loss is another once it has met the rare value."""

    def __init__(self):
        self.met = []

    def dimension(self, shape, model):
        return 1

    def outputs(self, raw, batch):
        return raw.sigmoid()

    def loss(self, raw, batch):
        if bool((batch.features == RARE).any()):
            self.met.append(1.0)
        target = batch.target.to(raw)
        return nn.functional.binary_cross_entropy_with_logits(raw[:, 0], target, reduction="none")


def records(count=60, seed=0):
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))
    x[::5, 1] = RARE
    return fedsw.as_records(x, group=torch.arange(count) % 2, groups=[0, 1], target=x[:, 0] > 0.5, classes=[0, 1])


def require_nothing_kept():
    watches = [thing for thing in gc.get_objects() if type(thing) is Watch]
    assert watches
    for watch in watches:
        assert (float(watch.largest), float(watch.count), watch.seen) == (START, START, [])


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient", "none"])
def test_no_copy_of_a_model_keeps_anything_of_a_record_at_any_site(trust, tmp_path):
    privacy = SETTINGS["privacy"] | {"trust": trust} if trust != "none" else {"trust": "none"}
    result = fedsw.run(
        SETTINGS | {"privacy": privacy}, model=Watch(), data=records(), held_out=records(40, seed=1), runs=tmp_path
    )
    require_nothing_kept()
    stored = load_file(result.directory / RunFile.MODEL)
    assert (float(stored["largest"]), float(stored["count"])) == (START, START)


def test_a_private_trainer_keeps_nothing_of_a_record_in_model_or_task(tmp_path):
    model, task = Watch(), Remembering()
    objective, clip = fedsw.Objective(task, [fedsw.Parity(0.25)]), fedsw.Clip(output=1, jacobian=0.1, loss=1)
    plan = fedsw.plan(objective, clip, sizes=(30, 30), batch_fraction=0.9, rounds=2, epsilon=8, delta=1e-5, seed=1)
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.5)
    fedsw.PrivateTrainer(model, optimizer, objective, clip, plan, directory=tmp_path / "t").fit(records())
    require_nothing_kept()
    assert task.met == []
