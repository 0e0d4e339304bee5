"""A plan in rows of words, and as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw._tools.text import number, upward
from fedsw.desk.planning._forecast import ABOUT_ALL, FEASIBLE
from fedsw.desk.planning.run_plan import Forecast, Planned
from fedsw.experiment.load import of_unit
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.runs.page.document import Document, Listed, Section, WhatIfs
from fedsw.runs.page.pictures import Picture, picture
from fedsw.runs.report.console import named_rows, table_of
from fedsw.runs.report.facts import Facts
from fedsw.runs.report.figures import colour, house_style, new_panels, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLEAR, _FELT = 60.0, 8.0
_WHOSE = {"stated": "its bound is stated by you, and nothing proves it", "proven": "the bounds of its parts are proven"}


def rows(found: Planned) -> Iterator[tuple[str, str]]:
    """What a plan says, as names and sentences, the verdict first."""
    yield "verdict", found.verdict
    if found.unless:
        yield "", found.unless
    groups = ", ".join(f"{name} {size:,}" for name, size in found.by_group.items())
    yield "records", f"{found.records:,} ({groups}){'; ' + found.assumed if found.assumed else ''}"
    penalty = found.experiment.objective.penalty
    if PENALTIES.get(penalty).custom or found.word != "proven":
        yield "own penalty", f"{penalty}: {_WHOSE[found.word]}"
    yield "model", f"{found.experiment.model.kind}, {found.inputs} inputs, {found.parameters:,} parameters"
    if found.multiplier:
        yield "noise", _noise(found)
    for place, each in enumerate(found.stages if len(found.stages) > 1 else (), start=1):
        share = f"{100 * each.share:.3g} % of the budget (of μ²) for {each.numbers:,} numbers of a record"
        yield f"stage {place}", f"{share}: μ = {upward(each.mu)}, σ/Δ = {number(each.multiplier)}"
    forecast = found.forecast
    if forecast is None:
        return
    if found.multiplier:
        yield "signal", _signal(forecast.strength)
        yield "without privacy", _learnt(forecast)
        yield "forecast", _kept(forecast)
        yield "feasible from", _least(found, forecast)
        yield "model size", f"feasible up to about {_two_digits(forecast.most_parameters, math.floor)} parameters"
        if found.weakened:
            yield "penalty", _weakened(found)
    if found.penalties:
        weights = "; ".join(f"{number(alpha)}: {number(times, 2)} times" for alpha, times in found.penalties.items())
        yield "groups", f"the noise at weights alpha of a penalty, in that of none: {weights}"
    for section, values in found.chosen.items():
        yield f"[{section}]", settings_text(values)


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


def as_plain(found: Planned) -> dict[str, Any]:
    """A plan as plain values."""
    forecast = found.forecast
    plain: dict[str, Any] = {
        "experiment": found.experiment.name,
        "verdict": found.verdict,
        "unless": found.unless,
        "records": dict(found.by_group),
        "assumed": found.assumed,
        "inputs": found.inputs,
        "parameters": found.parameters,
        "model": found.experiment.model.kind,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "unit": found.experiment.data.unit or "record",
        "rounds": found.experiment.training.rounds,
        "releases": found.releases,
        "batch": dict(zip(found.by_group, found.batch, strict=True)),
        "noise_multiplier": found.multiplier,
        "sensitivity": found.sensitivity,
        "sigma": None if found.sensitivity is None else found.multiplier * found.sensitivity,
        "penalty": found.experiment.objective.penalty,
        "word": found.word,
        "penalty_weakened": found.weakened,
        "penalty_noise": {str(alpha): times for alpha, times in found.penalties.items()},
        "words": dict(rows(found)),
        "settings": {section: dict(values) for section, values in found.chosen.items()},
        "stages": [asdict(each) for each in found.stages],
        "forecast": None,
    }
    if forecast is not None:
        plain["forecast"] = {
            "reference": forecast.reference,
            "learnt": [{"reference": each.model, "constant": each.constant} for each in forecast.learnt],
            "kept": forecast.kept,
            "range": list(forecast.range),
            "feasible": forecast.feasible,
            "rarest_class_assumed": forecast.rarest,
            "kept_with_a_rare_class": forecast.rare,
            "signal_to_noise": forecast.strength,
            "least_records": forecast.least_records,
            "least_epsilon": forecast.least_epsilon,
            "most_parameters": forecast.most_parameters,
            "thresholds": {"feasible": FEASIBLE, "about_all": ABOUT_ALL},
            "what_ifs": [asdict(each) for each in forecast.what_ifs],
        }
    return plain


def _noise(found: Planned) -> str:
    several = f"all {len(found.stages)} stages together" if len(found.stages) > 1 else f"{found.releases} releases"
    if failing := getattr(found.experiment.local, "failing", 0.0):
        several += f" and as many attempts that fail as {100 * failing:g} % of them"
    spent = f"ε = {upward(found.epsilon)} at δ = {upward(found.delta)} over {several}"
    if (unit := found.experiment.data.unit) is not None:
        spent += f" of {of_unit(unit)}"
    if found.sensitivity is None:
        private = found.experiment.privacy
        summed = f"; in the sum of all clients {number(private.model.summed(found.experiment))} times that"
        return f"σ/Δ = {number(found.multiplier)} for {spent}{summed if private.local else ''}"
    sigma = found.multiplier * found.sensitivity
    return f"σ = {number(sigma)} = {number(found.multiplier)} Δ, Δ = {number(found.sensitivity)}, for {spent}"


def _kept(forecast: Forecast) -> str:
    least, most = (max(0.0, min(1.0, value)) for value in forecast.range)
    own = max(0.0, min(1.0, forecast.kept))
    between = f" ({100 * least:.0f} to {100 * most:.0f} %, by how much there is to learn)" if least < most else ""
    return f"{100 * own:.0f} % of what {forecast.reference} gains over a constant is left{between}, on public twins"


def _learnt(forecast: Forecast) -> str:
    """What the reference scores on twins, and a constant; the private records have no such number."""
    what = "accuracy" if forecast.learnt[0].constant > 0 else "squared error"
    scores, constants = (
        ", ".join(number(abs(value)) for value in values)
        for values in zip(*((each.model, each.constant) for each in forecast.learnt), strict=True)
    )
    return (
        f"{forecast.reference} on all public twins together: {what} {scores}, where a constant has {constants} (one "
        "number for each law; nobody trains on the private records without noise)"
    )


def _weakened(found: Planned) -> str:
    name, size = min(found.by_group.items(), key=lambda each: each[1])
    clip = number(found.chosen["clip"]["jacobian"])
    return (
        f"the group {name} has {size:,} records: Jacobians are clipped to {clip} to save noise, and groups are drawn "
        "together less than alpha asks, if at all; objective.alpha = 0 takes no noise for it"
    )


def _least(found: Planned, forecast: Forecast) -> str:
    epsilon = upward(found.experiment.privacy.epsilon)
    records = "no number of"
    if not math.isinf(forecast.least_records):
        records = _two_digits(forecast.least_records, math.ceil)
    least = "no ε" if math.isinf(forecast.least_epsilon) else f"ε = {upward(forecast.least_epsilon, 2)}"
    return f"{records} records at ε = {epsilon}; {least} with {found.records:,} records"


def _two_digits(value: float, rounded: Callable[[float], int]) -> str:
    """A whole number with two digits, rounded up or down."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return f"{rounded(value / unit) * unit:,}"


