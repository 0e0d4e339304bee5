"""Epsilon over the releases: fedsw's replay, the independent accountant, and the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsw.audit.record.folder import Book, Folder
from fedsw.audit.record.spent import independent, replay
from fedsw.report.figures import colour, house_style, marker, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REPLAYED, _RECOMPUTED = 40, 8


@house_style()
def draw(folder: Folder, book: Book) -> Figure:
    """What the rows of a ledger cost after each release: above as a curve, below as the difference of the two."""
    count = len(book.rows)
    some = sorted({round(place) for place in np.linspace(1, count, _REPLAYED)})
    few = sorted({round(place) for place in np.linspace(1, count, _RECOMPUTED)})
    by_replay = {rows: replay(book, rows) for rows in {*some, *few}}
    by_others = {rows: independent(book, rows).epsilon for rows in few}
    figure, (axes, gap) = new_panels(2, 1, size=(6.4, 5.2), sharex=True, height_ratios=(3, 1))
    axes.plot(some, [by_replay[rows] for rows in some], color=colour(0), label="replayed by fedsw")
    shown = list(by_others.values())
    axes.plot(few, shown, marker(0), color=colour(1), markerfacecolor="none", label="independent accountant")
    axes.axhline(folder.claimed, color="black", linestyle="--", linewidth=1, label=f"claimed ε = {folder.claimed:.4g}")
    axes.set(ylabel="ε spent", ylim=(0, None))
    subject = f"ε of the recorded rows at δ = {book.promise['delta']:.3g}"
    axes.set_title(f"{folder.experiment['name']}, {book.name}: {subject}")
    axes.legend(loc="lower right")
    relative = [by_replay[rows] / by_others[rows] - 1 if by_others[rows] else 0.0 for rows in few]
    gap.plot(few, relative, marker(0), color=colour(1), markerfacecolor="none")
    most = max(1e-6, *(abs(value) for value in relative))
    gap.axhline(0, color="black", linewidth=0.8)
    gap.set(xlabel="releases", ylabel="fedsw / other − 1", ylim=(-1.4 * most, 1.4 * most))
    gap.locator_params(axis="x", integer=True)
    gap.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    return figure


def drawable(book: Book) -> bool:
    """Whether there is a curve to draw."""
    return bool(book.rows) and all(0 < row.sigma < math.inf for row in book.rows)
