"""Particles in the plane: a row a noise, a column a number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import colour, new_panels
from simulations.papers.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def panels(study: Study) -> Mapping[str, Figure]:
    """Target records in grey and the particles over them, with the same axes in every panel."""
    (result,) = study.results
    sigmas, shown, particles = (result.arrays[name] for name in ("sigmas", "shown", "particles"))
    figure, axes = new_panels(
        len(sigmas), len(shown), size=(2.5 * len(shown) + 0.4, 2.5 * len(sigmas) + 0.6), sharex=True, sharey=True
    )
    target = result.arrays["target"]
    limit = 1.35 * float(abs(target).max())
    for line, sigma in enumerate(sigmas):
        for column, step in enumerate(shown):
            panel = axes[line * len(shown) + column]
            panel.scatter(target[:, 0], target[:, 1], s=2, color="0.8", linewidths=0)
            panel.scatter(
                particles[line, column][:, 0],
                particles[line, column][:, 1],
                s=2,
                color=colour(2),
                linewidths=0,
                alpha=0.6,
            )
            panel.set_xlim(-limit, limit)
            panel.set_ylim(-limit, limit)
            panel.set_aspect("equal")
            words = f"step {step}"
            if column == len(shown) - 1:
                words += f", SW₂ {result.values[f'swd_{sigma:g}']:.2f}"
            panel.set_title(words, fontsize=8)
        axes[line * len(shown)].set_ylabel(f"σ = {sigma:g}")
    figure.suptitle(f"{study.figure.source}: particles (green) and records (grey)")
    return {"": figure}
