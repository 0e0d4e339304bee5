"""How good and how fair outputs are: error, rates by group, and distances between the groups' outputs.

Every function sees un-noised outputs and records: what it returns is a release. Held-out records that were
declared outside the guarantee are the place for it.

Rates are over groups 0 .. groups - 1. A rate over no records is nan, and so is everything that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from fedsw.transport.sliced import sliced_w2


def predictions(outputs: Tensor) -> Tensor:
    """The classes (n,) that a classifier's probabilities (n, d) stand for; with d = 1 that of class 1 of two."""
    return (outputs[:, 0] > 0.5).long() if outputs.shape[1] == 1 else outputs.argmax(dim=1)


def accuracy(predicted: Tensor, target: Tensor) -> float:
    """Share of records whose predicted class (n,) is the true one (n,)."""
    _require_columns(predicted=predicted, target=target)
    return float((predicted == target).to(torch.float64).mean())


def mean_squared_error(outputs: Tensor, target: Tensor) -> float:
    """Mean over the records of the squared Euclidean distance of outputs to target, both (n,) or (n, t)."""
    if outputs.shape != target.shape:
        raise ValueError(f"outputs {tuple(outputs.shape)} and target {tuple(target.shape)} differ in shape")
    squares = (outputs.detach().to(torch.float64) - target.to(torch.float64)).square()
    return float(squares.reshape(len(squares), -1).sum(dim=1).mean())


def selection_rates(predicted: Tensor, sensitive: Tensor, *, groups: int = 2, outcomes: int = 2) -> Tensor:
    """P(predicted = c | A = a), (groups, outcomes) float64; ValueError for unequal lengths, or what is out of range."""
    _require_columns(predicted=predicted, sensitive=sensitive)
    _require_range("predicted", predicted, outcomes)
    _require_range("sensitive", sensitive, groups)
    counts = torch.bincount(sensitive * outcomes + predicted, minlength=groups * outcomes)
    table = counts.reshape(groups, outcomes).to(torch.float64)
    return table / table.sum(dim=1, keepdim=True)


def disparate_impact(predicted: Tensor, sensitive: Tensor, *, groups: int = 2, positive: int = 1) -> float:
    """Smallest over largest rate of the positive class among the groups: 1 is parity. Classes and groups are (n,).

    For two groups it is P(predicted = 1 | A = 0) / P(predicted = 1 | A = 1) or its inverse, whichever is
    below 1; fairlearn's demographic_parity_ratio. If no group is ever positive, all are treated alike and it
    is 1.
    """
    return _ratio(selection_rates((predicted == positive).long(), sensitive, groups=groups)[:, 1])


def demographic_parity_difference(predicted: Tensor, sensitive: Tensor, *, groups: int = 2, outcomes: int = 2) -> float:
    """Largest gap between two groups in the rate of a class, over all classes; 0 is parity. Both are (n,).

    For two classes it is fairlearn's demographic_parity_difference.
    """
    return float(_range(selection_rates(predicted, sensitive, groups=groups, outcomes=outcomes)).max())


def equalized_odds_difference(
    predicted: Tensor, target: Tensor, sensitive: Tensor, *, groups: int = 2, classes: int = 2
) -> float:
    """The largest of `equal_opportunity_differences`, shapes as there; for two classes, fairlearn's of this name."""
    gaps = equal_opportunity_differences(predicted, target, sensitive, groups=groups, classes=classes)
    return float(torch.tensor(gaps, dtype=torch.float64).amax())


def equal_opportunity_differences(
    predicted: Tensor, target: Tensor, sensitive: Tensor, *, groups: int = 2, classes: int = 2
) -> tuple[float, ...]:
    """For every true class y, the largest gap between two groups in P(predicted = c | Y = y, A), of (n,) all."""
    odds = _odds(predicted, target, sensitive, groups, classes)
    return tuple(float(_range(rates).max()) for rates in odds)


def equal_opportunity_ratios(
    predicted: Tensor, target: Tensor, sensitive: Tensor, *, groups: int = 2, classes: int = 2, positive: int = 1
) -> tuple[float, ...]:
    """(EO_0, EO_1, ...): for every true class y, the disparate impact among the records with Y = y.

    EO_y is the smallest over the largest P(predicted = positive | Y = y, A = a) among the groups a; 1 is
    equality of odds for that class, and EO_1 is equal opportunity. Classes and groups are (n,).
    """
    odds = _odds(predicted, target, sensitive, groups, classes)
    return tuple(_ratio(rates[:, positive]) for rates in odds)


def w2_squared(outputs: Tensor, sensitive: Tensor, *, groups: int = 2, directions: Tensor | None = None) -> float:
    """Largest squared Wasserstein distance between the outputs of two groups, sliced for d > 1; 0 is parity.

    Outputs are (n,) or (n, d), groups (n,). For d > 1 it is the mean over ``directions``, unit columns (d, k) of
    `fedsw.transport.sliced.directions`; ValueError without them.
    """
    rows = _rows(outputs)
    if directions is None:
        if rows.shape[1] != 1:
            raise ValueError(f"outputs have d = {rows.shape[1]} columns: give directions (transport.sliced)")
        directions = torch.ones((1, 1), dtype=torch.float64)
    theta = directions.to(rows.device)
    return _worst_pair(rows, sensitive, groups, lambda own, other: float(sliced_w2(own, other, theta)))


