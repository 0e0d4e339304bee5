"""The plan of a run before its first record is read: noise, settings, forecast, verdict and what-ifs; and in words."""

from __future__ import annotations

import bisect
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsw._tools.registry import Word
from fedsw._tools.settings import FederationError
from fedsw._tools.text import Short, apart, number, upward
from fedsw.desk.planning.forecast import (
    ABOUT_ALL,
    FEASIBLE,
    MANY_TWINS,
    MOST_TWINS,
    STRENGTHS,
    Curve,
    Forecast,
    Score,
    WhatIf,
    curve,
    largest_for_constant,
    left_alone,
    scores,
    strength_of,
    twins_like,
)
from fedsw.desk.planning.public_rows import (
    BARE,
    LAWS,
    RARE,
    SKEWED,
    SUMMED,
    TIGHT,
    PublicRows,
    TwinLaw,
    has_bounds,
    others_share,
    public_columns,
    rarest_share,
    scaled,
    with_rare_class,
)
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.load import of_unit
from fedsw.experiment.penalty_names import NO_PENALTY, PENALTIES
from fedsw.experiment.preset_rules import CHOSEN, left_open, refusal
from fedsw.experiment.task_kinds import MODELS, task_facts
from fedsw.experiment.trust import trust_model
from fedsw.federation.exchange.participants import Site
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.federation.trust.budget_shares import SCORES_PART, sum_budget
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sketch.sketch_once import StageCost, stage_costs
from fedsw.learning.moments.beside_rounds import require_scorable, scores_of
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.group_thresholds import band_of
from fedsw.runs.report.document import Conclusion, Document, Part, named, sections
from fedsw.runs.report.figures import Picture, colour, house_style, new_panels, picture, save
from fedsw.runs.report.run_documents import WhatIfs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of records of the what-ifs, in the run's own."""
_EPSILONS = (0.3, 1.0, 3.0, 10.0)
"""Epsilons of the what-ifs, beside the run's own."""
_WEAK = 0.25
"""Clip of Jacobians, in that of loss gradients, below which a small group is said to weaken the penalty."""
_WEIGHTS = (0.05, 0.2, 0.5)
"""Weights of a penalty between groups for which a plan states the noise."""


