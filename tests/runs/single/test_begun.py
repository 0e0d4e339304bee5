"""A folder goes on with the training that was begun in it, and with nothing else; without one every training is new."""

from __future__ import annotations

import dataclasses
import json
import pickle
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedsw
from fedsw.learning.models import flatten
from fedsw.learning.objectives import Clip
from fedsw.privacy.accounting.lifetime import accounts_folder
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
    for task, said in (
        (lambda: Softer(0.25), "objective.task.factor is another than it was"),
        (Recoded, "code is another"),
    ):
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


class Holding(Scores):
    """A task that holds something, and weighs its loss by it."""

    def __init__(self, held=None, weigh=None):
        self.held, self.weigh = held, weigh or Holding.one

    @staticmethod
    def one(held):
        return 1.0

    def loss(self, raw, batch):
        return self.weigh(self.held) * super().loss(raw, batch)


class Slots:
    __slots__ = ("weight", "__weakref__")

    def __init__(self, weight):
        self.weight = weight


class Globally(Holding):
    def loss(self, raw, batch):
        return helped() * super().loss(raw, batch)


def helped():
    return WEIGHT


class Locked(Holding):
    def loss(self, raw, batch):
        with LOCK:
            return super().loss(raw, batch)


WEIGHT, LOCK = 1.0, threading.Lock()
HELD = {
    "a table's column": lambda number: pd.Series([number]),
    "a table": lambda number: pd.DataFrame({"name": ["Anna"], "weight": [number]}),
    "a slot": Slots,
    "a closure": lambda number: lambda held: number,
    "objects": lambda number: np.array([number, "Anna", None], dtype=object),
    "texts": lambda number: np.array(["Anna", f"{number}"]),
    "dates": lambda number: np.array([np.datetime64("1961-04-02") + round(number)]),
    "a sparse tensor": lambda number: torch.tensor([[0.0, number]]).to_sparse(),
    "a list in itself": lambda number: (it := [number], it.append(it))[0],
    "a set": lambda number: {"Anna", number},
    "a module": lambda number: nn.Linear(2, round(number)),
}


@pytest.mark.parametrize(
    "name",  # all that the class of a table names is put back after every pass
    [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("a table") else []) for name in HELD],
)
def test_whatever_a_task_holds_is_what_was_begun(tmp_path, name):
    make = HELD[name]
    with pytest.raises(Stop):
        trainer(tmp_path, stop, task=lambda: Holding(make(1.0))).fit(records())
    with pytest.raises(ValueError, match="objective.task.held is another than it was"):
        trainer(tmp_path, task=lambda: Holding(make(2.0))).fit(records())
    torch.manual_seed(0)
    trainer(tmp_path, task=lambda: Holding(make(1.0))).fit(records())


@pytest.mark.parametrize("name", ["a global", "a helper", "a closure of what it is made with"])
def test_what_the_code_of_a_task_names_is_what_was_begun(tmp_path, monkeypatch, name):
    made = {"a closure of what it is made with": lambda weight: Holding(weigh=lambda held: weight)}
    make = made.get(name, lambda weight: Globally())
    with pytest.raises(Stop):
        trainer(tmp_path, stop, task=lambda: make(1.0)).fit(records())
    trainer(tmp_path / "again", stop, task=lambda: make(1.0))
    if name == "a global":
        monkeypatch.setitem(globals(), "WEIGHT", 2.0)
    if name == "a helper":
        monkeypatch.setitem(globals(), "helped", lambda: 2.0)
    with pytest.raises(ValueError, match=r"objective\.task\.(code|weigh) is another than it was"):
        trainer(tmp_path, task=lambda: make(2.0)).fit(records())


def test_what_a_folder_says_was_begun_tells_nothing_that_a_task_or_a_model_holds(tmp_path):
    """It was read: a person's name in the clear, and a class count from the digest of two numbers."""

    class Private(Holding):
        def __init__(self):
            super().__init__(["Anna Meier, 1961-04-02"], None)
            self.counts, self.share = torch.tensor([160.0, 240.0]), 0.6000000238418579
            setattr(self, "Bernd Maier", 1)

        def loss(self, raw, batch):
            return (self.counts.sum() / self.counts.sum()) * self.share * super().loss(raw, batch)

    texts = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        made = trainer(folder, stop, task=Private)
        made.model.withdrew = {"Anna Meier": 7531}
        made.model.register_buffer("largest", torch.tensor(137.5))
        again = fedsw.PrivateTrainer(
            made.model, made.optimizer, made.objective, made.clip, made.plan, directory=folder, observer=stop
        )
        with pytest.raises(Stop):
            again.fit(records())
        texts.append((folder / "training.json").read_text())
    for word in ("Anna", "Bernd", "1961-04", "0.6", "137.5", "withdrew"):  # no word that a digest may hold
        assert not any(word in text for text in texts), word
    one, two = map(json.loads, texts)
    assert one.keys() == two.keys() and "objective.task.counts" in one and "objective.task.other attributes" in one
    keyed = [name for name, value in one.items() if str(value).startswith("keyed ")]
    assert {"objective.task.counts", "objective.task.share", "objective.task.held"} <= {*keyed}
    assert all(one[name] != two[name] for name in keyed)  # each folder has a key of its own
    keys = accounts_folder() / "keys"
    assert {one["key"], two["key"]} <= {path.name for path in keys.iterdir()}
    assert (keys / one["key"]).stat().st_mode & 0o077 == 0
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and (keys / one["key"]).read_bytes() in path.read_bytes()
    ]


def test_a_folder_without_its_key_goes_on_and_says_what_cannot_be_told(tmp_path):
    with pytest.raises(Stop):
        trainer(tmp_path, stop, task=lambda: Softer(0.5)).fit(records())
    (accounts_folder() / "keys" / json.loads((tmp_path / "training.json").read_text())["key"]).unlink()
    with pytest.raises(ValueError, match="clip.jacobian was 1.0 and is 0.1"):
        trainer(tmp_path, task=lambda: Softer(0.5), jacobian=0.1).fit(records())
    with pytest.warns(UserWarning, match=r"cannot be told \(the key of its training.json .*objective.task.factor"):
        trainer(tmp_path, task=lambda: Softer(0.25)).fit(records())


def test_what_cannot_be_described_is_said_when_a_training_goes_on(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Stop):
            trainer(tmp_path, stop, task=Locked).fit(records())
    with pytest.warns(
        UserWarning, match=r"cannot be told: objective.task.code \(of lock\). That they are is your unproven assertion"
    ):
        trainer(tmp_path, task=Locked).fit(records())


def test_a_layer_that_knows_its_parent_is_described(tmp_path):
    made = trainer(tmp_path / "run")
    vars(made.model.body)["parent"] = made.model
    again = fedsw.PrivateTrainer(made.model, made.optimizer, made.objective, made.clip, made.plan, directory=tmp_path)
    assert again.fit(records()) and again.rounds == 4


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
    assert f"PrivateTrainer(..., directory={str(first.directory)!r}) resumes" in stopped.value.__notes__[0]
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
