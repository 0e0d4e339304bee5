"""A task or a model of the user's own: found, made, and tried on made-up records before anything is spent."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.clipping import UnsupportedModule
from fedsw.clipping.outputs import Form
from fedsw.experiment import Experiment, ExperimentError, Objective
from fedsw.experiment.choices import shipped_task
from fedsw.experiment.compatibility import misfit
from fedsw.experiment.extensions import is_reference, load_object
from fedsw.experiment.no_effect import without_effect
from fedsw.experiment.sources import Shape
from fedsw.tasks.per_record import MADE_UP, made_up_targets, require_per_record
from fedsw.tasks.task import Inputs, Task


def task_of(experiment: Experiment) -> Task:
    """The task that an experiment names, made; one of the user's own is checked against the other settings.

    Raises:
        ExperimentError: if it cannot be found or made, is no task, or does not go with the other settings.
    """
    goal = experiment.objective
    found = shipped_task(goal.task) or load_object(goal.task, what="objective.task")
    task = _made(found, goal)
    if is_reference(goal.task):
        refused = misfit(experiment, task) or without_effect(experiment, task, unsafe_metrics=experiment.unsafe_metrics)
        if refused:
            raise ExperimentError(f"experiment: {refused}")
    return task


def require_fit(
    task: Task, model: nn.Module, features: Tensor, shape: Shape, *, dimension: int, alpha: float, name: str
) -> None:
    """Refuse a task and a model whose outputs and losses are not (n, d) and (n,), finite, differentiable, per record.

    The features are made up and so are the targets: no record is looked at. What this cannot see: values that are not
    finite, or records that are mixed, for certain values only.

    Args:
        task: of the experiment.
        model: freshly initialised.
        features: (3, p), made up, as the model takes them.
        shape: what is public of the data.
        dimension: d that the task states.
        alpha: weight of the penalty; a loss of weight 0 is not looked at, nor are outputs of weight 0.
        name: of task and model, for messages.

    Raises:
        ExperimentError, UnsupportedModule: naming what is wrong and what to write instead.
    """
    given = Inputs(features.double(), made_up_targets(shape.classes, shape.targets), shape)
    fresh = copy.deepcopy(model).double()
    with torch.random.fork_rng(devices=[]):
        raw = _run(lambda: fresh(given.features), f"{name}: the model does not take records {tuple(features.shape)}")
        _run(lambda: Form.of(raw), f"{name}: the model returned nothing that can be clipped")
        outputs = _run(lambda: task.outputs(raw, given), f"{name}: the task's outputs cannot be computed")
        losses = _run(lambda: task.loss(raw, given), f"{name}: the task's loss cannot be computed")
    _require_values(f"{name}: outputs", outputs, (MADE_UP, dimension), trained=alpha > 0)
    _require_values(f"{name}: the loss", losses, (MADE_UP,), trained=alpha < 1)
    try:
        require_per_record(fresh, given, lambda raw, inputs: [task.outputs(raw, inputs), task.loss(raw, inputs)])
    except UnsupportedModule as fault:
        raise UnsupportedModule(f"{name}: {fault}") from None
    except ValueError as fault:
        raise ExperimentError(f"{name}: {fault}") from None


def require_same_frozen(one: nn.Module, other: nn.Module, *, name: str) -> None:
    """Refuse a model whose frozen values differ from one making to the next: they do not travel with the trained ones.

    Raises:
        ExperimentError: naming the first that differs.
    """
    trained = {key for key, value in one.named_parameters() if value.requires_grad}
    there = other.state_dict()
    for key, value in one.state_dict().items():
        same = key in there and value.shape == there[key].shape and torch.equal(value, there[key])
        if key not in trained and not same:
            raise ExperimentError(
                f"{name}: {key!r} is not trained and differs between two makings of the model, so that server and "
                "clients would not have the same one; read it from a file, or draw it from torch after the seed is set"
            )


def _made(found: Any, goal: Objective) -> Task:
    if isinstance(found, Task):
        if goal.arguments:
            raise ExperimentError(f"objective.arguments are given, and objective.task {goal.task!r} is made already")
        return found
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ExperimentError(
            f"objective.task {goal.task!r} names {found!r}; it must be a class derived from fedsw.tasks.task.Task, or "
            "an object of one"
        )
    made: Task = _run(
        lambda: found(**goal.arguments), f"objective.task {goal.task!r} cannot be made with {goal.arguments}"
    )
    return made


def _run(code: Any, what: str) -> Any:
    """What the user's own code returns; what it raises says where."""
    try:
        return code()
    except UnsupportedModule:
        raise
    except Exception as fault:
        raise ExperimentError(f"{what} ({type(fault).__name__}: {fault})") from fault


def _require_values(what: str, values: Any, shape: tuple[int, ...], *, trained: bool) -> None:
    if not isinstance(values, Tensor) or not values.is_floating_point() or tuple(values.shape) != shape:
        found = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ExperimentError(f"{what} of {shape[0]} records: {found}; a float tensor of shape {shape} is expected")
    if not bool(values.isfinite().all()):
        raise ExperimentError(f"{what} of made-up records in the unit cube: not finite; clamp what overflows")
    if trained and not values.requires_grad:
        raise ExperimentError(
            f"{what}: no gradient reaches a trained parameter of the model; compute it from what the model returns, "
            "without detach(), and leave some parameter with requires_grad"
        )
