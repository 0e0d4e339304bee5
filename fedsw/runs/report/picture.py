"""A figure inside a page: as SVG with text as text, or as PNG, with a text alternative."""

from __future__ import annotations

import base64
import re
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from fedsw._tools.text import harmless
from fedsw.runs.report.figures import compact, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MOST_BYTES = 250_000
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
    import matplotlib

    written = StringIO()
    with house_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = written.getvalue()
    width = round(_POINTS * figure.get_figwidth())
    if len(drawn) > _MOST_BYTES:
        return Picture(caption, _as_png(figure, says, width), width)
    label = Markup('role="img" aria-label="{}"').format(harmless(says))
    body = _IDS.sub(rf"\g<1>{name}-", drawn[drawn.index("<svg") :])
    body = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        rf'<svg {label} \1 xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}">',
        body,
        count=1,
    )
    return Picture(caption, Markup(re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)), width)


def _as_png(figure: Figure, says: str, width: int) -> Markup:
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    data = base64.b64encode(compact(drawn.getvalue())).decode("ascii")
    return Markup('<img alt="{}" width="{}" src="data:image/png;base64,{}">').format(harmless(says), width, data)