def draw_plan(found: Planned, path: Path) -> Path:
    """A curve for every epsilon of a plan with a forecast; the run's own number of records is marked."""
    if found.forecast is None:
        raise ValueError(f"there is nothing to draw: {found.verdict}")
    return save(_what_ifs_drawn(as_plain(found)), path)


@house_style()
def _what_ifs_drawn(plan: Mapping[str, Any]) -> Figure:
    what_ifs = plan["forecast"]["what_ifs"]
    figure, (axes,) = new_panels(1, 1, size=(6.4, 4.0))
    for place, epsilon in enumerate(sorted({each["epsilon"] for each in what_ifs})):
        points = sorted((each["records"], each["kept"]) for each in what_ifs if each["epsilon"] == epsilon)
        shown = [min(1.0, max(0.0, kept)) for _, kept in points]
        label = f"ε = {upward(epsilon)}"
        axes.plot([records for records, _ in points], shown, marker="o", color=colour(place), label=label)
    axes.axhspan(-0.03, FEASIBLE, color="0.5", alpha=0.15, linewidth=0)
    axes.annotate(
        "a constant does as well", (0.99, 0.02), xycoords="axes fraction", color="0.35", ha="right", va="bottom"
    )
    axes.axhline(ABOUT_ALL, color="0.6", linestyle=":", linewidth=1)
    axes.axvline(sum(plan["records"].values()), color="0.6", linestyle="--", linewidth=1)
    axes.set(xscale="log", ylim=(-0.03, 1.05), xlabel="records", ylabel="left of what can be learnt")
    sizes = sorted({each["records"] for each in what_ifs})
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
        said = [(name, each) for name, each in words.items() if name not in ("verdict", "", *dict(listed))]
        return Document(
            title=f"Plan of {plan['experiment']}",
            verdict=str(plan["verdict"]),
            begins=tuple(filter(None, (plan["unless"], _PUBLIC))),
            sections=(
                Section.of(
                    "What can be expected", [*drawn, Listed("From public numbers alone", Facts.of(("", ""), said))]
                ),
                Section.of("What if", [] if what_ifs is None else [Listed(_LEFT, what_ifs.table, "cells")]),
                Section.of("Settings", [Listed("What was chosen for it", Facts.of(("", ""), listed))]),
            ),
        )
    except (LookupError, TypeError, AttributeError) as fault:
        raise ValueError(f"this is no plan of `fedsw plan --json`: {type(fault).__name__} {fault}") from None


