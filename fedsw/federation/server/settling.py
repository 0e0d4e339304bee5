"""Settings left open, chosen by rule from public numbers: those of the records at hand, or as clients report them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

from flwr.serverapp import Grid

from fedsw.data import own_records
from fedsw.data.sources import (
    declared_columns,
    load_dataset,
    require_one_client_each,
    shared_tables,
    visible_tables,
)
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError, parse_experiment, read_delta
from fedsw.experiment.preset_rules import KNOTS, PresetNumbers, Squares, chosen, left_open
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS
from fedsw.experiment.trust import trust_model
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.participants import public_sizes
from fedsw.federation.exchange.roll import Roll
from fedsw.learning.models.coded import typical_length
from fedsw.learning.moments import beside_rounds
from fedsw.learning.moments.column_counts import counts_of_columns
from fedsw.learning.moments.moments_sum import layout_of
from fedsw.learning.moments.preparation import foldable
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.measures import chosen_shares
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.mechanisms import gaussian_sigma

_NOTHING = 1e-12  # a clip of loss gradients that adds nothing to a penalty's sensitivity
_NOT_AT_HAND = "the records are not at hand here: give their number, --records N, or --data-dir DIR"
_ELSEWHERE = (
    "{} is 'auto', which chooses by the number of records, and they cannot be counted here: write what "
    "`fedsw plan EXPERIMENT --records N` shows into the experiment, N being the number of records of all clients, and "
    "leave preset out"
)


def settled(experiment: Experiment, numbers: PresetNumbers | None = None) -> Experiment:
    """The experiment with every open setting chosen by rule, from the numbers or the records at hand."""
    return _settled(experiment, lambda: numbers or numbers_of(experiment))


def settled_among(
    grid: Grid, experiment: Experiment, run: str, traffic: Traffic, roll: Roll | None = None
) -> Experiment:
    """The experiment to train: `training.preset` is settled by the public sizes that the clients report.

    No client is asked if nothing is left open, or only shares of a sketch's stages: a resumed run keeps the settings
    that it began with. Raises as `gather`.
    """

    def reported() -> PresetNumbers:
        problem = Problem.from_experiment(experiment)
        if experiment.privacy.hides_sizes:  # nobody is asked: what is chosen is shown, and the sizes are secret
            return numbers_of(experiment, problem=problem)
        return numbers_of(experiment, public_sizes(grid, problem, run, traffic, roll), problem)

    return _settled(experiment, reported)


def _settled(experiment: Experiment, numbers: Callable[[], PresetNumbers]) -> Experiment:
    if not left_open(experiment):
        return experiment
    if experiment.sketch.open:
        # A share of the budget for every stage takes no numbers of records.
        _, *later = chosen_shares(Problem.from_experiment(experiment))
        stages = tuple(
            stage.model_copy(update={"share": share})
            for stage, share in zip(experiment.sketch.stages, later, strict=True)
        )
        return experiment.model_copy(update={"sketch": experiment.sketch.model_copy(update={"stages": stages})})
    choices, raw = chosen(numbers(), experiment), experiment.model_dump()
    for section, values in choices.items():
        raw[section] = {**raw.get(section, {}), **values}
    return parse_experiment(raw)


def numbers_of(
    experiment: Experiment, by_group: Mapping[str, int] | None = None, problem: Problem | None = None
) -> PresetNumbers:
    """The public numbers that the preset's rules read, from these sizes by group, or from the records at hand."""
    sizes = sizes_at_hand(experiment) if by_group is None else by_group
    made, count = problem or Problem.from_experiment(experiment), sum(sizes.values())
    alike = {"privacy": experiment.privacy.model_copy(update={"epsilon": None, "noise_multiplier": 1.0})}
    return dataclasses.replace(
        _of_any_budget(experiment.model_copy(update=alike)),
        records=count,
        multiplier=multiplier_of_one(experiment, count),
        penalty=_penalty(made, [*sizes.values()]),
    )


