"""Samples in the plane over held-out records, round by round, with what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsw._tools.text import number, upward
from fedsw.runs.report.figures import draw_cloud, new_panels
from simulations.papers.computed.stored import distance_at
from simulations.papers.drawn.labels import name_of
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 1.6


def snapshots(study: Study) -> Mapping[str, Figure]:
    """A row a series, a column a number of rounds: samples over held-out records, loss and epsilon above.

    Needs `clouds.points`; with `clouds.both_sides`, the epsilon of either side.
    """
    rounds, series = study.along("rounds"), study.series
    figure, panels = new_panels(len(series), len(rounds), size=(1.95 * len(rounds) + 0.4, 2.5 * len(series) + 0.3))
    for line, name in enumerate(series):
        row = panels[line * len(rounds) : (line + 1) * len(rounds)]
        for axes, value in zip(row, rounds, strict=True):
            found = study.of(name, rounds=value)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(name_of("rounds", value), fontsize=7.5)
            if found:
                draw_cloud(axes, found[0].arrays["samples"], found[0].arrays["reference"])
                axes.set(xlim=(-_MARGIN, _MARGIN), ylim=(-_MARGIN, _MARGIN))
                axes.set_title(f"{name_of('rounds', value)}\n{_cost(found[0])}", fontsize=7.5)
        row[0].set_ylabel(name)
    figure.suptitle(f"{study.figure.source}: held-out records (grey) and samples, from runs that end there")
    return {"": figure}


def stored(study: Study) -> Mapping[str, Figure]:
    """A panel an epsilon: samples of a generator over held-out records; needs `computed.stored.ring_once`."""
    (result,) = study.results
    epsilons = [float(value) for value in result.arrays["epsilons"]]
    figure, panels = new_panels(1, len(epsilons), size=(2.4 * len(epsilons) + 0.3, 3.0))
    for axes, epsilon, points in zip(panels, epsilons, result.arrays["points"], strict=True):
        draw_cloud(axes, points, result.arrays["target"])
        axes.set(xlim=(-_MARGIN, _MARGIN), ylim=(-_MARGIN, _MARGIN), xticks=[], yticks=[])
        distance = result.values[distance_at(epsilon)]
        axes.set_title(f"{name_of('epsilon', epsilon)}\nSW₂ {number(distance)}", fontsize=8)
    figure.suptitle(f"{study.figure.source}: held-out records (grey) and samples", fontsize=10)
    figure.set_layout_engine("constrained", h_pad=0.1)
    return {"": figure}


def _cost(result: Result) -> str:
    """Sliced W_2^2, and the epsilon reached: of the target's records, and of the inputs' where that is measured."""
    loss = float(np.square(result.values["sw2"]))
    if "epsilon_z" not in result.values:
        return f"SW₂² {number(loss)}\n{name_of('epsilon', float(result.about['epsilon']))}"
    return (
        f"SW₂² {number(loss)}\nε_Z = {upward(result.values['epsilon_z'])}, ε_X = {upward(result.values['epsilon_x'])}"
    )
