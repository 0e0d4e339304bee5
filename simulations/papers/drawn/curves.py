"""Curves over the rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.report.figures import colour, new_panels
from simulations.papers.curves import objective
from simulations.papers.drawn.labels import name_of
from simulations.papers.drawn.scatter import UNDRAWN
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INFINITE = "inf"


def losses(study: Study) -> Mapping[str, Figure]:
    """(1 - alpha) loss + alpha W2^2 on held-out records over the rounds: a panel an alpha, a curve an epsilon.

    Curves lie on each other, so that the row below has what privacy changes: their differences to epsilon = infinity.
    Needs the measure `outputs.curves`; a picture for each series, with the same axes in the panels of a row.
    """
    found = {}
    for series in [name for name in study.series if name not in UNDRAWN]:
        alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
        figure, panels = new_panels(2, len(alphas), size=(2.9 * len(alphas) + 0.5, 4.6), sharex=True, sharey="row")
        for column, alpha in enumerate(alphas):
            above, below = panels[column], panels[len(alphas) + column]
            for position, epsilon in enumerate(epsilons):
                for result in study.of(series, alpha=alpha, epsilon=epsilon)[:1]:
                    style: dict[str, Any] = {
                        "color": colour(position),
                        "linewidth": 1.1,
                        "label": name_of("epsilon", epsilon),
                    }
                    above.plot(result.arrays["rounds"], objective(result), **style)
                    for free in study.of(series, alpha=alpha, epsilon=_INFINITE)[:1]:
                        below.plot(result.arrays["rounds"], objective(result) - objective(free), **style)
            above.set_title(name_of("alpha", alpha))
            below.set_xlabel("round")
        panels[0].set_ylabel("(1 - α) loss + α W₂²")
        panels[len(alphas)].set_ylabel("difference to ε = ∞")
        panels[len(alphas) - 1].legend()
        figure.suptitle(f"{study.figure.source}, {series}: held-out objective over the rounds")
        found[series] = figure
    return found


def paired(study: Study) -> Mapping[str, Figure]:
    """Above, the objective over the rounds; below, what privacy changes of it at the same seed: means and 2 sd."""
    found = {}
    for series in [name for name in study.series if name not in UNDRAWN]:
        alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
        figure, panels = new_panels(2, len(alphas), size=(2.9 * len(alphas) + 0.5, 5.2), sharex=True, sharey="row")
        for column, alpha in enumerate(alphas):
            above, below = panels[column], panels[len(alphas) + column]
            reference = _by_seed(study, series, alpha, _INFINITE)
            for position, epsilon in enumerate(epsilons):
                curves = _by_seed(study, series, alpha, epsilon)
                both = sorted(set(curves) & set(reference))
                rounds = [study.of(series, alpha=alpha, epsilon=epsilon)[0].arrays["rounds"]] if curves else []
                _band(above, rounds, list(curves.values()), position, name_of("epsilon", epsilon))
                if epsilon != _INFINITE:
                    differences = [curves[seed] - reference[seed] for seed in both]
                    _band(below, rounds, differences, position, name_of("epsilon", epsilon))
            above.set_title(name_of("alpha", alpha))
            below.axhline(0, color="0.3", linewidth=0.8)
            below.set_xlabel("round")
        panels[0].set_ylabel("objective, mean ± 2 sd")
        panels[len(alphas)].set_ylabel("difference to ε = ∞, same seed")
        panels[len(alphas) - 1].legend()
        seeds = max(len(study.of(series, alpha=a, epsilon=e)) for a in alphas for e in epsilons)
        figure.suptitle(f"{study.figure.source}, {series}: {seeds} seeds, ε nominal")
        found[series] = figure
    return found


def _by_seed(study: Study, series: str, alpha: float | str, epsilon: float | str) -> dict[int, NDArray[np.float64]]:
    return {result.seed: objective(result) for result in study.of(series, alpha=alpha, epsilon=epsilon)}


def _band(axes: Axes, rounds: list[NDArray[Any]], curves: list[NDArray[np.float64]], position: int, label: str) -> None:
    if not rounds or not curves:
        return
    stack = np.stack(curves)
    mean, sd = stack.mean(axis=0), stack.std(axis=0, ddof=1) if len(stack) > 1 else np.zeros(stack.shape[1])
    axes.plot(rounds[0], mean, color=colour(position), linewidth=1.1, label=label)
    axes.fill_between(rounds[0], mean - 2 * sd, mean + 2 * sd, color=colour(position), alpha=0.2, linewidth=0)
