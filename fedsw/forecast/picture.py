"""The picture of a plan's what-ifs: what is left of what can be learnt, against the number of records."""

from __future__ import annotations

from pathlib import Path

from fedsw.forecast.forecast import ABOUT_ALL, FEASIBLE
from fedsw.forecast.planning import Planned
from fedsw.report.figures import colour, house_style, new_panels, save
from fedsw.text import number


@house_style()
def draw_plan(found: Planned, path: Path) -> Path:
    """A curve for every epsilon; the run's own number of records is marked.

    Raises:
        ValueError: if the plan has no forecast.
    """
    if found.forecast is None:
        raise ValueError(f"there is nothing to draw: {found.verdict}")
    figure, (axes,) = new_panels(1, 1, size=(6.4, 4.0))
    for place, epsilon in enumerate(sorted({each.epsilon for each in found.forecast.what_ifs})):
        points = sorted((each.records, each.kept) for each in found.forecast.what_ifs if each.epsilon == epsilon)
        shown = [min(1.0, max(0.0, kept)) for _, kept in points]
        label = f"ε = {number(epsilon)}"
        axes.plot([records for records, _ in points], shown, marker="o", color=colour(place), label=label)
    axes.axhspan(-0.03, FEASIBLE, color="0.5", alpha=0.15, linewidth=0)
    axes.annotate(
        "a constant does as well", (0.99, 0.02), xycoords="axes fraction", color="0.35", ha="right", va="bottom"
    )
    axes.axhline(ABOUT_ALL, color="0.6", linestyle=":", linewidth=1)
    axes.axvline(found.records, color="0.6", linestyle="--", linewidth=1)
    axes.set(xscale="log", ylim=(-0.03, 1.05), xlabel="records", ylabel="left of what can be learnt")
    sizes = sorted({each.records for each in found.forecast.what_ifs})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set_title(f"{found.experiment.name}: what noise leaves, by forecast on public twins")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(figure, path)
