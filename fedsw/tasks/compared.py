"""What the penalties of an experiment compare: columns of the outputs that travel, each with its clip."""

from __future__ import annotations

from dataclasses import dataclass

from fedsw.experiment import Experiment
from fedsw.experiment.sections import Also
from fedsw.experiment.sections import Objective as ObjectiveSettings
from fedsw.experiment.sources import Shape
from fedsw.objectives import Clip, Objective
from fedsw.objectives.composite import Composite
from fedsw.objectives.matching import Matching
from fedsw.objectives.penalties import EqualizedOdds, Parity, Penalty, ToSample


@dataclass(frozen=True)
class Compared:
    """What a penalty compares: its columns among the outputs that travel, its clip; itself if it is one of several."""

    columns: slice
    clip: Clip
    penalty: Penalty | None

    @property
    def width(self) -> int:
        """Number of columns d."""
        return int(self.columns.stop - self.columns.start)


def compared_by(objective: Objective | Matching | Composite, dimension: int, clip: Clip) -> tuple[Compared, ...]:
    """What every penalty compares, in the order of the columns that travel; ``clip`` is of those without their own."""
    if not isinstance(objective, Composite):
        return (Compared(slice(0, dimension), clip, None),)
    compared, start = [], 0
    for penalty in objective.penalties:
        d = penalty.dimension or dimension
        compared.append(Compared(slice(start, start + d), penalty.clip or clip, penalty))
        start += d
    return tuple(compared)


def _penalty(goal: ObjectiveSettings | Also, weight: float, shape: Shape, centre: float) -> Penalty:
    outputs, dimension, clip = None, None, None
    if isinstance(goal, Also):
        outputs, dimension = goal.outputs, goal.dimension
        if goal.radius is not None and goal.jacobian is not None:
            clip = Clip(output=goal.radius, jacobian=goal.jacobian, loss=1.0)
    groups = len(shape.groups)
    if goal.penalty == "prior-matching":
        return ToSample(weight, outputs, dimension, clip, centre, radius=goal.prior_radius)
    if goal.penalty == "equality-of-odds":
        return EqualizedOdds(weight, outputs, dimension, clip, centre, groups=groups, classes=shape.classes)
    return Parity(weight, outputs, dimension, clip, centre, groups=groups)


def composite_of(experiment: Experiment, shape: Shape) -> Composite:
    """The penalties of an experiment that has several."""
    goal = experiment.objective
    first = _penalty(goal, goal.alpha, shape, experiment.clip.centre)
    return Composite((first, *(_penalty(each, each.weight, shape, each.centre) for each in goal.also)))
