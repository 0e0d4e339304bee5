"""A folder goes on with the training that was begun in it, and with nothing else; without one every training is new."""

from __future__ import annotations

import dataclasses
import pickle
import warnings

import pytest
import torch
from torch import nn

import fedsw
from fedsw.learning.models import flatten
from fedsw.learning.objectives import Clip
from tests.runs.single.examples import Scores, records

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)


class Stop(Exception):
    pass


class Softer(Scores):
    """Another task of as many outputs."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def loss(self, raw, batch):
        return self.factor * super().loss(raw, batch)


class Scored(nn.Module):
    """A network with a score, of any activation."""

    def __init__(self, activation=torch.tanh, width=5):
        super().__init__()
        self.body, self.head, self.activation = nn.Linear(3, width), nn.Linear(width, 1), activation

    def forward(self, x):
        return {"score": self.head(self.activation(self.body(x)))}


BEGUN = {
    "weight": 0.25, "centre": 0.0, "task": Scores, "direction_seed": 0, "micro_batch": 65_536, "activation": torch.tanh,
    "make": torch.optim.SGD, "lr": 0.1, "schedule": True, "jacobian": 1.0,
    "plan": {"rounds": 4, "epsilon": 2.0, "delta": 1e-4, "batch_fraction": 0.5, "seed": 1},
}  # fmt: skip


def trainer(folder, observer=None, **other):
    """A trainer over a folder, which differs from the others in what is given."""
    asked = {**BEGUN, **other, "plan": {**BEGUN["plan"], **other.get("plan", {})}}
    torch.manual_seed(0)
    net = Scored(asked["activation"]).double()
    penalty = fedsw.Parity(asked["weight"], centre=asked["centre"])
    objective = fedsw.Objective(
        asked["task"](), [penalty], direction_seed=asked["direction_seed"], micro_batch=asked["micro_batch"]
    )
    clip = dataclasses.replace(CLIP, jacobian=asked["jacobian"])
    optimizer = asked["make"](net.parameters(), lr=asked["lr"])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if asked["schedule"] else None
    found = fedsw.plan(objective, clip, sizes=(24, 24), **asked["plan"])
    return fedsw.PrivateTrainer(
        net, optimizer, objective, clip, found, scheduler=schedule, directory=folder, observer=observer
    )


def stop(line):
    if line["round"] == 2:
        raise Stop


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder whose training stopped after two rounds."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        trainer(folder, stop).fit(records())
    return folder


OTHERS = {
    "another alpha": ({"weight": 0.75}, r"objective.penalties\[0\].weight was 0.25 and is 0.75"),
    "another centre": ({"centre": 0.1}, r"penalties\[0\].centre was 0.0 and is 0.1"),
    "another rate": ({"lr": 1.0}, "optimizer.group 0.lr was 0.1 and is 1.0"),
    "another optimizer": ({"make": torch.optim.Adam}, "optimizer was 'SGD' and is 'Adam'"),
    "no schedule": ({"schedule": False}, "scheduler was 'StepLR' and is 'none'"),
    "another clip": ({"jacobian": 0.1}, "clip.jacobian was 1.0 and is 0.1"),
    "fewer rounds": ({"plan": {"rounds": 3}}, "plan.rounds was 4 and is 3"),
    "more rounds": ({"plan": {"rounds": 8}}, "plan.rounds was 4 and is 8"),
    "larger batches": ({"plan": {"batch_fraction": 0.75}}, r"plan.batch\[0\] was 12 and is 18"),
    "another seed": ({"plan": {"seed": 2}}, "plan.seed was 1 and is 2"),
    "no seed": ({"plan": {"seed": None}}, r"with a seed \(nominal\); this plan .*, without a seed"),
    "another epsilon": ({"plan": {"epsilon": 1.0}}, "holds a run of epsilon 2 .*this plan is for epsilon 1 "),
    "another delta": ({"plan": {"delta": 1e-3}}, "at delta 0.0001 .* epsilon 2 at delta 0.001"),
    "another network of as many numbers": ({"activation": torch.relu}, "model.activation was 'tanh' and is 'relu'"),
    "another task": ({"task": Softer}, "objective.task was 'Scores' and is 'Softer'"),
    "other directions": ({"direction_seed": 3}, "objective.direction_seed was 0 and is 3"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_goes_on_with_nothing_but_what_was_begun_in_it(stopped, name):
    """The old model had come back, 0 rounds trained, without a word."""
    other, said = OTHERS[name]
    before = (stopped / "ledger.sqlite").read_bytes()
    with pytest.raises(ValueError, match=said):
        trainer(stopped, **other).fit(records())
    assert (stopped / "ledger.sqlite").read_bytes() == before


def test_a_training_with_secret_noise_does_not_go_on_with_a_seed(tmp_path):
    """Its ledger says that nobody can draw its noise again, and would go on saying it."""
    with pytest.raises(Stop):
        trainer(tmp_path, stop, plan={"seed": None}).fit(records())
    with pytest.raises(ValueError, match=r", without a seed; this plan .* with a seed \(nominal\)"):
        trainer(tmp_path, plan={"seed": 3}).fit(records())


def test_values_of_a_users_own_task_and_code_are_what_was_begun(tmp_path):
    one = trainer(tmp_path, task=lambda: Softer(0.5))
    with pytest.raises(Stop):
        trainer(tmp_path, stop, task=lambda: Softer(0.5)).fit(records())
    for task, said in ((lambda: Softer(0.25), "objective.task.factor was 0.5 and is 0.25"), (Recoded, "code")):
        with pytest.raises(ValueError, match=said):
            trainer(tmp_path, task=task).fit(records())
    assert one.fit(records()) and one.rounds == 4


def Recoded():
    """An object of a class of the same name with another loss."""

    class Softer(Scores):
        factor = 0.5

        def loss(self, raw, batch):
            return 2.0 * super().loss(raw, batch)

    made = Softer()
    made.factor = 0.5
    Softer.__qualname__ = "Softer"
    return made


def test_what_changes_no_number_may_change_and_the_same_goes_on_in_one_process_and_the_next(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.fit(records())
    with pytest.raises(Stop):
        (first := trainer(tmp_path / "parts", stop)).fit(records())
    again = trainer(tmp_path / "parts", micro_batch=7)
    assert torch.allclose(flatten(again.fit(records())), flatten(whole.model), atol=1e-12)
    # A cell of a notebook that runs again has the same network, optimizer and schedule, which have moved.
    with pytest.raises(Stop):
        (first := trainer(tmp_path / "cell", stop)).fit(records())
    cell = fedsw.PrivateTrainer(
        first.model, first.optimizer, first.objective, first.clip, first.plan,
        scheduler=first.scheduler, directory=tmp_path / "cell",
    )  # fmt: skip
    assert torch.equal(flatten(cell.fit(records())), flatten(whole.model)) and cell.rounds == 4


def test_a_finished_folder_says_so_and_trains_nothing(tmp_path):
    trainer(tmp_path / "run").fit(records())
    again = trainer(tmp_path / "run")
    with pytest.warns(UserWarning, match="holds a training that is finished: 4 rounds, .*nothing was trained"):
        again.fit(records())
    assert again.rounds == 4


def test_every_training_without_a_folder_has_a_fresh_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = trainer(None), trainer(None, weight=0.75)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [flatten(each.fit(records())) for each in (one, two)]
    assert not torch.equal(*models) and one.rounds == two.rounds == 4
    assert one.directory != two.directory and one.directory.parent.name == "private-training"
    assert len(list((tmp_path / "private-training").iterdir())) == 2


def test_a_training_that_breaks_off_says_where_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop) as stopped:
        (first := trainer(None, stop)).fit(records())
    assert f"PrivateTrainer(..., directory={str(first.directory)!r}) goes on" in stopped.value.__notes__[0]
    again = trainer(first.directory)
    assert again.fit(records()) and again.rounds == 4


def test_a_folder_that_does_not_say_what_was_begun_in_it_goes_on_with_nothing(stopped, tmp_path):
    copy = tmp_path / "copy"
    with pytest.raises(Stop):
        trainer(copy, stop).fit(records())
    (copy / "training.json").unlink()
    with pytest.raises(ValueError, match=r"a ledger and no training\.json"):
        trainer(copy).fit(records())


def test_trainers_are_pickled_with_what_they_train(tmp_path):
    whole = trainer(tmp_path / "whole")
    again = pickle.loads(pickle.dumps(trainer(tmp_path / "again")))
    assert torch.equal(flatten(again.fit(records())), flatten(whole.fit(records())))
