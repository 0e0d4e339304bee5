"""Pages from the templates of this package: one file of HTML that needs no network, and reads without its script."""

from __future__ import annotations

import functools
import html
import re
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsw._tools.text import harmless, installed_version, number, upward


class Page(str):
    """A page as HTML, which a notebook shows in a frame of its own."""

    def __repr__(self) -> str:
        return f"<a page of {len(self.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 40rem; border: 1px solid #767676"
        return f'<iframe title="page" style="{frame}" srcdoc="{html.escape(self)}"></iframe>'


def render(template: str, **values: object) -> Page:
    """A page from a template of this package, without control characters; texts in HTML are escaped."""
    file = _environment().get_template(template)
    return Page(file.render(style=_file("style.css"), script=_file("page.js"), version=installed_version(), **values))


_BEGINS_HTML = re.compile(r"<(?=[A-Za-z/!?])")


def inert(text: object) -> str:
    """A text in Markdown that begins no HTML and loads no picture, whatever names it has in it; `Markup` as it is."""
    if isinstance(text, Markup):
        return text
    return _BEGINS_HTML.sub("&lt;", str(text)).replace("![", "!\\[")


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fedsw.runs.report", "templates"),
        autoescape=lambda name: str(name).endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else harmless(value),
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": True}  # YAML knows no halves of a letter
    made.filters |= {"harmless": harmless, "number": number, "upward": upward, "inert": inert}
    return made


@functools.cache
def _file(name: str) -> Markup:
    return Markup(resources.files("fedsw.runs.report").joinpath("templates", name).read_text(encoding="utf-8"))
