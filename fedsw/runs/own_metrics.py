"""Metrics of a user's own: any function of held-out outputs and records, at the server, outside the guarantee."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.experiment import ExperimentError
from fedsw.experiment.own_metrics import require_names
from fedsw.runs.telemetry import LOGGER, event

Metric = Callable[[Tensor, Records], float | Mapping[str, float]]
"""`metric(outputs, records)`: outputs (n, d), what the penalty compares; records with `features` (n, p), `sensitive`
(n,), the group of each record, and `target` (n,) or (n, t). Both are the held-out part and must not be changed. For a
generator outputs are its samples, and rows of the two do not belong together. It returns a number, which is recorded
under the metric's name, or numbers by name, recorded as `metric.name`."""


class OwnMetrics:
    """Functions by name, measured one after the other.

    Args:
        metrics: by the name that they are recorded under.

    Raises:
        ExperimentError: if a name is that of a shipped metric, or something cannot be called.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        require_names(metrics)
        for name, metric in metrics.items():
            if not callable(metric):
                raise ExperimentError(f"metric {name!r} is a {type(metric).__name__} and cannot be called")
        self._metrics, self._failed = dict(metrics), set[str]()

    def __len__(self) -> int:
        return len(self._metrics)

    def attempt(self, outputs: Tensor, records: Records) -> None:
        """Try every metric on outputs (n, d), before anything is spent.

        Raises:
            ExperimentError: naming the one that raises, returns no number, or changes the records.
        """
        for name, metric in self._metrics.items():
            before = _versions(records)
            try:
                returned = metric(outputs.clone(), records)
            except Exception as fault:
                raise ExperimentError(
                    f"metric {name!r} fails on {len(outputs)} held-out outputs of the initial model: "
                    f"{type(fault).__name__}: {fault}"
                ) from fault
            _named(name, returned)
            if _versions(records) != before:
                raise ExperimentError(f"metric {name!r} changes the held-out records in place; let it copy them first")

    def measure(self, outputs: Tensor, records: Records) -> dict[str, float]:
        """Every metric's numbers of outputs (n, d), by name. It never raises: budget is being spent.

        One that fails is nan, and said so once in the log.
        """
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            try:
                found |= _named(name, metric(outputs.clone(), records))
            except Exception as fault:
                found[name] = float("nan")
                if name not in self._failed:
                    self._failed.add(name)
                    words = f"metric {name!r} failed and is nan: {type(fault).__name__}: {fault}"
                    logging.getLogger(LOGGER).warning(words, extra=event("metric failed"))
        return found


def _named(name: str, returned: Any) -> dict[str, float]:
    """The numbers that a metric returned, by the names that they are recorded under.

    Raises:
        ExperimentError: if it returned something else.
    """
    if not isinstance(returned, Mapping):
        return {name: _number(name, returned)}
    for key in returned:
        if not isinstance(key, str) or not key:
            raise ExperimentError(f"metric {name!r} returned a number under the name {key!r}; names are words")
    return {f"{name}.{key}": _number(f"{name}.{key}", value) for key, value in returned.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex() and value.dtype != torch.bool:
        return float(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise ExperimentError(f"metric {name!r} returned {kind}; it must return a float, or floats by name")


def _versions(records: Records) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in (records.features, records.sensitive, records.target, records.ids))
