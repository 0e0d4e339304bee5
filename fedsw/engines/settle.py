"""From `training.preset = "auto"` to an experiment with every setting: what a run begins with and puts on record.

What is read of the records is their number, which is public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError, own, parse_experiment, resolve_delta
from fedsw.experiment.preset import Numbers, chosen, left_open, require_settled
from fedsw.privacy.mechanisms import gaussian_sigma

if TYPE_CHECKING:
    from fedsw.tasks.problem import Problem

_NOTHING = 1e-12


def settled(experiment: Experiment, numbers: Numbers | None = None) -> Experiment:
    """The experiment with what `training.preset` chooses; itself where nothing is left to choose.

    Args:
        numbers: what the rules read; None to count the records at hand.

    Raises:
        ExperimentError: if the records are elsewhere, so that nobody can count them here.
    """
    if not left_open(experiment):
        return experiment
    found = chosen(numbers or numbers_of(experiment), experiment)
    raw = experiment.model_dump()
    for section, values in found.items():
        raw[section] |= values
    return parse_experiment(raw)


def numbers_of(
    experiment: Experiment, by_group: Mapping[str, int] | None = None, problem: Problem | None = None
) -> Numbers:
    """The public numbers that the rules read.

    Args:
        by_group: private records of every group, of all clients together; None to count those at hand.
        problem: of the experiment, where it is made already.

    Raises:
        ExperimentError: if the records are elsewhere, so that nobody can count them here.
    """
    from fedsw.tasks.problem import Problem

    sizes = sizes_at_hand(experiment) if by_group is None else by_group
    made, count = problem or Problem.from_experiment(experiment), sum(sizes.values())
    goal = experiment.objective
    return Numbers(
        count,
        made.parameters,
        multiplier_of_one(experiment, count),
        loss=max(0.0, 1 - goal.alpha - sum(each.weight for each in goal.also)),
        penalty=_penalty(made, [*sizes.values()]),
        parts=experiment.federation.clients if experiment.privacy.local else 1,
    )


def _penalty(problem: Problem, sizes: Sequence[int]) -> float:
    """How far a record moves the penalties' gradient, Jacobians clipped to 1 and outputs to 1/2.

    Where groups are compared within classes, classes count as equally frequent: how frequent they are is not asked.
    """
    from fedsw.federation.trust.plan import planned_spreads, sensitivities
    from fedsw.objectives import Clip

    cells = len(problem.objective.cells) // len(sizes)
    unit = dataclasses.replace(problem, clip=Clip(0.5, 1.0, _NOTHING))
    spread = [max(1, size // cells) for size in sizes]
    return max(each.value for each in sensitivities(unit, spread * cells, planned_spreads(problem)))


def multiplier_of_one(experiment: Experiment, records: int) -> float:
    """The noise multiplier of one release of all records that spends the whole budget; 0 without noise."""
    privacy = experiment.privacy
    if not privacy.noisy:
        return 0.0
    if privacy.epsilon is None:
        assert privacy.noise_multiplier is not None
        return privacy.noise_multiplier / math.sqrt(experiment.training.rounds)
    return gaussian_sigma(privacy.epsilon, resolve_delta(privacy.delta, records=records), 1.0)


def sizes_at_hand(experiment: Experiment) -> dict[str, int]:
    """Private records to train on of every group, of all clients together, which are public.

    Where records say whose they are persons are counted: how many rows a person has is not public.

    Raises:
        ExperimentError: if they are not at hand.
    """
    from fedsw.experiment.sources import declared_columns, load_dataset, shared_table, visible_tables

    spec = experiment.data
    if not spec.own:
        dataset = load_dataset(experiment)
        return _by_group(dataset.groups, [dataset.train.sensitive.bincount(minlength=len(dataset.groups)).tolist()])
    columns = declared_columns(experiment)
    tables = [shared_table(path, columns) for path in visible_tables(experiment)]
    held = own.in_this_process(spec.source)
    parts = list(held.parts) if held is not None else tables
    if not parts:
        require_settled(experiment)
        raise ExperimentError("the records are not at hand here: give their number, --records N, or --data-dir DIR")
    groups, kept = len(columns.groups), 1 - spec.held_out_fraction
    counts = [part.sensitive[Units.of(part).firsts].bincount(minlength=groups).tolist() for part in parts]
    return _by_group(columns.groups, [[math.ceil(kept * count) for count in each] for each in counts])


def _by_group(groups: tuple[str, ...], counts: list[list[int]]) -> dict[str, int]:
    return {name: sum(each[place] for each in counts) for place, name in enumerate(groups)}
