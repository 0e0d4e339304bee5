"""RR's pictures of random slices: the law of a record's share of them, and distances while two means move apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.text import upward
from fedsw.runs.report.figures import colour, new_panels
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def share(study: Study) -> Mapping[str, Figure]:
    """The density of a record's share of the directions, and how each bound on it grows as delta shrinks."""
    (result,) = study.results
    arrays, values = result.arrays, result.values
    settings = study.figure.settings
    figure, (left, right) = new_panels(1, 2, size=(9.2, 3.4))
    edges = arrays["edges"]
    left.stairs(arrays["drawn"], edges, fill=True, facecolor=(colour(0), 0.35), label=f"{settings['draws']} draws of Θ")
    middle = (edges[1:] + edges[:-1]) / 2
    left.plot(middle, arrays["exact"], color=colour(0), linewidth=1.4, label="exact law")
    normal = _normal(middle, values["mean"], values["deviation"])
    left.plot(middle, normal, color=colour(1), linestyle="--", linewidth=1.4, label="normal law")
    for name, position in (("clt", 1), ("quantile", 0)):
        text = f"{'CLT' if name == 'clt' else 'exact'} at δ = {upward(values['delta'], 6)}"
        left.axvline(values[name], color=colour(position), linestyle=":", linewidth=1.4, label=text)
    left.set_xlabel("‖zᵀΘ‖²")
    left.set_ylabel("density")
    left.legend(fontsize=7)
    for name, label, position in (
        ("quantiles", "exact law", 0),
        ("clts", "CLT (no bound)", 1),
        ("bernsteins", "Bernstein", 2),
    ):
        right.plot(arrays["deltas"], arrays[name], color=colour(position), marker="o", markersize=3, label=label)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("δ")
    right.set_ylabel("value exceeded with probability δ")
    right.legend(fontsize=7)
    figure.suptitle(f"{study.figure.source}: k = {settings['k']} directions of R^{settings['d']}, ‖z‖ = 1")
    return {"": figure}


def means_apart(study: Study) -> Mapping[str, Figure]:
    """SWD and DP-SWD over the distance of the means: a panel a sigma, a colour a number of samples."""
    (result,) = study.results
    arrays = result.arrays
    figure, panels = new_panels(
        1, len(arrays["sigmas"]), size=(4.2 * len(arrays["sigmas"]), 3.3), sharex=True, sharey=True
    )
    for axes, sigma, noised in zip(panels, arrays["sigmas"], arrays["noised"], strict=True):
        for position, (n, plain, rough) in enumerate(zip(arrays["sizes"], arrays["plain"], noised, strict=True)):
            axes.plot(arrays["distances"], plain, color=colour(position), linewidth=1.4, label=f"SWD, n = {n}")
            axes.plot(
                arrays["distances"],
                rough,
                color=colour(position),
                linestyle="--",
                linewidth=1.4,
                label=f"DP-SWD, n = {n}",
            )
        axes.set_title(f"σ = {sigma:g}")
        axes.set_xlabel("c, the means' distance in every coordinate")
    panels[0].set_ylabel("distance")
    panels[0].legend(fontsize=7)
    figure.suptitle(f"{study.figure.source}: N(0, I) and N(c 1, I), before and after smoothing")
    return {"": figure}


def _normal(at: NDArray[np.float64], mean: float, deviation: float) -> NDArray[np.float64]:
    return np.exp(-0.5 * ((at - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
