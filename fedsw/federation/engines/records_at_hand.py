"""Records that come from Python: put where the clients of a run find them, and checked before anything is spent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from fedsw._tools.own_objects import absence, fresh_name, held, is_held
from fedsw._tools.settings import ExperimentError
from fedsw.data import own_records, require_groups
from fedsw.data.settings import Data
from fedsw.data.sources import load_held_out, require_apart, require_one_client_each, require_runnable
from fedsw.experiment import Experiment, parse_experiment

if TYPE_CHECKING:
    from torch import nn

    from fedsw.learning.tasks.task import Task

    ModelObject: TypeAlias = nn.Module | Callable[..., nn.Module]
    TaskObject: TypeAlias = Task | type[Task]


@contextlib.contextmanager
def at_hand(experiment: Experiment, data: object, held_out: object, *, engine: str) -> Iterator[Experiment]:
    """Make records that come from Python available to the clients while the block lasts; yields the experiment.

    The experiment then states what is public of the records: their columns, and for Python objects their types and
    numbers of records.

    Args:
        data, held_out: see `fedsw.federation.engines.driver.run`; None if `data.source` says where records are.

    Raises:
        ExperimentError: if records cannot be reached, or their declarations do not fit each other or the experiment.
        BadRecords, ValueError: for records that cannot be used, are also held out, or of a unit at several clients.
    """
    spec = experiment.data
    if data is None and held_out is not None:
        raise ExperimentError("held_out is given and data is not; name a file in data.held_out, or pass both")
    if data is not None:
        source = _object_source(spec, held_out, engine)
        passed = _passed(experiment, data, held_out)
        ready = _completed(experiment, passed, source, source if held_out is not None else spec.held_out)
    elif (refusal := absence(spec.source)) is not None:
        raise ExperimentError(refusal)
    elif (module := spec.module) is not None:
        source = module
        passed = own_records.loaded(source, spec.columns, experiment.federation.clients, what="data.source")
        ready = _completed(experiment, passed, source, spec.held_out)
    else:
        require_runnable(
            experiment.data, experiment.federation.clients, named=experiment.name, elsewhere=engine == "deployed"
        )
        require_one_client_each(experiment.data, experiment.federation.clients)
        yield experiment
        return
    with held(passed, source):
        records = load_held_out(ready.record_source)
    if records is not None:
        require_apart(records, passed.parts, ready.data, what="held_out")
    with held(dataclasses.replace(passed, held_out=records), source):
        yield ready


def _object_source(spec: Data, held_out: object, engine: str) -> str:
    """Name under which a run's objects are found: the stored one for a resumed run, else a fresh one."""
    if engine != "inprocess":
        raise ExperimentError(
            f"engine {engine!r} has its clients in other processes, where these Python objects are not; use engine "
            "'inprocess', or data.source = 'module:name', a function that every client calls"
        )
    if absence(spec.source) is None and "source" in spec.model_fields_set:
        raise ExperimentError(
            f"data.source is {spec.source!r} and data is passed too; set data = {{source = 'object'}}, or pass no data"
        )
    if spec.objects and (held_out is not None) != (spec.held_out == spec.source):
        began = "with" if spec.held_out == spec.source else "without"
        raise ExperimentError(f"this run began {began} an object held_out; go on {began} it")
    if held_out is not None and spec.held_out not in (None, spec.source):
        raise ExperimentError(f"data.held_out is {spec.held_out!r} and held_out is passed too; keep one")
    return spec.source if is_held(spec.source) else fresh_name()


def _passed(experiment: Experiment, data: object, held_out: object) -> own_records.Own:
    """The objects of a run, which are as many and as large as those that it began with."""
    spec = experiment.data
    passed = own_records.read_all(data, spec.columns, experiment.federation.clients, what="data")
    if spec.objects and passed.described != spec.objects:
        began, now = (
            "; ".join(f"{one.kind} with {one.records} records" for one in objects)
            for objects in (spec.objects, passed.described)
        )
        raise ExperimentError(f"this run began with the records of {began}, and goes on with them only; data is {now}")
    if held_out is None:
        return passed
    records = own_records.read_one(held_out, passed.columns, what="held_out")
    require_groups(records, "held_out", passed.columns.groups)
    return dataclasses.replace(passed, held_out=records)


def _completed(experiment: Experiment, passed: own_records.Own, source: str, held_out: str | None) -> Experiment:
    raw = experiment.model_dump()
    raw["data"] |= {"source": source, "columns": passed.columns.model_dump(), "held_out": held_out}
    if experiment.data.columns is None:
        raw["data"]["read_off"] = passed.read_off
    if experiment.data.module is None and not experiment.privacy.hides_sizes:
        raw["data"]["objects"] = [one.model_dump() for one in passed.described]
    try:
        return parse_experiment(raw)
    except ExperimentError as fault:
        if experiment.data.columns is not None:
            raise
        raise ExperimentError(
            f"{fault}. Read the records with fedsw.data.as_records(..., group=..., target=...), or declare data.columns"
        ) from None


@contextlib.contextmanager
def handed_over(experiment: Experiment, model: ModelObject | None, task: TaskObject | None) -> Iterator[Experiment]:
    """The experiment with these objects in place of model.kind and objective.task, while the block lasts.

    Of [model] the seed and `latent` stay, with arguments where the model that they were for was a user's own; layers
    and the like are the object's.
    """
    with contextlib.ExitStack() as stack:
        changed = experiment.model_dump(exclude_unset=True)
        if model is not None:
            fields = experiment.model.model_dump(include={"seed", "latent", "arguments"}, exclude_unset=True)
            changed["model"] = {**fields, "kind": stack.enter_context(held(model))}
        if task is not None:
            name = stack.enter_context(held(task))
            changed["objective"] = {**changed.get("objective", {}), "task": name}
        yield experiment if model is None and task is None else parse_experiment(changed)


@contextlib.contextmanager
def handed_again(
    experiment: Experiment,
    model: ModelObject | None,
    task: TaskObject | None,
    *,
    purpose: str = "going on",
    call: str = "resume(folder",
) -> Iterator[None]:
    """The objects of a run that is resumed or used, under the names that its experiment has for them.

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
    """Refuse Python objects on engines with clients in other processes."""
    for key, name in (("model.kind", experiment.model.kind), ("objective.task", experiment.objective.task)):
        if is_held(name) and engine != "inprocess":
            raise ExperimentError(
                f"{key} is a Python object, and the clients of engine {engine!r} are other processes that do not have "
                "it; use engine 'inprocess', or put it in a module and name it as 'module:name'"
            )
