"""Metrics made of noised counts and sums over records that were kept out of training: post-processing of one release.

What noise and the draw of records do to a metric is found by drawing both again, from the released numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.experiment.sources import load_class_names
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import HeldOut
from fedsw.runs.files import HELD_OUT, read_json, write_json
from fedsw.runs.quality import Quality, metrics_of_tables, spread_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import BINS, Counts, Moments, Tally

Array = NDArray[np.float64]

_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Tallied:
    """What was released of kept records, once; everything computed from it is free.

    Attributes:
        values: noised sums by group, (groups, t).
        sigma: standard deviation of the noise in each of them.
        records: kept records of each group in them, (groups,); public.
        clients: whose records are in them.
        attempt: the attempt that succeeded.
        spent: epsilon that the run has spent then.
        round: of the model that was measured.
    """

    values: Array
    sigma: float
    records: NDArray[np.int64]
    clients: int
    attempt: int
    spent: float
    round: int

    def said(self) -> dict[str, Any]:
        """What a summary says of the release."""
        return {
            "sigma": self.sigma,
            "records": int(self.records.sum()),
            "clients": self.clients,
            "attempt": self.attempt,
            "round": self.round,
        }


def keep(directory: RunDirectory, tallied: Tallied) -> None:
    """Put the release on disk: nobody can pay for it again."""
    content = {
        "values": tallied.values.tolist(),
        "sigma": tallied.sigma,
        "records": tallied.records.tolist(),
        "clients": tallied.clients,
        "attempt": tallied.attempt,
        "epsilon": tallied.spent,
        "round": tallied.round,
    }
    write_json(directory.path / HELD_OUT, content)


def kept(directory: RunDirectory) -> Tallied | None:
    """The release that a run has; None before there is one.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    path = directory.path / HELD_OUT
    if (content := read_json(path)) is None:
        return None
    try:
        return Tallied(
            np.array(content["values"], dtype=np.float64),
            float(content["sigma"]),
            np.array(content["records"], dtype=np.int64),
            int(content["clients"]),
            int(content["attempt"]),
            float(content["epsilon"]),
            int(content["round"]),
        )
    except (LookupError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None


def held_out_of(task: Problem, tally: Tally, tallied: Tallied) -> HeldOut:
    """Metrics, a constant's beside them, standard errors with the noise in them, and a table by group."""
    total = int(tallied.records.sum())
    size = {"records": total, "of": total}
    if total == 0:
        return HeldOut(measured_on=size)
    if isinstance(tally, Counts):
        names = load_class_names(task.experiment)
        return _of_classes(tally, tallied, task.groups, size, lambda c: repr(names[c]) if names else f"class {c}")
    if isinstance(tally, Moments):
        return _of_numbers(tally, tallied, task.groups, size)
    return HeldOut(measured_on=size)


def _of_classes(
    tally: Counts,
    tallied: Tallied,
    groups: tuple[str, ...],
    size: Mapping[str, int],
    name: Callable[[int], str],
) -> HeldOut:
    shape = (tally.groups, tally.classes, tally.classes)
    found = fitted(tallied.values, tallied.records)
    again = _drawn(tallied, found)
    table, tables = found.reshape(1, *shape), again.reshape(_DRAWS, *shape)
    values, draws = metrics_of_tables(table), metrics_of_tables(tables)
    often = int(table.sum((0, 1, 3)).argmax())
    share, shares = (each.sum((1, 3))[:, often] / each.sum((1, 2, 3)) for each in (table, tables))
    gained = draws["accuracy"] - shares
    constant = {"accuracy": float(share[0])}
    if tally.groups > 1:
        equal = {"demographic_parity_difference": 0.0, "equalized_odds_difference": 0.0}
        constant |= {"disparate_impact": 1.0, **equal}
    quality = Quality(
        constant=constant,
        answer=f"always {name(often)}",
        standard_errors=spread_of(draws),
        gain=(float(values["accuracy"][0] - share[0]), float(gained.std(ddof=1))),
    )
    metrics = {key: float(value[0]) for key, value in values.items()}
    by_group = {}
    if tally.groups > 1:
        by_group = {group: _rates(table[0, place], tallied.records[place]) for place, group in enumerate(groups)}
    return HeldOut(metrics, by_group, size, quality)


def _rates(table: Array, records: int) -> dict[str, float]:
    """Of one group's table by class and answer, (classes, classes)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {"count": float(records), "accuracy": float(np.trace(table) / table.sum())}
        answered = table.sum(0) / table.sum()
        if len(table) > 2:
            return rates | {f"selection_rate_{c}": float(value) for c, value in enumerate(answered)}
        positive = table[:, 1] / table.sum(1)
    return rates | {
        "selection_rate": float(answered[1]),
        "true_positive_rate": float(positive[1]),
        "false_positive_rate": float(positive[0]),
    }


def _of_numbers(tally: Moments, tallied: Tallied, groups: tuple[str, ...], size: Mapping[str, int]) -> HeldOut:
    noise = np.random.default_rng(0).normal(size=(_DRAWS, *tallied.values.shape)) * tallied.sigma
    draws = _moments(tally, tallied.values + noise, tallied.records)
    found = {name: float(value[0]) for name, value in _moments(tally, tallied.values[None], tallied.records).items()}
    count, t = size["records"], tally.targets
    # Of numbers in [0, 1] the variance is at most mean (1 - mean): what the draw of records adds, at most.
    chance = {name: t * _deviation(found[name] / t) / math.sqrt(count) for name in ("error", "constant")}
    spread = spread_of(draws)
    errors = {"mean_squared_error": math.hypot(spread.get("error", math.inf), chance["error"])}
    if "ks" in spread:
        errors["ks"] = math.hypot(spread["ks"], 1 / math.sqrt(max(1, int(tallied.records.min()))))
    gained = draws["constant"] - draws["error"]
    means = math.sqrt(t) * tallied.values[:, 2 : 2 + t].sum(0) / count
    quality = Quality(
        constant={"mean_squared_error": found["constant"]} | ({"ks": 0.0} if "ks" in found else {}),
        answer=f"always the mean, {', '.join(f'{value:.3g}' for value in means[:4])}",
        standard_errors=errors,
        gain=(
            found["constant"] - found["error"],
            math.hypot(float(gained.std(ddof=1)), chance["error"], chance["constant"]),
        ),
    )
    metrics = {"mean_squared_error": found["error"]} | ({"ks": found["ks"]} if "ks" in found else {})
    by_group = {}
    if tally.groups > 1:
        for place, group in enumerate(groups):
            own = slice(place, place + 1)
            each = _moments(tally, tallied.values[None, own], tallied.records[own])
            error, constant = float(each["error"][0]), float(each["constant"][0])
            ratio = 1 - error / constant if constant > 0 else math.nan
            by_group[group] = {"count": float(tallied.records[place]), "mean_squared_error": error, "r2": ratio}
    return HeldOut(metrics, by_group, size, quality)


def _moments(tally: Moments, values: Array, records: NDArray[np.int64]) -> dict[str, Array]:
    """Squared error of the model and of the mean target, (D,), of sums (D, groups, t); with one target `ks`, too."""
    count, t = max(1, int(records.sum())), tally.targets
    total = values.sum(1) / count
    error = t * np.clip(total[:, 0], 0.0, 1.0)
    means = math.sqrt(t) * total[:, 2 : 2 + t]
    constant = np.clip(t * total[:, 1] - np.square(means).sum(1), 0.0, t)
    found = {"error": error, "constant": constant}
    if t == 1 and values.shape[1] > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            bins = fitted(values[..., -BINS:], records) / records[:, None]
        below = np.cumsum(bins, axis=-1)
        found["ks"] = (below.max(1) - below.min(1)).max(1)
    return found


def fitted(values: Array, records: NDArray[np.int64]) -> Array:
    """Noised counts (..., groups, t), the nearest with the known sums, cut at 0 and scaled to these sums again.

    Args:
        records: what each group's counts add up to, (groups,); public.
    """
    width = values.shape[-1]
    shifted = values + ((records - values.sum(-1)) / width)[..., None]
    positive = np.maximum(shifted, 0.0)
    total = positive.sum(-1, keepdims=True)
    even = np.broadcast_to(records[:, None] / width, positive.shape)
    found: Array = np.where(total > 0, positive * records[:, None] / np.where(total > 0, total, 1.0), even)
    return found


def _drawn(tallied: Tallied, found: Array) -> Array:
    """Counts as they might have come: records and noise drawn again, (draws, groups, t)."""
    law = np.random.default_rng(0)
    drawn = np.zeros((_DRAWS, *found.shape))
    for group, records in enumerate(tallied.records):
        if records:
            drawn[:, group] = law.multinomial(int(records), found[group] / found[group].sum(), _DRAWS)
    return fitted(drawn + law.normal(size=drawn.shape) * tallied.sigma, tallied.records)


def _deviation(mean: float) -> float:
    return math.sqrt(max(0.0, mean * (1 - mean)))
