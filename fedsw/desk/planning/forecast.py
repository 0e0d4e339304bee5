"""Forecasts by training on public twins: the share of what can be learnt that noise leaves, by signal strength."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from fedsw.desk.baselines.reference import well_trained
from fedsw.desk.planning.after_moments import SUMMED, TabledObjective, as_released, opened
from fedsw.desk.planning.linear_objective import LinearObjective, batches_of, is_linear
from fedsw.desk.planning.public_rows import LAWS, PublicRows, TwinLaw, drawn, halves, resampled, scaled
from fedsw.experiment import Experiment
from fedsw.experiment.preset_rules import PresetNumbers
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.models.outer_layers import rescaled
from fedsw.learning.moments.beside_rounds import scores_of
from fedsw.learning.tasks import metrics
from fedsw.learning.tasks.calibration import calibration_of
from fedsw.learning.tasks.compared import objective_of
from fedsw.learning.tasks.measures import Measuring
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores
from fedsw.privacy.release import NoLedger, release
from fedsw.runs.optimizer import Trainer
from fedsw.runs.single.objective import Objective
from fedsw.runs.single.training_plan import plan


@dataclass(frozen=True)
class Score:
    """Scores of a model and of the best constant on held-out twins: accuracy, or minus the mean squared error.

    ``gap`` is the model's, between groups: of the rates at which a class is predicted, or of the mean answers. Of
    classes ``log_loss`` is that of its probabilities and of the class shares.
    """

    model: float
    constant: float
    gap: float = 0.0
    log_loss: tuple[float, float] | None = None

    @property
    def gain(self) -> float:
        """Score of the model less that of the constant."""
        return self.model - self.constant


def trained(
    problem: Problem,
    experiment: Experiment,
    twins: PublicRows,
    held_out: PublicRows,
    *,
    multiplier: float,
    one: float = 0.0,
    seed: int,
) -> Score:
    """Train on twins with a noise multiplier, and measure.

    Every round has this multiplier, a client's own under `local-gradient`, 0 without noise; ``one`` is that of one
    release of all records in place of them all, by which moments are noised.

    Raises:
        TypeError: for records that are not declared public: what is released here is charged to no ledger.
        ValueError: if a stratum of sampling has no record.
    """
    _require_public(twins)
    settings = experiment.training
    if experiment.model != problem.experiment.model:  # which the preset chose by the noise
        problem = Problem.from_experiment(experiment)
    problem, clip, start = opened(problem, experiment, twins, one=one, seed=seed)
    objective = training_objective(problem, experiment)
    if is_linear(problem.build_model(), objective):
        objective = training_objective(problem, experiment, LinearObjective)
    sizes = objective.composite.cell_of(twins.sensitive, twins.target).bincount(minlength=len(objective.strata))
    empty = [name for name, size in zip(objective.strata, sizes.tolist(), strict=True) if size == 0]
    if empty:
        raise ValueError(f"there are too few records: no twin is in {', '.join(empty)}")
    quiet = plan(
        objective,
        clip,
        sizes=sizes.tolist(),
        rounds=settings.rounds,
        epsilon=math.inf,
        delta=1e-6,
        batch_fraction=None if settings.batch_size else settings.batch_fraction,
        batch_size=settings.batch_size,
        seed=seed,
    )
    noisy = replace(quiet, multiplier=multiplier)
    if multiplier and (summed := SUMMED.get(experiment.privacy.model.law)):
        noise = summed(problem, experiment, clip, quiet.batch, multiplier=multiplier)
        noisy = replace(
            quiet, multiplier=noise.gradient / max(sensitivity.value for sensitivity in quiet.sensitivities)
        )
        if noise.count:
            tabled = partial(TabledObjective, bins=noise.bins, deviation=noise.count, seed=seed)
            objective = training_objective(problem, experiment, tabled)
    model = problem.build_model()
    trainer = Trainer(start, settings)
    records = replace(twins, features=problem.inputs(twins).float())
    for batch in batches_of(noisy, records):
        problem.prepared(model, trainer.theta)
        trainer.step(release(objective.gradient(model, batch, clip), noisy, NoLedger()).value)
    model = problem.prepared(model, trainer.model)
    counts = scores_of(replace(problem, experiment=experiment)) if experiment.calibration.share else None
    if counts is not None:
        exact = counts_of_scores(problem, counts, twins, model).double().numpy()
        values, sigma = as_released(experiment, counts, exact, experiment.share_of_scores, one=one, seed=[13, seed])
        public = None if experiment.privacy.hides_sizes else float(len(twins))
        calibration = calibration_of(counts, values, sigma, public)
        model = rescaled(model, problem.features, calibration.scale, calibration.shift)
    return _score(problem, model, held_out)


def reference(problem: Problem, twins: PublicRows, held_out: PublicRows) -> tuple[str, Score]:
    """Train as well as can be on public twins: name and score of what a run on such records could lose by privacy."""
    _require_public(twins)
    fitted = well_trained(problem, twins, plain=True)
    return fitted.name, _score(problem, fitted.model, held_out)


def _require_public(twins: PublicRows) -> None:
    if not isinstance(twins, PublicRows):
        raise TypeError(f"twins are public records, these are {type(twins).__name__}: nothing here is accounted for")


def training_objective(
    problem: Problem, experiment: Experiment, made: Callable[..., Objective] = Objective
) -> Objective:
    """Return the objective of training on one machine that an experiment's problem has, of the class ``made``."""
    slicing = experiment.slicing
    return made(
        problem.task,
        objective_of(experiment, problem.shape).penalties,
        classes=problem.classes,
        targets=problem.shape.targets,
        dimension=problem.dimension,
        directions=slicing.directions,
        scheme=slicing.scheme,
        direction_seed=slicing.seed,
        ties=slicing.ties,
        bound=experiment.privacy.bound,
        mode=experiment.clip.of_jacobians,
        micro_batch=experiment.training.micro_batch,
    )


