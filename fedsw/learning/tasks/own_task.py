"""Tasks and models of a user's own: tried on made-up records before anything is spent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools.own_objects import is_reference, load_object
from fedsw._tools.randomness import Stream
from fedsw.data.sources import Shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.compatibility import misfit
from fedsw.experiment.sections import ObjectiveSettings
from fedsw.experiment.task_kinds import shipped_task
from fedsw.learning.tasks.task import Inputs, Raw, Task
from fedsw.mathematics.clipping import OutputForm, UnsupportedModule, probe_moved, remember

MADE_UP = 3
"""How many records are made up."""

Compared = Callable[[Raw, Inputs], Sequence[Tensor]]
"""From what a model returns for n records, and the records, to outputs (n, d) and losses (n,)."""


def require_per_record(model: nn.Module, batch: Inputs, compared: Compared, declared: Tensor | None = None) -> None:
    """Refuse outputs and losses of which row i depends on more than record i: no clip bounds what they move.

    A copy of the model with slightly moved parameters takes the records together and one by one, in float64, or in the
    model's own type where the code takes no float64. What the model returns is compared, with outputs, losses and all
    their gradients: on the batch, on records of many magnitudes (`fedsw.mathematics.clipping.magnitudes`), and on
    features that are drawn as columns are ``declared``, (m, p) or None. `record` then takes the model on these shapes
    untried. No private record is looked at, and no random generator moves. What this cannot see: records that are mixed
    for other values only, or only in larger batches.

    The model stays as it is. ``batch`` is at least two distinct made-up records; ``compared`` is the user's own code:
    outputs (n, d) and losses (n,). UnsupportedModule names what differs; ValueError if the values are not finite, and
    whatever the user's own code raises.
    """

    def probed(tried: nn.Module, values: Sequence[Any]) -> tuple[nn.Module, Callable[[Any], Sequence[Tensor]]]:
        with torch.no_grad():
            form = OutputForm.of(tried(values[0]))
        handing = _WithTargets(tried, batch, compared, form)
        return handing, handing.heads

    rows = None if declared is None else torch.arange(len(declared)) % len(batch.target)
    also = [] if declared is None or rows is None else [[declared.to(batch.features), batch.target[rows]]]
    try:
        probe_moved(model, [batch.features, batch.target], probed, also=also)
    except UnsupportedModule as fault:
        raise UnsupportedModule(
            f"outputs and losses are clipped by record, so row i may depend on record i only; {fault}"
        ) from None
    remember(model, [batch.features])


def made_up_features(seed: int, width: int) -> Tensor:
    """Distinct made-up records (3, width) float32, uniform in the unit cube."""
    drawn = Stream.seeded(seed, "made-up records").uniforms(MADE_UP * width)
    return torch.from_numpy(drawn.reshape(MADE_UP, width).astype(np.float32))


def made_up_targets(classes: int, targets: int) -> Tensor:
    """Targets for them: classes (3,) int64, or numbers (3, targets) float64 in (0, 1)."""
    if targets:
        drawn = Stream.seeded(0, "made-up targets").uniforms(MADE_UP * targets)
        return torch.from_numpy(drawn.reshape(MADE_UP, targets))
    return torch.arange(MADE_UP) % max(1, classes)


class _WithTargets(nn.Module):
    """A model that hands its inputs through, so that what is probed is a function of what it returns."""

    def __init__(self, model: nn.Module, batch: Inputs, compared: Compared, form: OutputForm) -> None:
        super().__init__()
        self.model = model
        self._given, self._compared, self._form = batch, compared, form

    def forward(self, features: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return (*self._form.parts(self.model(features)), features, target)

    def heads(self, raw: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Return the model's outputs and losses, from the results of `forward`."""
        *parts, features, target = raw
        inputs = replace(self._given, features=features, target=target)
        return [*parts, *self._compared(self._form.arranged(parts), inputs)]


def task_of(experiment: Experiment) -> Task:
    """The task that an experiment names, made: ExperimentError if it cannot be, or does not fit the other settings."""
    goal = experiment.objective
    task = _made(shipped_task(goal.task) or load_object(goal.task, what="objective.task"), goal)
    if is_reference(goal.task) and (refused := misfit(experiment, task)):
        raise ExperimentError(f"experiment: {refused}")
    return task


