"""The house style of figures: panels without a display, a palette for every eye, histograms by group, small files.

Inside a page a figure is SVG with text as text, or PNG, with a text alternative (`picture`).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw._tools.later import Later
from fedsw._tools.text import harmless
from fedsw.runs.group_names import UNNAMED
from fedsw.runs.view import RunView

if TYPE_CHECKING:
    import matplotlib
    from matplotlib import figure as figure_module
    from matplotlib.axes import Axes
    from matplotlib.backends import backend_agg
    from matplotlib.figure import Figure
    from PIL import Image as pillow
else:  # many a page has no figure
    matplotlib, figure_module = Later("matplotlib"), Later("matplotlib.figure")
    backend_agg, pillow = Later("matplotlib.backends.backend_agg"), Later("PIL.Image")


# Okabe and Ito's palette: distinct with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":", "-.")

MOST_BYTES = 90_000
"""Most bytes of a picture: a clone of a repository of pictures copies each of them twice."""

_BINS = 40
_PALETTE = 128
_WHITE = 250
_SMALLER = 0.95
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
_NO_FORMULAS: dict[Any, Any] = {"text.parse_math": False}
"""Style of texts from files: between two $ they would be set as mathematics, or fail."""


@contextmanager
def house_style(*, formulas: bool = False) -> Iterator[None]:
    """Draw in the house style inside this context (or in a function decorated with `@house_style()`).

    No text inside is parsed as mathematics, unless all of it is the project's (`formulas`), for example matplotlib's
    labels of a logarithmic axis.
    """
    with matplotlib.rc_context(_STYLE | ({} if formulas else _NO_FORMULAS)):
        yield


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure, made without a display."""
    figure = figure_module.Figure(figsize=size, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    return figure


def new_panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of rows x columns panels; the panels come row by row."""
    figure = new_figure(size)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def save(figure: Figure, path: Path, *, most: int = MOST_BYTES) -> Path:
    """Write a figure as a PNG file of at most `most` bytes."""
    files.new_folder(path.parent)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", pil_kwargs={"compress_level": 0})  # it is encoded again at once
    files.replace(path, compact(drawn.getvalue(), most=most), durable=False)
    return path


def compact(picture: bytes, *, most: int = MOST_BYTES) -> bytes:
    """Encode a picture again as a PNG with a palette, and with fewer pixels if it would have more than `most` bytes."""
    with pillow.open(BytesIO(picture)) as opened:
        if opened.format == "PNG" and opened.mode == "P" and len(picture) <= most:
            return picture
        white = pillow.new("RGBA", opened.size, "white")
        pixels = pillow.alpha_composite(white, opened.convert("RGBA")).convert("RGB")
    scale = 1.0
    encoded = _with_palette(pixels)
    while len(encoded) > most:
        scale *= _SMALLER
        size = max(1, round(pixels.width * scale)), max(1, round(pixels.height * scale))
        encoded = _with_palette(pixels.resize(size, pillow.Resampling.LANCZOS))
    return encoded


def _with_palette(picture: pillow.Image) -> bytes:
    """Encode with a palette from a tree, where a rare colour keeps a place of its own (a median cut mixes classes)."""
    small = picture.quantize(_PALETTE, method=pillow.Quantize.FASTOCTREE, dither=pillow.Dither.NONE)
    # The tree takes the mean of white and what is nearly white, which shows on a white page.
    small.putpalette([value if value < _WHITE else 255 for value in small.getpalette() or ()])
    content = BytesIO()
    small.save(content, "PNG", optimize=True)
    return content.getvalue()


def histogram_by_group(
    axes: Axes,
    values: NDArray[np.float64],
    sensitive: NDArray[np.int64],
    *,
    limits: tuple[float, float] | None = None,
    sideways: bool = False,
    name: Callable[[int], str] = UNNAMED.group,
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
            linestyle=LINES[position % len(LINES)],  # groups differ in black and white, too
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


_MOST_POINTS = 2_000
_MOST_IMAGES = 30


@house_style()
def draw_samples(view: RunView) -> Figure | None:
    """Generated samples: over held-out ones in the plane, or as images; None if the run has none."""
    outputs = view.outputs
    if outputs is None:
        return None
    if "images" in outputs.extra:
        return _autoencoder_images(view, outputs.extra)
    reference = outputs.extra.get("reference")
    if reference is None:
        return None
    if reference.shape[1] == 2:
        figure, (axes,) = new_panels(1, 1, size=(4.6, 4.4))
        draw_cloud(axes, outputs.values, reference)
        axes.legend(loc="upper right", markerscale=3)
    elif is_square(reference.shape[1]):
        figure, panels = new_panels(2, 1, size=(6.4, 2.6))
        draw_images(panels[0], reference[:_MOST_IMAGES], "held out")
        draw_images(panels[1], outputs.values[:_MOST_IMAGES], "generated")
    else:
        return None
    figure.suptitle(f"{view.experiment.name}: generated samples")
    return figure


@house_style()
def draw_latent(view: RunView) -> Figure | None:
    """The first two coordinates of held-out latent codes or features, a colour for each class; one as a histogram."""
    outputs = view.outputs
    if outputs is None:
        return None
    figure, (axes,) = new_panels(1, 1, size=(5.0, 4.6))
    codes, names, one = outputs.values, view.names, outputs.values.shape[1] == 1
    for label in np.unique(outputs.target):
        points = codes[outputs.target == label]
        named = names.label(int(label)) if names.classes else str(label)
        look: dict[str, Any] = {"color": matplotlib.colormaps["tab10"](int(label) % 10), "label": named}
        if one:
            axes.hist(points[:, 0], range=limits_of(codes), bins=_BINS, histtype="step", density=True, **look)
        else:
            axes.scatter(points[:_MOST_POINTS, 0], points[:_MOST_POINTS, 1], s=5, alpha=0.5, linewidths=0, **look)
    axes.set(xlabel="coordinate 1", ylabel="density" if one else "coordinate 2", aspect="auto" if one else "equal")
    axes.legend(markerscale=3, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{view.experiment.name}: held-out codes by label")
    return figure


def draw_cloud(axes: Axes, generated: NDArray[np.float64], reference: NDArray[np.float64]) -> None:
    """Generated points (m, 2) over held-out ones (n, 2), at the scale of the held-out ones."""
    for position, (name, points) in enumerate((("held out", reference), ("generated", generated))):
        look: dict[str, Any] = {"color": "0.7" if position == 0 else colour(1), "alpha": 0.6, "linewidths": 0}
        axes.scatter(points[:_MOST_POINTS, 0], points[:_MOST_POINTS, 1], s=5, label=name, **look)
    low, high = limits_of(np.asarray(reference, dtype=np.float64).reshape(-1))
    margin = 0.35 * (high - low)
    axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin), aspect="equal")


def draw_images(axes: Axes, images: NDArray[np.float64], title: str, *, columns: int = 15) -> None:
    """Square grey images (n, side^2) in rows, darkest 0, brightest 1."""
    side = math.isqrt(images.shape[1])
    rows = -(-len(images) // columns)
    sheet = np.ones((rows * (side + 1) - 1, columns * (side + 1) - 1))
    for position, image in enumerate(images):
        top, left = (position // columns) * (side + 1), (position % columns) * (side + 1)
        sheet[top : top + side, left : left + side] = np.clip(image.reshape(side, side), 0, 1)
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title)
    axes.set_axis_off()


def is_square(width: int) -> bool:
    """Return whether that many features are the pixels of a square image."""
    return width >= 16 and math.isqrt(width) ** 2 == width


def _autoencoder_images(view: RunView, extra: Mapping[str, NDArray[Any]]) -> Figure | None:
    shown = {"images": "held out", "reconstructions": "reconstructed", "samples": "decoded from the prior"}
    rows = {title: extra[name][:_MOST_IMAGES] for name, title in shown.items() if name in extra}
    if not is_square(extra["images"].shape[1]):
        return None
    figure, panels = new_panels(len(rows), 1, size=(6.4, 1.15 * len(rows) + 0.3))
    for axes, (title, images) in zip(panels, rows.items(), strict=True):
        draw_images(axes, images, title)
    figure.suptitle(f"{view.experiment.name}: images")
    return figure


_MOST_SVG_BYTES = 250_000
"""Most bytes of one figure as SVG; a larger one, of thousands of points, becomes a PNG."""
_POINTS = 96  # of CSS, in an inch
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


class Picture(NamedTuple):
    """A figure in a page: its caption, the element, and how wide it must be to be read, in CSS pixels."""

    caption: str
    element: Markup
    width: int


def picture(figure: Figure, *, name: str, caption: str, says: str) -> Picture:
    """A figure as an element of a page, with its own name; `says` is the text alternative."""
    written = StringIO()
    with house_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = written.getvalue()
    width = round(_POINTS * figure.get_figwidth())
    if len(drawn) > _MOST_SVG_BYTES:
        dots = BytesIO()
        figure.savefig(dots, format="png", pil_kwargs={"compress_level": 0})
        data = base64.b64encode(compact(dots.getvalue())).decode("ascii")
        image = Markup('<img alt="{}" width="{}" src="data:image/png;base64,{}">').format(harmless(says), width, data)
        return Picture(caption, image, width)
    label = Markup('role="img" aria-label="{}"').format(harmless(says))
    body = _IDS.sub(rf"\g<1>{name}-", drawn[drawn.index("<svg") :])
    body = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        rf'<svg {label} \1 xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}">',
        body,
        count=1,
    )
    return Picture(caption, Markup(re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)), width)
