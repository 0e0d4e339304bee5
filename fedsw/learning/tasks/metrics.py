"""How good and how fair outputs are: error, rates by group, and distances between the groups' outputs.

Every function sees un-noised outputs and records: what it returns is a release. Held-out records that were
declared outside the guarantee are the place for it.

Rates are over groups 0 .. groups - 1. A rate over no records is nan, and so is one over a record with infinite or NaN
outputs, of which no class can be read, and everything that depends on either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from fedsw.mathematics.transport.sliced import sliced_w2

NO_CLASS = -1
"""Among predicted classes: that of a record with infinite or NaN outputs."""


def predictions(outputs: Tensor) -> Tensor:
    """The classes (n,) that a classifier's probabilities (n, d) stand for; with d = 1 that of class 1 of two.

    A record with infinite or NaN outputs has `NO_CLASS`.
    """
    if outputs.shape[1] > 1:
        return most_probable(outputs)
    return torch.where(outputs[:, 0].isfinite(), (outputs[:, 0] > 0.5).long(), NO_CLASS)


def most_probable(scores: Tensor) -> Tensor:
    """The class (n,) with the largest of scores (n, d), the first of equal ones; `NO_CLASS` where one is not finite."""
    return torch.where(scores.isfinite().all(dim=1), scores.argmax(dim=1), NO_CLASS)


def accuracy(predicted: Tensor, target: Tensor) -> float:
    """Share of records with the predicted class (n,) equal to the true one (n,); nan if one has `NO_CLASS`."""
    _require_columns(predicted=predicted, target=target)
    if bool((predicted == NO_CLASS).any()):
        return math.nan
    return float((predicted == target).to(torch.float64).mean())


def mean_squared_error(outputs: Tensor, target: Tensor) -> float:
    """Mean over the records of the squared Euclidean distance of outputs to target, both (n,) or (n, t)."""
    if outputs.shape != target.shape:
        raise ValueError(f"outputs {tuple(outputs.shape)} and target {tuple(target.shape)} differ in shape")
    squares = (outputs.detach().to(torch.float64) - target.to(torch.float64)).square()
    return float(squares.reshape(len(squares), -1).sum(dim=1).mean())


def selection_rates(predicted: Tensor, sensitive: Tensor, *, groups: int = 2, outcomes: int = 2) -> Tensor:
    """P(predicted = c | A = a), (groups, outcomes) float64; nan for a group with a record of `NO_CLASS`.

    ValueError for unequal lengths, or what is out of range.
    """
    _require_columns(predicted=predicted, sensitive=sensitive)
    known = predicted != NO_CLASS
    _require_range("predicted", predicted[known], outcomes)
    _require_range("sensitive", sensitive, groups)
    counts = torch.bincount(sensitive[known] * outcomes + predicted[known], minlength=groups * outcomes)
    table = counts.reshape(groups, outcomes).to(torch.float64)
    table[sensitive[~known]] = math.nan
    return table / table.sum(dim=1, keepdim=True)


def w2_squared(outputs: Tensor, sensitive: Tensor, *, groups: int = 2, directions: Tensor | None = None) -> float:
    """Largest squared Wasserstein distance between the outputs of two groups, sliced for d > 1; 0 is parity.

    Outputs are (n,) or (n, d), groups (n,). For d > 1 it is the mean over ``directions``, unit columns (d, k) of
    `fedsw.mathematics.transport.sliced.directions`; ValueError without them.
    """
    rows = _rows(outputs)
    if directions is None:
        if rows.shape[1] != 1:
            raise ValueError(f"outputs have d = {rows.shape[1]} columns: give directions (transport.sliced)")
        directions = torch.ones((1, 1), dtype=torch.float64)
    theta = directions.to(rows.device)
    return _worst_pair(rows, sensitive, groups, lambda one, other: float(sliced_w2(one, other, theta)))


def kolmogorov_smirnov(outputs: Tensor, sensitive: Tensor, *, groups: int = 2) -> float:
    """Largest gap between two groups' distribution functions of outputs (n,) or (n, 1).

    It is scipy's ks_2samp statistic, and the largest demographic parity difference over all thresholds. ValueError if
    d > 1, where there is no one threshold.
    """
    rows = _rows(outputs)
    if rows.shape[1] != 1:
        raise ValueError(f"outputs have d = {rows.shape[1]} columns; a distribution function needs 1, give one of them")
    return _worst_pair(rows[:, 0].to(torch.float64), sensitive, groups, _largest_cdf_gap)


def classification(
    outputs: Tensor,
    predicted: Tensor,
    target: Tensor,
    sensitive: Tensor,
    *,
    groups: int = 2,
    classes: int = 2,
    positive: int | None = None,
    directions: Tensor | None = None,
) -> dict[str, float]:
    """Every metric of a fair classifier by name, of outputs (n,) or (n, d) and of classes and groups (n,).

    `disparate_impact` is the smallest over the largest rate of the class ``positive`` among the groups, by default that
    of class 1 of two, fairlearn's demographic_parity_ratio: 1 is parity, also where no group is ever in that class,
    which is nan in fairlearn. Of more than two classes there is `disparate_impact_c` for each class c, too, and
    `disparate_impact` is the least of them where no class is positive. `eo_y` is `disparate_impact` among the records
    of true class y; `demographic_parity_difference` the largest gap between two groups in the rate of a class, over all
    classes, and `equalized_odds_difference` the largest among the records of one true class: 0 is parity. For two
    classes both are fairlearn's if every group has records of every class; if not, what depends on a rate over no
    records is nan, and fairlearn leaves a group without records out and counts other such rates as 0. `od_y` is
    `w2_squared`, with its ``directions``, among the records of true class y, `ks` there if outputs have d = 1. What
    depends on a record with infinite or NaN outputs is nan.

    Raises:
        ValueError: for unequal lengths, what is out of range, or a positive class that is none of the classes.
    """
    if positive is None and classes == 2:
        positive = 1
    if positive is not None and not 0 <= positive < classes:
        raise ValueError(f"positive is {positive}; it must be one of the classes 0 .. {classes - 1}, or None")
    _require_columns(predicted=predicted, target=target, sensitive=sensitive)
    _require_range("target", target, classes)
    predicted = torch.where(_rows(outputs).isfinite().all(dim=1), predicted, NO_CLASS)
    rates = selection_rates(predicted, sensitive, groups=groups, outcomes=classes)
    parts = [target == y for y in range(classes)]
    odds = [selection_rates(predicted[part], sensitive[part], groups=groups, outcomes=classes) for part in parts]
    report = {
        "accuracy": accuracy(predicted, target),
        "disparate_impact": _ratio(rates, positive),
        "demographic_parity_difference": float(_gaps(rates).amax()),
        "equalized_odds_difference": float(torch.stack([_gaps(rates_of_class) for rates_of_class in odds]).amax()),
        "w2_squared": w2_squared(outputs, sensitive, groups=groups, directions=directions),
    }
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        report["ks"] = kolmogorov_smirnov(outputs, sensitive, groups=groups)
    if classes > 2:
        report |= {f"disparate_impact_{c}": _ratio(rates, c) for c in range(classes)}
    report |= {f"eo_{y}": _ratio(rates_of_class, positive) for y, rates_of_class in enumerate(odds)}
    for y, part in enumerate(parts):
        report[f"od_{y}"] = w2_squared(outputs[part], sensitive[part], groups=groups, directions=directions)
    return report


def _rows(outputs: Tensor) -> Tensor:
    return outputs.detach().unsqueeze(1) if outputs.ndim == 1 else outputs.detach()


def _ratio(rates: Tensor, positive: int | None) -> float:
    """The smallest over the largest rate of a class, of (groups, classes); without one, the least of all classes'."""
    if positive is None:
        ratios = [_ratio(rates, c) for c in range(rates.shape[1])]
        return float("nan") if any(map(math.isnan, ratios)) else min(ratios)
    low, high = float(rates[:, positive].amin()), float(rates[:, positive].amax())
    return 1.0 if high == 0 else low / high


