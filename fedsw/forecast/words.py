"""A plan in rows of words, and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedsw.forecast.forecast import ABOUT_ALL, FEASIBLE
from fedsw.forecast.planning import Forecast, Planned
from fedsw.text import number

_CLEAR, _FELT = 60.0, 8.0


def rows(found: Planned) -> Iterator[tuple[str, str]]:
    """What a plan says, as names and sentences, the verdict first."""
    yield "verdict", found.verdict
    if found.unless:
        yield "", found.unless
    groups = ", ".join(f"{name} {size:,}" for name, size in found.by_group.items())
    yield "records", f"{found.records:,} ({groups}){'; ' + found.assumed if found.assumed else ''}"
    yield "model", f"{found.experiment.model.kind}, {found.inputs} inputs, {found.parameters:,} parameters"
    if found.multiplier:
        yield "noise", _noise(found)
    forecast = found.forecast
    if forecast is None:
        return
    if found.multiplier:
        yield "signal", signal_words(forecast.strength)
        yield "forecast", _kept(forecast)
        yield "feasible from", _least(found, forecast)
        yield "model size", f"feasible up to about {_down(forecast.most_parameters):,} parameters"
        if found.weakened:
            yield "penalty", _weakened(found)
    for section, values in found.chosen.items():
        yield f"[{section}]", settings_text(values)


def signal_words(strength: float) -> str:
    """Signal against noise over the whole run, in words."""
    if strength >= _CLEAR:
        words = "the signal can stand well above the noise"
    elif strength >= _FELT:
        words = "the noise will be felt"
    else:
        words = "mostly noise"
    return f"{words}: over all rounds it is {number(strength)} times the noise, if all gradients point one way"


def settings_text(values: Mapping[str, Any]) -> str:
    """Settings as they are written in TOML, side by side."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


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
        "rounds": found.experiment.training.rounds,
        "releases": found.releases,
        "batch": dict(zip(found.by_group, found.batch, strict=True)),
        "noise_multiplier": found.multiplier,
        "sensitivity": found.sensitivity,
        "sigma": None if found.sensitivity is None else found.multiplier * found.sensitivity,
        "penalty_weakened": found.weakened,
        "settings": {section: dict(values) for section, values in found.chosen.items()},
        "forecast": None,
    }
    if forecast is not None:
        plain["forecast"] = {
            "kept": forecast.kept,
            "range": list(forecast.range),
            "feasible": forecast.feasible,
            "signal_to_noise": forecast.strength,
            "least_records": forecast.least_records,
            "least_epsilon": forecast.least_epsilon,
            "most_parameters": forecast.most_parameters,
            "thresholds": {"feasible": FEASIBLE, "about_all": ABOUT_ALL},
            "what_ifs": [{"records": w.records, "epsilon": w.epsilon, "kept": w.kept} for w in forecast.what_ifs],
        }
    return plain


def short(kept: float) -> str:
    """A share of what can be learnt, for a cell of a table."""
    return "constant" if kept < FEASIBLE else f"{100 * min(kept, 1):.0f} %"


def _noise(found: Planned) -> str:
    spent = f"ε = {number(found.epsilon)} at δ = {number(found.delta)} over {found.releases} releases"
    if found.sensitivity is None:
        return f"σ/Δ = {number(found.multiplier)} for {spent}"
    sigma = found.multiplier * found.sensitivity
    return f"σ = {number(sigma)} = {number(found.multiplier)} Δ, Δ = {number(found.sensitivity)}, for {spent}"


def _kept(forecast: Forecast) -> str:
    least, most = (max(0.0, min(1.0, value)) for value in forecast.range)
    own = max(0.0, min(1.0, forecast.kept))
    between = f" ({100 * least:.0f} to {100 * most:.0f} %, by how much there is to learn)" if least < most else ""
    return f"{100 * own:.0f} % of what training without noise gains over a constant is left{between}, on public twins"


def _weakened(found: Planned) -> str:
    name, size = min(found.by_group.items(), key=lambda each: each[1])
    clip = number(found.chosen["clip"]["jacobian"])
    return (
        f"the group {name} has {size:,} records: Jacobians are clipped to {clip}, so that the penalty takes no more "
        "noise, and groups are drawn together less than alpha asks"
    )


def _least(found: Planned, forecast: Forecast) -> str:
    epsilon = number(found.experiment.privacy.epsilon)
    records = (
        "no number of records" if math.isinf(forecast.least_records) else f"{_up(forecast.least_records):,} records"
    )
    least = "no ε" if math.isinf(forecast.least_epsilon) else f"ε = {number(forecast.least_epsilon, 2)}"
    return f"{records} at ε = {epsilon}; {least} with {found.records:,} records"


def _down(value: float) -> int:
    """A whole number with two digits, rounded down."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return math.floor(value / unit) * unit


def _up(value: float) -> int:
    """A whole number with two digits, rounded up."""
    unit: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
