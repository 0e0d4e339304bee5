"""Demographic-parity violation against error: a curve for each method over its penalty's weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsw.runs.report.figures import colour, marker, new_panels
from simulations.papers.drawn.labels import name_of
from simulations.papers.published import DP_FERMI
from simulations.papers.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES: Mapping[str, Any] = {"replace": "-", "add-remove": (0, (4, 1.5))}


def baselines(study: Study) -> Mapping[str, Figure]:
    """A panel for the methods with a trusted server and one for those without, with DP-FERMI's points in both.

    Needs the measure `tradeoff.error_and_violation`. Means over seeds, bars of one standard deviation.
    """
    local = {series: _stated(study.of(series)[0], "trust").startswith("local") for series in study.series}
    wide = {False: "a trusted server, or pooled records", True: "nobody is trusted but the client"}
    shown = [kind for kind in wide if kind in local.values()]
    figure, panels = new_panels(1, len(shown), size=(5.0 * len(shown), 5.2), sharex=True, sharey=True)
    for axes, kind in zip(panels, shown, strict=True):
        for position, series in enumerate(study.series):
            if local[series] is kind:
                _curve(axes, study, series, position)
        for epsilon in study.along("epsilon"):
            if isinstance(epsilon, float) and epsilon in DP_FERMI:
                errors, violations = zip(*DP_FERMI[epsilon], strict=True)
                axes.plot(violations, errors, "x:", color="0.35", label="DP-FERMI as printed (protects sex alone)")
        axes.set(
            xlabel="demographic-parity violation",
            title=f"{wide[kind]}, {name_of('epsilon', study.along('epsilon')[0])}",
        )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize="small", handlelength=3.0)
    panels[0].set_ylabel("error")
    figure.suptitle(f"{study.figure.source}: {study.figure.title}")
    return {"": figure}


def _curve(axes: Any, study: Study, series: str, position: int) -> None:
    points = [dict(point) for point in dict.fromkeys(tuple(result.point.items()) for result in study.of(series))]
    groups = [study.of(series, **point) for point in points]
    error, violation = (np.array([_spread(group, name) for group in groups]) for name in ("error", "violation"))
    stated = _stated(groups[0][0], "relation")
    axes.errorbar(
        violation[:, 0],
        error[:, 0],
        xerr=violation[:, 1],
        yerr=error[:, 1],
        color=colour(position),
        marker=marker(position),
        markersize=4,
        linestyle=_LINES["add-remove" if stated.startswith("add-remove") else "replace"],
        linewidth=1.3,
        elinewidth=0.7,
        label=f"{series} ({stated.partition(' ')[0]})",
    )


def _spread(results: list[Result], name: str) -> tuple[float, float]:
    numbers = [float(result.values[name]) for result in results]
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def _stated(result: Result, key: str) -> str:
    return str((result.about.get("guarantee") or {}).get(key, ""))
