"""A model and a task that are handed to a run as Python objects, under names that its experiment carries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from fedsw.experiment.held import held, is_held
from fedsw.settings import ExperimentError

if TYPE_CHECKING:
    from torch import nn

    from fedsw.experiment import Experiment
    from fedsw.tasks.task import Task

    ModelObject: TypeAlias = nn.Module | Callable[..., nn.Module]
    TaskObject: TypeAlias = Task | type[Task]


@contextlib.contextmanager
def handed_over(experiment: Experiment, model: ModelObject | None, task: TaskObject | None) -> Iterator[Experiment]:
    """The experiment with these objects in place of model.kind and objective.task, while the block lasts.

    Of [model] the seed and `latent` stay, with arguments where the model that they were for was a user's own; layers
    and the like are the object's.
    """
    with contextlib.ExitStack() as stack:
        changed = experiment.model_dump(exclude_unset=True)
        if model is not None:
            kept = experiment.model.model_dump(include={"seed", "latent", "arguments"}, exclude_unset=True)
            changed["model"] = {**kept, "kind": stack.enter_context(held(model))}
        if task is not None:
            name = stack.enter_context(held(task))
            changed["objective"] = {**changed.get("objective", {}), "task": name}
        yield experiment if model is None and task is None else _validated(changed)


@contextlib.contextmanager
def handed_again(
    experiment: Experiment,
    model: ModelObject | None,
    task: TaskObject | None,
    *,
    purpose: str = "going on",
    call: str = "resume(folder",
) -> Iterator[None]:
    """The objects of a run that goes on or is used, under the names that its experiment knows them by.

    Args:
        purpose, call: what they are needed for and the beginning of the call that takes them, for messages.

    Raises:
        ExperimentError: if one is missing that the run began with, or given that it did not.
    """
    with contextlib.ExitStack() as stack:
        for argument, key, name, thing in (
            ("model", "model.kind", experiment.model.kind, model),
            ("task", "objective.task", experiment.objective.task, task),
        ):
            if is_held(name) and thing is None:
                raise ExperimentError(
                    f"this run's {key} was a Python object, and {purpose} needs it again: {call}, {argument}=...)"
                )
            if not is_held(name) and thing is not None:
                raise ExperimentError(f"this run's {key} is {name!r}, no Python object; leave {argument}= out")
            if thing is not None:
                stack.enter_context(held(thing, name))
        yield


def require_at_hand(experiment: Experiment, engine: str) -> None:
    """Refuse Python objects on engines whose clients are other processes.

    Raises:
        ExperimentError: naming the engine and what to do.
    """
    for key, name in (("model.kind", experiment.model.kind), ("objective.task", experiment.objective.task)):
        if is_held(name) and engine != "inprocess":
            raise ExperimentError(
                f"{key} is a Python object, and the clients of engine {engine!r} are other processes that do not have "
                "it; use engine 'inprocess', or put it in a module and name it as 'module:name'"
            )


def _validated(raw: dict[str, object]) -> Experiment:
    from fedsw.experiment import parse_experiment

    return parse_experiment(raw)
