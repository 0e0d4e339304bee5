"""The house style of figures: panels without a display, a palette for every eye, histograms by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.names import Names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")

_BINS = 40
_UNNAMED = Names()
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "figure.dpi": 130,
    "figure.titlesize": "large",
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style inside this context (or in a function decorated with `@house_style()`)."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of rows x columns panels, made without a display; the panels come row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def histogram_by_group(
    axes: Axes,
    values: NDArray[np.float64],
    sensitive: NDArray[np.int64],
    *,
    limits: tuple[float, float] | None = None,
    sideways: bool = False,
    name: Callable[[int], str] = _UNNAMED.group,
) -> None:
    """Overlaid histograms (densities, on shared bins) of outputs (n,), a colour for each group (n,), called `name`."""
    bins = np.linspace(*(limits or limits_of(values)), _BINS + 1)
    for position, group in enumerate(np.unique(sensitive)):
        axes.hist(
            values[sensitive == group],
            bins=bins.tolist(),
            density=True,
            histtype="stepfilled",
            facecolor=(colour(position), 0.35),
            edgecolor=colour(position),
            linewidth=1.2,
            label=name(int(group)),
            orientation="horizontal" if sideways else "vertical",
        )


def limits_of(values: NDArray[np.float64]) -> tuple[float, float]:
    """A range that holds every finite value of an array of any shape and is never empty."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def colour(position: int) -> str:
    """The palette's colour for the n-th thing drawn."""
    return COLOURS[position % len(COLOURS)]


def marker(position: int) -> str:
    """The marker for the n-th thing drawn."""
    return MARKERS[position % len(MARKERS)]
