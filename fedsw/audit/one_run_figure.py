"""The figure of a one-run audit: what attackers saw of the coins, and what they can show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw.report.figures import colour, histogram_by_group, house_style, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def draw_one_run(
    attacks: Mapping[str, tuple[NDArray[np.float64], float]],
    coins: NDArray[np.bool_],
    *,
    claimed: float,
    title: str,
    published: float,
) -> Figure:
    """Histograms of each attacker's scores by coin, and shown epsilon beside the claimed one.

    Args:
        attacks: by attacker, its scores (m,) and the epsilon that it shows.
        coins: (m,).
        published: the share of epsilon drawn as a line, of another audit.
    """
    figure, panels = new_panels(1, len(attacks) + 1, size=(3.3 * (len(attacks) + 1), 3.1))
    for axes, (name, (scores, _)) in zip(panels, attacks.items(), strict=False):
        _histograms(axes, scores / (scores.std() or 1.0), coins)
        axes.set(title=name, xlabel="score, in standard deviations", ylabel="density")
    panels[0].legend(fontsize="small")
    _bars(panels[-1], {name: shown for name, (_, shown) in attacks.items()}, claimed, published)
    figure.suptitle(f"{title}: one run, {len(coins)} canaries")
    return figure


def _histograms(axes: Axes, scores: NDArray[np.float64], coins: NDArray[np.bool_]) -> None:
    most = float(np.abs(scores).max()) or 1.0
    histogram_by_group(axes, scores, coins.astype(np.int64), limits=(-most, most), name=lambda coin: f"coin {coin}")


def _bars(axes: Axes, shown: Mapping[str, float], claimed: float, published: float) -> None:
    names = list(shown)
    finite = math.isfinite(claimed)
    heights = [shown[name] for name in names] + ([claimed] if finite else [])
    labels = [name.replace(" ", "\n", 1) for name in names] + (["claimed"] if finite else [])
    colours = [colour(2 + index) for index in range(len(names))] + ["0.6"]
    axes.bar(range(len(heights)), heights, color=colours[: len(heights)], width=0.6)
    for place, height in enumerate(heights):
        axes.annotate(f"{height:.3g}", (place, height), ha="center", va="bottom", fontsize="small")
    if finite:
        axes.axhline(published * claimed, color="black", linestyle="--", linewidth=1.0)
        axes.annotate(
            f"{published} of ε: best published\nblack box (MNIST, ε = 10)",
            (-0.4, published * claimed),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize="x-small",
        )
        axes.set_ylim(0, 1.12 * max(heights))
    axes.set_xticks(range(len(heights)), labels)
    axes.set(title="ε shown and claimed", ylabel="ε")
