"""Metrics' names and order, and their values with intervals, also in tables by group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsw._tools.text import BURIED, measured, number, to_float
from fedsw.runs.group_names import UNNAMED, Names

_NAMES = {
    "accuracy": "accuracy",
    "sw2": "SW₂",
    "sw2_to_prior": "SW₂ to prior",
    "root_mean_squared_error": "error (RMS)",
    "mean_squared_error": "squared error",
    "disparate_impact": "DI",
    "w2_squared": "W₂²",
    "linear_probe_label": "label read off",
    "linear_probe_group": "group read off",
    "loss": "loss",
    "selection_rate": "selected",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
    "auc": "AUC",
    "calibration_error": "calibration error",
    "mean_absolute_error": "absolute error",
    "r2": "R²",
    "demographic_parity_difference": "parity gap",
    "equalized_odds_difference": "odds gap",
    "ks": "KS",
    "eo_0": "EO₀",
    "eo_1": "EO₁",
    "od_0": "OD₀",
    "od_1": "OD₁",
    "accuracy_generated": "accuracy",
    "frechet_lenet": "Fréchet (LeNet)",
}


_OF_POSITIVE = {
    "disparate_impact": "DI of {}",
    "selection_rate": "rate of {}",
    "true_positive_rate": "TPR of {}",
    "false_positive_rate": "FPR of {}",
}
_OF_CLASS = {"disparate_impact": "DI of {}", "selection_rate": "rate of {}", "od": "OD, true {}", "eo": "{1}, true {0}"}
_NUMBERED = re.compile(r"(disparate_impact|selection_rate|eo|od)_(\d+)")


def metric_name(key: str, names: Names = UNNAMED) -> str:
    """The name of a metric in tables and plots, with the declared name of its class, if it is of one.

    Without a positive class, "worst" marks a metric of the class with the lowest ratio.
    """
    if names.predicted and key == "loss":
        return "loss (coded)"
    if not names.classes:
        return _NAMES.get(key, key.replace("_", " "))
    positive = None if names.positive is None else names.label(names.positive)
    if key in _OF_POSITIVE and positive is not None:
        return _OF_POSITIVE[key].format(positive)
    if key == "disparate_impact":
        return "worst DI"
    numbered = _NUMBERED.fullmatch(key)
    if numbered is None:
        return _NAMES.get(key, key.replace("_", " "))
    label = names.label(int(numbered[2]))
    return _OF_CLASS[numbered[1]].format(label, "worst EO" if positive is None else f"EO of {positive}")


_BETWEEN_GROUPS = re.compile(
    r"disparate_impact(_\d+)?|demographic_parity_difference|equalized_odds_difference|w2_squared|ks|(eo|od)_\d+"
)


def says_nothing(key: str, called: Names) -> bool:
    """True for a metric that compares groups if there is only one group: it is perfect for every model."""
    return len(called.groups) == 1 and _BETWEEN_GROUPS.fullmatch(key) is not None


def ordered_metrics(held_out: Mapping[str, Any], called: Names = UNNAMED) -> list[str]:
    """Keys of the metrics that are plain numbers, the best known first; those of single classes follow that of all.

    A classifier's AUC and log loss follow its accuracy. Comparisons of groups are left out if a run (``called``) has
    one group.
    """
    numeric = [key for key, value in held_out.items() if to_float(value) is not None and not says_nothing(key, called)]
    first = ("accuracy", "auc", "loss") if "accuracy" in numeric else ()
    rank = {key: float(position) for position, key in enumerate(dict.fromkeys((*first, *_NAMES)))}

    def order(key: str) -> float:
        numbered = _NUMBERED.fullmatch(key)
        of_all = rank.get(key if numbered is None else numbered[1], len(rank))
        return rank.get(key, of_all if numbered is None else of_all + 0.5)

    return sorted(numeric, key=order)


def scores(summary: Mapping[str, Any], part: str = "held_out") -> dict[str, tuple[Any, Any]]:
    """Metrics of the model ("held_out") or of a "constant", by name, each with its interval."""
    around = summary.get(f"{part}_intervals") or {}
    return {name: (value, around.get(name)) for name, value in (summary.get(part) or {}).items()}


def measured_cell(value: Any, interval: Sequence[Any] | None) -> str:
    """A measured number for a narrow column, its interval in a line below; "not to be seen" where noise hides it."""
    shown, _, rest = measured(value, interval).partition(" (")
    shown = "not to be seen" if shown.endswith(BURIED) else shown
    return f"{shown}\n{rest.removesuffix(')')}" if rest else shown


def group_table(
    numbers: Mapping[str, Mapping[str, Any]],
    around: Mapping[str, Mapping[str, Any]],
    cell: Callable[[Any, Sequence[Any] | None], str] = measured,
    *,
    called: Names = UNNAMED,
) -> tuple[list[str], list[list[str]]]:
    """Names of metrics, and a row for each group: its name, number of records, and metrics as `cell` writes them.

    Metrics of a class have its declared name (``called``).
    """
    names = list(dict.fromkeys(name for metrics in numbers.values() for name in metrics))

    def text(name: str, value: Any, interval: Any) -> str:
        whole = name == "count" and to_float(value) is not None
        return f"{int(value):,}" if whole else cell(value, interval)

    rows = [
        [group, *(text(name, metrics.get(name), around.get(group, {}).get(name)) for name in names)]
        for group, metrics in numbers.items()
    ]
    return [metric_name(name, called) for name in names], rows


def short_metrics(held_out: Mapping[str, Any], names: Names = UNNAMED) -> str:
    """The first two metrics in one short line, losses last: accuracy 0.79 · DI of hired 0.63."""
    keys = sorted(ordered_metrics(held_out), key="loss".__eq__)
    return " · ".join(f"{metric_name(key, names)} {number(held_out[key])}" for key in keys[:2])


_HEADLINES = ("accuracy", "root_mean_squared_error", "mean_squared_error", "sw2")
"""Metrics for a page's first line; it has the first that was measured."""


def headline(summary: Mapping[str, Any]) -> str | None:
    """The metric in a page's first line; None if nothing was measured."""
    known = ordered_metrics(summary.get("held_out") or {})
    return next((name for name in _HEADLINES if name in known), known[0] if known else None)
