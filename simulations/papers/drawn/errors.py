"""How far generated points are from clean ones, against the noise, the number of records, or the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedsw._tools.text import to_float
from fedsw.runs.report.figures import COLOURS, colour, marker, new_panels
from simulations.papers.figure import Value
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def against_sigma(study: Study) -> Mapping[str, Figure]:
    """W_2 to the private and to held-out records over the scale of the noise, a curve a series.

    Needs `transport.distances`.
    """
    figure, panels = new_panels(1, 2, size=(7.6, 3.3), sharey=True)
    for axes, (metric, title) in zip(panels, _SIDES.items(), strict=True):
        for position, series in enumerate(study.series):
            sigmas = [study.of(series, epsilon=value)[0].sigma for value in study.along("epsilon", series)]
            _curve(axes, study, series, "epsilon", metric, position, places=sigmas)
        _floor(axes, study)
        axes.set(title=title, xlabel="scale σ of the noise (pixels in [0, 1])")
    panels[0].set_ylabel("W₂ of generated images")
    panels[1].legend(fontsize=8)
    figure.suptitle(f"{study.figure.source}: error against the noise")
    return {"": figure}


def against_records(study: Study) -> Mapping[str, Figure]:
    """Left W_2 to clean records, right W_{2, 2 s^2} to privatised ones, over the number of records; train and test.

    A row a series, each with axes of its own: one series beside another looks flat. Grey: the curve a + b / sqrt(n)
    that is nearest to *test* in squares. Needs `transport.distances` and `transport.fits`.
    """
    figure, panels = new_panels(len(study.series), 2, size=(7.6, 2.9 * len(study.series) + 0.5))
    sides = (("w2", "W₂ to clean images"), ("fit", "W₂,₂σ² to privatised images"))
    for line, series in enumerate(study.series):
        for axes, (metric, title) in zip(panels[2 * line : 2 * line + 2], sides, strict=True):
            for part, style in (("train", "-"), ("test", "--")):
                _curve(axes, study, series, "most_records", f"{metric}_{part}", line, style=style, name=part)
            _at_the_rate(axes, study, series, f"{metric}_test")
            axes.set(title=f"{series}: {title}", xlabel="records n", xscale="log")
            axes.title.set_fontsize(9)
        panels[2 * line].legend(fontsize=8)
    figure.suptitle(f"{study.figure.source}: error against the number of records")
    return {"": figure}


def _at_the_rate(axes: Axes, study: Study, series: str, metric: str) -> None:
    """The least-squares curve a + b / sqrt(n) through the means of a metric, where there are more than two."""
    numbers = {float(n): study.numbers(metric, series, {"most_records": n}) for n in study.along("most_records")}
    known = {n: float(np.mean(values)) for n, values in numbers.items() if values}
    if len(known) < _LEAST_FITTED:
        return
    records, errors = np.array(list(known)), np.array(list(known.values()))
    slope, floor = np.polyfit(records**-0.5, errors, 1)
    places = np.geomspace(records.min(), records.max(), 50)
    axes.plot(places, floor + slope * places**-0.5, color="0.5", linestyle=":", linewidth=1.2, label="a + b n^-1/2")


def against_epsilon(study: Study) -> Mapping[str, Figure]:
    """The distance of held-out records to the samples over epsilon: a curve a method, on logarithmic axes."""
    figure, (axes,) = new_panels(1, 1, size=(6.8, 4.2))
    for position, series in enumerate(study.series):
        style = "-" if position < len(COLOURS) else "--"  # a colour that comes again comes with another line
        _curve(axes, study, series, "epsilon", "sw2", position, style=style)
    axes.axhline(_WORKS, color="0.4", linestyle=":", linewidth=1.2)
    axes.text(
        0.99, _WORKS * 0.97, "the ring is seen", ha="right", va="top", fontsize=8, transform=axes.get_yaxis_transform()
    )
    axes.set(xscale="log", yscale="log", xlabel="ε of the release", ylabel="sliced W₂ to held-out records")
    figure.legend(loc="outside right center", fontsize=8)
    figure.suptitle(f"{study.figure.source}: where each method starts to work")
    return {"": figure}


def against_epsilon_by_data(study: Study) -> Mapping[str, Figure]:
    """The distance of held-out records to the samples over epsilon, a panel a data set: a curve a method."""
    from matplotlib.ticker import NullLocator

    sources = study.along("source")
    figure, panels = new_panels(1, len(sources), size=(3.6 * len(sources) + 0.6, 3.6), sharey=True)
    for axes, source in zip(panels, sources, strict=True):
        for position, series in enumerate(study.series):
            _curve(axes, study, series, "epsilon", "sw2", position, at={"source": source})
        axes.set(xscale="log", yscale="log", xlabel="ε of the release", title=str(source))
        axes.set_xticks(
            ticks := [to_float(value) or 0.0 for value in study.along("epsilon")], [f"{x:g}" for x in ticks]
        )
        axes.xaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("sliced W₂ to held-out records")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(study.figure.source)
    return {"": figure}


_SIDES = {"w2_train": "to the private images (outside the guarantee)", "w2_test": "to held-out images"}
_LEAST_FITTED = 3
_WORKS = 0.1
"""Sliced W_2 at which samples of a ring of radius 3/4 look like one; points at the origin are at .53."""


def _floor(axes: Axes, study: Study) -> None:
    """A line at what real training images have; it is no least value, since blurred images can be nearer."""
    found = [number for series in study.series for number in study.numbers("w2_between", series, {})]
    if found:
        axes.axhline(float(np.mean(found)), color="0.35", linestyle=":", linewidth=1.2, label="real training images")


def _curve(
    axes: Axes,
    study: Study,
    series: str,
    key: str,
    metric: str,
    position: int,
    *,
    places: Sequence[float] | None = None,
    style: str = "-",
    name: str = "",
    at: Mapping[str, Value] = MappingProxyType({}),
) -> None:
    """Means over seeds at the points that agree with `at`; bars of one standard deviation where seeds are several."""
    values: list[Value] = study.along(key, series)
    found = [study.numbers(metric, series, {**at, key: value}) for value in values]
    x = places or [to_float(value) or 0.0 for value in values]
    axes.errorbar(
        x,
        [float(np.mean(numbers)) if numbers else np.nan for numbers in found],
        yerr=[float(np.std(numbers)) if len(numbers) > 1 else 0.0 for numbers in found],
        color=colour(position),
        marker=marker(position),
        markersize=4,
        linestyle=style,
        linewidth=1.2,
        capsize=2,
        label=name or series,
    )
