"""A grid of panels: a row for each epsilon, a column for each alpha, with the noise and the objective in the titles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedsw._tools.text import number
from fedsw.runs.report.figures import new_panels
from simulations.papers.curves import by_class
from simulations.papers.drawn.labels import measured_of, name_of
from simulations.papers.figure import Value
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def grid(
    study: Study,
    series: str,
    panel: Callable[[Axes, Result], None],
    metrics: tuple[str, ...],
    title: str,
    across: str,
    *,
    width: float = 2.6,
) -> Figure:
    """The median seed of every point of a series, with the same axes in all panels, each `width` inches wide."""
    alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
    size = (width * len(alphas) + 0.6, 2.5 * len(epsilons) + 0.9)
    figure, panels = new_panels(len(epsilons), len(alphas), size=size, sharex=True, sharey=True)
    for line, epsilon in enumerate(epsilons):
        for column, alpha in enumerate(alphas):
            axes = panels[line * len(alphas) + column]
            if results := study.of(series, alpha=alpha, epsilon=epsilon):
                result = median_of(results)
                panel(axes, result)
                lines = (point_of(alpha, len(results)), *losses_of(result), measured_of(result.values, *metrics))
                axes.set_title("\n".join(lines), fontsize=7)
            if column == 0:
                axes.set_ylabel(name_of("epsilon", epsilon))
            if line == len(epsilons) - 1:
                axes.set_xlabel(across)
    key = next((axes.get_legend_handles_labels() for axes in panels if axes.has_data()), ([], []))
    figure.legend(*key, loc="outside lower center", ncols=2)
    figure.suptitle(f"{study.figure.source}, {series}: {title}")
    figure.set_layout_engine("constrained", h_pad=0.08)
    return figure


def median_of(results: Sequence[Result]) -> Result:
    """Of several seeds the one whose penalty on held-out records is the median (the lower of two): no lucky one."""
    return sorted(results, key=gap_of)[(len(results) - 1) // 2]


def point_of(alpha: Value, seeds: int) -> str:
    """`α = 0.75, the median of 5 seeds by W`."""
    return name_of("alpha", alpha) + (f", the median of {seeds} seeds by W" if seeds > 1 else "")


def losses_of(result: Result) -> tuple[str, str]:
    """`σ 0.02 · obj. 0.31` and `L 0.48 · W 0.13`, of held-out records, as the paper writes above its panels."""
    alpha, loss, gap = float(result.point["alpha"]), float(result.values["loss"]), gap_of(result)
    whole = (1 - alpha) * loss + alpha * gap
    return f"σ {number(result.sigma)} · obj. {number(whole)}", f"L {number(loss)} · W {number(gap)}"


def gap_of(result: Result) -> float:
    """The penalty on held-out records: W2^2 between the groups, or its mean over the true classes."""
    if by_class(result):
        return (float(result.values["od_0"]) + float(result.values["od_1"])) / 2
    return float(result.values["w2_squared"])
