"""Laws of optimizers and schedulers by name: torch's own steps along released vectors, resumed bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch

from fedsw.experiment import ExperimentError
from fedsw.experiment.sections import Training
from fedsw.runs import checkpoint
from fedsw.runs.optimizer import PlainOptimizer, Trainer, signal_to_noise
from tests.federations import small

START = torch.linspace(-1, 1, 7, dtype=torch.float64)
VECTORS = [torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(6)]


def stepped(settings: Training) -> list[torch.Tensor]:
    trainer = Trainer(START, settings)
    found = []
    for vector in VECTORS:
        trainer.step(vector)
        found.append(trainer.theta.clone())
    return found


def torchs(optimizer, arguments, scheduler=None, scheduler_arguments=None) -> list[torch.Tensor]:
    """The same steps with torch alone."""
    parameter = torch.nn.Parameter(START.clone())
    made = getattr(torch.optim, optimizer)([parameter], lr=0.1, **arguments)
    moving = scheduler and getattr(torch.optim.lr_scheduler, scheduler)(made, **scheduler_arguments)
    found = []
    for vector in VECTORS:
        parameter.grad = vector.clone()
        made.step()
        if moving:
            moving.step()
        found.append(parameter.detach().clone())
    return found


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"betas": [0.8, 0.9]}),
        ("AdamW", {"weight_decay": 0.1}),
        ("RMSprop", {"alpha": 0.7}),
        ("Adagrad", {}),
        ("NAdam", {}),
        ("Rprop", {}),
    ],
)
def test_an_optimizer_by_name_takes_torchs_steps(name, arguments):
    settings = Training(optimizer=name, optimizer_arguments=arguments, learning_rate=0.1)
    for own, expected in zip(stepped(settings), torchs(name, arguments), strict=True):
        assert torch.equal(own, expected)


@pytest.mark.parametrize(
    ("settings", "name", "arguments"),
    [
        ({"optimizer": "sgd"}, "SGD", {"momentum": 0.0}),
        ({"optimizer": "sgd", "momentum": 0.5}, "SGD", {"momentum": 0.5}),
        ({"optimizer": "adam"}, "Adam", {"betas": (0.9, 0.999)}),
        ({"optimizer": "adam", "momentum": 0.5, "second_moment": 0.9}, "Adam", {"betas": (0.5, 0.9)}),
    ],
)
def test_sgd_and_adam_are_what_they_were(settings, name, arguments):
    for own, expected in zip(stepped(Training(learning_rate=0.1, **settings)), torchs(name, arguments), strict=True):
        assert torch.equal(own, expected)


@pytest.mark.parametrize(
    ("name", "arguments"), [("SGD", {"momentum": 0.0}), ("SGD", {"momentum": 0.5}), ("Adam", {"betas": (0.5, 0.9)})]
)
def test_the_state_of_sgd_and_adam_is_torchs_which_either_goes_on_from(name, arguments):
    kind, made = getattr(torch.optim, name), []
    for make in (PlainOptimizer, lambda kind, parameter, **own: kind([parameter], **own)):
        parameter = torch.nn.Parameter(START.clone())
        made.append((parameter, make(kind, parameter, lr=0.1, **arguments)))
    assert made[0][1].state_dict() == made[1][1].state_dict()
    for round_, vector in enumerate(VECTORS):
        for parameter, optimizer in made:
            parameter.grad = vector.clone()
            optimizer.step()
        own, theirs = (copy.deepcopy(optimizer.state_dict()) for _, optimizer in made)
        torch.testing.assert_close(own["state"], theirs["state"], rtol=0, atol=0)
        assert own["param_groups"] == theirs["param_groups"] and torch.equal(made[0][0], made[1][0])
        if round_ == 2:
            made[0][1].load_state_dict(theirs)
            made[1][1].load_state_dict(own)
    with pytest.raises(ValueError, match="AdamW is not plain; SGD and Adam are"):
        PlainOptimizer(torch.optim.AdamW, made[0][0])


@pytest.mark.parametrize(
    ("scheduler", "arguments"),
    [
        ("CosineAnnealingLR", {"T_max": 6}),
        ("StepLR", {"step_size": 2, "gamma": 0.1}),
        ("MultiStepLR", {"milestones": [2, 4]}),
        ("OneCycleLR", {"max_lr": 0.5, "total_steps": 10}),
    ],
)
def test_a_scheduler_moves_the_rate_once_a_round_and_resumes_bit_for_bit(tmp_path, scheduler, arguments):
    settings = Training(
        optimizer="AdamW",
        learning_rate=0.1,
        scheduler=scheduler,
        scheduler_arguments=arguments,
        averaging=0.5,
        rounds=6,
    )
    expected = torchs("AdamW", {}, scheduler, arguments)
    for own, theirs in zip(stepped(settings), expected, strict=True):
        assert torch.equal(own, theirs)
    first = Trainer(START, settings)
    checkpoints = checkpoint.Checkpoints(tmp_path, first.step, first.state, lambda: None)
    for round_, vector in enumerate(VECTORS[:3], start=1):
        checkpoints.take(round_, vector)
    second, state = Trainer(START, settings), checkpoint.load(tmp_path)
    assert state is not None and state.round == 0 and state.last.round == 3
    second.restore(state)
    third = Trainer(START, settings)  # of a whole state of round 3, with nothing to step along again
    third.restore(copy.deepcopy(first.state()))
    for vector in VECTORS[3:]:
        first.step(vector)
        second.step(vector)
        third.step(vector)
    assert torch.equal(third.theta, second.theta) and torch.equal(third.model, second.model)
    assert torch.equal(second.theta, expected[-1]) and torch.equal(first.model, second.model)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optimizer": "AdamWW"}, "training.optimizer 'AdamWW' is unknown; nearest known: 'AdamW'.*'sgd', 'adam'"),
        ({"optimizer": "Optimizer"}, "training.optimizer 'Optimizer' is unknown"),
        ({"optimizer": "lr_scheduler"}, "training.optimizer 'lr_scheduler' is unknown"),
        ({"optimizer": "LBFGS"}, "training.optimizer 'LBFGS': .*cannot step along a released gradient.*needs no more"),
        ({"optimizer": "SparseAdam"}, "'SparseAdam': .*cannot step along a released gradient"),
        (
            {"rounds": 6, "scheduler": "OneCycleLR", "scheduler_arguments": {"max_lr": 1.0, "total_steps": 3}},
            "training.scheduler 'OneCycleLR': .*cannot step once in each of 6 rounds.*lasts as long",
        ),
        ({"optimizer": "AdamW", "optimizer_arguments": {"betta": 1}}, "'AdamW' does not take .*betta"),
        ({"optimizer": "AdamW", "optimizer_arguments": {"weight_decay": -1}}, "'AdamW' does not take.*weight_decay"),
        ({"scheduler": "ReduceLROnPlateau"}, "follows a loss, and none is released every round"),
        ({"scheduler": "LambdaLR"}, "training.scheduler 'LambdaLR' does not take"),
        ({"scheduler": "CosineLR"}, "training.scheduler 'CosineLR' is unknown; nearest known"),
    ],
)
def test_what_cannot_step_is_refused_before_anybody_is_greeted(settings, reason):
    with pytest.raises(ExperimentError, match=reason):
        Trainer(START, Training(**settings))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("training.optimizer=AdamW", "training.momentum=0.5"), "momentum is for 'sgd' and 'adam'"),
        (("training.optimizer=AdamW", "training.second_moment=0.5"), "second_moment is for 'sgd' and 'adam'"),
        (("training.optimizer_arguments.nesterov=true",), "optimizer_arguments are for optimizers of torch.optim"),
        (("training.optimizer=SGD", "training.optimizer_arguments.lr=1.0"), "that is learning_rate: leave it out"),
        (("training.scheduler_arguments.T_max=3",), "no scheduler"),
        (("training.scheduler=StepLR", "training.decay=0.5"), "both move the learning rate; keep one"),
        (("training.optimizer='__import__(1)'",), "training.optimizer"),
    ],
)
def test_settings_of_the_optimizer_that_nothing_reads_are_refused_at_load(overrides, reason):
    with pytest.raises(ExperimentError, match=reason):
        small(*overrides)


def test_a_run_with_any_optimizer_has_the_same_guarantee(federation):
    plain = federation.run(small("seed=1"))
    schedule = ("training.scheduler=StepLR", "training.scheduler_arguments.step_size=2")
    other = federation.run(small("seed=1", "training.optimizer=AdamW", *schedule))
    assert plain["guarantee"] == other["guarantee"] and plain["epsilon_spent"] == other["epsilon_spent"]


def test_an_unknown_optimizer_ends_a_run_before_anything_is_kept(federation):
    with pytest.raises(ExperimentError, match="nearest known: 'AdamW'"):
        federation.run(small("training.optimizer=AdmW"))
    assert not list(federation.folder.glob("run1/ledger*"))


def test_the_ratio_of_signal_to_noise_is_read_off_the_norm_of_what_was_released():
    noise = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ratio in (0.5, 2.0):
        square = float((3 * noise + 3 * ratio).square().sum())
        assert signal_to_noise(square, 3.0, len(noise)) == pytest.approx(ratio, abs=0.02)
