"""Trade-offs between error and unfairness: how one series' curve lies to another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulations.papers.published import ADULT_POSITIVE, DP_FERMI
from simulations.papers.study import Result, Study

_LEVELS = 1000
_POST = ("post-processed", "best, post-processed")

Points = list[tuple[float, float]]


def adult_areas(study: Study) -> list[Result]:
    """The mean error over DP-FERMI's range of violations at each epsilon as `area`, of means over seeds.

    Between two weights a random choice of the two classifiers is on the line between their points, and the constant
    classifier is at (violation 0, the rate of the positive class): both are open to either side.
    """
    found = []
    for series in study.series:
        for epsilon, theirs in DP_FERMI.items():
            points = means(study, series, "demographic_parity_difference", "accuracy", epsilon=epsilon)
            if points:
                ours = [(violation, 1 - accuracy) for violation, accuracy in points]
                levels = _levels([violation for _, violation in theirs])
                area = _lowest([*ours, (0.0, ADULT_POSITIVE)], levels).mean()
                found.append(_result(series, {"epsilon": epsilon}, {"area": float(area)}))
    return found


def against_post_processing(study: Study) -> list[Result]:
    """`w2_ratio` and `ks_ratio`: unfairness of a series over that of private post-processing, at equal squared errors.

    Both curves are the least unfairness at most at an error, by lines between the points of means over seeds; the ratio
    is of their means over the errors that both reach. Below 1 the series is fairer. Against the post-processing of the
    same learner, where there is one.
    """
    found = []
    for series in [name for name in study.series if name not in _POST]:
        name = _POST[1] if series == "best" and _POST[1] in study.series else _POST[0]
        values = {}
        for metric in ("w2", "ks"):
            ours, theirs = means(study, series, "mse", metric), processed(study, name, metric)
            if ours and theirs:
                values[f"{metric}_ratio"] = _ratio(ours, theirs)
        if values:
            found.append(_result(series, {}, values))
            found += _ratios_by_seed(study, series, name)
    return found


def _ratios_by_seed(study: Study, series: str, processed_as: str) -> list[Result]:
    """The ratios of every seed's own curves, as `w2_ratio_by_seed` and `ks_ratio_by_seed`: their spread."""
    found = []
    for seed in dict.fromkeys(result.seed for result in study.of(series)):
        own = replace(study, results=tuple(result for result in study.results if result.seed == seed))
        curves = {name: (means(own, series, "mse", name), processed(own, processed_as, name)) for name in ("w2", "ks")}
        values = {f"{name}_ratio_by_seed": _ratio(*both) for name, both in curves.items() if all(both)}
        found += [_result(series, {}, values)] if values else []
    return found


def means(study: Study, series: str, across: str, up: str, **at: float) -> Points:
    """Mean of two metrics over seeds at every point of a series, in the order of its points."""
    alphas = study.along("alpha", series)
    found = []
    for alpha in alphas:
        pairs = [
            (study.numbers(across, series, {"alpha": alpha, **at}), study.numbers(up, series, {"alpha": alpha, **at}))
        ]
        found += [(float(np.mean(x)), float(np.mean(y))) for x, y in pairs if x and y]
    return found


def processed(study: Study, series: str, metric: str) -> Points:
    """(mean squared error, metric) of post-processed predictions at every radius, means over seeds."""
    results = study.of(series)
    if not results or any(metric not in result.arrays for result in results):
        return []
    errors = np.mean([result.arrays["mse"] for result in results], axis=0)
    unfair = np.mean([result.arrays[metric] for result in results], axis=0)
    return list(zip(errors.tolist(), unfair.tolist(), strict=True))


def _ratio(ours: Points, theirs: Points) -> float:
    low = max(min(x for x, _ in ours), min(x for x, _ in theirs))
    high = max(max(x for x, _ in ours), max(x for x, _ in theirs))
    levels = _levels([low, high])
    return float(_lowest(ours, levels).mean() / max(float(_lowest(theirs, levels).mean()), 1e-12))


def _lowest(points: Points, levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least second coordinate at first coordinates of at most each level (l,), by lines between the points (l,)."""
    ordered = np.array(sorted(points))
    line = np.interp(levels, ordered[:, 0], ordered[:, 1])
    best = np.minimum.accumulate(ordered[:, 1])
    reached = np.searchsorted(ordered[:, 0], levels, side="right") - 1
    return np.asarray(np.minimum(line, np.where(reached >= 0, best[np.maximum(reached, 0)], np.inf)))


def _levels(ends: Iterable[float]) -> NDArray[np.float64]:
    known = list(ends)
    return np.linspace(min(known), max(known), _LEVELS)


def _result(series: str, point: dict[str, float | str], values: dict[str, float]) -> Result:
    return Result(series, point, 0, values, {}, {})