@dataclass(frozen=True, repr=False)
class Planned(Short):
    """A run before it begins, from public numbers only.

    ``chosen`` is what `training.preset` chose, by section; the multiplier is sigma / Delta of a release, sensitivity
    Delta; without a forecast ``why_not`` says why; ``stages`` are of a sketch, with what each gets of the budget; the
    ``word`` is who vouches for the penalties' bound; ``penalties`` are weights alpha with the noise they would take, in
    that of the loss only; ``bought`` are scores on public twins, the mean of all laws, at the weight 0 and at the
    experiment's, where that is more; ``bands`` are two deviations of the noise in a group's share above a threshold,
    where counts for thresholds are released.
    """

    experiment: Experiment
    chosen: Mapping[str, Mapping[str, Any]]
    by_group: Mapping[str, int]
    assumed: str
    inputs: int
    parameters: int
    batch: tuple[int, ...]
    releases: int
    epsilon: float
    delta: float
    multiplier: float
    sensitivity: float | None
    forecast: Forecast | None
    why_not: str = ""
    stages: tuple[StageCost, ...] = ()
    penalties: Mapping[float, float] = field(default_factory=dict)
    word: Word = "proven"
    bands: Mapping[str, float] = field(default_factory=dict)
    bought: Mapping[float, Score] = field(default_factory=dict)

    @property
    def compares(self) -> bool:
        """Say whether thresholds by group could be released: of two classes and several groups, after rounds."""
        facts, columns = task_facts(self.experiment.objective.task), self.experiment.data.columns
        classes = 2 if columns is None else len(columns.classes)
        counted = "scores" in self.experiment.privacy.model.beside
        return counted and facts.classifies and facts.supervised and classes == 2 and len(self.by_group) > 1

    def _facts(self) -> Mapping[str, object]:
        return {
            "verdict": self.verdict,
            "experiment": self.experiment.name,
            "records": self.records,
            "epsilon": upward(self.epsilon),
            "delta": upward(self.delta),
            "releases": self.releases,
        }

    @property
    def records(self) -> int:
        """Number of private records."""
        return sum(self.by_group.values())

    @property
    def weakened(self) -> bool:
        """Say whether the preset clips Jacobians closer than it would if no group were small."""
        clip = self.chosen["clip"]
        auto = self.experiment.training.preset == "auto"
        return auto and bool(self.multiplier) and clip["jacobian"] < clip["loss"] * _WEAK

    @property
    def unless(self) -> str:
        """Under which law the verdict would be another, in words; empty if under none."""
        if self.forecast is None or not self.multiplier or self.forecast.depends:
            return ""
        least, most = self.forecast.range
        if self.forecast.feasible and least < FEASIBLE:
            return "unless the columns tell little of the target: a constant would then do as well (--expect)"
        if not self.forecast.feasible and most >= FEASIBLE:
            return f"unless the columns tell much of the target: {100 * most:.0f} % would then be left (--expect)"
        return ""

    @property
    def verdict(self) -> str:
        """Expectation in words, with the least share of a class where one is assumed."""
        forecast = self.forecast
        if forecast is None:
            return f"no forecast: {self.why_not}"
        expected = self._expected(forecast)
        if not self.multiplier or forecast.share_left < FEASIBLE or forecast.rarest is None:
            return expected
        least, rare = forecast.promised_from, forecast.rare
        if forecast.classes > 2:
            frequent = f"the most frequent class has at most {100 * (1 - least):.0f} % of the records"
            expected += f". This assumes that {frequent}"
        else:
            expected += f". This assumes that no class has less than {100 * least:.0f} % of the records"
        if rare is None:
            return expected
        if forecast.constant_to is not None:
            share, left = forecast.constant_to, "a constant would do as well"
        else:
            share, left = RARE, f"about {100 * min(1.0, rare):.0f} % would be left"
        of_whom = f"one of them has {100 * share:.0f} %" + (" or less" if forecast.constant_to is not None else "")
        if forecast.classes > 2:
            of_whom = f"it has {100 * (1 - share):.0f} %" + (" or more" if forecast.constant_to is not None else "")
        return f"{expected}: if {of_whom}, {left}. Released moments tell (--moments-alone, --after-moments)"

    def _expected(self, forecast: Forecast) -> str:
        share = forecast.share_left
        if not self.multiplier:
            return "no noise is planned, and nothing is promised to anybody"
        if forecast.depends:
            return (
                f"feasible only if {forecast.condition}: {100 * min(1.0, share):.0f} % of what "
                f"{forecast.reference} gains over a constant would be left; otherwise a constant would do as well. "
                f"{_NARROWER if forecast.of_bounds else _TELL if forecast.rare is None else ''}"
            ).rstrip(" .")
        if share >= ABOUT_ALL:
            return f"expect about what {forecast.reference} reaches without privacy"
        if forecast.feasible:
            return (
                f"expect to lose some: about {100 * share:.0f} % of what {forecast.reference} gains without "
                "privacy over a constant will be left"
            )
        return "not feasible: a constant would do as well"


