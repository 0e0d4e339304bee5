"""Generated images: a row a series or a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.report.figures import new_panels
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
_STATIC = 0.8
"""Of the mean squared difference of two independent pixels: what neighbours in a picture are far below."""


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


def of_cases(study: Study) -> Mapping[str, Figure]:
    """Samples of every class, a panel a case of a computation; needs arrays `<case>_images` (classes, 8, side^2)."""
    (result,) = study.results
    pictures = {name.removesuffix("_images"): images for name, images in result.arrays.items()}
    titles = [
        f"{name}\n{measured_of({'accuracy': result.values[f'{name}_perceptron']}, 'accuracy')}" for name in pictures
    ]
    rows = [np.swapaxes(images, 0, 1).reshape(-1, images.shape[-1]) for images in pictures.values()]
    return {"": _grids(study.figure.source, rows, titles, columns=_COLUMNS)}


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
    """One panel for each set of images (n, side^2), `columns` images wide; three or five panels a row."""
    longest = max(len(images) // columns / columns for images in pictures)
    down = -(-len(pictures) // (3 if longest < 1 else 5))
    across = -(-len(pictures) // down)
    wide = 3.6 if longest < 1 else 2.2
    high = min(4.2, wide * longest + 0.45)  # no taller than what a panel of this width shows
    figure, panels = new_panels(down, across, size=(wide * across, high * down + 0.6))
    for axes in panels:
        axes.set_axis_off()
    for axes, images, words in zip(panels, pictures, titles, strict=False):
        axes.imshow(_tiled(images, columns), cmap="gray_r", vmin=0, vmax=255)
        axes.set_title(words, fontsize=7.5)
        fault = _fault(images)
        if fault:
            box = {"facecolor": "white", "edgecolor": "none"}
            axes.text(0.5, 0.5, fault, transform=axes.transAxes, ha="center", va="center", fontsize=8, bbox=box)
    figure.suptitle(title)
    figure.set_layout_engine("constrained", wspace=0.06)  # budgets stand apart, samples of one do not
    return figure


def _fault(images: NDArray[np.uint8]) -> str:
    """What a panel that shows no picture says; empty where images (n, side^2) show something."""
    if np.quantile(images, 0.99) < _NOTHING:
        return "blank: nothing was learnt"
    side = round(images.shape[1] ** 0.5)
    pixels = images.reshape(len(images), side, side).astype(float)
    apart = np.square(np.diff(pixels, axis=2)).mean()
    return "static" if apart > _STATIC * 2 * pixels.var() else ""


def _tiled(images: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Images (n, side^2) as one picture (n / columns * side, columns * side)."""
    side = round(images.shape[1] ** 0.5)
    rows = len(images) // columns
    tiles = images[: rows * columns].reshape(rows, columns, side, side)
    return tiles.swapaxes(1, 2).reshape(rows * side, columns * side)
