"""Pictures of autoencoders: reconstructions, generated images, interpolations, codes, a series at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.report.figures import draw_images, new_panels
from simulations.papers.drawn.labels import measured_of, name_of
from simulations.papers.figure import Value
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 40
_PAIRS = 9
_CODES_IN_ROW = 4


def reconstructions(study: Study) -> Mapping[str, Figure]:
    """The earliest held-out image of each class, and under it its reconstructions, a row an epsilon."""
    found = {}
    for series in study.series:
        results = _by_epsilon(study, series)
        rows = [("held out", next(iter(results.values())).arrays["originals"])]
        rows += [(name_of("epsilon", epsilon), one.arrays["reconstructed"]) for epsilon, one in results.items()]
        figure, panels = new_panels(len(rows), 1, size=(6.4, 0.72 * len(rows) + 0.4))
        for axes, (title, images) in zip(panels, rows, strict=True):
            draw_images(axes, _unit(images), "", columns=len(images))
            _name_at_left(axes, title)
        figure.suptitle(f"{_heading(study, series)}: reconstructed")
        found[f"{series} reconstructed"] = figure
    return found


def generated(study: Study) -> Mapping[str, Figure]:
    """Images decoded from the prior, a panel an epsilon."""
    found = {}
    for series in study.series:
        results = _by_epsilon(study, series)
        figure, panels = new_panels(1, len(results), size=(2.5 * len(results) + 0.2, 4.1))
        for axes, (epsilon, one) in zip(panels, results.items(), strict=True):
            measured = measured_of(dict(one.values), "accuracy_generated", "frechet_lenet")
            title = f"{name_of('epsilon', epsilon)}\n{measured}" if measured else name_of("epsilon", epsilon)
            draw_images(axes, _unit(one.arrays["generated"][:_SHOWN]), title, columns=5)
            axes.title.set_fontsize(7.5)
        figure.suptitle(f"{_heading(study, series)}:\ndecoded from the prior")
        found[f"{series} generated"] = figure
    return found


def reconstructed_and_generated(study: Study) -> Mapping[str, Figure]:
    """Both pictures of each series."""
    return {**reconstructions(study), **generated(study)}


def interpolations(study: Study) -> Mapping[str, Figure]:
    """Between the earliest held-out images of class 0 and of every other, ten images a pair, a panel an epsilon."""
    found = {}
    for series in study.series:
        results = _by_epsilon(study, series)
        figure, panels = new_panels(1, len(results), size=(3.3 * len(results) + 0.2, 3.5))
        for axes, (epsilon, one) in zip(panels, results.items(), strict=True):
            pairs = one.arrays["interpolated"][:_PAIRS]
            draw_images(
                axes, _unit(pairs).reshape(-1, pairs.shape[-1]), name_of("epsilon", epsilon), columns=pairs.shape[1]
            )
        figure.suptitle(f"{_heading(study, series)}: from class 0 to every other", fontsize=10)
        figure.set_layout_engine("constrained", h_pad=0.08)
        found[series] = figure
    return found


def codes(study: Study) -> Mapping[str, Figure]:
    """Two coordinates of held-out images' codes by class: a panel a series and epsilon, the same axes in all."""
    shown = [(name, epsilon, one) for name in study.series for epsilon, one in _by_epsilon(study, name).items()]
    rows = -(-len(shown) // _CODES_IN_ROW)
    columns = -(-len(shown) // rows)
    size = (2.5 * columns + 0.8, 2.5 * rows + 0.6)
    figure, panels = new_panels(rows, columns, size=size, sharex=True, sharey=True)
    points = np.concatenate([one.arrays["codes"][:, :2].astype(np.float64) for _, _, one in shown])
    limit = float(np.quantile(np.abs(points), 0.998)) * 1.05
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes, (series, epsilon, one) in zip(panels, shown, strict=False):
        _scatter(axes, one)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
        axes.set_title(f"{series}, {name_of('epsilon', epsilon)}", fontsize=8)
    for axes in panels[::columns]:
        axes.set_ylabel("coordinate 2")
    for axes in panels[-columns:]:
        axes.set_xlabel("coordinate 1")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", title="class", markerscale=3)
    figure.suptitle(f"{study.figure.source}, {_source(study)}: codes of held-out images, and the prior's edge")
    return {"": figure}


def _scatter(axes: Axes, result: Result) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Circle

    points, labels = result.arrays["codes"].astype(np.float64), result.arrays["labels"]
    for label in np.unique(labels):
        chosen = points[labels == label]
        shade = colormaps["tab10"](int(label) % 10)
        axes.scatter(chosen[:, 0], chosen[:, 1], s=3, alpha=0.6, linewidths=0, color=shade, label=str(label))
    axes.add_patch(Circle((0, 0), 1.0, fill=False, edgecolor="0.3", linestyle="--", linewidth=0.8))


def _by_epsilon(study: Study, series: str) -> dict[Value, Result]:
    """The first seed's result at every epsilon."""
    return {epsilon: study.of(series, epsilon=epsilon)[0] for epsilon in study.along("epsilon", series)}


def _heading(study: Study, series: str) -> str:
    return f"{study.figure.source}, {_source(study)}, {series}"


def _source(study: Study) -> str:
    names = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
    return ", ".join(names.get(str(value), str(value)) for value in study.along("source"))


def _unit(images: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(images, dtype=np.float64) / 255


def _name_at_left(axes: Axes, title: str) -> None:
    axes.text(-0.01, 0.5, title, transform=axes.transAxes, ha="right", va="center", fontsize=8)
