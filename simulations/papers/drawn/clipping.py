"""The picture of RLL's table 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import colour, marker, new_panels
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRINTED = {8: 0.97, 16: 0.79, 32: 0.62, 128: 2.66, 512: 8.20, 2048: 36.96, 8192: 123.81}


def ratios(study: Study) -> Mapping[str, Figure]:
    """Clipped over plain time by the hidden layer's width, ours and the paper's."""
    arrays = study.results[0].arrays
    figure, (axes,) = new_panels(1, 1, size=(5.2, 3.6))
    ours = arrays["clipped"] / arrays["plain"]
    axes.loglog(list(_PRINTED), list(_PRINTED.values()), color=colour(0), marker=marker(0), label="paper (GPU, loop)")
    axes.loglog(arrays["widths"], ours, color=colour(1), marker=marker(1), label="fedsw, this machine")
    axes.axhline(1, color="0.3", linewidth=0.8)
    axes.set(xlabel="hidden units", ylabel="clipped / plain time")
    axes.legend()
    figure.suptitle(study.figure.source)
    return {"": figure}
