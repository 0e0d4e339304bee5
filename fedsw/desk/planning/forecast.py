"""Forecasts by training on public twins: the share of what can be learnt that noise leaves, by signal strength.

First the clipped gradient of one linear layer in closed form, which a forecast trains most of; at the end the forecast
of a run: what is expected to be left, and on which facts, that only the owner knows, it depends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools.randomness import KEY_BYTES, Stream
from fedsw.data import Records
from fedsw.desk.baselines.reference import well_trained
from fedsw.desk.planning.public_rows import (
    LAWS,
    RARE,
    SUMMED,
    PublicRows,
    TabledClipped,
    TwinLaw,
    as_released,
    drawn,
    halves,
    opened,
    resampled,
    scaled,
)
from fedsw.experiment import Experiment
from fedsw.experiment.preset_rules import PresetNumbers, chosen, left_open
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.models.outer_layers import rescaled
from fedsw.learning.moments.beside_rounds import scores_of
from fedsw.learning.objectives import WeightedSum
from fedsw.learning.tasks import metrics
from fedsw.learning.tasks.calibration import calibration_of
from fedsw.learning.tasks.measures import Measuring
from fedsw.learning.tasks.objective import ClippedObjective
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import counts_of_scores
from fedsw.learning.tasks.task import Inputs
from fedsw.privacy.plan import by_fraction
from fedsw.runs.optimizer import Trainer
from fedsw.runs.single.objective import draw_batch


def linear_sums(parts: Sequence[tuple[ClippedObjective, Records]]) -> Callable[[Sequence[Tensor]], Tensor]:
    """Sums (m, r) of clipped loss gradients of linear layers, each over a batch of twins, as a function of weights.

    A record's gradient is that in the outputs times its inputs with a 1, so that its norm is known before it is formed.
    They are `ClippedObjective.summed` within rounding, and protect no record. All have one task and one size.
    """
    of_parts, (clipped, batch) = [clipped.inputs_of(batch) for clipped, batch in parts], parts[0]
    features = torch.stack([inputs.features for inputs in of_parts])
    target, shape = torch.cat([inputs.target for inputs in of_parts]), of_parts[0].shape
    share, width, flat = clipped.weighted.task_weight(len(batch)), features.shape[2], features.flatten(0, 1)
    clips = features.new_tensor([clipped.clip.loss for clipped, _ in parts])[:, None, None]
    farthest = clips / (features.square().sum(dim=2, keepdim=True) + 1).sqrt()  # a gradient in the outputs, unclipped

    def summed(thetas: Sequence[Tensor]) -> Tensor:
        theta = torch.stack([*thetas]).to(features)
        outputs = theta.shape[1] // (width + 1)
        weights, bias = torch.split(theta, [outputs * width, outputs], dim=1)
        by_input = weights.reshape(len(theta), outputs, width).transpose(1, 2)
        raw = torch.baddbmm(bias[:, None], features, by_input).requires_grad_()
        (pull,) = torch.autograd.grad(clipped.task.loss(raw.flatten(0, 1), Inputs(flat, target, shape)).sum(), raw)
        norms = torch.linalg.vector_norm(pull, dim=2, keepdim=True)
        pull = pull * (share * (farthest / norms.clamp(min=1e-30)).clamp(max=1.0))
        return torch.cat([(pull.transpose(1, 2) @ features).flatten(1), pull.sum(dim=1)], dim=1).double()

    return summed


def is_linear(model: nn.Module, objective: WeightedSum) -> bool:
    """Say whether `linear_sums` are for a model and an objective: one layer with its bias, and no penalty pulls."""
    layers = [*model.children()] if isinstance(model, nn.Sequential) else [model]
    return (
        len(layers) == 1
        and type(layers[0]) is nn.Linear
        and layers[0].bias is not None
        and not any(penalty.weight > 0 for penalty in objective.penalties)
    )


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
    problem: Problem, *pairs: tuple[PublicRows, PublicRows], multiplier: float, one: float = 0.0, seed: int = 0
) -> tuple[Score, ...]:
    """Train on the twins of each pair with a noise multiplier, and measure on the others; seeds count from ``seed``.

    Every round has this multiplier, a client's own under `local-gradient`, 0 without noise; ``one`` is that of one
    release of all records in place of them all, by which moments are noised.

    Raises:
        TypeError: for records that are not declared public: what is noised here is charged to no ledger.
        ValueError: if a stratum of sampling has no record.
    """
    rounds = range(1, problem.experiment.training.rounds + 1)
    about = [
        _OnTwins.begun(problem, twins, multiplier=multiplier, one=one, seed=seed + index)
        for index, (twins, _) in enumerate(pairs)
    ]
    stay = sum(about[0].sizes) == len(about[0].records)  # a batch of all records, in every round
    if stay and about[0].linear and len({training.records.features.shape for training in about}) == 1:
        sums = linear_sums([(training.clipped, training.batch(1)) for training in about])
        for round_ in rounds:
            totals = sums([training.trainer.theta for training in about])
            for training, total in zip(about, totals, strict=True):
                training.trainer.step(total + training.noise[round_ - 1])
    else:
        for training in about:
            for round_ in rounds:
                if round_ == 1 or not stay:
                    batch = training.batch(round_)
                training.trainer.step(training.total(batch, round_) + training.noise[round_ - 1])
    return tuple(
        _score(training.problem, training.model(one), held_out)
        for training, (_, held_out) in zip(about, pairs, strict=True)
    )


@dataclass(frozen=True, eq=False)
class _OnTwins:
    """A training on twins.

    It has the problem that moments prepare, its model, whether that is linear, its clipped sum, the noise (rounds, r),
    coded records with batch sizes by stratum, and the optimizer.
    """

    problem: Problem
    network: nn.Module
    linear: bool
    clipped: ClippedObjective
    noise: Tensor
    records: PublicRows
    sizes: tuple[int, ...]
    trainer: Trainer
    seed: int

    @classmethod
    def begun(cls, problem: Problem, twins: PublicRows, *, multiplier: float, one: float, seed: int) -> _OnTwins:
        _require_public(twins)
        problem, start = opened(problem, twins, one=one, seed=seed)
        experiment, settings = problem.experiment, problem.experiment.training
        strata = list(map(len, problem.cells_of(twins)))
        if empty := [name for name, size in zip(problem.objective.cells, strata, strict=True) if not size]:
            raise ValueError(f"there are too few records: no twin is in {', '.join(empty)}")
        sizes = by_fraction(settings.batch_fraction, strata)
        if settings.batch_size:
            sizes = (settings.batch_size,) * len(strata)
        # sums that a replacement moves, in every relation, of records that are coded once
        clipped = replace(replace(problem, ready=True).clipped, hides_sizes=False)
        sigma = multiplier * max(bound.value for bound in clipped.sensitivities(sizes, clipped.planned_spreads()))
        if multiplier and (summed := SUMMED.get(experiment.privacy.model.law)):
            of_clients = summed(problem, experiment, problem.clip, sizes, multiplier=multiplier)
            sigma = of_clients.gradient
            if of_clients.count:
                clipped = TabledClipped(**vars(clipped), bins=of_clients.bins, deviation=of_clients.count, seed=seed)
        coded = replace(twins, features=problem.inputs(twins))
        noise = np.zeros((settings.rounds, len(start)))
        for round_ in range(1, settings.rounds + 1 if sigma else 1):  # a release's, before it is rounded to a grid
            stream = Stream.seeded(seed, "noise", round_, 0)
            stream.words(KEY_BYTES // 8)  # a release takes these first, for what its rounding may need
            noise[round_ - 1] = sigma * stream.normals(len(start))
        network = problem.build_model()
        linear, trainer = is_linear(network, problem.objective), Trainer(start, settings)
        return cls(problem, network, linear, clipped, torch.from_numpy(noise), coded, sizes, trainer, seed)

    def batch(self, round_: int) -> Records:
        strata = self.problem.cells_of(self.records)
        return draw_batch(self.records, strata, self.sizes, seed=self.seed, round_=round_, attempt=0).records

    def total(self, batch: Records, round_: int) -> Tensor:
        """The clipped gradient (r,) of a batch, of any model."""
        if self.linear:
            return linear_sums([(self.clipped, batch)])([self.trainer.theta])[0]
        model = self.problem.prepared(self.network, self.trainer.theta)
        return self.clipped.gradient(model, batch, self.sizes, round_, 0)[0]

    def model(self, one: float) -> nn.Module:
        """The trained model, calibrated by counts of scores if a run's would be."""
        problem, experiment = self.problem, self.problem.experiment
        model = problem.prepared(self.network, self.trainer.model)
        counts = scores_of(problem) if experiment.calibration.share else None
        if counts is None:
            return model
        exact = counts_of_scores(replace(problem, ready=True), counts, self.records, model).double().numpy()
        seeds = [13, self.seed]
        values, sigma = as_released(experiment, counts, exact, experiment.share_of_scores, one=one, seed=seeds)
        public = None if experiment.privacy.hides_sizes else float(len(self.records))
        calibration = calibration_of(counts, values, sigma, public)
        return rescaled(model, problem.features, calibration.scale, calibration.shift)