def _score(problem: Problem, model: torch.nn.Module, held_out: PublicRows) -> Score:
    with torch.no_grad():
        outputs = Measuring(problem, held_out, model).outputs.double().cpu()
    if not bool(torch.isfinite(outputs).all()):
        return Score(-math.inf, 0.0)
    target, group, groups = held_out.target, held_out.sensitive, len(problem.groups)
    if problem.classes:
        shares = target.bincount(minlength=problem.classes).double() / len(target)
        predicted = metrics.predictions(outputs)
        rates = metrics.selection_rates(predicted, group, groups=groups, outcomes=problem.classes)
        gap = float((rates.amax(0) - rates.amin(0)).amax())
        chances = outputs if outputs.shape[1] > 1 else torch.cat([1 - outputs, outputs], dim=1)
        likely = chances.clamp(min=_LEAST_CHANCE).gather(1, target[:, None].long())
        losses = -float(likely.log().mean()), -float(torch.special.xlogy(shares, shares).sum())
        return Score(metrics.accuracy(predicted, target), float(shares.max()), gap, losses)
    means = torch.stack([outputs[group == number].mean(dim=0) for number in range(groups)])
    constant = target.double().mean(dim=0).expand(target.shape)
    error = metrics.mean_squared_error(outputs.reshape(target.shape), target)
    return Score(-error, -metrics.mean_squared_error(constant, target), float((means.amax(0) - means.amin(0)).amax()))


_LEAST_CHANCE = 1e-12
STRENGTHS = (2.0, 5.0, 12.0, 30.0, 75.0, 200.0, 600.0)
"""Strengths at which the curve is measured on twins; between them it is interpolated."""
MOST_TWINS = 2_000
"""Twins of a training: more records are stood for by so many with less noise."""
MANY_TWINS = 20_000
"""The same where so little can be learnt that chance among fewer would hide it."""
HELD_OUT = 2_000
ABOUT_ALL = 0.9
"""Share of what can be learnt from which on noise is not worth speaking of."""
FEASIBLE = 0.25
"""Share of what can be learnt below which a constant does as well."""
_LITTLE = 1e-3
"""Gain over a constant's accuracy, without privacy, below which there is nothing to lose."""
_LITTLE_OF_SQUARES = 0.01
"""Gain for numbers below which there is nothing to lose, as a share of the constant's squared error."""
_NOTHING = 1e-12


@dataclass(frozen=True)
class Point:
    """Scores of training on twins at one strength of the signal, one for each law, in order."""

    strength: float
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Curve:
    """Training on twins: as well as can be without privacy, under every law, and by the strength of the signal."""

    reference: tuple[Score, ...]
    points: tuple[Point, ...]
    name: str = ""

    @property
    def learnable(self) -> tuple[float, ...]:
        """Under every law, how much better than a constant training can be, without privacy or with little noise."""
        return tuple(
            max(reference.gain, *(point.scores[index].gain for point in self.points))
            for index, reference in enumerate(self.reference)
        )

    @property
    def taught(self) -> tuple[int, ...]:
        """The laws, by their places, under which there is something to learn."""
        least = [_LITTLE if score.constant > 0 else -_LITTLE_OF_SQUARES * score.constant for score in self.reference]
        return tuple(index for index, gain in enumerate(self.learnable) if gain >= max(least[index], _NOTHING))

    @property
    def kept(self) -> tuple[float, ...]:
        """At every point the share, -1 to 1, left of what can be learnt under all laws together, made to never fall.

        A law counts by what it lets be learnt, numbers in units of the constant's squared error: where next to nothing
        can be learnt, its share of that is chance.
        """
        learnable, parts, weights = self.learnable, [], []
        for index in self.taught:
            shares = [max(-1.0, min(1.0, point.scores[index].gain / learnable[index])) for point in self.points]
            constant = self.reference[index].constant
            parts.append(isotonic(shares))
            weights.append(learnable[index] / (-constant if constant < 0 else 1.0))
        if not parts:
            return (0.0,) * len(self.points)
        return tuple(float(np.average(shares, weights=weights)) for shares in zip(*parts, strict=True))

    def under(self, index: int) -> Curve:
        """The curve under one law only."""
        points = tuple(Point(point.strength, (point.scores[index],)) for point in self.points)
        return Curve((self.reference[index],), points, self.name)

    def log_loss_at(self, strength: float) -> tuple[float, float] | None:
        """The mean log loss of all laws at a strength of the signal, and that of class shares; None of numbers."""
        known = [[score.log_loss for score in point.scores if score.log_loss is not None] for point in self.points]
        if not all(known):
            return None
        logs = [math.log(point.strength) for point in self.points]
        models, shares = np.mean(np.array(known), axis=1).T
        return float(np.interp(math.log(max(strength, 1e-9)), logs, models)), float(shares.mean())

    def at(self, strength: float) -> float:
        """The share of what can be learnt that is left at a strength of the signal."""
        if math.isinf(strength):
            return 1.0
        logs = [math.log(point.strength) for point in self.points]
        value = float(np.interp(math.log(max(strength, 1e-9)), logs, self.kept))
        weakest = self.points[0].strength
        return min(value, 1.0) if strength >= weakest else min(value, 1.0) - math.log(weakest / strength) * 0.1