def _gaps(rates: Tensor) -> Tensor:
    return rates.amax(dim=0) - rates.amin(dim=0)


def _worst_pair(values: Tensor, sensitive: Tensor, groups: int, distance: Callable[[Tensor, Tensor], float]) -> float:
    _require_range("sensitive", sensitive, groups)
    if len(values) != len(sensitive):
        raise ValueError(f"{len(values)} outputs for {len(sensitive)} records of sensitive; they belong together")
    if not bool(values.isfinite().all()):
        return math.nan
    if groups == 1:  # a single group has no other to be apart from
        return 0.0
    parts = [values[sensitive == group] for group in range(groups)]
    if any(len(part) == 0 for part in parts):
        return math.nan
    distances = [distance(one, other) for one, other in combinations(parts, 2)]
    return float(torch.tensor(distances, dtype=torch.float64).amax())


def _largest_cdf_gap(one: Tensor, other: Tensor) -> float:
    points = torch.cat([one, other])
    below = [torch.searchsorted(side.sort().values, points, right=True).double() for side in (one, other)]
    return float((below[0] / len(one) - below[1] / len(other)).abs().max())


def _require_columns(**columns: Tensor) -> None:
    if any(column.ndim != 1 for column in columns.values()) or len({len(c) for c in columns.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(column.shape)}" for name, column in columns.items())
        raise ValueError(f"{shapes}: one class per record, shape (n,), is expected of each")


def _require_range(name: str, values: Tensor, count: int) -> None:
    outside = (values < 0) | (values >= count)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(f"{name}[{row}] is {int(values[row])}; it must be in 0 .. {count - 1}")
