"""Curves over the rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw.papers.drawn.labels import name_of
from fedsw.papers.study import Result, Study
from fedsw.report.figures import colour, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def losses(study: Study) -> Mapping[str, Figure]:
    """(1 - alpha) loss + alpha W2^2 on held-out records over the rounds: a panel an alpha, a curve an epsilon.

    Needs the measure `outputs.curves`; a picture for each series, with the same axes in its panels.
    """
    found = {}
    for series in study.series:
        alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
        figure, panels = new_panels(1, len(alphas), size=(2.9 * len(alphas) + 0.5, 2.9), sharex=True)
        for axes, alpha in zip(panels, alphas, strict=True):
            for position, epsilon in enumerate(epsilons):
                for result in study.of(series, alpha=alpha, epsilon=epsilon)[:1]:
                    values = objective(result)
                    line = axes.plot(result.arrays["rounds"], values, color=colour(position), linewidth=1.2)
                    line[0].set_label(name_of("epsilon", epsilon))
            axes.set_title(name_of("alpha", alpha))
            axes.set_xlabel("round")
        panels[0].set_ylabel("(1 - α) loss + α W₂²")
        panels[-1].legend()
        figure.suptitle(f"{study.figure.source}, {series}: held-out objective over the rounds")
        found[series] = figure
    return found


def objective(result: Result) -> NDArray[np.float64]:
    """The objective of a run on held-out records, at the rounds at which it was measured (t,)."""
    alpha = float(result.point["alpha"])
    loss = np.asarray(result.arrays["curve_loss"], dtype=np.float64)
    return (1 - alpha) * loss + alpha * np.asarray(result.arrays["curve_w2_squared"], dtype=np.float64)