def planned(
    experiment: Experiment,
    by_group: Mapping[str, int],
    *,
    assumed: str = "",
    table: PublicRows | None = None,
    untold: str = "",
    expect: str | None = None,
    strengths: Sequence[float] = STRENGTHS,
    seen: Callable[[], None] = lambda: None,
) -> Planned:
    """The plan of an experiment; trains on public twins, and reads no private record.

    Records are private ones of every group, of all clients together, which is public, or ``assumed`` as the words say.
    Twins come from a public ``table`` if there is one; where nothing can be expected of it (``untold``) there is no
    forecast. ``expect`` names the law that is known to be the like of it.
    """
    problem = Problem.from_experiment(experiment)
    require_scorable(problem)
    reason, ready, forecast, goal = refusal(experiment), experiment, None, experiment.objective
    bought = dict[float, Score]()
    if reason is None:
        ready = settled(experiment, numbers_of(experiment, by_group, problem))
    elif "sketch" in left_open(experiment):
        ready = settled(experiment)
    made, privacy = Problem.from_experiment(ready), ready.privacy
    plan = _plan_of(made, by_group)
    multiplier = plan.multiplier
    if max(plan.rates) < 1 and ready.federation.clients > 1:
        assumed = "; ".join(filter(None, [assumed, privacy.model.assumes]))
    reason = reason or untold
    if not reason:
        laws, told = [law for law in LAWS if expect in (None, law.name)], _without_penalty(experiment)
        on_twins = Problem.from_experiment(_of_twins(told))
        relative = _relative(ready, by_group, on_twins, multiplier)
        trained = functools.partial(
            curve, on_twins.experiment, on_twins, by_group, table=table, relative=relative, seen=seen
        )
        forecast = _forecast(experiment, by_group, problem, functools.partial(trained, laws=laws), strengths)
        if table is None:
            law_known, noisy = expect is not None, bool(multiplier)
            forecast = _under_other_laws(forecast, trained, laws, problem, law_known=law_known, noisy=noisy)
        if told is not experiment and multiplier:
            bought = {
                weight: _scored(_weighed(experiment, weight), by_group, table, laws) for weight in (0.0, goal.alpha)
            }
    kind = MODELS.get(ready.model.kind)
    of_model = ("kind", *(["knots"] if kind.columns else ["inputs"] if kind.linear else []))  # that a preset may choose
    return Planned(
        experiment=ready,
        chosen={
            section: {name: getattr(getattr(ready, section), name) for name in names}
            for section, names in ({**CHOSEN, "model": of_model}).items()
            if section != "calibration" or ready.calibration.model_fields_set
        },
        by_group=dict(by_group),
        assumed=assumed,
        inputs=made.features,
        parameters=made.parameters,
        batch=_batch(plan, by_group),
        releases=ready.releases,
        epsilon=plan.epsilon,
        delta=plan.delta,
        multiplier=multiplier,
        sensitivity=privacy.model.of_batch(plan),
        forecast=forecast,
        why_not=reason,
        stages=stage_costs(made, plan.delta) if multiplier else (),
        penalties=noise_at_weights(experiment, by_group) if multiplier else {},
        word=made.objective.word,
        bands=_bands(made, plan, by_group),
        bought=bought,
    )


def _under_other_laws(
    forecast: Forecast,
    trained: Callable[..., Curve],
    laws: Sequence[TwinLaw],
    problem: Problem,
    *,
    law_known: bool,
    noisy: bool,
) -> Forecast:
    """Add what would be left if the columns told little, used little of their bounds, or a class were rare.

    Twins are trained under such laws at the run's strength only, and only where the forecast would be believed.
    """
    strength, feasible = forecast.strength, forecast.feasible and noisy

    def under(*others: TwinLaw, most: int = MOST_TWINS) -> Curve:
        return trained(laws=others, strengths=(strength,), most=most)

    if feasible and not law_known:
        forecast = replace(
            forecast,
            bare=under(*BARE, most=MANY_TWINS).at(strength),
            tight=under(TIGHT).at(strength) if has_bounds(problem.experiment) else None,
            skewed=None if problem.classes else min(left_alone(under(*SKEWED), strength)),
        )
    if not problem.classes:
        return forecast
    rarest, others = rarest_share(laws, problem.classes), others_share(laws, problem.classes)
    forecast = replace(forecast, classes=problem.classes, rarest=rarest, assumed=others)
    if not feasible:
        return forecast

    def left_of(share: float) -> float:
        return under(*(with_rare_class(law, share) for law in laws)).at(strength)

    rare = left_of(RARE)
    return replace(forecast, rare=rare, constant_to=largest_for_constant(left_of) if rare < FEASIBLE else None)


_NARROWER = "Declare bounds as narrow as public knowledge allows"
_TELL = "Released moments tell (--moments-alone, --after-moments)"


def _bands(problem: Problem, plan: FederationPlan, by_group: Mapping[str, int]) -> dict[str, float]:
    """Two standard deviations of the noise in every group's share above a threshold, from public numbers only."""
    counts = scores_of(problem)
    if counts is None or not plan.scores or not problem.experiment.thresholds.share:
        return {}
    experiment = problem.experiment
    sigma = sum_budget(SCORES_PART, counts, plan.scores, plan.relation).sigma * experiment.privacy.model.summed(
        experiment
    )
    sigma *= 2 if experiment.privacy.hides_sizes else 1  # a share of a number that is noised, too
    return {group: band_of(sigma, size) for group, size in by_group.items()}


