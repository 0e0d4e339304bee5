"""Generated images: a row a series or a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw.report.figures import new_panels
from simulations.papers.drawn.labels import measured_of, name_of
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 40
_FRECHET = "frechet_lenet"
_COLUMNS = 10
_OF_A_CLASS = 4
_NOTHING = 16
"""Of 255: what nearly every pixel is below where images show nothing."""


def labelled(study: Study) -> Mapping[str, Figure]:
    """Samples of every class, a panel a series, a picture a data set; needs `labelled.accuracy`."""
    found = {}
    for source in study.along("source"):
        results = [each for name in study.series for each in study.of(name, source=source)[:1]]
        titles = [
            f"{each.series}\n{measured_of(dict(each.values), 'perceptron_accuracy', 'logistic_accuracy')}"
            for each in results
        ]
        pictures = [
            np.swapaxes(each.arrays["images"], 0, 1).reshape(-1, each.arrays["images"].shape[-1]) for each in results
        ]
        found[str(source)] = _grids(f"{study.figure.source}: {source}", pictures, titles, columns=_COLUMNS)
    return found


def unlabelled(study: Study) -> Mapping[str, Figure]:
    """Samples at every budget, a panel a series and budget, a picture a data set; needs `public_features.samples`."""
    return _by_budget(study, _FRECHET, shown=_SHOWN, columns=_COLUMNS)


def by_class(study: Study) -> Mapping[str, Figure]:
    """Samples of every class, a class a line, a panel a series and budget; needs `synthesis.labelled`."""
    return _by_budget(study, "accuracy_generated", shown=None, columns=_OF_A_CLASS)


def _by_budget(study: Study, metric: str, *, shown: int | None, columns: int) -> Mapping[str, Figure]:
    found = {}
    for source in study.along("source"):
        results: list[Result] = [
            each
            for name in study.series
            for e in study.along("epsilon")
            for each in study.of(name, source=source, epsilon=e)[:1]
        ]
        titles = [
            f"{each.series}, {name_of('epsilon', each.point['epsilon'])}\n{measured_of(dict(each.values), metric)}"
            for each in results
        ]
        pictures = [each.arrays["images"][:shown] for each in results]
        found[str(source)] = _grids(f"{study.figure.source}: {source}", pictures, titles, columns=columns)
    return found


def _grids(title: str, pictures: Sequence[NDArray[np.uint8]], titles: Sequence[str], *, columns: int) -> Figure:
    """One panel for each set of images (n, side^2), `columns` images wide; three panels a row."""
    across = min(3, len(pictures))
    down = -(-len(pictures) // across)
    longest = max(len(images) // columns / columns for images in pictures)
    high = min(2.1, 3.5 * longest + 0.45)  # no taller than what a panel of this width shows
    figure, panels = new_panels(down, across, size=(3.6 * across, high * down + 0.6))
    for axes in panels:
        axes.set_axis_off()
    for axes, images, words in zip(panels, pictures, titles, strict=False):
        axes.imshow(_tiled(images, columns), cmap="gray_r", vmin=0, vmax=255)
        axes.set_title(words, fontsize=7.5)
        if np.quantile(images, 0.99) < _NOTHING:
            axes.text(0.5, 0.5, "all black: nothing was learnt", transform=axes.transAxes, ha="center", va="center")
    figure.suptitle(title)
    figure.set_layout_engine("constrained", wspace=0.06)  # budgets stand apart, samples of one do not
    return figure


def _tiled(images: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Images (n, side^2) as one picture (n / columns * side, columns * side)."""
    side = round(images.shape[1] ** 0.5)
    rows = len(images) // columns
    tiles = images[: rows * columns].reshape(rows, columns, side, side)
    return tiles.swapaxes(1, 2).reshape(rows * side, columns * side)
