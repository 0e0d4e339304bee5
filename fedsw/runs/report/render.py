"""Documents as pages, one file of HTML that needs no network and reads without its script, and as Markdown."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedsw._tools.text import harmless, installed_version, number, table
from fedsw.runs.report._parts import Content


class Page(str):
    """A page as HTML, which a notebook shows in a frame of its own."""

    def __repr__(self) -> str:
        return f"<a page of {len(self.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 40rem; border: 1px solid #767676"
        return f'<iframe title="page" style="{frame}" srcdoc="{html.escape(self)}"></iframe>'


def page_of(document: Content) -> Page:
    """A document as a page; texts are escaped, and what stands between ` is set as code."""
    of_page = {"style": _file("style.css"), "script": _file("page.js"), "version": installed_version()}
    return Page(written("document.html", whole=document, **of_page))


def markdown_of(document: Content) -> str:
    """A document in Markdown, figures left out; runs of empty lines become one."""

    def markdown(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
        return table([inert(cell) for cell in headings], [[inert(cell) for cell in row] for row in rows])

    text = re.sub(r"[^\S\n]+$", "", written("document.md", whole=document, markdown=markdown), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def written(template: str, **values: object) -> str:
    """A text from a template of this package, without control characters."""
    return _environment().get_template(template).render(**values)


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
    made.filters |= {"harmless": harmless, "number": number, "inert": inert}
    code = re.compile("`([^`]+)`")
    made.filters["sentence"] = lambda text: Markup(code.sub(r"<code>\1</code>", str(escape(harmless(text)))))
    return made


@functools.cache
def _file(name: str) -> Markup:
    return Markup(resources.files("fedsw.runs.report").joinpath("templates", name).read_text(encoding="utf-8"))
