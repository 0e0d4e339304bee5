"""Trade-offs between error and unfairness: a point a weight, a line a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsw.runs.report.figures import colour, marker, new_panels
from simulations.papers.derived.tradeoffs import means, processed
from simulations.papers.drawn.labels import name_of
from simulations.papers.published import DP_FERMI
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[float, float]]
_UNFAIRNESS = {"w2": "largest W₂² between groups", "ks": "largest Kolmogorov-Smirnov distance"}


def adult(study: Study) -> Mapping[str, Figure]:
    """Error over demographic-parity violation, a panel an epsilon, with DP-FERMI's printed points."""
    figure, panels = new_panels(1, len(DP_FERMI), size=(2.9 * len(DP_FERMI) + 0.5, 3.2), sharex=True, sharey=True)
    for axes, (epsilon, theirs) in zip(panels, DP_FERMI.items(), strict=True):
        _line(axes, [(violation, error) for error, violation in theirs], 0, "DP-FERMI, as printed by its authors")
        for position, series in enumerate(study.series, start=1):
            points = means(study, series, "demographic_parity_difference", "accuracy", epsilon=epsilon)
            _line(axes, [(violation, 1 - accuracy) for violation, accuracy in points], position, f"fedsw, {series}")
        axes.set_title(name_of("epsilon", epsilon))
        axes.set_xlabel("parity violation")
    panels[0].set_ylabel("error")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"{study.figure.source}: Adult, held-out records")
    return {"": figure}


def one_number(study: Study) -> Mapping[str, Figure]:
    """W2^2 and Kolmogorov and Smirnov's distance against squared error, with weights and radii: the paper's axes.

    Means over seeds, bars of one standard deviation.
    """
    from matplotlib.patheffects import withStroke

    figure, panels = new_panels(1, 2, size=(9.4, 4.4), sharey=True)
    for axes, (metric, title) in zip(panels, _UNFAIRNESS.items(), strict=True):
        marked = {series: _points(study, series, metric) for series in study.series}
        labelled: Points = []
        every = [point for points, _ in marked.values() for point in points]
        for position, (series, (points, labels)) in enumerate(marked.items()):
            _line(axes, points, position, series, bars=_bars(study, series, metric))
            for place, text in _apart(points, labels, labelled, every):
                label = axes.annotate(
                    text, place, xytext=(3, 3), textcoords="offset points", fontsize=6, color=colour(position)
                )
                label.set_path_effects([withStroke(linewidth=2, foreground="white")])  # lines go behind numbers
        axes.set_xlabel(title)
    panels[0].set_ylabel("mean squared error")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(f"{study.figure.source}: one number predicted under (2, 1/n), means of {_seeds(study)} seeds")
    return {"": figure}


def _apart(points: Points, labels: list[str], taken: Points, every: Points) -> list[tuple[tuple[float, float], str]]:
    """Labels at least a twentieth of the range of `every` point from those that are `taken`, which they join."""
    spread = np.ptp(np.array(every), axis=0) + 1e-12
    found = []
    for place, text in zip(points, labels, strict=True):
        if all(np.max(np.abs(np.subtract(place, other)) / spread) >= 0.05 for other in taken):
            taken.append(place)
            found.append((place, text))
    return found


def _points(study: Study, series: str, metric: str) -> tuple[list[tuple[float, float]], list[str]]:
    if "post-processed" in series:
        found = [(unfair, error) for error, unfair in processed(study, series, metric)]
        return found, [f"{radius:g}" for radius in study.of(series)[0].arrays["beta"]] if found else []
    return means(study, series, metric, "mse"), [str(alpha) for alpha in study.along("alpha", series)]


def _bars(study: Study, series: str, metric: str) -> Points:
    """Standard deviations over seeds of the metric and of the squared error, at every point of `_points`."""
    if "post-processed" in series:
        pairs = [(result.arrays[metric], result.arrays["mse"]) for result in study.of(series)]
        return [(float(across), float(up)) for across, up in np.std(pairs, axis=0, ddof=int(len(pairs) > 1)).T]
    numbers = [
        [study.numbers(name, series, {"alpha": alpha}) for name in (metric, "mse")]
        for alpha in study.along("alpha", series)
    ]
    return [
        (float(np.std(across, ddof=int(len(across) > 1))), float(np.std(up, ddof=int(len(up) > 1))))
        for across, up in numbers
    ]


def _seeds(study: Study) -> int:
    return max(len({result.seed for result in study.of(series)}) for series in study.series)


def _line(
    axes: Axes, points: list[tuple[float, float]], position: int, label: str, *, bars: Points | None = None
) -> None:
    if points:
        x, y = np.array(points).T
        look: Any = {"color": colour(position), "marker": marker(position), "markersize": 4, "linewidth": 1.2}
        if bars is None:
            axes.plot(x, y, label=label, **look)
        else:
            across, up = np.array(bars).T
            axes.errorbar(x, y, xerr=across, yerr=up, elinewidth=0.7, label=label, **look)
