"""Images that generators learnt: beside what was released, method by method, and budget by budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.text import number, upward
from fedsw.runs.report.figures import colour, draw_images, new_panels
from simulations.papers.drawn.labels import name_of
from simulations.papers.figure import Value
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SEEN = {"original": "original\n(held out)", "privatised": "privatised", "denoised": "wavelet,\nby an oracle"}
_ENTROPIC = ("shortened", "best")
_IMAGES = 10
_IN_ROW = 2
_IN_PICTURE = 2
"""Budgets in one picture: four of them would be sheets too small to see."""


def methods(study: Study) -> Mapping[str, Figure]:
    """A row a budget: held-out images, privatised, denoised; then samples of every series. A picture two budgets.

    Needs `released.samples` of all series, and `released.privatised` of one that denoises (the last is shown).
    """
    budgets = study.along("epsilon")
    if len(budgets) <= _IN_PICTURE:
        return {"": _methods(study, budgets)}
    parts = [budgets[start : start + _IN_PICTURE] for start in range(0, len(budgets), _IN_PICTURE)]
    return {" ".join(upward(float(budget), 6) for budget in part): _methods(study, part) for part in parts}


def _methods(study: Study, budgets: Sequence[Value]) -> Figure:
    series = study.series
    columns = len(_SEEN) + len(series)
    figure, panels = new_panels(len(budgets), columns, size=(1.25 * columns + 0.4, 2.9 * len(budgets) + 0.4))
    for line, budget in enumerate(budgets):
        row = panels[line * columns : (line + 1) * columns]
        seen = [result for result in study.of(epsilon=budget) if "original" in result.arrays]
        for axes, (name, title) in zip(row, _SEEN.items(), strict=False):
            _images(axes, seen[-1].arrays[name] if seen else None, title)
        for axes, name in zip(row[len(_SEEN) :], series, strict=True):
            found = study.of(name, epsilon=budget)
            _images(axes, found[0].arrays["samples"] if found else None, _wrapped(name))
            if found:
                _below(axes, _distance(found[0]))
        if seen:
            row[0].text(-0.12, 0.5, law(seen[-1]), rotation=90, va="center", ha="right", transform=row[0].transAxes)
    figure.suptitle(f"{study.figure.source}: generators from privatised images, method by method")
    return figure


def budgets(study: Study) -> Mapping[str, Figure]:
    """Samples of a generator at every budget: a row a series, a column an epsilon; needs `released.samples`."""
    return {"": _grid(study, study.along("epsilon"), size=(2.3, 2.6), images=64, in_row=8)}


def pair(study: Study) -> Mapping[str, Figure]:
    """The two budgets in the middle of `budgets`, ten samples each; of a few results those that there are."""
    values = study.along("epsilon")
    return {"": _grid(study, values[1:3] or values, size=(3.2, 1.5), images=10, in_row=5)}


def _grid(study: Study, values: Sequence[Value], *, size: tuple[float, float], images: int, in_row: int) -> Figure:
    series, (width, height) = study.series, size
    figure, panels = new_panels(len(series), len(values), size=(width * len(values) + 0.4, height * len(series) + 0.3))
    for line, name in enumerate(series):
        for axes, value in zip(panels[line * len(values) : (line + 1) * len(values)], values, strict=True):
            found = study.of(name, epsilon=value)
            _images(
                axes, found[0].arrays["samples"][:images] if found else None, _title(name, value, found), in_row=in_row
            )
    figure.suptitle(f"{study.figure.source}: samples of the generator")
    return figure


def oracle(study: Study) -> Mapping[str, Figure]:
    """Error of a pixel before and after denoising, for every noise that the oracle was asked about."""
    values = study.results[0].values
    names = [key.removesuffix(" error") for key in values if key.endswith(" error")]
    figure, (axes,) = new_panels(1, 1, size=(5.6, 3.0))
    for position, (kind, word) in enumerate((("noise", "as released"), ("error", "denoised by the oracle"))):
        heights = [float(values[f"{name} {kind}"]) for name in names]
        places = np.arange(len(names)) + 0.38 * position
        axes.bar(places, heights, width=0.36, color=colour(position), label=word)
    axes.axhline(0.26, color="0.3", linestyle="--", linewidth=1, label="the mean image")
    axes.set_xticks(np.arange(len(names)) + 0.19, [name.replace("-", "\nε = ") for name in names])
    axes.set(ylabel="root mean squared error of a pixel", yscale="log")
    figure.legend(loc="outside lower center", ncols=3)
    figure.suptitle(f"{study.figure.source}: wavelets tuned on the clean images")
    return {"": figure}


def law(result: Result) -> str:
    """`Laplace, ε = 196`: the noise of a run's release, and the true epsilon where that is larger."""
    asked = result.about["settings"].get("local", {})
    true, nominal = float(result.about["epsilon"]), float(result.point["epsilon"])
    words = f"{asked.get('mechanism', 'gaussian').capitalize()}, ε = {_whole(nominal)}"
    return words if true < 1.01 * nominal else f"{words} (truly {_whole(true)})"


def _whole(epsilon: float) -> str:
    return f"{epsilon:,.0f}" if 1000 <= epsilon < math.inf else upward(epsilon)


def _title(series: str, epsilon: Value, found: list[Result]) -> str:
    measured = _distance(found[0]) if found else ""
    return f"{series}, {name_of('epsilon', epsilon)}" + (f"\n{measured}" if measured else "")


def _images(axes: Axes, images: NDArray[Any] | None, title: str, *, in_row: int = _IN_ROW) -> None:
    if images is None:
        axes.set_axis_off()
        axes.set_title(f"{title}\n(no result)", fontsize=8)
        return
    shown = images[:_IMAGES] if in_row == _IN_ROW else images
    draw_images(axes, np.asarray(shown, dtype=np.float64) / 255, title, columns=in_row)
    axes.title.set_fontsize(8)


def _below(axes: Axes, text: str) -> None:
    axes.text(0.5, -0.02, text, ha="center", va="top", fontsize=7, transform=axes.transAxes)


def _distance(result: Result) -> str:
    value = result.values.get("w2_test")
    return "" if value is None else f"W₂ {number(value)}"


def _wrapped(name: str) -> str:
    if name in _ENTROPIC:
        return f"entropic,\n{name}"
    return name if len(name) < 14 else name.replace(" + ", " +\n").replace(", ", ",\n")
