"""What screen readers and keyboards need, and the theme and the generator leave out: put into the built pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_SIGNATURE = re.compile(r"<dl>\n((?:<dd>.*?</dd>\n)+)</dl>", flags=re.DOTALL)
_PLAIN = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Site">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<th class="head"><p></p></th>': "<td></td>",
    '<th class="head"></th>': "<td></td>",
    "<th></th>": "<td></td>",
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    "<pre>": '<pre tabindex="0">',
}
"""Tags as they come and as they should be: headings with a level, landmarks with names, frames that keys can scroll."""

_THUMBNAIL = re.compile(
    r'<a class="reference internal" href="[\w./-]+"><span class="doc">([^<]*)</span></a></p>\n  <div class="sphx'
)


def mended(text: str) -> str:
    """A page's HTML with all of it."""
    for before, after in _PLAIN.items():
        text = text.replace(before, after)
    text = _THUMBNAIL.sub(lambda found: found[0].replace("<a ", f'<a aria-label="{found[1]}" ', 1), text)
    return _SIGNATURE.sub(_lines, text)


def _lines(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", '<div class="sig-line">').replace("</dd>", "</div>")
    return f'<div class="sig-lines">\n{lines}</div>'


def mend(app: Sphinx, error: Exception | None) -> None:
    """Mend every page that was written."""
    if error is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            path.write_text(mended(path.read_text(encoding="utf-8")), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """After everything is written."""
    app.connect("build-finished", mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