def reference(problem: Problem, twins: PublicRows, held_out: PublicRows) -> tuple[str, Score]:
    """Train as well as can be on public twins: name and score of what a run on such records could lose by privacy."""
    _require_public(twins)
    fitted = well_trained(problem, twins, plain=True)
    return fitted.name, _score(problem, fitted.model, held_out)


def _require_public(twins: PublicRows) -> None:
    if not isinstance(twins, PublicRows):
        raise TypeError(f"twins are public records, these are {type(twins).__name__}: nothing here is accounted for")


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
"""Least probability that a model is taken to mean: one that is certain and wrong would lose without end."""
STRENGTHS = (2.0, 5.0, 12.0, 30.0, 75.0, 200.0, 600.0)
"""Strengths at which the curve is measured on twins; between them it is interpolated."""
MOST_TWINS = 2_000
"""Twins of a training: more records are stood for by so many with less noise."""
MANY_TWINS = 20_000
"""The same where so little can be learnt that chance among fewer would hide it."""
HELD_OUT = 2_000
"""Held-out twins of a training at least."""
ABOUT_ALL = 0.9
"""Share of what can be learnt from which on noise is not worth speaking of."""
FEASIBLE = 0.25
"""Share of what can be learnt below which a constant does as well."""
_LITTLE = 1e-3
"""Gain over a constant's accuracy, without privacy, below which there is nothing to lose."""
_LITTLE_OF_SQUARES = 0.01
"""Gain for numbers below which there is nothing to lose, as a share of the constant's squared error."""
_NOTHING = 1e-12
"""Gain over a constant that is rounding."""


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
    return trained(Problem.from_experiment(ready), *twins, multiplier=multiplier, one=one)


