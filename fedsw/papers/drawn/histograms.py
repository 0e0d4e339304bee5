"""Histograms of outputs by group: a row of panels for each epsilon, a column for each alpha."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsw.papers.drawn.labels import measured_of, name_of
from fedsw.papers.study import Result, Study
from fedsw.report.figures import colour, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_group(study: Study) -> Mapping[str, Figure]:
    """Densities of the groups' outputs, with accuracy and disparate impact; needs `outputs.histograms`."""
    return {series: _grid(study, series, ("accuracy", "di_01"), ()) for series in study.series}


def by_group_and_class(study: Study) -> Mapping[str, Figure]:
    """The same within each true class, with accuracy and the odds' ratios."""
    found = {}
    for series in study.series:
        for label in (0, 1):
            found[f"{series} class {label}"] = _grid(study, series, ("accuracy", f"eo_{label}_01"), (label,))
    return found


def _grid(study: Study, series: str, metrics: tuple[str, ...], within: tuple[int, ...]) -> Figure:
    alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
    size = (2.5 * len(alphas) + 0.6, 1.9 * len(epsilons) + 0.8)
    figure, panels = new_panels(len(epsilons), len(alphas), size=size, sharex=True)
    for line, epsilon in enumerate(epsilons):
        for column, alpha in enumerate(alphas):
            axes = panels[line * len(alphas) + column]
            for result in study.of(series, alpha=alpha, epsilon=epsilon)[:1]:
                _panel(axes, result, within)
                axes.set_title(f"{name_of('alpha', alpha)}\n{measured_of(dict(result.values), *metrics)}", fontsize=7.5)
            if column == 0:
                axes.set_ylabel(name_of("epsilon", epsilon))
            if line == len(epsilons) - 1:
                axes.set_xlabel("output")
            axes.set_yticks([])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    where = f", true class {within[0]}" if within else ""
    figure.suptitle(f"{study.figure.source}, {series}: held-out outputs by group{where}")
    return figure


def _panel(axes: Axes, result: Result, within: tuple[int, ...]) -> None:
    density = result.arrays["density_by_class"][within] if within else result.arrays["density"]
    edges = np.asarray(result.arrays["edges"], dtype=np.float64)
    for group, heights in enumerate(density):
        axes.stairs(heights, edges, fill=True, facecolor=(colour(group), 0.35), label=f"A = {group}")
        axes.stairs(heights, edges, edgecolor=colour(group), linewidth=1.0)
