"""What the settings choose among: tasks, models, penalties by name, and which settings each has."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Protocol

from fedsw.experiment.kinds import TASKS, Facts, task_names
from fedsw.experiment.registry import is_reference, load_object
from fedsw.experiment.sections import Clip, Data, Local, Model, Objective, Partition, Privacy, Sketch, Training
from fedsw.experiment.sections.privacy import LocalT
from fedsw.settings import ExperimentError


class Settings(Protocol):
    """The sections of an experiment that must go together."""

    @property
    def data(self) -> Data:
        """Section [data]."""

    @property
    def partition(self) -> Partition:
        """Section [partition]."""

    @property
    def model(self) -> Model:
        """Section [model]."""

    @property
    def objective(self) -> Objective:
        """Section [objective]."""

    @property
    def clip(self) -> Clip:
        """Section [clip]."""

    @property
    def training(self) -> Training:
        """Section [training]."""

    @property
    def privacy(self) -> Privacy:
        """Section [privacy]."""

    @property
    def local(self) -> Local:
        """Section [local]."""

    def own(self, kind: type[LocalT]) -> LocalT:
        """Section [local] of a trust model that has that class for it."""

    @property
    def sketch(self) -> Sketch:
        """Section [sketch]."""

    @property
    def unsafe_metrics(self) -> bool:
        """Whether training losses are asked for."""


class TaskKind(Protocol):
    """What an experiment is checked against: a task of `fedsw.tasks.task`, or its class."""

    @property
    def facts(self) -> Facts:
        """What it goes together with."""

    def misfit(self, settings: Settings) -> str | None:
        """What does not go with it beyond its facts."""


@functools.cache
def shipped_tasks() -> Mapping[str, TaskKind]:
    """The shipped tasks by name. Their files import what computes where they use it: this stays light."""
    return {name: importlib.import_module(f"{TASKS}.{name}").TASK for name in task_names()}


def shipped_task(name: str) -> TaskKind | None:
    """A shipped task; None for one of a user's own, which is loaded when the experiment is made concrete."""
    return shipped_tasks().get(name)


def task_facts(name: str) -> Facts:
    """The facts of any task that an experiment names; imports it.

    Raises:
        ExperimentError: if it is a user's own and cannot be found, or has no facts.
    """
    kind = shipped_task(name) or load_object(name, what="objective.task")
    facts = getattr(kind, "facts", None)
    if not isinstance(facts, Facts):
        raise ExperimentError(
            f"objective.task {name!r} names {kind!r}; it must be a class derived from fedsw.tasks.task.Task, or an "
            "object of one"
        )
    return facts


def references(settings: Settings) -> Iterator[tuple[str, str]]:
    """Every `module:name` of a task, a model, a source of records or a map: code that runs at nodes, after its key."""
    named = {
        "objective.task": settings.objective.task,
        "model.kind": settings.model.kind,
        "data.source": settings.data.source,
        "sketch.map": settings.sketch.map,
        **{f"sketch.also[{place}].map": part.map for place, part in enumerate(settings.sketch.also)},
    }
    return ((key, value) for key, value in named.items() if is_reference(value))
