"""A plan in rows of words, and as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import apart, number, upward
from fedsw.desk.planning.forecast import ABOUT_ALL, FEASIBLE
from fedsw.desk.planning.run_forecast import Forecast
from fedsw.desk.planning.run_plan import Planned
from fedsw.experiment import Experiment
from fedsw.experiment.load import of_unit
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.runs.report.document import Conclusion, Document, Part, named, sections
from fedsw.runs.report.figures import Picture, colour, house_style, new_panels, picture, save
from fedsw.runs.report.run_documents import WhatIfs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLEAR, _FELT = 60.0, 8.0
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
        yield "signal", _signal(forecast.strength)
        yield "without privacy", _learnt(forecast)
        yield "forecast", _kept(forecast) + _with_penalty(plan)
        if _may_be_counts(plan.experiment):
            yield "means", _OF_COUNTS
        if forecast.log_loss is not None:
            yield "probabilities", _probabilities(plan, *forecast.log_loss)
        if plan.weakened:
            yield "penalty", _weakened(plan)
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


def _signal(strength: float) -> str:
    words = "the noise will be felt" if strength >= _FELT else "mostly noise"
    if strength >= _CLEAR:
        words = "the signal can stand well above the noise"
    return f"{words}: over all rounds it is {number(strength)} times the noise, if all gradients point one way"


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


def _may_be_counts(experiment: Experiment) -> bool:
    """Say whether what is predicted are numbers from 0, as counts and costs are, by its declaration."""
    columns = experiment.data.columns
    return columns is not None and any(number.low == 0 for number in columns.targets)


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


def _weakened(plan: Planned) -> str:
    name, size = min(plan.by_group.items(), key=lambda item: item[1])
    clip = number(plan.chosen["clip"]["jacobian"])
    return (
        f"the group {name} has {size:,} records: Jacobians are clipped to {clip} to save noise, and groups are drawn "
        "together less than alpha asks, if at all; objective.alpha = 0 takes no noise for it"
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
        drawn = () if what_ifs is None else (_picture(plan),)
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


def _picture(plan: Mapping[str, Any]) -> Picture:
    says = f"{plan['verdict']}. All numbers are in the table under What if."
    return picture(_what_ifs_drawn(plan), name="what-ifs", caption="What noise leaves, by records and ε.", says=says)


def planned_view(plan: Planned) -> Document:
    """Everything that a plan says, on one screen."""
    said = [(name, words) for name, words in rows(plan) if name != "verdict"]
    what_ifs = WhatIfs.of_plan(as_plain(plan)) if plan.multiplier else None
    beside: list[Part] = []
    if what_ifs is not None:
        beside = [Conclusion("what if: expected to be left of what can be learnt"), what_ifs.listed()]
    return Document("", plan.verdict, begins=(named(said), *beside))