@functools.lru_cache(maxsize=64)
def _of_any_budget(experiment: Experiment) -> PresetNumbers:
    """The public numbers of an experiment with no records; cached: a plan tries many budgets and numbers of records."""
    goal, trust, made = experiment.objective, trust_model(experiment.privacy.trust), Problem.from_experiment(experiment)
    columns, model, row_norm = experiment.data.columns, experiment.model, experiment.data.row_norm
    numeric = [] if columns is None else [feature for feature in columns.features if not feature.categories]
    bounded = columns is not None and all(feature.reader.bounds(feature) is not None for feature in numeric)
    # Histograms would be of these columns; an additive model of written bins needs none.
    counted = None
    if columns is not None and bounded and not model.bins:
        counted = counts_of_columns(columns, Model(kind="additive", knots=max(model.knots, *KNOTS)))
    # The rules choose among these numbers of knots by what a release of moments shows of each.
    hats = dict[int, Squares]()
    if bounded and row_norm is None and "knots" in left_open(experiment).get("model", ()):
        for knots in KNOTS:
            additive = Model(kind="additive", knots=knots, seed=model.seed)
            squares = squares_of(Problem.from_experiment(experiment.model_copy(update={"model": additive})))
            if squares is not None:
                hats[knots] = squares
    return PresetNumbers(
        0,
        made.parameters,
        1.0,
        loss=max(0.0, 1 - goal.alpha - sum(penalty.weight for penalty in goal.also)),
        parts=round(trust.summed(experiment) ** 2),
        squares=squares_of(made),
        hats=hats,
        may_centre=columns is not None and row_norm is None,
        length=1.0 if columns is None else typical_length(columns),
        counted=0 if counted is None else len(counted.columns),
        scalable=0 if beside_rounds.uncalibrated(made) else made.classes,
    )


def squares_of(problem: Problem) -> Squares | None:
    """Public sizes of a release of moments of inputs; None if these cannot be released or used."""
    layout = layout_of(problem)
    if layout is None or not layout.features or not foldable(problem.build_model(), problem.features):
        return None
    spec, classes = problem.experiment.model, problem.classes if layout.classes else 0
    kind = MODELS.get(spec.kind)
    knots = spec.knots if kind.columns else 0
    sizes = (layout.side, layout.features, layout.bound, layout.radius, layout.cells)
    return Squares(*sizes, classes, knots, kind.filtered)


def _penalty(problem: Problem, sizes: Sequence[int]) -> float:
    """Sensitivity of the penalties' gradient, with Jacobians clipped to 1 and outputs to 1/2.

    Classes within which groups are compared count as equally frequent: their true frequencies are not public.
    """
    if len(problem.objective.cells) < len(sizes):  # one stratum of all groups
        sizes = [sum(sizes)]
    cells = len(problem.objective.cells) // len(sizes)
    unit = dataclasses.replace(problem, clip=Clip(0.5, 1.0, _NOTHING))
    spread = [max(1, size // cells) for size in sizes]
    return max(bound.value for bound in unit.clipped.sensitivities(spread * cells, problem.clipped.planned_spreads()))


def multiplier_of_one(experiment: Experiment, records: int) -> float:
    """The noise multiplier of one release of all records that spends the whole budget; 0 without noise.

    It is sigma over the move by a replaced record, for which the rules were made: half of sigma over the move by one
    that is added or removed. The number of records may be hypothetical, as in a search for how many are enough.
    """
    privacy = experiment.privacy
    if privacy.noise_multiplier is not None:
        whole = privacy.noise_multiplier / math.sqrt(experiment.training.rounds)
    else:
        assert privacy.epsilon is not None
        if math.isinf(privacy.epsilon):
            return 0.0
        whole = gaussian_sigma(privacy.epsilon, read_delta(privacy.delta, records=records), 1.0)
    return whole / 2 if privacy.hides_sizes else whole


def sizes_at_hand(experiment: Experiment) -> dict[str, int]:
    """Public number of training records in each group, over all clients.

    Where a unit is declared, units are counted: how many rows a person has is not public. Under additions and removals
    it is the declared number.

    Raises:
        ExperimentError: if they are not at hand. BadRecords: if a unit has rows at several clients.
    """
    spec = experiment.data
    if experiment.declared is not None:
        return {"all": experiment.declared[0]}
    if not spec.own:
        dataset = load_dataset(experiment.record_source)
        return _by_group(dataset.groups, [dataset.train.sensitive.bincount(minlength=len(dataset.groups)).tolist()])
    require_one_client_each(experiment.data, experiment.federation.clients)
    columns = declared_columns(experiment.data)
    tables = shared_tables(visible_tables(experiment.data, experiment.federation.clients), columns)
    held = own_records.in_this_process(spec.source)
    parts = list(held.parts) if held is not None else tables
    if not parts:
        name = "training.preset" if experiment.training.preset == "auto" else "privacy.moments"
        raise ExperimentError(_ELSEWHERE.format(name) if left_open(experiment) else _NOT_AT_HAND)
    groups, trained = len(columns.groups), 1 - spec.held_out_fraction
    counts = [part.sensitive[Units.of(part).firsts].bincount(minlength=groups).tolist() for part in parts]
    return _by_group(columns.groups, [[math.ceil(trained * count) for count in part_counts] for part_counts in counts])


def _by_group(groups: tuple[str, ...], counts: list[list[int]]) -> dict[str, int]:
    return {name: sum(client_counts[index] for client_counts in counts) for index, name in enumerate(groups)}