_PUBLIC = (
    "A forecast from public numbers alone: of private records it knows how many there are in each group. Nothing was "
    "trained on them, and no budget was spent."
)
_LEFT = "Left of what can be learnt, by records and ε"


def _picture(plan: Mapping[str, Any]) -> Picture:
    says = f"{plan['verdict']}. All numbers are in the table under What if."
    return picture(_what_ifs_drawn(plan), name="what-ifs", caption="What noise leaves, by records and ε.", says=says)


def planned_view(found: Planned) -> RenderableType:
    """Everything that a plan says, on one screen."""
    grid = named_rows(
        (name, Text(words, style=_style(found) if name == "verdict" else "")) for name, words in rows(found)
    )
    if found.forecast is None or not found.multiplier:
        return grid
    return Group(grid, _what_ifs(found.forecast))


def _style(found: Planned) -> str:
    if found.forecast is None or not found.multiplier:
        return "bold"
    kept = found.forecast.kept
    return "bold green" if kept >= ABOUT_ALL else "bold yellow" if found.forecast.feasible else "bold red"


def _what_ifs(forecast: Forecast) -> Table:
    kept = {
        (each.records, each.epsilon): "constant" if each.kept < FEASIBLE else f"{100 * min(each.kept, 1):.0f} %"
        for each in forecast.what_ifs
    }
    sizes, epsilons = (sorted(set(values)) for values in zip(*kept, strict=True))
    headings = ("records", *(f"ε = {upward(epsilon)}" for epsilon in epsilons))
    rows = [(f"{size:,}", *(kept[size, epsilon] for epsilon in epsilons)) for size in sizes]
    title = "what if: expected to be left of what can be learnt"
    return table_of(headings, rows, left=(), title=title, title_justify="left")
