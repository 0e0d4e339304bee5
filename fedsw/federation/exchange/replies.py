"""Reading what clients send: arrays and numbers of the asked kind, or a ValueError, whatever came."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsw.federation import wire

_DEVIATIONS = (1e-30, 1e30)
"""Standard deviations of noise that are believed: their squares, and those of sums over them, stay finite."""


def array_of(reply: RecordDict, name: str, shape: Sequence[int | None]) -> Tensor:
    """The floating-point array of that name and shape; None stands for any length.

    Raises:
        ValueError: if there is none.
    """
    values = _decoded(reply, name, shape)
    if not values.is_floating_point():
        raise ValueError(f"{name} came as {values.dtype}; floating-point numbers are expected")
    return values


def whole_numbers_of(reply: RecordDict, name: str, shape: Sequence[int | None], *, what: str) -> Tensor:
    """The int64 array of that name and shape; `what` it is, for the error.

    Raises:
        ValueError: if there is none.
    """
    values = _decoded(reply, name, shape, what=what)
    if values.dtype != torch.int64:
        raise ValueError(f"{what} came as {values.dtype}; int64 is expected")
    return values


def number_of(reply: RecordDict, name: str, *, least: float, most: float) -> float:
    """The metric of that name, from `least` to `most`.

    Raises:
        ValueError: if there is none.
    """
    value = _metric(reply, name)
    if isinstance(value, int | float) and least <= value <= most:
        return float(value)
    raise ValueError(f"{name} came as {value!r}; a number from {least:g} to {most:g} is expected")


def count_of(reply: RecordDict, name: str) -> int:
    """The metric of that name, a whole number from 0.

    Raises:
        ValueError: if there is none.
    """
    value = _metric(reply, name)
    if isinstance(value, int) and value >= 0:
        return value
    raise ValueError(f"{name} came as {value!r}; a whole number from 0 is expected")


def counts_of(reply: RecordDict, name: str) -> tuple[int, ...]:
    """The metric of that name, a list of whole numbers from 0.

    Raises:
        ValueError: if there is none.
    """
    values = _metric(reply, name)
    if isinstance(values, list) and all(isinstance(value, int) and value >= 0 for value in values):
        return tuple(int(value) for value in values)
    raise ValueError(f"{name} came as {values!r}; whole numbers from 0 are expected")


def deviation_of(reply: RecordDict, *, noisy: bool) -> float:
    """The standard deviation `sigma` of the noise in a release; 0 in a run without noise.

    Raises:
        ValueError: if there is none, or one that no noise has.
    """
    if noisy:
        return number_of(reply, "sigma", least=_DEVIATIONS[0], most=_DEVIATIONS[1])
    return number_of(reply, "sigma", least=0.0, most=0.0)


def epsilon_of(reply: RecordDict, *, noisy: bool) -> float:
    """The epsilon that a client's ledger stands at: at least 0, and finite where there is noise.

    Raises:
        ValueError: if there is none.
    """
    return number_of(reply, "epsilon", least=0.0, most=sys.float_info.max if noisy else math.inf)


def _decoded(reply: RecordDict, name: str, shape: Sequence[int | None], *, what: str | None = None) -> Tensor:
    record = reply.get("arrays")
    if not isinstance(record, ArrayRecord) or name not in record:
        raise ValueError(f"no array {name!r} came")
    array = record[name]
    return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=tuple(shape), name=what or name)


def _metric(reply: RecordDict, name: str) -> object:
    record = reply.get("metrics")
    if not isinstance(record, MetricRecord) or name not in record:
        raise ValueError(f"no metric {name!r} came")
    return record[name]
