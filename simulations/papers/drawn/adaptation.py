"""Accuracy of adapted classifiers: a bar a series, a panel a pair of domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import colour, new_panels
from simulations.papers.study import Measurement, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"usps": "MNIST to USPS", "mnist": "USPS to MNIST"}


def bars(study: Study) -> Mapping[str, Figure]:
    """Held-out accuracy in the private domain, mean over seeds, with the paper's printed value as a line."""
    sources = study.along("source")
    figure, panels = new_panels(1, len(sources), size=(4.6 * len(sources), 3.4), sharey=True)
    for axes, source in zip(panels, sources, strict=True):
        for position, series in enumerate(study.series):
            found = Measurement.of(study.numbers("accuracy", series, {"source": source}))
            if found is None:
                continue
            axes.barh(position, found.mean, xerr=found.deviation or None, color=colour(position), height=0.7)
            axes.text(0.02, position, f"{series}: {found}", va="center", fontsize=7.5, color="white")
        printed = [row.paper for row in study.figure.rows if row.at.get("source") == source]
        for paper in (each for each in printed if isinstance(each, float)):
            axes.axvline(paper, color="black", linestyle="--", linewidth=1)
        words = ", ".join(f"dashed: the paper's DP-SWD, {each}" for each in printed)
        axes.set_title(f"{_NAMES.get(str(source), source)}\n{words}", fontsize=8.5)
        axes.set_yticks([])
        axes.set_xlim(0, 1)
        axes.set_xlabel("accuracy on held-out private images")
    panels[0].invert_yaxis()
    figure.suptitle(f"{study.figure.source}: private target domain")
    return {"": figure}
