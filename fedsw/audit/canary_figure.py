"""The figure of a canary audit: what releases of the two neighbours look like, and what they show of the claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from fedsw.report.figures import colour, house_style, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def draw(found: Mapping[str, Any]) -> Figure:
    """Three panels: scores of both neighbours, error rates against the claimed curve, epsilons.

    Args:
        found: the details of the finding, with claimed_epsilon and shown_epsilon.
    """
    figure, (scores, errors, epsilons) = new_panels(1, 3, size=(11.0, 3.4), width_ratios=(1.2, 1.0, 0.8))
    _scores(scores, found)
    _errors(errors, found)
    _epsilons(epsilons, found)
    return figure


def _scores(axes: Axes, found: Mapping[str, Any]) -> None:
    edges = np.array(found["histogram"]["edges"])
    for position, (name, label) in enumerate((("without", "without the canary's value"), ("with", "with it"))):
        counts = np.array(found["histogram"][name])
        heights = counts / counts.sum() / np.diff(edges)
        axes.stairs(heights, edges, fill=True, color=colour(position), alpha=0.35, label=label)
    axes.axvline(found["threshold"], color="black", linewidth=1.0, label="threshold")
    axes.set(title="Releases in which the canary was drawn", xlabel="score (in units of σ)", ylabel="density")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(loc="upper left")


def _errors(axes: Axes, found: Mapping[str, Any]) -> None:
    alpha = np.linspace(1e-4, 1 - 1e-4, 400)
    claimed = stats.norm.cdf(stats.norm.isf(alpha) - found["mu"])
    axes.plot(alpha, claimed, color="black", label=f"claimed, μ = {found['mu']:.3g}")
    points = np.array(found["curve"])
    axes.plot(points[:, 0], points[:, 1], ".", color=colour(0), label="measured")
    axes.plot(*found["rates_upper"], marker="s", color=colour(1), linestyle="none", label="bounded")
    axes.plot([0, 1], [1, 0], color="black", linewidth=0.6, linestyle=":")
    axes.set(title="Errors of the test", xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper right")


def _epsilons(axes: Axes, found: Mapping[str, Any]) -> None:
    names = ("claimed", "bracket,\nlower end", "instance", "shown")
    keys = ("claimed_epsilon", "bracket_lower", "instance_epsilon", "shown_epsilon")
    values = [float(found[key]) for key in keys]
    shades = ("0.35", "0.6", colour(5), colour(1))
    bars = axes.bar(names, values, color=shades)
    axes.bar_label(bars, [f"{value:.3g}" for value in values])
    axes.tick_params(axis="x", labelsize="small")
    axes.set(title=f"ε, T = {found['rounds']}", ylim=(0, 1.15 * max(values)))