def strength_of(experiment: Experiment, numbers: PresetNumbers) -> float:
    """The strength of the signal at these numbers, with the clips that a run then has."""
    choices = chosen(numbers, experiment) if left_open(experiment) else {}
    clip = experiment.clip.model_copy(update=choices.get("clip", {}))
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


SHARES = (RARE, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
"""Shares of records outside of the most frequent class, among which a plan looks for the largest at which a constant
does as well ..."""
_MARGIN = 2
"""... and so many of them further on more than a constant is promised: twins tell more of a rare class than most tables
do."""


@dataclass(frozen=True)
class WhatIf:
    """The share of what can be learnt that is expected to be left, for other numbers."""

    records: int
    epsilon: float
    share_left: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run by training on public twins.

    Attributes:
        learnt: scores of the ``reference`` (in words) on twins of every law, and the best constant beside it.
        share_left: the share of its gain over a constant that is left, as expected; ``range``, under single laws.
        strength: of the signal: below 1 noise buries it.
        log_loss: of the run's probabilities, and of the class shares, the mean of all laws; None of numbers.
        tight: what would be left if columns used a small part of their bounds; None for a table, or without bounds.
        skewed: the least that would be left if most of the predicted numbers were small and a few far larger; None
            where that was not tried.
        bare: what would be left if columns told a point or two more than a constant; None if that was not tried.
        rarest: share of the least frequent of so many ``classes`` that is assumed, and ``assumed`` of all but the most
            frequent; None if it is known, and without classes.
        rare: what would be left if all but the most frequent class had one record in fifty; None if not tried.
        constant_to: the largest share of all classes but the most frequent at which a constant would do as well, of
            those tried; None if there is none, or none was tried.
    """

    reference: str
    learnt: tuple[Score, ...]
    share_left: float
    range: tuple[float, float]
    strength: float
    what_ifs: tuple[WhatIf, ...]
    log_loss: tuple[float, float] | None = None
    tight: float | None = None
    skewed: float | None = None
    bare: float | None = None
    classes: int = 0
    rarest: float | None = None
    assumed: float = 0.0
    rare: float | None = None
    constant_to: float | None = None

    @property
    def promised_from(self) -> float:
        """The least share outside of the most frequent class for which more than a constant is promised."""
        if self.constant_to is None:
            return self.assumed
        return promised_above(self.constant_to)

    @property
    def depends(self) -> bool:
        """Say whether more than a constant can be expected only if columns tell enough, or use their bounds."""
        unsure = (self.tight, self.skewed, self.bare)
        return self.share_left >= FEASIBLE and any(map(_too_little, unsure))

    @property
    def of_bounds(self) -> bool:
        """Say whether it hangs on how much of their bounds the records use."""
        return _too_little(self.tight) or _too_little(self.skewed)

    @property
    def condition(self) -> str:
        """On which the forecast depends, in words; empty if on none."""
        if not self.depends:
            return ""
        whose = ((self.tight, "the columns"), (self.skewed, "the numbers to predict"))
        who = " and ".join(words for share, words in whose if _too_little(share))
        counts = " (counts, most of them small, do not)" if _too_little(self.skewed) else ""
        used = f"{who} use more than a tenth of their bounds{counts}" if who else ""
        gains = "two points of accuracy" if self.learnt[0].constant > 0 else "4 % of squared error"
        told = f"a model without privacy gains more than {gains} over a constant" if _too_little(self.bare) else ""
        return " and ".join(filter(None, [told, used]))

    @property
    def feasible(self) -> bool:
        """Say whether more than a constant can be expected, however little columns tell or use of their bounds."""
        return self.share_left >= FEASIBLE and not self.depends


def _too_little(share: float | None) -> bool:
    return share is not None and share < FEASIBLE


def promised_above(constant_to: float) -> float:
    """The share outside of the most frequent class from which on more than a constant is promised; half if none is."""
    above = [share for share in SHARES if share > constant_to]
    return above[_MARGIN - 1] if len(above) >= _MARGIN else 0.5


def largest_for_constant(left_of: Callable[[float], float]) -> float:
    """The largest of `SHARES` at which too little is left; it is so at the first, by bisection."""
    low, high = 0, len(SHARES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left_of(SHARES[middle]) < FEASIBLE else (low, middle)
    return SHARES[low]


def left_alone(measured: Curve, strength: float) -> list[float]:
    """The share left under every single law; 0 if it lets nothing be learnt."""
    laws = range(len(measured.reference))
    return [measured.under(law).at(strength) if law in measured.taught else 0.0 for law in laws]
