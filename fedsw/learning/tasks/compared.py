"""Columns of the travelling outputs that the penalties of an experiment compare, each with its clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedsw._tools.own_objects import load_object
from fedsw.data.sources import Shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.sections import Also, ObjectiveSettings
from fedsw.learning.objectives import Clip, WeightedSum
from fedsw.learning.objectives.penalties import Penalty, expanded, fields_of, made_of, require_bound


@dataclass(frozen=True)
class Compared:
    """A penalty with its columns among the outputs that travel, and its clip."""

    columns: slice
    clip: Clip
    penalty: Penalty

    @property
    def width(self) -> int:
        """Number of columns d."""
        return int(self.columns.stop - self.columns.start)


def compared_by(objective: WeightedSum, dimension: int, clip: Clip) -> tuple[Compared, ...]:
    """List the columns of every penalty in the order in which they travel; ``clip`` is of those without their own."""
    compared, start = [], 0
    for penalty in objective.penalties:
        d = penalty.dimension or dimension
        compared.append(Compared(slice(start, start + d), penalty.clip or clip, penalty))
        start += d
    return tuple(compared)


def penalty_of(name: str, key: str, values: Mapping[str, Any]) -> Penalty:
    """The penalty of a name, made with those of `values` that it takes.

    ExperimentError, naming the setting by its `key`, if nothing of that name is one; whatever code of one's own raises
    is stated in it.
    """
    try:
        kind = PENALTIES.get(name)
    except ValueError as fault:
        raise ExperimentError(f"{key}: {fault}") from None
    thing = load_object(kind.made, what=key)
    try:
        takes = fields_of(thing) & _NUMBERS if kind.custom else set(kind.takes)
    except TypeError:
        raise ExperimentError(
            f"{key} is {name!r}, a {type(thing).__name__}; name a class derived from fedsw.Penalty, or an object of one"
        ) from None
    arguments = {taken: value for taken, value in values.items() if taken in _SHARED | takes and value is not None}
    try:
        return made_of(thing, arguments)
    except Exception as fault:  # code of the user's own
        raise ExperimentError(f"{key} {name!r} cannot be made ({type(fault).__name__}: {fault})") from fault


_SHARED = {"weight", "outputs", "dimension", "clip", "centre"}
"""Arguments that every penalty takes."""
_NUMBERS = {"groups", "classes"}
"""Numbers of the data set, which a penalty of one's own is made with where it has such a field."""


def _penalties(key: str, goal: ObjectiveSettings | Also, weight: float, shape: Shape, centre: float) -> list[Penalty]:
    """A penalty of the settings; one of one's own as its parts, each for the data set's groups and classes."""
    values: dict[str, Any] = {"weight": weight, "centre": centre, "radius": goal.prior_radius, "order": goal.order}
    values |= {"groups": len(shape.groups), "classes": shape.classes}
    if isinstance(goal, Also):
        values |= {"outputs": goal.outputs, "dimension": goal.dimension}
        if goal.radius is not None and goal.jacobian is not None:
            values["clip"] = Clip(output=goal.radius, jacobian=goal.jacobian, loss=1.0)
    made = penalty_of(goal.penalty, key, values)
    try:
        parts = [part if part is made else _of_data(part, values) for part in expanded([made])]
    except Exception as fault:  # code of the user's own
        raise ExperimentError(
            f"{key} {goal.penalty!r} cannot be taken apart ({type(fault).__name__}: {fault})"
        ) from fault
    return parts


def _of_data(part: Penalty, values: Mapping[str, Any]) -> Penalty:
    """A part with the data set's numbers, about the settings' centre where it names no outputs of its own."""
    arguments = {name: values[name] for name in _NUMBERS if name in fields_of(part)}
    if part.outputs is None and not part.centre:
        arguments["centre"] = values["centre"]
    return replace(part, **arguments)


def objective_of(experiment: Experiment, shape: Shape) -> WeightedSum:
    """The penalties of an experiment that has several, or one of its user's own.

    ExperimentError if one cannot be made, or has nothing that this data set's groups could be compared by.
    """
    goal = experiment.objective
    made = _penalties("objective.penalty", goal, goal.alpha, shape, experiment.clip.centre)
    for index, further in enumerate(goal.also):
        made += _penalties(f"objective.also[{index}].penalty", further, further.weight, shape, further.centre)
    try:
        objective = WeightedSum(tuple(made))
        objective.parts  # noqa: B018  made here, so that what cannot be is refused at load
    except (TypeError, ValueError) as fault:
        raise ExperimentError(f"objective: {fault}") from fault
    for part in objective.parts:
        groups = getattr(part, "groups", len(shape.groups))
        if groups != len(shape.groups):
            raise ExperimentError(
                f"a penalty of your own compares {groups} groups, and the data set has {len(shape.groups)}: give its "
                "class a field `groups`, which is set to their number"
            )
    return objective


def require_stated(objective: WeightedSum, dimension: int, clip: Clip) -> None:
    """Look for a counterexample to every bound that a user states, on made-up outputs; nothing of it is a proof.

    ExperimentError if one is found, or if the user's own code raises or gives other shapes than its outputs have.
    """
    for part, penalty in zip(objective.parts, objective.penalties, strict=True):
        if part.word == "proven" or not penalty.weight:
            continue
        d = penalty.dimension or dimension
        try:
            with torch.random.fork_rng(devices=[]):
                for sizes in ((3,) * len(part.cells), tuple(range(2, 2 + len(part.cells)))):
                    require_bound(penalty, sizes, clip, dimension=d, tries=_TRIES)
        except Exception as fault:  # code of the user's own
            raise ExperimentError(
                f"the bound that {type(penalty).__name__} states for itself does not hold on made-up outputs, or "
                f"cannot be tried: {fault}"
            ) from fault


_TRIES = 100
"""Made-up neighbours that a stated bound is tried on at load, for each of two batches; `require_bound` takes more."""
