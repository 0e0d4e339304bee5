"""Methods that are compared (trust models with an algorithm, baselines) and tasks (an experiment and its utility)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from fedsw._tools.section import Arguments
from fedsw._tools.settings import read_setting
from fedsw._tools.text import nearest
from fedsw.desk.baselines.run_baseline import refusal
from fedsw.experiment import FULL_EVALUATION, Experiment, ExperimentError, load_experiment
from fedsw.experiment.load import SHIPPED, shipped
from fedsw.experiment.sections import Section
from fedsw.experiment.task_kinds import TASKS, task_facts
from fedsw.experiment.trust import trust_models

_FILE = SHIPPED / "comparisons" / "methods.toml"
_WITHOUT_PRIVACY = ("reference", "unclipped")
"""Methods that are shown before one for every trust model."""


def _readable(setting: str) -> str:
    read_setting(setting)
    return setting


ReadableSettings = tuple[Annotated[str, AfterValidator(_readable)], ...]


class Method(Section):
    """A trust model with an algorithm: one line about it, and the settings that choose it.

    ``baseline`` names one (`baselines.run_baseline`) that then trains in place of a run, with its own ``arguments``.
    """

    what: str
    set: ReadableSettings
    baseline: str | None = None
    arguments: Arguments = {}


class ComparedTask(Section):
    """A shipped experiment of the same name, what its models are judged by, and how each method runs it.

    Models are judged by a held-out ``metric``; ``methods`` are compared if nothing is asked for, ``baselines`` where
    they are asked for; settings are ``set`` for every method, or ``tuned`` for one by its name.
    """

    metric: str
    better: Literal["higher", "lower"]
    beside: tuple[str, ...] = ()
    methods: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    set: ReadableSettings = ()
    tuned: dict[str, ReadableSettings] = {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The utility, then what is shown beside it."""
        return (self.metric, *self.beside)


class Comparable(Section):
    """All methods and tasks; every method that a task names is one."""

    method: dict[str, Method]
    task: dict[str, ComparedTask]

    @model_validator(mode="after")
    def _names_are_known(self) -> Comparable:
        for name, task in self.task.items():
            for method in (*task.methods, *task.baselines, *task.tuned):
                if method not in self.method:
                    raise ValueError(f"task {name!r} names the method {method!r}, which is not among [method]")
        return self


def methods() -> dict[str, Method]:
    """Every method by name: those of the table, and one for every trust model that has none there."""
    written = _comparable().method
    chosen = {setting for method in written.values() for setting in method.set}
    others = {name: f"privacy.trust={name}" for name in trust_models() if f"privacy.trust={name}" not in chosen}
    more = {name: Method(what=f"{trust_models()[name].leaves}", set=(choice,)) for name, choice in others.items()}
    return {**written, **more}


def tasks() -> dict[str, ComparedTask]:
    """The tasks with a shipped experiment, by name."""
    return {name: task for name, task in _comparable().task.items() if name in shipped()}


def is_own(name: str) -> bool:
    """Say whether a task is a TOML file of the user's own, and not the name of a shipped one."""
    return name.endswith(".toml")


def find_task(name: str) -> ComparedTask:
    """The task of that name, or what an experiment in a TOML file is compared on."""
    if is_own(name):
        return _own(name)
    known = tasks()
    if name not in known:
        raise ExperimentError(_unknown("task", name, known))
    return known[name]


def build(task: str, method: str, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment with which a method runs a task; ExperimentError names the methods that can."""
    chosen = find_task(task)
    if method not in methods():
        raise ExperimentError(_unknown("method", method, methods()))
    method_settings = methods()[method].set
    if reason := _refusal(task, methods()[method]):
        can = ", ".join(able(task))
        raise ExperimentError(f"{method!r} cannot run the task {task!r}: {reason}\nMethods that can: {can}")
    settings = [FULL_EVALUATION, *chosen.set, *method_settings, *chosen.tuned.get(method, ()), *overrides]
    return load_experiment(_file_of(task), settings)


def fixed_by(method: str) -> tuple[tuple[str, ...], ...]:
    """The keys that a method sets: what it is; none for an unknown one."""
    return tuple(read_setting(setting)[0] for setting in methods()[method].set) if method in methods() else ()


def able(task: str) -> tuple[str, ...]:
    """The methods that can run a task, found by building its experiment with each."""
    return tuple(name for name, method in methods().items() if _refusal(task, method) is None)


def _own(name: str) -> ComparedTask:
    """Return how an experiment of the user's own is judged, and one method for every trust model that can run it."""
    experiment = load_experiment(_file_of(name))
    kind = experiment.objective.task
    judged = task_facts(kind).judged
    if judged is None:
        known = ", ".join(named for named, task in TASKS.items() if task.facts.judged is not None)
        raise ExperimentError(
            f"{name} has objective.task {kind!r}, which does not say what its models are judged by; experiments of "
            f"your own are compared on {known}, or on a task with `judged` among its facts"
        )
    can = able(name)
    # the first method of every trust model that is not a baseline and no other of these, in the registry's order
    first = dict[str, str]()
    for method, entry in methods().items():
        if entry.baseline is None:
            first.setdefault(entry.set[0], method)
    named = [first[f"privacy.trust={trust}"] for trust in trust_models() if f"privacy.trust={trust}" in first]
    chosen = tuple(method for method in (*_WITHOUT_PRIVACY, *named) if method in can)
    return ComparedTask(metric=judged.metric, better=judged.better, beside=judged.beside, methods=chosen)


def _file_of(task: str) -> Path:
    return Path(task).expanduser() if is_own(task) else shipped()[task]


def _refusal(task: str, method: Method) -> str | None:
    """Say why a task's experiment cannot take a method's settings; of several reasons that of the trust model."""
    settings = method.set
    trust = [setting for setting in settings if read_setting(setting)[0] == ("privacy", "trust")]
    task_settings = () if is_own(task) else find_task(task).set
    try:
        experiment = load_experiment(_file_of(task), [*task_settings, *settings])
    except ExperimentError as fault:
        whole = str(fault)
    else:
        return None if method.baseline is None else refusal(method.baseline, experiment)
    try:
        load_experiment(_file_of(task), trust)
    except ExperimentError as fault:
        return str(fault).removeprefix("experiment: ")
    return whole.removeprefix("experiment: ")


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"no {kind} {name!r}; {nearest(name, names)}known: {', '.join(names)}"


@functools.cache
def _comparable() -> Comparable:
    return Comparable.model_validate(tomllib.loads(_FILE.read_text(encoding="utf-8")))