def kolmogorov_smirnov(outputs: Tensor, sensitive: Tensor, *, groups: int = 2) -> float:
    """Largest gap between two groups' distribution functions of outputs (n,) or (n, 1).

    It is scipy's ks_2samp statistic, and the largest demographic parity difference over all thresholds. ValueError if
    d > 1, where there is no one threshold.
    """
    rows = _rows(outputs)
    if rows.shape[1] != 1:
        raise ValueError(f"outputs have d = {rows.shape[1]} columns; a distribution function needs 1, give one of them")
    return _worst_pair(rows[:, 0].to(torch.float64), sensitive, groups, _largest_cdf_gap)


def output_distances(
    outputs: Tensor,
    target: Tensor,
    sensitive: Tensor,
    *,
    groups: int = 2,
    classes: int = 2,
    directions: Tensor | None = None,
) -> tuple[float, ...]:
    """(OD_0, OD_1, ...): for every true class y of `target` (n,), `w2_squared` among the records with Y = y."""
    _require_columns(target=target, sensitive=sensitive)
    _require_range("target", target, classes)
    return tuple(
        w2_squared(outputs[target == y], sensitive[target == y], groups=groups, directions=directions)
        for y in range(classes)
    )


def classification(
    outputs: Tensor,
    predicted: Tensor,
    target: Tensor,
    sensitive: Tensor,
    *,
    groups: int = 2,
    classes: int = 2,
    directions: Tensor | None = None,
) -> dict[str, float]:
    """Every metric of a fair classifier by name: eo_y and od_y for each class y, ks if outputs have d = 1.

    Disparate impact and eo_y are about being predicted class 1. Outputs, what the penalty compares, are (n,) or (n, d);
    directions are as in `w2_squared`.
    """
    of = {"groups": groups, "classes": classes}
    odds = equal_opportunity_ratios(predicted, target, sensitive, **of)
    distances = output_distances(outputs, target, sensitive, directions=directions, **of)
    report = {
        "accuracy": accuracy(predicted, target),
        "disparate_impact": disparate_impact(predicted, sensitive, groups=groups),
        "demographic_parity_difference": demographic_parity_difference(
            predicted, sensitive, groups=groups, outcomes=classes
        ),
        "equalized_odds_difference": equalized_odds_difference(predicted, target, sensitive, **of),
        "w2_squared": w2_squared(outputs, sensitive, groups=groups, directions=directions),
    }
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        report["ks"] = kolmogorov_smirnov(outputs, sensitive, groups=groups)
    report |= {f"eo_{y}": value for y, value in enumerate(odds)}
    return report | {f"od_{y}": value for y, value in enumerate(distances)}


def _rows(outputs: Tensor) -> Tensor:
    return outputs.detach().unsqueeze(1) if outputs.ndim == 1 else outputs.detach()


def _odds(predicted: Tensor, target: Tensor, sensitive: Tensor, groups: int, classes: int) -> list[Tensor]:
    _require_columns(predicted=predicted, target=target, sensitive=sensitive)
    _require_range("target", target, classes)
    return [
        selection_rates(predicted[target == y], sensitive[target == y], groups=groups, outcomes=classes)
        for y in range(classes)
    ]


def _ratio(rates: Tensor) -> float:
    low, high = float(rates.amin()), float(rates.amax())
    return 1.0 if high == 0 else low / high


def _range(rates: Tensor) -> Tensor:
    return rates.amax(dim=0) - rates.amin(dim=0)


def _worst_pair(values: Tensor, sensitive: Tensor, groups: int, distance: Callable[[Tensor, Tensor], float]) -> float:
    _require_range("sensitive", sensitive, groups)
    if len(values) != len(sensitive):
        raise ValueError(f"{len(values)} outputs for {len(sensitive)} records of sensitive; they belong together")
    if groups < 2:
        raise ValueError(f"groups = {groups}; a distance between groups needs at least 2")
    parts = [values[sensitive == group] for group in range(groups)]
    if any(len(part) == 0 for part in parts):
        return float("nan")
    distances = [distance(own, other) for own, other in combinations(parts, 2)]
    return float(torch.tensor(distances, dtype=torch.float64).amax())


def _largest_cdf_gap(own: Tensor, other: Tensor) -> float:
    points = torch.cat([own, other])
    below = [torch.searchsorted(side.sort().values, points, right=True).double() for side in (own, other)]
    return float((below[0] / len(own) - below[1] / len(other)).abs().max())


def _require_columns(**columns: Tensor) -> None:
    if any(column.ndim != 1 for column in columns.values()) or len({len(c) for c in columns.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(column.shape)}" for name, column in columns.items())
        raise ValueError(f"{shapes}: one class per record, shape (n,), is expected of each")


def _require_range(name: str, values: Tensor, count: int) -> None:
    outside = (values < 0) | (values >= count)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(f"{name}[{row}] is {int(values[row])}; it must be in 0 .. {count - 1}")
