"""Optimizers and schedulers are tried on copies: what could not step in every round is refused before a charge."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import fedsw
from fedsw.learning.objectives import Clip
from fedsw.runs.stepping import restore
from tests.runs.single.examples import Scores, model

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)
OBJECTIVE = fedsw.Objective(Scores(), [fedsw.Parity(0.5)])
PLAN = fedsw.plan(OBJECTIVE, CLIP, sizes=(24, 24), batch_fraction=0.5, rounds=6, epsilon=5.0, delta=1e-3, seed=2)


def sgd(net):
    return optim.SGD(net.parameters(), lr=0.1)


def other(optimizer):
    return lr_scheduler.StepLR(optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), 1)


class Kept(optim.SGD):
    """An optimizer with a part of its own, which `copy.deepcopy` would leave out."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.factor = 2.0

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-self.factor * group["lr"])


class Unloadable(lr_scheduler.StepLR):
    """A scheduler that keeps what torch stores as code."""

    def __init__(self, optimizer):
        super().__init__(optimizer, 1)
        self.law = lr_scheduler.StepLR


REFUSED = {
    "LBFGS": (lambda net: optim.LBFGS(net.parameters()), None, "LBFGS cannot step along a released gradient.*closure"),
    "SparseAdam": (lambda net: optim.SparseAdam(net.parameters()), None, "SparseAdam cannot step.*dense"),
    "capturable": (lambda net: optim.Adam(net.parameters(), capturable=True), None, "Adam cannot step.*capturable"),
    "plateau": (sgd, lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau cannot step once in each of 6 rounds"),
    "too short": (sgd, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=5), "OneCycleLR cannot step once in each"),
    "another optimizer's": (sgd, other, "StepLR changes the rates of another optimizer"),
    "unloadable": (sgd, Unloadable, "SGD with Unloadable keeps state that a checkpoint cannot hold"),
}


def made(folder, net, optimizer, schedule):
    optimizer = optimizer(net)
    scheduler = None if schedule is None else schedule(optimizer)
    return fedsw.PrivateTrainer(net, optimizer, OBJECTIVE, CLIP, PLAN, scheduler=scheduler, directory=folder)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_step_in_every_round_is_refused_before_there_is_a_folder(tmp_path, name):
    optimizer, schedule, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        made(tmp_path / "run", model(), optimizer, schedule)
    assert not (tmp_path / "run").exists()


TAKEN = {
    "one cycle": (sgd, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6)),
    "a law of rates": (sgd, lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1))),
    "restarts": (sgd, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2)),
    "one after the other": (
        sgd,
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [1]),
    ),
    "an own optimizer": (lambda net: Kept(net.parameters(), 0.1), None),
    "all at once": (
        sgd,
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]),
    ),
    "groups": (lambda net: optim.AdamW([{"params": [p]} for p in net.parameters()], lr=0.1), None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_rehearsal_leaves_model_optimizer_and_scheduler_as_they_were(tmp_path, name):
    net = model()
    optimizer, schedule = TAKEN[name]
    stepping = optimizer(net)
    scheduler = None if schedule is None else schedule(stepping)
    both = [each for each in (stepping, scheduler) if each is not None]
    before = copy.deepcopy([net.state_dict(), *(each.state_dict() for each in both)])
    fedsw.PrivateTrainer(net, stepping, OBJECTIVE, CLIP, PLAN, scheduler=scheduler, directory=tmp_path / "run")
    assert str(before) == str([net.state_dict(), *(each.state_dict() for each in both)])
    assert all(parameter.grad is None for parameter in net.parameters()) and not (tmp_path / "run").exists()


DENSE = {
    name: kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


@pytest.mark.parametrize("name", DENSE)
def test_an_optimizer_of_torch_goes_on_from_its_stored_state_bit_for_bit(name):
    def made():
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3))
        return parameter, DENSE[name]([parameter], lr=0.1)

    def step(parameter, optimizer, seed):
        parameter.grad = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        optimizer.step()

    whole, first = made()
    for seed in range(3):
        step(whole, first, seed)
    content = io.BytesIO()
    torch.save([whole.detach(), first.state_dict()], content)
    values, state = torch.load(io.BytesIO(content.getvalue()), weights_only=True)
    again, second = made()
    again.data.copy_(values)
    restore(second, state)
    for seed in range(3, 6):
        step(whole, first, seed)
        step(again, second, seed)
        assert torch.equal(whole, again)
