"""Formulas as MathML in the page itself: no script, nothing fetched, read aloud by screen readers."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

FONT = "STIXTwoMath-Regular.ttf"
_ROWS = re.compile(r"(?<!\\)\\\\|(?<!\\)&")


def converted(latex: str, *, display: str) -> str:
    """MathML of a formula; several lines or an `&` make it `aligned`."""
    text = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex.strip())  # the name that the converter knows
    if _ROWS.search(text) and r"\begin{" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    try:
        return latex2mathml.converter.convert(text, display=display)
    except Exception as error:
        raise SphinxError(f"a formula cannot be shown: {latex!r}: {error}") from error


def inline(translator: Any, node: nodes.Element) -> None:
    """Write a formula within a line."""
    translator.body.append(converted(node.astext(), display="inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Element) -> None:
    """Write a formula of its own line, with its number where it has one."""
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    anchor = f' id="{node["ids"][0]}"' if node["ids"] else ""
    body = converted(node.astext(), display="block")
    frame = f'<div class="formula"{anchor} tabindex="0" role="group" aria-label="formula">'
    translator.body.append(f"{frame}{number}{body}</div>")
    raise nodes.SkipNode


def font(app: Sphinx) -> None:
    """Put the font for formulas beside the pages."""
    place = Path(app.outdir, "_static", "fonts")
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(str(files("ziamath") / "fonts" / FONT), place / FONT)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer, whose name is `mathml`."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("builder-inited", font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
