"""How metrics are named for people, and which come first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsw.text import number, to_float

_NAMES = {
    "accuracy": "accuracy",
    "sw2": "SW₂",
    "sw2_to_prior": "SW₂ to prior",
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


def metric_name(key: str) -> str:
    """The name of a metric in tables and plots."""
    return _NAMES.get(key, key.replace("_", " "))


def ordered_metrics(held_out: Mapping[str, Any]) -> list[str]:
    """Keys of the metrics that are plain numbers, the best known first."""
    numeric = [key for key, value in held_out.items() if to_float(value) is not None]
    rank = {key: position for position, key in enumerate(_NAMES)}
    return sorted(numeric, key=lambda key: rank.get(key, len(rank)))


def short_metrics(held_out: Mapping[str, Any], most: int = 2) -> str:
    """The first metrics in one short line: accuracy 0.79 · DI 0.63."""
    return " · ".join(f"{metric_name(key)} {number(held_out[key])}" for key in ordered_metrics(held_out)[:most])
