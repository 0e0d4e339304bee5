"""The objective after training against one setting at a time, each scaled from the same start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw._tools.text import json_text
from fedsw.runs.report.figures import colour, marker, new_panels
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALPHA = 0.1


def by_scale(study: Study) -> Mapping[str, Figure]:
    """A curve a series: held-out objective against the scale of its setting, 1 being the run that all share."""
    figure, (axes,) = new_panels(1, 1, size=(5.6, 4.2))
    starts = _starts(study)
    for position, series in enumerate(study.series):
        results = study.of(series)
        (key,) = results[0].point
        start = starts[series]
        points = sorted((float(one.point[key]) / start, objective(one)) for one in results)
        axes.plot(*zip(*points, strict=True), color=colour(position), marker=marker(position), linewidth=1.2)
        axes.lines[-1].set_label(f"{series} ({start:g})")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="scale of the setting (1: as in brackets)", ylabel="held-out (1 - α) loss + α SW₂²")
    axes.xaxis.set_major_formatter(lambda scale, _: f"{scale:g}")
    figure.legend(loc="outside lower center", ncols=3)
    figure.suptitle(f"{study.figure.source}: ε = 5, one setting at a time")
    return {"": figure}


def objective(result: Result) -> float:
    """(1 - alpha) cross-entropy + alpha SW2^2 of a run on held-out records."""
    loss, distance = float(result.values["loss"]), float(result.values["sw2_to_prior"])
    return (1 - _ALPHA) * loss + _ALPHA * distance**2


def _starts(study: Study) -> dict[str, float]:
    """The value of each series' setting in the run that all series have; its first one where there is no such run."""
    settings = {series: [json_text(one.about["settings"]) for one in study.of(series)] for series in study.series}
    common = set.intersection(*map(set, settings.values()))
    found = {}
    for series, each in settings.items():
        results = study.of(series)
        places = [place for place, text in enumerate(each) if text in common]
        (value,) = results[places[0] if places else 0].point.values()
        found[series] = float(value)
    return found
