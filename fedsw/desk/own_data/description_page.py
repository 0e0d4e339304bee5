"""The page of a description: every column's histogram beside its declared bounds, with its noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsw.desk.own_data.described_column import DescribedColumn
from fedsw.desk.own_data.description import QUANTILES, SUFFIX, Description
from fedsw.runs.report.document import Document, Listed, PageSection, Part, Strong
from fedsw.runs.report.figures import colour, house_style, new_panels, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3
_AT_ONCE = 24
"""Columns in one picture."""
_MOST_CLASSES = 6
_NAMED = 12
"""Bins with names that fit below a panel."""


def page_of(description: Description, name: str) -> Document:
    """Make the document: what to change, the guarantee, all histograms, and their numbers."""
    columns = description.columns
    pictures: list[Part] = [
        picture(
            drawn(description, columns[start : start + _AT_ONCE]),
            name=f"columns{start}",
            caption="Share of the records in each bin of the declared range; bars are what noise leaves open (95 %).",
            says="Histograms of the columns; their numbers are in the tables.",
        )
        for start in range(0, len(columns), _AT_ONCE)
    ]
    quantiles = [
        (column.name, *(column.words(column.quantile(part) or 0.0) for part in QUANTILES))
        for column in columns
        if column.edges
    ]
    # shares by class, and their noise, unless there are too many classes to be read
    by_class = (*(f"and {name}" for name in description.classes), "± of these")
    numbers: list[Part] = [
        Listed.of(
            column.name,
            ("bin", "share", "± (95 %)", *(by_class if 0 < len(column.by_class) <= _MOST_CLASSES else ())),
            _rows(column),
        )
        for column in columns
    ]
    begins: list[Part] = [
        f"Histograms of {len(columns)} columns of {description.records} records, from one noised release. No minimum, "
        "no maximum and no number without noise is in them.",
        *map(Strong, description.findings),
    ]
    privacy = description.experiment.privacy
    guarantee: list[Part] = [
        str(description.summary["guarantee"]["statement"]),
        f"Trust model {privacy.trust}. Everything here is computed from that release; a further one adds its epsilon.",
    ]
    return Document(
        title=f"What is in {name.removesuffix(SUFFIX)}",
        verdict="",
        begins=tuple(begins),
        sections=(
            PageSection.of("Columns", pictures),
            PageSection.of("Guarantee", guarantee),
            PageSection.of(
                "Quantiles", [Listed.of("By column", ("column", *(f"{part:.0%}" for part in QUANTILES)), quantiles)]
            ),
            PageSection.of("Numbers", numbers),
        ),
    )


def _rows(column: DescribedColumn) -> list[tuple[str, ...]]:
    told = 0 < len(column.by_class) <= _MOST_CLASSES
    half = f"{column.class_half_width:.4f}"
    return [
        (
            label,
            f"{column.shares[index]:.4f}",
            f"{column.half_width:.4f}",
            *((*(f"{share:.4f}" for share in column.by_class[:, index]), half) if told else ()),
        )
        for index, label in enumerate(column.labels)
    ]


@house_style()
def drawn(description: Description, columns: tuple[DescribedColumn, ...]) -> Figure:
    """Draw a panel for each column."""
    rows = math.ceil(len(columns) / _ACROSS)
    figure, panels = new_panels(rows, _ACROSS, size=(9.6, 2.3 * rows + 0.3))
    for axes, column in zip(panels, columns, strict=False):
        _panel(axes, column)
    for axes in panels[len(columns) :]:
        axes.set_axis_off()
    return figure


def _panel(axes: Axes, column: DescribedColumn) -> None:
    places = np.arange(len(column.labels))
    heights = np.maximum(column.shares, 0.0)
    below = np.minimum(column.half_width, heights)
    axes.bar(places, heights, width=0.9, color=colour(0))
    axes.errorbar(places, heights, yerr=[below, np.full_like(below, column.half_width)], fmt="none", ecolor="0.35")
    axes.set_title(column.name if len(column.name) <= 32 else f"{column.name[:31]}…", fontsize=8)
    if column.edges:
        bounds = [0, len(column.edges) - 2]
        axes.set_xticks(bounds, [column.words(column.edges[0]), column.words(column.edges[-1])], fontsize=6)
        axes.set_xlabel("declared bounds", fontsize=6)
    elif len(places) <= _NAMED:
        names = [label if len(label) <= 14 else f"{label[:13]}…" for label in column.labels]
        axes.set_xticks(places, names, fontsize=6, rotation=30, ha="right")
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(places)} values", fontsize=6)
    axes.tick_params(axis="y", labelsize=6)
