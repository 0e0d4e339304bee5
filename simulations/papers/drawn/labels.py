"""How points of a grid are named in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsw._tools.text import number, to_float, upward
from fedsw.runs.report.metric_names import metric_name
from simulations.papers.figure import Value

_SYMBOLS = {"epsilon": "ε", "alpha": "α", "records": "n", "rounds": "T", "directions": "k"}
_METRICS = {
    "di_01": "DI",
    "eo_0_01": "EO₀",
    "eo_1_01": "EO₁",
    "above_0": "OD₀",
    "above_1": "OD₁",
    "core_loss": "RL_C",
    "code_accuracy": "accuracy",
    "code_di_01": "DI",
    "code_group": "group found",
}
"""The papers' names of their own indices, where fedsw's metrics of the same name are others."""


def name_of(key: str, value: Value) -> str:
    """`ε = 1`, `α = 0.5`, `ε = ∞`, `source = mnist`."""
    shown = upward if key in ("epsilon", "delta") else number
    text = value if isinstance(value, str) and value != "inf" else shown(value, _digits(value))
    return f"{_SYMBOLS.get(key, key)} = {text}"


def measured_of(values: Mapping[str, Any], *names: str) -> str:
    """`accuracy 0.79 · DI 0.63`: the numbers that there are, for a panel's title."""
    return " · ".join(
        f"{_METRICS.get(n) or metric_name(n)} {number(values[n], _digits(values[n]))}" for n in names if n in values
    )


def _digits(value: Any) -> int:
    """Significant ones: three, or as many as a number in the thousands has before its point."""
    known = to_float(value)
    return max(4, len(str(int(known)))) if known is not None and 999 < known < 1_000_000 else 3