def curve(
    experiment: Experiment,
    problem: Problem,
    by_group: Mapping[str, int],
    *,
    table: PublicRows | None = None,
    laws: Sequence[TwinLaw] = LAWS,
    strengths: Sequence[float] = STRENGTHS,
    relative: float | None = None,
    most: int = MOST_TWINS,
    seen: Callable[[], None] = lambda: None,
) -> Curve:
    """Train on twins, as well as can be without privacy, and by the run's own steps with several amounts of noise.

    Of a ``table`` that is public twins are drawn in place of the laws. `strengths` of the signal rise; `relative` is
    the multiplier of a round over that of one release of all records, if moments took nothing, by default the square
    root of the rounds. There are ``most`` twins at most. ``seen`` is called after every training.
    """
    twins, known, points = twins_like(problem, by_group, table, laws, most), [], []
    for pair in twins:
        known.append(reference(problem, *pair))
        seen()
    for strength in strengths:
        points.append(Point(strength, scores(experiment, problem, by_group, twins, strength, relative=relative)))
        seen()
    names, best = zip(*known, strict=True)
    return Curve(best, tuple(points), " or ".join(dict.fromkeys(names)))


def twins_like(
    problem: Problem, by_group: Mapping[str, int], table: PublicRows | None, laws: Sequence[TwinLaw], most: int
) -> list[tuple[PublicRows, PublicRows]]:
    """Twins to train on, ``most`` at most, and others to measure on: under every law, or of a public table's halves."""
    sizes = scaled(by_group, min(sum(by_group.values()), most))
    others = scaled(sizes, max(HELD_OUT, most))
    if table is not None:
        half, rest = halves(table)
        return [(resampled(half, sizes, seed=0), resampled(rest, others, seed=1))]
    columns = problem.experiment.data.columns
    assert columns is not None
    return [(drawn(columns, sizes, law, seed=0), drawn(columns, others, law, seed=1)) for law in laws]


def scores(
    experiment: Experiment,
    problem: Problem,
    by_group: Mapping[str, int],
    twins: Sequence[tuple[PublicRows, PublicRows]],
    strength: float,
    *,
    relative: float | None,
) -> tuple[Score, ...]:
    """Train on all twins by the run's own steps at a strength of the signal; see `curve`."""
    numbers, ready = at_strength(experiment, numbers_of(experiment, by_group, problem), strength)
    # fewer twins than there are records stand for them all, with as much less noise
    whole = numbers.multiplier * min(1.0, len(twins[0][0]) / numbers.records)
    rounds = math.sqrt(ready.training.rounds) if relative is None else relative
    multiplier = whole * rounds / math.sqrt(ready.left_to_rounds)
    # twins are trained by sums that a replacement moves, twice as far; what leaves once is noised by its own relation
    one = whole * (2 if experiment.privacy.hides_sizes else 1)
    return tuple(
        trained(problem, ready, *pair, multiplier=multiplier, one=one, seed=index) for index, pair in enumerate(twins)
    )


def strength_of(experiment: Experiment, numbers: PresetNumbers) -> float:
    """The strength of the signal at these numbers, with the clips that a run then has."""
    clip = settled(experiment, numbers).clip
    return numbers.strength(clip.jacobian, clip.loss)


def at_strength(experiment: Experiment, numbers: PresetNumbers, strength: float) -> tuple[PresetNumbers, Experiment]:
    """The numbers with as much noise as leaves that strength, and the experiment as it then runs."""
    if math.isinf(strength):
        quiet = replace(numbers, multiplier=0.0)
        return quiet, settled(experiment, quiet)
    unit = replace(numbers, multiplier=1.0)
    noisy = replace(numbers, multiplier=strength_of(experiment, unit) / strength)
    return noisy, settled(experiment, noisy)


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest sequence that never falls, in squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            last, count = pools.pop()
            pools[-1] = [(pools[-1][0] * pools[-1][1] + last * count) / (pools[-1][1] + count), pools[-1][1] + count]
    return [value for value, count in pools for _ in range(int(count))]
