"""Points of the plane by group: predictions of a regression, codes of a representation."""

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

UNDRAWN = ("as coded", "Adam", "Xavier")
"""Of the series with these names there are numbers, and no picture."""
_SHOWN, _WIDTH = 700, 2.2
"""Most records in a panel, the first ones: more dots make a larger file, which is saved with fewer pixels."""


def predictions(study: Study) -> Mapping[str, Figure]:
    """Predicted points with the diagonal, and the rates above it; needs `outputs.points`, `fairness.above_diagonal`."""
    shown = functools.partial(panel, diagonal=True)
    title, metrics = "held-out predictions by group", ("above_0", "above_1")
    return {
        name: grid(study, name, shown, metrics, title, "first coordinate", width=_WIDTH)
        for name in study.series
        if name not in UNDRAWN
    }


def codes(study: Study) -> Mapping[str, Figure]:
    """Codes, with what can be read off them; needs `outputs.points` and `fairness.codes`."""
    title, metrics = "held-out codes by group", ("core_loss", "code_accuracy", "code_di_01")
    return {
        name: grid(study, name, panel, metrics, title, "first coordinate", width=_WIDTH)
        for name in study.series
        if name not in UNDRAWN
    }


def panel(axes: Axes, result: Result, *, diagonal: bool = False) -> None:
    """One panel: a dot a record, the first 700, a colour a group, in their order: no group covers the other."""
    points = np.asarray(result.arrays["points"], dtype=np.float64)
    group = result.arrays["group"]
    colours = [colour(int(each)) for each in group[:_SHOWN]]
    axes.scatter(points[:_SHOWN, 0], points[:_SHOWN, 1], s=5, linewidths=0, alpha=0.5, color=colours)
    for each in np.unique(group):
        axes.scatter([], [], s=20, color=colour(int(each)), label=f"A = {each}")
    if diagonal:
        axes.plot([0, 1], [1, 0], color="0.3", linewidth=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal", adjustable="box")