def noise_at_weights(experiment: Experiment, by_group: Mapping[str, int]) -> dict[float, float]:
    """The noise at several weights of a penalty between groups, in that of the loss only; by public numbers."""
    goal, noise = experiment.objective, {}
    compared = goal.penalty != NO_PENALTY and not goal.also and len(by_group) > 1
    if experiment.training.preset != "auto" or refusal(experiment) or not compared:
        return {}
    for alpha in _WEIGHTS:
        weighed = _weighed(experiment, alpha)
        numbers = numbers_of(weighed, by_group)
        clip = settled(weighed, numbers).clip
        noise[alpha] = 1 / numbers.share(clip.jacobian, clip.loss)
    return noise


def _relative(ready: Experiment, by_group: Mapping[str, int], problem: Problem, multiplier: float) -> float | None:
    """The multiplier of a round over that of one release of all records, if moments took nothing; of a replacement."""
    one = numbers_of(ready, by_group, problem).multiplier * (2 if ready.privacy.hides_sizes else 1)
    return multiplier * math.sqrt(ready.left_to_rounds) / one if one else None


def _of_twins(experiment: Experiment) -> Experiment:
    """The experiment on twins, of the columns that are public."""
    raw = experiment.model_dump()
    raw["data"] = {
        "source": "object",
        "columns": public_columns(experiment).model_dump(),
        "row_norm": experiment.data.row_norm,
    }
    return parse_experiment(raw | {"metrics": ()})


def _weighed(experiment: Experiment, alpha: float) -> Experiment:
    """The experiment with another weight of its first penalty."""
    return experiment.model_copy(update={"objective": experiment.objective.model_copy(update={"alpha": alpha})})


def _without_penalty(experiment: Experiment) -> Experiment:
    """The experiment that the curve is measured for: without the penalty where a server adds the noise of all.

    A penalty's noise is in the strength of the signal, and what it costs beside that is measured by itself; the model
    without privacy, and every training, then take a closed form and not thousands of steps. Where clients add noise,
    ranks are noised too, which only a training with the penalty shows.
    """
    goal = experiment.objective
    alone = goal.alpha > 0 and not goal.also and not PENALTIES.get(goal.penalty).custom
    return _weighed(experiment, 0.0) if alone and experiment.privacy.model.law not in SUMMED else experiment


def _scored(
    experiment: Experiment, by_group: Mapping[str, int], table: PublicRows | None, laws: Sequence[TwinLaw]
) -> Score:
    """The mean score and gap of trainings on twins with the run's own noise, over all laws."""
    numbers = numbers_of(experiment, by_group)
    ready, problem = settled(experiment, numbers), Problem.from_experiment(_of_twins(experiment))
    multiplier = _plan_of(Problem.from_experiment(ready), by_group).multiplier
    relative, strength = _relative(ready, by_group, problem, multiplier), strength_of(experiment, numbers)
    pairs = twins_like(problem, by_group, table, laws, MOST_TWINS)
    measured = scores(problem.experiment, problem, by_group, pairs, strength, relative=relative)
    return Score(*np.mean([(score.model, score.constant, score.gap) for score in measured], axis=0).tolist())


def _forecast(
    experiment: Experiment,
    by_group: Mapping[str, int],
    problem: Problem,
    trained: Callable[..., Curve],
    strengths: Sequence[float],
) -> Forecast:
    def strength(records: int, changed: Experiment) -> float:
        return strength_of(changed, numbers_of(changed, scaled(by_group, records), problem))

    total, epsilon_asked = sum(by_group.values()), experiment.privacy.epsilon
    here = strength(total, experiment)
    epsilons = sorted(
        {*_EPSILONS, *([epsilon_asked] if epsilon_asked is not None and math.isfinite(epsilon_asked) else [])}
    )
    sizes = [max(4, round(total * factor)) for factor in _FACTORS]
    trust = trust_model(experiment.privacy.trust).with_noise or experiment.privacy.trust
    noised = {"noise_multiplier": None, "trust": trust}
    changed = {epsilon: experiment.with_sections(privacy={"epsilon": epsilon, **noised}) for epsilon in epsilons}
    strengths_at = {(size, epsilon): strength(size, changed[epsilon]) for size in sizes for epsilon in epsilons}
    # twins are trained at the strengths between which one is asked for, and at no others
    least, most = min(here, *strengths_at.values()), max(here, *strengths_at.values())
    first = max(0, bisect.bisect_right(strengths, least) - 1)
    last = min(len(strengths) - 1, bisect.bisect_left(strengths, most))
    measured = trained(strengths=strengths[min(first, last) : last + 1])
    alone = left_alone(measured, here)
    return Forecast(
        reference=measured.name,
        learnt=measured.reference,
        share_left=measured.at(here),
        range=(min(alone), max(alone)),
        strength=here,
        what_ifs=tuple(WhatIf(*numbers, measured.at(signal)) for numbers, signal in strengths_at.items()),
        log_loss=measured.log_loss_at(here),
    )