def require_fit(
    task: Task,
    model: nn.Module,
    features: Tensor,
    shape: Shape,
    *,
    dimension: int,
    width: int,
    alpha: float,
    name: str,
    heads: Compared = lambda raw, batch: (),
    declared: Tensor | None = None,
) -> None:
    """Refuse a task and a model unless outputs and losses are (n, d) and (n,), finite, differentiable, per record.

    Refused, too, are those that change the records that they are called with. The features are made up and so are the
    targets: no record is looked at. What this cannot see: values that are not finite, or records that are mixed, for
    other values only (`require_per_record`).

    ``model`` is freshly initialised, ``features`` (3, p) as it takes them, ``dimension`` the d that the task states,
    ``width`` how many numbers a record it asks the model for. A loss of weight 0 by ``alpha`` is not looked at, nor are
    outputs of weight 0. ``heads`` are what penalties of the user's own compare. ExperimentError, UnsupportedModule,
    naming what is wrong and what to write instead.
    """
    batch = Inputs(features.double().clone(), made_up_targets(shape.classes, shape.targets).clone(), shape)
    fresh = copy.deepcopy(model).double()
    with torch.random.fork_rng(devices=[]):
        raw = _run(lambda: fresh(batch.features), f"{name}: the model does not take records {tuple(features.shape)}")
        _run(lambda: OutputForm.of(raw), f"{name}: the model returned nothing that can be clipped")
        said = name
        if isinstance(raw, Tensor) and raw.shape != (wanted := (len(raw), width)):
            said += f": the model returns {tuple(raw.shape)} for {len(raw)} records, and the task asks it for {wanted}"
        outputs = _run(lambda: task.outputs(raw, batch), f"{said}: the task's outputs cannot be computed")
        losses = _run(lambda: task.loss(raw, batch), f"{said}: the task's loss cannot be computed")
        with torch.no_grad():  # as held-out records are looked at
            fresh(batch.features)
    if batch.features._version or batch.target._version:
        raise ExperimentError(
            f"{name}: the model or the task changes the records in place (as a first layer with inplace=True does), "
            "so later computations see other records: let it change a copy"
        )
    _require_values(f"{name}: outputs", outputs, (MADE_UP, dimension), trained=alpha > 0)
    _require_values(f"{name}: the loss", losses, (MADE_UP,), trained=alpha < 1)
    try:
        require_per_record(
            fresh,
            batch,
            lambda raw, inputs: [task.outputs(raw, inputs), *heads(raw, inputs), task.loss(raw, inputs)],
            declared,
        )
    except UnsupportedModule as fault:
        raise UnsupportedModule(f"{name}: {fault}") from None
    except ValueError as fault:
        raise ExperimentError(f"{name}: {fault}") from None


def require_same_frozen(one: nn.Module, other: nn.Module, *, name: str) -> None:
    """Raise ExperimentError for frozen values that differ from one making to the next: only trained ones travel."""
    trained = {key for key, value in one.named_parameters() if value.requires_grad}
    others = other.state_dict()
    for key, value in one.state_dict().items():
        same = key in others and value.shape == others[key].shape and torch.equal(value, others[key])
        if key not in trained and not same:
            raise ExperimentError(
                f"{name}: {key!r} is not trained and differs between two makings of the model, so that server and "
                "clients would not have the same one; read it from a file, or draw it from torch after the seed is set"
            )


def _made(loaded: Any, goal: ObjectiveSettings) -> Task:
    if isinstance(loaded, Task):
        if goal.arguments:
            raise ExperimentError(f"objective.arguments are given, and objective.task {goal.task!r} is made already")
        return loaded
    if not (isinstance(loaded, type) and issubclass(loaded, Task)):
        raise ExperimentError(
            f"objective.task {goal.task!r} names {loaded!r}; it must be a class derived from fedsw.Task, or "
            "an object of one"
        )
    made: Task = _run(
        lambda: loaded(**goal.arguments), f"objective.task {goal.task!r} cannot be made with {goal.arguments}"
    )
    return made


def _run(code: Any, what: str) -> Any:
    try:
        return code()
    except UnsupportedModule:
        raise
    except Exception as fault:
        raise ExperimentError(f"{what} ({type(fault).__name__}: {fault})") from fault


def _require_values(what: str, values: Any, shape: tuple[int, ...], *, trained: bool) -> None:
    if not isinstance(values, Tensor) or not values.is_floating_point() or tuple(values.shape) != shape:
        description = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ExperimentError(
            f"{what} of {shape[0]} records: {description}; a float tensor of shape {shape} is expected"
        )
    if not bool(values.isfinite().all()):
        raise ExperimentError(f"{what} of made-up records in the unit cube: not finite; clamp what overflows")
    if trained and not values.requires_grad:
        raise ExperimentError(
            f"{what}: no gradient reaches a trained parameter of the model; compute it from what the model returns, "
            "without detach(), and leave some parameter with requires_grad"
        )
