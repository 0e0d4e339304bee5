"""How points of a grid are named in pictures."""

from __future__ import annotations

from fedsw.papers.figure import Value
from fedsw.report.names import metric_name
from fedsw.text import number

_SYMBOLS = {"epsilon": "ε", "alpha": "α", "records": "n", "rounds": "T", "directions": "k"}


def name_of(key: str, value: Value) -> str:
    """`ε = 1`, `α = 0.5`, `ε = ∞`, `source = mnist`."""
    text = value if isinstance(value, str) and value != "inf" else number(value)
    return f"{_SYMBOLS.get(key, key)} = {text}"


def measured_of(values: dict[str, float], *names: str) -> str:
    """`accuracy 0.79 · DI 0.63`: the numbers that there are, for a panel's title."""
    return " · ".join(f"{metric_name(name)} {number(values[name])}" for name in names if name in values)
