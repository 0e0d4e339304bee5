"""The picture of RLL's appendix F."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import colour, marker, new_panels
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sensitivity(study: Study) -> Mapping[str, Figure]:
    """W_1 along theta for two neighbouring samples of 8, and how far each gradient moves as n grows."""
    arrays = study.results[0].arrays
    figure, (left, right) = new_panels(1, 2, size=(8.6, 3.4))
    for position, (name, label) in enumerate((("value_first", "x₁, …, xₙ"), ("value_moved", "one record replaced"))):
        left.plot(arrays["theta"], arrays[name], color=colour(position), label=label)
    left.axvline(0, color="0.3", linewidth=0.8)
    left.set(xlabel="θ", ylabel="W₁(x + θ, z)", title="n = 8: slopes +1 and −1 at θ = 0")
    for position, (name, label) in enumerate((("w1", "W₁"), ("w2_squared", "W₂²"))):
        right.loglog(arrays["sizes"], arrays[name], color=colour(position), marker=marker(position), label=label)
    right.set(xlabel="records n", ylabel="|gradient − neighbour's|", title="what one record moves")
    for axes in (left, right):
        axes.legend()
    figure.suptitle(study.figure.source)
    return {"": figure}
