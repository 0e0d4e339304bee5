"""Histograms of outputs by group: a row of panels for each epsilon, a column for each alpha."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsw.runs.report.figures import colour
from simulations.papers.drawn.panels import grid
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_group(study: Study) -> Mapping[str, Figure]:
    """Densities of the groups' outputs, with accuracy and disparate impact; needs `outputs.histograms`."""
    title = "held-out outputs by group"
    return {name: grid(study, name, panel, ("accuracy", "di_01"), title, "output") for name in study.series}


def by_group_and_class(study: Study) -> Mapping[str, Figure]:
    """The same within each true class, with accuracy and the odds' ratios."""
    return {
        f"{name} class {label}": grid(
            study,
            name,
            functools.partial(panel, within=label),
            ("accuracy", f"eo_{label}_01"),
            f"held-out outputs by group, true class {label}",
            "output",
        )
        for name in study.series
        for label in (0, 1)
    }


def panel(axes: Axes, result: Result, within: int | None = None) -> None:
    """The groups' densities in one panel, or those within a true class."""
    density = result.arrays["density"] if within is None else result.arrays["density_by_class"][within]
    edges = np.asarray(result.arrays["edges"], dtype=np.float64)
    for group, heights in enumerate(density):
        axes.stairs(heights, edges, fill=True, facecolor=(colour(group), 0.35), label=f"A = {group}")
        axes.stairs(heights, edges, edgecolor=colour(group), linewidth=1.0)
