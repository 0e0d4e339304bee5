"""A grid of panels: a row for each epsilon, a column for each alpha, with the noise and the objective in the titles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedsw._tools.text import number
from fedsw.runs.report.figures import new_panels
from simulations.papers.curves import by_class
from simulations.papers.drawn.labels import measured_of, name_of
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def grid(
    study: Study, series: str, panel: Callable[[Axes, Result], None], metrics: tuple[str, ...], title: str, across: str
) -> Figure:
    """The first seed of every point of a series, with the same axes in all panels."""
    alphas, epsilons = study.along("alpha", series), study.along("epsilon", series)
    size = (2.6 * len(alphas) + 0.6, 2.3 * len(epsilons) + 0.9)
    figure, panels = new_panels(len(epsilons), len(alphas), size=size, sharex=True, sharey=True)
    for line, epsilon in enumerate(epsilons):
        for column, alpha in enumerate(alphas):
            axes = panels[line * len(alphas) + column]
            for result in study.of(series, alpha=alpha, epsilon=epsilon)[:1]:
                panel(axes, result)
                lines = (name_of("alpha", alpha), losses_of(result), measured_of(result.values, *metrics))
                axes.set_title("\n".join(lines), fontsize=7)
            if column == 0:
                axes.set_ylabel(name_of("epsilon", epsilon))
            if line == len(epsilons) - 1:
                axes.set_xlabel(across)
    key = next((axes.get_legend_handles_labels() for axes in panels if axes.has_data()), ([], []))
    figure.legend(*key, loc="outside lower center", ncols=2)
    figure.suptitle(f"{study.figure.source}, {series}: {title}")
    return figure


def losses_of(result: Result) -> str:
    """`σ 0.02 · objective 0.31 = 0.5·0.48 + 0.5·0.13`, of held-out records, as the paper writes above its panels."""
    alpha, loss, gap = float(result.point["alpha"]), float(result.values["loss"]), gap_of(result)
    whole = (1 - alpha) * loss + alpha * gap
    return f"σ {number(result.sigma)} · obj. {number(whole)} · L {number(loss)} · W {number(gap)}"


def gap_of(result: Result) -> float:
    """The penalty on held-out records: W2^2 between the groups, or its mean over the true classes."""
    if by_class(result):
        return (float(result.values["od_0"]) + float(result.values["od_1"])) / 2
    return float(result.values["w2_squared"])
