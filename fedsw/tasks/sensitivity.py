"""How far one replaced record moves the contributions of a problem's batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fedsw.objectives import Clip, Objective
from fedsw.objectives.composite import Composite
from fedsw.objectives.matching import Matching
from fedsw.privacy.sensitivity import SLACK, Bound, Sensitivity
from fedsw.tasks.problem import Problem
from fedsw.transport.sliced import orthogonal_spread


def sensitivities(task: Problem, batch: Sequence[int], spreads: Sequence[float]) -> tuple[Sensitivity, ...]:
    """How far one replaced record of each cell moves the summed contributions, with the floating-point slack.

    Args:
        spreads: of the directions of every penalty.
    """
    widths = tuple(each.width for each in task.compared)
    return _with_slack(task.objective, tuple(batch), task.clip, widths, tuple(spreads), task.experiment.privacy.bound)


@functools.lru_cache(maxsize=64)
def _with_slack(
    objective: Objective | Matching | Composite,
    batch: tuple[int, ...],
    clip: Clip,
    widths: tuple[int, ...],
    spreads: tuple[float, ...],
    bound: Bound,
) -> tuple[Sensitivity, ...]:
    """The same in every round of one column, whose batches have one size."""
    if isinstance(objective, Composite):
        sensitivities = objective.sensitivities(batch, clip, dimensions=widths, spreads=spreads, bound=bound)
    else:
        sensitivities = objective.sensitivities(batch, clip, d=widths[0], spread=spreads[0], bound=bound)
    return tuple(SLACK * each for each in sensitivities)


def planned_spreads(task: Problem) -> list[float]:
    """The spreads of all directions, known in advance for orthogonal blocks; 1, the worst, for i.i.d. ones."""
    slicing = task.experiment.slicing
    widths = [each.width for each in task.compared]
    return [1.0 if d == 1 or slicing.scheme == "iid" else orthogonal_spread(d, slicing.directions) for d in widths]
