"""Trade-offs between error and unfairness: a point a weight, a line a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

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
    """Squared error against W2^2 and against Kolmogorov and Smirnov's distance, with weights and radii."""
    from matplotlib.patheffects import withStroke

    figure, panels = new_panels(1, 2, size=(9.4, 4.4), sharex=True)
    for axes, (metric, title) in zip(panels, _UNFAIRNESS.items(), strict=True):
        marked = {series: _points(study, series, metric) for series in study.series}
        labelled: Points = []
        every = [point for points, _ in marked.values() for point in points]
        for position, (series, (points, labels)) in enumerate(marked.items()):
            _line(axes, points, position, series)
            for place, text in _apart(points, labels, labelled, every):
                label = axes.annotate(
                    text, place, xytext=(3, 3), textcoords="offset points", fontsize=6, color=colour(position)
                )
                label.set_path_effects([withStroke(linewidth=2, foreground="white")])  # lines go behind numbers
        axes.set_xlabel("mean squared error")
        axes.set_title(title, fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(f"{study.figure.source}: one number predicted under (2, 1/n)")
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
        found = processed(study, series, metric)
        return found, [f"{radius:g}" for radius in study.of(series)[0].arrays["beta"]] if found else []
    return means(study, series, "mse", metric), [str(alpha) for alpha in study.along("alpha", series)]


def _line(axes: Axes, points: list[tuple[float, float]], position: int, label: str) -> None:
    if points:
        x, y = np.array(points).T
        axes.plot(x, y, color=colour(position), marker=marker(position), markersize=4, linewidth=1.2, label=label)