def _plan_of(problem: Problem, by_group: Mapping[str, int]) -> FederationPlan:
    """The plan that the run itself makes, for clients and classes that have as many records each of a group."""
    clients, cells = problem.experiment.federation.clients, len(problem.objective.cells)
    sizes = np.array([max(1, size) for size in by_group.values()])
    classes, apart = cells // len(sizes), cells % len(sizes) == 0
    whole = np.tile(sizes // classes, classes) if apart else np.full(cells, sizes.sum() // cells)
    held = np.maximum(1, whole // clients + (np.arange(clients)[:, None] < whole % clients))
    try:
        plan: FederationPlan = problem.experiment.privacy.model.plan(
            problem, [Site(0, np.arange(clients), held, None, None)]
        )
    except FederationError as fault:
        raise ExperimentError(str(fault)) from None
    return plan


def _batch(plan: FederationPlan, by_group: Mapping[str, int]) -> tuple[int, ...]:
    """Records of every group in a batch; all of them where they leave once."""
    groups = len(by_group)
    if len(plan.batch) % groups == 0:
        return tuple(sum(plan.batch[index::groups]) for index in range(groups))
    return tuple(round(size * sum(plan.batch) / sum(plan.sizes)) for size in by_group.values())


_CLEAR, _FELT = 60.0, 8.0
"""Signal of all rounds over their noise from which it is said to stand well above it, and from which to feel it."""
_WHOSE = {"stated": "its bound is stated by you, and nothing proves it", "proven": "the bounds of its parts are proven"}


def rows(plan: Planned) -> Iterator[tuple[str, str]]:
    """Yield a plan as names and sentences, the verdict first."""
    yield "verdict", plan.verdict
    if plan.unless:
        yield "", plan.unless
    groups = ", ".join(f"{name} {size:,}" for name, size in plan.by_group.items())
    yield "records", f"{plan.records:,} ({groups}){'; ' + plan.assumed if plan.assumed else ''}"
    if (unit := plan.experiment.data.unit) is not None:
        yield (
            "persons",
            (
                f"rows may repeat: all rows with one value of {unit!r} are one record here, protected together. A "
                "batch takes one of them, drawn anew; how many there are is not public. More rows of a person lower no "
                "noise, more persons do. Rows held out of the same persons would flatter a model: hold persons out"
            ),
        )
    penalty = plan.experiment.objective.penalty
    if PENALTIES.get(penalty).custom or plan.word != "proven":
        yield "own penalty", f"{penalty}: {_WHOSE[plan.word]}"
    yield "model", f"{plan.experiment.model.kind}, {plan.inputs} inputs, {plan.parameters:,} parameters"
    if plan.multiplier:
        yield "noise", _noise(plan)
    if plan.experiment.privacy.hides_sizes and plan.multiplier:
        yield (
            "neighbours",
            (
                "a record is added or removed, and how many there are is secret: sums are divided by the declared "
                f"{plan.records:,}. This ε is not comparable with a replacement's, which is a removal and an addition"
            ),
        )
    for position, stage in enumerate(plan.stages if len(plan.stages) > 1 else (), start=1):
        share = f"{100 * stage.share:.3g} % of the budget (of μ²) for {stage.numbers:,} numbers of a record"
        yield f"stage {position}", f"{share}: μ = {upward(stage.mu)}, σ/Δ = {number(stage.multiplier)}"
    forecast = plan.forecast
    if forecast is not None and plan.multiplier:
        words = "the noise will be felt" if forecast.strength >= _FELT else "mostly noise"
        words = "the signal can stand well above the noise" if forecast.strength >= _CLEAR else words
        times = f"over all rounds it is {number(forecast.strength)} times the noise, if all gradients point one way"
        yield "signal", f"{words}: {times}"
        yield "without privacy", _learnt(forecast)
        yield "forecast", _kept(forecast) + _with_penalty(plan)
        columns = plan.experiment.data.columns
        if columns is not None and any(target.low == 0 for target in columns.targets):  # as of counts and costs
            yield "means", _OF_COUNTS
        if forecast.log_loss is not None:
            yield "probabilities", _probabilities(plan, *forecast.log_loss)
        if plan.weakened:
            name, size = min(plan.by_group.items(), key=lambda item: item[1])
            clip = number(plan.chosen["clip"]["jacobian"])
            yield (
                "penalty",
                f"the group {name} has {size:,} records: Jacobians are clipped to {clip} to save noise, and groups are "
                "drawn together less than alpha asks, if at all; objective.alpha = 0 takes no noise for it",
            )
    if plan.penalties:
        weights = "; ".join(f"{number(alpha)}: {number(times, 2)} times" for alpha, times in plan.penalties.items())
        yield "groups", f"the noise at weights alpha of a penalty, in that of none: {weights}"
    if plan.bought:
        yield "penalty buys", _bought(plan)
    if said := _thresholds(plan):
        yield "thresholds", said
    for section, values in plan.chosen.items() if forecast is not None else ():
        yield f"[{section}]", settings_text(values)


def _bought(plan: Planned) -> str:
    """Say how much the penalty changes on public twins, with groups that differ by half a deviation in their traits."""
    (_, without), (alpha, weighed) = plan.bought.items()
    what, of = ("accuracy", "a class's rate") if without.constant > 0 else ("squared error", "the mean answers")
    gaps, values = apart(weighed.gap, without.gap), apart(abs(weighed.model), abs(without.model))
    buys = "" if weighed.gap < without.gap else ": it buys nothing"
    if plan.experiment.objective.order != 2:  # the twins are trained with it, and their means or rates compared
        buys += f". The gap is not that of tails, for which order {number(plan.experiment.objective.order)} is"
    return (
        f"at α = {number(alpha)} the gap between groups in {of} is {gaps[0]} and {what} {values[0]}, at 0 {gaps[1]} "
        f"and {values[1]}, with this run's noise on public twins whose groups differ by half a deviation{buys}"
    )


def _thresholds(plan: Planned) -> str:
    """Forecast of thresholds by group in words: their noise, or their purpose; empty if they have no meaning."""
    settings, experiment = plan.experiment.thresholds, plan.experiment
    if settings.share:
        bands = ", ".join(f"{group} ± {100 * band:.2g} %" for group, band in plan.bands.items())
        noise = f"; noise moves the selected share of {bands}" if plan.multiplier else ""
        share = f"{100 * experiment.share_of_scores:.0f} % of the budget (of μ²)"
        return f"{share} for counts of scores by group{noise}. {_FITS}"
    return _FITS if plan.compares and plan.multiplier else ""


_FITS = (
    "[thresholds] fits where the group may be read of every record that is predicted: it costs less accuracy for as "
    "much parity. A penalty (alpha) fits where it may not; both go together"
)


def settings_text(values: Mapping[str, Any]) -> str:
    """Settings as they are written in TOML, side by side."""
    return ", ".join(
        f"{name} = {json.dumps(value) if isinstance(value, str) else value}" for name, value in values.items()
    )


def as_plain(plan: Planned) -> dict[str, Any]:
    """A plan as plain values."""
    forecast = plan.forecast
    plain: dict[str, Any] = {
        "experiment": plan.experiment.name,
        "verdict": plan.verdict,
        "unless": plan.unless,
        "records": dict(plan.by_group),
        "assumed": plan.assumed,
        "inputs": plan.inputs,
        "parameters": plan.parameters,
        "model": plan.experiment.model.kind,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "unit": plan.experiment.data.unit or "record",
        "rounds": plan.experiment.training.rounds,
        "releases": plan.releases,
        "batch": dict(zip(plan.by_group, plan.batch, strict=True)),
        "noise_multiplier": plan.multiplier,
        "sensitivity": plan.sensitivity,
        "sigma": None if plan.sensitivity is None else plan.multiplier * plan.sensitivity,
        "penalty": plan.experiment.objective.penalty,
        "word": plan.word,
        "penalty_weakened": plan.weakened,
        "penalty_noise": {str(alpha): times for alpha, times in plan.penalties.items()},
        "words": dict(rows(plan)),
        "settings": {section: dict(values) for section, values in plan.chosen.items()},
        "stages": [asdict(stage) for stage in plan.stages],
        "penalty_buys": {str(alpha): asdict(score) for alpha, score in plan.bought.items()},
        "threshold_bands": dict(plan.bands),
        "forecast": None,
    }
    if forecast is not None:
        plain["forecast"] = {
            "reference": forecast.reference,
            "learnt": [{"reference": score.model, "constant": score.constant} for score in forecast.learnt],
            "kept": forecast.share_left,
            "range": list(forecast.range),
            "feasible": forecast.feasible,
            "log_loss": forecast.log_loss and dict(zip(("model", "shares"), forecast.log_loss, strict=True)),
            "kept_with_tight_columns": forecast.tight,
            "kept_with_skewed_numbers": forecast.skewed,
            "kept_where_columns_tell_little": forecast.bare,
            "rarest_class_assumed": forecast.rarest,
            "kept_with_a_rare_class": forecast.rare,
            "constant_wins_up_to_share": forecast.constant_to,
            "signal_to_noise": forecast.strength,
            "thresholds": {"feasible": FEASIBLE, "about_all": ABOUT_ALL},
            "what_ifs": [
                {"records": what_if.records, "epsilon": what_if.epsilon, "kept": what_if.share_left}
                for what_if in forecast.what_ifs
            ],
        }
    return plain


def _noise(plan: Planned) -> str:
    several = f"all {len(plan.stages)} stages together" if len(plan.stages) > 1 else f"{plan.releases} releases"
    if failing := getattr(plan.experiment.local, "failing", 0.0):
        several += f" and as many attempts that fail as {100 * failing:g} % of them"
    spent = f"ε = {upward(plan.epsilon)} at δ = {upward(plan.delta)} over {several}"
    if (unit := plan.experiment.data.unit) is not None:
        spent += f" of {of_unit(unit)}"
    if plan.sensitivity is None:
        summed = plan.experiment.privacy.model.in_sum(plan.experiment)
        return f"σ/Δ = {number(plan.multiplier)} for {spent}{summed}"
    sigma = plan.multiplier * plan.sensitivity
    return f"σ = {number(sigma)} = {number(plan.multiplier)} Δ, Δ = {number(plan.sensitivity)}, for {spent}"


def _kept(forecast: Forecast) -> str:
    least, most = (max(0.0, min(1.0, value)) for value in forecast.range)
    middle = max(0.0, min(1.0, forecast.share_left))
    between = f" ({100 * least:.0f} to {100 * most:.0f} %, by how much there is to learn)" if least < most else ""
    return f"{100 * middle:.0f} % of what {forecast.reference} gains over a constant is left{between}, on public twins"


def _with_penalty(plan: Planned) -> str:
    """Say what is left under the penalty, by what it costs in groups of the run's sizes; empty without one."""
    if not plan.bought or plan.forecast is None:
        return ""
    (_, without), (alpha, weighed) = plan.bought.items()
    if without.gain <= 0 or plan.forecast.share_left <= 0:
        return f"; of which α = {number(alpha)} leaves nothing that can be told"
    left = max(0.0, min(1.0, weighed.gain / without.gain)) * min(1.0, plan.forecast.share_left)
    return f"; with α = {number(alpha)}, in groups of these sizes, {100 * left:.0f} %"


_OF_COUNTS = (
    "clipped errors draw answers to the median: if most of these numbers are small, answers and their sums are too "
    "small on average. The run says by how much if it keeps records: read that before you add predictions up"
)


def _probabilities(plan: Planned, model: float, shares: float) -> str:
    """The log loss that the run's probabilities are expected to have, and what would mend worse than the shares'."""
    values = apart(model, shares)
    said = f"log loss {values[0]} on all public twins together, where the class shares alone have {values[1]}"
    if model < shares:
        return said
    if plan.experiment.calibration.share:
        return f"{said}: worse, do not read them as chances"
    return f"{said}: worse, do not read them as chances; [calibration] share = 0.1 corrects them"


def _learnt(forecast: Forecast) -> str:
    """Say what the reference and a constant score on twins; the private records have no such number."""
    what = "accuracy" if forecast.learnt[0].constant > 0 else "squared error"
    scores, constants = (
        ", ".join(number(abs(value)) for value in values)
        for values in zip(*((score.model, score.constant) for score in forecast.learnt), strict=True)
    )
    return (
        f"{forecast.reference} on all public twins together: {what} {scores}, where a constant has {constants} (one "
        "number for each law; nobody trains on the private records without noise)"
    )


def draw_plan(plan: Planned, path: Path) -> Path:
    """A curve for every epsilon of a plan with a forecast; the run's own number of records is marked."""
    if plan.forecast is None:
        raise ValueError(f"there is nothing to draw: {plan.verdict}")
    return save(_what_ifs_drawn(as_plain(plan)), path)


@house_style()
def _what_ifs_drawn(plan: Mapping[str, Any]) -> Figure:
    what_ifs = plan["forecast"]["what_ifs"]
    figure, (axes,) = new_panels(1, 1, size=(6.4, 4.0))
    for index, epsilon in enumerate(sorted({what_if["epsilon"] for what_if in what_ifs})):
        points = sorted((what_if["records"], what_if["kept"]) for what_if in what_ifs if what_if["epsilon"] == epsilon)
        shown = [min(1.0, max(0.0, share)) for _, share in points]
        label = f"ε = {upward(epsilon)}"
        axes.plot([records for records, _ in points], shown, marker="o", color=colour(index), label=label)
    axes.axhspan(-0.03, FEASIBLE, color="0.5", alpha=0.15, linewidth=0)
    axes.annotate(
        "a constant does as well", (0.99, 0.02), xycoords="axes fraction", color="0.35", ha="right", va="bottom"
    )
    axes.axhline(ABOUT_ALL, color="0.6", linestyle=":", linewidth=1)
    axes.axvline(sum(plan["records"].values()), color="0.6", linestyle="--", linewidth=1)
    axes.set(xscale="log", ylim=(-0.03, 1.05), xlabel="records", ylabel="left of what can be learnt")
    sizes = sorted({what_if["records"] for what_if in what_ifs})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set_title(f"{plan['experiment']}: what noise leaves, by forecast on public twins")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def plan_document(plan: Mapping[str, Any]) -> Document:
    """Write a plan as it is read, from plain values (`as_plain`, `fedsw plan --json`); ValueError if that is none."""
    try:
        words, what_ifs = dict(plan["words"]), WhatIfs.of_plan(plan)
        drawn: tuple[Picture, ...] = ()
        if what_ifs is not None:
            says = f"{plan['verdict']}. All numbers are in the table under What if."
            caption = "What noise leaves, by records and ε."
            drawn = (picture(_what_ifs_drawn(plan), name="what-ifs", caption=caption, says=says),)
        listed = [(f"[{section}]", settings_text(values)) for section, values in plan["settings"].items()]
        said = [(name, text) for name, text in words.items() if name not in ("verdict", "", *dict(listed))]
        return Document(
            title=f"Plan of {plan['experiment']}",
            verdict=str(plan["verdict"]),
            begins=tuple(filter(None, (plan["unless"], _PUBLIC))),
            sections=sections(
                [
                    ("What can be expected", [*drawn, named(said, "From public numbers alone")]),
                    ("What if", [] if what_ifs is None else [what_ifs.listed()]),
                    ("Settings", [named(listed, "What was chosen for it")]),
                ]
            ),
        )
    except (LookupError, TypeError, AttributeError) as fault:
        raise ValueError(f"this is no plan of `fedsw plan --json`: {type(fault).__name__} {fault}") from None


_PUBLIC = (
    "A forecast from public numbers alone: of private records it knows how many there are in each group. Nothing was "
    "trained on them, and no budget was spent."
)


def planned_view(plan: Planned) -> Document:
    """Everything that a plan says, on one screen."""
    said = [(name, words) for name, words in rows(plan) if name != "verdict"]
    what_ifs = WhatIfs.of_plan(as_plain(plan)) if plan.multiplier else None
    beside: list[Part] = []
    if what_ifs is not None:
        beside = [Conclusion("what if: expected to be left of what can be learnt"), what_ifs.listed()]
    return Document("", plan.verdict, begins=(named(said), *beside))
