"""The three tasks in one picture: classification, regression, representation, by weight and epsilon."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import new_panels
from simulations.papers.drawn import histograms, scatter
from simulations.papers.drawn.labels import name_of
from simulations.papers.drawn.panels import median_of
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Mapping[str, Callable[[Axes, Result], None]] = {
    "classification": histograms.panel,
    "regression": functools.partial(scatter.panel, diagonal=True),
    "representation": scatter.panel,
}


def three_tasks(study: Study) -> Mapping[str, Figure]:
    """A row a task, a column a weight and epsilon; a picture for each half of the series' names ("best, ...")."""
    found = {}
    for kind in dict.fromkeys(series.partition(", ")[0] for series in study.series):
        tasks = {task: f"{kind}, {task}" for task in _PANELS if f"{kind}, {task}" in study.series}
        columns = [
            (alpha, epsilon)
            for alpha in study.along("alpha", next(iter(tasks.values())))
            for epsilon in study.along("epsilon", next(iter(tasks.values())))
        ]
        size = (2.3 * len(columns) + 0.6, 2.4 * len(tasks) + 0.7)
        figure, panels = new_panels(len(tasks), len(columns), size=size, sharex="row", sharey="row")
        for line, (task, series) in enumerate(tasks.items()):
            for column, (alpha, epsilon) in enumerate(columns):
                axes = panels[line * len(columns) + column]
                results = study.of(series, alpha=alpha, epsilon=epsilon)
                if results:
                    _PANELS[task](axes, median_of(results))
                words = [f"{name_of('alpha', alpha)}, {name_of('epsilon', epsilon)}"] if line == 0 else []
                words += [f"the median of {len(results)} seeds by W"] if len(results) > 1 else []
                axes.set_title("\n".join(words), fontsize=8)
                if column == 0:
                    axes.set_ylabel(task)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.suptitle(f"{study.figure.source}, {kind}: held-out outputs by group")
        found[kind] = figure
    return found
