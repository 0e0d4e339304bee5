"""Pictures and tables of the functions that an additive model is a sum of, with the band of the rounds' noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsw._tools.text import number, to_float
from fedsw.runs.report._parts import FactTable
from fedsw.runs.report.figures import colour, house_style, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsw.runs.additive_shapes import ShapeFunction

_MOST_PANELS, _MOST_LABELS = 60, 30


@house_style()
def draw_shapes(shapes: Sequence[ShapeFunction], name: str) -> Figure | None:
    """A small panel for each column of a run of that name; None if the model is not a sum of functions."""
    if not shapes:
        return None
    all_of_them = len(shapes)
    shapes = shapes[:_MOST_PANELS]
    columns = min(4, len(shapes))
    rows = -(-len(shapes) // columns)
    figure, panels = new_panels(rows, columns, size=(2.4 * columns + 0.4, 1.9 * rows + 0.5), sharey=True)
    for axes in panels[len(shapes) :]:
        axes.set_axis_off()
    for axes, shape in zip(panels, shapes, strict=False):
        many = len(shape.places or shape.labels)
        at = np.array(shape.places) if shape.places is not None else np.arange(many, dtype=np.float64)
        for output in range(shape.values.shape[1]):
            values, band = shape.values[:many, output], shape.band[:many, output]
            axes.fill_between(at, values - band, values + band, color=colour(output), alpha=0.2, linewidth=0)
            axes.plot(at, values, "o-" if shape.places else "o", color=colour(output), markersize=3)
        if shape.places is None or to_float(shape.labels[0]) is None:  # a date
            shown = slice(None, many, -(-many // _MOST_LABELS))
            axes.set_xticks(at[shown], [label[:10] for label in shape.labels[shown]], rotation=45, fontsize=6)
        axes.set_title(shape.column, fontsize=8)
    noise = ", with the rounds' noise" if any(shape.band.any() for shape in shapes) else ""
    which = "each column" if len(shapes) == all_of_them else f"each of the first {len(shapes)} of {all_of_them} columns"
    figure.suptitle(f"{name}: what {which} adds{noise}")
    return figure


def shapes_in_words(shapes: Sequence[ShapeFunction]) -> str:
    """The picture in words: the columns, beyond noise, that move the answer most, and by how much."""
    ranges = {shape.column: float(np.ptp(shape.values, axis=0).max()) for shape in shapes if _is_beyond_noise(shape)}
    most = sorted(ranges, key=lambda name: -ranges[name])[:3]
    if not most:
        return "No column moves the answer by more than the noise does"
    return "The columns that move the answer most: " + ", ".join(f"{name}, by {number(ranges[name])}" for name in most)


def _is_beyond_noise(shape: ShapeFunction) -> bool:
    """Return whether a function's mean square, for some output, is above that of noise by two standard deviations."""
    noise = np.mean((shape.band / 2) ** 2, axis=0)  # a band is two standard deviations
    largest = noise * (1 + 2 * np.sqrt(2 / max(1, len(shape.values) - 1)))  # of a chi-squared with w - 1 degrees
    return bool((np.mean(shape.values**2, axis=0) > largest).any())


_NEARLY_ALL = 0.8
"""Part of all columns' effect, beyond noise, from which a column is questioned: it may be the label in other words."""
_TOO_GOOD, _MUCH = 0.99, 0.4
"""An accuracy that is rarely real, and the part from which a column is questioned then."""


def contributions(shapes: Sequence[ShapeFunction]) -> FactTable:
    """Each column, the most first: how far it moves the answer, the noise in that, its part of all columns' effect."""
    powers = _powers(shapes)
    rows = []
    for shape in sorted(shapes, key=lambda shape: -powers[shape.column]):
        output = int(np.ptp(shape.values, axis=0).argmax())
        noise = float(shape.band[:, output].max()) * 2**0.5
        part = powers[shape.column] / (sum(powers.values()) or 1.0)
        beyond = f"{100 * part:.0f} %" if powers[shape.column] else "noise hides it"
        rows.append((shape.column, number(float(np.ptp(shape.values[:, output]))), f"± {number(noise)}", beyond))
    return FactTable.of(("column", "moves the answer by", "noise", "of what all do"), rows)


def leading_column(shapes: Sequence[ShapeFunction], accuracy: float | None = None) -> str:
    """A question if one column dominates: it may be known only with the answer. Empty for other models.

    A model with a very high held-out ``accuracy`` has a lower threshold.
    """
    powers = _powers(shapes)
    total = sum(powers.values())
    if len(powers) < 2 or not total:
        return ""
    first = max(powers, key=lambda name: powers[name])
    if powers[first] < (_MUCH if (accuracy or 0.0) >= _TOO_GOOD else _NEARLY_ALL) * total:
        return ""
    return (
        f"{first!r} does {100 * powers[first] / total:.0f} % of what all columns do: is it known when you predict? "
        "What is known with the answer alone, as a cause of death is, makes a model look better than it can be in use."
    )


def _powers(shapes: Sequence[ShapeFunction]) -> dict[str, float]:
    """The mean square of each column's function that is beyond noise, 0 if noise explains it."""
    powers = {}
    for shape in shapes:
        beyond = np.mean(shape.values**2, axis=0) - np.mean((shape.band / 2) ** 2, axis=0)
        powers[shape.column] = max(0.0, float(beyond.max())) if _is_beyond_noise(shape) else 0.0
    return powers


def rows_of_shapes(shapes: Sequence[ShapeFunction]) -> Iterator[tuple[str, str]]:
    """Each column, with its values at its knots or categories."""
    for shape in shapes:
        for output in range(shape.values.shape[1]):
            pairs = zip(shape.labels, shape.values[:, output], shape.band[:, output], strict=True)
            texts = (f"{at}: {number(value)}{f' ± {number(band)}' if band else ''}" for at, value, band in pairs)
            yield shape.column if not output else "", ", ".join(texts)
